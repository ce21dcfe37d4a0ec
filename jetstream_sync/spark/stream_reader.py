"""The stream reader: offsets for Structured Streaming. One class for pyspark 4.0 to 4.3.

Spark runs the driver's part in a separate process for the whole query, with one connection. `read` runs in tasks,
on a copy that Spark makes before a connection is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..api.info import StreamInfo
from ..api.stream_api import StreamApi
from ..jetstream import client_of
from ..net.connection import Connection
from .offsets import LATEST, Offset, capped, first_to_read
from .options import ReadOptions
from .planning import patiently, sequence_at, without_lost
from .ranges import SequenceRange
from .reader import RangePartition, partitions_of, read_partition
from .shared import jetstream_of, open_connection
from .stream_view import StreamView, created_of, first_sequence, report_loss

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # pyspark 4.0 and 4.1: Spark passes neither start nor limit
    ReadAllAvailable = ReadMaxRows = None

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces the mixin."""


# Spark asks for the latest offset about every 11 ms while a query is idle; the server is asked less often.
SECONDS_BETWEEN_INFOS = 0.1


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches from stream sequences."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._nc: Connection | None = None
        self._last_info: StreamInfo | None = None
        self._asked_at = 0.0
        self._first_start: Offset | None = None  # where this query starts without a checkpoint
        self._initial: Offset | None = None  # the same, once Spark has asked for it: then there is no checkpoint
        self._reached: Offset | None = None  # the end of the last planned batch
        self._target: int | None = None  # with availableNow: where the query ends

    # --- driver ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Spark asks again after a crash in batch 0."""
        self._initial = self._start()
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch. pyspark 4.0 and 4.1 pass neither `start` nor `limit`."""
        info = self._info()
        created = created_of(info)
        available = info.state.last_seq + 1
        if self._target is not None:
            available = min(available, self._target)
        begin = self._stands_at() if start is None else Offset.from_json(start)
        position, base = begin.next, begin.base
        if begin.created != created:
            report_loss(self._options, f"it was created anew, what followed sequence {begin.next - 1} is gone")
            position, base = first_sequence(info), None
        return Offset(capped(position, available, self._limit(limit)), created, base).to_json()

    def getDefaultReadLimit(self) -> Any:
        limit = self._options.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._info(fresh=True).state.last_seq + 1

    def reportLatestOffset(self) -> dict[str, Any]:
        info = self._info()
        return Offset(info.state.last_seq + 1, created_of(info)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = Offset.from_json(start), Offset.from_json(end)
        self._reached = finish
        wanted = SequenceRange(self._first_to_read(begin, finish), finish.next)
        if begin.created == finish.created and not len(wanted):
            return []
        info = self._info(fresh=True)
        if finish.created != created_of(info):
            report_loss(self._options, f"it was created anew, sequences {wanted} are gone")
            return []
        if begin.created != finish.created:
            report_loss(self._options, f"it was created anew, what followed sequence {begin.next - 1} is gone")
            wanted = SequenceRange(first_sequence(info), finish.next)
        wanted = without_lost(self._options, info, wanted)
        return partitions_of(self._options, wanted, finish.created)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not read anything before `end` again: with deleteOnCommit, delete it."""
        if self._options.delete_on_commit:
            finish = Offset.from_json(end)
            if finish.created == created_of(self._info()) and finish.next > 1:
                patiently(lambda: self._purge(finish.next))

    def stop(self) -> None:
        if self._nc is not None:
            self._nc.close()
            self._nc = None

    # --- tasks ----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_partition(self._options, self._columns, partition)

    # --- inside ---------------------------------------------------------------------------------------

    def _start(self) -> Offset:
        if self._first_start is None:
            view = self._view()
            info = self._info(fresh=True)
            start = patiently(lambda: sequence_at(view, info, self._options.starting_offsets or LATEST))
            self._first_start = Offset(start, created_of(info), base=start)
        return self._first_start

    def _stands_at(self) -> Offset:
        """The present offset of the query, for pyspark 4.0 and 4.1, which do not pass it.

        A query with a checkpoint first plans the partitions of an empty range at its offset.
        """
        return self._start() if self._reached is None else self._reached

    def _first_to_read(self, begin: Offset, finish: Offset) -> int:
        """The first sequence of a batch. Only the initial offset, the start of batch 0, may have moved."""
        return first_to_read(begin, finish) if begin == self._initial else begin.next

    def _limit(self, limit: Any) -> int | None:
        if limit is None:
            return self._options.max_messages_per_trigger
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None

    def _view(self) -> StreamView:
        if self._nc is None:
            self._nc = open_connection(self._options, f"spark plan {self._options.stream}")
        return StreamView(jetstream_of(self._nc, self._options), self._options)

    def _info(self, *, fresh: bool = False) -> StreamInfo:
        now = time.monotonic()
        if fresh or self._last_info is None or now - self._asked_at >= SECONDS_BETWEEN_INFOS:
            self._last_info = patiently(self._view().info)
            self._asked_at = time.monotonic()
        return self._last_info

    def _purge(self, before: int) -> None:
        assert self._nc is not None
        streams = StreamApi(client_of(jetstream_of(self._nc, self._options)))
        for subject in self._options.subjects or (None,):
            streams.purge(self._options.stream, subject=subject, sequence=before, keep=None)
