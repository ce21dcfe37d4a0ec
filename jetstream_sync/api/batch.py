"""Atomic batches (ADR-50): up to 1000 messages of one stream, stored all together or not at all.

Messages are gathered here and sent by commit(): a discarded batch costs the server nothing, and the server never
abandons a batch because the program is slow. The first message is a request; its empty reply says that the stream
accepts batches. The following ones ask for no reply. The last one carries the commit and is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .._deadline import Deadline
from ..errors import APIError, BadHeaderError, JetStreamError, NatsError, TimeoutError
from ..net.link import Link
from ..protocol.headers import VERSION_LINE, is_no_responders
from ..protocol.parser import RawMessage
from ..protocol.subjects import next_nuid, publish_subject
from .info import PubAck
from .publish import Duration, parse_pub_ack, publish_block
from .publish_retry import meaning_of, pause_before_asking

MAX_BATCH = 1000


class BatchMessage(NamedTuple):
    """One message of a batch given as an iterable; a plain tuple of the same order will do."""

    subject: str
    """The subject to publish to."""
    payload: bytes = b""
    """The payload."""
    headers: Mapping[str, Any] | None = None
    """The headers, if any."""


class _Entry(NamedTuple):
    subject: bytes
    payload: bytes
    block: bytes  # when added, without the closing blank line


class PublishBatch:
    """Messages to be stored together. Not thread-safe: one thread fills and commits it.

        with js.publish_batch() as batch:
            batch.add("orders.1", b"…")
            batch.add("orders.2", b"…")
        print(batch.ack.seq)

    Leaving the block commits, unless an exception is on its way: then nothing is sent.
    """

    __slots__ = ("__weakref__", "_closed", "_entries", "_link", "_timeout", "ack", "id")

    def __init__(self, link: Link, timeout: Duration) -> None:
        self._link = link
        self._timeout = timeout
        self._entries: list[_Entry] = []
        self._closed = False
        self.id: str = next_nuid()
        """The id of the batch, as the server knows it."""
        self.ack: PubAck | None = None
        """The stream's acknowledgement, once committed: `seq` is the last message's, `count` the batch's size."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, Any] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        ttl: Duration | str | None = None,
    ) -> None:
        """Add a message; nothing is sent yet. Never blocks.

        The parameters are those of JetStream.publish(). The stream checks expectations against its state before
        the batch. Raises ValueError when the batch is full, and what publish() raises for bad input.
        """
        for name in headers or ():
            if isinstance(name, str) and name.lower().startswith("nats-batch-"):
                raise BadHeaderError(f"header {name!r} is the batch's own: leave it out")
        block, _ = publish_block(
            headers,
            msg_id,
            expected_stream,
            expected_last_seq,
            expected_last_subject_seq,
            expected_last_subject_seq_subject,
            ttl=ttl,
        )
        self._add(publish_subject(subject), payload, VERSION_LINE if block is None else block[:-2])

    def _add(self, subject: bytes, payload: bytes, block: bytes) -> None:
        if self._closed:
            raise ValueError("this batch is committed or discarded: begin another one")
        if len(self._entries) >= MAX_BATCH:
            raise ValueError(f"a batch holds at most {MAX_BATCH} messages")
        self._entries.append(_Entry(subject, payload, block))

    def discard(self) -> None:
        """Give the batch up: nothing was sent, nothing will be. Idempotent."""
        self._closed = True
        self._entries.clear()

    def commit(self, timeout: Duration | None = None) -> PubAck:
        """Send the batch and wait for its acknowledgement: when this returns, all of it is stored.

        Blocks up to `timeout` seconds; by default as long as publish_batch() was told.

        Raises ValueError when it is empty, MaxPayloadError, NoStreamResponseError; WrongLastSequenceError and
        other APIErrors (`err_code` 10174: the stream does not allow batches, 10201: it has one of the message
        ids already …) when nothing was stored. TimeoutError and ConnectionLostError when it is not known: all
        of it is stored, or nothing; with `sent` False nothing.
        """
        if self._closed or not self._entries:
            raise ValueError("this batch is committed or discarded" if self._closed else "this batch is empty")
        _check_server(self._link)
        deadline = Deadline(self._timeout if timeout is None else timeout)
        self._closed = True
        while True:
            try:
                self.ack = self._store(deadline)
                return self.ack
            except APIError as error:
                # Nothing of it is stored. If one of its message ids is being stored at this moment (10158), the
                # stream can say a little later whether it has that id.
                pause = pause_before_asking(meaning_of(error), deadline.wait_time())
                if pause is None:
                    raise
            time.sleep(pause)
            self.id = next_nuid()

    def _store(self, deadline: Deadline) -> PubAck:
        entries = [self._numbered(entry, number) for number, entry in enumerate(self._entries, 1)]
        # All frames are made before the first is sent: one that is too large must not leave half a batch behind.
        frames = [self._link.frame(entry.subject, entry.payload, None, entry.block) for entry in entries]
        if len(entries) > 1:
            self._begin(entries[0], deadline)
        return self._finish(entries[-1], frames[1:-1], deadline)

    def _numbered(self, entry: _Entry, number: int) -> _Entry:
        """The entry with the complete header block of message `number`."""
        commit = b"Nats-Batch-Commit: 1\r\n" if number == len(self) else b""
        place = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (self.id.encode(), number)
        return _Entry(entry.subject, entry.payload, b"".join((entry.block, place, commit, b"\r\n")))

    def _begin(self, first: _Entry, deadline: Deadline) -> None:
        raw = self._request(first, deadline)
        if raw[3] or is_no_responders(raw[2]):
            ack = parse_pub_ack(raw[3], raw[2], first.subject)
            raise JetStreamError(
                f"stream {ack.stream!r} took the first message alone, as sequence {ack.seq}: its server does not "
                "know atomic batches (2.12 and later do)"
            )

    def _finish(self, last: _Entry, middle: list[tuple[bytes, int]], deadline: Deadline) -> PubAck:
        outbox = self._link.outbox
        try:
            for frame, size in middle:
                outbox.publish(frame, size, keep=False, coalesce=True)
                if outbox.congested:
                    self._wait_for_room(deadline)
            raw = self._request(last, deadline)
            ack = parse_pub_ack(raw[3], raw[2], last.subject)
        except NatsError:
            outbox.withdraw(*(frame for frame, _ in middle))
            raise
        if ack.count != len(self):
            raise JetStreamError(f"stream {ack.stream!r} acknowledged {ack.count} of {len(self)} messages")
        return ack

    def _wait_for_room(self, deadline: Deadline) -> None:
        try:
            self._link.outbox.wait_for_room(deadline.wait_time())
        except TimeoutError as error:
            raise _too_late() from error

    def _request(self, entry: _Entry, deadline: Deadline) -> RawMessage:
        if deadline.expired:
            raise _too_late()
        return self._link.request(entry.subject, entry.payload, deadline.remaining(), entry.block)

    def __repr__(self) -> str:
        state = "open" if not self._closed else "closed" if self.ack is None else f"stored up to {self.ack.seq}"
        return f"<PublishBatch {self.id} messages={len(self._entries)} {state}>"

    def __enter__(self) -> PublishBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        if kind is None and self._entries and not self._closed:
            self.commit()
        elif not self._closed:
            self.discard()


def add_encoded(batch: PublishBatch, subject: bytes, payload: bytes, block: bytes) -> None:
    """Add a message whose subject and header block (without its blank line) are known to be valid."""
    batch._add(subject, payload, block)


def publish_all(batch: PublishBatch, messages: Iterable[BatchMessage | tuple[Any, ...]]) -> PubAck:
    """Fill `batch` and commit it. Raises ValueError when there are no messages, or too many."""
    for message in messages:
        subject, payload, headers = BatchMessage(*message)
        batch.add(subject, payload, headers=headers)
    return batch.commit()


def _too_late() -> TimeoutError:
    """The error of a batch whose time was over before its commit was sent."""
    error = TimeoutError("the batch was not committed in time: nothing of it is stored")
    error.sent = False
    return error


def _check_server(link: Link) -> None:
    """A server that does not know batches stores their messages one by one: better not to send any."""
    version = str(link.server_info.get("version", ""))
    numbers = version.split("-")[0].split(".")[:2]
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < (2, 12):
        raise JetStreamError(f"atomic batches need server 2.12 or later; this one is {version}")
