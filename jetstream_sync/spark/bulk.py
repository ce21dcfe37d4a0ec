"""Pipelined publishing of very many messages with message ids, without a future for each.

A task only needs to know that every message is stored, so an ack only removes its message from the pending ones.
Messages that are not acknowledged are sent again, after a reconnect and when no stream responded; the message ids
make that safe.

  caller    sends frames in runs, waits while the window is full, handles replies that are not plain acks, sends
  again reader    removes acknowledged messages from `_pending`; puts other replies into `_unusual` and wakes the
  caller

Both threads change `_pending` and `_unusual` by single operations in C, which are atomic. Only the caller uses the
runs.
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
from ..net.link import Link
from ..net.receiver import Receiver
from ..protocol.parser import RawMessage

# Frames are sent in runs of this many bytes: one send instead of hundreds.
RUN_BYTES = 128 * 1024
# The window is also limited in bytes, for large messages.
WINDOW_BYTES = 32 * 1024 * 1024
# The wait before messages that no stream acknowledged are sent again, and between two looks at the clock.
PAUSE = 0.25


@dataclass
class Frames:
    """The frames of consecutive messages in one buffer. The messages are numbered, beginning with `first`.

    The reply subject of a message is the publisher's `reply_prefix` followed by the number.
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
        """Parts of at most `messages` messages and `size` bytes, in order; each has at least one message."""
        start = 0
        while start < len(self):
            end = bisect_right(self.offsets, self.offsets[start] + size, start + 1) - 1
            end = max(start + 1, min(end, start + messages))
            yield Frames(self.first + start, self.data, self.offsets[start : end + 1])
            start = end


class BulkPublisher(Receiver):
    """Publishes for one thread. close() leaves the connection open."""

    def __init__(self, link: Link, timeout: float, window: int) -> None:
        """`window` limits the unacknowledged messages; `timeout` is the longest wait for the next ack."""
        self._link = link
        self._timeout = timeout
        self._window = window
        self._pending: set[bytes] = set()
        self._unusual: deque[RawMessage] = deque()
        self._runs: deque[Frames] = deque()  # with messages that are not acknowledged; the caller's
        self._runs_bytes = 0
        self._awaited = 0  # the caller sleeps until at most so many messages are pending
        self.duplicates = 0
        self.stream = ""  # the stream that stores the messages, as soon as an ack has named it
        self._progress = time.monotonic()
        self._again_at: float | None = None
        self._refused: NatsError | None = None
        self._failed: NatsError | None = None
        self._woken = Event()
        inbox = link.new_inbox()
        self.reply_prefix = f"{inbox}.".encode()
        self.wire_subject = f"{inbox}.*".encode()
        link.open(self)

    # --- caller -------------------------------------------------------------------------------------

    def publish(self, frames: Frames) -> None:
        """Send messages, each with a message id in its headers. Blocks while the window is full.

        Raises TimeoutError when no ack comes for `timeout` seconds, and the error of a message that cannot be
        stored.
        """
        for run in frames.split(max(1, self._window // 2), RUN_BYTES):
            if len(self._pending) + len(run) > self._window or self._runs_bytes + run.size > WINDOW_BYTES:
                self._wait(self._window // 2, WINDOW_BYTES // 2)
            self._runs.append(run)
            self._runs_bytes += run.size
            self._pending.update(run.tokens)
            self._send(run.whole())

    def finish(self) -> None:
        """Block until every message is acknowledged. Raises as publish() does."""
        self._wait(0, 0)

    def close(self) -> None:
        self._link.close(self)

    def _send(self, frames: bytes | memoryview) -> None:
        try:
            self._link.outbox.publish(bytes(frames), 0, keep=False)
        except OutboundBufferLimitError:
            self._again_at = time.monotonic() + PAUSE  # disconnected for long: everything is sent again later

    def _wait(self, messages: int, size: int) -> None:
        """Wait until at most `messages` messages of at most `size` bytes are unacknowledged."""
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
        # Too many bytes but not too many messages: the messages are large, so any ack may free enough.
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
        """Send all messages again that are not acknowledged."""
        self._again_at = None
        for run in self._runs:
            numbers = [int(token) for token in run.tokens if token in self._pending]
            if numbers:
                self._send(b"".join([run.frame(number) for number in numbers]))

    def _judge_unusual(self) -> None:
        while self._unusual:
            raw = self._unusual.popleft()
            token = raw[0][len(self.reply_prefix) :]
            if token in self._pending:  # otherwise this is the reply to the second copy of a message
                self._judge(raw, token)

    def _judge(self, raw: RawMessage, token: bytes) -> None:
        """Handle the reply to a message: it is stored, or is to be sent again, or can never be stored."""
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
        """Whether all of these are acks, and none is for a duplicate."""
        bodies = b"".join([raw[3] for raw in messages])
        if not self.stream or b'"error"' in bodies or b'"duplicate"' in bodies:
            return False
        return bodies.count(b'"seq"') == len(messages)

    def denied(self, error: PermissionsError) -> None:
        """The inbox was denied: no acknowledgement can reach us."""
        self._fail(error)

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        self._fail(error)

    def reconnected(self) -> None:
        """What was on its way at the disconnect may be lost: the caller sends it again."""
        self._again_at = time.monotonic()
        self._woken.set()

    def closed(self, error: NatsError) -> None:
        self._fail(error)

    def _fail(self, error: NatsError) -> None:
        self._failed = error
        self._woken.set()
