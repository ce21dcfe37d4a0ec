"""From chunks of messages to Arrow record batches. The one module that imports pyarrow.

Only the columns asked for are decoded. Types are those Spark expects to the letter (4.2 and later compare):
nullable, timestamps in microseconds UTC, plain strings and binaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.headers import Headers
from .chunk import Chunk

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string(), nullable=True)))

_VERSION_LINE = "NATS/1.0\r\n"
_BLOCK_END = "\r\n\r\n"
_USUAL_BLOCK = r"\ANATS/1\.0\r\n(?s:.+)\r\n\r\n\z"
_USUAL_LINE = r"\A(?P<name>[!-9;-~]+):[ \t]*(?P<value>(?:[^ \t\r\n](?:[^\r\n]*[^ \t\r\n])?)?)[ \t]*\z"

_TYPES: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "subject": pa.string(),
    "seq": pa.int64(),
    "ts": pa.timestamp("us", tz="UTC"),
    "ts_ns": pa.int64(),
    "headers": HEADERS_TYPE,
    "data": pa.binary(),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[name], nullable=True) for name in columns])


def record_batch(chunk: Chunk, stream: str, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` for the messages of `chunk`."""
    arrays = [_BUILDERS[name](chunk, stream) for name in schema.names]
    if not arrays:  # count(): rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(chunk), type=pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stream(chunk: Chunk, stream: str) -> pa.Array:
    return pa.repeat(pa.scalar(stream, pa.string()), len(chunk))


def _subject(chunk: Chunk, stream: str) -> pa.Array:
    return text_array(chunk.subjects)


def _seq(chunk: Chunk, stream: str) -> pa.Array:
    return pa.array(chunk.sequences, pa.int64())


def _ts(chunk: Chunk, stream: str) -> pa.Array:
    return pa.array([nanos // 1000 for nanos in chunk.timestamps], pa.int64()).cast(_TYPES["ts"])


def _ts_ns(chunk: Chunk, stream: str) -> pa.Array:
    return pa.array(chunk.timestamps, pa.int64())


def _data(chunk: Chunk, stream: str) -> pa.Array:
    return pa.array(chunk.payloads, pa.binary())


def _headers(chunk: Chunk, stream: str) -> pa.Array:
    return header_array(chunk.blocks)


_BUILDERS: dict[str, Callable[[Chunk, str], pa.Array]] = {
    "stream": _stream,
    "subject": _subject,
    "seq": _seq,
    "ts": _ts,
    "ts_ns": _ts_ns,
    "headers": _headers,
    "data": _data,
}


def text_array(values: list[bytes]) -> pa.Array:
    """Strings from bytes, checked as UTF-8 all at once; only where that fails each one is looked at."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def header_array(blocks: list[bytes | None]) -> pa.Array:
    """A map per message, empty for one without headers."""
    usual = _usual_headers(blocks)
    return _any_headers_array(blocks) if usual is None else usual


def _usual_headers(blocks: list[bytes | None]) -> pa.Array | None:
    """Header blocks as every client writes them, all at once in Arrow; None when there is anything unusual.

    Parsing each block in Python costs several times what reading the message does.
    """
    try:
        texts = pa.array(blocks, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.match_substring_regex(texts, _USUAL_BLOCK)).as_py() and texts.null_count < len(texts):
        return None
    lines = pc.split_pattern(pc.utf8_slice_codeunits(texts, len(_VERSION_LINE), -len(_BLOCK_END)), "\r\n")
    parts = pc.extract_regex(lines.flatten(), _USUAL_LINE)
    if parts.null_count:
        return None
    names, values = parts.field("name"), parts.field("value")
    if _repeats(pc.list_parent_indices(lines), names):
        return None
    single = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    lengths = pc.fill_null(pc.list_value_length(lines), 0).to_pylist()
    return _map_array(lengths, names, single)


def _repeats(rows: pa.Array, names: pa.Array) -> bool:
    """Whether a message has several values for one name."""
    encoded = names.dictionary_encode()
    width = max(1, len(encoded.dictionary))
    keys = pc.add(pc.multiply(rows.cast(pa.int64()), width), encoded.indices.cast(pa.int64()))
    return int(pc.count_distinct(keys).as_py()) != len(keys)


def _any_headers_array(blocks: list[bytes | None]) -> pa.Array:
    """Whatever a stream holds, message by message."""
    names: list[bytes] = []
    values: list[bytes] = []
    per_message: list[int] = []
    per_name: list[int] = []
    for block in blocks:
        found = {} if block is None else _any_headers(block)
        per_message.append(len(found))
        names += found
        for texts in found.values():
            per_name.append(len(texts))
            values += texts
    lists = pa.ListArray.from_arrays(_offsets(per_name), text_array(values))
    return _map_array(per_message, text_array(names), lists)


def _map_array(lengths: list[int], names: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(_offsets(lengths), names, values).cast(HEADERS_TYPE)


def _offsets(lengths: list[int]) -> pa.Array:
    return pa.array(accumulate(lengths, initial=0), pa.int32())


def _any_headers(block: bytes) -> dict[bytes, list[bytes]]:
    """Whatever a stream holds, read as leniently as the library does."""
    headers = Headers.from_wire(block)
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers.multi_items():
        found.setdefault(_bytes(name), []).append(_bytes(value))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
