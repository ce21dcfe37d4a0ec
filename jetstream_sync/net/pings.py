"""PING and PONG: what waits for which PONG, and the keep-alive.

Pings is pure: Link calls it under its lock. PONGs are told apart by their order alone, so a PING and what waits
for its PONG are queued in one step (`Outbox.ping`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._deadline import FOREVER
from ..errors import NatsError
from ..protocol.parser import RawMessage
from .receiver import Receiver
from .requests import ReplyWaiter

if TYPE_CHECKING:
    from .link import Link


class Departure:
    """A receiver whose interest was removed. The PONG behind its UNSUB says that all that was sent to it has come;
    so does the end of the session. Then the connection forgets the receiver."""

    completed = False

    def __init__(self, link: Link, receiver: Receiver) -> None:
        self._link = link
        self._receiver = receiver

    def complete(self, _: RawMessage | None, error: NatsError | None) -> None:
        self._receiver.completed = True
        self._link.close(self._receiver)


PongWaiter = ReplyWaiter | Departure
PongWaiters = deque[PongWaiter | None]


class Pings:
    """The outstanding PINGs of one session."""

    def __init__(self, interval: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._most = most
        self._clock = clock
        self.restart()
        self.waiters: PongWaiters = PongWaiters()
        """What waits for each PONG, in order; None: a PING of the keep-alive."""

    def restart(self) -> None:
        """A new session begins."""
        self._unanswered = 0  # by any PONG
        self._next_at = self._clock() + self._interval

    def take_waiters(self) -> list[PongWaiter]:
        """The session ended: what waits for a PONG which cannot come any more."""
        waiters, self.waiters = self.waiters, PongWaiters()
        return [waiter for waiter in waiters if waiter is not None]

    def pong(self) -> PongWaiter | None:
        """A PONG came. Returns what waits for it, if something does."""
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
