"""What a status means: one table from (code, text) to actions, used by all code that reads statuses.

No socket, thread or clock. Everything here is immutable and thread-safe.

A status is a message without a body, `NATS/1.0 <code> <text>`, possibly with headers. The server sends it to end a
pull or to keep a subscription alive. Each row of the table says what the status means for a fetch (and next), for
a consume (and messages), for a push subscription and for the fetch of a pull subscription. It also says which
pulls the status ends if it does not tell how many messages were left (`PullState.status`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..errors import ConsumerDeletedError, ConsumerIsPushError, NatsError, NoRespondersError, PullError
from ..protocol.headers import Status, header_value, status_of

__all__ = [
    "ConsumeAction",
    "Ends",
    "FetchAction",
    "Kind",
    "Pending",
    "PushAction",
    "Rule",
    "classify",
    "pending_of",
    "read_status",
    "to_error",
]


class Kind(Enum):
    """The kind of a status. Texts that differ only in a detail have the same kind."""

    HEARTBEAT = "Idle Heartbeat"
    FLOW_CONTROL = "FlowControl Request"
    BAD_REQUEST = "Bad Request"
    NO_MESSAGES = "No Messages"
    REQUEST_TIMEOUT = "Request Timeout"
    REQUESTS_PENDING = "Requests Pending"
    INTEREST_EXPIRED = "Interest Expired"
    BATCH_COMPLETED = "Batch Completed"
    SIZE_EXCEEDS = "Message Size Exceeds MaxBytes"
    LEADERSHIP_CHANGE = "Leadership Change"
    SERVER_SHUTDOWN = "Server Shutdown"
    MAX_REQUEST_BATCH = "Exceeded MaxRequestBatch"
    MAX_REQUEST_EXPIRES = "Exceeded MaxRequestExpires"
    MAX_REQUEST_MAX_BYTES = "Exceeded MaxRequestMaxBytes"
    MAX_WAITING = "Exceeded MaxWaiting"
    CONSUMER_DELETED = "Consumer Deleted"
    CONSUMER_IS_PUSH = "Consumer is push based"
    API_LEVEL = "Required Api Level"
    WRONG_PIN = "Nats-Wrong-Pin-Id"
    PIN_MISMATCH = "Nats-Pin-Id mismatch"
    NO_RESPONDERS = "No Responders"
    UNKNOWN = "unknown"


class FetchAction(Enum):
    """What a fetch, next, or the fetch of a pull subscription does on a status."""

    IGNORE = "ignore"  # only shows that the server is alive
    END = "end"  # end normally, with the messages that came before
    END_ERROR_IF_EMPTY = "end, error if empty"  # end normally; raise the error if no message came before
    ERROR = "error"  # hand out the messages that came before, then raise the error


class ConsumeAction(Enum):
    """What a consume or messages does on a status. All but IGNORE and TERMINAL also mean: pull again."""

    IGNORE = "ignore"
    SILENT = "silent"  # the normal end of a pull
    SILENT_IF_DELIVERED = "silent if delivered"  # warn and back off if no message came since the last such status
    WARN = "warn"  # report a warning
    ERROR = "error"  # report an error
    TERMINAL = "terminal"  # end the consume with the error


class PushAction(Enum):
    """What a push subscription does on a status."""

    HEARTBEAT = "heartbeat"
    FLOW = "flow"  # reply when all messages before it in the buffer have been handed out
    SWALLOW = "swallow"
    RAISE = "raise"


class Ends(Enum):
    """Which pulls of a consume a status ends when it has no pending headers.

    All pulls of a consume share one reply subject, so the status does not tell. It follows from what the server
    does: it refuses a pull on arrival, so a refused pull is the newest; a pull that ends later is assumed to be
    the oldest; and after a change of leader the server knows no pull.
    """

    NONE = "none"
    NEWEST = "newest"
    OLDEST = "oldest"
    ALL = "all"


class Rule(NamedTuple):
    """A row of the table: what a status means for each way of consuming."""

    kind: Kind
    fetch: FetchAction
    consume: ConsumeAction
    push: PushAction
    pull_subscription: FetchAction
    ends: Ends
    backs_off: bool = False  # a consume waits before it pulls again, so that it never becomes a busy loop
    drops_pin: bool = False  # the pin id that the client has stored is no longer valid
    hint: str = ""  # what the user can do; part of the error text


class Pending(NamedTuple):
    """How much was left of the pull that a status ends; None when the status does not tell."""

    messages: int | None
    bytes: int | None


_F, _C, _P = FetchAction, ConsumeAction, PushAction

_HEARTBEAT = Rule(Kind.HEARTBEAT, _F.IGNORE, _C.IGNORE, _P.HEARTBEAT, _F.IGNORE, Ends.NONE)
_BAD_REQUEST = Rule(Kind.BAD_REQUEST, _F.ERROR, _C.ERROR, _P.RAISE, _F.ERROR, Ends.NEWEST, backs_off=True)
_NO_MESSAGES = Rule(
    Kind.NO_MESSAGES, _F.END, _C.SILENT, _P.SWALLOW, _F.END, Ends.OLDEST, backs_off=True
)  # backs off, because a no_wait pull, the only one to get it, ends at once
_REQUEST_TIMEOUT = Rule(Kind.REQUEST_TIMEOUT, _F.END, _C.SILENT, _P.SWALLOW, _F.END_ERROR_IF_EMPTY, Ends.OLDEST)
_API_LEVEL = Rule(Kind.API_LEVEL, _F.ERROR, _C.TERMINAL, _P.RAISE, _F.ERROR, Ends.NEWEST)
# Another client is pinned now: the server serves no pull with the old pin id.
_WRONG_PIN = Rule(Kind.WRONG_PIN, _F.END, _C.SILENT, _P.RAISE, _F.END, Ends.ALL, backs_off=True, drops_pin=True)
# 503: no server is subscribed to the pulls of this consumer. Waiting pulls are only in the memory of the leader,
# so the earlier pulls are lost with it.
_NO_RESPONDERS = Rule(
    Kind.NO_RESPONDERS,
    _F.ERROR,
    _C.WARN,
    _P.RAISE,
    _F.ERROR,
    Ends.ALL,
    backs_off=True,
    hint="JetStream, or this consumer, is not there (an election may be under way)",
)
_UNKNOWN = Rule(Kind.UNKNOWN, _F.ERROR, _C.ERROR, _P.RAISE, _F.ERROR, Ends.NEWEST, backs_off=True)


def _limit(kind: Kind, hint: str) -> Rule:
    """The row for a pull that exceeds a limit of the consumer, which the server refuses on arrival."""
    return Rule(kind, _F.ERROR, _C.WARN, _P.RAISE, _F.ERROR, Ends.NEWEST, backs_off=True, hint=hint)


def _terminal(kind: Kind, ends: Ends) -> Rule:
    return Rule(kind, _F.ERROR, _C.TERMINAL, _P.RAISE, _F.ERROR, ends)


def _leader_gone(kind: Kind, ends: Ends) -> Rule:
    return Rule(
        kind,
        _F.END_ERROR_IF_EMPTY,
        _C.WARN,
        _P.RAISE,
        _F.END_ERROR_IF_EMPTY,
        ends,
        backs_off=True,
        hint="try again",
    )


# For each code: the known texts with their rows, and the row for any other text. The texts are in lower case,
# tried in this order, and matched anywhere in the server's text, which may have details around them.
_TABLE: dict[int, tuple[tuple[tuple[str, Rule], ...], Rule]] = {
    100: (
        (("flowcontrol", Rule(Kind.FLOW_CONTROL, _F.IGNORE, _C.IGNORE, _P.FLOW, _F.IGNORE, Ends.NONE)),),
        _HEARTBEAT,
    ),
    400: ((), _BAD_REQUEST),
    404: ((), _NO_MESSAGES),
    408: (
        (
            (
                "requests pending",
                Rule(Kind.REQUESTS_PENDING, _F.END, _C.SILENT, _P.SWALLOW, _F.END, Ends.NEWEST, backs_off=True),
            ),
            (
                "interest expired",
                Rule(Kind.INTEREST_EXPIRED, _F.END, _C.SILENT, _P.SWALLOW, _F.END_ERROR_IF_EMPTY, Ends.OLDEST),
            ),
        ),
        _REQUEST_TIMEOUT,
    ),
    409: (
        (
            ("batch completed", Rule(Kind.BATCH_COMPLETED, _F.END, _C.SILENT, _P.RAISE, _F.END, Ends.OLDEST)),
            (
                "message size exceeds",
                Rule(
                    Kind.SIZE_EXCEEDS,
                    _F.END_ERROR_IF_EMPTY,
                    _C.SILENT_IF_DELIVERED,
                    _P.RAISE,
                    _F.END_ERROR_IF_EMPTY,
                    Ends.OLDEST,
                    hint="the next message is larger than max_bytes: raise it",
                ),
            ),
            # The server sends one status for all pulls with the same reply subject.
            ("leadership change", _leader_gone(Kind.LEADERSHIP_CHANGE, Ends.ALL)),
            ("server shutdown", _leader_gone(Kind.SERVER_SHUTDOWN, Ends.OLDEST)),
            ("maxrequestbatch", _limit(Kind.MAX_REQUEST_BATCH, "ask for fewer messages (max_messages)")),
            ("maxrequestexpires", _limit(Kind.MAX_REQUEST_EXPIRES, "ask for a shorter expires")),
            ("maxrequestmaxbytes", _limit(Kind.MAX_REQUEST_MAX_BYTES, "ask for fewer bytes (max_bytes)")),
            (
                "maxwaiting",
                _limit(Kind.MAX_WAITING, "too many pulls wait on this consumer (its max_waiting)"),
            ),
            ("consumer deleted", _terminal(Kind.CONSUMER_DELETED, Ends.ALL)),
            ("push based", _terminal(Kind.CONSUMER_IS_PUSH, Ends.ALL)),
        ),
        _UNKNOWN,
    ),
    412: ((), _API_LEVEL),
    423: (
        (("mismatch", _WRONG_PIN._replace(kind=Kind.PIN_MISMATCH, ends=Ends.NEWEST)),),
        _WRONG_PIN,
    ),
    503: ((), _NO_RESPONDERS),
}
_OTHER_CODE: tuple[tuple[tuple[str, Rule], ...], Rule] = ((), _UNKNOWN)

_ERRORS: dict[Kind, type[PullError]] = {
    Kind.CONSUMER_DELETED: ConsumerDeletedError,
    Kind.CONSUMER_IS_PUSH: ConsumerIsPushError,
}


def classify(status: Status) -> Rule:
    """The row for a status: that of its text, else that of its code, else UNKNOWN."""
    known, default = _TABLE.get(status.code, _OTHER_CODE)
    if known:
        text = status.description.lower()
        for part, rule in known:
            if part in text:
                return rule
    return default


def to_error(status: Status, subject: str = "", what: str = "pull request failed") -> NatsError:
    """The error for a status that ends a pull. `subject` is the subject of the pull, used for 503 only."""
    rule = classify(status)
    if rule.kind is Kind.NO_RESPONDERS:
        return NoRespondersError(subject, rule.hint)
    message = f"{what}: {status.code} {status.description}".rstrip()
    if rule.hint:
        message = f"{message}; {rule.hint}"
    return _ERRORS.get(rule.kind, PullError)(status.code, status.description, message)


def pending_of(block: bytes) -> Pending:
    """The `Nats-Pending-*` headers of a status, never negative; None where one is missing or not a number."""
    return Pending(
        _natural(header_value(block, b"Nats-Pending-Messages")),
        _natural(header_value(block, b"Nats-Pending-Bytes")),
    )


# An int64 has 19 digits. int() would raise for thousands of digits, and accept underscores.
_MAX_DIGITS = 20


def _natural(value: bytes | None) -> int | None:
    if value is None:
        return None
    digits = value.strip()
    negative = digits[:1] == b"-"
    if negative:
        digits = digits[1:]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    return 0 if negative else int(digits)  # some servers send negative numbers


def read_status(subject: bytes, reply: bytes | None, block: bytes, inbox: bytes) -> Status | None:
    """The status in a message with headers; None when it is a message of the stream.

    A status has three properties: its subject is the `inbox` that it was sent to (a stored message keeps its own
    subject), it has no `$JS.ACK.` reply subject, and its code is on the version line. A message without a body, or
    with a header `Status: 409`, is a stored message: any client may publish one.
    """
    if subject != inbox or (reply is not None and reply.startswith(b"$JS.ACK.")):
        return None
    return status_of(block)
