"""A message from JetStream: its metadata, read from the reply subject when asked for, and its acknowledgements.

ADR-15: after a terminal ack (ack, nak, term) every later one is ignored; with ack policy none all are.
"""

from __future__ import annotations

from collections.abc import Sized
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, Protocol

from .._deadline import seconds
from ..errors import ForkError, NatsError, NoRespondersError, NotJSMessageError
from ..net.link import Link
from ..net.message import Message
from ..protocol.headers import is_no_responders
from ..protocol.parser import RawMessage
from .kinds import nanoseconds

ACK_PREFIX = b"$JS.ACK."
ACK = b"+ACK"
NAK = b"-NAK"
TERM = b"+TERM"
IN_PROGRESS = b"+WPI"

_MAX_DIGITS = 20  # of an unsigned 64-bit integer
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SequencePair(NamedTuple):
    """A message's sequence in its stream and in its consumer."""

    stream: int
    consumer: int


class Metadata(NamedTuple):
    """What JetStream says of a delivered message."""

    stream: str
    consumer: str
    domain: str
    sequence: SequencePair
    num_delivered: int
    num_pending: int
    timestamp_ns: int

    @property
    def timestamp(self) -> datetime:
        """When the message was stored, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


def parse_metadata(reply: str | None) -> Metadata:
    """Read a `$JS.ACK` subject (ADR-15). Raises NotJSMessageError."""
    tokens = (reply or "").split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9 or len(tokens) == 10:
        raise NotJSMessageError(f"not a JetStream message: its reply subject is {reply!r}")
    domain = ""
    if len(tokens) > 9:
        # v2: domain and account hash come first; tokens behind the ninth from there are for the future.
        domain = "" if tokens[2] == "_" else tokens[2]
        tokens = tokens[:2] + tokens[4:]
    stream, consumer, *numbers = tokens[2:9]
    if not all(number.isdecimal() and number.isascii() and len(number) <= _MAX_DIGITS for number in numbers):
        raise NotJSMessageError(f"malformed JetStream reply subject: {reply!r}")
    delivered, stream_seq, consumer_seq, timestamp, pending = map(int, numbers)
    sequence = SequencePair(stream_seq, consumer_seq)
    return Metadata(stream, consumer, domain, sequence, delivered, pending, timestamp)


class Source(Protocol):
    """Where a message was taken from."""

    @property
    def acks(self) -> bool:
        """False with ack policy none: acks are not sent."""

    @property
    def items(self) -> Sized:
        """What waits behind the message: while it is not empty, acks may be coalesced."""


class SingleSource:
    """The source of messages that have none behind them: their acks leave at once."""

    items: Sized = ()

    def __init__(self, acks: bool = True) -> None:
        self.acks = acks


_SINGLE = SingleSource()


class JetStreamMessage(Message):
    """A message of a consumer. Acknowledge it with ack(), nak(), term(); in_progress() asks for more time.

    Acks never wait and raise only when they cannot be sent; ack_sync() waits for the server's confirmation.
    A message may be acknowledged from any thread.
    """

    __slots__ = ("_done", "_metadata", "_source")

    def __init__(self, raw: RawMessage, link: Link | None = None, source: Source = _SINGLE) -> None:
        self._raw = raw
        self._link = link
        self._source = source
        self._done = False

    @property
    def metadata(self) -> Metadata:
        """Stream, consumer, sequences and so on. Raises NotJSMessageError when it did not come from JetStream."""
        try:
            return self._metadata
        except AttributeError:
            self._metadata: Metadata = parse_metadata(self.reply)
            return self._metadata

    @property
    def is_acked(self) -> bool:
        """Whether a terminal acknowledgement (ack, nak or term) has been sent."""
        return self._done

    def ack(self) -> None:
        """Processed: do not deliver again."""
        # What _send() does, written out: this is the hot path of every consumer.
        if self._done:
            return
        source, link, reply = self._source, self._link, self._raw[1]
        if link is None or link.forked or reply is None or reply[:8] != ACK_PREFIX:
            self._where()  # raises
        elif source.acks:
            link.outbox.ack(b"PUB " + reply + b" 4\r\n+ACK\r\n", coalesce=bool(source.items))
        self._done = True

    def nak(self, delay: float | timedelta | None = None) -> None:
        """Not processed: deliver again, at once or after `delay` seconds."""
        wait = seconds(delay, "delay")
        self._send_terminal(NAK if wait is None else NAK + b' {"delay":%d}' % nanoseconds(wait))

    def term(self, reason: str | None = None) -> None:
        """Never deliver again, though it was not processed; `reason` goes into the server's advisory."""
        self._send_terminal(TERM if not reason else TERM + b" " + _checked_reason(reason))

    def in_progress(self) -> None:
        """Still at work: start the consumer's ack_wait anew."""
        if not self._done:
            self._send(IN_PROGRESS)

    def ack_sync(self, timeout: float | timedelta = 5.0) -> None:
        """ack(), and wait until the server has confirmed it.

        Raises TimeoutError when it does not, NoRespondersError when the consumer is gone.
        """
        link, reply = self._where()
        if self._done or not self._source.acks:
            return
        raw = link.request(reply, ACK, seconds(timeout))
        if is_no_responders(raw[2]):
            raise NoRespondersError(reply.decode("utf-8", "replace"))
        if raw[3]:
            raise NatsError(f"the server did not take the ack: {raw[3][:256].decode('utf-8', 'replace')}")
        self._done = True

    def _send_terminal(self, body: bytes) -> None:
        if not self._done:
            self._send(body)
            self._done = True

    def _send(self, body: bytes) -> None:
        link, reply = self._where()
        source = self._source
        if source.acks:
            # With more messages waiting the acks are coalesced and leave together; a single one leaves at once.
            link.outbox.ack(b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body), coalesce=bool(source.items))

    def _where(self) -> tuple[Link, bytes]:
        reply, link = self._raw[1], self._link
        if reply is None or not reply.startswith(ACK_PREFIX):
            raise NotJSMessageError("not a JetStream message: it cannot be acknowledged")
        if link is None:
            raise NatsError("this message was unpickled: it has no connection to acknowledge it on")
        if link.forked:
            raise ForkError()
        return link, reply


def _checked_reason(reason: str) -> bytes:
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}")
    if not reason.isprintable():
        raise ValueError("reason must not contain line breaks or control characters")
    return reason.encode()
