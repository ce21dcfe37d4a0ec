"""Frames made by column: what the wire gets is what encoding row by row gives."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from jetstream_sync.errors import BadHeaderError, BadSubjectError, MaxPayloadError
from jetstream_sync.protocol import commands
from jetstream_sync.spark.encoding import MAX_ROWS, ColumnEncoder, batch_of, columns_of
from jetstream_sync.spark.frames import FrameEncoder
from jetstream_sync.spark.outgoing import Columns, Outgoing, RowEncoder, with_id

LISTS = pa.map_(pa.string(), pa.list_(pa.string()))
STRINGS = pa.map_(pa.string(), pa.string())


def encoder(subject: str | None = None, stream: str | None = "S", max_payload: int = 1 << 20) -> FrameEncoder:
    return FrameEncoder(RowEncoder(subject, stream), b"w/0/", b"_INBOX.x.", max_payload)


def by_column(batch: pa.RecordBatch, subject: str | None = None) -> list[bytes]:
    return [
        bytes(frames.frame(number))
        for frames in encoder(subject).encode(batch)
        for number in range(frames.first, frames.first + len(frames))
    ]


def by_row(batch: pa.RecordBatch, subject: str | None = None) -> list[bytes]:
    encoder = RowEncoder(subject, "S")
    return [
        commands.publish(
            each.subject,
            each.payload,
            b"_INBOX.x.%d" % number,
            with_id(each.block, each.msg_id or f"w/0/{row_print(each, encoder.start)}.0"),
        )
        for number, each in enumerate(encoder.encode(columns_of(batch)))
    ]


def row_print(row: Outgoing, start: bytes) -> str:
    """The fingerprint of a row that occurs once, made by hand."""
    lines = row.block[len(start) :]
    form = b"%b %d\r\n%b\r\n%b" % (row.subject, len(row.payload), lines, row.payload)
    return hashlib.sha256(form).hexdigest()[:16]


def batch(count: int = 4, **columns: Any) -> pa.RecordBatch:
    arrays = {
        "subject": pa.array([f"s.{n}" for n in range(count)]),
        "data": pa.array([b"%d" % n for n in range(count)]),
    }
    return pa.RecordBatch.from_pydict({**arrays, **columns})


LIST_HEADERS = [
    None,
    [],
    [("A", ["1", "2"]), ("B", ["ü x"]), ("C", []), ("D", None), ("E", [""])],
    [("Nats-Msg-Id", ["old"]), ("F", ["3"]), ("nats-expected-stream", ["T"])],
]


@pytest.mark.parametrize(
    "rows",
    [
        batch(),
        batch(data=pa.array(["a", "ü", "", "d"])),
        batch(
            data=pa.array([b"a", b"", b"\r\n", b"d"], pa.large_binary()),
            subject=pa.array(["a"] * 4, pa.large_string()),
        ),
        batch(msg_id=pa.array(["one", None, "a b", "ü"])),
        batch(msg_id=pa.array([None] * 4, pa.string())),
        batch(ttl=pa.array([60, None, 1, 60], pa.int32())),
        batch(ttl=pa.array(["never", None, "5", "5"])),
        batch(headers=pa.array(LIST_HEADERS, LISTS)),
        batch(headers=pa.array([None] * 4, LISTS), ttl=pa.array([1, 2, 3, 4])),
        batch(headers=pa.array([None, [], [("A", "1"), ("B", "2")], [("C", None)]], STRINGS)),
        batch(headers=pa.array([[("A", " x")], [("A", "x\t")], [], None], STRINGS)),
        batch(headers=pa.array([[("A", "1")], [("Nats-Batch-Id", "2")], [], None], STRINGS)),
        batch(headers=pa.array([[("A", ["a\x01b"])], [("A", ["a\x7f"])], [("A", ["\u00a0x"])], None], LISTS)),
    ],
)
def test_same_as_row_by_row(rows: pa.RecordBatch) -> None:
    """Every kind of column, with NULL and empty ones, whole and as a slice."""
    assert by_column(rows) == by_row(rows)
    assert by_column(rows.slice(1, 2)) == by_row(rows.slice(1, 2))
    assert by_column(rows.slice(3), subject="opt") == by_row(rows.slice(3), subject="opt")
    assert by_column(rows.slice(4)) == []


def test_numbers_go_on_over_batches_and_pieces() -> None:
    """Rows are numbered through; pieces are bounded, so that frames are not all in memory at once."""
    mine = encoder()
    made = [*mine.encode(batch(MAX_ROWS + 10)), *mine.encode(batch(5))]
    assert [(frames.first, len(frames)) for frames in made] == [(0, MAX_ROWS), (MAX_ROWS, 10), (MAX_ROWS + 10, 5)]
    assert mine.rows == MAX_ROWS + 15
    large = batch(data=pa.array([b"x" * 3_000_000] * 4))
    assert [len(frames) for frames in encoder(max_payload=4_000_000).encode(large)] == [1, 1, 1, 1]


def canonical(rows: pa.RecordBatch, subject: str | None = None) -> list[bytes]:
    slices = ColumnEncoder(RowEncoder(subject, "S")).slices(rows)
    return [bytes(piece) for each in slices for piece in each.canonical]


def test_canonical_form_of_a_row() -> None:
    """Subject, header lines and payload with its length: what fingerprints in streams were made of, for ever."""
    rows = batch(
        data=pa.array([b"", b"\r\n", b"\x00\xff", b"d"]),
        headers=pa.array(LIST_HEADERS, LISTS),
        ttl=pa.array([None, 5, None, None]),
        msg_id=pa.array([None, None, "x", None]),
    )
    assert canonical(rows) == [
        b"s.0 0\r\n\r\n",
        b"s.1 2\r\nNats-TTL: 5s\r\n\r\n\r\n",
        "s.2 2\r\nA: 1\r\nA: 2\r\nB: ü x\r\nE: \r\n\r\n".encode() + b"\x00\xff",
        b"s.3 1\r\nF: 3\r\n\r\nd",
    ]
    assert canonical(rows.slice(1, 2)) == canonical(rows)[1:3]
    assert canonical(rows.slice(3), subject="o")[0] == b"o 1\r\nF: 3\r\n\r\nd"


def test_canonical_rows_are_one_buffer() -> None:
    """A span of rows is their forms one behind the other, for one running hash over any cut of the rows."""
    [rows] = ColumnEncoder(RowEncoder(None, None)).slices(batch(5))
    pieces = [bytes(piece) for piece in rows.canonical]
    assert rows.count == len(pieces) == 5
    assert bytes(rows.canonical.span(1, 4)) == b"".join(pieces[1:4])
    assert bytes(rows.canonical.span(0, 5)) == b"".join(pieces)
    assert bytes(rows.canonical.span(2, 2)) == b""


@pytest.mark.parametrize(
    ("rows", "error", "named"),
    [
        (batch(subject=pa.array(["a", None, "b", "c"])), ValueError, "subject"),
        (batch(subject=pa.array(["a", "b", "c", "a b"])), BadSubjectError, "a b"),
        (batch(subject=pa.array(["a", "b", "c", "x\r\nPUB y"])), BadSubjectError, "subject"),
        (batch(data=pa.array([b"x", b"y", b"z", None])), ValueError, "data"),
        (batch(msg_id=pa.array(["a", "b", "", None])), ValueError, "msg_id"),
        (batch(msg_id=pa.array(["a", "b", "c\r\nX: y", None])), BadHeaderError, "Nats-Msg-Id"),
        (batch(ttl=pa.array(["soon"] * 4)), ValueError, "ttl"),
        (batch(headers=pa.array([[("A", [None])]] * 4, LISTS)), ValueError, "'A'"),
        (batch(headers=pa.array([[("A", ["x\r\nB: y"])]] * 4, LISTS)), BadHeaderError, "'A'"),
        (batch(headers=pa.array([None, None, None, [("A", ["x\0"])]], LISTS)), BadHeaderError, "'A'"),
        (batch(msg_id=pa.array(["a", "b", "c ", None])), BadHeaderError, "Nats-Msg-Id"),
        (batch(headers=pa.array([[("A:", ["x"])]] * 4, LISTS)), BadHeaderError, "'A:'"),
        (batch(headers=pa.array([[("A\r\n", ["x"])]] * 4, LISTS)), BadHeaderError, "header name"),
        (batch(headers=pa.array([[("", ["x"])]] * 4, LISTS)), BadHeaderError, "header name"),
    ],
)
def test_bad_rows_are_refused(rows: pa.RecordBatch, error: type[Exception], named: str) -> None:
    """A row that cannot be a message is an error that says why, by column as by row."""
    with pytest.raises(error, match=named):
        by_column(rows)
    with pytest.raises(error, match=named):
        by_row(rows)


def test_text_that_is_not_utf8_is_refused() -> None:
    """Strings with other bytes than UTF-8 do not reach the wire."""
    broken = pa.array([b"\xff\r\nX: y"] * 4, pa.binary()).view(pa.string())
    maps = pa.MapArray.from_arrays(pa.array(range(5), pa.int32()), pa.array(["A"] * 4), broken)
    for rows in (batch(headers=maps), batch(msg_id=broken), batch(subject=broken)):
        with pytest.raises(ValueError):
            by_column(rows)


def test_payload_over_the_limit() -> None:
    """Too large for the server, headers included: refused before it is sent."""
    with pytest.raises(MaxPayloadError):
        list(encoder(max_payload=1000).encode(batch(data=pa.array([b"x" * 950] * 4))))


@pytest.mark.parametrize(
    "columns",
    [
        Columns([b"x", "ü", None]),
        Columns([b"x"] * 3, subject=["a", "b", None], msg_id=[None, "1", "2"], ttl=[1, None, 2]),
        Columns([b"x"] * 3, headers=[{"A": ["1"]}, None, {}]),
        Columns([b"x"] * 3, headers=[{"A": "1"}, None, {"B": None}]),
    ],
)
def test_rows_that_did_not_come_in_arrow(columns: Columns) -> None:
    """They become the same columns."""
    back = columns_of(batch_of(columns))
    assert back.data == [value.encode() if isinstance(value, str) else value for value in columns.data]
    assert (back.subject, back.msg_id, back.ttl) == (columns.subject, columns.msg_id, columns.ttl)
    if columns.headers is not None:
        assert [row if row is None else dict(row) for row in back.headers or []] == columns.headers
