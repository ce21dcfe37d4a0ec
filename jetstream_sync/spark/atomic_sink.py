"""Stores the rows of a task exactly once: in atomic batches with markers. Imports pyarrow.

What belongs to whom:

  markers.py        what a marker means for a task that starts; pure
  batch_commits.py  brings a chunk into the stream, whatever happens on the way
  AtomicSink        passes over what is stored, divides the other rows into chunks, keeps the running fingerprint
  the stream        the truth: the last marker of the partition. A sink reads it once, when it is created

Rows that are passed over are needed again if their fingerprint turns out to be another one and the option
onReplayMismatch is `append`: then the batch is stored anew, from its first row. They wait in a temporary file, not
in memory, and the attempt itself goes on with them: Spark may allow no further one.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from ..api.info import RawStreamMsg
from ..api.stream_api import StreamApi
from ..errors import JetStreamError, MessageNotFoundError
from ..jetstream import JetStream, client_of
from ..protocol.subjects import next_nuid
from .batch_commits import BatchCommits, Chunk, MarkerSettings
from .checks import check_config
from .encoding import ColumnEncoder, EncodedRows, content_of, lengths_of
from .markers import (
    ROWS_PER_CHUNK,
    Fingerprint,
    Marker,
    Start,
    batch_tag,
    can_roll_up,
    lost_markers,
    start_of,
)
from .message_ids import TaskIdentity, Written
from .missing_stream import MissingStream
from .options import APPEND, WriteOptions
from .outgoing import RowEncoder
from .patience import Patience
from .stream_view import PASSING

# Until a chunk is committed, its messages are in memory here and on the server.
CHUNK_BYTES = 16 * 1024 * 1024

# Of so many subjects of an incomplete chunk the stream is looked up.
MOST_LOOK_UPS = 20


class PassedOver:
    """Rows in a temporary file, in case that they have to be stored after all."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="jetstream-sync-")  # noqa: SIM115 - close()
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._subject: bytes | None = None

    def add(self, rows: EncodedRows) -> None:
        nothing = pa.nulls(rows.count, pa.binary())
        if isinstance(rows.subjects, bytes):
            self._subject = rows.subjects
        subjects = nothing if isinstance(rows.subjects, bytes) else rows.subjects
        batch = pa.RecordBatch.from_arrays(
            [subjects, rows.lines, nothing if rows.msg_ids is None else rows.msg_ids, rows.data],
            names=["subjects", "lines", "msg_ids", "data"],
        )
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[EncodedRows]:
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            subjects, lines, msg_ids, data = batch.columns
            without_ids = msg_ids.null_count == len(msg_ids)
            subject = subjects if self._subject is None else self._subject
            yield EncodedRows(subject, lines, None if without_ids else msg_ids, data)

    def close(self) -> None:
        self._file.close()


