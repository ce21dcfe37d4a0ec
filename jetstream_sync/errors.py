"""Every error this library raises, in one tree under `NatsError`.

An error carries its facts as attributes. Its text says how to fix the problem where that is known.
No error carries a secret: passwords, tokens, seeds and signatures never reach this module.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

__all__ = [
    "APIError",
    "AuthorizationError",
    "BadHeaderError",
    "BadRequestError",
    "BadSubjectError",
    "BatchPublishError",
    "ConcurrencyError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "ConsumerConfigError",
    "ConsumerDeletedError",
    "ConsumerExistsError",
    "ConsumerIsPushError",
    "ConsumerNotFoundError",
    "DataLossError",
    "DrainTimeoutError",
    "ForkError",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "JetStreamUnavailableError",
    "MaxPayloadError",
    "MessageNotFoundError",
    "MissedHeartbeatError",
    "NatsError",
    "NoRespondersError",
    "NoServersError",
    "NoStreamResponseError",
    "NotConnectedError",
    "NotFoundError",
    "NotJSMessageError",
    "OutboundBufferLimitError",
    "PermissionsError",
    "ProtocolError",
    "PublishManyError",
    "PullError",
    "SequenceMismatchError",
    "ServerNotInPoolError",
    "SlowConsumerError",
    "StaleConnectionError",
    "StreamFullError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "SubscriptionClosedError",
    "TimeoutError",
    "TooManyStalledMsgsError",
    "WrongLastSequenceError",
]


class NatsError(Exception):
    """The root of all errors of this library.

    `summary` is the PublishSummary of a `publish_many()` that ended with the error, None for all other calls.
    """

    summary: Any = None

    # __init__ sets the facts as attributes. Rebuilding from (class, __dict__) keeps subclasses with keyword-only
    # constructors picklable: Spark and multiprocessing send errors from one process to another.
    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[NatsError], args: tuple[Any, ...], facts: dict[str, Any]) -> NatsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- connection ---------------------------------------------------------------------------------


class TimeoutError(NatsError, builtins.TimeoutError):
    """The call did not finish within its timeout. Also a `builtins.TimeoutError`.

    `sent` says whether the request, message or pull of the call may have reached the server: True, and it may have
    been handled; False, and the call can safely be repeated; None where nothing was to be sent.
    """

    sent: bool | None = None


class NotConnectedError(TimeoutError):
    """The call gave up while there was no connection to a server. Nothing was sent: it can safely be repeated.

    The text says for how long, and why the newest attempt to connect has failed.
    """

    sent: bool | None = False

    def __init__(self, message: str = "not connected: not sent") -> None:
        super().__init__(message)


class ConnectionClosedError(NatsError):
    """The connection is closed for good: by `close()`, by `drain()`, or by an error that ended it."""

    def __init__(self, message: str = "the connection is closed; connect() again to go on") -> None:
        super().__init__(message)


class ConnectionLostError(NatsError):
    """The connection broke while this call waited for the server. The library reconnects by itself; try again.

    `sent` is True: what the call sent may have been handled.
    """

    sent: bool = True

    def __init__(self, message: str = "the connection was lost while waiting for a reply") -> None:
        super().__init__(message)


class NoServersError(NatsError):
    """No server could be reached. `attempts` holds (url, error) for each one tried."""

    def __init__(self, attempts: Sequence[tuple[str, BaseException]] = ()) -> None:
        self.attempts: list[tuple[str, BaseException]] = list(attempts)
        tried = "; ".join(f"{url}: {describe(error)}" for url, error in self.attempts)
        super().__init__(f"no NATS server could be reached ({tried or 'no server is left to try'})")


def describe(error: BaseException) -> str:
    """`error` as text. The class name stands in where there is none, as in some standard exceptions."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return str(error.strerror)  # without "[Errno 111]"
    text = str(error).strip()
    return text if text else type(error).__name__


