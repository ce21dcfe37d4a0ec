"""How a task stores its rows: pipelined publishes with message ids, or atomic batches. Imports pyarrow."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from ..api.bulk import BulkPublisher
from ..errors import NoStreamResponseError
from ..jetstream import JetStream, client_of
from .atomic_sink import AtomicSink
from .checks import check_stream_once
from .frames import FrameEncoder
from .message_ids import TaskIdentity, Written
from .missing_stream import MissingStream
from .options import WriteOptions
from .outgoing import RowEncoder


class Sink(Protocol):
    """Stores the rows of one task."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Store rows, some of them only in finish(). Raises ValueError for a row that cannot be a message."""

    def finish(self) -> Written:
        """Block until all rows are stored. Raises the error of a row that cannot be stored."""

    def close(self) -> None:
        """Release what the sink holds. It leaves the connection open. Idempotent."""


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
        self._write_id = identity.write
        self._publisher = BulkPublisher(link, options.publish_timeout, options.max_pending)
        self._publisher.on_wait = self._look_for_the_stream
        self._missing = MissingStream(js)
        self._publisher.open()
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
        streams = list(self._publisher.streams)
        if self._checks_late and streams:
            check_stream_once(self._write_id, self._js, self._options, streams[0])
        return Written(self._encoder.rows, self._publisher.duplicates)

    def _look_for_the_stream(self) -> None:
        refusal = self._publisher.not_yet
        if refusal is not None and isinstance(refusal.error, NoStreamResponseError):
            self._missing.unanswered(refusal.error.subject)

    def close(self) -> None:
        """Give up what is not acknowledged. Idempotent."""
        self._publisher.close()
