"""Rows into messages: no Spark, no server."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync.errors import BadHeaderError, BadSubjectError
from jetstream_sync.protocol.headers import Headers
from jetstream_sync.spark.outgoing import Columns, Outgoing, RowEncoder, columns_of_rows, with_id


def encode(columns: Columns, subject: str | None = "a", stream: str | None = None) -> list[Outgoing]:
    return list(RowEncoder(subject, stream).encode(columns))


def headers_of(message: Outgoing) -> dict[str, list[str]]:
    headers = Headers.from_wire(message.block + b"\r\n")
    return {name: headers.get_all(name) for name in headers}


@pytest.mark.parametrize(
    ("given_headers", "expected"),
    [
        (None, {}),
        ([], {}),
        ([("A", ["1"])], {"A": ["1"]}),
        ({"A": ["1", "2"], "B": ["ü"]}, {"A": ["1", "2"], "B": ["ü"]}),
        ({"A": "plain"}, {"A": ["plain"]}),
        (
            [("Nats-Msg-Id", ["old"]), ("nats-batch-id", ["b"]), ("Nats-Expected-Stream", ["S"]), ("C", ["3"])],
            {"C": ["3"]},
        ),
        ([("Nats-Rollup", ["all"]), ("C", ["3"])], {"C": ["3"]}),
    ],
)
def test_headers_column(given_headers: Any, expected: dict[str, list[str]]) -> None:
    """Maps of lists and of strings are accepted; headers of the publish that stored a row are not sent again."""
    assert [headers_of(row) for row in encode(Columns([b"x", b"y"], headers=[given_headers] * 2))] == [
        expected
    ] * 2


@pytest.mark.parametrize("value", ["a\r\nB: c", "\n", "a\0", " a\n"])
def test_headers_cannot_start_a_line(value: str) -> None:
    """A value with a line break is refused, the first time and when the name is known."""
    for rows in ([{"A": value}], [{"A": "ok"}, {"A": value}]):
        with pytest.raises(BadHeaderError, match="'A'"):
            encode(Columns([b""] * len(rows), headers=rows))


def test_subject_option_wins() -> None:
    """The option replaces the column."""
    assert encode(Columns([b"x"], subject=["col"]), subject="opt")[0].subject == b"opt"
    assert encode(Columns([b"x"], subject=["col"]), subject=None)[0].subject == b"col"


@pytest.mark.parametrize(
    ("columns", "error", "named"),
    [
        (Columns([b"x"], subject=[None]), ValueError, "subject"),
        (Columns([b"x"], subject=["a b"]), BadSubjectError, "a b"),
        (Columns([None], subject=["a"]), ValueError, "data"),
        (Columns([b"x"], subject=["a"], msg_id=[""]), ValueError, "msg_id"),
        (Columns([b"x"], subject=["a"], ttl=["soon"]), ValueError, "ttl"),
        (Columns([b"x"], subject=["a"], headers=[{"A": [None]}]), ValueError, "'A'"),
    ],
)
def test_bad_rows_name_the_column(columns: Columns, error: type[Exception], named: str) -> None:
    """A row that cannot be a message says which column is at fault."""
    with pytest.raises(error, match=named):
        encode(columns, subject=None)


def test_payloads_ttl_stream_and_ids() -> None:
    """Strings are encoded, ttl and expected stream become headers, ids are handed on."""
    row = encode(Columns(["ü", bytearray(b"x")], msg_id=["id", None], ttl=[60, "never"]), stream="S")
    assert [each.payload for each in row] == ["ü".encode(), b"x"]
    assert [each.msg_id for each in row] == ["id", None]
    assert headers_of(row[0]) == {"Nats-Expected-Stream": ["S"], "Nats-TTL": ["60s"]}
    assert headers_of(row[1])["Nats-TTL"] == ["never"]


@pytest.mark.parametrize("msg_id", ["abc1", "a b", "ü/1"])
def test_with_id_completes_the_block(msg_id: str) -> None:
    """The id is the last header."""
    block = with_id(b"NATS/1.0\r\n", msg_id)
    assert block == f"NATS/1.0\r\nNats-Msg-Id: {msg_id}\r\n\r\n".encode()


def test_with_id_refuses_line_breaks() -> None:
    """An id cannot start a header of its own."""
    with pytest.raises(BadHeaderError):
        with_id(b"NATS/1.0\r\n", "a\r\nB: c")


def test_columns_of_rows() -> None:
    """Rows that come one by one are gathered by column."""
    rows = [{"data": b"%d" % n, "subject": "s", "other": 1} for n in range(2500)]
    gathered = list(columns_of_rows(rows, frozenset({"data", "subject", "other"})))
    assert [len(each.data) for each in gathered] == [1000, 1000, 500]
    assert gathered[0].headers is None
