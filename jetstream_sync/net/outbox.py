"""The write path: everything on its way to the server, in order.

docs/design.md, "Sending", says which thread writes when. Coalesced frames leave when the caller is about to block,
when COALESCE_BYTES have come together, or within twice COALESCE_SECONDS through the writer thread.

`_lock` guards all fields. It is held for a few instructions, never across a socket call. One thread at a time
may use the transport's sending half: the one whose `Sender` stands in `_sender`. That right passes to the writer
thread when a send would block, or when a signal handler raised in the sender (`_stuck`).

An entry of the queue is a frame (bytes), which is kept when the connection is lost, or a tuple with one frame,
which means something on one session only and is dropped with it: SUB and UNSUB (sent anew after a reconnect),
PING and PONG, requests (their callers are told), pulls.

A transport is closed by the last thread that can be inside it: the one that detached it, or the sender that
finds its transport detached.
"""

from __future__ import annotations

import itertools
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .._deadline import Deadline
from .._threads import Waiters, Wakeup
from ..errors import ConnectionClosedError, OutboundBufferLimitError, TimeoutError
from ..protocol import commands
from .transport import Transport

T = TypeVar("T")

# The right to send on a transport: a new tuple each time, compared by identity.
Sender = tuple[Transport]
SessionOnly = tuple[bytes]
Entry = bytes | SessionOnly

# Measured: coalescing up to 32 KiB before a send is best for pipelined publishes.
COALESCE_BYTES = 32 * 1024
# So many acks leave in one send: about as many bytes.
COALESCE_ACKS = 400
# How long a coalesced ack may wait for others; far below any ack_wait.
COALESCE_SECONDS = 0.001
# How often a sender sends what other threads have queued meanwhile. It has a deadline of its own, or is the
# reader.
MAX_TURNS = 16
# Publishers wait when this much is queued behind a socket that accepts no more.
HIGH_WATER = 1024 * 1024


class DetachedTransport(NamedTuple):
    """A transport that was taken out of use, if there was one."""

    transport: Transport | None
    in_use: bool
    """Whether a sender may be inside. That sender then closes it."""

    def abort(self) -> None:
        """Break it: threads blocked inside return."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close it unless a sender will. Call it when no thread receives from it any more."""
        if self.transport is not None and not self.in_use:
            self.transport.close()


