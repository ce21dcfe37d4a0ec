"""Reads a range of sequences completely, in spite of lagging replicas, lost connections and restarted servers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..api.info import StreamInfo
from ..errors import (
    NatsError,
    TimeoutError,
)
from ..jetstream import JetStream, client_of
from .chunk import Chunk
from .discovered import Discovered
from .fetchers import Fetcher, fetcher_for
from .options import ReadOptions
from .ranges import SequenceRange, first_hole
from .shared import jetstream_of, open_patiently
from .stream_view import (
    LAG_SECONDS,
    NO_PROGRESS_SECONDS,
    PASSING,
    PAUSES,
    StreamView,
    created_of,
    first_sequence,
    report_loss,
)


class _CreatedAnewError(Exception):
    """The stream is another one by now: nothing more of the range can be read."""


def read_range(
    options: ReadOptions, stream: str, wanted: SequenceRange, created: str, discovered: Discovered
) -> Iterator[Chunk]:
    """Every message of `wanted` in `stream`, once and in order. Opens a connection, and closes it at the end.

    Raises DataLossError for lost data (failOnDataLoss), and any error that lasts for a minute.
    """
    nc = open_patiently(options, f"spark read {stream} {wanted}", discovered=discovered)
    try:
        reader = RangeReader(jetstream_of(nc, options), options, stream, wanted, created)
        try:
            yield from reader.chunks()
        finally:
            reader.close()
    finally:
        nc.close()


class RangeReader:
    """Reads one range. For one thread."""

    def __init__(
        self, js: JetStream, options: ReadOptions, stream: str, wanted: SequenceRange, created: str
    ) -> None:
        self._js = js
        self._log = client_of(js).link.logs.spark
        self._options = options
        self._stream = stream
        self._view = StreamView(js, stream)
        self._end = wanted.end
        self._position = wanted.start
        self._created = created
        self._fetcher: Fetcher | None = None
        self._is_same = True  # False after an error: by then another stream may have the name
        # With a filter, most gaps in the sequences are messages that do not match. Counting tells if one was lost.
        self._expected: int | None = None  # messages that matched when reading began
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
            except _CreatedAnewError:
                return

    def _pass(self) -> Iterator[Chunk]:
        """Read what is available, then ask the leader whether there is more."""
        fetcher = self._ready_fetcher()
        before = self._position
        for chunk in fetcher.fetch(before, self._end - before):
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
        following = self._following() if self._position < self._end else self._end
        if following >= self._end:
            self._finish()
        elif self._position == before:
            fetcher.reset()
            self._pause(f"sequence {following} of stream {self._stream!r} is not delivered")

    def _ready_fetcher(self) -> Fetcher:
        if self._fetcher is None:
            info = self._check_loss(self._position, self._end)
            self._fetcher = fetcher_for(self._js, info, self._options.subjects)
        elif not self._is_same:
            self._same_stream(self._position, self._end)
        self._is_same = True
        if self._expected is None:
            filtered = self._options.subjects
            self._expected = self._fetcher.stored_between(self._position, self._end) if filtered else 0
        return self._fetcher

    def _following(self) -> int:
        """The first sequence from the position on that the leader has; the end of the range if that comes first.

        A leader that was just elected may lag, too. That it has nothing counts when it has all up to the end.
        """
        following = self._view.next_stored(self._position, self._options.subjects)
        if following is None:
            self._wait_for_end()
            following = self._view.next_stored(self._position, self._options.subjects)
        return self._end if following is None else min(following, self._end)

    def _wait_for_end(self) -> None:
        """Wait until the leader has the last sequence of the range, stored before that was planned."""
        gives_up = time.monotonic() + LAG_SECONDS
        while (last := self._same_stream(self._position, self._end).state.last_seq) + 1 < self._end:
            if time.monotonic() >= gives_up:
                gone = SequenceRange(max(self._position, last + 1), self._end)
                report_loss(self._options, self._stream, f"it ends at sequence {last}, sequences {gone} are gone")
                return
            time.sleep(PAUSES[-1])

    def _finish(self) -> None:
        if self._position < self._end:
            self._check_hole(self._position, self._end)
        self._position = self._end
        missing = (self._expected or 0) - self._read
        if self._doubtful is not None and missing > 0:
            lost = f"{missing} messages of sequences {self._doubtful}"
            report_loss(self._options, self._stream, f"{lost} were removed before they were read")

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
            report_loss(self._options, self._stream, f"sequences {lost} were removed before they were read")
        return info

    def _same_stream(self, hole: int, end: int) -> StreamInfo:
        info = self._view.info()
        if self._created != created_of(info):
            report_loss(
                self._options, self._stream, f"it was created anew, sequences {SequenceRange(hole, end)} are gone"
            )
            raise _CreatedAnewError
        return info

    # --- errors and waits ---------------------------------------------------------------------------

    def _progress(self) -> None:
        self._failures = 0
        self._gives_up = time.monotonic() + NO_PROGRESS_SECONDS

    def _recover(self, error: NatsError) -> None:
        if time.monotonic() >= self._gives_up:
            raise error
        self._log.info("reading stream %r: %s; trying again", self._stream, error)
        self._is_same = False
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
