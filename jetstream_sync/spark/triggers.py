"""When a micro-batch with few messages waits for more: minMessagesPerTrigger and maxTriggerDelay. No I/O."""

from __future__ import annotations

# As long as Kafka's source waits.
DEFAULT_DELAY = 15 * 60.0


class TriggerDelay:
    """Holds a batch back until `least` messages are there, or `seconds` have passed since the last trigger.

    As with Kafka's source, nothing is held back at the first time. A query that starts or restarts takes what is
    there. That also is all that a query with `availableNow` does where Spark does not tell of it (4.0 and 4.1).
    And the time begins anew when it has passed, whether there were messages or not.
    """

    def __init__(self, least: int, seconds: float) -> None:
        self._least = least
        self._seconds = seconds
        self._triggered_at: float | None = None

    def holds_back(self, count: int, now: float) -> bool:
        """Whether `count` messages at the time `now` are to wait. If not, the time begins anew."""
        if self._triggered_at is not None and now - self._triggered_at < self._seconds and count < self._least:
            return True
        self._triggered_at = now
        return False
