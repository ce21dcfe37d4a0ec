"""Direct receive: while one request is in flight and nothing else is expected, the caller reads its reply from the
socket itself and saves a thread switch. docs/design.md says when the reader offers a phase of it, and why.

A caller in a phase waits until the socket is readable, receives once without blocking, and keeps what came if that
is its reply and nothing else. Everything else (a PING, an error, the end of the stream, half a reply or two) it
leaves to the reader thread as it came.

Ownership, without a lock: a signal handler may run between any two instructions of a caller, and raise, or call
something that would wait for that lock. `DirectPhase.permit` is a list with one element: the thread that pops it
may receive. `DirectPhase.received` holds what was received with it: the thread that pops that deals with it.
Each of a caller's two steps, receiving with the permit and exchanging the reply for the permit, is one call into
C. So at every moment one of three things holds: the permit is there, or what was received with it is there, or a
caller is inside a recv that cannot block.

Why no thread waits for ever: a caller waits for the socket up to CALLER_SECONDS, then for the reader thread. The
reader sleeps until it is recalled (by a thread that expects something else from the server, or leaves bytes to
be parsed), or until no request has begun for IDLE_SECONDS. Recalled while a caller waits for the socket, it
waits for that caller up to CALLER_SECONDS: the caller would not notice that its reply was taken from under it.
Then it takes back the permit, or what was received with it. If neither is there although no caller is inside, a
signal handler raised in the instant after a recv that failed, and the permit is lost: the reader goes on without
it. If a caller is inside for longer than STUCK_SECONDS, it may hold bytes that the reader would miss: the
session is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import compress

from .._platform import NOW
from .._threads import Wakeup
from ..protocol.parser import RawMessage, single_message
from .outbox import Outbox
from .transport import REPLY_SIZE, Transport

# For tests and comparisons of speed: False has the reader thread receive everything.
ENABLED = True

# A reply that takes longer gains nothing by a saved thread switch.
CALLER_SECONDS = 0.005
# How late the reader may be, once or twice this, for what no thread waits for: a PING, the end of the connection.
IDLE_SECONDS = 0.010
# A caller's recv does not block, but its thread may have to wait for the interpreter afterwards.
STUCK_SECONDS = 10.0
# Single replies in a row before the reader offers a phase, at first and at most.
FIRST_STREAK = 3
LONGEST_STREAK = 4096
# A phase with fewer requests than this has cost more than it gained: the next one takes a longer streak.
WORTHWHILE_REQUESTS = 16


class DirectPhase:
    """One time that the reader lets callers receive."""

    __slots__ = ("callers", "error", "permit", "recalled", "received", "transport")

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        self.permit: list[bytes] = [b"permit"]
        """One element, any that is true: the permit to receive."""
        self.received: list[bytes] = []
        self.error: OSError | None = None
        """Why a caller could not receive."""
        self.callers: list[bytes] = []
        """The reply subjects of the callers inside; more than one only if two begin at the same instant."""
        self.recalled: bool = False

    def receive(self) -> None:
        """Use the permit. Raises IndexError when another thread has it, OSError."""
        assert self.transport.direct_recv is not None
        size = compress((REPLY_SIZE,), map(self.permit.pop, (0,)))
        self.received.extend(map(self.transport.direct_recv, size, (NOW,)))

    def accept(self) -> None:
        """Take what was received: it is the permit from now on. Raises IndexError when the reader was faster."""
        self.permit.extend(map(self.received.pop, (0,)))


class NoDirect:
    """The reader thread receives everything."""

    replies = 0
    """How many replies callers have received themselves, and how many bytes with them."""
    reply_bytes = 0

    def exchange(
        self, outbox: Outbox, frame: bytes, size: int, reply: bytes, sid: bytes, wait: float
    ) -> RawMessage | None:
        """Send a request. Returns its reply, or None: the reader thread delivers it."""
        outbox.publish(frame, size, keep=False)
        return None

    def recall(self) -> None:
        """Have the reader thread receive: a thread expects something else than the reply to a request."""

    def offer(self, transport: Transport, single_reply: bool, only_requests: Callable[[], bool]) -> bytes | None:
        """Reader thread: let callers receive for a while. Returns what they left to be parsed; None: nothing."""
        return None

    def orphan(self) -> None:
        """In a forked child: the socket is the parent's."""


