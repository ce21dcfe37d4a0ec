"""Converts chunks of messages to Arrow record batches. Imports pyarrow.

Only the requested columns are decoded. The types are exactly those that Spark expects (4.2 and later compare
them): nullable, timestamps in microseconds UTC, plain strings and binaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.headers import Headers
from .chunk import Chunk

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string(), nullable=True)))

_VERSION_LINE = "NATS/1.0\r\n"
_BLOCK_END = "\r\n\r\n"
_USUAL_NAME = r"\A[!-9;-~]+\z"

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
    if not arrays:  # for count(), Spark asks for rows without columns
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
    """Strings from bytes. All are checked as UTF-8 at once; they are decoded one by one only if that fails."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def header_array(blocks: list[bytes | None]) -> pa.Array:
    """The headers of each message as a map, which is empty for a message without headers."""
    usual = _usual_headers(blocks)
    return _any_headers_array(blocks) if usual is None else usual


def _usual_headers(blocks: list[bytes | None]) -> pa.Array | None:
    """Convert usual header blocks all at once in Arrow; None when one of them is unusual.

    Parsing each block in Python would take several times as long as reading the message.
    """
    whole = pa.array(blocks, pa.binary())
    if not (_all(pc.starts_with(whole, _VERSION_LINE)) and _all(pc.ends_with(whole, _BLOCK_END))):
        return None
    inner = slice(len(_VERSION_LINE), -len(_BLOCK_END))
    try:
        texts = pa.array([block and block[inner] for block in blocks], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None  # not UTF-8
    lines = pc.split_pattern(texts, "\r\n")
    pairs = pc.split_pattern(lines.flatten(), ":", max_splits=1)
    if not _all(pc.equal(pc.list_value_length(pairs), 2)):
        return None
    names, values = pc.list_element(pairs, 0), pc.ascii_trim(pc.list_element(pairs, 1), " \t")
    if not _all(pc.match_substring_regex(pc.unique(names), _USUAL_NAME)) or _any_line_break(values):
        return None
    if _repeats(pc.list_parent_indices(lines), names):
        return None
    single = pa.ListArray.from_arrays(_ends(pa.repeat(pa.scalar(1, pa.int32()), len(values))), values)
    return _map_array(_ends(pc.fill_null(pc.list_value_length(lines), 0)), names, single)


def _all(conditions: pa.Array) -> bool:
    """Whether all conditions are true, ignoring those that are NULL."""
    return bool(pc.all(conditions, min_count=0).as_py())


def _any_line_break(values: pa.Array) -> bool:
    """Whether a value contains a CR or an LF alone, as some clients have written them."""
    return not all(_all(pc.invert(pc.match_substring(values, sign))) for sign in "\r\n")


def _repeats(rows: pa.Array, names: pa.Array) -> bool:
    """Whether a message has several values for one name."""
    encoded = names.dictionary_encode()
    width = max(1, len(encoded.dictionary))
    keys = pc.add(pc.multiply(rows.cast(pa.int64()), width), encoded.indices.cast(pa.int64()))
    return int(pc.count_distinct(keys).as_py()) != len(keys)


def _any_headers_array(blocks: list[bytes | None]) -> pa.Array:
    """Convert any header blocks, message by message."""
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
    lists = pa.ListArray.from_arrays(_ends(pa.array(per_name, pa.int32())), text_array(values))
    return _map_array(_ends(pa.array(per_message, pa.int32())), text_array(names), lists)


def _map_array(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(ends, names, values).cast(HEADERS_TYPE)


def _ends(lengths: pa.Array) -> pa.Array:
    """Arrow offsets of consecutive items: where each begins, and where the last one ends."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _any_headers(block: bytes) -> dict[bytes, list[bytes]]:
    """The headers of any block, read as leniently as by the rest of the library."""
    headers = Headers.from_wire(block)
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers.multi_items():
        found.setdefault(_bytes(name), []).append(_bytes(value))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
