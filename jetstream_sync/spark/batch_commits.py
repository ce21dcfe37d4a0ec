"""Stores chunks of rows, each as one atomic batch (ADR-50) with a marker as its last message. Imports pyarrow.

The server keeps the messages of a batch apart until its last message commits them. Then it checks all of them, in
their order, and stores all or none. It abandons a batch that misses a message, or gets none for 10 seconds, and it
has room for 50 open batches per stream. So the rows of a chunk are sent in one go, when all of them are known.

The marker expects the sequence of the marker before (`Nats-Expected-Last-Subject-Sequence`). Hence:
- The chunk of another attempt of the task is rejected as a whole (10071), whichever of the two comes second.
- A chunk may be sent again while it is not known whether it is stored. If it is, the second copy is rejected, and
  the marker in the stream is the very one that was sent: it names the attempt and the rows.

Two chunks are under way at a time. The rows of a chunk are sent while the one before is being committed. Its
marker follows when that commit is known, for it has to name that one's sequence.

  task's thread   sends rows and markers, waits for replies, decides, sends again; everything here belongs to it
  reader thread   completes what waits for a reply (`Replies`), and fails all of it when the session is lost

The reader thread takes an entry out of `pending` before it completes it, so each is completed once. The task's
thread waits at most `timeout` seconds for a chunk, then raises. No thread is started here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .._threads import acquire
from ..api.publish import parse_pub_ack, publish_block
from ..api.publish_retry import MIN_TRY_SECONDS, Meaning, meaning_of
from ..errors import (
    APIError,
    ConnectionLostError,
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    TimeoutError,
)
from ..net.link import Link
from ..net.requests import ReplyInbox, ReplyWaiter
from ..protocol.headers import is_no_responders
from ..protocol.parser import RawMessage
from .encoding import EMPTY, EncodedRows, check_sizes, content_of, int32, joined, text
from .markers import ROWS_PER_CHUNK, Marker, new_batch_id

# The pause before a chunk is sent again: while a server restarts or elects a leader.
RETRY_WAIT = 0.25
# A reply that does not come may be lost, as in elections, or late. So the first try waits for this part of the
# timeout, and each one after a silent try three times as long.
FIRST_TRY = 1 / 12
LONGER = 3
# How long an attempt that fails waits for its last chunk.
SETTLE_SECONDS = 5.0
# When the marker has not moved for so long, another attempt of the task has finished or is dead.
STANDSTILL_SECONDS = 3.0

_CONTAINS_DUPLICATE = 10201
_INCOMPLETE = 10176
_INVALID_ROLLUP = 10111
# The copy that was sent before may be stored: it has the marker's sequence (10071; 10164 while a marker is being
# stored), or the message ids.
_MAY_BE_STORED = frozenset((10071, 10164, _CONTAINS_DUPLICATE))
# Incomplete, because the leader changed during the batch; too many open batches.
_PASSING = frozenset((_INCOMPLETE, 10210))

_NUMBERS = text(pa.array(range(1, ROWS_PER_CHUNK + 1), pa.int64()))
_VERB = b"HPUB "
_ID_LINE = b"Nats-Msg-Id: "
# No server takes this value. It is checked after the message id, so nothing is stored in any case.
_NO_ROLLUP = b"Nats-Rollup: none\r\n\r\n"


class Replies(ReplyInbox[ReplyWaiter]):
    """What waits for a reply on this session."""

    def disconnected(self) -> None:
        self.fail(list(self.pending), ConnectionLostError("the connection was lost"))


@dataclass
class Chunk:
    """Rows that are stored together, and the marker that is stored with them."""

    rows: list[EncodedRows]
    marker: Marker
    left_out: int = 0
    """How many rows that the marker covers are not sent, because the stream has their message ids."""

    @property
    def count(self) -> int:
        return sum(rows.count for rows in self.rows)

    @property
    def has_msg_ids(self) -> bool:
        return any(rows.msg_ids is not None for rows in self.rows)


class _Batch:
    """One try to store a chunk. Its frames are kept until the reply has come."""

    def __init__(self, chunk: Chunk, batch_id: str) -> None:
        self.chunk = chunk
        self.id = batch_id
        self.size = 1 + chunk.count
        self.rows = b""  # the frames of the rows
        self.marker = b""  # the frame of the marker, once sent
        self.reply = b""
        self.ack = ReplyWaiter()
        self.row_replies: dict[bytes, ReplyWaiter] = {}  # if each row asks for a reply
        self.unsent: NatsError | None = None  # why it could not be sent


@dataclass
class MarkerSettings:
    """Where markers go, and how."""

    subject: str
    last_seq: int
    """The sequence of the last marker; 0 if there is none."""
    roll_up: bool
    """Whether a marker removes those before it."""
    stream: str | None
    """The stream that must store them, if the options name it."""


class BatchCommits:
    """Stores the chunks of one task, in order. See the module's text."""

    def __init__(
        self,
        link: Link,
        timeout: float,
        start: bytes,
        tag: str,
        markers: MarkerSettings,
        last_marker: Callable[[], tuple[Marker | None, int]],
    ) -> None:
        """`start` begins the headers of every row; `tag` begins the id of every batch.

        `last_marker` reads the last marker of the partition and its sequence. A chunk that is not stored after
        `timeout` seconds fails.
        """
        self._link = link
        self._timeout = timeout
        self._start = start
        self._tag = tag
        self._markers = markers
        self._last_marker = last_marker
        self._replies = Replies(link.options.inbox_prefix)
        self._under_way: _Batch | None = None
        self._look_first = False  # the chunk before had rows that were stored already: look before the commit
        self.duplicates = 0
        """How many rows were left out, because the stream has their message ids."""
        self.on_incomplete: Callable[[set[bytes]], None] | None = None
        """Called with the subjects of a chunk that is not complete although a stream has taken each row."""
        self.on_unanswered: Callable[[str], None] | None = None
        """Called with the subject of a message that no stream took. What it raises ends the write."""
        link.open(self._replies)

    def store(self, chunk: Chunk) -> None:
        """Send `chunk`. Blocks until the chunk before is stored.

        Raises the error of a chunk that cannot be stored.
        """
        if chunk.has_msg_ids:
            chunk = _without_repeated_ids(chunk)
            if self._look_first:
                self.finish()
                chunk = self._without_stored_ids(chunk, time.monotonic() + self._timeout)
        batch = self._send_rows(chunk)
        self.finish()
        self._send_marker(batch)
        self._under_way = batch

    def finish(self) -> None:
        """Block until all chunks are stored. Raises the error of a chunk that cannot be stored."""
        batch, self._under_way = self._under_way, None
        if batch is not None:
            self._markers.last_seq = self._stored(batch)

    def close(self) -> None:
        """Send nothing more. Blocks for some seconds at most, until the fate of the chunk under way is known.

        Otherwise the next attempt of the task could read its start before this chunk is stored, and be rejected.
        Idempotent.
        """
        batch, self._under_way = self._under_way, None
        if batch is not None:
            with suppress(NatsError):
                self._acknowledged(batch, time.monotonic() + SETTLE_SECONDS)
            self._forget(batch)
        self._link.close(self._replies)

    # --- one chunk ----------------------------------------------------------------------------------

    def _stored(self, batch: _Batch) -> int:
        """Wait until a batch is stored, and send it again as often as necessary. Returns its marker's sequence."""
        tries, ask = _Tries(self._timeout), False
        while True:
            seq, error = self._outcome(batch, tries.until)
            if seq is not None:
                self.duplicates += batch.chunk.left_out
                self._look_first = batch.chunk.left_out > 0
                return seq
            assert error is not None
            if isinstance(error, NoStreamResponseError) and self.on_unanswered is not None:
                self.on_unanswered(error.subject)
            if batch.row_replies and _code(error) == _INCOMPLETE and self.on_incomplete is not None:
                self.on_incomplete({subject for subject, _ in _subjects_and_ids(batch.chunk)})
            chunk = batch.chunk
            if _code(error) == _CONTAINS_DUPLICATE:
                chunk = self._without_stored_ids(chunk, tries.gives_up)
            if chunk is batch.chunk:
                tries.pause(error)
            # A batch that was not complete is sent again with a reply per row: one of them may say why.
            ask = ask or _code(error) == _INCOMPLETE
            batch = self._send_rows(chunk, ask=ask)
            self._send_marker(batch)

    def _outcome(self, batch: _Batch, until: float) -> tuple[int | None, NatsError | None]:
        """The sequence of the marker, or why the batch is to be sent again. Raises if that is of no use."""
        try:
            return self._acknowledged(batch, until), None
        except NatsError as error:
            refused = error
        finally:
            self._forget(batch)
        if _code(refused) in _MAY_BE_STORED:
            last, seq = self._last_marker()
            if last == batch.chunk.marker:
                return seq, None
            if seq != self._markers.last_seq:
                if last is not None and last.epoch == batch.chunk.marker.epoch:
                    self._wait_for_the_other_attempt(seq, last.epoch)
                where = repr(self._markers.subject)
                cause = f"the marker on {where} is gone" if last is None else f"another attempt writes to {where}"
                raise JetStreamError(f"exactlyOnce: {cause}: this attempt of the task stops ({refused})")
        elif not _passes(refused):
            raise refused
        return None, refused

    def _wait_for_the_other_attempt(self, seq: int, epoch: int) -> None:
        """Wait while another attempt of this task moves the marker on, in the same epoch.

        Spark ends this attempt when the other has finished. If this one failed before that, Spark would count it
        and start a third one, which would meet the other again, and so on until the job fails.
        """
        since = time.monotonic()
        while time.monotonic() - since < STANDSTILL_SECONDS:
            time.sleep(RETRY_WAIT)
            last, now = self._last_marker()
            if last is None or last.epoch != epoch:
                return
            if now != seq:
                seq, since = now, time.monotonic()

    def _acknowledged(self, batch: _Batch, until: float) -> int:
        """Wait for the reply to the marker. Returns its sequence, raises what the server says instead."""
        if batch.unsent is not None:
            raise batch.unsent
        raw = _reply(batch.ack, until)
        try:
            ack = parse_pub_ack(raw[3], raw[2], batch.ack.subject)
        except APIError as error:
            if error.err_code == _INCOMPLETE:
                _raise_refusal(batch.row_replies.values())
            raise
        if ack.count != batch.size:
            raise JetStreamError(f"stream {ack.stream!r} acknowledged {ack.count} of {batch.size} messages")
        return ack.seq

    # --- sending ------------------------------------------------------------------------------------

    def _send_rows(self, chunk: Chunk, *, ask: bool = False) -> _Batch:
        """Send the rows of a chunk as a new batch. `ask`: each row asks for a reply."""
        batch = _Batch(chunk, new_batch_id(self._tag))
        start = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (self._start, batch.id.encode())
        frames: list[bytes | memoryview] = [_VERB]
        first = 0
        for rows in chunk.rows:
            replies = self._row_replies(batch, rows) if ask else None
            frames.append(self._frames(rows, start, first, replies))
            first += rows.count
        frames[-1] = frames[-1][: -len(_VERB)]
        batch.rows = b"".join(frames)
        if chunk.rows:
            self._send(batch, batch.rows)
        return batch

    def _row_replies(self, batch: _Batch, rows: EncodedRows) -> pa.Array:
        subjects = _subjects(rows)
        replies = [self._replies.new_reply() for _ in subjects]
        waiting = {reply: ReplyWaiter(subject) for reply, subject in zip(replies, subjects, strict=True)}
        batch.row_replies.update(waiting)
        self._replies.pending.update(waiting)
        return pa.array(replies, pa.binary())

    def _frames(self, rows: EncodedRows, start: bytes, first: int, replies: pa.Array | None) -> memoryview:
        """The frames of rows, the first of which is number `first` of its batch, counted from 0.

        Each has the verb of the one that follows at its end: joining columns costs by their number.
        """
        numbers, lines = _NUMBERS[first : first + rows.count], [rows.lines]
        if rows.msg_ids is not None:
            lines.append(pc.fill_null(joined(_ID_LINE, rows.msg_ids, b"\r\n"), EMPTY))
        header_sizes = pc.add(pc.binary_length(numbers), int32(len(start) + len(b"\r\n\r\n")))
        for part in lines:
            header_sizes = pc.add(header_sizes, pc.binary_length(part))
        sizes = pc.add(header_sizes, pc.binary_length(rows.data))
        check_sizes(sizes, self._link.max_payload)
        return content_of(
            joined(
                *(rows.subjects, b" ", *([] if replies is None else [replies, b" "])),
                *(text(header_sizes), b" ", text(sizes), b"\r\n" + start),
                *(numbers, b"\r\n", *lines, b"\r\n", rows.data, b"\r\n" + _VERB),
            )
        )

    def _send_marker(self, batch: _Batch) -> None:
        settings = self._markers
        block, _ = publish_block(
            {"Nats-Rollup": "sub"} if settings.roll_up else None,
            expected_stream=settings.stream,
            expected_last_subject_seq=settings.last_seq,
        )
        assert block is not None
        place = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\nNats-Batch-Commit: 1\r\n\r\n"
        batch.ack = ReplyWaiter(settings.subject.encode())
        batch.reply = self._replies.new_reply()
        batch.marker, _ = self._link.frame(
            batch.ack.subject,
            batch.chunk.marker.to_bytes(),
            batch.reply,
            block[:-2] + place % (batch.id.encode(), batch.size),
        )
        self._replies.pending[batch.reply] = batch.ack  # before it is sent: the reply may come at once
        self._send(batch, batch.marker)

    def _send(self, batch: _Batch, frames: bytes) -> None:
        try:
            # Not kept for another session: a part of a batch is of no use there.
            self._link.outbox.publish(frames, 0, keep=False)
        except OutboundBufferLimitError as error:
            batch.unsent = error

    def _forget(self, batch: _Batch) -> None:
        """No reply to this batch is waited for any more, and what of it has not left is not sent."""
        for reply in (batch.reply, *batch.row_replies):
            self._replies.pending.pop(reply, None)
        self._link.outbox.withdraw(batch.rows, batch.marker)

    # --- rows whose message ids the stream has --------------------------------------------------------

    def _without_stored_ids(self, chunk: Chunk, gives_up: float) -> Chunk:
        """The chunk without the rows that are stored already. The same object if there are none.

        The server does not say which ids it has. So each is published alone, with a header that no stream accepts:
        the reply is the acknowledgement of a duplicate, or the rejection of the header.
        """
        tries = _Tries(gives_up - time.monotonic())
        while True:
            try:
                stored = self._stored_ids(chunk, tries.until)
                break
            except NatsError as error:
                if not _passes(error):
                    raise
                tries.pause(error)
        return _chunk_without(chunk, stored) if stored else chunk

    def _stored_ids(self, chunk: Chunk, until: float) -> set[int]:
        """Which rows of the chunk have a message id that the stream has; by number, from 0."""
        waiting: dict[bytes, tuple[int, ReplyWaiter]] = {}
        frames: list[bytes] = []
        for number, (subject, msg_id) in enumerate(_subjects_and_ids(chunk)):
            if msg_id is not None:
                reply = self._replies.new_reply()
                waiting[reply] = number, ReplyWaiter(subject)
                block = b"%b%b%b\r\n%b" % (self._start, _ID_LINE, msg_id, _NO_ROLLUP)
                frames.append(self._link.frame(subject, b"", reply, block)[0])
        try:
            self._replies.pending.update({reply: waiter for reply, (_, waiter) in waiting.items()})
            self._link.outbox.publish(b"".join(frames), 0, keep=False)
            return {number for number, waiter in waiting.values() if _is_stored(waiter, until)}
        finally:
            for reply in waiting:
                self._replies.pending.pop(reply, None)