class Outbox:
    """See the module's text. Thread-safe."""

    def __init__(self, pending_size: int, state: object = "not connected") -> None:
        """`state` as text says why there is no connection, in errors."""
        self._state = state
        self._lock = allocate_lock()
        self._pending_size = pending_size
        self._transport: Transport | None = None
        # Nothing more is sent on it: a send has failed, or it was retired. The reader has yet to notice.
        self._broken: Transport | None = None
        self._queue: list[Entry] = []
        self._queued = 0  # bytes in _queue
        # Acks, in order. Appended to without the lock, removed under it. They leave before what is queued, which
        # keeps their order among themselves, the only one that matters for them.
        self._acks: list[bytes] = []
        self._sender: Sender | None = None
        self._stuck = False
        self._interrupted: Sender | None = None  # a signal handler raised in this sender
        self._orphans: list[Transport] = []  # lost while stuck: the writer thread may be inside and closes them
        self._coalescing = False
        self._sends = 0  # how often queued frames have left
        self._closed = False
        self._wakeup = Wakeup()  # of the writer thread
        self._wake_writer = self._wakeup.release
        self._room = Waiters()
        self.out_msgs: int = 0
        self.out_bytes: int = 0

    @property
    def lock_held(self) -> bool:
        """Whether a thread, maybe the calling one, holds the lock at this moment."""
        return self._lock.locked()

    # --- callers ---------------------------------------------------------------------------------

    def publish(self, frame: bytes, size: int, *, keep: bool = True, coalesce: bool = False) -> None:
        """Send one message's frame, or queue it. `size` (headers and payload) is for the statistics.

        `keep=False`: the frame is not sent on another session than the present one, or the next one while
        disconnected. Never blocks. Raises OutboundBufferLimitError when disconnected with too much waiting.
        """
        sender = None
        try:
            with self._lock:
                if self._closed:
                    raise ConnectionClosedError()
                transport = self._transport
                if transport is None and self._queued + len(frame) > self._pending_size:
                    raise OutboundBufferLimitError(self._queued, self._pending_size, str(self._state))
                self.out_msgs += 1
                self.out_bytes += size
                waits = coalesce or self._queue or self._acks or self._sender is not None
                if transport is not None and not waits and transport is not self._broken:
                    # The usual case. Stores and no call between them: a signal handler cannot lose the frame.
                    sender = self._sender = (transport,)
                    transport.outgoing = frame
                else:
                    self._queue.append(frame if keep else (frame,))
                    self._queued += len(frame)
                    if transport is None or self._sender is not None:
                        self._revive()
                        return
                    if coalesce and self._queued < COALESCE_BYTES:
                        if not self._coalescing:
                            self._coalescing = True
                            self._wakeup.set()
                        return
                    sender = self._sender = (transport,)
            self._pump(sender)
        except BaseException:
            if sender is not None:
                # A store and a call into C: a second signal cannot keep the writer thread from going on.
                self._interrupted = sender
                try:
                    self._wake_writer()
                except RuntimeError:
                    pass  # it is awake
                self._leave(sender)
            raise

    def ack(self, frame: bytes, *, coalesce: bool) -> None:
        """Send an acknowledgement, or coalesce it with others. Never blocks; kept over a reconnect.

        The hot path of a consumer: a coalesced ack costs an append and takes no lock.
        """
        if self._closed:
            raise ConnectionClosedError()
        acks = self._acks
        # With those that wait already: they leave when the caller asks for the next message, together with the
        # pull that is often due then. At once, a burst's last ack would leave the pull to a write of its own.
        coalesce = coalesce or bool(acks)
        acks.append(frame)
        if not coalesce or len(acks) >= COALESCE_ACKS:
            self.flush()
        elif not self._coalescing:
            with self._lock:
                self._coalescing = True
                self._wakeup.set()

    def control(self, frame: bytes) -> None:
        """Queue a protocol command without sending it yet. Without a session it is dropped."""
        with self._lock:
            if self._transport is not None:
                self._queue.append((frame,))
                self._queued += len(frame)

    def send_all(self, items: list[T], encode: Callable[[list[T]], list[bytes]]) -> None:
        """Queue what `encode` makes of `items` as one write, and empty the list. Does not flush.

        One step, for other threads and for signal handlers: nothing is queued twice. For the present session only;
        without one it is dropped. `encode` is pure: it runs under the lock.
        """
        with self._lock:
            taken = len(items)
            frames = encode(items[:taken])
            entry, count = (b"".join(frames),), len(frames)
            size = len(entry[0])
            # Stores and no call between them: a signal handler finds the items in the list or in the queue.
            if count and self._transport is not None:
                self._queue += (entry,)
                self._queued += size
                self.out_msgs += count
                self.out_bytes += 4 * count  # "-NAK" and its like
            del items[:taken]

    def flush(self) -> None:
        """Send what is queued, unless another thread is sending: that thread then sends it. Never blocks."""
        if not self._queue and not self._acks:
            return  # the usual case before a wait: what this thread has queued has already left
        sender = None
        try:
            with self._lock:
                transport = self._transport
                if transport is None or self._sender is not None or not (self._queue or self._acks):
                    self._revive()
                    return
                sender = self._sender = (transport,)
            self._pump(sender)
        except BaseException:
            if sender is not None:
                # A store and a call into C: a second signal cannot keep the writer thread from going on.
                self._interrupted = sender
                try:
                    self._wake_writer()
                except RuntimeError:
                    pass  # it is awake
                self._leave(sender)
            raise

    def withdraw(self, *frames: bytes) -> list[bytes]:
        """Take back frames that have not left yet (of callers that gave up): those that were still queued."""
        unwanted = set(map(id, frames))
        with self._lock:
            kept = [entry for entry in self._queue if id(_frame_of(entry)) not in unwanted]
            found = [_frame_of(entry) for entry in self._queue if id(_frame_of(entry)) in unwanted]
            if found:
                self._queue = kept
                self._queued = sum(len(_frame_of(entry)) for entry in kept)
        return found

    def ping(self, waiters: deque[Any], waiter: Any) -> SessionOnly:
        """Queue a PING and append `waiter` to those who wait for a PONG: PONGs are told apart by order alone.

        One step for signal handlers, too: they raise after calls only, and there is none between the stores.
        Returns what unping() takes.
        """
        ping = (commands.PING,)
        with self._lock:
            waiters += (waiter,)
            self._queue += (ping,)
            self._queued += len(commands.PING)
        return ping

    def unping(self, ping: SessionOnly, waiters: deque[Any], waiter: Any) -> bool:
        """Take back a PING that has not left, and its waiter with it; one step like ping(). True: it had not."""
        with self._lock:
            index = next((index for index, entry in enumerate(self._queue) if entry is ping), None)
            if index is not None and waiter in waiters:
                place = waiters.index(waiter)
                del self._queue[index]
                del waiters[place]
                self._queued -= len(commands.PING)
                return True
        return False

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent, without acks."""
        return self._queued

    @property
    def congested(self) -> bool:
        """Whether a publisher should wait for room before it goes on."""
        return self._queued > HIGH_WATER and self._transport is not None

    def wait_for_room(self, timeout: float | None = None) -> None:
        """Block while the socket accepts nothing and much is queued. A disconnect ends the wait, too.

        Raises TimeoutError; ConnectionClosedError when closed meanwhile: what was queued is lost then.
        """
        in_time = self._room.wait_until(lambda: self._closed or not self.congested, Deadline(timeout))
        if self._closed:
            raise ConnectionClosedError()
        if not in_time:
            raise TimeoutError("the server takes no more data")

    # --- the thread that changes the connection's state (the reader, or connect()'s caller) -----------------

    def attach(self, transport: Transport, first: bytes) -> None:
        """A new session: `first` (the subscriptions; CONNECT was sent) goes before all that waited."""
        with self._lock:
            if first:
                self._queue.insert(0, (first,))
                self._queued += len(first)
            self._transport = transport
            self._broken = None
            self._orphan_stuck()
            self._sender = None

    def retire(self) -> None:
        """Send nothing more on the present session; what is published from now on waits for the next one."""
        with self._lock:
            self._broken = self._transport

    @property
    def sending(self) -> bool:
        """Whether a thread is sending, or the writer thread has something left to send."""
        return self._sender is not None

    def detach(self, *, for_good: bool = False) -> DetachedTransport:
        """The session is gone: keep what has not left and is still worth sending, drop the rest.

        Makes no socket call: the caller aborts and closes the result when it holds no lock any more. `for_good`
        also closes the outbox, in the same step: a publisher woken in between would find itself merely
        disconnected. close() follows.
        """
        with self._lock:
            self._closed = self._closed or for_good
            transport, self._transport = self._transport, None
            if transport is None:
                return DetachedTransport(None, in_use=False)
            self._queue = [entry for entry in self._queue if type(entry) is bytes]
            self._queued = sum(map(len, self._queue))
            self._room.wake_all()
            in_use = self._sender is not None
            self._orphan_stuck()
        return DetachedTransport(transport, in_use)

    def close(self) -> None:
        """Accept nothing more and end the writer thread."""
        with self._lock:
            self._closed = True
            self._queue = []
            self._acks = []
            self._queued = 0
            self._room.wake_all()
            self._wakeup.set()

    @property
    def idle(self) -> bool:
        """Nothing is queued and no thread is sending."""
        with self._lock:
            return not self._queue and not self._acks and self._sender is None

    # --- the writer thread ------------------------------------------------------------------------

    def serve(self, timeout: float) -> bool:
        """One turn of the writer thread: wait for work up to `timeout` seconds and do it. False when closed."""
        # Read without the lock: what is stored a moment later sets the wake-up.
        has_work = self._stuck or self._coalescing or self._closed or self._orphans
        self._wakeup.wait(0.0 if has_work else timeout)
        with self._lock:
            self._revive()
            orphans, self._orphans = self._orphans, []
            ended = self._closed and not self._stuck
            coalescing, self._coalescing = self._coalescing, False
            stuck = self._sender if self._stuck else None
        for transport in orphans:
            _break_and_close(transport)
        if ended:
            return False
        if stuck is not None:
            self._push_stuck(stuck[0], timeout)
        elif coalescing:
            self._flush_coalesced()
        return True

    def _flush_coalesced(self) -> None:
        """Send what has been coalesced for COALESCE_SECONDS, unless its callers do so themselves.

        While they send enough at a time, a send from here would only take the socket out of their hands, and wait
        for the interpreter before it gives it back.
        """
        sends = self._sends
        time.sleep(COALESCE_SECONDS)
        if self._sends == sends:
            self.flush()
            return
        with self._lock:
            if self._queue or self._acks:
                self._coalescing = True
                self._wakeup.set()

    def _push_stuck(self, transport: Transport, timeout: float) -> None:
        """Wait until the socket accepts more, then go on as the sender."""
        if transport is self._transport and not transport.wait_writable(timeout):
            return  # still full: the writer thread looks after its pings and comes back
        with self._lock:
            sender = None
            if self._stuck and self._sender is not None and self._sender[0] is transport:
                # A new one: the thread that handed over may not send any more.
                sender = self._sender = (transport,)
                self._stuck = False
                self._interrupted = None
        if sender is not None:
            self._pump(sender)

    def _orphan_stuck(self) -> None:
        """Leave a transport that the writer thread was to go on with for it to close. Requires holding _lock."""
        assert self._lock.locked()
        if self._stuck and self._sender is not None:
            self._orphans.append(self._sender[0])
            self._sender = None
            self._stuck = False
            self._wakeup.set()

    # --- sending ----------------------------------------------------------------------------------

    def _pump(self, sender: Sender) -> None:
        """Send until nothing is queued. The calling thread is the sender; at the end it is so no more."""
        transport = sender[0]
        try:
            for turn in itertools.count():
                if turn == MAX_TURNS or not transport.flush_now():
                    if self._hand_over(sender):
                        return
                    break  # another session has replaced this one: no other thread will close its transport
                with self._lock:
                    if self._transport is not transport or self._broken is transport:
                        break
                    acks = len(self._acks)
                    if not self._queue and not acks:
                        self._sender = None
                        return
                    frames = self._acks[:acks]
                    frames += [entry[0] if isinstance(entry, tuple) else entry for entry in self._queue]
                    data = b"".join(frames) if len(frames) > 1 else frames[0]
                    # Stores and no call between them: a signal handler cannot lose the frames.
                    transport.outgoing = data
                    self._sends += 1
                    del self._acks[:acks]
                    self._queue = []
                    self._queued = 0
                    self.out_msgs += acks
                    self.out_bytes += 4 * acks  # "+ACK" and its like
                    if self._room:
                        self._room.wake_all()
        except OSError as error:
            if error.errno is None:
                raise  # not of a socket: a signal handler's TimeoutError, say, which is for our caller
            self._broken = transport  # what is published from now on is kept for the next one
            transport.abort()  # wakes the reader, which decides what happens next
        self._release(sender)

    def _release(self, sender: Sender) -> None:
        """Stop sending on a broken or replaced transport, and close it if no other thread will."""
        with self._lock:
            if self._sender is sender:
                self._sender = None
            detached = self._transport is not sender[0]
        if detached:
            _break_and_close(sender[0])

    def _leave(self, sender: Sender) -> None:
        """A signal handler raised in the sender: another thread must be able to send, or close the transport."""
        if not self._hand_over(sender):
            self._release(sender)

    def _revive(self) -> None:
        """Hand over for a sender that a second signal kept from doing so. Requires holding _lock."""
        assert self._lock.locked()
        if self._sender is not None and self._sender is self._interrupted:
            self._stuck = True
            self._wakeup.set()

    def _hand_over(self, sender: Sender) -> bool:
        """Have the writer thread go on: the socket is full, or the sender was interrupted or has sent enough.

        False when `sender` is the sender no more, or its transport was detached. The writer thread may have ended
        then, so the calling thread has to close the transport.
        """
        with self._lock:
            if self._sender is not sender or self._transport is not sender[0]:
                return False
            self._stuck = True
            self._wakeup.set()
            return True


def _frame_of(entry: Entry) -> bytes:
    return entry[0] if isinstance(entry, tuple) else entry


def _break_and_close(transport: Transport) -> None:
    """Close what was detached. It is broken first, for closing alone does not wake a reader out of its recv."""
    transport.abort()
    transport.close()
