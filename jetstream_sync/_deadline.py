"""Deadlines on the monotonic clock: the wall clock may jump, a timeout may not."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

Clock = Callable[[], float]

# A century. Waits of threads take at most threading.TIMEOUT_MAX, three of these, with an OverflowError beyond.
FOREVER = 3.0e9


def seconds(value: float | timedelta | None, name: str = "timeout") -> float | None:
    """A duration given by the user, as seconds. None stays None; negative or not a number is refused."""
    if type(value) is float and value >= 0:  # nearly always
        return value
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds (float) or a timedelta, not {type(value).__name__}")
    if not value >= 0:  # also refuses NaN
        raise ValueError(f"{name} must not be negative: {value}")
    return float(value)


class Deadline:
    """A point in time after which a wait gives up; None means never."""

    __slots__ = ("_at", "_clock")

    def __init__(self, timeout: float | timedelta | None, clock: Clock = time.monotonic) -> None:
        limit = seconds(timeout)
        self._clock = clock
        self._at = None if limit is None else clock() + limit

    def remaining(self) -> float | None:
        """Seconds left, never negative; None when there is no limit."""
        if self._at is None:
            return None
        return max(0.0, self._at - self._clock())

    def wait_time(self) -> float:
        """What to pass to a lock's `acquire(timeout=…)`: seconds left, or practically for ever."""
        left = self.remaining()
        return FOREVER if left is None or left > FOREVER else left

    @property
    def expired(self) -> bool:
        return self._at is not None and self._clock() >= self._at