class AtomicSink:
    """Stores rows in chunks, each an atomic batch. Its last message is a marker, which the next chunk expects.

    A task that runs again reads the marker and passes over the rows that are stored, if they are the same. Two
    attempts of a task may run at once (speculation, or an attempt that Spark believes dead): the stream accepts
    the chunk of the first and rejects that of the second as a whole.
    """

    def __init__(self, js: JetStream, options: WriteOptions, identity: TaskIdentity) -> None:
        """Reads the last marker. Blocks up to the option publishTimeout while no leader answers.

        Raises JetStreamError when the batch must not be stored: see markers.py.
        """
        assert options.marker_subject is not None
        self._js = js
        self._options = options
        self._identity = identity
        self._epoch = identity.epoch or 0
        self._task = next_nuid()
        self._log = client_of(js).link.logs.spark
        self._marker_subject = identity.marker_subject(options.marker_subject)
        patience = Patience(options.publish_timeout, f"the progress of {self._marker_subject!r}", self._log)
        self._patiently = patience.call
        self._stream = options.stream or self._patiently(
            lambda: js.find_stream_name_by_subject(self._marker_subject), PASSING
        )
        encoder = RowEncoder(options.subject, options.stream)
        self._encoder = ColumnEncoder(encoder)
        self._written = Written()
        self._fingerprint = self._new_fingerprint()
        self._chunk: list[EncodedRows] = []
        self._chunk_rows = self._chunk_bytes = 0
        self._tag = batch_tag(identity.write)
        config = self._patiently(lambda: StreamApi(client_of(js)).info(self._stream), PASSING).config
        check_config(options, self._stream, config)
        self._last, last_seq = self._last_marker()
        self._stored = 0  # how many rows of the epoch are stored or in a chunk that is on its way
        self._left = 0  # how many rows are still to be passed over
        self._ended = False  # the partition had no more rows than those that were passed over
        self._kept: PassedOver | None = None
        self._start = self._begin()
        self._commits = BatchCommits(
            client_of(js).link,
            options.publish_timeout,
            encoder.start,
            self._tag,
            MarkerSettings(self._marker_subject, last_seq, can_roll_up(config), options.stream),
            self._last_marker,
        )
        self._commits.on_unanswered = MissingStream(js).unanswered
        self._commits.on_incomplete = self._check_streams

    # --- rows ---------------------------------------------------------------------------------------

    def write(self, batch: pa.RecordBatch) -> None:
        """Store rows, the last ones only in finish(). Blocks until the chunk before the last full one is stored.

        Raises ValueError for a row that cannot be a message; JetStreamError when rows that are stored already are
        others than these.
        """
        self._written.rows += batch.num_rows
        if self._start is Start.DONE:
            self._written.duplicates += batch.num_rows
            return
        for rows in self._encoder.slices(batch):
            further = self._pass_over(rows) if self._left else rows
            if self._ended and further.count:
                self._mismatch(f"has more than the {self._stored} rows that it had when all were stored")
            self._store(further)

    def finish(self) -> Written:
        """Block until all rows are stored. Raises as write() does."""
        if self._left:
            self._mismatch(f"has {self._written.rows} rows now, but {self._stored} are stored")
        if self._chunk or self._needs_first_marker():
            self._commit_chunk(ended=True)
        self._commits.finish()
        self._written.duplicates += self._commits.duplicates
        return self._written

    def close(self) -> None:
        """Give up what is not stored. Blocks as BatchCommits.close() does. Idempotent."""
        self._commits.close()
        if self._kept is not None:
            self._kept.close()

    def _store(self, rows: EncodedRows) -> None:
        """Store rows. A full chunk waits for the next row: the marker of the last one says that it is the last."""
        while rows.count:
            end = self._fitting(rows)
            if not end:
                self._commit_chunk()
                continue
            part = rows.span(0, end)
            self._remember(part)
            self._chunk.append(part)
            self._chunk_rows += end
            self._chunk_bytes += _size(part)
            rows = rows.span(end, rows.count)

    def _fitting(self, rows: EncodedRows) -> int:
        """How many of these rows the chunk has room for; at least one if it is empty."""
        most = min(rows.count, ROWS_PER_CHUNK - self._chunk_rows)
        room = CHUNK_BYTES - self._chunk_bytes
        if _size(rows.span(0, most)) <= room:
            return most
        sizes = pc.cumulative_sum(pc.add(pc.binary_length(rows.data), pc.binary_length(rows.lines)))
        least = 0 if self._chunk else 1
        return max(least, min(most, bisect_right(sizes.to_pylist(), room)))

    def _remember(self, rows: EncodedRows) -> None:
        """Add rows to the fingerprint."""
        for number, column in enumerate((rows.data, rows.lines, rows.subjects)):
            if not isinstance(column, bytes):
                self._fingerprint.add(number, lengths_of(column), content_of(column))

    def _new_fingerprint(self) -> Fingerprint:
        fingerprint = Fingerprint(columns=3)
        if self._options.subject is not None:  # the same for all rows
            fingerprint.add(2, b"", self._options.subject.encode())
        return fingerprint

    def _commit_chunk(self, *, ended: bool = False) -> None:
        self._stored += self._chunk_rows
        marker = Marker(self._epoch, self._stored, self._task, self._fingerprint.value, ended)
        self._commits.store(Chunk(self._chunk, marker))
        self._chunk = []
        self._chunk_rows = self._chunk_bytes = 0
        self._last = marker

    # --- what an earlier attempt has stored -----------------------------------------------------------

    def _begin(self) -> Start:
        """Decide what to do with the first rows. Raises JetStreamError when the batch must not be stored."""
        if self._last is None and self._markers_are_lost():
            self._say_lost()
        start = start_of(self._last, self._epoch, named=self._identity.named)
        if self._last is None or start in (Start.STORE, Start.DONE):
            return start
        if start is Start.MISMATCH:
            self._mismatch(f"comes after batch {self._last.epoch}: is this an old copy of the checkpoint?")
            return Start.STORE
        self._left = self._last.rows
        self._stored = self._last.rows
        if start is Start.COMPARE and self._options.on_replay_mismatch == APPEND:
            self._kept = PassedOver()
        return start if self._left else Start.STORE

    def _pass_over(self, rows: EncodedRows) -> EncodedRows:
        """Pass over rows that are stored. Returns those that follow, and compares when the last one has passed."""
        count = min(self._left, rows.count)
        passed = rows.span(0, count)
        self._remember(passed)
        if self._kept is not None:
            self._kept.add(passed)
        self._left -= count
        self._written.duplicates += count
        if not self._left:
            self._compare()
        return rows.span(count, rows.count)

    def _compare(self) -> None:
        assert self._last is not None
        if self._start is Start.COMPARE and self._fingerprint.value != self._last.fingerprint:
            self._mismatch(f"begins with {self._last.rows} other rows than those that are stored")
        elif self._last.ended:
            self._ended = True
        elif self._kept is not None:
            self._kept.close()
            self._kept = None

    def _mismatch(self, what: str) -> None:
        """Raise, or begin the batch anew, as the options say."""
        where = f"batch {self._epoch} of {self._identity.write!r}, partition {self._identity.partition}, {what}"
        if self._options.on_replay_mismatch != APPEND:
            raise JetStreamError(
                f"exactlyOnce: {where}. The query, its options or its data have changed since it was begun. "
                "This attempt has stored nothing. Run the batch as it was, or set onReplayMismatch=append: then "
                "this partition of the batch is stored once more, behind what is stored already"
            )
        self._log.warning("exactlyOnce: %s. It is stored anew (onReplayMismatch=append)", where)
        self._left = self._stored = 0
        self._ended = False
        self._written.duplicates = 0
        self._fingerprint = self._new_fingerprint()
        kept, self._kept = self._kept, None
        if kept is not None:
            for rows in kept:
                self._store(rows)
            kept.close()

    # --- markers ------------------------------------------------------------------------------------

    def _check_streams(self, subjects: set[bytes]) -> None:
        """Raise JetStreamError if another stream takes rows: the batch is incomplete where the markers are."""
        for subject in sorted(subjects)[:MOST_LOOK_UPS]:
            name = subject.decode()
            other = self._patiently(partial(self._js.find_stream_name_by_subject, name), PASSING)
            if other != self._stream:
                raise JetStreamError(
                    f"exactlyOnce: stream {other!r} stores the subject {name!r}, but the markers are in stream "
                    f"{self._stream!r}: all rows must be in one stream with them"
                )

    def _needs_first_marker(self) -> bool:
        """Partition 0 leaves a marker, also without rows: so a query whose markers are gone can notice it."""
        return self._last is None and self._identity.partition == 0 and self._identity.epoch is not None

    def _markers_are_lost(self) -> bool:
        # In this order: another partition may store its first chunk meanwhile, a row and a marker at once.
        ours = self._last_row_is_ours()
        every_partition = self._marker_subject.rpartition(".")[0] + ".*"
        return lost_markers(
            any_marker=self._last_message(every_partition) is not None,
            epoch=self._epoch,
            named=self._identity.named,
            last_row_is_ours=ours,
        )

    def _last_row_is_ours(self) -> bool:
        last = self._last_message(self._options.subject or ">")
        batch_id = None if last is None or last.headers is None else last.headers.get("Nats-Batch-Id")
        return batch_id is not None and batch_id.startswith(self._tag)

    def _say_lost(self) -> None:
        write, prefix = self._identity.write, self._marker_subject.rpartition(".")[0]
        if not self._options.allow_marker_loss:
            raise JetStreamError(
                f"exactlyOnce: batch {self._epoch} of {write!r} finds no marker below {prefix!r} in stream "
                f"{self._stream!r}, so rows of this batch may be stored already. If the markers were removed, or "
                "if the query was switched to exactlyOnce or to another markerSubject, set allowMarkerLoss=true "
                "for one batch: it is then stored at least once"
            )
        self._log.warning(
            "exactlyOnce: batch %d of %r finds no marker below %r: rows of this batch may be stored twice "
            "(allowMarkerLoss=true)",
            *(self._epoch, write, prefix),
        )

    def _last_marker(self) -> tuple[Marker | None, int]:
        message = self._last_message(self._marker_subject)
        return (None, 0) if message is None else (Marker.from_bytes(message.data), message.seq)

    def _last_message(self, subject: str) -> RawStreamMsg | None:
        """The last message of a subject, which may have wildcards. From the leader: replicas may be behind."""
        api = StreamApi(client_of(self._js))
        try:
            return self._patiently(
                lambda: api.get_message(
                    self._stream, direct=False, seq=None, last_by_subject=subject, next_by_subject=None
                ),
                PASSING,
            )
        except MessageNotFoundError:
            return None


def _size(rows: EncodedRows) -> int:
    return len(content_of(rows.data)) + len(content_of(rows.lines))
