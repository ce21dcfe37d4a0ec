"""Two ways to read a stream from a sequence on: a pull consumer, and Direct Get where the stream rejects one.

A fetcher belongs to one task and one thread. `fetch()` yields the messages that are available now and ends; the
caller asks the stream's leader whether there are more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Protocol

from ..api.config import AckPolicy, DeliverPolicy, RetentionPolicy
from ..api.direct import direct_reply
from ..api.info import StreamInfo
from ..consumers.consumer import Consumer
from ..consumers.fetch import MessageBatch, raw_runs
from ..consumers.status import Kind
from ..errors import ConnectionLostError, MessageNotFoundError, NatsError, PullError, api_error
from ..jetstream import JetStream, client_of
from ..net.link import Link
from ..net.message import Message
from ..protocol.headers import status_of
from ..protocol.parser import RawMessage
from ..protocol.subjects import subject_matches
from .chunk import Chunk, Row

# Rows of an Arrow batch: enough to amortise its fixed cost, few enough that Spark does not wait long for the
# first.
CHUNK_ROWS = 10_000
CHUNK_BYTES = 8 * 1024 * 1024
# The size of a pull: at most this much is in flight or in the mailbox while Spark processes rows.
PULL_MESSAGES = 50_000
PULL_BYTES = 16 * 1024 * 1024
# Messages are taken in lists of this many.
RUN = 1000
# The server deletes the consumer of a killed task after this many seconds without a pull.
INACTIVE_THRESHOLD = 60.0
# Before server 2.11, Direct Get returns one message only.
DIRECT_BATCH_SINCE = (2, 11)
DIRECT_BATCH = 1000
DIRECT_BATCH_BYTES = 4 * 1024 * 1024
DIRECT_TIMEOUT = 5.0

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Fetcher(Protocol):
    """Reads a stream from a sequence on."""

    def stored_between(self, start: int, end: int) -> int:
        """A lower bound of how many messages from `start` up to but not including `end` are stored now."""

    def fetch(self, start: int, count: int) -> Iterator[Chunk]:
        """The messages from `start` on that are available now, at most `count`."""

    def reset(self) -> None:
        """After an error, or if messages are not delivered: the next fetch starts with a new consumer."""

    def close(self) -> None:
        """Delete what the fetcher created on the server."""


def fetcher_for(js: JetStream, info: StreamInfo, subjects: tuple[str, ...]) -> Fetcher:
    """The fetcher for a stream. Interest and work-queue streams reject consumers without acks: use Direct Get."""
    if info.config.retention in (None, RetentionPolicy.LIMITS):
        return PullFetcher(js, info.config.name, subjects)
    return DirectFetcher(js, info, subjects)


class PullFetcher:
    """Reads through an ephemeral pull consumer without acks, which is kept in memory and deleted by close()."""

    def __init__(self, js: JetStream, stream: str, subjects: tuple[str, ...]) -> None:
        self._js = js
        self._stream = stream
        self._subjects = subjects
        self._consumer: Consumer | None = None
        self._position = 0
        self._delivered = 0  # the consumer sequence of the last message

    def stored_between(self, start: int, end: int) -> int:
        """The pending messages of a consumer that starts at `start`, minus those of one that starts at `end`.

        The second is created later: messages stored in between make the difference smaller, never larger.
        """
        from_start = self._consumer_at(start).info.num_pending
        at_end = self._create(end)
        _delete(at_end)
        return max(0, from_start - at_end.info.num_pending)

    def fetch(self, start: int, count: int) -> Iterator[Chunk]:
        consumer = self._consumer_at(start)
        try:
            yield from self._chunks_of(consumer.fetch_nowait(min(count, PULL_MESSAGES), max_bytes=PULL_BYTES))
        except PullError as error:
            if error.description != Kind.SIZE_EXCEEDS.value:
                raise
            yield from self._chunks_of(consumer.fetch_nowait(1))

    def _chunks_of(self, pull: MessageBatch) -> Iterator[Chunk]:
        from .replies import chunk_of  # needs pyarrow, an optional extra

        with pull:
            for run in _chunks(raw_runs(pull, RUN)):
                chunk = chunk_of(run, self._delivered + 1)
                if chunk is None:
                    # The server sent a message to a pull that had ended. This consumer does not deliver it again.
                    raise ConnectionLostError("the consumer has skipped a message: it is created again")
                self._delivered += len(run)
                self._position = chunk.sequences[-1] + 1
                yield chunk

    def reset(self) -> None:
        self._position = 0

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            _delete(consumer)

    def _consumer_at(self, start: int) -> Consumer:
        if self._consumer is None or self._position != start:
            self.close()
            self._consumer = self._create(start)
            self._position = start
            self._delivered = 0
        return self._consumer

    def _create(self, start: int) -> Consumer:
        filters: dict[str, Any] = {}
        if len(self._subjects) == 1:
            filters["filter_subject"] = self._subjects[0]
        elif self._subjects:
            filters["filter_subjects"] = list(self._subjects)
        return self._js.create_consumer(
            self._stream,
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, start),
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=INACTIVE_THRESHOLD,
            **filters,
        )


def _delete(consumer: Consumer) -> None:
    try:
        consumer.delete()
    except NatsError:
        pass  # deleted already, or the server is not reachable: it deletes an unused consumer by itself


def _chunks(runs: Iterator[list[RawMessage]]) -> Iterator[list[RawMessage]]:
    """Lists of CHUNK_ROWS messages, shorter where the messages are large."""
    rows: list[RawMessage] = []
    size = 0
    for run in runs:
        rows += run
        size += _estimated_size(run)
        if len(rows) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield rows[:CHUNK_ROWS]
            rows = rows[CHUNK_ROWS:]
            size = _estimated_size(rows)
    if rows:
        yield rows


def _estimated_size(messages: list[RawMessage]) -> int:
    """About how many bytes of payload there are, from every 16th message: the pull has an exact limit."""
    return 16 * sum([len(raw[3]) for raw in messages[::16]])


class DirectFetcher:
    """Reads by Direct Get in batches (server 2.11 and later), or one message at a time from the leader."""

    def __init__(self, js: JetStream, info: StreamInfo, subjects: tuple[str, ...]) -> None:
        self._client = client_of(js)
        self._nc = self._client.link.connection
        self._stream = info.config.name
        self._subjects = subjects
        self._next_by_subject = subjects[0] if len(subjects) == 1 else ">"
        self._batched = bool(info.config.allow_direct) and _version(self._client.link) >= DIRECT_BATCH_SINCE

    def stored_between(self, start: int, end: int) -> int:
        """Not known: the stream removes messages whenever other consumers have acknowledged them."""
        return 0

    def fetch(self, start: int, count: int) -> Iterator[Chunk]:
        rows = self._batch(start, count) if self._batched else self._one_by_one(start, count)
        while run := list(islice(rows, DIRECT_BATCH)):
            wanted = [row for row in run if self._matches(row[0])]
            if wanted:
                yield Chunk.of_rows(wanted)

    def reset(self) -> None:
        """Nothing to do: nothing is kept between two fetches."""

    def close(self) -> None:
        """Nothing to do: nothing is created on the server."""

    def _matches(self, subject: bytes) -> bool:
        if len(self._subjects) < 2:
            return True
        text = subject.decode("utf-8", "surrogateescape")
        return any(subject_matches(pattern, text) for pattern in self._subjects)

    def _batch(self, start: int, count: int) -> Iterator[Row]:
        position = start
        inbox = self._nc.new_inbox()
        with self._nc.subscribe(inbox, pending_msgs_limit=0, pending_bytes_limit=0) as answers:
            while position < start + count:
                body = {
                    "seq": max(1, position),
                    "next_by_subj": self._next_by_subject,
                    "batch": min(DIRECT_BATCH, start + count - position),
                    "max_bytes": DIRECT_BATCH_BYTES,
                }
                subject = self._client.subject("DIRECT", "GET", self._stream)
                self._nc.publish(subject, json.dumps(body).encode(), reply=inbox)
                last = 0
                while (row := _direct_row(answers.next_msg(DIRECT_TIMEOUT), last)) is not None:
                    last = row[1]
                    yield row
                if not last:
                    return
                position = last + 1

    def _one_by_one(self, start: int, count: int) -> Iterator[Row]:
        position = start
        while position < start + count:
            body = {"seq": max(1, position), "next_by_subj": self._next_by_subject}
            try:
                answer = self._client.request("STREAM", "MSG", "GET", self._stream, body=body)
            except MessageNotFoundError:
                return
            row = _stored_row(answer["message"])
            position = row[1] + 1
            yield row


def _direct_row(message: Message, before: int) -> Row | None:
    """A message of a Direct Get batch, of which `before` is the last sequence, 0 if none; None at its end."""
    reply = direct_reply(message.raw_headers)
    if reply is None:
        status = status_of(message.raw_headers)
        if status is not None and status.code in (204, 404):  # end of the batch, no message found
            return None
        if status is not None and status.code == 503:
            raise ConnectionLostError("no server serves Direct Get at the moment")
        raise api_error(0 if status is None else status.code, 0, "Direct Get was refused")
    if reply.previous is not None and reply.previous != before:
        # What comes while the connection is established anew is lost, and the rest of the batch arrives.
        raise ConnectionLostError(f"a reply of Direct Get is missing: before sequence {reply.seq}")
    timestamp = nanoseconds_of(reply.time or "1970-01-01T00:00:00Z")
    return reply.subject, reply.seq, timestamp, reply.own, message.data


def _stored_row(message: dict[str, Any]) -> Row:
    block = base64.b64decode(message["hdrs"]) if message.get("hdrs") else None
    payload = base64.b64decode(message.get("data") or "")
    return message["subject"].encode(), int(message["seq"]), nanoseconds_of(message["time"]), block, payload


def nanoseconds_of(timestamp: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 timestamp of the server, which is in UTC."""
    moment, _, fraction = timestamp.rstrip("Zz").partition(".")
    seconds = _seconds_since_1970(moment)
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])


def _seconds_since_1970(moment: str) -> int:
    return int((datetime.fromisoformat(moment).replace(tzinfo=timezone.utc) - _EPOCH).total_seconds())


def _version(link: Link) -> tuple[int, ...]:
    numbers = str(link.server_info.get("version", "")).split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())
