"""After how long a message comes again whose handling failed. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence

FIRST = 1.0
MOST = 60.0


def retry_delay(num_delivered: int, backoff: Sequence[float] | None = None) -> float:
    """Seconds to wait after the `num_delivered`-th delivery failed.

    With a `backoff`, which a consumer may have, its value for that delivery, and its last one from then on.
    Otherwise 1 s, doubled each time, at most 60 s.
    """
    failures = max(1, num_delivered)
    if backoff:
        return backoff[min(failures, len(backoff)) - 1]
    doubled: float = FIRST * 2 ** min(failures - 1, 16)  # not more: a float has an end
    return min(MOST, doubled)
