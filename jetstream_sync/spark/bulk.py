"""Pipelined publishing of very many messages with ids, without a future for each.

All that a task needs to know is that every message is stored, so acknowledgements are only struck off. What is not
acknowledged is sent again, after a reconnect and whenever the stream was away: the ids make that safe.

  caller    sends frames in runs, waits while the window is full, looks at answers that are no plain
            acknowledgements, sends again
  reader    strikes acknowledged messages off `_pending`; puts other answers into `_unusual` and wakes the caller

`_pending` and `_unusual` are changed by single operations in C, which are atomic. The runs are the caller's alone.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event

from ..api.publish import parse_pub_ack
from ..errors import (
    JetStreamUnavailableError,
    NatsError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
)
from ..net.connection import Connection
from ..net.outbox import Ephemeral
from ..protocol.parser import RawMessage

# Frames are handed over in runs of this many bytes: one send instead of hundreds.
RUN_BYTES = 128 * 1024
# The window is also bounded in bytes, for large messages.
WINDOW_BYTES = 32 * 1024 * 1024
# How long to wait before sending again what no stream took, and between looks at the clock.
PAUSE = 0.25


@dataclass
class Frames:
    """Frames of messages that are numbered through from `first` on, one behind the other.

    A message's reply subject is the publisher's `reply_prefix` and the number.
    """

    first: int
    data: memoryview
    offsets: Sequence[int]
    """Where each frame begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        return self.offsets[-1] - self.offsets[0]

    @property
    def tokens(self) -> list[bytes]:
        return [b"%d" % number for number in range(self.first, self.first + len(self))]

    def frame(self, number: int) -> memoryview:
        start, end = self.offsets[number - self.first : number - self.first + 2]
        return self.data[start:end]

    def whole(self) -> memoryview:
        return self.data[self.offsets[0] : self.offsets[-1]]

    def split(self, messages: int, size: int) -> Iterator[Frames]:
        """In order, at most that much in each, but one message at least."""
        start = 0
        while start < len(self):
            end = bisect_right(self.offsets, self.offsets[start] + size, start + 1) - 1
            end = max(start + 1, min(end, start + messages))
            yield Frames(self.first + start, self.data, self.offsets[start : end + 1])
            start = end


