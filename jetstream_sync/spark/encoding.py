"""Converts Arrow record batches to columns of encoded messages, whole columns at a time. Imports pyarrow.

The columns of an EncodedRows are ready for the wire: a sink adds its own headers and joins them to frames. Values
are checked by column, or once per distinct value. Only if header values are unusual, the RowEncoder encodes them
row by row. No Python operation is done per row otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MaxPayloadError
from ..protocol.subjects import publish_subject
from .outgoing import COLUMNS, Columns, RowEncoder, with_id

# Rows encoded at once: enough to amortise the calls into Arrow, few enough to be in memory twice.
MAX_ROWS = 2500
MAX_BYTES = 4 * 1024 * 1024

# Values that are invalid, with CR, LF or NUL, or that are stripped.
_SUSPECT_VALUE = r"[\r\n\x00]|\A[ \t]|[ \t]\z"
_SUSPECT_ID = r"[^!-~]"

EMPTY = pa.scalar(b"", pa.binary())
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


@dataclass(frozen=True)
class Pieces:
    """Consecutive pieces of bytes in one buffer, one piece per row."""

    data: memoryview
    offsets: list[int]
    """Where each piece begins, and where the last one ends."""

    def __iter__(self) -> Iterator[memoryview]:
        data = self.data
        return (data[start:end] for start, end in pairwise(self.offsets))

    def span(self, first: int, end: int) -> memoryview:
        """The pieces from row `first` up to row `end`, which is not included."""
        return self.data[self.offsets[first] : self.offsets[end]]


class EncodedRows:
    """Columns of consecutive rows, valid and encoded. All are binary arrays of `count` values."""

    def __init__(
        self, subjects: pa.Array | bytes, lines: pa.Array, msg_ids: pa.Array | None, data: pa.Array
    ) -> None:
        self.count: int = len(data)
        self.subjects = subjects
        """The subjects; bytes if all rows have the same one."""
        self.lines = lines
        """The header lines of the row itself, each with its line end: no message id, no header of the sink."""
        self.msg_ids = msg_ids
        """The message ids the rows have, NULL where one has none; None if no row has one."""
        self.data = data
        """The payloads."""

    def span(self, first: int, end: int) -> EncodedRows:
        """The rows from `first` up to `end`, which is not included."""
        if first == 0 and end == self.count:
            return self
        return EncodedRows(
            self.subjects if isinstance(self.subjects, bytes) else self.subjects[first:end],
            self.lines[first:end],
            None if self.msg_ids is None else self.msg_ids[first:end],
            self.data[first:end],
        )

    def filter(self, mask: pa.Array) -> EncodedRows:
        """The rows for which `mask` is true."""
        return EncodedRows(
            self.subjects if isinstance(self.subjects, bytes) else self.subjects.filter(mask),
            self.lines.filter(mask),
            None if self.msg_ids is None else self.msg_ids.filter(mask),
            self.data.filter(mask),
        )

    @cached_property
    def canonical(self) -> Pieces:
        """What makes each row the row it is: subject, header lines and payload, in one form for fingerprints.

        A row is `<subject> <payload length> CR LF <header lines> CR LF <payload>`. A subject has no blank, header
        lines end with an empty line, and the length says where the payload ends. So no two different sequences of
        rows have the same bytes. The form must never change: fingerprints of it are stored in streams.
        """
        return pieces_of(
            joined(self.subjects, b" ", text(pc.binary_length(self.data)), b"\r\n", self.lines, b"\r\n", self.data)
        )


class ColumnEncoder:
    """Encodes the columns of record batches. For one thread."""

    def __init__(self, rows: RowEncoder) -> None:
        self._rows = rows

    def slices(self, batch: pa.RecordBatch) -> Iterator[EncodedRows]:
        """Encode a batch in slices of limited size. Raises ValueError, which names the column, for a bad row."""
        count = batch.num_rows
        # Not nbytes: it reads offsets, which older Spark versions omit for an empty array.
        step = max(1, min(MAX_ROWS, MAX_BYTES * count // max(1, batch.get_total_buffer_size())))
        for start in range(0, count, step):
            yield self._encode(batch.slice(start, step))

    def _encode(self, batch: pa.RecordBatch) -> EncodedRows:
        return EncodedRows(self._subjects(batch), self._lines(batch), _msg_ids(batch), _data(batch))

    def _subjects(self, batch: pa.RecordBatch) -> pa.Array | bytes:
        if self._rows.subject is not None:
            return self._rows.subject
        column = batch.column("subject")
        if column.null_count:
            raise ValueError("column 'subject' is NULL: give every row a subject, or the option 'subject'")
        for subject in pc.unique(column).to_pylist():
            publish_subject(subject)
        return column.cast(pa.binary())

    # --- headers ------------------------------------------------------------------------------------

    def _lines(self, batch: pa.RecordBatch) -> pa.Array:
        names = batch.schema.names
        lines = pa.repeat(EMPTY, batch.num_rows)
        if "headers" in names:
            lines = self._header_lines(batch.column("headers"))
        if "ttl" in names:
            lines = joined(lines, _each(batch.column("ttl"), self._rows.ttl_line))
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
        lines = joined(starts, values.cast(pa.binary()), b"\r\n")
        left_out = pc.equal(starts, EMPTY)
        if pc.any(left_out).as_py():
            lines = pc.if_else(left_out, EMPTY, lines)
        return pc.binary_join(pa.ListArray.from_arrays(ends, lines), EMPTY)


def _data(batch: pa.RecordBatch) -> pa.Array:
    column = batch.column("data")
    if column.null_count:
        raise ValueError("column 'data' is NULL: a message has a payload, if an empty one")
    return column.cast(pa.binary())


def _msg_ids(batch: pa.RecordBatch) -> pa.Array | None:
    if "msg_id" not in batch.schema.names:
        return None
    column = batch.column("msg_id").cast(pa.string())
    if column.null_count == len(column):
        return None
    if pc.any(pc.equal(column, pa.scalar("", pa.string()))).as_py():
        raise ValueError("column 'msg_id' is empty: use NULL for a generated id")
    if pc.any(pc.match_substring_regex(column, _SUSPECT_ID)).as_py():
        for msg_id in column.drop_null().to_pylist():
            with_id(b"", msg_id)  # raises for an id that is not a valid header value
    return column.cast(pa.binary())


def _each(column: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    """`encode` of every value, called once per distinct value. NULL becomes empty."""
    encoded = column.dictionary_encode()
    values = pa.array([encode(value) for value in encoded.dictionary.to_pylist()], pa.binary())
    return pc.fill_null(values.take(encoded.indices), EMPTY)


def _ends(lists: pa.ListArray) -> pa.Array:
    """Arrow offsets into the flattened values: where each list begins, and where the last ends. NULL is empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), int32(0))
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


