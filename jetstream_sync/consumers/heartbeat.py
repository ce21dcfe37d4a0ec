"""When silence becomes an alarm (ADR-9, ADR-37). Pure: the clock is passed in; requires the owner's lock."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PULL_FACTOR", "PUSH_FACTOR", "HeartbeatClock"]

PULL_FACTOR = 2  # ADR-37: two heartbeats missed
PUSH_FACTOR = 3  # ADR-15: nothing for three intervals


class HeartbeatClock:
    """Counts the silence since the last thing received and says when it has been too long.

    Silence is judged by *arrival*: before asking `due()`, the owner passes the arrival time of the newest
    thing in its mailbox to `reset(at=…)`, so a slow callback is no missed heartbeat. The alarm repeats, one
    window later each time, while the silence lasts. While paused (disconnected, or with nothing asked of the
    server, so that no heartbeat can come) there is no alarm; `resume()` starts a full window.

    Not thread-safe: requires the owner's lock. Nothing here blocks.
    """

    __slots__ = ("_clock", "_deadline", "_heard", "_paused", "window")

    def __init__(self, interval: float, factor: int = PULL_FACTOR, *, clock: Callable[[], float]) -> None:
        self.window = interval * factor
        self._clock = clock
        self._paused = False
        self._heard = clock()
        self._deadline = self._heard + self.window

    def reset(self, at: float | None = None) -> None:
        """Something arrived, at the clock's time `at` (default: now). Older than what is known: no change."""
        heard = self._clock() if at is None else at
        if heard > self._heard:
            self._heard = heard
        # max: an alarm has already moved the deadline; a late report of an older arrival must not bring it
        # back.
        self._deadline = max(self._deadline, heard + self.window)

    def pause(self) -> None:
        """No alarm until `resume()`. Idempotent."""
        self._paused = True

    def resume(self) -> None:
        """End a pause: the silence counts from now. Without a pause, nothing changes."""
        if self._paused:
            self._paused = False
            self._heard = self._clock()
            self._deadline = self._heard + self.window

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def silence(self) -> float:
        """Seconds since the last arrival (or start, or resume)."""
        return max(0.0, self._clock() - self._heard)

    def remaining(self) -> float | None:
        """Seconds until the next alarm, never negative; None while paused."""
        if self._paused:
            return None
        return max(0.0, self._deadline - self._clock())

    def due(self) -> bool:
        """True when the alarm is to be raised now; the next one is then due a window later."""
        now = self._clock()
        if self._paused or now < self._deadline:
            return False
        self._deadline = now + self.window
        return True
