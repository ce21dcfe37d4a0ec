"""Chunks from the messages of a pull consumer: what their reply subjects say. Imports pyarrow.

The server puts into the reply subject of a message: times delivered, stream sequence, consumer sequence,
timestamp, pending. Arrow's reader of delimited text splits the reply subjects of a chunk and converts the numbers.
That takes a third of the time that Python takes, and does not hold the interpreter's lock: meanwhile the reader
thread receives.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pc_csv

from ..protocol.parser import RawMessage
from .chunk import Chunk

# Names of streams and consumers may contain quotes, and no character escapes another.
_PARSE = pc_csv.ParseOptions(delimiter=".", quote_char=False, double_quote=False, escape_char=False)


def chunk_of(messages: list[RawMessage], expected: int) -> Chunk | None:
    """The messages as a chunk; None when one is missing. `expected` is the consumer sequence of the first."""
    # Not zip(): that makes an iterator for each message, which has the garbage collector run.
    replies = [raw[1] or b"" for raw in messages]
    sequence, consumer_sequence, timestamp = number_tokens(replies[0])
    if int(replies[0].split(b".")[consumer_sequence]) != expected:
        return None
    if int(replies[-1].split(b".")[consumer_sequence]) != expected + len(messages) - 1:
        return None
    sequences, timestamps = _columns(replies, sequence, timestamp)
    return Chunk(
        [raw[0] for raw in messages],
        sequences,
        timestamps,
        [raw[2] for raw in messages],
        [raw[3] for raw in messages],
    )


def number_tokens(reply: bytes) -> tuple[int, int, int]:
    """Which tokens of a reply subject are stream sequence, consumer sequence and timestamp.

    Five numbers follow `$JS.ACK.<stream>.<consumer>`; in the newer form, domain and account hash precede the
    stream.
    """
    delivered = 4 if reply.count(b".") == 8 else 6
    return delivered + 1, delivered + 2, delivered + 3


def _columns(replies: list[bytes], *tokens: int) -> list[memoryview[int]]:
    """The numbers at the places `tokens` of each reply subject. All have the same number of tokens."""
    text = b"\n".join([*replies, b""])
    names = [f"f{token}" for token in tokens]
    table = pc_csv.read_csv(
        pa.py_buffer(text),
        pc_csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=len(text) + 1),
        _PARSE,
        pc_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.int64())),
    )
    return [_memory(table[name].combine_chunks()) for name in names]


def _memory(values: pa.Int64Array) -> memoryview[int]:
    return memoryview(values.buffers()[1]).cast("q")[values.offset : values.offset + len(values)]
