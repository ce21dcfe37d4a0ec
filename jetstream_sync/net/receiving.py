"""Who receives: the reader thread, or for a moment the caller whose answer is all that can come.

An answer that comes through the reader thread wakes two threads, one after the other. Where a connection does
nothing but one request after the other, as in a loop of publishes, the second wake-up is a good part of the time
each takes. So after some of them in a row the reader stands aside, and callers receive their answers themselves.

A caller may do little: wait until the socket has something, receive once without blocking, and keep what came if
that is the answer to its request and nothing else. All the rest (a PING, an error, the end, half an answer or two)
it leaves to the reader thread as it came. So parsing and delivering, and what follows from them, stay with the
reader.

Ownership, without a lock: a signal handler may run between any two instructions of a caller, and raise, or call
something that would wait for that lock. Whoever pops the one element of `Aside.right` receives; whoever pops what
was received from `Aside.received` deals with it. A caller's two steps, receiving by the right and taking the
answer for giving the right back, are one call into C each. So at every moment either the right is there, or what
was received by it, or somebody is within a recv that cannot block; and the reader that comes back takes what
there is.

Why nobody waits for ever: a caller waits for the socket up to OWN_SECONDS, then for the reader like everybody
else. The reader waits until it is called back (by whoever waits for something else of the server's, or leaves
something to be parsed), or until no request has begun for ASIDE_SECONDS. Called back during a caller's turn it
waits for that to end, up to OWN_SECONDS: the caller sleeps on the socket, and would not notice that its answer was
taken from there. For the right itself it waits up to RECV_SECONDS, longer than any recv that cannot block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import compress

from .._platform import NOW
from .._threads import locked
from ..protocol.parser import RawMessage, lone_message
from .transport import ANSWER_SIZE, Transport

# An answer that takes longer gains nothing by a saved wake-up.
OWN_SECONDS = 0.005
# How late the reader may be, once or twice this, for what nobody waits for: a PING, the end of the connection.
ASIDE_SECONDS = 0.010
# Longer than any recv that cannot block.
RECV_SECONDS = 1.0
# Lone answers in a row before the reader stands aside, at first and at most.
FIRST_STREAK = 3
LONGEST_STREAK = 4096
# With fewer turns than this, standing aside has cost more than it gained: the next time takes a longer streak.
WORTHWHILE_TURNS = 16


class Aside:
    """One time that the reader stands aside."""

    __slots__ = ("busy", "error", "received", "right", "transport", "wanted")

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.right = [b"right"]
        """One element, whatever it is: the right to receive."""
        self.received: list[bytes] = []
        self.error: OSError | None = None
        """Why a caller could not receive."""
        # Hints, which two threads may set at once without harm: a caller waits, and the reader for it.
        self.busy = self.wanted = False

    def receive(self) -> None:
        """Use the right. Raises IndexError when somebody else has it, OSError."""
        size = compress((ANSWER_SIZE,), map(self.right.pop, (0,)))
        assert self.transport.direct_recv is not None
        self.received.extend(map(self.transport.direct_recv, size, (NOW,)))

    def take(self) -> None:
        """Take what was received: it is the right from now on. Raises IndexError when the reader was faster."""
        self.right.extend(map(self.received.pop, (0,)))

    def fail(self, error: OSError) -> None:
        if not isinstance(error, BlockingIOError):
            self.error = error
        self.right.append(b"right")


class Receiving:
    """The receiving half of a connection. See the module's text."""

    def __init__(self) -> None:
        self._aside: Aside | None = None
        self._turns = 0
        self._call = locked()  # wakes the reader that stands aside
        self._lone_answers = 0  # in a row
        self.streak = FIRST_STREAK
        """How many lone answers in a row it takes for the reader to stand aside."""
        self.answers = 0
        """How many answers callers have received themselves, and how many bytes with them."""
        self.answer_bytes = 0

    @property
    def aside(self) -> bool:
        """Whether callers receive at present."""
        return self._aside is not None

    # --- callers ------------------------------------------------------------------------------------

    def begin(self) -> Aside | None:
        """What to receive the answer with to a request about to be sent; None when the reader receives it.

        The request must be pending before this is called: a reader that is about to stand aside looks then. And it
        must not have been sent: the reader could take its answer before it stands aside, and nothing would come.
        """
        aside = self._aside
        if aside is None:
            return None
        if aside.busy or aside.wanted:
            self.call_back()
            return None
        aside.busy = True
        self._turns += 1
        return aside

    def receive(self, aside: Aside, subject: bytes, sid: bytes, timeout: float) -> RawMessage | None:
        """Wait for the answer to `subject`; None when the reader will have it. Whoever began calls end()."""
        if not aside.transport.wait_readable(min(timeout, OWN_SECONDS)):
            return None
        try:
            aside.receive()
            answer = lone_message(aside.received[0], subject, sid)
            if answer is None:
                return None
            aside.take()
        except IndexError:
            return None  # the reader is back
        except OSError as error:
            if error.errno is None or aside.right or aside.received:
                raise  # not of the socket: a signal handler's own
            aside.fail(error)
            return None
        self.answers += 1
        self.answer_bytes += len(answer[3]) + len(answer[2] or b"")
        return answer

    def end(self, aside: Aside, *, answered: bool) -> None:
        """The turn is over; what it has not finished is for the reader."""
        aside.busy = False
        if not answered or aside.wanted:
            self._wake()

    def call_back(self) -> None:
        """Have the reader receive: somebody waits for something else, which the reader can see by now."""
        self._lone_answers = 0
        aside = self._aside
        if aside is not None and not aside.wanted:
            self._wake()

    def _wake(self) -> None:
        try:
            self._call.release()
        except RuntimeError:
            pass  # is called already

    def abandon(self) -> None:
        """In a forked child: the socket is the parent's."""
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.right.clear()

    # --- reader thread ------------------------------------------------------------------------------

    def is_worth_it(self, *, lone_answer: bool) -> bool:
        """Whether to stand aside, after one more answer that came alone or anything else."""
        self._lone_answers = self._lone_answers + 1 if lone_answer else 0
        return self._lone_answers >= self.streak

    def stand_aside(self, transport: Transport, others_wait: Callable[[], bool]) -> bytes | None:
        """Let callers receive while there is nothing to come but their answers.

        Returns what a caller has received and left, b"" for the end of the stream; None when there is nothing.
        Raises what a caller's recv has raised.
        """
        self._lone_answers = 0
        self._call.acquire(blocking=False)  # a call of before
        aside = self._aside = Aside(transport)
        # Looked at second: who comes later sees that the reader stands aside, and calls it back.
        if not others_wait():
            self._wait(aside)
        self._aside = None
        left = self._reclaim(aside)
        if aside.error is not None:
            raise aside.error
        return left

    def _wait(self, aside: Aside) -> None:
        """Until called back, or nobody begins a turn any more."""
        first = self._turns
        while True:
            turns = self._turns
            if self._call.acquire(timeout=ASIDE_SECONDS):
                aside.wanted = True
                if aside.busy and not aside.received:
                    self._call.acquire(timeout=OWN_SECONDS)
                break
            if self._turns == turns:
                break
        worthwhile = self._turns - first >= WORTHWHILE_TURNS
        self.streak = FIRST_STREAK if worthwhile else min(2 * self.streak, LONGEST_STREAK)

    def _reclaim(self, aside: Aside) -> bytes | None:
        """Get back the right, or what was received by it."""
        gives_up_at = time.monotonic() + RECV_SECONDS
        while True:
            try:
                aside.right.pop()
                return None
            except IndexError:
                pass
            try:
                return aside.received.pop()
            except IndexError:
                pass
            if time.monotonic() >= gives_up_at:
                return None  # lost: a signal handler raised in the instant after a recv that failed
            self._call.acquire(timeout=0.001)  # a caller is within its recv
