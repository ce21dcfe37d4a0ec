"""How a task stores its rows: pipelined publishes with message ids, or atomic batches. Imports pyarrow."""

from __future__ import annotations

import time
from typing import Protocol

import pyarrow as pa

from ..api.batch import PublishBatch, add_encoded
from ..api.stream_api import StreamApi
from ..errors import (
    APIError,
    ConnectionLostError,
    JetStreamError,
    JetStreamUnavailableError,
    MessageNotFoundError,
    NoStreamResponseError,
    TimeoutError,
    WrongLastSequenceError,
)
from ..jetstream import JetStream, client_of
from ..protocol.subjects import next_nuid
from .bulk import BulkPublisher
from .checks import check_stream
from .frames import FrameEncoder, columns_of
from .message_ids import ROWS_PER_CHUNK, Marker, TaskIdentity, Written, rows_already_written
from .options import WriteOptions
from .outgoing import Outgoing, RowEncoder, with_id

# While a server restarts or elects a leader, a publish gets "no responders". It is repeated within publishTimeout.
RETRY_WAIT = 0.25
# Until a chunk is committed, its messages are in memory here and on the server.
CHUNK_BYTES = 16 * 1024 * 1024

_PASSING = (ConnectionLostError, JetStreamUnavailableError, NoStreamResponseError, TimeoutError)
# Of atomic batches: incomplete, because the leader changed during the batch; too many open batches.
_PASSING_BATCH_CODES = frozenset((10176, 10210))


class Sink(Protocol):
    """Stores the rows of one task."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Store rows, some of them only in finish(). Raises ValueError for a row that cannot be a message."""

    def finish(self) -> Written:
        """Block until all rows are stored. Raises the error of a row that cannot be stored."""


def sink_of(js: JetStream, options: WriteOptions, identity: TaskIdentity) -> Sink:
    kind = AtomicSink if options.exactly_once else IdempotentSink
    return kind(js, options, identity)


class IdempotentSink:
    """Stores rows by pipelined publishes. Every message has an id, so one that is sent twice is stored once."""

    def __init__(self, js: JetStream, options: WriteOptions, identity: TaskIdentity) -> None:
        link = client_of(js).link
        self._js = js
        self._options = options
        # The driver checks the stream if the options name it. If not, the first task does, when an ack names it.
        self._checks_late = options.stream is None and options.subject is None and identity.partition == 0
        self._publisher = BulkPublisher(link, options.publish_timeout, options.max_pending)
        self._encoder = FrameEncoder(
            RowEncoder(options.subject, options.stream),
            id_prefix=identity.id_prefix.encode(),
            reply_prefix=self._publisher.reply_prefix,
            max_payload=link.max_payload,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Publish rows. Blocks while the window of unacknowledged messages is full."""
        for frames in self._encoder.encode(batch):
            self._publisher.publish(frames)

    def finish(self) -> Written:
        """Block until every message is acknowledged. Raises the error of a failed publish."""
        self._publisher.finish()
        self._publisher.close()
        if self._checks_late and self._publisher.stream:
            check_stream(self._js, self._options, self._publisher.stream)
        return Written(self._encoder.rows, self._publisher.duplicates)


class AtomicSink:
    """Stores rows in chunks, each an atomic batch. Its last message is a marker, which the next chunk expects.

    A task that runs again reads the marker and skips the rows that are stored. Two attempts of a task may run at
    once (speculation, or an attempt that Spark believes dead): the stream accepts the chunk of the first and
    rejects that of the second as a whole.
    """

    def __init__(self, js: JetStream, options: WriteOptions, identity: TaskIdentity) -> None:
        assert options.marker_subject is not None
        self._js = js
        self._timeout = options.publish_timeout
        self._epoch = identity.epoch or 0
        self._task = next_nuid()
        self._encoder = RowEncoder(options.subject, options.stream)
        self._marker_subject = identity.marker_subject(options.marker_subject)
        self._stream = options.stream or js.find_stream_name_by_subject(self._marker_subject)
        self._written = Written()
        self._chunk: list[Outgoing] = []
        self._chunk_bytes = 0
        last, self._marker_seq = self._last_marker()
        self._skip = rows_already_written(last, self._epoch)

    def write(self, batch: pa.RecordBatch) -> None:
        """Store rows. Blocks for the acknowledgement of each chunk."""
        for message in self._encoder.encode(columns_of(batch)):
            self._written.rows += 1
            if self._skip is None or self._written.rows <= self._skip:
                self._written.duplicates += 1
                continue
            self._chunk.append(message)
            self._chunk_bytes += len(message.payload)
            if len(self._chunk) >= ROWS_PER_CHUNK or self._chunk_bytes >= CHUNK_BYTES:
                self._commit_chunk()

    def finish(self) -> Written:
        if self._chunk:
            self._commit_chunk()
        return self._written

    def _commit_chunk(self) -> None:
        marker = Marker(self._epoch, self._written.rows, self._task)
        gives_up = time.monotonic() + self._timeout
        while True:
            try:
                self._marker_seq = self._send(marker)
                break
            except APIError as error:
                if isinstance(error, WrongLastSequenceError):
                    self._marker_seq = self._own_marker(marker, error)
                    break
                if not _passes(error) or time.monotonic() >= gives_up:
                    raise
            except _PASSING:
                if time.monotonic() >= gives_up:
                    raise
            # It is not known whether the chunk was stored. If it was, the stream rejects the second one.
            time.sleep(RETRY_WAIT)
        self._chunk = []
        self._chunk_bytes = 0

    def _send(self, marker: Marker) -> int:
        batch = PublishBatch(client_of(self._js).link, client_of(self._js).timeout)
        for subject, payload, block, msg_id in self._chunk:
            add_encoded(batch, subject, payload, block if msg_id is None else with_id(block, msg_id)[:-2])
        batch.add(self._marker_subject, marker.to_bytes(), expected_last_subject_seq=self._marker_seq)
        return batch.commit().seq

    def _own_marker(self, marker: Marker, refused: WrongLastSequenceError) -> int:
        """The sequence of `marker` if the rejected chunk is stored already. Raises if another attempt wrote it."""
        last, seq = self._last_marker()
        if last == marker:
            return seq
        raise JetStreamError(
            f"another attempt of this task writes to {self._marker_subject!r}: this one stops "
            f"({refused.description})"
        )

    def _last_marker(self) -> tuple[Marker | None, int]:
        try:
            message = StreamApi(client_of(self._js)).get_message(
                self._stream, direct=False, seq=None, last_by_subject=self._marker_subject, next_by_subject=None
            )
        except MessageNotFoundError:
            return None, 0
        return Marker.from_bytes(message.data), message.seq


def _passes(error: APIError) -> bool:
    return isinstance(error, JetStreamUnavailableError) or error.err_code in _PASSING_BATCH_CODES
