"""Pipelined publishing of very many messages with message ids, without a future for each.

The caller only needs to know that every message is stored, so an ack only removes its message from the pending
ones. Messages that are not acknowledged are sent again: after a reconnect, when the stream refuses them for now,
when one of the same id is still being stored, and when no ack comes for a third of the timeout. The message ids
make that safe.

  caller    sends frames in runs, waits while the window is full, handles replies that are not plain acks, sends
            again
  reader    removes acknowledged messages from `_pending`; puts other replies into `_unusual`, denials into
            `_denials`, and wakes the caller

Both threads change `_pending`, `_unusual` and `_denials` by single operations in C, which are atomic. Only the
caller uses the runs. There is no lock and no thread: when the caller has closed it, nothing is left.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._threads import Wakeup
from ..errors import (
    ConnectionClosedError,
    JetStreamUnavailableError,
    NatsError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
)
from ..net.link import Link
from ..net.receiver import Receiver
from ..protocol.parser import RawMessage
from .publish import parse_pub_ack
from .publish_retry import DEFAULT_RETRIES, Meaning, meaning_of, try_seconds

# Frames are sent in runs of this many bytes: one send instead of hundreds.
RUN_BYTES = 128 * 1024
# The window is also limited in bytes, for large messages.
WINDOW_BYTES = 32 * 1024 * 1024
# The wait before messages that no stream acknowledged are sent again, and between two looks at the clock.
PAUSE = 0.25
# Acks of so many streams are recognised without reading each.
MAX_STREAMS = 16

# Longer than the first line of any frame that a server takes.
MAX_LINE = 64 * 1024

_SEQ = b'"seq"'
_DUPLICATE = (b'"duplicate":true}', b'"duplicate": true}')


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
    def numbers(self) -> range:
        return range(self.first, self.first + len(self))

    @property
    def tokens(self) -> list[bytes]:
        return [b"%d" % number for number in self.numbers]

    def frame(self, number: int) -> memoryview:
        start, end = self.offsets[number - self.first : number - self.first + 2]
        return self.data[start:end]

    def subject(self, number: int) -> bytes:
        return bytes(self.frame(number)[:MAX_LINE]).split(b" ", 2)[1]

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


class Refusal(NamedTuple):
    """A message that cannot be stored, or was not stored until the timeout, and the reason."""

    number: int
    subject: bytes
    error: NatsError


class BulkPublisher(Receiver):
    """Publishes for one thread. close() leaves the connection open."""

    def __init__(self, link: Link, timeout: float, window: int) -> None:
        """`window` limits the unacknowledged messages; `timeout` is the longest wait for the next ack."""
        self._link = link
        self._timeout = timeout
        self._window = window
        self._pending: set[bytes] = set()
        self._unusual: deque[RawMessage] = deque()
        self._denials: deque[tuple[bytes, PermissionsError]] = deque()
        self._runs: deque[Frames] = deque()  # with messages that are not acknowledged; the caller's
        self._runs_bytes = 0
        self._awaited = 0  # the caller sleeps until at most so many messages are pending
        self._acks: tuple[bytes, ...] = ()  # the beginnings of plain acks, one per stream
        self._progress = time.monotonic()
        self._again_at: float | None = None
        self._not_yet: Refusal | None = None  # the newest message that a stream refused for now
        self._failed: NatsError | None = None  # no ack can come any more
        self._wakeup = Wakeup()
        inbox = link.new_inbox()
        self.reply_prefix: bytes = f"{inbox}.".encode()
        self.wire_subject: bytes = f"{inbox}.*".encode()
        self.sent: int = 0
        """How many messages publish() has been given."""
        self.refused: int = 0
        """How many of them can never be stored."""
        self.refusal: Refusal | None = None
        """The first of those."""
        self._judged_duplicates = 0  # counted by the caller
        self._plain_duplicates = 0  # counted by the reader
        self.streams: dict[str, None] = {}
        """The streams that store the messages, in the order in which acks have named them."""
        self.on_wait: Callable[[], None] | None = None
        """Called by the caller's thread now and then while it waits."""

    def open(self) -> None:
        """Subscribe to the replies. Call it inside the `try` whose handler calls close()."""
        self._link.open(self)

    # --- caller -------------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int:
        """How many messages are stored."""
        return self.sent - len(self._pending) - self.refused

    @property
    def not_yet(self) -> Refusal | None:
        """The newest message that was refused for now, if it is not stored since."""
        refused = self._not_yet
        return refused if refused is not None and b"%d" % refused.number in self._pending else None

    @property
    def duplicates(self) -> int:
        """How many of those were stored before."""
        return self._judged_duplicates + self._plain_duplicates

    def publish(self, frames: Frames) -> None:
        """Send messages, each with a message id in its headers. Blocks while the window is full.

        Raises TimeoutError when no ack comes for `timeout` seconds, and the error of a message that cannot be
        stored.
        """
        for run in frames.split(max(1, self._window // 2), RUN_BYTES):
            if self._unusual or self._denials:
                self._judge_replies()
            if self.refusal is not None:
                raise self.refusal.error.with_traceback(None)
            if self._again_at is not None and time.monotonic() >= self._again_at:
                self._send_again()  # not only when the window is full: the stream forgets message ids
            if len(self._pending) + len(run) > self._window or self._runs_bytes + run.size > WINDOW_BYTES:
                self._wait(self._window // 2, WINDOW_BYTES // 2)
            self._runs.append(run)
            self._runs_bytes += run.size
            self._pending.update(run.tokens)
            self.sent += len(run)
            self._send(run.whole())

    def finish(self) -> None:
        """Block until every message is acknowledged. Raises as publish() does."""
        self._wait(0, 0)

    def settle(self) -> None:
        """Block until every message is acknowledged or refused. Raises TimeoutError, and what ended the link."""
        self._wait(0, 0, refusals=False)

    def close(self) -> None:
        """Idempotent, never blocks."""
        self._link.close(self)

    def _send(self, frames: bytes | memoryview) -> None:
        """Send frames. While there is no connection, nothing is queued: it could leave after close()."""
        link, data = self._link, bytes(frames)
        if link.connected:
            try:
                link.outbox.publish(data, 0, keep=False)
            except OutboundBufferLimitError:
                pass  # disconnected meanwhile
            except ConnectionClosedError:
                link.check_usable()  # says what closed it
                raise
        if not link.connected:
            link.outbox.withdraw(data)
            self._again_at = time.monotonic() + PAUSE

    def _wait(self, messages: int, size: int, *, refusals: bool = True) -> None:
        """Wait until at most `messages` messages of at most `size` bytes are unacknowledged."""
        began = sent = time.monotonic()
        patience = try_seconds(self._timeout, DEFAULT_RETRIES)
        while True:
            self._judge_replies()
            self._forget_finished_runs()
            if self.refusal is not None and refusals:
                raise self.refusal.error.with_traceback(None)
            if not self._pending:
                return
            if self._failed is not None:
                raise self._failed.with_traceback(None)
            if len(self._pending) <= messages and self._runs_bytes <= size:
                return
            now = time.monotonic()
            if now - max(began, self._progress) >= self._timeout:
                raise self._too_late()
            overdue = now - max(sent, self._progress) >= patience and self._link.connected
            if overdue or (self._again_at is not None and now >= self._again_at):
                self._send_again()
                sent = now
            if self.on_wait is not None:
                self.on_wait()
            self._sleep(messages)

    def _too_late(self) -> NatsError:
        refused = self.not_yet
        if refused is not None:
            self.refusal = refused
            return refused.error.with_traceback(None)
        late = TimeoutError(f"{len(self._pending)} messages were not acknowledged in time: they may be stored")
        late.sent = True
        return late

    def _sleep(self, messages: int) -> None:
        # Too many bytes but not too many messages: the messages are large, so any ack may free enough.
        self._awaited = messages if len(self._pending) > messages else self._window
        over = len(self._pending) > self._awaited or self._awaited == self._window
        if over and not self._unusual and not self._denials and self._failed is None:
            self._wakeup.wait(PAUSE)

    def _forget_finished_runs(self) -> None:
        runs, pending = self._runs, self._pending
        while runs and pending.isdisjoint(runs[0].tokens):
            self._runs_bytes -= runs.popleft().size

    def _unacknowledged(self, run: Frames) -> list[int]:
        return [number for number in run.numbers if b"%d" % number in self._pending]

    def _send_again(self) -> None:
        """Send all messages again that are not acknowledged."""
        self._again_at = None
        for run in self._runs:
            frames = [run.frame(number) for number in self._unacknowledged(run)]
            if frames:
                self._send(b"".join(frames))

    def _judge_replies(self) -> None:
        while self._unusual:
            raw = self._unusual.popleft()
            token = raw[0][len(self.reply_prefix) :]
            if token in self._pending:  # otherwise this is the reply to the second copy of a message
                self._judge(raw, token)
        denied = {}
        while self._denials:
            subject, error = self._denials.popleft()
            denied[subject] = error
        for run in self._runs if denied else ():
            for number in self._unacknowledged(run):
                subject = run.subject(number)
                if subject in denied:  # otherwise another publisher of the connection is denied
                    self._refuse(Refusal(number, subject, denied[subject]))

    def _judge(self, raw: RawMessage, token: bytes) -> None:
        """Handle the reply to a message: it is stored, or is to be sent again, or can never be stored."""
        number = int(token)
        run = next(run for run in self._runs if number in run.numbers)
        subject = run.subject(number)
        try:
            ack = parse_pub_ack(raw[3], raw[2], subject)
        except NatsError as error:
            if meaning_of(error) is Meaning.FINAL and not isinstance(error, JetStreamUnavailableError):
                self._refuse(Refusal(number, subject, error))
                return
            self._not_yet = Refusal(number, subject, error)
            if self._again_at is None:
                self._again_at = time.monotonic() + PAUSE
        else:
            self._pending.discard(token)
            self._judged_duplicates += bool(ack.duplicate)
            self._progress = time.monotonic()
            if ack.stream not in self.streams:
                self.streams[ack.stream] = None
                if len(self._acks) < MAX_STREAMS:
                    self._acks += (raw[3].partition(_SEQ)[0] + _SEQ,)

    def _refuse(self, refusal: Refusal) -> None:
        self._pending.discard(b"%d" % refusal.number)
        self._progress = time.monotonic()
        self.refused += 1
        if self.refusal is None or refusal.number < self.refusal.number:
            self.refusal = refusal

    # --- reader thread ------------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        start = len(self.reply_prefix)
        joined = b"".join([raw[3] for raw in messages])
        duplicates = []
        if b'"duplicate"' in joined:
            duplicates = [raw[0][start:] for raw in messages if raw[3].endswith(_DUPLICATE)]
        known = sum(map(joined.count, self._acks)) == len(messages)
        if known and joined.count(b'"duplicate"') == len(duplicates):
            if duplicates:  # a copy of a message that was acknowledged before does not count
                self._plain_duplicates += len(self._pending.intersection(duplicates))
            self._pending.difference_update([raw[0][start:] for raw in messages])
            self._progress = time.monotonic()
        else:
            self._unusual.extend(messages)
        if len(self._pending) <= self._awaited or self._unusual:
            self._wakeup.set()

    def denied(self, error: PermissionsError) -> None:
        """The inbox was denied: no acknowledgement can reach us."""
        self._fail(error)

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        self._denials.append((subject, error))
        self._wakeup.set()

    def reconnected(self) -> None:
        """What was on its way at the disconnect may be lost: the caller sends it again."""
        self._again_at = time.monotonic()
        self._wakeup.set()

    def closed(self, error: NatsError) -> None:
        self._fail(error)

    def _fail(self, error: NatsError) -> None:
        self._failed = error
        self._wakeup.set()
