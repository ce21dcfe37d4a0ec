"""Reads a range of sequences completely, in spite of lagging replicas, lost connections and restarted servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from ..api.info import StreamInfo
from ..errors import (
    NatsError,
    TimeoutError,
)
from ..jetstream import JetStream
from .chunk import Chunk
from .fetchers import Fetcher, fetcher_for
from .options import ReadOptions
from .ranges import SequenceRange, first_hole
from .shared import jetstream_of, open_patiently
from .stream_view import NO_PROGRESS_SECONDS, PASSING, PAUSES, StreamView, created_of, first_sequence, report_loss

log = logging.getLogger("jetstream_sync.spark")


def read_range(options: ReadOptions, wanted: SequenceRange, created: str) -> Iterator[Chunk]:
    """Every message of `wanted` in the stream, once and in order. Opens a connection, and closes it at the end.

    Raises DataLossError for lost data (failOnDataLoss), and any error that lasts for a minute.
    """
    nc = open_patiently(options, f"spark read {options.stream} {wanted}")
    try:
        reader = RangeReader(jetstream_of(nc, options), options, wanted, created)
        try:
            yield from reader.chunks()
        finally:
            reader.close()
    finally:
        nc.close()


class RangeReader:
    """Reads one range. For one thread."""

    def __init__(self, js: JetStream, options: ReadOptions, wanted: SequenceRange, created: str) -> None:
        self._js = js
        self._options = options
        self._view = StreamView(js, options)
        self._end = wanted.end
        self._position = wanted.start
        self._created = created
        self._fetcher: Fetcher | None = None
        # With a filter, most gaps in the sequences are messages that do not match. Counting tells if one was lost.
        self._expected = 0  # messages that matched when reading began
        self._read = 0
        self._doubtful: SequenceRange | None = None  # has gaps in a part that was since removed from the stream
        self._failures = 0
        self._gives_up = time.monotonic() + NO_PROGRESS_SECONDS

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()

    def chunks(self) -> Iterator[Chunk]:
        while self._position < self._end:
            try:
                yield from self._pass()
            except PASSING as error:
                self._recover(error)

    def _pass(self) -> Iterator[Chunk]:
        """Read what is available, then ask the leader whether there is more."""
        if self._fetcher is None:
            info = self._check_loss(self._position, self._end)
            fetcher = fetcher_for(self._js, info, self._options.subjects)
            if self._options.subjects:
                self._expected = fetcher.stored_between(self._position, self._end)
            self._fetcher = fetcher
        before = self._position
        for chunk in self._fetcher.fetch(before, self._end - before):
            complete = chunk.cut(self._end)
            if len(chunk):
                hole = first_hole(self._position, chunk.sequences)
                if hole is not None:
                    self._check_hole(hole, chunk.sequences[-1])
                self._position = chunk.sequences[-1] + 1
                self._read += len(chunk)
                yield chunk
            if complete:
                self._finish()
                return
            self._progress()
        # A replica that lags may also report that nothing is pending. Only the leader knows.
        following = None
        if self._position < self._end:
            following = self._view.next_stored(self._position, self._options.subjects)
        if following is None or following >= self._end:
            self._finish()
        elif self._position == before:
            self._fetcher.widen()
            self._pause(f"sequence {following} of stream {self._options.stream!r} is not delivered")

    def _finish(self) -> None:
        if self._position < self._end:
            self._check_hole(self._position, self._end)
        self._position = self._end
        if self._doubtful is not None and self._read < self._expected:
            missing = f"{self._expected - self._read} messages of sequences {self._doubtful}"
            report_loss(self._options, f"{missing} were removed before they were read")

    def _check_hole(self, hole: int, end: int) -> None:
        if not self._options.subjects:
            self._check_loss(hole, end)
            return
        first = first_sequence(self._same_stream(hole, end))
        if first > hole:
            start = hole if self._doubtful is None else self._doubtful.start
            self._doubtful = SequenceRange(start, min(first, end))

    def _check_loss(self, hole: int, end: int) -> StreamInfo:
        """Report a loss if the gap is before the stream's first sequence: retention or a purge removed it."""
        info = self._same_stream(hole, end)
        first = first_sequence(info)
        if first > hole:
            lost = SequenceRange(hole, min(first, end))
            report_loss(self._options, f"sequences {lost} were removed before they were read")
        return info

    def _same_stream(self, hole: int, end: int) -> StreamInfo:
        info = self._view.info()
        if self._created != created_of(info):
            report_loss(self._options, f"it was created anew, sequences {SequenceRange(hole, end)} are gone")
            self._created = created_of(info)
        return info

    # --- errors and waits ---------------------------------------------------------------------------

    def _progress(self) -> None:
        self._failures = 0
        self._gives_up = time.monotonic() + NO_PROGRESS_SECONDS

    def _recover(self, error: NatsError) -> None:
        if time.monotonic() >= self._gives_up:
            raise error
        log.info("reading stream %r: %s; trying again", self._options.stream, error)
        if self._fetcher is not None:
            self._fetcher.reset()
        self._wait()

    def _pause(self, why: str) -> None:
        if time.monotonic() >= self._gives_up:
            raise TimeoutError(f"{why} for {NO_PROGRESS_SECONDS:.0f} s")
        self._wait()

    def _wait(self) -> None:
        time.sleep(PAUSES[min(self._failures, len(PAUSES) - 1)])
        self._failures += 1