# --- for the sinks, which join columns to frames ----------------------------------------------------------


def text(numbers: pa.Array) -> pa.Array:
    """Numbers as decimal digits."""
    return numbers.cast(pa.string()).cast(pa.binary())


def hexadecimal(content: bytes, width: int) -> pa.Array:
    """Values of `width` bytes, which come one behind the other, as hexadecimal digits."""
    digits = pa.py_buffer(content.hex().encode())
    kind = pa.binary(2 * width)
    return pa.Array.from_buffers(kind, len(content) // width, [None, digits]).cast(pa.binary())


def joined(*parts: pa.Array | bytes) -> pa.Array:
    """Each row's values one behind the other; bytes are the same in all rows."""
    return pc.binary_join_element_wise(*map(_constant, parts), EMPTY)


def _constant(part: pa.Array | bytes) -> pa.Array | pa.Scalar:
    # With its type: where Arrow has to infer it, one constant costs as much as joining hundreds of rows.
    return pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part


def int32(value: int) -> pa.Scalar:
    """A number for calculations with lengths. Its type is given, because inferring one is slow."""
    return pa.scalar(value, pa.int32())


def content_of(column: pa.Array) -> memoryview:
    """The values of a binary array, one behind the other, without a copy."""
    _, offsets, content = column.buffers()
    if not len(column) or content is None:  # older Spark versions omit the offsets of an empty array
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    return memoryview(content)[bounds[column.offset] : bounds[column.offset + len(column)]]


def lengths_of(column: pa.Array) -> memoryview:
    """The lengths of the values of a binary array, as 32-bit numbers."""
    return memoryview(pc.binary_length(column).buffers()[1])[: 4 * len(column)]


def pieces_of(column: pa.Array) -> Pieces:
    """The values of a new binary array where they are, without a copy."""
    _, offsets, content = column.buffers()
    return Pieces(memoryview(content), memoryview(offsets).cast("i")[: len(column) + 1].tolist())


def check_sizes(sizes: pa.Array, max_payload: int) -> None:
    """Raise MaxPayloadError if a message, headers included, is larger than the server takes."""
    largest = pc.max(sizes).as_py()
    if largest is not None and largest > max_payload:
        raise MaxPayloadError(largest, max_payload)
