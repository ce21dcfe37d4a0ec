"""Contiguous ranges of sequences: how a batch is split into partitions. Pure.

The split depends on start, end and options alone, so that a batch that is run again has the same partitions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

# Below this a partition's fixed cost (a connection, a consumer, a task) outweighs what parallel reading gains.
MIN_PER_PARTITION = 10_000
MAX_PER_PARTITION = 100_000
DEFAULT_PARTITIONS = 8


@dataclass(frozen=True)
class SequenceRange:
    """Sequences from `start` up to and without `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.start} to {self.end - 1}"


def split(
    start: int, end: int, *, min_partitions: int | None = None, max_per_partition: int | None = None
) -> list[SequenceRange]:
    """The partitions of a batch: as equal as they can be, in order, none empty.

    At least `min_partitions` (as far as there are sequences), at most `max_per_partition` sequences in each.
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
    """The first sequence missing before the last of `sequences`, which ascend; None when they follow on."""
    if not sequences or sequences[-1] - expected + 1 == len(sequences):
        return None
    low, high = 0, len(sequences) - 1
    while low < high:  # sequences[i] == expected + i holds up to the hole, and never behind it
        middle = (low + high) // 2
        if sequences[middle] == expected + middle:
            low = middle + 1
        else:
            high = middle
    return expected + low