class _Tries:
    """How long to wait for what: a chunk has `timeout` seconds, in several tries."""

    def __init__(self, timeout: float) -> None:
        self.gives_up: float = time.monotonic() + timeout
        self._try = timeout * FIRST_TRY

    @property
    def until(self) -> float:
        """When a try that begins now ends without a reply."""
        return min(self.gives_up, time.monotonic() + max(MIN_TRY_SECONDS, self._try))

    def pause(self, error: NatsError) -> None:
        """Wait before the next try. Raises `error`, which ended the last one, when there is no time for one."""
        if time.monotonic() >= self.gives_up:
            raise error
        if isinstance(error, TimeoutError):
            self._try *= LONGER
        time.sleep(RETRY_WAIT)


def _reply(waiter: ReplyWaiter, until: float) -> RawMessage:
    seconds = max(MIN_TRY_SECONDS, until - time.monotonic())
    acquire(waiter.lock, seconds)
    if waiter.error is not None:
        raise waiter.error.with_traceback(None)
    if waiter.reply is None:
        raise TimeoutError(f"no reply to an atomic batch within {seconds:g} s")
    return waiter.reply


def _is_stored(waiter: ReplyWaiter, until: float) -> bool:
    """Whether the stream has a message id, by the reply to its probe."""
    raw = _reply(waiter, until)
    try:
        if parse_pub_ack(raw[3], raw[2], waiter.subject).duplicate:
            return True
    except APIError as error:
        if error.err_code == _INVALID_ROLLUP:
            return False
        raise
    raise JetStreamError("the server has stored a message with an invalid Nats-Rollup: it is not known to do so")


