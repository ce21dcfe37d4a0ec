"""PING and PONG: which thread waits for which PONG, and the keep-alive.

Pure: Link calls it under its lock. PONGs are told apart by their order alone, so a PING and its waiter are
queued in one step (`Outbox.ping`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from .._deadline import FOREVER
from .requests import ReplyWaiter

PongWaiters = deque[ReplyWaiter | None]


class Pings:
    """The outstanding PINGs of one session."""

    def __init__(self, interval: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._most = most
        self._clock = clock
        self.restart()
        self.waiters = PongWaiters()
        """Who waits for each PONG, in order; None: a PING of the keep-alive."""

    def restart(self) -> None:
        """A new session begins."""
        self._unanswered = 0  # by any PONG
        self._next_at = self._clock() + self._interval

    def take_waiters(self) -> list[ReplyWaiter]:
        """The session ended: the threads that wait for a PONG which cannot come any more."""
        waiters, self.waiters = self.waiters, PongWaiters()
        return [waiter for waiter in waiters if waiter is not None]

    def pong(self) -> ReplyWaiter | None:
        """A PONG came. Returns who waits for it, if a thread does."""
        self._unanswered = 0
        return self.waiters.popleft() if self.waiters else None

    def wait_time(self) -> float:
        """Seconds until the next PING of the keep-alive. Needs no lock."""
        return min(max(0.0, self._next_at - self._clock()), FOREVER)

    def due(self) -> bool:
        """Whether the keep-alive is to send a PING. It is counted, and the next one due an interval later."""
        now = self._clock()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval
        self._unanswered += 1
        return True

    @property
    def stale(self) -> bool:
        """Whether more PINGs than may be are unanswered, the one that is due among them."""
        return self._unanswered > self._most
