"""What the driver finds out before a batch: where to start, where to end, and whether data was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..api.info import StreamInfo
from .offsets import EARLIEST, LATEST, Position
from .options import ReadOptions
from .ranges import SequenceRange
from .stream_view import NO_PROGRESS_SECONDS, PASSING, StreamView, first_sequence, report_loss

T = TypeVar("T")

PAUSE = 0.25


def patiently(call: Callable[[], T]) -> T:
    """The result of `call`, repeated for up to a minute while the server is unavailable, as during a restart."""
    gives_up = time.monotonic() + NO_PROGRESS_SECONDS
    while True:
        try:
            return call()
        except PASSING:
            if time.monotonic() >= gives_up:
                raise
            time.sleep(PAUSE)


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


def without_lost(options: ReadOptions, info: StreamInfo, wanted: SequenceRange) -> SequenceRange:
    """`wanted` without the sequences that are no longer in the stream; those are reported as lost."""
    first = first_sequence(info)
    if first <= wanted.start or not len(wanted):
        return wanted
    lost = SequenceRange(wanted.start, min(first, wanted.end))
    report_loss(options, f"sequences {lost} are not there any more, it begins at {first}")
    return SequenceRange(lost.end, wanted.end)
