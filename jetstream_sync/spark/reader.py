"""The batch reader, and the partitions that both readers plan and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..jetstream import JetStream
from .discovered import NO_SERVERS, Discovered, discovered_by
from .filters import Narrowing, narrowing_of
from .options import ReadOptions
from .planning import narrowed_by_time, sequence_at, without_lost
from .positions import EARLIEST
from .range_reader import read_range
from .ranges import SequenceRange, split
from .shared import jetstream_of, open_connection
from .stream_view import StreamView, created_of

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """A range of sequences of `stream`, which was created at the time `created`.

    `discovered` are the servers that the cluster has advertised to the driver.
    """

    def __init__(
        self, stream: str, start: int, end: int, created: str, discovered: Discovered = NO_SERVERS
    ) -> None:
        super().__init__(None)
        self.stream = stream
        self.start = start
        self.end = end
        self.created = created
        self.discovered = discovered


@dataclass(frozen=True)
class Wanted:
    """What a batch reads of a stream, which was created at the time `created`.

    Of the range, the sequences from `left_from` on are still there. It is split into partitions as a whole: if a
    batch runs again, its partitions have the same numbers, although the stream may have lost more of it by then.
    """

    range: SequenceRange
    created: str
    left_from: int = 0


def partitions_of(
    options: ReadOptions, wanted: Sequence[tuple[str, Wanted]], discovered: Discovered
) -> list[RangePartition]:
    """The partitions of a batch, in the order of `wanted`: streams and ranges. Depends on the arguments only."""
    pieces = split(
        [each.range for _, each in wanted],
        min_partitions=options.min_partitions,
        max_per_partition=options.max_messages_per_partition,
    )
    return [
        RangePartition(
            stream, min(max(piece.start, each.left_from), piece.end), piece.end, each.created, discovered
        )
        for (stream, each), ranges in zip(wanted, pieces, strict=True)
        for piece in ranges
    ]


def read_partition(
    options: ReadOptions, columns: tuple[str, ...], partition: RangePartition
) -> Iterator[pa.RecordBatch]:
    """The messages of a partition as Arrow record batches. Runs in a task, and opens its own connection."""
    # An optional extra. If the data source could not be imported without it, Spark would find no data source at
    # all.
    from .arrow import arrow_schema, record_batch

    schema = arrow_schema(columns)
    wanted = SequenceRange(partition.start, partition.end)
    if not len(wanted):
        return
    for chunk in read_range(options, partition.stream, wanted, partition.created, partition.discovered):
        yield record_batch(chunk, partition.stream, schema)


class JetStreamReader(DataSourceReader):
    """Reads the messages of streams between two offsets, once."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Plan the read: ask the server where the streams begin and end. Runs once, before the job."""
        options = self._options
        with open_connection(options, f"spark plan {','.join(options.streams)}") as nc:
            js = jetstream_of(nc, options)
            streams = [stream for stream in options.streams if self._narrowing.includes(stream)]
            wanted = [(stream, each) for stream in streams for each in self._wanted(js, stream)]
            discovered = discovered_by(nc)
        # For an empty list Spark would create a partition of another class: return an empty RangePartition
        # instead.
        return list(partitions_of(options, wanted, discovered)) or [RangePartition(options.streams[0], 0, 0, "")]

    def _wanted(self, js: JetStream, stream: str) -> list[Wanted]:
        view = StreamView(js, stream)
        info = view.info()
        start = sequence_at(view, info, self._options.start_in(stream, EARLIEST))
        end = min(sequence_at(view, info, self._options.end_in(stream)), info.state.last_seq + 1)
        in_time = narrowed_by_time(view, info, self._narrowing.micros, SequenceRange(start, end))
        parts = self._narrowing.ranges(in_time)
        return [Wanted(without_lost(self._options, stream, info, part), created_of(info)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_partition(self._options, self._columns, partition)


class PushFiltersReader(JetStreamReader):
    """A batch reader that reads only what the filters of the query may match.

    A class of its own: Spark fails a read through a reader with pushFilters() unless its setting is on. And Spark
    uses the partitions of this object for later reads of the same DataFrame that have no filter to push: so a
    DataFrame serves one query only.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Narrow what is read. Spark still applies all filters: none is left out of what is returned."""
        self._narrowing = narrowing_of(filters, self._options.subjects)
        self._options = replace(self._options, subjects=self._narrowing.subjects or ())
        return filters


def batch_reader(options: ReadOptions, columns: tuple[str, ...]) -> JetStreamReader:
    """The reader that the options ask for. Raises ValueError when this pyspark does not have it."""
    if not options.push_filters:
        return JetStreamReader(options, columns)
    if not hasattr(DataSourceReader, "pushFilters"):
        raise ValueError(f"option 'pushFilters' needs pyspark 4.1 or later; this is {pyspark.__version__}")
    return PushFiltersReader(options, columns)