def _raise_refusal(row_replies: Iterable[ReplyWaiter]) -> None:
    """Raise what the server says of the first row that it does not take; nothing if it says nothing."""
    for waiter in row_replies:
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)
        raw = waiter.reply
        if raw is None or not (raw[3] or is_no_responders(raw[2])):
            continue  # taken
        try:
            parse_pub_ack(raw[3], raw[2], waiter.subject)
        except APIError as error:
            if error.err_code != _INCOMPLETE:  # which every row gets that follows the one that was not taken
                raise


def _subjects_and_ids(chunk: Chunk) -> Iterator[tuple[bytes, bytes | None]]:
    for rows in chunk.rows:
        subjects = _subjects(rows)
        ids = [None] * rows.count if rows.msg_ids is None else rows.msg_ids.to_pylist()
        yield from zip(subjects, ids, strict=True)


def _subjects(rows: EncodedRows) -> list[bytes]:
    return [rows.subjects] * rows.count if isinstance(rows.subjects, bytes) else rows.subjects.to_pylist()


def _without_repeated_ids(chunk: Chunk) -> Chunk:
    """The chunk without rows whose message id a row before them has. A stream rejects a batch with such rows."""
    columns = [rows.msg_ids for rows in chunk.rows if rows.msg_ids is not None]
    ids = pa.chunked_array(columns, pa.binary()).drop_null()
    if pc.count_distinct(ids).as_py() == len(ids):
        return chunk
    seen: set[bytes] = set()
    repeated = set()
    for number, (_, msg_id) in enumerate(_subjects_and_ids(chunk)):
        if msg_id in seen:
            repeated.add(number)
        elif msg_id is not None:
            seen.add(msg_id)
    return _chunk_without(chunk, repeated)


def _chunk_without(chunk: Chunk, numbers: set[int]) -> Chunk:
    """The chunk without some of its rows. Its marker covers them as before."""
    rest, first = [], 0
    for rows in chunk.rows:
        rest.append(rows.filter(pa.array([number not in numbers for number in range(first, first + rows.count)])))
        first += rows.count
    return Chunk([rows for rows in rest if rows.count], chunk.marker, chunk.left_out + len(numbers))


def _code(error: NatsError) -> int | None:
    return error.err_code if isinstance(error, APIError) else None


def _passes(error: NatsError) -> bool:
    """Whether the server may take the same later."""
    if isinstance(error, (ConnectionLostError, NoStreamResponseError, OutboundBufferLimitError, TimeoutError)):
        return True
    if isinstance(error, JetStreamUnavailableError) or _code(error) in _PASSING:
        return True
    return meaning_of(error) is not Meaning.FINAL
