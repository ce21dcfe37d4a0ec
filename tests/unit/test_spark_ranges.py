"""Splitting a batch into partitions: tables and properties, no Spark."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.chunk import Chunk, numbers
from jetstream_sync.spark.ranges import MAX_PER_PARTITION, SequenceRange, first_hole, shares, split


@pytest.mark.parametrize(
    ("total", "options", "count"),
    [
        (0, {}, 0),
        (-5, {}, 0),
        (1, {}, 1),
        (9_999, {}, 1),
        (20_000, {}, 2),
        (100_000, {}, 8),
        (800_000, {}, 8),
        (1_000_000, {}, 10),
        (100, {"min_partitions": 8}, 8),
        (3, {"min_partitions": 8}, 3),
        (100, {"max_per_partition": 10}, 10),
        (101, {"max_per_partition": 10}, 11),
        (1_000_000, {"min_partitions": 4}, 10),
    ],
)
def test_split_count(total: int, options: dict[str, int], count: int) -> None:
    """Few partitions for few messages, more for many, and what the options ask for."""
    (ranges,) = split([SequenceRange(5, 5 + total)], **options)
    assert len(ranges) == count


@given(
    start=st.integers(1, 10**12),
    total=st.integers(1, 10**6),
    least=st.none() | st.integers(1, 50),
    most=st.none() | st.integers(1_000, 10**6),
)
def test_split_covers_the_range_once(start: int, total: int, least: int | None, most: int | None) -> None:
    """Every sequence is in exactly one partition, none is empty, none too large, and a replay is the same."""
    wanted = [SequenceRange(start, start + total)]
    (ranges,) = split(wanted, min_partitions=least, max_per_partition=most)
    assert ranges[0].start == start
    assert ranges[-1].end == start + total
    assert all(one.end == two.start for one, two in itertools.pairwise(ranges))
    assert all(0 < len(each) <= (most or MAX_PER_PARTITION) for each in ranges)
    assert len(ranges) >= min(least or 1, total)
    assert split(wanted, min_partitions=least, max_per_partition=most) == [ranges]


@pytest.mark.parametrize(
    ("sizes", "options", "counts"),
    [
        ((), {}, []),
        ((0, 5), {}, [0, 1]),
        ((5, 5), {}, [1, 1]),
        ((60_000, 20_000), {}, [6, 2]),
        ((60_000, 20_000), {"min_partitions": 4}, [6, 2]),
        ((300, 100), {"min_partitions": 8}, [6, 2]),
        ((1000, 1), {"min_partitions": 4}, [3, 1]),
        ((2, 1), {"min_partitions": 8}, [2, 1]),
        ((250_000, 10), {"min_partitions": 2}, [7, 1]),
        ((100, 25), {"max_per_partition": 10}, [10, 3]),
    ],
)
def test_split_of_several_streams(sizes: tuple[int, ...], options: dict[str, int], counts: list[int]) -> None:
    """The partitions are shared in proportion to the messages; a stream with any has at least one."""
    assert [len(each) for each in split([SequenceRange(7, 7 + size) for size in sizes], **options)] == counts


@given(
    sizes=st.lists(st.integers(0, 10**6), max_size=6),
    least=st.none() | st.integers(1, 50),
    most=st.none() | st.integers(1_000, 10**6),
)
def test_split_of_several_streams_covers_each_once(sizes: list[int], least: int | None, most: int | None) -> None:
    """Every sequence of every stream is in exactly one partition, and there are enough of them."""
    wanted = [SequenceRange(10 * index + 1, 10 * index + 1 + size) for index, size in enumerate(sizes)]
    pieces = split(wanted, min_partitions=least, max_per_partition=most)
    assert len(pieces) == len(wanted)
    for each, ranges in zip(wanted, pieces, strict=True):
        assert sum(len(piece) for piece in ranges) == len(each)
        assert all(one.end == two.start for one, two in itertools.pairwise(ranges))
        assert all(0 < len(piece) <= (most or MAX_PER_PARTITION) for piece in ranges)
        if ranges:
            assert (ranges[0].start, ranges[-1].end) == (each.start, each.end)
    assert sum(map(len, pieces)) >= min(least or 1, sum(sizes))


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 10, []),
        ([100], 10, [10]),
        ([5], 10, [5]),
        ([100, 100], 10, [5, 5]),
        ([300, 100], 40, [30, 10]),
        ([1_000_000, 1], 10, [9, 1]),
        ([1_000_000, 0, 1], 10, [9, 0, 1]),
        ([10, 10, 10], 10, [4, 3, 3]),
        ([10, 10], 1, [1, 1]),  # too small a limit, which the options refuse: still none is forgotten
    ],
)
def test_shares(sizes: list[int], limit: int, expected: list[int]) -> None:
    """A limit is shared in proportion, and the smallest gets something, too."""
    assert shares(sizes, limit) == expected


@given(st.lists(st.integers(0, 10**9), max_size=8), st.integers(1, 10**9))
def test_shares_are_fair(sizes: list[int], limit: int) -> None:
    """The limit is used up and not exceeded; each that has something gets some of it, and no more than it has."""
    taken = shares(sizes, limit)
    waiting = sum(1 for size in sizes if size)
    assert sum(taken) == min(sum(sizes), max(limit, waiting))
    assert all(min(1, size) <= share <= size for share, size in zip(taken, sizes, strict=True))
    for share, size in zip(taken, sizes, strict=True):
        if limit >= waiting and size:
            assert abs(share - min(1, limit / sum(sizes)) * size) <= waiting + 1


@given(st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted), st.integers(1, 5))
def test_first_hole_is_the_first_missing_sequence(sequences: list[int], expected: int) -> None:
    """The first hole is what a plain search finds."""
    sequences = [each for each in sequences if each >= expected]
    missing = next((n for n in range(expected, (sequences or [expected])[-1]) if n not in sequences), None)
    assert first_hole(expected, sequences) == missing


def chunk(*sequences: int) -> Chunk:
    size = len(sequences)
    return Chunk([b"s"] * size, numbers(sequences), numbers([0] * size), [None] * size, [b""] * size)


@pytest.mark.parametrize(
    ("sequences", "end", "left", "complete"),
    [((), 5, [], False), ((1, 2), 5, [1, 2], False), ((3, 4, 5, 9), 5, [3, 4], True), ((7, 8), 5, [], True)],
)
def test_chunk_cut(sequences: tuple[int, ...], end: int, left: list[int], complete: bool) -> None:
    """What is past the range is dropped, from every column, and tells that the range is complete."""
    columns = chunk(*sequences)
    assert columns.cut(end) is complete
    assert columns.sequences.tolist() == left
    others = (columns.subjects, columns.timestamps, columns.payloads, columns.blocks)
    assert [len(column) for column in others] == [len(left)] * 4


def test_range_says_its_first_and_last_sequence() -> None:
    """Errors name ranges as people do: both ends included."""
    assert str(SequenceRange(3, 6)) == "3 to 5"
