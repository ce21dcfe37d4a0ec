"""Keep-alive of buffered messages: which of them wait so long that the server must be asked for more time.

The server gives a consumer `ack_wait` for each message it sends, and a buffered message uses it up, too. So a feed
looks at its buffer every LOOKS_PER_ACK_WAIT-th of ack_wait. What was there at the look before and still is gets an
in_progress. No message has a time of its own: a buffer is taken from in the order in which it is filled, so the
count of what was added since the look before tells how many at its end are new. What is handed out has at least
two thirds of ack_wait left.

A handler that hangs must not hold messages for ever: the keep-alive pauses when nothing was handed out for
ack_wait, unless the caller says that the handlers are known to be at work (auto_progress).

While the buffer is empty nothing is to be looked at: the keep-alive sleeps, and `rouse` ends that. A sleeping feed
costs no timer, so that many idle consumers cost nothing.

What the server has lost patience with may be in other hands: it must not be nak'ed any more, which would take it
from them. `Leases` knows what that is: after a hang, an outage, or where there is no keep-alive.

Pure: the times are passed in. One thread looks; any thread may call `rouse`, and ask what has lapsed.
"""

from __future__ import annotations

from collections import deque

from .._deadline import FOREVER

LOOKS_PER_ACK_WAIT = 6
SHORTEST_PERIOD = 0.05


class Leases:
    """Which messages of a buffer are this client's no more: nothing was heard of them for ack_wait.

    They are counted in the order in which they came. One thread marks and renews; any thread asks.
    """

    def __init__(self, ack_wait: float) -> None:
        self._ack_wait = ack_wait
        self._marks: deque[tuple[int, float]] = deque()
        self._lapsed = 0

    def mark(self, count: int, at: float, now: float) -> None:
        """Of the first `count` messages, those not marked before came at `at` or later."""
        self._lapsed = self.lapsed(now)
        while self._marks and self._marks[0][0] <= self._lapsed:
            self._marks.popleft()
        self._marks.append((count, at))

    def renew(self, count: int, at: float, now: float) -> None:
        """The first `count` messages are kept alive, those that came since `at` excepted; not what has lapsed."""
        self._lapsed = self.lapsed(now)
        self._marks = deque([(count, at)])

    def lapsed(self, now: float) -> int:
        """How many of the first messages are in other hands, or may be."""
        return max([count for count, at in self._marks.copy() if at + self._ack_wait <= now], default=self._lapsed)


class KeepAlive:
    """See the module's text."""

    def __init__(self, ack_wait: float, now: float) -> None:
        self._ack_wait = ack_wait
        self.period: float = max(SHORTEST_PERIOD, ack_wait / LOOKS_PER_ACK_WAIT)
        self.asleep: bool = True
        self._next_at = now
        self._added = 0  # to the buffer, until the last look
        self._taken = 0  # from it
        self._handed_out_at = now
        self.leases: Leases = Leases(ack_wait)

    def look(self, now: float, added: int, buffered: int, *, at_work: bool = False, connected: bool = True) -> int:
        """How many of the buffer, from its front, need an in_progress now; without a connection none can be had.

        `added`: how much was put into the buffer in all, read before `buffered`, its present length. Read in this
        order, what comes in between is taken for old, and asked for once too often; never the other way round.
        """
        old = max(0, buffered - (added - self._added))
        self._added = added
        taken = added - buffered
        if taken > self._taken:
            self._taken = taken
            self._handed_out_at = now
        self._next_at = now + self.period
        came = now - self.period  # or later: what came before was seen by the look before
        if not connected or (self.hangs(now) and not at_work):
            self.leases.mark(added, came, now)
            return 0
        self.leases.renew(added, came, now)
        return old

    def hangs(self, now: float) -> bool:
        """Whether nothing was handed out for ack_wait, as far as the last look could see."""
        return now - self._handed_out_at > self._ack_wait

    def remaining(self, now: float) -> float:
        """Seconds until the next look."""
        return FOREVER if self.asleep else max(0.0, self._next_at - now)

    def sleep(self) -> None:
        """Nothing is buffered. The caller looks at the buffer once more afterwards: something may have come."""
        self.asleep = True

    def rouse(self) -> None:
        """Something is buffered: look again, at once if that is overdue. Any thread; wakes no thread by itself."""
        self.asleep = False
