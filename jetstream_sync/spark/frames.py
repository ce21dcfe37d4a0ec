"""Joins encoded columns to frames: a pipelined publish per row, with its message id. Imports pyarrow.

All frames of a slice are in one buffer, ready to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..api.bulk import Frames
from .encoding import ColumnEncoder, EncodedRows, check_sizes, hexadecimal, int32, joined, pieces_of, text
from .fingerprints import FINGERPRINT_BYTES, Occurrences, fingerprints
from .outgoing import RowEncoder

_ID_LINE = b"Nats-Msg-Id: "


class FrameEncoder:
    """Encodes the rows of one task, which are numbered from 0. For one thread."""

    def __init__(self, rows: RowEncoder, id_prefix: bytes, reply_prefix: bytes, max_payload: int) -> None:
        """The reply subject of a row is `reply_prefix` and the row's number.

        Its message id, unless the row has one, is `id_prefix`, the fingerprint of the row, a dot, and how many
        rows before it have the same fingerprint. So the id names the row, wherever in the task it comes.
        """
        self._columns = ColumnEncoder(rows)
        self._start = rows.start
        self._id_prefix = id_prefix
        self._reply_prefix = reply_prefix
        self._max_payload = max_payload
        self._occurrences = Occurrences()
        self.rows: Any = 0
        """How many rows were encoded so far, which is the number of the next one."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[Frames]:
        """Encode a batch. Raises ValueError, which names the column, for an invalid row, and MaxPayloadError."""
        return map(self._frames, self._columns.slices(batch))

    def _frames(self, rows: EncodedRows) -> Frames:
        first = self.rows
        self.rows += rows.count
        numbers = text(pa.array(range(first, first + rows.count), pa.int64()))
        ids = self._ids(rows)
        rest = len(self._start) + len(_ID_LINE) + len(b"\r\n\r\n")
        header_sizes = pc.add(pc.add(pc.binary_length(rows.lines), pc.binary_length(ids)), int32(rest))
        sizes = pc.add(header_sizes, pc.binary_length(rows.data))
        check_sizes(sizes, self._max_payload)
        frames = pieces_of(
            joined(
                *(b"HPUB ", rows.subjects, b" ", self._reply_prefix, numbers),
                *(b" ", text(header_sizes), b" ", text(sizes), b"\r\n"),
                *(self._start, rows.lines, _ID_LINE, ids, b"\r\n\r\n", rows.data, b"\r\n"),
            )
        )
        return Frames(first, frames.data, frames.offsets)

    def _ids(self, rows: EncodedRows) -> pa.Array:
        if rows.msg_ids is None:
            return self._generated(rows.canonical)
        if not rows.msg_ids.null_count:
            return rows.msg_ids
        missing = rows.msg_ids.is_null()
        generated = self._generated(compress(rows.canonical, missing.to_pylist()))
        return pc.replace_with_mask(rows.msg_ids, missing, generated)

    def _generated(self, rows: Iterable[memoryview]) -> pa.Array:
        prints = fingerprints(rows)
        before = self._occurrences.count(prints)
        occurrences = b"0" if before is None else text(pa.array(before, pa.int64()))
        return joined(self._id_prefix, hexadecimal(prints, FINGERPRINT_BYTES), b".", occurrences)
