"""The batch reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .offsets import EARLIEST, LATEST
from .options import ReadOptions
from .planning import sequence_at, without_lost
from .range_reader import read_range
from .ranges import SequenceRange, split
from .shared import jetstream_of, open_connection
from .stream_view import StreamView, created_of

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """A range of sequences of the stream that was created at the time `created`."""

    def __init__(self, start: int, end: int, created: str) -> None:
        super().__init__(None)
        self.start = start
        self.end = end
        self.created = created


def partitions_of(options: ReadOptions, wanted: SequenceRange, created: str) -> list[RangePartition]:
    ranges = split(
        wanted.start,
        wanted.end,
        min_partitions=options.min_partitions,
        max_per_partition=options.max_messages_per_partition,
    )
    return [RangePartition(each.start, each.end, created) for each in ranges]


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
    for chunk in read_range(options, wanted, partition.created):
        yield record_batch(chunk, options.stream, schema)


class JetStreamReader(DataSourceReader):
    """Reads the messages of a stream between two offsets, once."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Plan the read: ask the server where the stream begins and ends. Runs once, before the job."""
        options = self._options
        with open_connection(options, f"spark plan {options.stream}") as nc:
            view = StreamView(jetstream_of(nc, options), options)
            info = view.info()
            start = sequence_at(view, info, options.starting_offsets or EARLIEST)
            end = min(sequence_at(view, info, options.ending_offsets or LATEST), info.state.last_seq + 1)
            wanted = without_lost(options, info, SequenceRange(start, end))
        # For an empty list Spark would create a partition of another class: return an empty RangePartition
        # instead.
        created = created_of(info)
        return list(partitions_of(options, wanted, created)) or [RangePartition(end, end, created)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_partition(self._options, self._columns, partition)
