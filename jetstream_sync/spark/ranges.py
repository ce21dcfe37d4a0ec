"""Contiguous ranges of sequences, and how a batch is split into partitions. No I/O.

The split depends only on start, end and options, so that a batch that runs again has the same partitions.
"""

from __future__ import annotations

import itertools
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
    start: int, end: int, *, min_partitions: int | None = None, max_per_partition: int | None = None
) -> list[SequenceRange]:
    """The partitions of a batch, in order, of almost equal size, none empty.

    There are at least `min_partitions` (or as many as sequences), each with at most `max_per_partition` sequences.
    """
    total = end - start
    if total <= 0:
        return []
    count = -(-total // (max_per_partition or MAX_PER_PARTITION))
    count = max(count, min(DEFAULT_PARTITIONS, total // MIN_PER_PARTITION), min_partitions or 1)
    count = min(count, total)
    bounds = [start + total * index // count for index in range(count + 1)]
    return [SequenceRange(low, high) for low, high in itertools.pairwise(bounds)]


def first_hole(expected: int, sequences: list[int]) -> int | None:
    """The first sequence from `expected` on that is missing in `sequences`, which ascend; None when none is."""
    if not sequences or sequences[-1] - expected + 1 == len(sequences):
        return None
    low, high = 0, len(sequences) - 1
    while low < high:  # sequences[i] == expected + i holds before the gap, and not after it
        middle = (low + high) // 2
        if sequences[middle] == expected + middle:
            low = middle + 1
        else:
            high = middle
    return expected + low
