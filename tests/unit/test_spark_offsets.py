"""Offsets of a streaming query and positions in a stream: tables, no Spark."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync.spark.offsets import EARLIEST, LATEST, Offset, Position, capped, first_to_read, parse_position

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ('{"seq": 17}', Position(seq=17)),
        ("2026-01-02T03:04:05Z", Position(time=MOMENT)),
        ("2026-01-02T03:04:05", Position(time=MOMENT)),
        ("2026-01-02T05:04:05+02:00", Position(time=MOMENT)),
        ("2026-01-02 03:04:05.000001", Position(time=MOMENT + timedelta(microseconds=1))),
    ],
)
def test_position_parses(text: str, expected: Position) -> None:
    """Keywords, sequences and ISO timestamps are understood; a timestamp without zone is UTC."""
    assert parse_position(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "17",
        "{}",
        '{"seq": 0}',
        '{"seq": -1}',
        '{"seq": true}',
        '{"seq": 1, "x": 2}',
        "{seq}",
        "2026-13-01",
    ],
)
def test_position_refuses(text: str) -> None:
    """Anything else is an error, not a guess."""
    with pytest.raises(ValueError, match="must be"):
        parse_position(text)


@pytest.mark.parametrize("offset", [Offset(7, "t", 3), Offset(7, "t")])
def test_offset_survives_json(offset: Offset) -> None:
    """What goes into the checkpoint comes back the same."""
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_offset_json_is_what_the_checkpoint_format_says() -> None:
    """The format is a contract with existing checkpoints."""
    assert Offset(7, "2026", 3).to_json() == {"next": 7, "base": 3, "created": "2026", "v": 1}


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"next": 1},
        {"next": 1, "created": "t", "v": 2},
        {"next": "1", "created": "t", "v": 1},
        {"next": 1, "created": 5, "v": 1},
    ],
)
def test_offset_refuses_foreign_checkpoints(wire: dict[str, object]) -> None:
    """A checkpoint of another source or version is refused with its content named."""
    with pytest.raises(ValueError, match="checkpoint"):
        Offset.from_json(wire)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (Offset(10, "t", 10), Offset(20, "t", 10), 10),  # batch 0
        (Offset(15, "t", 15), Offset(20, "t", 10), 10),  # batch 0 again after a crash, "latest" has moved on
        (Offset(30, "t", 30), Offset(20, "t", 10), 10),  # the same, moved past the batch's end
        (Offset(20, "t", 10), Offset(30, "t", 10), 20),  # batch 1
        (Offset(10, "t", 10), Offset(20, "t"), 10),  # base forgotten
        (Offset(20, "t"), Offset(30, "t"), 20),
        (Offset(15, "old", 15), Offset(20, "new", 10), 15),  # another stream: its base means nothing
    ],
)
def test_first_to_read(start: Offset, end: Offset, expected: int) -> None:
    """A batch begins at its start, but batch 0 where the query first began."""
    assert first_to_read(start, end) == expected


@pytest.mark.parametrize(
    ("start", "available", "limit", "expected"),
    [(1, 11, None, 11), (1, 11, 5, 6), (1, 11, 50, 11), (11, 11, 5, 11), (11, 3, None, 11), (11, 3, 5, 11)],
)
def test_capped(start: int, available: int, limit: int | None, expected: int) -> None:
    """A batch ends at what is available, after the limit at most, and never before its start."""
    assert capped(start, available, limit) == expected
