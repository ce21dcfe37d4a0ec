"""What the driver finds out before a batch: where to start, where to end, and whether data was lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import TypeVar

from ..api.info import StreamInfo
from .filters import Bounds
from .options import ReadOptions
from .patience import Patience
from .positions import EARLIEST, LATEST, Position
from .ranges import SequenceRange
from .stream_view import NO_PROGRESS_SECONDS, PASSING, StreamView, first_sequence, log, report_loss

T = TypeVar("T")

# By how many seconds the clocks of servers may differ: after an election, another one sets the times.
CLOCKS_DIFFER = 5.0


def patiently(call: Callable[[], T]) -> T:
    """The result of `call`, repeated for up to a minute while the server is unavailable, as during a restart."""
    return Patience(NO_PROGRESS_SECONDS, "planning a batch", log).call(call, PASSING)


def check_start(options: ReadOptions, position: Position) -> None:
    """Raise ValueError for a streaming query that is to start at a time in the future.

    The query would start at once, and read what is stored before that time.
    """
    if position.time is not None and position.time > datetime.now(timezone.utc):
        name = "startingOffsets" if options.starting_timestamp is None else "startingTimestamp"
        raise ValueError(f"option {name!r}: {position.time.isoformat()} is in the future")


def sequence_at(view: StreamView, info: StreamInfo, position: Position) -> int:
    """The first sequence at or after `position`."""
    after_last = info.state.last_seq + 1
    if position == EARLIEST:
        return first_sequence(info)
    if position == LATEST:
        return after_last
    if position.seq is not None:
        return position.seq
    assert position.time is not None
    return _first_stored_at(view, first_sequence(info), after_last, position.time.timestamp())


def _first_stored_at(view: StreamView, low: int, high: int, moment: float) -> int:
    """The first sequence of [low, high) stored at `moment` or later, else `high`: log2(high - low) requests."""
    while low < high:
        middle = (low + high) // 2
        stored = view.stored_at(middle)
        if stored is None or stored >= moment:
            high = middle
        else:
            low = middle + 1
    return low


def narrowed_by_time(view: StreamView, info: StreamInfo, micros: Bounds, wanted: SequenceRange) -> SequenceRange:
    """The part of `wanted` that was stored in these microseconds since 1970; more where clocks may differ."""
    first, after_last = first_sequence(info), info.state.last_seq + 1
    one_clock = (info.config.num_replicas or 1) == 1 and info.config.mirror is None
    margin = 0.0 if one_clock else CLOCKS_DIFFER
    start, end = wanted.start, wanted.end
    if micros.first is not None:
        found = _first_stored_at(view, first, after_last, micros.first / 10**6 - margin)
        # If all that is stored is late enough, messages that were removed before it may have been wanted, too.
        start = max(start, found) if found > first else start
    if micros.end is not None:
        end = min(end, _first_stored_at(view, first, after_last, micros.end / 10**6 + margin))
    return SequenceRange(start, end)


def without_lost(options: ReadOptions, stream: str, info: StreamInfo, wanted: SequenceRange) -> SequenceRange:
    """`wanted` without the sequences that are no longer in the stream; those are reported as lost."""
    first = first_sequence(info)
    if first <= wanted.start or not len(wanted):
        return wanted
    lost = SequenceRange(wanted.start, min(first, wanted.end))
    report_loss(options, stream, f"sequences {lost} are not there any more, it begins at {first}")
    return SequenceRange(lost.end, wanted.end)
