"""Every error this library raises, in one tree under `NatsError`.

Errors carry their facts as attributes and their text says what to do about it where that helps.
No error ever carries a secret: passwords, tokens, seeds and signatures do not reach this module.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
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
    "NotJSMessageError",
    "OutboundBufferLimitError",
    "PermissionsError",
    "ProtocolError",
    "PullError",
    "SequenceMismatchError",
    "SlowConsumerError",
    "StaleConnectionError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "SubscriptionClosedError",
    "TimeoutError",
    "TooManyStalledMsgsError",
    "WrongLastSequenceError",
    "api_error",
]


class NatsError(Exception):
    """The root of all errors of this library."""

    # Facts are set as attributes by __init__; rebuilding from (class, __dict__) keeps subclasses with
    # keyword-only constructors picklable, which Spark and multiprocessing need to carry them home.
    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[NatsError], args: tuple[Any, ...], facts: dict[str, Any]) -> NatsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- connection ---------------------------------------------------------------------------------


class TimeoutError(NatsError, builtins.TimeoutError):
    """The caller's timeout ran out. Also a `builtins.TimeoutError`."""


class ConnectionClosedError(NatsError):
    """The connection was closed for good: by `close()`, by `drain()`, or by an error that ended it."""

    def __init__(self, message: str = "the connection is closed; connect() again to go on") -> None:
        super().__init__(message)


class ConnectionLostError(NatsError):
    """The connection broke while this call waited on it. The library reconnects by itself; try again."""

    def __init__(self, message: str = "the connection was lost while waiting for an answer") -> None:
        super().__init__(message)


class NoServersError(NatsError):
    """No server could be reached. `attempts` holds (url, error) for each one tried."""

    def __init__(self, attempts: Sequence[tuple[str, BaseException]] = ()) -> None:
        self.attempts = list(attempts)
        tried = "; ".join(f"{url}: {describe(error)}" for url, error in self.attempts)
        super().__init__(f"no NATS server could be reached ({tried or 'no server is left to try'})")


def describe(error: BaseException) -> str:
    """`error` in one line, never empty: some exceptions of the standard library have no text."""
    text = str(error).strip()
    return text if text else type(error).__name__


class StaleConnectionError(NatsError):
    """The server answered no ping for too long, or itself called the connection stale."""


class AuthorizationError(NatsError):
    """The server refused the credentials, or they were revoked or have expired."""


class PermissionsError(NatsError):
    """The server denied a publish or a subscription. The connection stays usable."""

    def __init__(self, message: str, *, subject: str = "", operation: str = "", queue: str | None = None) -> None:
        self.subject = subject
        self.operation = operation
        self.queue = queue
        super().__init__(message)


class ProtocolError(NatsError):
    """The server said something that is not the NATS protocol, or reported that we did (`-ERR`)."""


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
    """A subscription's buffer was full and messages were dropped; reported once per episode."""

    def __init__(self, subject: str, dropped: int, pending_msgs: int) -> None:
        self.subject = subject
        self.dropped = dropped
        self.pending_msgs = pending_msgs
        super().__init__(
            f"slow consumer on {subject!r}: {pending_msgs} messages are buffered, {dropped} dropped so far; "
            "take messages faster or raise pending_msgs_limit / pending_bytes_limit"
        )


class OutboundBufferLimitError(NatsError):
    """Too much is waiting to be sent while disconnected. The message was not taken."""

    def __init__(self, pending: int, limit: int) -> None:
        self.pending = pending
        self.limit = limit
        super().__init__(
            f"disconnected with {pending} bytes waiting to be sent (pending_size is {limit}): not accepted"
        )


class NoRespondersError(NatsError):
    """Nobody listens on the subject of the request (status 503)."""

    def __init__(self, subject: str = "", hint: str = "") -> None:
        self.subject = subject
        text = f"no responders on {subject!r}" if subject else "no responders"
        super().__init__(f"{text}: {hint}" if hint else text)


class DrainTimeoutError(NatsError):
    """Draining did not finish in time; the connection or subscription was closed with work left over."""


class ForkError(NatsError):
    """A connection was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this connection was made in another process (before a fork); a socket cannot be shared: "
            "call connect() in the worker itself, for example in gunicorn's post_fork, Celery's "
            "worker_process_init, or inside the Spark task"
        )


class ConcurrencyError(NatsError):
    """Two threads used an object that only one may use at a time."""


class SubscriptionClosedError(NatsError):
    """The subscription was unsubscribed, drained, or reached its limit, and nothing is buffered."""


# --- JetStream ----------------------------------------------------------------------------------


class JetStreamError(NatsError):
    """The root of JetStream's errors."""


class APIError(JetStreamError):
    """An error answer of the JetStream API: `code`, `err_code`, `description` are the server's own."""

    def __init__(self, code: int = 0, err_code: int = 0, description: str = "") -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        super().__init__(f"{description or 'error'} (code {code}, err_code {err_code})")


