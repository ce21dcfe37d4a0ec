"""js.publish_many(): an iterable of messages, published pipelined; every ack is checked.

One thread does all of it: the caller's. It takes messages from the iterable, encodes them, and hands runs of them
to a BulkPublisher, which lives as long as the call. The user's iterable and progress callback run in that thread,
where no lock is held.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..errors import MaxPayloadError, NatsError, PublishManyError
from ..net.link import Link
from ..protocol.commands import payload_bytes
from ..protocol.headers import VERSION_LINE, encode_headers
from ..protocol.subjects import next_nuid, publish_subject
from .bulk import RUN_BYTES, BulkPublisher, Frames
from .publish import publish_block

Message = tuple[Any, ...]
Progress = Callable[["PublishSummary"], object]

# A run leaves when it has RUN_BYTES, or is so old when the next message comes.
RUN_SECONDS = 0.01
# It leaves at once when the iterable took so long to give the message: a run would not make it faster.
SLOW_SECONDS = 0.0001
PROGRESS_SECONDS = 1.0
# How many subjects and header names are checked once only.
CACHED = 10_000

_USUAL_ID = re.compile("[!-~]+")
_END = object()


@dataclass(frozen=True, slots=True)
class PublishSummary:
    """How far a publish_many() is, or what it has done."""

    published: int
    """How many messages the streams have acknowledged: they are stored."""
    duplicates: int
    """How many of those a stream had already: by an earlier publish of the same id, or by an earlier copy whose
    acknowledgement was lost."""
    sent: int
    """How many messages were sent, acknowledged or not."""
    bytes: int
    """The size of the messages that were sent, headers included."""
    seconds: float
    """How long it has taken."""
    streams: tuple[str, ...]
    """The names of the streams that store the messages."""


class _Encoder:
    """Encodes messages as frames. What repeats, subjects and header names, is checked once."""

    def __init__(self, link: Link, reply_prefix: bytes, expected_stream: str | None) -> None:
        self._link = link
        self._reply_prefix = reply_prefix
        self._expected_stream = expected_stream
        block, _ = publish_block(expected_stream=expected_stream)
        self._start = (VERSION_LINE if block is None else block[:-2]).decode()
        self._id_prefix = f"{next_nuid()}."
        self._subjects: dict[str, bytes] = {}
        self._names: dict[str, str] = {}  # the start of a header line, by name
        self.bytes = 0

    def frame(self, number: int, message: Message) -> bytes:
        """The frame of message `number`. Raises ValueError and TypeError, and their subclasses, for a bad one."""
        headers = msg_id = None
        if not isinstance(message, (tuple, list)) or not 2 <= len(message) <= 4:
            raise TypeError(f"a message is a tuple (subject, payload[, headers[, msg_id]]), not {message!r:.64}")
        if len(message) == 4:
            subject, payload, headers, msg_id = message
        elif len(message) == 3:
            subject, payload, headers = message
        else:
            subject, payload = message
        try:
            wire_subject = self._subjects[subject]
        except (KeyError, TypeError):
            wire_subject = self._checked_subject(subject)
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        block = self._usual_block(headers, msg_id, number) or self._block(headers, msg_id, number)
        size = len(block) + len(payload)
        if size > self._link.max_payload:
            raise MaxPayloadError(size, self._link.max_payload)
        self.bytes += size
        return b"HPUB %b %b%d %d %d\r\n%b%b\r\n" % (
            *(wire_subject, self._reply_prefix, number, len(block), size),
            *(block, payload),
        )

    def _checked_subject(self, subject: Any) -> bytes:
        wire = publish_subject(subject)
        if len(self._subjects) < CACHED:
            self._subjects[subject] = wire
        return wire

    def _usual_block(self, headers: Any, msg_id: Any, number: int) -> bytes | None:
        """The header block if all is usual; None when publish_block() has to look at it."""
        lines = ""
        if headers:
            if type(headers) is not dict:
                return None
            names = self._names
            for name, value in headers.items():
                start = names.get(name) or self._line_start(name)
                if not start or type(value) is not str or not value.isprintable() or value.strip(" ") != value:
                    return None
                lines += f"{start}{value}\r\n"
        if msg_id is None:
            msg_id = f"{self._id_prefix}{number}"
        elif not (
            type(msg_id) is str and msg_id and msg_id.isascii() and msg_id.isprintable() and " " not in msg_id
        ):
            return None
        return f"{self._start}{lines}Nats-Msg-Id: {msg_id}\r\n\r\n".encode()

    def _line_start(self, name: Any) -> str:
        """The start of a header line; empty for a header that has a meaning here."""
        if not isinstance(name, str) or name.lower() in ("nats-msg-id", "nats-expected-stream"):
            return ""
        encode_headers([(name, "")])  # raises for a bad name
        start = f"{name}: "
        if len(self._names) < CACHED:
            self._names[name] = start
        return start

    def _block(self, headers: Mapping[str, Any] | None, msg_id: Any, number: int) -> bytes:
        block, has_id = publish_block(headers, msg_id, self._expected_stream)
        if not has_id:
            block, _ = publish_block(headers, f"{self._id_prefix}{number}", self._expected_stream)
        assert block is not None
        return block


class PublishMany:
    """One call of publish_many()."""

    def __init__(
        self,
        link: Link,
        *,
        timeout: float,
        max_pending: int,
        expected_stream: str | None,
        progress: Progress | None,
    ) -> None:
        self._publisher = BulkPublisher(link, timeout, max_pending)
        self._encoder = _Encoder(link, self._publisher.reply_prefix, expected_stream)
        self._progress = progress
        self._progress_failed = False
        self._began = self._reported = time.monotonic()
        self._run: list[bytes] = []
        self._position = 0  # of the next message
        if progress is not None:
            self._publisher.on_wait = self._report

    def publish(self, messages: Iterable[Message]) -> PublishSummary:
        try:
            try:
                self._call(self._publisher.open)
                self._publish_all(iter(messages))
                self._finish()
                if self._progress is not None:
                    self._progress(self._summary())
                return self._summary()
            finally:
                self._publisher.close()
        except BaseException:
            self._publisher.close()  # again: a signal handler may have raised in the first one
            raise

    def _publish_all(self, messages: Iterator[Any]) -> None:
        encode = self._encoder.frame
        size, began, now = 0, 0.0, 0.0
        while True:
            try:
                message: Any = next(messages, _END)
            except Exception:
                self._finish()  # when the iterable's exception comes out, what it has given is stored
                raise
            if message is _END:
                return
            try:
                frame = encode(self._position, message)
            except (TypeError, ValueError) as error:
                self._finish()
                raise self._bad(message, error) from error
            self._run.append(frame)
            self._position += 1
            size += len(frame)
            last, now = now, time.monotonic()
            if size >= RUN_BYTES or now - began >= RUN_SECONDS or now - last >= SLOW_SECONDS:
                self._send_run()
                size, began = 0, now

    def _send_run(self) -> None:
        run, self._run = self._run, []
        frames = Frames(
            self._position - len(run), memoryview(b"".join(run)), list(accumulate(map(len, run), initial=0))
        )
        self._call(self._publisher.publish, frames)
        if self._progress is not None:
            self._report()

    def _finish(self) -> None:
        self._send_run()
        self._call(self._publisher.finish)

    def _call(self, call: Callable[..., None], *arguments: Frames) -> None:
        """Call the publisher. An error of it says how far it came."""
        try:
            call(*arguments)
        except NatsError as error:
            ended = self._ended(error)
            raise ended from ended.__cause__

    def _summary(self) -> PublishSummary:
        publisher = self._publisher
        return PublishSummary(
            published=publisher.acknowledged,
            duplicates=publisher.duplicates,
            sent=publisher.sent,
            bytes=self._encoder.bytes,
            seconds=time.monotonic() - self._began,
            streams=tuple(publisher.streams),
        )

    def _report(self) -> None:
        """Call the user's callback if it is time."""
        now = time.monotonic()
        if self._progress is None or now - self._reported < PROGRESS_SECONDS:
            return
        self._reported = now
        try:
            self._progress(self._summary())
        except BaseException:
            self._progress_failed = True
            raise

    # --- how it ends ----------------------------------------------------------------------------------

    def _bad(self, message: Any, error: Exception) -> PublishManyError:
        subject = message[0] if isinstance(message, (tuple, list)) and message else ""
        subject = subject if isinstance(subject, str) else ""
        return PublishManyError(self._position, subject, f"was not sent: {error}", self._summary())

    def _ended(self, error: NatsError) -> NatsError:
        """What to raise when publishing ended with `error`."""
        publisher = self._publisher
        if self._progress_failed:
            return error
        if publisher.refusal is None:
            mine = copy(error)  # the connection gives one error to all that it ends
            mine.summary, mine.__cause__ = self._summary(), error.__cause__
            return mine
        if publisher.refused:
            try:
                publisher.settle()  # what else was sent is stored or refused, too
            except NatsError:
                pass  # the summary says how much was acknowledged
        refusal = publisher.refusal
        subject = refusal.subject.decode("utf-8", "replace")
        ended = PublishManyError(refusal.number, subject, f"was not stored: {refusal.error}", self._summary())
        ended.__cause__ = refusal.error
        return ended
