"""Timeouts and deadlines, on the monotonic clock: it does not jump when the system's time is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

Clock = Callable[[], float]

# About a century. A longer wait than threading.TIMEOUT_MAX, about three centuries, raises OverflowError.
FOREVER = 3.0e9


def seconds(value: float | timedelta | None, name: str = "timeout") -> float | None:
    """A duration given by the user, in seconds; None stays None.

    Raises TypeError for anything but a number or a timedelta, ValueError for a negative duration or NaN; both name
    the parameter `name`.
    """
    if type(value) is float and value >= 0:  # the usual case first
        return value
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds (float) or a timedelta, not {type(value).__name__}")
    if not value >= 0:  # True for NaN, too
        raise ValueError(f"{name} must not be negative: {value}")
    return float(value)


class Deadline:
    """The point in time at which a wait gives up. A timeout of None means never."""

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
        """Seconds left, for a lock's `acquire(timeout=…)`; FOREVER when there is no limit."""
        left = self.remaining()
        return FOREVER if left is None or left > FOREVER else left

    @property
    def expired(self) -> bool:
        return self._at is not None and self._clock() >= self._at
