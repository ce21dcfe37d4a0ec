"""How far a streaming query is behind its streams: from its progress report and the server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..api.info import StreamInfo
from ..errors import NatsError
from ..net.connection import Connection
from .offsets import UNNAMED, Offsets
from .options import ReadOptions
from .shared import jetstream_of, open_connection
from .stream_view import StreamView, created_of, log

# How long to wait for a reply of the server.
REQUEST_SECONDS = 2.0
# How often the log may say that the server does not reply.
SECONDS_BETWEEN_WARNINGS = 60.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query is behind a stream, as of the end of a batch."""

    query_id: str
    """The id of the query, which stays the same when it is restarted from its checkpoint."""
    query_name: str | None
    """The name of the query (`queryName`); None if it has none."""
    batch_id: int
    """The batch that has ended."""
    stream: str
    """The stream."""
    next_seq: int
    """The first sequence that the query has not processed."""
    last_seq: int
    """The last sequence of the stream."""
    sequences: int
    """How many sequences the query is behind."""
    seconds: float | None
    """The age of the oldest message that the query has not processed; 0 if there is none, None if not known."""


@dataclass(frozen=True)
class Progress:
    """What a progress report says of one source of ours."""

    query_id: str
    query_name: str | None
    batch_id: int
    end: Offsets
    latest: Offsets | None
    """The ends of the streams. Spark reports them since 4.2."""

    def positions(self, created: Mapping[str, str]) -> dict[str, int]:
        """The next sequence in each of some streams. `created` are the times of their creation.

        An offset without a name is that of the stream which was created at its time. The offset in a stream that
        was created anew since says nothing.
        """
        names = {time: stream for stream, time in created.items()}
        offsets = {name or names.get(offset.created, UNNAMED): offset for name, offset in self.end.items()}
        return {name: offset.next for name, offset in offsets.items() if created.get(name) == offset.created}

    def lag(self, stream: str, next_seq: int, last_seq: int, seconds: float | None) -> Lag:
        behind = max(0, last_seq + 1 - next_seq)
        return Lag(self.query_id, self.query_name, self.batch_id, stream, next_seq, last_seq, behind, seconds)


def progress_of(report: Any) -> Iterator[Progress]:
    """The sources of ours in Spark's report of a batch (a StreamingQueryProgress)."""
    for source in report.sources:
        end, latest = _offsets_of(source.endOffset), _offsets_of(source.latestOffset)
        if end is None:
            continue
        if latest is not None and any(offset.base is not None for offset in latest.values()):
            latest = None  # Spark 4.0 and 4.1 report the end of the batch in its place
        yield Progress(str(report.id), report.name, int(report.batchId), end, latest)


def _offsets_of(text: str | None) -> Offsets | None:
    """The offsets of a progress report; None for those of another source, or none."""
    try:
        wire = json.loads(text or "null")
        return Offsets.from_json(wire) if isinstance(wire, Mapping) else None
    except ValueError:
        return None


class LagMeter:
    """Asks the server how far queries are behind. For one thread; close() closes its connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._nc: Connection | None = None
        self._warned_at: float | None = None

    def close(self) -> None:
        if self._nc is not None:
            self._nc.close()

    def lags(self, progress: Progress) -> list[Lag]:
        """The lag in each stream of the options. Blocks a few seconds at most, and raises nothing.

        If the server does not reply, the report alone tells the sequences, where it does.
        """
        try:
            return self._measured(progress)
        except (NatsError, OSError, ValueError) as error:  # ValueError, OSError: of credentials that are missing
            self._warn(error)
        streams = self._options.streams
        latest = {name: offset for name, offset in (progress.latest or {}).items() if name in streams}
        positions = progress.positions({stream: offset.created for stream, offset in latest.items()})
        return [progress.lag(name, seq, latest[name].next - 1, None) for name, seq in positions.items()]

    def _measured(self, progress: Progress) -> list[Lag]:
        if self._nc is None or self._nc.is_closed:
            self._nc = open_connection(self._options, f"spark lag {','.join(self._options.streams)}")
        js = jetstream_of(self._nc, self._options, timeout=REQUEST_SECONDS)
        views = {stream: StreamView(js, stream) for stream in self._options.streams}
        infos = {stream: view.info() for stream, view in views.items()}
        positions = progress.positions({stream: created_of(info) for stream, info in infos.items()})
        ages = {name: self._age(views[name], infos[name], seq) for name, seq in positions.items()}
        ends = {name: infos[name].state.last_seq for name in positions}
        return [progress.lag(name, seq, ends[name], ages[name]) for name, seq in positions.items()]

    def _age(self, view: StreamView, info: StreamInfo, position: int) -> float:
        """The age of the first message from `position` on, by the server's clock; 0 if there is none."""
        if position > info.state.last_seq:
            return 0.0
        stored = view.stored_at(position, self._options.subjects)
        now = info.ts or datetime.now(timezone.utc)
        return 0.0 if stored is None else max(0.0, now.timestamp() - stored)

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if self._warned_at is None or now - self._warned_at >= SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            log.warning("how far queries are behind is not known: %s", error)
