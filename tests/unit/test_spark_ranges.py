"""Splitting a batch into partitions: tables and properties, no Spark."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.chunk import Chunk, chunk_of, reply_prefix_length
from jetstream_sync.spark.fetchers import nanoseconds_of
from jetstream_sync.spark.ranges import MAX_PER_PARTITION, SequenceRange, first_hole, split


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
    assert len(split(5, 5 + total, **options)) == count


@given(
    start=st.integers(1, 10**12),
    total=st.integers(1, 10**6),
    least=st.none() | st.integers(1, 50),
    most=st.none() | st.integers(1_000, 10**6),
)
def test_split_covers_the_range_once(start: int, total: int, least: int | None, most: int | None) -> None:
    """Every sequence is in exactly one partition, none is empty, none too large, and a replay is the same."""
    ranges = split(start, start + total, min_partitions=least, max_per_partition=most)
    assert ranges[0].start == start
    assert ranges[-1].end == start + total
    assert all(one.end == two.start for one, two in itertools.pairwise(ranges))
    assert all(0 < len(each) <= (most or MAX_PER_PARTITION) for each in ranges)
    assert len(ranges) >= min(least or 1, total)
    assert split(start, start + total, min_partitions=least, max_per_partition=most) == ranges


@given(st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted), st.integers(1, 5))
def test_first_hole_is_the_first_missing_sequence(sequences: list[int], expected: int) -> None:
    """The first hole is what a plain search finds."""
    sequences = [each for each in sequences if each >= expected]
    missing = next((n for n in range(expected, (sequences or [expected])[-1]) if n not in sequences), None)
    assert first_hole(expected, sequences) == missing


def chunk(*sequences: int) -> Chunk:
    size = len(sequences)
    return Chunk([b"s"] * size, list(sequences), [0] * size, [None] * size, [b""] * size)


@pytest.mark.parametrize(
    ("sequences", "end", "left", "complete"),
    [((), 5, [], False), ((1, 2), 5, [1, 2], False), ((3, 4, 5, 9), 5, [3, 4], True), ((7, 8), 5, [], True)],
)
def test_chunk_cut(sequences: tuple[int, ...], end: int, left: list[int], complete: bool) -> None:
    """What is past the range is dropped, from every column, and tells that the range is complete."""
    columns = chunk(*sequences)
    assert columns.cut(end) is complete
    assert columns.sequences == left
    assert len(columns.subjects) == len(columns.payloads) == len(columns.blocks) == len(left)


V1 = b"$JS.ACK.S.C.1.%d.%d.1700000000000000001.0"
V2 = b"$JS.ACK._.hash.S.C.1.%d.%d.1700000000000000001.0.extra"


@pytest.mark.parametrize("reply", [V1, V2])
def test_chunk_of_reads_both_reply_forms(reply: bytes) -> None:
    """Sequences and timestamps come from the reply subject, in its old and its new form."""
    messages = [(b"a", reply % (10, 4), None, b"x"), (b"b", reply % (12, 5), b"h", b"y")]
    columns = chunk_of(messages, 4)
    assert columns == Chunk([b"a", b"b"], [10, 12], [1700000000000000001] * 2, [None, b"h"], [b"x", b"y"])


def test_chunk_of_notices_a_skipped_delivery() -> None:
    """A gap in the consumer sequence means that a message was lost."""
    messages = [(b"a", V1 % (10, 4), None, b""), (b"b", V1 % (12, 6), None, b"")]
    assert chunk_of(messages, 4) is None
    assert chunk_of(messages[:1], 3) is None


def test_reply_prefix_length() -> None:
    """The prefix ends before the number of deliveries."""
    assert V1[: reply_prefix_length(V1)] == b"$JS.ACK.S.C."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00.5Z", 500_000_000),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456_789),
    ],
)
def test_nanoseconds_of(text: str, expected: int) -> None:
    """The server's timestamps are read to the nanosecond."""
    assert nanoseconds_of(text) == expected


def test_range_says_its_first_and_last_sequence() -> None:
    """Errors name ranges as people do: both ends included."""
    assert str(SequenceRange(3, 6)) == "3 to 5"
