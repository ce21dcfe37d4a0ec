"""The write path: everything on its way to the server, in order.

Whoever has something to send and finds the socket free sends it at once, in its own thread: no hop, no delay.
While somebody sends, what others put gathers and leaves with the sender's next call. Acks and pipelined
publishes may gather on purpose (`gather=True`): they leave when the caller is about to block, when
GATHER_BYTES have come together, or soon, within twice GATHER_SECONDS, through the writer thread.

Sends never block a caller (MSG_DONTWAIT). What the kernel does not take is left to the writer thread, which
waits for the socket; callers that may wait do so in `wait_for_room`.

The lock `_mu` guards all fields and is held for a few instructions, never across a socket call. The right to
touch the transport's sending half belongs to one thread at a time: the one whose claim stands in `_sender`. It
passes to the writer thread when a send would block, or when a signal handler raised in the sender (`_stuck`).

A transport is closed by the last one who can be inside it: whoever detached it, or the sender that finds itself
detached.
"""

from __future__ import annotations

import itertools
import time
from _thread import LockType, allocate_lock
from collections import deque
from typing import Any, NamedTuple

from .._deadline import Deadline
from .._threads import locked
from ..errors import ConnectionClosedError, OutboundBufferLimitError, TimeoutError
from ..protocol import commands
from .transport import Transport

# A sender's right to a transport: one fresh tuple each time, compared by identity.
Claim = tuple[Transport]

# Measured: gathering up to 32 KiB before a send is best for pipelined publishes.
GATHER_BYTES = 32 * 1024
# Acks gathered up to here leave in one send: about as many bytes.
GATHER_ACKS = 400
# The bound on how long a gathered ack may wait for company; far below any ack_wait.
GATHER_SECONDS = 0.001
# A sender takes along what others put meanwhile, but not for ever: it has a deadline of its own, or is the reader.
MAX_TURNS = 16
# Publishers wait when this much is queued behind a socket that takes no more.
HIGH_WATER = 1024 * 1024


class Ephemeral(bytes):
    """A frame that means something on the current connection only: dropped, not kept, when it is lost.

    SUB and UNSUB (sent anew after a reconnect), PING and PONG, requests (their callers are told), pulls.
    """

    __slots__ = ()


class SessionFrame(Ephemeral):
    """A frame that was published with keep=False, queued; `origin` is what withdraw() takes."""

    origin: bytes

    def __new__(cls, frame: bytes) -> SessionFrame:
        queued = super().__new__(cls, frame)
        queued.origin = frame
        return queued


def _is(queued: bytes, frame: bytes) -> bool:
    return getattr(queued, "origin", queued) is frame


class Abandoned(NamedTuple):
    """A transport that was taken out of use, if there was one."""

    transport: Transport | None
    in_use: bool
    """Whether a sender may be inside, who then closes it."""

    def abort(self) -> None:
        """Break it: whoever is inside comes out."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close it unless a sender will; only when nobody receives from it any more."""
        if self.transport is not None and not self.in_use:
            self.transport.close()