class BulkPublisher:
    """Publishes for one caller. Closed by its owner; the connection is not."""

    queue: str | None = None

    def __init__(self, nc: Connection, timeout: float, window: int) -> None:
        """`timeout` is how long nothing may be acknowledged before it gives up."""
        self._nc = nc
        self._timeout = timeout
        self._window = window
        self._pending: set[bytes] = set()
        self._unusual: deque[RawMessage] = deque()
        self._runs: deque[Frames] = deque()  # with messages that are not acknowledged; caller
        self._runs_bytes = 0
        self._awaited = 0  # the caller sleeps until no more are pending
        self.duplicates = 0
        self.stream = ""  # which stores the messages, once that is known
        self._progress = time.monotonic()
        self._again_at: float | None = None
        self._refused: NatsError | None = None
        self._failed: NatsError | None = None
        self._woken = Event()
        inbox = nc.new_inbox()
        self.reply_prefix = f"{inbox}.".encode()
        self.sid = b""
        self.subject = f"{inbox}.*"
        self.wire_subject = self.subject.encode()
        nc._add_listener(self)
        nc._open_inlet(self._with_sid)

    # --- caller -------------------------------------------------------------------------------------

    def publish(self, frames: Frames) -> None:
        """Send messages whose headers hold an id each. Blocks while the window is full."""
        for run in frames.split(max(1, self._window // 2), RUN_BYTES):
            if len(self._pending) + len(run) > self._window or self._runs_bytes + run.size > WINDOW_BYTES:
                self._wait(self._window // 2, WINDOW_BYTES // 2)
            self._runs.append(run)
            self._runs_bytes += run.size
            self._pending.update(run.tokens)
            self._send(run.whole())

    def finish(self) -> None:
        """Block until every message is acknowledged. Raises what keeps one from being stored."""
        self._wait(0, 0)

    def close(self) -> None:
        self._nc._remove_listener(self)
        self._nc._close_inlet(self)

    def _send(self, frames: bytes | memoryview) -> None:
        try:
            self._nc._outbox.publish(Ephemeral(frames), 0)
        except OutboundBufferLimitError:
            self._again_at = time.monotonic() + PAUSE  # disconnected for long: all is sent again later

    def _wait(self, messages: int, size: int) -> None:
        """Until no more than that is unacknowledged."""
        began = time.monotonic()
        while True:
            self._judge_unusual()
            self._forget_finished_runs()
            if not self._pending:
                return
            if self._failed is not None:
                raise self._failed.with_traceback(None)
            if len(self._pending) <= messages and self._runs_bytes <= size:
                return
            now = time.monotonic()
            if now - max(began, self._progress) >= self._timeout:
                raise self._refused or TimeoutError(f"{len(self._pending)} messages were not acknowledged in time")
            if self._again_at is not None and now >= self._again_at:
                self._send_again()
            self._sleep(messages)

    def _sleep(self, messages: int) -> None:
        # Too many bytes, but not too many messages: these are large, so that every answer may be the one.
        self._awaited = messages if len(self._pending) > messages else self._window
        self._woken.clear()
        over = len(self._pending) > self._awaited or self._awaited == self._window
        if over and not self._unusual and self._failed is None:
            self._woken.wait(PAUSE)

    def _forget_finished_runs(self) -> None:
        runs, pending = self._runs, self._pending
        while runs and pending.isdisjoint(runs[0].tokens):
            self._runs_bytes -= runs.popleft().size

    def _send_again(self) -> None:
        """All that is not acknowledged."""
        self._again_at = None
        for run in self._runs:
            numbers = [int(token) for token in run.tokens if token in self._pending]
            if numbers:
                self._send(b"".join([run.frame(number) for number in numbers]))

    def _judge_unusual(self) -> None:
        while self._unusual:
            raw = self._unusual.popleft()
            token = raw[0][len(self.reply_prefix) :]
            if token in self._pending:  # else answered before: this is the answer to its second copy
                self._judge(raw, token)

    def _judge(self, raw: RawMessage, token: bytes) -> None:
        """An answer to a message: it is stored, or that passes, or it is the end."""
        try:
            ack = parse_pub_ack(raw[3], raw[2], self._subject_of(int(token)))
        except (NoStreamResponseError, JetStreamUnavailableError) as error:
            self._refused = error
            if self._again_at is None:
                self._again_at = time.monotonic() + PAUSE
        except NatsError as error:
            self._failed = self._failed or error
        else:
            self._pending.discard(token)
            self.duplicates += bool(ack.duplicate)
            self.stream = ack.stream
            self._progress = time.monotonic()

    def _subject_of(self, number: int) -> bytes:
        run = next(run for run in self._runs if run.first <= number < run.first + len(run))
        return bytes(run.frame(number)).split(b" ", 2)[1]

    # --- reader thread ------------------------------------------------------------------------------

    def _with_sid(self, sid: bytes) -> BulkPublisher:
        self.sid = sid
        return self

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        if self._are_plain(messages):
            start = len(self.reply_prefix)
            self._pending.difference_update([raw[0][start:] for raw in messages])
            self._progress = time.monotonic()
        else:
            self._unusual.extend(messages)
        if len(self._pending) <= self._awaited or self._unusual:
            self._woken.set()

    def _are_plain(self, messages: list[RawMessage]) -> bool:
        """Whether these are acknowledgements of messages that were stored just now, and nothing else."""
        bodies = b"".join([raw[3] for raw in messages])
        if not self.stream or b'"error"' in bodies or b'"duplicate"' in bodies:
            return False
        return bodies.count(b'"seq"') == len(messages)

    def remaining(self) -> int:
        """Resubscribed without a limit."""
        return 0

    def fail(self, error: NatsError) -> None:
        """The inbox was denied: no acknowledgement can reach us."""
        self._failed = error
        self._woken.set()

    def on_disconnect(self) -> None:
        """What was on its way may be lost; on_reconnect sees to it."""

    def on_reconnect(self) -> None:
        self._again_at = time.monotonic()
        self._woken.set()

    def on_closed(self, error: NatsError) -> None:
        self.fail(error)

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        self.fail(error)
