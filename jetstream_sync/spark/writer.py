"""The writers: they store the rows of a DataFrame in a stream, idempotently or exactly once.

The driver creates a writer, and Spark copies it to the tasks. Each task writes its partition over its own
connection, and its result goes back to the driver. `commit` only logs: everything is stored by then. `abort`
undoes nothing: messages that were stored stay, and the next attempt recognises them. Neither needs a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .._log import Log
from ..protocol.subjects import next_nuid
from .discovered import NO_SERVERS, Discovered
from .message_ids import TaskIdentity, Written
from .options import WriteOptions
from .outgoing import columns_of_rows
from .shared import jetstream_of, open_patiently
from .sink_start import check_sink, check_sink_once

log: Log = Log("spark", None)

# Columns and the types they may have.
_TYPES = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
    "ttl": ("int", "bigint", "string"),
}


class PartitionWritten(WriterCommitMessage):
    """The result of a task, for the driver."""

    def __init__(self, written: Written) -> None:
        self.written = written


class _TaskWriter:
    """The part of the batch writer and the stream writer that runs in a task."""

    def __init__(self, options: WriteOptions, names: frozenset[str]) -> None:
        self._options = options
        self._names = names
        self.discovered: Discovered = NO_SERVERS
        """The servers that the cluster has advertised to the driver."""

    def _write_partition(self, identity: TaskIdentity, rows: Iterable[Any]) -> PartitionWritten:
        # An optional extra. If the data source could not be imported without it, Spark would find no data source.
        from .encoding import batch_of
        from .sinks import sink_of

        options = self._options
        batches = rows if _takes_arrow(self) else map(batch_of, columns_of_rows(rows, self._names))
        name, seconds = f"spark write {identity.partition}", options.publish_timeout
        nc = open_patiently(options, name, discovered=self.discovered, seconds=seconds)
        try:
            with closing(sink_of(jetstream_of(nc, options), options, identity)) as sink:
                for batch in batches:
                    sink.write(batch)
                return PartitionWritten(sink.finish())
        finally:
            nc.close()


# Spark 4.1 and later pass rows as Arrow record batches to both kinds of writers.
_BatchBase: type[DataSourceWriter] = getattr(datasource, "DataSourceArrowWriter", DataSourceWriter)
_StreamBase: type[DataSourceStreamWriter] = getattr(
    datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter
)


def _takes_arrow(writer: object) -> bool:
    bases = (_BatchBase, _StreamBase)
    return isinstance(writer, tuple(base for base in bases if "Arrow" in base.__name__))


class JetStreamWriter(_TaskWriter, _BatchBase):
    """Writes a DataFrame. A task that runs again stores no row twice, nor does a job whose write is named."""

    def __init__(self, options: WriteOptions, names: frozenset[str]) -> None:
        super().__init__(options, names)
        self._named = options.write_id is not None
        self._write_id = options.write_id or next_nuid()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Blocks until every message of the partition is acknowledged."""
        partition = _task_context().partitionId()
        identity = TaskIdentity(self._write_id, self._options.epoch, partition, self._named)
        return self._write_partition(identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _report("aborted; what was stored stays:", messages)


class JetStreamStreamWriter(_TaskWriter, _StreamBase):
    """Writes the micro-batches of a streaming query. A batch that Spark runs again is stored once."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Blocks until every message of the partition is acknowledged."""
        context = _task_context()
        query = context.getLocalProperty("sql.streaming.queryId")
        epoch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or epoch is None:
            raise RuntimeError("Spark did not tell the query's id and batch: rows cannot be named")
        return self._write_partition(TaskIdentity(query, int(epoch), context.partitionId()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(f"batch {batchId}: written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(f"batch {batchId}: aborted; what was stored stays:", messages)


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of one DataFrame, made on the driver. Blocks and raises as check_sink() does."""
    writer = JetStreamWriter(options, _checked_columns(options, schema, overwrite))
    writer.discovered = check_sink(options)
    return writer


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool, *, to_commit: bool
) -> DataSourceStreamWriter:
    """The writer of a micro-batch, made on the driver. Blocks and raises as check_sink() does, unless `to_commit`.

    `to_commit`: the writer is not for tasks, but to commit or abort what the tasks have written.
    """
    writer = JetStreamStreamWriter(options, _checked_columns(options, schema, overwrite))
    if not to_commit:
        writer.discovered = check_sink_once(options)
    return writer


def _checked_columns(options: WriteOptions, schema: StructType, overwrite: bool) -> frozenset[str]:
    """The columns to write. Raises ValueError for those that cannot work, before the first row is computed."""
    if overwrite:
        raise ValueError("format jetstream only appends: use mode append (a stream cannot be overwritten)")
    names = frozenset(schema.fieldNames())
    for column in schema.fields:
        allowed = _TYPES.get(column.name)
        kind = column.dataType.simpleString()
        if allowed is not None and kind not in allowed:
            raise ValueError(f"column {column.name!r} must be {' or '.join(allowed)}, not {kind}")
    if "data" not in names:
        raise ValueError("format jetstream needs a column 'data' (binary or string): the payload")
    if "subject" not in names and options.subject is None:
        raise ValueError("format jetstream needs a column 'subject', or the option 'subject'")
    return names


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this writer runs in Spark's tasks only")
    return context


def _report(what: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message.written for message in messages if isinstance(message, PartitionWritten)]
    rows, duplicates = sum(each.rows for each in written), sum(each.duplicates for each in written)
    log.info("%s %d rows in %d partitions, %d of them stored before", what, rows, len(written), duplicates)
