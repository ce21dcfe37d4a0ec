"""A message from JetStream: its metadata, read from the reply subject when asked for, and its acknowledgements.

ADR-15: after a terminal ack (ack, nak, term) every later one is ignored; with ack policy none all are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, Protocol

from .._deadline import seconds
from .._log import MessageFacts
from ..errors import ForkError, NatsError, NoRespondersError, NotJSMessageError
from ..net.link import Link
from ..net.message import Message, excerpt
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
    """The message's sequence in its stream: it identifies the message."""
    consumer: int
    """Its sequence in its consumer, which counts deliveries."""


class Metadata(NamedTuple):
    """What JetStream says of a delivered message."""

    stream: str
    """The stream's name."""
    consumer: str
    """The consumer's name."""
    domain: str
    """The JetStream domain, empty if there is none."""
    sequence: SequencePair
    """The message's sequences in its stream and in its consumer."""
    num_delivered: int
    """How often the message has been delivered: 1 for the first time."""
    num_pending: int
    """How many messages for this consumer were waiting behind it in the stream."""
    timestamp_ns: int
    """When the message was stored, in nanoseconds since 1970."""

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

    Acks never wait and raise only when they cannot be sent; ack_sync(), nak_sync() and term_sync() wait for the
    server's confirmation.
    A message may be acknowledged from any thread.
    """

    __slots__ = ("_done", "_metadata", "_source")

    def __init__(self, raw: RawMessage, link: Link | None = None, source: Source = _SINGLE) -> None:
        self._raw = raw
        self._link = link
        self._source = source
        self._done = False

    @property
    def sid(self) -> int:
        """The number of the subscription that it came on; 0 where that was for this one message, or is unknown."""
        return int(getattr(self._source, "sid", b"") or 0)

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
        self._send_terminal(_nak(delay))

    def term(self, reason: str | None = None) -> None:
        """Never deliver again, though it was not processed; `reason` goes into the server's advisory."""
        self._send_terminal(_term(reason))

    def in_progress(self) -> None:
        """Still at work: start the consumer's ack_wait anew."""
        if not self._done:
            self._send(IN_PROGRESS)

    def ack_sync(self, timeout: float | timedelta = 5.0) -> None:
        """ack(), and wait up to `timeout` seconds until the server has confirmed it.

        Raises TimeoutError when it does not: the ack may have been taken, and the call may be repeated. Raises
        NoRespondersError when the consumer is gone.
        """
        self._confirm(ACK, timeout)

    def nak_sync(self, delay: float | timedelta | None = None, timeout: float | timedelta = 5.0) -> None:
        """nak(), and wait up to `timeout` seconds until the server has confirmed it.

        Without `delay` the message is there for the next pull when this returns; with it, after `delay` seconds.
        Raises like ack_sync().
        """
        self._confirm(_nak(delay), timeout)

    def term_sync(self, reason: str | None = None, timeout: float | timedelta = 5.0) -> None:
        """term(), and wait up to `timeout` seconds until the server has confirmed it.

        `reason` goes into the server's advisory. Raises like ack_sync().
        """
        self._confirm(_term(reason), timeout)

    def _confirm(self, body: bytes, timeout: float | timedelta) -> None:
        """Send a terminal acknowledgement as a request. It counts as sent when the server has confirmed it."""
        link, reply = self._where()
        if self._done or not self._source.acks:
            return
        raw = link.request(reply, body, seconds(timeout))
        if is_no_responders(raw[2]):
            raise NoRespondersError(reply.decode("utf-8", "replace"))
        if raw[3]:
            raise NatsError(f"the server did not take the ack: {raw[3][:256].decode('utf-8', 'replace')}")
        self._done = True

    def _origin(self) -> str:
        try:
            of = self.metadata
        except NotJSMessageError:
            return super()._origin()
        return f"on {self.subject!r} (stream {of.stream!r}, sequence {of.sequence.stream})"

    def __repr__(self) -> str:
        try:
            of = self.metadata
        except NotJSMessageError:
            return super().__repr__()
        acked = " acked" if self._done else ""
        return (
            f"<JetStreamMessage subject={self.subject!r} stream={of.stream!r} seq={of.sequence.stream} "
            f"deliveries={of.num_delivered}{acked} data={excerpt(self.data)}>"
        )

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


def facts_of(message: JetStreamMessage) -> MessageFacts:
    """What the log says of a message."""
    try:
        metadata = message.metadata
    except NotJSMessageError:
        return MessageFacts(stream=None, consumer=None, subject=message.subject, sequence=None)
    return MessageFacts(
        stream=metadata.stream,
        consumer=metadata.consumer,
        subject=message.subject,
        sequence=metadata.sequence.stream,
    )


def acks_for(raws: Iterable[RawMessage], body: bytes) -> list[bytes]:
    """The frames that tell the server `body` (NAK, IN_PROGRESS) of messages as they came. Statuses have none."""
    tail = b" %d\r\n%b\r\n" % (len(body), body)
    replies = [raw[1] for raw in raws]
    return [b"PUB " + reply + tail for reply in replies if reply is not None and reply[:8] == ACK_PREFIX]


def naks_for(raws: Iterable[RawMessage]) -> list[bytes]:
    """The frames that hand messages back: they are delivered again at once."""
    return acks_for(raws, NAK)


def progress_for(raws: Iterable[RawMessage]) -> list[bytes]:
    """The frames that ask for more time for messages."""
    return acks_for(raws, IN_PROGRESS)


def raws_of(messages: Iterable[JetStreamMessage]) -> list[RawMessage]:
    """Messages as they came."""
    return [message._raw for message in messages]


def _nak(delay: float | timedelta | None) -> bytes:
    wait = seconds(delay, "delay")
    return NAK if wait is None else NAK + b' {"delay":%d}' % nanoseconds(wait)


def _term(reason: str | None) -> bytes:
    return TERM if not reason else TERM + b" " + _checked_reason(reason)


def _checked_reason(reason: str) -> bytes:
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}")
    if not reason.isprintable():
        raise ValueError("reason must not contain line breaks or control characters")
    return reason.encode()