class ServerNotInPoolError(NatsError):
    """`reconnect_to_server_handler` chose a server that is not in the pool, which then decides itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(f"reconnect_to_server_handler chose {url!r}, which is not in the pool")


class StaleConnectionError(NatsError):
    """The server left too many pings unanswered, or reported the connection as stale itself."""


class AuthorizationError(NatsError):
    """The server refused the credentials, or they were revoked or have expired.

    `credentials` says which were tried: the user's name, the public nkey, or their kind. Never a secret.
    """

    def __init__(self, message: str = "", *, credentials: str = "") -> None:
        self.credentials: str = credentials
        super().__init__(message)


class PermissionsError(NatsError):
    """The server denied a publish or a subscription. The connection stays open and usable.

    `subject` and `queue` are what was denied, `operation` is "publish" or "subscription".
    """

    def __init__(self, message: str, *, subject: str = "", operation: str = "", queue: str | None = None) -> None:
        self.subject = subject
        self.operation = operation
        self.queue = queue
        super().__init__(message)


class ProtocolError(NatsError):
    """The server sent something that is not the NATS protocol, or reported that this client did (`-ERR`)."""


class MaxPayloadError(NatsError, ValueError):
    """The payload, headers included, is larger than the server's `max_payload`. Nothing was sent."""

    def __init__(self, size: int, max_payload: int) -> None:
        self.size = size
        self.max_payload = max_payload
        super().__init__(
            f"payload of {size} bytes (headers included) exceeds the server's max_payload of {max_payload}"
        )


class BadSubjectError(NatsError, ValueError):
    """A subject, queue, or name cannot be put on the wire. Nothing was sent."""


class BadHeaderError(NatsError, ValueError):
    """A header name or value cannot be put on the wire. Nothing was sent."""


