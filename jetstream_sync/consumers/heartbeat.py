"""Detects missed heartbeats (ADR-9, ADR-37). The clock is passed in; the caller holds the owner's lock."""

from __future__ import annotations

from collections.abc import Callable

PULL_FACTOR = 2  # ADR-37: two heartbeats missed
PUSH_FACTOR = 3  # ADR-15: nothing for three intervals


class HeartbeatClock:
    """Measures the silence since the last message or status, and tells when it has lasted too long.

    What counts is the time of arrival, which the owner passes to `reset()` before it calls `due()`: a slow
    callback must not look like a missed heartbeat. While the silence lasts, the alarm repeats after each window.
    The owner pauses the clock while no heartbeat can come: disconnected, or without a pull at the server.
    """

    def __init__(self, interval: float, factor: int = PULL_FACTOR, *, clock: Callable[[], float]) -> None:
        self.window: float = interval * factor
        self._clock = clock
        self.paused: bool = False
        self._heard = clock()
        self._deadline = self._heard + self.window

    def reset(self, at: float | None = None) -> None:
        """A message or status arrived at `at` (default: now). A time before the last one changes nothing."""
        heard = self._clock() if at is None else at
        if heard > self._heard:
            self._heard = heard
        # max(): an alarm may have moved the deadline already, and an older arrival must not move it back.
        self._deadline = max(self._deadline, heard + self.window)

    def pause(self) -> None:
        """No alarm until `resume()`. Idempotent."""
        self.paused = True

    def resume(self) -> None:
        """End a pause: the silence counts from now. Without a pause, nothing changes."""
        if self.paused:
            self.paused = False
            self._heard = self._clock()
            self._deadline = self._heard + self.window

    @property
    def silence(self) -> float:
        """Seconds since the last arrival (or start, or resume)."""
        return max(0.0, self._clock() - self._heard)

    def remaining(self) -> float | None:
        """Seconds until the next alarm, never negative; None while paused."""
        if self.paused:
            return None
        return max(0.0, self._deadline - self._clock())

    def due(self) -> bool:
        """Whether to raise the alarm now. After True, the next alarm is due one window later."""
        now = self._clock()
        if self.paused or now < self._deadline:
            return False
        self._deadline = now + self.window
        return True
