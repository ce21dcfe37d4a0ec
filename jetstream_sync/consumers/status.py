"""What a status means: one table from (code, text) to a action, used by everything that reads statuses.

Pure: no socket, threading or time. Everything here is immutable and thread-safe.

A status is a message without a body by which the server answers a pull or keeps a subscription alive:
`NATS/1.0 <code> <text>` and perhaps a few headers. Each row of the table says what it means for a fetch (and
next), for a consume (and messages), for a push subscription, and for the older pull subscription, and
which pulls it ends when it does not carry the number of messages that were left (`PullState.status`).
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
    """The name of a status; texts that differ by a detail only share one."""

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
    """What a status does to a fetch or next, and to a pull subscription's fetch."""

    IGNORE = "ignore"  # a sign of life
    END = "end"  # ends normally, with what came before it
    END_ERROR_IF_EMPTY = "end, error if empty"  # the same, but an error when nothing came
    ERROR = "error"  # what came before is delivered first, then the error is raised


class ConsumeAction(Enum):
    """What a status does to a consume or messages. All but the first and the last mean: pull again."""

    IGNORE = "ignore"
    SILENT = "silent"  # a pull's normal end
    SILENT_IF_DELIVERED = "silent if delivered"  # nothing delivered since the last one: warn and back off
    WARN = "warn"  # reported as a warning
    ERROR = "error"  # reported as an error
    TERMINAL = "terminal"  # the consume concludes with the error


class PushAction(Enum):
    """What a status does to a push subscription."""

    HEARTBEAT = "heartbeat"
    FLOW = "flow"  # to be answered when the user reaches this point of the buffer
    SWALLOW = "swallow"
    RAISE = "raise"


class Ends(Enum):
    """Which of a consume's pulls a status ends when it has no pending headers.

    All pulls of a consume share one reply subject, so the status itself does not say. What the server does
    says it: a refused pull never entered its queue, so it is the newest; a pull that ends later is taken for
    the oldest; a new leader, or no leader, knows none of them.
    """

    NONE = "none"
    NEWEST = "newest"
    OLDEST = "oldest"
    ALL = "all"


class Rule(NamedTuple):
    """One row: the meaning of a status for each of its readers."""

    kind: Kind
    fetch: FetchAction
    consume: ConsumeAction
    push: PushAction
    pull_subscription: FetchAction
    ends: Ends
    backs_off: bool = False  # a consume that gets it again and again must not pull in a hot loop
    drops_pin: bool = False  # the stored pin id is no longer valid
    hint: str = ""  # what the user can do about it


class Pending(NamedTuple):
    """What a status says was left of the pull it ends; None when it does not say."""

    messages: int | None
    bytes: int | None


_F, _C, _P = FetchAction, ConsumeAction, PushAction

_HEARTBEAT = Rule(Kind.HEARTBEAT, _F.IGNORE, _C.IGNORE, _P.HEARTBEAT, _F.IGNORE, Ends.NONE)
_BAD_REQUEST = Rule(Kind.BAD_REQUEST, _F.ERROR, _C.ERROR, _P.RAISE, _F.ERROR, Ends.NEWEST, backs_off=True)
_NO_MESSAGES = Rule(
    Kind.NO_MESSAGES, _F.END, _C.SILENT, _P.SWALLOW, _F.END, Ends.OLDEST, backs_off=True
)  # backs off: only a no_wait pull gets it, and that is answered at once
_REQUEST_TIMEOUT = Rule(Kind.REQUEST_TIMEOUT, _F.END, _C.SILENT, _P.SWALLOW, _F.END_ERROR_IF_EMPTY, Ends.OLDEST)
_API_LEVEL = Rule(Kind.API_LEVEL, _F.ERROR, _C.TERMINAL, _P.RAISE, _F.ERROR, Ends.NEWEST)
# The pin passed to another client: no pull that carries the old one is served any more.
_WRONG_PIN = Rule(Kind.WRONG_PIN, _F.END, _C.SILENT, _P.RAISE, _F.END, Ends.ALL, backs_off=True, drops_pin=True)
# 503: no server listens for this consumer's pulls. Waiting pulls live in the leader's memory alone, so the
# older ones are gone with it.
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
    """A pull over one of the consumer's limits: refused on arrival."""
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


# Per code: the texts that are known (lower case, tried in this order, matched anywhere in the server's text,
# so a detail behind or before them does no harm) and the row for every other text under that code.
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
            # One status for all pulls: the server keeps one entry per reply subject.
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
    """The row for a status. Every status has one: its text's, else its code's, else UNKNOWN."""
    known, default = _TABLE.get(status.code, _OTHER_CODE)
    if known:
        text = status.description.lower()
        for part, rule in known:
            if part in text:
                return rule
    return default


def to_error(status: Status, subject: str = "", what: str = "pull request failed") -> NatsError:
    """The error for a status that ends a pull; `subject` is what was asked, for 503 only."""
    rule = classify(status)
    if rule.kind is Kind.NO_RESPONDERS:
        return NoRespondersError(subject, rule.hint)
    message = f"{what}: {status.code} {status.description}".rstrip()
    if rule.hint:
        message = f"{message}; {rule.hint}"
    return _ERRORS.get(rule.kind, PullError)(status.code, status.description, message)


def pending_of(block: bytes) -> Pending:
    """What a status' `Nats-Pending-*` headers say, never negative; None for one missing or no number."""
    return Pending(
        _natural(header_value(block, b"Nats-Pending-Messages")),
        _natural(header_value(block, b"Nats-Pending-Bytes")),
    )


# An int64 has 19 digits; int() refuses thousands of them with an error, and underscores it would take.
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
    return 0 if negative else int(digits)  # servers do send negative numbers


def read_status(subject: bytes, reply: bytes | None, block: bytes, inbox: bytes) -> Status | None:
    """The status that a message with headers is, or None when it is a user's message.

    Three things together make a status: it arrived on the subject its reader waits on (a stored message keeps
    its own), it has no `$JS.ACK.` reply, and the code stands on the version line. Anybody can store a message
    with a header `Status: 409` or no body: those are user messages. Call it only for messages that have
    headers.
    """
    if subject != inbox or (reply is not None and reply.startswith(b"$JS.ACK.")):
        return None
    return status_of(block)