class SlowConsumerError(NatsError):
    """A subscription's buffer was full and messages were dropped.

    Reported once, and again only after the buffer has had room in between. `dropped` counts all messages the
    subscription has dropped so far, `pending_msgs` those in its buffer. `sub` is the subscription; None after
    unpickling.
    """

    sub: Any = None

    def __init__(self, subject: str, dropped: int, pending_msgs: int) -> None:
        self.subject = subject
        self.dropped = dropped
        self.pending_msgs = pending_msgs
        super().__init__(
            f"slow consumer on {subject!r}: {pending_msgs} messages are buffered, {dropped} dropped so far; "
            "take messages faster or raise pending_msgs_limit / pending_bytes_limit"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        build, (cls, args, facts) = super().__reduce__()
        facts.pop("sub", None)  # it belongs to a connection of this process
        return (build, (cls, args, facts))


class OutboundBufferLimitError(NotConnectedError):
    """The buffer for messages published while disconnected is full. The message was not accepted."""

    def __init__(self, pending: int, limit: int, state: str = "not connected") -> None:
        self.pending = pending
        self.limit = limit
        super().__init__(f"{state}, {pending} bytes wait to be sent (pending_size is {limit}): not accepted")


class NoRespondersError(NatsError):
    """The request's subject has no subscriber (status 503)."""

    def __init__(self, subject: str = "", hint: str = "") -> None:
        self.subject = subject
        text = f"no responders on {subject!r}" if subject else "no responders"
        super().__init__(f"{text}: {hint}" if hint else text)


class DrainTimeoutError(NatsError):
    """Draining did not finish in time. The connection or subscription was closed before all work was done."""


class ForkError(NatsError):
    """A connection was used in a process that did not create it, after a fork."""

    def __init__(self) -> None:
        super().__init__(
            "this connection was made in another process (before a fork); a socket cannot be shared: "
            "call connect() in the worker itself, for example in gunicorn's post_fork, Celery's "
            "worker_process_init, or inside the Spark task"
        )


class ConcurrencyError(NatsError):
    """Two threads used an object at once that only one thread at a time may use."""


class SubscriptionClosedError(NatsError):
    """The subscription was unsubscribed, drained, or reached its limit, and its buffer is empty."""


# --- JetStream ----------------------------------------------------------------------------------


class JetStreamError(NatsError):
    """The root of all errors of JetStream."""


class APIError(JetStreamError):
    """The JetStream API replied with an error: `code`, `err_code` and `description` come from the server.

    `stream`, `consumer` and `subject` are what the call was about, empty where they are not known. `use` says how
    much of the account's limits is in use, where one of them was reached.
    """

    def __init__(
        self,
        code: int = 0,
        err_code: int = 0,
        description: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        subject: str = "",
        use: str = "",
    ) -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        self.stream = stream
        self.consumer = consumer
        self.subject = subject
        self.use = use
        named = [
            f"consumer {consumer!r} on stream {stream!r}" if consumer else f"stream {stream!r}" if stream else "",
            f"subject {subject!r}" if subject else "",
            use,
        ]
        text = ": ".join([description or "error", ", ".join(filter(None, named))]).removesuffix(": ")
        super().__init__(f"{text} (code {code}, err_code {err_code})")


class NotFoundError(APIError):
    """There is no such stream, consumer or message."""


class StreamNotFoundError(NotFoundError):
    """There is no stream of that name, or no stream stores that subject."""


class ConsumerNotFoundError(NotFoundError):
    """There is no consumer of that name on the stream."""


class MessageNotFoundError(NotFoundError):
    """The stream holds no such message."""


class StreamNameInUseError(APIError):
    """A stream of that name exists with a different configuration."""


class ConsumerExistsError(APIError):
    """A consumer of that name exists with a different configuration."""


class WrongLastSequenceError(APIError):
    """The expected last sequence (of the stream or of the subject) is not the actual one; nothing was stored."""


class JetStreamNotEnabledError(APIError):
    """JetStream is not enabled on the server or for this account."""


class JetStreamUnavailableError(APIError):
    """JetStream is temporarily unavailable (a leader election, a cluster without quorum). Try again later."""


class BadRequestError(APIError):
    """The server rejected the request as malformed or not allowed: code 400, and no more specific class."""


class StreamFullError(APIError):
    """A limit keeps the stream from storing more; nothing was stored.

    It is the stream's own (`max_msgs`, `max_bytes`, `max_msgs_per_subject`, with the discard policy `new`), or one
    of the account or the server: of storage, of memory, of the bytes of one stream.
    """


class BatchPublishError(BadRequestError):
    """The server refused an atomic batch, or too many are open. None of its messages were stored."""


class DataLossError(JetStreamError):
    """Messages that were to be read are no longer in the stream: deleted, expired, or the stream was made anew.

    `stream` is its name, `position` the sequence up to which it was read, `last_seq` that of its last message now.
    """

    def __init__(self, stream: str, position: int = 0, last_seq: int = 0, message: str | None = None) -> None:
        self.stream: str = stream
        self.position: int = position
        self.last_seq: int = last_seq
        lost = (
            f"stream {stream!r} ends with sequence {last_seq}, but {position} was read: it has lost messages, and "
            "new ones get their sequences; make a new ordered consumer to read it from where you choose"
        )
        super().__init__(message or lost)


class NoStreamResponseError(JetStreamError):
    """No stream acknowledged a publish: no stream stores the subject, or JetStream is not available."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no stream answered the publish to {subject!r}: does a stream listen on that subject?")


class NotJSMessageError(JetStreamError):
    """The message is not from JetStream, or its reply subject is malformed: it has no metadata and no ack."""


class TooManyStalledMsgsError(JetStreamError):
    """Too many asynchronous publishes are waiting for their ack. The message was not sent."""


class PublishManyError(JetStreamError):
    """`publish_many()` ended at a message that is not valid, or that no stream stores. `__cause__` says why.

    `position` is the place of the message in the iterable, counted from 0, and `subject` its subject. `summary` (a
    PublishSummary) says what was stored until then.
    """

    def __init__(self, position: int, subject: str, reason: str, summary: Any) -> None:
        self.position: int = position
        self.subject: str = subject
        self.summary: Any = summary
        super().__init__(f"message {position} (subject {subject!r}) {reason}")


class ConsumerConfigError(JetStreamError, ValueError):
    """Options contradict each other, or the existing consumer differs from what was requested.

    `field` names the option that differs.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        self.field = field
        super().__init__(message)


class PullError(JetStreamError):
    """A pull request ended with an error status: `code` and `description` come from the server.

    `stream` and `consumer` are their names, empty where they are not known.
    """

    stream: str = ""
    consumer: str = ""

    def __init__(self, code: int, description: str, message: str | None = None) -> None:
        self.code = code
        self.description = description
        super().__init__(message or f"pull request failed: {code} {description}".rstrip())


class ConsumerDeletedError(PullError):
    """The consumer was deleted while pulling from it."""


class ConsumerIsPushError(PullError):
    """The consumer is a push consumer: it cannot be pulled from."""


class MissedHeartbeatError(JetStreamError):
    """No message and no heartbeat came for `silence` seconds from `consumer` of `stream`."""

    def __init__(self, silence: float, *, stream: str = "", consumer: str = "") -> None:
        self.silence = silence
        self.stream = stream
        self.consumer = consumer
        super().__init__(f"no message and no heartbeat for {silence:.1f} s{_named(stream, consumer)}")


class SequenceMismatchError(JetStreamError):
    """The sequence of `consumer` of `stream` has a gap: `expected` and `got` are consumer sequences."""

    def __init__(
        self, expected: int, got: int, *, stream_seq: int = 0, stream: str = "", consumer: str = ""
    ) -> None:
        self.expected = expected
        self.got = got
        self.stream_seq = stream_seq
        self.stream = stream
        self.consumer = consumer
        super().__init__(f"gap in consumer sequence: expected {expected}, got {got}{_named(stream, consumer)}")


def _named(stream: str, consumer: str) -> str:
    return f": consumer {consumer!r} on stream {stream!r}" if consumer else ""


# --- from the err_code to the class ---------------------------------------------------------------

_BY_ERR_CODE: dict[int, type[APIError]] = {
    10002: StreamFullError,  # resource limits exceeded for account
    10008: JetStreamUnavailableError,  # JetStream system temporarily unavailable
    10009: JetStreamUnavailableError,  # cluster can not handle request (no leader)
    10013: ConsumerExistsError,  # consumer name already in use
    10014: ConsumerNotFoundError,
    10028: StreamFullError,  # insufficient memory resources available
    10035: JetStreamNotEnabledError,  # account not found
    10037: MessageNotFoundError,
    10039: JetStreamNotEnabledError,  # for the account
    10043: MessageNotFoundError,  # sequence not found
    10047: StreamFullError,  # insufficient storage resources available
    10058: StreamNameInUseError,
    10059: StreamNotFoundError,
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,  # for the server
    # Code 503, but the server is available.
    10077: StreamFullError,  # maximum messages, bytes, messages per subject exceeded; see api_error()
    10105: ConsumerExistsError,  # exists and is still active
    10118: JetStreamUnavailableError,  # stream is offline
    10119: JetStreamUnavailableError,  # consumer is offline
    10122: StreamFullError,  # stream max bytes exceeds account limit max stream bytes
    10148: ConsumerExistsError,
    10149: ConsumerNotFoundError,  # update of a consumer that does not exist
    **dict.fromkeys((10174, 10175, 10176, 10177, 10179, 10199, 10200, 10201, 10210), BatchPublishError),
    10163: JetStreamUnavailableError,  # expected last sequence per subject temporarily unavailable
    10164: WrongLastSequenceError,  # the constant form of 10071
}

_NOT_STORED = 10077

# For an err_code that has no class of its own.
_BY_CODE: dict[int, type[APIError]] = {
    400: BadRequestError,
    503: JetStreamUnavailableError,
}


def api_error(
    code: int,
    err_code: int,
    description: str,
    *,
    stream: str = "",
    consumer: str = "",
    subject: str = "",
    use: str = "",
) -> APIError:
    """The error object for an error reply of the JetStream API."""
    kind: type[APIError] = _BY_ERR_CODE.get(err_code) or _BY_CODE.get(code) or APIError
    if err_code == _NOT_STORED and not description.startswith("maximum "):
        kind = APIError  # for another reason: too large, or the store is closed
    return kind(code, err_code, description, stream=stream, consumer=consumer, subject=subject, use=use)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ ": did you mean num_replicas?" for a name that is like one of those known; "" otherwise."""
    close = get_close_matches(name, list(known), 1)
    return f": did you mean {close[0]}?" if close else ""