class DirectReceive(NoDirect):
    """See the module's text."""

    def __init__(self) -> None:
        self.phase: DirectPhase | None = None
        """The phase that callers are in at present, if the reader offers one."""
        self.requests: int = 0
        """How many requests have been made in a phase."""
        self._wakeup = Wakeup()  # of the sleeping reader
        self._single_replies = 0  # in a row
        self.streak: int = FIRST_STREAK
        """How many single replies in a row it takes for the reader to offer a phase."""

    # --- callers ------------------------------------------------------------------------------------

    def exchange(
        self, outbox: Outbox, frame: bytes, size: int, reply: bytes, sid: bytes, wait: float
    ) -> RawMessage | None:
        """Send a request and receive its reply; None when the reader thread delivers it.

        The request is pending by now: a reader that is about to offer a phase looks at that. The caller enters the
        phase before it sends. Otherwise the reader could consume the reply first and the caller would wait for
        nothing.
        """
        phase = self.phase
        if phase is None or phase.callers or phase.recalled:
            if phase is not None:
                self.recall()
            outbox.publish(frame, size, keep=False)
            return None
        raw = None
        try:
            phase.callers.append(reply)
            self.requests += 1
            outbox.publish(frame, size, keep=False)
            if not phase.recalled:  # looked at second: the reader says so before it looks at the callers
                raw = self.receive(phase, reply, sid, wait)
        finally:
            self._leave(phase, reply, received=raw is not None)
        return raw

    def receive(self, phase: DirectPhase, reply: bytes, sid: bytes, wait: float) -> RawMessage | None:
        """In a phase: wait for the reply and receive it. None when the reader thread delivers it."""
        if not phase.transport.wait_readable(min(wait, CALLER_SECONDS)):
            return None
        try:
            phase.receive()
            raw = single_message(phase.received[0], reply, sid)
            if raw is None:
                return None
            phase.accept()
        except IndexError:
            return None  # the reader is back
        except OSError as error:
            if error.errno is None or phase.permit or phase.received:
                raise  # not of the socket: a signal handler's own
            if not isinstance(error, BlockingIOError):
                phase.error = error
            phase.permit.append(b"permit")
            return None
        self.replies += 1
        self.reply_bytes += len(raw[3]) + len(raw[2] or b"")
        return raw

    def _leave(self, phase: DirectPhase, reply: bytes, *, received: bool) -> None:
        """The caller is done. What it has not finished is for the reader."""
        try:
            phase.callers.remove(reply)
        except ValueError:
            pass  # interrupted before it entered
        if not received or phase.recalled:
            self._wakeup.set()

    def recall(self) -> None:
        self._single_replies = 0
        phase = self.phase
        if phase is not None and not phase.recalled:
            self._wakeup.set()

    def orphan(self) -> None:
        phase, self.phase = self.phase, None
        if phase is not None:
            phase.permit.clear()

    # --- reader thread ------------------------------------------------------------------------------

    def offer(self, transport: Transport, single_reply: bool, only_requests: Callable[[], bool]) -> bytes | None:
        """Let callers receive while nothing but their replies can come.

        `single_reply` tells whether the last thing received was one. Returns what a caller has received and left,
        b"" for the end of the stream; None when there is nothing. Raises what a caller's recv has raised.
        """
        self._single_replies = self._single_replies + 1 if single_reply else 0
        if self._single_replies < self.streak:
            return None
        self._single_replies = 0
        self._wakeup.wait(0.0)  # an old one
        phase = self.phase = DirectPhase(transport)
        # Looked at second: a thread that comes later sees the phase, and recalls the reader.
        if only_requests():
            self._sleep(phase)
        self.phase = None
        phase.recalled = True
        left = self._reclaim(phase)
        if phase.error is not None:
            raise phase.error
        return left

    def _sleep(self, phase: DirectPhase) -> None:
        """Until recalled, or until no caller begins a request any more."""
        first = self.requests
        while True:
            requests = self.requests
            if self._wakeup.wait(IDLE_SECONDS):
                phase.recalled = True
                if phase.callers and not phase.received:
                    self._wakeup.wait(CALLER_SECONDS)
                break
            if self.requests == requests:
                break
        worthwhile = self.requests - first >= WORTHWHILE_REQUESTS
        self.streak = FIRST_STREAK if worthwhile else min(2 * self.streak, LONGEST_STREAK)

    def _reclaim(self, phase: DirectPhase) -> bytes | None:
        """Take back the permit, or what was received with it."""
        gives_up_at = time.monotonic() + STUCK_SECONDS
        while True:
            # Looked at before the rest: a caller stores what it received before it leaves, and one that enters
            # from now on sees that the phase is over.
            callers = list(phase.callers)
            try:
                phase.permit.pop()
                return None
            except IndexError:
                pass
            try:
                return phase.received.pop()
            except IndexError:
                pass
            if not callers:
                return None  # the permit is lost: a signal handler raised right after a recv that failed
            if time.monotonic() >= gives_up_at:
                raise TimeoutError("a thread that received a reply was held up for too long")
            self._wakeup.wait(0.001)  # a caller is inside its recv


NO_DIRECT = NoDirect()
