"""Converts chunks of messages to Arrow record batches. Imports pyarrow.

Only the requested columns are decoded. The types are exactly those that Spark expects (4.2 and later compare
them): nullable, timestamps in microseconds UTC, plain strings and binaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_headers import HEADERS_TYPE, header_array, text_array
from .chunk import Chunk

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
    return _int64_array(chunk.sequences)


def _ts(chunk: Chunk, stream: str) -> pa.Array:
    return pc.divide(_int64_array(chunk.timestamps), 1000).cast(_TYPES["ts"])


def _ts_ns(chunk: Chunk, stream: str) -> pa.Array:
    return _int64_array(chunk.timestamps)


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


def _int64_array(numbers: memoryview[int]) -> pa.Array:
    """The same memory as an Arrow array."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