class StreamNotFoundError(APIError):
    """There is no stream of that name, or none on that subject."""


class ConsumerNotFoundError(APIError):
    """There is no consumer of that name on the stream."""


class MessageNotFoundError(APIError):
    """The stream holds no such message."""


class StreamNameInUseError(APIError):
    """A stream of that name exists with a different configuration."""


class ConsumerExistsError(APIError):
    """A consumer of that name exists with a different configuration."""


class WrongLastSequenceError(APIError):
    """The expected last sequence (of the stream or the subject) was not the actual one; nothing was stored."""


class JetStreamNotEnabledError(APIError):
    """JetStream is not enabled, for the server or for this account."""


class JetStreamUnavailableError(APIError):
    """JetStream cannot answer at the moment (an election, a cluster without quorum); trying again helps."""


class BadRequestError(APIError):
    """The server rejected the request as malformed or not allowed (code 400 without a class of its own)."""


class BatchPublishError(BadRequestError):
    """An atomic batch was refused, or too many are under way: nothing of it was stored."""


class DataLossError(JetStreamError):
    """Messages that were to be read are gone from the stream: deleted, expired, or the stream was made anew."""


class NoStreamResponseError(JetStreamError):
    """No stream answered a publish: none listens on that subject, or JetStream is not there."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no stream answered the publish to {subject!r}: does a stream listen on that subject?")


class NotJSMessageError(JetStreamError):
    """The message did not come from JetStream, or its reply subject is malformed: no metadata, no ack."""


class TooManyStalledMsgsError(JetStreamError):
    """Too many asynchronous publishes wait for their ack; the message was not sent."""


class ConsumerConfigError(JetStreamError, ValueError):
    """Options or an existing consumer do not fit what was asked for. `field` names what differs."""

    def __init__(self, message: str, *, field: str = "") -> None:
        self.field = field
        super().__init__(message)


class PullError(JetStreamError):
    """A pull request ended with an error status: `code` and `description` are the server's own."""

    def __init__(self, code: int, description: str, message: str | None = None) -> None:
        self.code = code
        self.description = description
        super().__init__(message or f"pull request failed: {code} {description}".rstrip())


class ConsumerDeletedError(PullError):
    """The consumer was deleted while pulling from it."""


class ConsumerIsPushError(PullError):
    """The consumer is push based: it cannot be pulled from."""


class MissedHeartbeatError(JetStreamError):
    """No message and no heartbeat came for too long: `silence` seconds."""

    def __init__(self, silence: float) -> None:
        self.silence = silence
        super().__init__(f"no message and no heartbeat for {silence:.1f} s")


class SequenceMismatchError(JetStreamError):
    """A push consumer's sequence skipped: `expected` and `got` are consumer sequences."""

    def __init__(self, expected: int, got: int, *, stream_seq: int = 0) -> None:
        self.expected = expected
        self.got = got
        self.stream_seq = stream_seq
        super().__init__(f"gap in consumer sequence: expected {expected}, got {got}")


# --- err_code → class, the one registry ---------------------------------------------------------

_BY_ERR_CODE: dict[int, type[APIError]] = {
    10008: JetStreamUnavailableError,  # JetStream system temporarily unavailable
    10009: JetStreamUnavailableError,  # cluster can not handle request (no leader)
    10013: ConsumerExistsError,  # consumer name already in use
    10014: ConsumerNotFoundError,
    10035: JetStreamNotEnabledError,  # account not found
    10037: MessageNotFoundError,
    10039: JetStreamNotEnabledError,  # for the account
    10043: MessageNotFoundError,  # sequence not found
    10058: StreamNameInUseError,
    10059: StreamNotFoundError,
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,  # for the server
    10077: APIError,  # not stored, for example because the stream is full: code 503, but no outage
    10105: ConsumerExistsError,  # exists and is still active
    10118: JetStreamUnavailableError,  # stream is offline
    10119: JetStreamUnavailableError,  # consumer is offline
    10148: ConsumerExistsError,
    10149: ConsumerNotFoundError,  # update of a consumer that does not exist
    **dict.fromkeys((10174, 10175, 10176, 10177, 10179, 10199, 10200, 10201, 10210), BatchPublishError),
    10163: JetStreamUnavailableError,  # expected last sequence per subject temporarily unavailable
    10164: WrongLastSequenceError,  # the constant form of 10071
}

# For answers whose err_code has no class of its own.
_BY_CODE: dict[int, type[APIError]] = {
    400: BadRequestError,
    503: JetStreamUnavailableError,
}


def api_error(code: int, err_code: int, description: str) -> APIError:
    """The error object for an error answer of the JetStream API."""
    build: Callable[[int, int, str], APIError] = _BY_ERR_CODE.get(err_code) or _BY_CODE.get(code) or APIError
    return build(code, err_code, description)
