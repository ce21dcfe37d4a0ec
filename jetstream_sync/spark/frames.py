"""Converts Arrow record batches to frames for the wire, whole columns at a time. Imports pyarrow.

Arrow joins the columns to frames. All frames of a batch are in one buffer, ready to be sent, without a Python
operation per row. Values are checked by column, or once per distinct value. Only if header values are unusual, the
RowEncoder encodes them row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MaxPayloadError
from ..protocol.subjects import publish_subject
from .bulk import Frames
from .outgoing import COLUMNS, Columns, RowEncoder, with_id

# Rows encoded at once: enough to amortise the calls into Arrow, few enough to be in memory twice.
MAX_ROWS = 2500
MAX_BYTES = 4 * 1024 * 1024

_ID_LINE = b"Nats-Msg-Id: "
# Values that may be invalid: with CR, LF or NUL, or with a blank at either end.
_SUSPECT_VALUE = r"[\r\n\x00]|\A[ \t]|[ \t]\z"
_SUSPECT_ID = r"[^!-~]"

_MAPS_OF_LISTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.list_(pa.string()))]))
_MAPS_OF_STRINGS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def columns_of(batch: pa.RecordBatch) -> Columns:
    """The rows as Python values."""
    return Columns(**{name: batch.column(name).to_pylist() for name in COLUMNS if name in batch.schema.names})


def batch_of(columns: Columns) -> pa.RecordBatch:
    """A record batch of rows that Spark did not pass as Arrow."""
    given = {name: values for name, values in columns._asdict().items() if values is not None}
    return pa.RecordBatch.from_arrays([_array(name, given[name]) for name in given], names=list(given))


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "data":
        return pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    if name == "headers":
        pairs = [value if value is None else list(value.items()) for value in values]
        strings = any(isinstance(text, str) for row in pairs if row for _, text in row)
        return pa.array(pairs, pa.map_(pa.string(), pa.string() if strings else pa.list_(pa.string())))
    return pa.array(values, None if name == "ttl" else pa.string())


class FrameEncoder:
    """Encodes the rows of one task, which are numbered from 0. For one thread."""

    def __init__(self, rows: RowEncoder, id_prefix: bytes, reply_prefix: bytes, max_payload: int) -> None:
        """The reply subject of a row is `reply_prefix` and the row's number; its message id is `id_prefix` and the
        number, unless the row has one."""
        self._rows = rows
        self._id_prefix = id_prefix
        self._reply_prefix = reply_prefix
        self._max_payload = max_payload
        self.rows = 0
        """How many rows were encoded so far, which is the number of the next one."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[Frames]:
        """Encode a batch. Raises ValueError, which names the column, for an invalid row, and MaxPayloadError."""
        count = batch.num_rows
        # Not nbytes: it reads offsets, which older Spark versions omit for an empty array.
        step = max(1, min(MAX_ROWS, MAX_BYTES * count // max(1, batch.get_total_buffer_size())))
        for start in range(0, count, step):
            yield self._frames(batch.slice(start, step))

    def _frames(self, batch: pa.RecordBatch) -> Frames:
        count, first = batch.num_rows, self.rows
        self.rows += count
        numbers = _text(pa.array(range(first, first + count), pa.int64()))
        data = _data(batch)
        start, lines, ids = self._rows.start, self._lines(batch), self._ids(batch, numbers)
        rest = len(start) + len(_ID_LINE) + len(b"\r\n\r\n")
        header_sizes = pc.add(pc.add(pc.binary_length(lines), pc.binary_length(ids)), rest)
        sizes = pc.add(header_sizes, pc.binary_length(data))
        self._check_sizes(sizes)
        frames = _joined(
            *(b"HPUB ", self._subjects(batch), b" ", self._reply_prefix, numbers),
            *(b" ", _text(header_sizes), b" ", _text(sizes), b"\r\n"),
            *(start, lines, _ID_LINE, ids, b"\r\n\r\n", data, b"\r\n"),
        )
        _, offsets, content = frames.buffers()
        return Frames(first, memoryview(content), memoryview(offsets).cast("i")[: count + 1].tolist())

    def _check_sizes(self, sizes: pa.Array) -> None:
        largest = pc.max(sizes).as_py()
        if largest is not None and largest > self._max_payload:
            raise MaxPayloadError(largest, self._max_payload)

    def _subjects(self, batch: pa.RecordBatch) -> pa.Array | bytes:
        if self._rows.subject is not None:
            return self._rows.subject
        column = batch.column("subject")
        if column.null_count:
            raise ValueError("column 'subject' is NULL: give every row a subject, or the option 'subject'")
        for subject in pc.unique(column).to_pylist():
            publish_subject(subject)
        return column.cast(pa.binary())

    def _ids(self, batch: pa.RecordBatch, numbers: pa.Array) -> pa.Array:
        generated = _joined(self._id_prefix, numbers)
        if "msg_id" not in batch.schema.names:
            return generated
        column = batch.column("msg_id").cast(pa.string())
        if pc.any(pc.equal(column, "")).as_py():
            raise ValueError("column 'msg_id' is empty: use NULL for a generated id")
        if pc.any(pc.match_substring_regex(column, _SUSPECT_ID)).as_py():
            for msg_id in column.drop_null().to_pylist():
                with_id(b"", msg_id)  # raises for an id that is not a valid header value
        return pc.coalesce(column.cast(pa.binary()), generated)

    # --- headers ------------------------------------------------------------------------------------

    def _lines(self, batch: pa.RecordBatch) -> pa.Array:
        """The header lines of each row, without those that are the same for all rows."""
        names = batch.schema.names
        lines = pa.repeat(pa.scalar(b"", pa.binary()), batch.num_rows)
        if "headers" in names:
            lines = self._header_lines(batch.column("headers"))
        if "ttl" in names:
            lines = _joined(lines, _each(batch.column("ttl"), self._rows.ttl_line))
        return lines

    def _header_lines(self, column: pa.MapArray) -> pa.Array:
        usual = self._usual_header_lines(column)
        if usual is not None:
            return usual
        return pa.array([self._rows.header_lines(pairs) for pairs in column.to_pylist()], pa.binary())

    def _usual_header_lines(self, column: pa.MapArray) -> pa.Array | None:
        """The header lines if all values are usual; None when each row has to be checked."""
        single = not pa.types.is_list(column.type.item_type)
        # Older Spark versions omit the offsets of an empty array, on which Arrow's functions crash.
        if not len(column.keys) or not (single or len(column.items.values)):
            return None
        maps = column.cast(_MAPS_OF_STRINGS if single else _MAPS_OF_LISTS)
        maps.validate(full=True)  # also checks that all text is UTF-8
        names, values = maps.flatten().flatten()
        ends = _ends(maps)
        if not single:
            ends = _ends(values).take(ends)
            names, values = names.take(pc.list_parent_indices(values)), values.flatten()
        if values.null_count or pc.any(pc.match_substring_regex(values, _SUSPECT_VALUE)).as_py():
            return None
        starts = _each(names, self._rows.line_start)
        lines = _joined(starts, values.cast(pa.binary()), b"\r\n")
        left_out = pc.equal(starts, b"")
        if pc.any(left_out).as_py():
            lines = pc.if_else(left_out, b"", lines)
        return pc.binary_join(pa.ListArray.from_arrays(ends, lines), b"")


def _data(batch: pa.RecordBatch) -> pa.Array:
    column = batch.column("data")
    if column.null_count:
        raise ValueError("column 'data' is NULL: a message has a payload, if an empty one")
    return column.cast(pa.binary())


def _each(column: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    """`encode` of every value, called once per distinct value. NULL becomes empty."""
    encoded = column.dictionary_encode()
    values = pa.array([encode(value) for value in encoded.dictionary.to_pylist()], pa.binary())
    return pc.fill_null(values.take(encoded.indices), b"")


def _ends(lists: pa.ListArray) -> pa.Array:
    """Arrow offsets into the flattened values: where each list begins, and where the last ends. NULL is empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _joined(*parts: pa.Array | bytes) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")
