"""Finding the last messages of a stream with nothing but "the first message at or after a sequence".

Sequences may be missing, because messages were deleted or are of another subject. So the newest `count` sequences
are read first, which is all there is to do where none is missing. What is still wanted is looked for in the range
below: by halves, the upper half first, so that neither a gap nor a crowd of messages costs many requests.
"""

from __future__ import annotations

from collections.abc import Callable

from .info import RawStreamMsg

FirstAt = Callable[[int], RawStreamMsg | None]


def last_messages(first_at: FirstAt, low: int, high: int, count: int) -> list[RawStreamMsg]:
    """The last `count` messages with sequences from `low` to `high`, in order."""
    if count < 1 or high < low:
        return []
    start = max(low, high - count + 1)
    newest = _all_of(first_at, first_at(start), high)
    if len(newest) >= count or start == low:
        return newest[-count:]
    return _last_of(first_at, first_at(low), start - 1, count - len(newest)) + newest


def _last_of(first_at: FirstAt, first: RawStreamMsg | None, high: int, count: int) -> list[RawStreamMsg]:
    """The last `count` messages from `first` to the sequence `high`."""
    if first is None or first.seq > high:
        return []
    if high - first.seq < 2 * count:
        return _all_of(first_at, first, high)[-count:]
    middle = (first.seq + high) // 2
    upper = _last_of(first_at, first_at(middle + 1), high, count)
    if len(upper) >= count:
        return upper
    return _last_of(first_at, first, middle, count - len(upper)) + upper


def _all_of(first_at: FirstAt, first: RawStreamMsg | None, high: int) -> list[RawStreamMsg]:
    """All messages from `first` to the sequence `high`."""
    found: list[RawStreamMsg] = []
    while first is not None and first.seq <= high:
        found.append(first)
        first = first_at(first.seq + 1) if first.seq < high else None
    return found
