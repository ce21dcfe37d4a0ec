"""Messages into Arrow: the ways that take whole columns give what reading message by message gives."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetstream_sync.protocol.headers import Headers
from jetstream_sync.protocol.parser import RawMessage
from jetstream_sync.spark import arrow_headers
from jetstream_sync.spark.arrow import arrow_schema, record_batch
from jetstream_sync.spark.arrow_headers import HEADERS_TYPE, alike_headers, header_array, usual_headers
from jetstream_sync.spark.fetchers import nanoseconds_of
from jetstream_sync.spark.replies import chunk_of


def block(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


def read_each(blocks: list[bytes | None]) -> list[list[tuple[str, list[str]]]]:
    """Block by block, as the library reads them."""
    found = []
    for each in blocks:
        headers = Headers.from_wire(each or b"NATS/1.0\r\n\r\n")
        pairs: dict[str, list[str]] = {}
        for name, value in headers.multi_items():
            pairs.setdefault(name, []).append(value)
        found.append(list(pairs.items()))
    return found


def way_of(blocks: list[bytes | None]) -> str:
    """Which of the three ways converts these blocks."""
    texts = arrow_headers._framed(blocks)
    if texts is None:
        return "any"
    return "alike" if alike_headers(texts) is not None else "any" if usual_headers(texts) is None else "usual"


@pytest.mark.parametrize(
    ("way", "blocks"),
    [
        ("usual", []),
        ("usual", [None, None]),
        ("alike", [block("A: 1", "B: 2")]),
        ("alike", [block("A: 1", "B:2 "), None, block("A: \u00fc", "B:\t x \t"), None, block("A:", "B: b: c")]),
        ("alike", [block("a: 1", "A: 2")] * 3),
        ("usual", [block("A: 1"), None, block("B:2", "C:\t x \t", "D:", "E: a:b: c", "F: ü")]),
        ("usual", [block("Nats-Msg-Id: x"), block("a: 1", "A: 2")]),
        ("usual", [block("A: 1", "B: 2"), block("B: 1", "A: 2")]),
        ("usual", [block("A: 1"), block("AA: 2")]),
    ],
)
def test_usual_blocks_are_read_at_once(way: str, blocks: list[bytes | None]) -> None:
    """What clients write takes a fast way, and comes out the same."""
    assert way_of(blocks) == way
    array = header_array(blocks)
    array.validate(full=True)
    assert array.type == HEADERS_TYPE
    assert array.to_pylist() == read_each(blocks)


UNUSUAL = [
    block("A: 1", "A: 2"),
    block("no colon"),
    block(": no name"),
    block("A: 1", " folded"),
    block("A: 1", " folded: with colon"),
    block("A : 1"),
    block("A: x\ny"),
    block("A: x\ry"),
    block("Ä: 1"),
    block("A: 1", "", "A: 2"),
    block(),
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\n",
    b"NATS/1.0\r\nA: 1\nB: 2\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_unusual_blocks_are_read_one_by_one(unusual: bytes) -> None:
    """Whatever a stream holds is read as leniently as the library does, its neighbours included."""
    for blocks in ([block("A: 1"), None, unusual, block("B: 2")], [block("A: 1"), unusual], [unusual] * 2):
        assert way_of(blocks) == "any"
        assert header_array(blocks).to_pylist() == read_each(blocks)


def test_other_than_utf8_is_replaced() -> None:
    """Bytes that are not UTF-8 are no reason to fail."""
    blocks: list[bytes | None] = [b"NATS/1.0\r\nA: \xff\r\n\r\n", block("B: 2")]
    assert header_array(blocks).to_pylist() == [[("A", ["\ufffd"])], [("B", ["2"])]]


def test_chunks_of_other_lengths_share_what_is_kept() -> None:
    """Index columns are kept for the next chunk, which may be shorter or longer."""
    for count in (5, 3, 1, 8, 9, 1000, 5):
        blocks: list[bytes | None] = [block(f"A: {number}", f"B: {count}") for number in range(count)]
        assert header_array(blocks).to_pylist() == read_each(blocks)


# --- whole messages -----------------------------------------------------------------------------------

V1 = b'$JS.ACK.S".C,".1.%d.%d.%d.0'
V2 = b"$JS.ACK._.hash.S.C.1.%d.%d.%d.0.extra"
V2_SHORT = b"$JS.ACK.domain.hash.S.C.1.%d.%d.%d.0"
SCHEMA = arrow_schema(("stream", "subject", "seq", "ts", "ts_ns", "headers", "data"))

names = st.sampled_from(["A", "a", "B", "Number", "Nats-Msg-Id", "Ä", "", " x"])
values = st.text("ab:, \t\r\n\u00fc\"'\\", max_size=6)
lines = st.lists(st.tuples(names, values).map(": ".join), max_size=3)
any_blocks = st.none() | lines.map(lambda each: block(*each)) | st.sampled_from(UNUSUAL) | st.binary(max_size=20)
# Most chunks: one list of names, and values of their own.
alike_blocks = st.lists(st.sampled_from(["A", "B", "Number", "a"]), min_size=1, max_size=3).flatmap(
    lambda each: st.lists(st.text("ab:, ü", max_size=5), min_size=len(each), max_size=len(each)).map(
        lambda texts: block(*map(": ".join, zip(each, texts, strict=True)))
    )
)


def model(messages: list[RawMessage], stream: str) -> list[dict[str, object]]:
    """Message by message, in Python."""
    rows = []
    for subject, reply, headers, payload in messages:
        assert reply is not None
        tokens = reply.split(b".")
        numbers = tokens[4:] if len(tokens) == 9 else tokens[6:]
        ((pairs),) = read_each([headers])
        shown = {_shown(name): [_shown(value) for value in values] for name, values in pairs}
        rows.append(
            {
                "stream": stream,
                "subject": subject.decode("utf-8", "replace"),
                "seq": int(numbers[1]),
                "ts": int(numbers[3]) // 1000,
                "ts_ns": int(numbers[3]),
                "headers": shown,
                "data": payload,
            }
        )
    return rows


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@st.composite
def deliveries(draw: st.DrawFn) -> list[RawMessage]:
    """Messages of one consumer: ascending sequences with gaps, consumer sequences without."""
    reply = draw(st.sampled_from([V1, V2, V2_SHORT]))
    headers = draw(st.sampled_from([any_blocks, alike_blocks]))
    sequence, messages = draw(st.integers(0, 2**40)), []
    for number in range(draw(st.integers(1, 12))):
        sequence += draw(st.integers(1, 3))
        nanos = draw(st.integers(0, 2**62))
        subject = draw(st.sampled_from([b"s", b"s.a", b"s.\xff", "s.ü".encode()]))
        messages.append(
            (subject, reply % (sequence, number + 7, nanos), draw(headers), draw(st.binary(max_size=9)))
        )
    return messages


@settings(max_examples=200, deadline=None)
@given(deliveries())
@example([(b"s", V1 % (2**63 - 1, 7, 2**63 - 1), None, b"")])
def test_any_messages_become_the_rows_that_they_are(messages: list[RawMessage]) -> None:
    """Reply subjects of every form, gaps, and whatever headers a stream holds."""
    chunk = chunk_of(messages, 7)
    assert chunk is not None
    batch = record_batch(chunk, "S", SCHEMA)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    rows = batch.set_column(3, "ts", batch["ts"].cast(pa.int64())).to_pylist()
    for row in rows:
        row["headers"] = dict(row["headers"])
    assert rows == model(messages, "S")


@pytest.mark.parametrize("columns", [(), ("seq",), ("data", "ts"), ("headers",)])
def test_only_what_is_asked_for(columns: tuple[str, ...]) -> None:
    """Fewer columns, the same rows; none at all for count()."""
    messages: list[RawMessage] = [(b"s", V1 % (n, n, n), block(f"A: {n}"), b"%d" % n) for n in range(1, 4)]
    chunk = chunk_of(messages, 1)
    assert chunk is not None
    batch = record_batch(chunk, "S", arrow_schema(columns))
    assert batch.num_rows == 3
    assert tuple(batch.schema.names) == columns


def test_a_cut_chunk_has_rows_up_to_the_cut() -> None:
    """Numbers stay the same memory; what is past the end is gone from every column."""
    messages: list[RawMessage] = [(b"s", V1 % (n, n, n * 1000), None, b"%d" % n) for n in range(1, 6)]
    chunk = chunk_of(messages, 1)
    assert chunk is not None
    assert chunk.cut(4)
    rows = record_batch(chunk, "S", arrow_schema(("seq", "ts_ns", "data"))).to_pylist()
    assert rows == [{"seq": n, "ts_ns": n * 1000, "data": b"%d" % n} for n in (1, 2, 3)]


def test_chunk_of_notices_a_skipped_delivery() -> None:
    """A gap in the consumer sequence means that a message was lost."""
    messages: list[RawMessage] = [(b"a", V1 % (10, 4, 0), None, b""), (b"b", V1 % (12, 6, 0), None, b"")]
    assert chunk_of(messages, 4) is None
    assert chunk_of(messages[:1], 3) is None


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
