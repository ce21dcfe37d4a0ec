"""Offsets of a streaming query: tables and properties, no Spark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.offsets import UNNAMED, Offset, Offsets, batch_end, first_to_read, owner_of

A, B = Offset(7, "a", 3), Offset(9, "b")


@pytest.mark.parametrize("offset", [A, B])
def test_offset_of_one_stream_survives_json(offset: Offset) -> None:
    """What goes into the checkpoint comes back the same; the name of the stream is not in it."""
    read = Offsets.from_json(json.loads(json.dumps(Offsets({"S": offset}).to_json())))
    assert read == {UNNAMED: offset}
    assert read.named("S") == {"S": offset}


@given(
    st.dictionaries(
        st.text(min_size=1), st.builds(Offset, st.integers(0), st.text(), st.none() | st.integers(0)), min_size=2
    )
)
def test_offsets_of_several_streams_survive_json(by_stream: dict[str, Offset]) -> None:
    """They come back with their names, and the text does not depend on the order of the streams."""
    text = json.dumps(Offsets(by_stream).to_json())
    assert Offsets.from_json(json.loads(text)) == by_stream
    backwards = dict(reversed(by_stream.items()))
    assert json.dumps(Offsets(backwards).to_json()) == text


def test_offset_json_is_what_the_checkpoint_format_says() -> None:
    """The format is a contract with existing checkpoints: Spark compares the text, order included."""
    one = '{"next": 7, "created": "a", "v": 1, "base": 3}'
    assert json.dumps(Offsets({"S": A}).to_json()) == one
    several = (
        '{"streams": {"A": {"next": 7, "created": "a", "base": 3}, "B": {"next": 9, "created": "b"}}, "v": 2}'
    )
    assert json.dumps(Offsets({"B": B, "A": A}).to_json()) == several


def test_offsets_with_names() -> None:
    """Progress reports name the stream even if it is the only one."""
    assert Offsets({"S": B}).to_named_json() == {"streams": {"S": {"next": 9, "created": "b"}}, "v": 2}


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"next": 1},
        {"next": 1, "created": "t", "v": 3},
        {"next": "1", "created": "t", "v": 1},
        {"next": 1, "created": 5, "v": 1},
        {"next": 1, "created": "t", "base": -1, "v": 1},
        {"next": 1, "created": "t", "v": 2},
        {"streams": {}, "v": 2},
        {"streams": {"": {"next": 1, "created": "t"}}, "v": 2},
        {"streams": {"A": 7}, "v": 2},
        {"streams": {"A": {"next": True, "created": "t"}}, "v": 2},
        {"streams": [1], "v": 2},
    ],
)
def test_offset_refuses_foreign_checkpoints(wire: dict[str, object]) -> None:
    """A checkpoint of another source or version is refused with its content named."""
    with pytest.raises(ValueError, match="checkpoint"):
        Offsets.from_json(wire)


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ({"A": "a", "B": "b"}, "A"),
        ({"B": "b", "A": "a"}, "A"),
        ({"B": "b", "C": "c"}, "B"),  # created anew, or another one: the first
    ],
)
def test_offset_without_a_name_belongs_to_the_stream_of_that_time(created: dict[str, str], expected: str) -> None:
    """A stream that is added in front does not take the place of the one that was there."""
    assert owner_of(A, created) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (Offset(10, "t", 10), Offset(20, "t", 10), 10),  # batch 0
        (Offset(15, "t", 15), Offset(20, "t", 10), 10),  # again after a crash, "latest" has moved on
        (Offset(30, "t", 30), Offset(20, "t", 10), 10),  # the same, moved past the batch's end
        (Offset(20, "t", 10), Offset(30, "t", 10), 20),  # batch 1
        (Offset(10, "t", 10), Offset(20, "t"), 10),  # base forgotten
        (Offset(20, "t"), Offset(30, "t"), 20),
        (Offset(15, "old", 15), Offset(20, "new", 10), 10),  # created anew: the base is of the new one
        (Offset(15, "old", 15), Offset(20, "new"), None),  # created anew, as version 0.1.0 wrote it
        (None, Offset(20, "t", 10), 10),  # added to the query
        (Offset(100, "t", 1), Offset(60, "t", 51), 51),  # the stream has lost its end
    ],
)
def test_first_to_read(start: Offset | None, end: Offset, expected: int | None) -> None:
    """A batch begins at its start, but batch 0, and a stream that is new, where the query first began."""
    assert first_to_read(start, end) == expected


@pytest.mark.parametrize(
    ("start", "available", "limit", "expected"),
    [(1, 11, None, 11), (1, 11, 5, 6), (1, 11, 50, 11), (11, 11, 5, 11), (11, 3, None, 11), (11, 3, 5, 11)],
)
def test_batch_end(start: int, available: int, limit: int | None, expected: int) -> None:
    """A batch ends at what is available, after the limit at most, and never before its start."""
    begin = Offsets({"S": Offset(start, "t", 1)})
    assert batch_end(begin, {"S": available}, limit) == {"S": Offset(expected, "t", 1)}


def test_batch_end_of_several_streams() -> None:
    """The limit is shared in proportion to what each stream has left."""
    begin = Offsets({"B": Offset(1, "b"), "A": Offset(1001, "a"), "C": Offset(5, "c")})
    end = batch_end(begin, {"A": 1301, "B": 101, "C": 5}, 40)
    assert {stream: offset.next for stream, offset in end.items()} == {"A": 1031, "B": 11, "C": 5}


@given(
    st.dictionaries(
        st.sampled_from("ABCDEF"), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1
    ),
    st.integers(6, 10**6),
)
def test_batches_reach_the_end_of_every_stream(streams: dict[str, tuple[int, int]], limit: int) -> None:
    """One batch after another, each within the limit, until all is read: no stream is forgotten or goes back."""
    position = Offsets({name: Offset(start, "t") for name, (start, _) in streams.items()})
    available = {name: start + size for name, (start, size) in streams.items()}
    total = sum(size for _, size in streams.values())
    batches = 0
    while any(position[name].next < available[name] for name in streams) and batches < 20:
        end = batch_end(position, available, limit)
        taken = {name: end[name].next - position[name].next for name in streams}
        assert all(count >= 0 for count in taken.values())
        assert all(taken[name] for name in streams if position[name].next < available[name])
        left = sum(available[name] - position[name].next for name in streams)
        assert sum(taken.values()) == min(limit, left)
        position = end
        batches += 1
    assert batches == min(20, -(-total // limit))
