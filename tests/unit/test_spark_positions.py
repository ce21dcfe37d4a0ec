"""Positions in streams as options give them: tables, no Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.positions import EARLIEST, LATEST, Position, Positions, parse_positions, parse_timestamp

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
    assert parse_positions(text) == Positions(expected)
    assert parse_positions(text).of("any") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"A": {"seq": 7}, "B": "earliest"}', {"A": Position(seq=7), "B": EARLIEST}),
        ('{"A": "2026-01-02T03:04:05Z"}', {"A": Position(time=MOMENT)}),
        ('{"seq": {"seq": 7}}', {"seq": Position(seq=7)}),
        ('{"seq": "latest", "B": {"seq": 1}}', {"seq": LATEST, "B": Position(seq=1)}),
    ],
)
def test_positions_of_several_streams(text: str, expected: dict[str, Position]) -> None:
    """Each stream has its own position, in any form; a stream may be called seq."""
    positions = parse_positions(text)
    assert {stream: positions.of(stream) for stream in expected} == expected
    positions.check(tuple(expected))


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
        '{"seq": 1, "x": "latest"}',
        '{"A": "never"}',
        '{"A": 7}',
        '{"A": {"seq": 7, "x": 1}}',
        '{"A": "latest", "A": "earliest"}',
        "{seq}",
        "2026-13-01",
    ],
)
def test_position_refuses(text: str) -> None:
    """Anything else is an error, not a guess."""
    with pytest.raises(ValueError, match="must be"):
        parse_positions(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", datetime(1970, 1, 1, tzinfo=timezone.utc)),
        (" 1767323045000 ", MOMENT),
        ("1767323045001", MOMENT + timedelta(milliseconds=1)),
    ],
)
def test_timestamp_in_milliseconds(text: str, expected: datetime) -> None:
    """Timestamps are milliseconds since 1970, as Kafka's source takes them."""
    assert parse_timestamp(text) == Position(time=expected)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "latest", "2026-01-02", "9" * 30, "९"])
def test_timestamp_refuses(text: str) -> None:
    """Anything else is an error."""
    with pytest.raises(ValueError, match="milliseconds"):
        parse_timestamp(text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stream": "A,A"}, "'stream'.*twice"),
        ({"stream": "A,"}, "'stream'"),
        ({"stream": "A,B.C"}, "'stream'"),
        ({"stream": "A,B", "startingOffsets": '{"A": "earliest", "C": "latest"}'}, "'startingOffsets'.*'C'"),
        ({"stream": "A,B", "startingOffsets": '{"A": "earliest"}'}, "'startingOffsets'.*'B'"),
        ({"stream": "A,B", "endingOffsets": '{"A": "latest"}'}, "'endingOffsets'.*'B'"),
        ({"stream": "A,B", "endingOffsets": '{"A": "latest", "B": "earliest"}'}, "'endingOffsets'"),
        (
            {"stream": "A,B", "startingOffsets": '{"A": "latest", "B": {"seq": 1}}', "endingOffsets": "latest"},
            "'endingOffsets'",
        ),
        ({"stream": "A,B", "maxMessagesPerTrigger": "1"}, "'maxMessagesPerTrigger'.*2"),
    ],
)
def test_options_of_several_streams_name_what_is_wrong(options: dict[str, str], expected: str) -> None:
    """A stream that is named twice, or only in one of two options: the error says so."""
    with pytest.raises(ValueError, match=expected):
        ReadOptions.parse(options)


def test_options_of_several_streams() -> None:
    """Streams are separated by commas; each has its positions."""
    options = ReadOptions.parse({"stream": "A, B", "startingOffsets": '{"A": {"seq": 7}, "B": "latest"}'})
    assert options.streams == ("A", "B")
    assert [options.start_in(stream, EARLIEST) for stream in "AB"] == [Position(seq=7), LATEST]
    assert options.end_in("A") == LATEST
    assert ReadOptions.parse({"stream": "A"}).start_in("A", EARLIEST) == EARLIEST