class Outbox:
    """See the module's text. Thread-safe."""

    def __init__(self, pending_size: int) -> None:
        self._mu = allocate_lock()
        self._pending_size = pending_size
        self._transport: Transport | None = None
        self._broken: Transport | None = None  # a send on it failed; the reader has yet to notice
        self._queue: list[bytes] = []
        self._queued = 0  # bytes in _queue
        # Acks, in order. Appended to without the lock, taken under it: they leave before what is queued, which
        # keeps their order among themselves, the only one that matters for them.
        self._acks: list[bytes] = []
        self._sender: Claim | None = None
        self._stuck = False
        self._interrupted: Claim | None = None  # of a sender in which a signal handler raised
        self._orphans: list[Transport] = []  # lost while stuck: the writer thread may be inside, so it closes them
        self._gathering = False
        self._sends = 0  # how often something gathered has left
        self._closed = False
        self._kick = locked()  # wakes the writer thread
        self._kicked = False
        self._room_waiters: deque[LockType] = deque()
        self.out_msgs = 0
        self.out_bytes = 0

    # --- callers ---------------------------------------------------------------------------------

    def publish(self, frame: bytes, size: int, *, keep: bool = True, coalesce: bool = False) -> None:
        """Queue one message's frame (`size`: its headers and payload, for the statistics) and send or gather it.

        Never blocks. Raises OutboundBufferLimitError when disconnected with too much waiting.
        """
        claim = None
        try:
            with self._mu:
                if self._closed:
                    raise ConnectionClosedError()
                transport = self._transport
                if transport is None and self._queued + len(frame) > self._pending_size:
                    raise OutboundBufferLimitError(self._queued, self._pending_size)
                self.out_msgs += 1
                self.out_bytes += size
                waits = coalesce or self._queue or self._acks or self._sender is not None
                if transport is not None and not waits and transport is not self._broken:
                    # The usual case. Stores and no call between them: a signal handler cannot lose the frame.
                    claim = self._sender = (transport,)
                    transport.outgoing = frame
                else:
                    self._queue.append(frame if keep else SessionFrame(frame))
                    self._queued += len(frame)
                    if transport is None or self._sender is not None:
                        self._revive()
                        return
                    if coalesce and self._queued < GATHER_BYTES:
                        if not self._gathering:
                            self._gathering = True
                            self._wake_writer()
                        return
                    claim = self._sender = (transport,)
            self._pump(claim)
        except BaseException:
            if claim is not None:
                self._interrupted = claim
                self._leave(claim)
            raise

    def ack(self, frame: bytes, *, coalesce: bool) -> None:
        """Send an acknowledgement, or gather it with others. Never blocks; kept over a reconnect.

        The hot path of a consumer: while acks gather, one costs an append and takes no lock.
        """
        if self._closed:
            raise ConnectionClosedError()
        acks = self._acks
        acks.append(frame)
        if not coalesce or len(acks) >= GATHER_ACKS:
            self.flush()
        elif not self._gathering:
            with self._mu:
                self._gathering = True
                self._wake_writer()

    def control(self, frame: bytes, *, keep: bool = False) -> bytes:
        """Queue a protocol command without sending it yet; without a connection dropped unless `keep`.

        Returns what withdraw() takes.
        """
        queued = Ephemeral(frame)
        with self._mu:
            if keep or self._transport is not None:
                self._queue.append(queued)
                self._queued += len(queued)
        return queued

    def flush(self) -> None:
        """Send what is queued, unless somebody is sending already (who then takes it along). Never blocks."""
        if not self._queue and not self._acks:
            return  # the usual case before a wait: what this thread has put is already gone
        claim = None
        try:
            with self._mu:
                transport = self._transport
                if transport is None or self._sender is not None or not (self._queue or self._acks):
                    self._revive()
                    return
                claim = self._sender = (transport,)
            self._pump(claim)
        except BaseException:
            if claim is not None:
                self._interrupted = claim
                self._leave(claim)
            raise

    def withdraw(self, *frames: bytes) -> bool:
        """Take back frames that have not left yet (requests whose callers gave up). True when one had not."""
        unwanted = {id(frame) for frame in frames}
        with self._mu:
            before = len(self._queue)
            if before:
                self._queue = [
                    frame for frame in self._queue if id(getattr(frame, "origin", frame)) not in unwanted
                ]
                self._queued = sum(map(len, self._queue))
            return len(self._queue) < before

    def ping(self, waiters: deque[Any], waiter: Any) -> bytes:
        """Queue a PING and note who waits for its PONG: PONGs are told apart by their order alone.

        One step for signal handlers, too: they raise after calls only, and there is none between the stores.
        Returns what unping() takes.
        """
        ping = Ephemeral(commands.PING)
        with self._mu:
            waiters += (waiter,)
            self._queue += (ping,)
            self._queued += len(ping)
        return ping

    def unping(self, ping: bytes, waiters: deque[Any], waiter: Any) -> None:
        """Take back a PING that has not left yet, and its waiter with it; one step like ping()."""
        with self._mu:
            index = self._index_of(ping)
            if index is not None and waiter in waiters:
                place = waiters.index(waiter)
                del self._queue[index]
                del waiters[place]
                self._queued -= len(ping)

    def _index_of(self, frame: bytes) -> int | None:
        # Requires holding _mu.
        return next((index for index, queued in enumerate(self._queue) if _is(queued, frame)), None)

    @property
    def congested(self) -> bool:
        """Whether a publisher should wait for room before it goes on."""
        return self._queued > HIGH_WATER and self._transport is not None

    def wait_for_room(self, timeout: float | None = None) -> None:
        """Block while the socket takes nothing and much is queued. Ends also by disconnect.

        Raises ConnectionClosedError when closed meanwhile: what was queued is lost then.
        """
        deadline = Deadline(timeout)
        while True:
            waiter = locked()
            try:
                with self._mu:
                    if self._closed:
                        raise ConnectionClosedError()
                    if not self.congested:
                        return
                    self._room_waiters.append(waiter)
                if not waiter.acquire(timeout=deadline.wait_time()):
                    raise TimeoutError("the server takes no more data")
            finally:
                with self._mu:
                    try:
                        self._room_waiters.remove(waiter)
                    except ValueError:
                        pass  # was woken

    # --- the owner of the connection's state (reader thread, or connect()'s caller) --------------------

    def attach(self, transport: Transport, first: bytes) -> None:
        """A new connection: `first` (CONNECT was sent; the subscriptions) goes before all that waited."""
        with self._mu:
            if first:
                self._queue.insert(0, Ephemeral(first))
                self._queued += len(first)
            self._transport = transport
            self._broken = None
            self._orphan_stuck()
            self._sender = None

    def detach(self, *, for_good: bool = False) -> Abandoned:
        """The connection is gone: keep what has not left and is still worth sending, drop the rest.

        No socket call: the caller drops what it gets when it holds no lock any more. `for_good` is for whoever
        calls close() next: in one step, or a publisher woken in between would find itself merely disconnected.
        """
        with self._mu:
            self._closed = self._closed or for_good
            transport, self._transport = self._transport, None
            if transport is None:
                return Abandoned(None, in_use=False)
            self._queue = [frame for frame in self._queue if not isinstance(frame, Ephemeral)]
            self._queued = sum(map(len, self._queue))
            self._wake_room_waiters()
            in_use = self._sender is not None
            self._orphan_stuck()
        return Abandoned(transport, in_use)

    def close(self) -> None:
        """Take nothing more and end the writer thread."""
        with self._mu:
            self._closed = True
            self._queue = []
            self._acks = []
            self._queued = 0
            self._wake_room_waiters()
            self._wake_writer()

    @property
    def idle(self) -> bool:
        """Nothing is queued and nobody is sending."""
        with self._mu:
            return not self._queue and not self._acks and self._sender is None

    # --- the writer thread ------------------------------------------------------------------------

    def serve(self, timeout: float) -> bool:
        """One turn of the writer thread: wait for work up to `timeout` seconds and do it. False when closed."""
        woken = self._kick.acquire(timeout=0 if self._has_work() else timeout)
        with self._mu:
            if self._kicked and not woken:
                self._kick.acquire(blocking=False)  # the kick came between the wait and here
            self._kicked = False
            orphans, self._orphans = self._orphans, []
            ended = self._closed and not self._stuck
            gathering, self._gathering = self._gathering, False
            stuck = self._sender if self._stuck else None
        for transport in orphans:
            _break_and_close(transport)
        if ended:
            return False
        if stuck is not None:
            self._push_stuck(stuck[0], timeout)
        elif gathering:
            self._flush_gathered()
        return True

    def _flush_gathered(self) -> None:
        """Send what has gathered for GATHER_SECONDS, unless its callers do so themselves.

        While they send enough at a time, a send from here would only take the socket out of their hands, and wait
        for the interpreter before it gives it back.
        """
        sends = self._sends
        time.sleep(GATHER_SECONDS)
        if self._sends == sends:
            self.flush()
            return
        with self._mu:
            if self._queue or self._acks:
                self._gathering = True
                self._wake_writer()

    def _has_work(self) -> bool:
        with self._mu:
            return self._stuck or self._gathering or self._closed or bool(self._orphans)

    def _push_stuck(self, transport: Transport, timeout: float) -> None:
        """Wait until the socket takes more, then go on as the sender."""
        if transport is self._transport and not transport.wait_writable(timeout):
            return  # still full: the caller looks after its pings and comes back
        with self._mu:
            claim = None
            if self._stuck and self._sender is not None and self._sender[0] is transport:
                # A fresh claim: the thread that handed over has nothing to say any more.
                claim = self._sender = (transport,)
                self._stuck = False
                self._interrupted = None
        if claim is not None:
            self._pump(claim)

    def _orphan_stuck(self) -> None:
        # Requires holding _mu.
        if self._stuck and self._sender is not None:
            self._orphans.append(self._sender[0])
            self._sender = None
            self._stuck = False
            self._wake_writer()

    def _wake_writer(self) -> None:
        # Requires holding _mu.
        if not self._kicked:
            self._kicked = True
            self._kick.release()

    def _wake_room_waiters(self) -> None:
        # Requires holding _mu.
        while self._room_waiters:
            self._room_waiters.popleft().release()

    # --- sending ----------------------------------------------------------------------------------

    def _pump(self, claim: Claim) -> None:
        """Send until nothing is queued. Requires holding the claim; gives it up, or to the writer thread."""
        transport = claim[0]
        try:
            for turn in itertools.count():
                if turn == MAX_TURNS or not transport.flush_now():
                    if self._hand_over(claim):
                        return
                    break  # another connection has taken its place: nobody else will close this one
                with self._mu:
                    if self._transport is not transport:
                        break
                    acks = len(self._acks)
                    if not self._queue and not acks:
                        self._sender = None
                        return
                    frames = self._acks[:acks] + self._queue
                    data = b"".join(frames) if len(frames) > 1 else frames[0]
                    # Stores and no call between them: a signal handler cannot lose the frames.
                    transport.outgoing = data
                    self._sends += 1
                    del self._acks[:acks]
                    self._queue = []
                    self._queued = 0
                    self.out_msgs += acks
                    self.out_bytes += 4 * acks  # "+ACK" and its like
                    if self._room_waiters:
                        self._wake_room_waiters()
        except OSError as error:
            if error.errno is None:
                raise  # not of a socket: a signal handler's TimeoutError, say, which is for our caller
            self._broken = transport  # what is published from now on is kept for the next one
            transport.abort()  # wakes the reader, which owns what happens next
        self._release(claim)

    def _release(self, claim: Claim) -> None:
        """Give up a claim on a broken or replaced transport, and close it if nobody else will."""
        with self._mu:
            if self._sender is claim:
                self._sender = None
            detached = self._transport is not claim[0]
        if detached:
            _break_and_close(claim[0])

    def _leave(self, claim: Claim) -> None:
        """A signal handler raised in the sender. Its claim must not stay behind, nor its transport open."""
        if not self._hand_over(claim):
            self._release(claim)

    def _revive(self) -> None:
        # Requires holding _mu. A second signal may have kept an interrupted sender from handing over.
        if self._sender is not None and self._sender is self._interrupted:
            self._stuck = True
            self._wake_writer()

    def _hand_over(self, claim: Claim) -> bool:
        """The socket is full, or the sender was interrupted or has done enough for others.

        The writer thread goes on from here. False when the claim does not stand any more, or its transport was
        detached: the writer thread may have ended, so the sender itself has to close it.
        """
        with self._mu:
            if self._sender is not claim or self._transport is not claim[0]:
                return False
            self._stuck = True
            self._wake_writer()
            return True


def _break_and_close(transport: Transport) -> None:
    """Close what was detached. Broken first: whoever detached it may not have come to that, and closing alone does
    not wake the reader out of its recv."""
    transport.abort()
    transport.close()
