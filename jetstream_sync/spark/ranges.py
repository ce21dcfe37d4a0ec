"""Contiguous ranges of sequences, and how a batch is split into partitions. No I/O.

The split depends only on the ranges and options, so that a batch that runs again has the same partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# For fewer messages, the fixed cost of a partition (a connection, a consumer, a task) exceeds the gain.
MIN_PER_PARTITION = 10_000
MAX_PER_PARTITION = 100_000
DEFAULT_PARTITIONS = 8


@dataclass(frozen=True)
class SequenceRange:
    """The sequences from `start` up to but not including `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.start} to {self.end - 1}"


def split(
    wanted: Sequence[SequenceRange], *, min_partitions: int | None = None, max_per_partition: int | None = None
) -> list[list[SequenceRange]]:
    """The partitions of each range, one range per stream, in order, of almost equal size, none empty.

    In all there are at least `min_partitions` (or as many as sequences), in proportion to the sizes of the ranges,
    each with at most `max_per_partition` sequences.
    """
    sizes = [len(each) for each in wanted]
    total = sum(sizes)
    count = max(min(DEFAULT_PARTITIONS, total // MIN_PER_PARTITION), min_partitions or 1)
    most = max_per_partition or MAX_PER_PARTITION
    counts = [max(share, -(-size // most)) for share, size in zip(shares(sizes, count), sizes, strict=True)]
    return [_pieces(each, count) for each, count in zip(wanted, counts, strict=True)]


def _pieces(wanted: SequenceRange, count: int) -> list[SequenceRange]:
    bounds = [wanted.start + len(wanted) * index // count for index in range(count + 1)] if count else []
    return [SequenceRange(low, high) for low, high in itertools.pairwise(bounds)]


def shares(sizes: Sequence[int], limit: int) -> list[int]:
    """How much of each size may be taken so that it is `limit` in all: in proportion to the sizes.

    Of each that is not empty at least 1 is taken, so that none waits for ever behind larger ones. Only if there
    are more of these than `limit`, the sum is larger.
    """
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    taken = [min(1, size) for size in sizes]
    more = [size - least for size, least in zip(sizes, taken, strict=True)]
    rest = max(0, limit - sum(taken))
    portions = [divmod(rest * size, sum(more)) if rest else (0, 0) for size in more]
    # What rounding down leaves over goes to those that lose most by it.
    left = rest - sum(whole for whole, _ in portions)
    rounded_up = sorted(range(len(sizes)), key=lambda index: -portions[index][1])[:left]
    for index, (whole, _) in enumerate(portions):
        taken[index] += whole + (index in rounded_up)
    return taken


def first_hole(expected: int, sequences: Sequence[int]) -> int | None:
    """The first sequence from `expected` on that is missing in `sequences`, which ascend; None when none is."""
    if not len(sequences) or sequences[-1] - expected + 1 == len(sequences):
        return None
    low, high = 0, len(sequences) - 1
    while low < high:  # sequences[i] == expected + i holds before the gap, and not after it
        middle = (low + high) // 2
        if sequences[middle] == expected + middle:
            low = middle + 1
        else:
            high = middle
    return expected + low
