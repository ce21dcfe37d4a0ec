"""The stream reader: offsets for Structured Streaming. One class for pyspark 4.0 to 4.3.

Spark runs the driver's part in a separate process for the whole query, with one connection. `read` runs in tasks,
on a copy that Spark makes before a connection is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..api.info import StreamInfo
from ..api.stream_api import StreamApi
from ..errors import StreamNotFoundError
from ..jetstream import JetStream, client_of
from ..net.connection import Connection
from .discovered import discovered_by
from .offsets import UNNAMED, Offset, Offsets, batch_end, first_to_read, owner_of, sizes_of
from .options import ReadOptions
from .patience import PAUSE
from .planning import check_start, patiently, sequence_at, without_lost
from .position_consumer import PositionKeeper
from .positions import LATEST
from .ranges import SequenceRange
from .reader import RangePartition, Wanted, partitions_of, read_partition
from .shared import jetstream_of, open_connection
from .stream_view import LAG_SECONDS, StreamView, created_of, first_sequence, report_loss
from .triggers import DEFAULT_DELAY, TriggerDelay

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pyspark 4.0 and 4.1: Spark passes neither start nor limit
    ReadAllAvailable = ReadMaxRows = ReadMinRows = None

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces the mixin."""


# Spark asks for the latest offset about every 11 ms while a query is idle; the server is asked less often.
SECONDS_BETWEEN_INFOS = 0.1


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches from the sequences of one or several streams."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._nc: Connection | None = None
        self._last_infos: dict[str, StreamInfo] = {}
        self._asked_at = 0.0
        self._first_starts: dict[str, Offset] = {}  # where this query starts in a stream without a checkpoint
        self._reached: Offsets | None = None  # the end of the last planned batch
        self._targets: dict[str, int] | None = None  # with availableNow: where the query ends
        self._delay = None  # minMessagesPerTrigger
        if options.min_messages_per_trigger is not None:
            seconds = DEFAULT_DELAY if options.max_trigger_delay is None else options.max_trigger_delay
            self._delay = TriggerDelay(options.min_messages_per_trigger, seconds)
        self._position = None  # positionConsumer
        if options.position_consumer is not None:
            self._position = PositionKeeper(options.position_consumer, options.subjects)

    # --- driver ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Spark asks again after a crash in batch 0."""
        return self._start().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch. pyspark 4.0 and 4.1 pass neither `start` nor `limit`."""
        stands_at = self._stands_at() if start is None else self._offsets(start)
        infos = self._caught_up(stands_at)
        begin = self._begin(stands_at, infos)
        available = {stream: info.state.last_seq + 1 for stream, info in infos.items()}
        if self._targets is not None:
            available = {stream: min(end, self._targets[stream]) for stream, end in available.items()}
        held_back = self._targets is None and self._holds_back(sum(sizes_of(begin, available)), limit)
        end = begin if held_back else batch_end(begin, available, self._limit(limit))
        # Spark asks for the next batch when the one before is done. With availableNow it asks a last time.
        self._keep(begin, infos, last_chance=self._targets is not None and end == begin)
        return end.to_json()

    def getDefaultReadLimit(self) -> Any:
        most, least = self._options.max_messages_per_trigger, self._options.min_messages_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = {stream: info.state.last_seq + 1 for stream, info in self._infos(fresh=True).items()}

    def reportLatestOffset(self) -> dict[str, Any]:
        """For progress reports only."""
        latest = {
            stream: Offset(info.state.last_seq + 1, created_of(info)) for stream, info in self._infos().items()
        }
        return Offsets(latest).to_named_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of a batch, also of a stream that was removed from the query since it was planned."""
        begin, finish = self._offsets(start), self._offsets(end)
        self._reached = finish
        found = {stream: self._wanted(stream, begin.get(stream), offset) for stream, offset in finish.items()}
        wanted = [(stream, each) for stream, each in found.items() if each]
        return partitions_of(self._options, wanted, discovered_by(self._connection())) if wanted else []

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not read anything before `end` again: with deleteOnCommit, delete it."""
        if self._position is None and not self._options.delete_on_commit:
            return
        infos, offsets = self._infos(), self._offsets(end)
        self._keep(offsets, infos)
        if self._options.delete_on_commit:
            for stream, offset in offsets.items():
                if stream in infos and offset.created == created_of(infos[stream]) and offset.next > 1:
                    self._purge(stream, offset.next)

    def stop(self) -> None:
        if self._nc is not None:
            self._nc.close()
            self._nc = None

    # --- tasks ----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_partition(self._options, self._columns, partition)

    # --- inside ---------------------------------------------------------------------------------------

    def _offsets(self, wire: Mapping[str, Any]) -> Offsets:
        """Offsets of the checkpoint, all with the names of their streams."""
        offsets = Offsets.from_json(wire)
        if UNNAMED not in offsets:
            return offsets
        if len(self._options.streams) == 1:
            return offsets.named(self._options.streams[0])
        created = {stream: created_of(info) for stream, info in self._infos().items()}
        return offsets.named(owner_of(offsets[UNNAMED], created))

    def _start(self) -> Offsets:
        infos = self._infos(fresh=True)
        return Offsets({stream: self._first_start(stream, info) for stream, info in infos.items()})

    def _first_start(self, stream: str, info: StreamInfo) -> Offset:
        if stream not in self._first_starts:
            view = self._view(stream)
            position = self._options.start_in(stream, LATEST)
            check_start(self._options, position)
            start = patiently(lambda: sequence_at(view, info, position))
            self._first_starts[stream] = Offset(start, created_of(info), base=start)
        return self._first_starts[stream]

    def _stands_at(self) -> Offsets:
        """The present offset of the query, for pyspark 4.0 and 4.1, which do not pass it.

        A query with a checkpoint first plans the partitions of an empty range at its offset.
        """
        return self._start() if self._reached is None else self._reached

    def _begin(self, stands_at: Offsets, infos: Mapping[str, StreamInfo]) -> Offsets:
        """Where the next batch begins in each stream of the query: in those that were added, too."""
        for stream, offset in stands_at.items():
            if stream not in infos:
                # Reported here, and not with the partitions: the end of a batch that fails stays in the
                # checkpoint, and naming the stream again would help no more.
                gone = f"option 'stream' does not name it any more; what follows sequence {offset.next - 1}"
                report_loss(self._options, stream, f"{gone} is not read")
        return Offsets(
            {stream: self._begin_in(stream, stands_at.get(stream), info) for stream, info in infos.items()}
        )

    def _begin_in(self, stream: str, stands_at: Offset | None, info: StreamInfo) -> Offset:
        offset = self._first_start(stream, info) if stands_at is None else stands_at
        if offset.created == created_of(info):
            return self._with_end_in(stream, offset, info)
        self._report_created_anew(stream, offset)
        first = first_sequence(info)
        return Offset(first, created_of(info), base=first)

    def _with_end_in(self, stream: str, offset: Offset, info: StreamInfo) -> Offset:
        """`offset`, or the end of a stream that has lost its own: new messages get sequences a second time."""
        if not self._is_beyond(stream, offset, info):
            return offset
        last = info.state.last_seq
        what = f"it ends at sequence {last}, but was read up to {offset.next - 1}: it has lost its end"
        report_loss(self._options, stream, f"{what}, and what it has stored since is not read")
        return Offset(last + 1, offset.created, base=last + 1)

    def _is_beyond(self, stream: str, offset: Offset, info: StreamInfo) -> bool:
        """Whether the query stands behind the end of a stream, unless it was told to start there."""
        if offset.created != created_of(info) or offset.next <= info.state.last_seq + 1:
            return False
        return offset.next != self._options.start_in(stream, LATEST).seq

    def _caught_up(self, stands_at: Offsets) -> dict[str, StreamInfo]:
        """Each stream of the query, once it has what was read of it, or has lost that."""
        gives_up = time.monotonic() + LAG_SECONDS
        infos = self._infos()
        while time.monotonic() < gives_up and any(
            self._is_beyond(stream, stands_at[stream], infos[stream]) for stream in infos if stream in stands_at
        ):
            time.sleep(PAUSE)
            infos = self._infos(fresh=True)
        return infos

    def _wanted(self, stream: str, begin: Offset | None, finish: Offset) -> Wanted | None:
        """What a batch reads of `stream`; None if nothing."""
        first = first_to_read(begin, finish)
        created_anew = begin is not None and begin.created != finish.created
        if not created_anew and first is not None and first >= finish.next:
            return None
        try:
            info = self._info(stream)
        except StreamNotFoundError:
            if stream in self._options.streams:
                raise
            report_loss(self._options, stream, f"it is gone, with what precedes sequence {finish.next}")
            return (
                None if first is None else Wanted(SequenceRange(first, finish.next), finish.created, finish.next)
            )
        wanted = SequenceRange(first_sequence(info) if first is None else first, finish.next)
        if finish.created != created_of(info):
            report_loss(self._options, stream, f"it was created anew, sequences {wanted} are gone")
            return Wanted(wanted, finish.created, left_from=finish.next)
        if begin is not None and created_anew:
            self._report_created_anew(stream, begin)
        left = without_lost(self._options, stream, info, wanted)
        return Wanted(wanted, finish.created, left_from=left.start)

    def _report_created_anew(self, stream: str, offset: Offset) -> None:
        what = f"it was created anew, what followed sequence {offset.next - 1} is gone"
        report_loss(self._options, stream, what)

    def _holds_back(self, count: int, limit: Any) -> bool:
        if self._delay is None or (limit is not None and isinstance(limit, ReadAllAvailable)):
            return False
        return self._delay.holds_back(count, time.monotonic())

    def _keep(self, offsets: Offsets, infos: Mapping[str, StreamInfo], *, last_chance: bool = False) -> None:
        if self._position is not None:
            self._position.keep(self._jetstream(), offsets, infos, last_chance=last_chance)

    def _limit(self, limit: Any) -> int | None:
        if limit is None:
            return self._options.max_messages_per_trigger
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None

    # --- the server -----------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        if self._nc is None:
            self._nc = open_connection(self._options, f"spark plan {','.join(self._options.streams)}")
        return self._nc

    def _jetstream(self) -> JetStream:
        return jetstream_of(self._connection(), self._options)

    def _view(self, stream: str) -> StreamView:
        return StreamView(self._jetstream(), stream)

    def _info(self, stream: str) -> StreamInfo:
        return patiently(self._view(stream).info)

    def _infos(self, *, fresh: bool = False) -> dict[str, StreamInfo]:
        """Each stream of the query as it was up to SECONDS_BETWEEN_INFOS ago, or now."""
        if fresh or not self._last_infos or time.monotonic() - self._asked_at >= SECONDS_BETWEEN_INFOS:
            self._last_infos = {stream: self._info(stream) for stream in self._options.streams}
            self._asked_at = time.monotonic()
        return self._last_infos

    def _purge(self, stream: str, before: int) -> None:
        streams = StreamApi(client_of(self._jetstream()))
        for subject in self._options.subjects or (None,):
            patiently(lambda: streams.purge(stream, subject=subject, sequence=before, keep=None))  # noqa: B023
