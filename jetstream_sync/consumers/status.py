"""What a status means: one table from (code, text) to actions, used by all code that reads statuses.

No socket, thread or clock. Everything here is immutable and thread-safe.

A status is a message without a body, `NATS/1.0 <code> <text>`, possibly with headers. The server sends it to end a
pull or to keep a subscription alive.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..errors import ConsumerDeletedError, ConsumerIsPushError, NatsError, NoRespondersError, PullError
from ..protocol.headers import Status, header_value, status_of


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
    fetch: FetchAction  # for next, too
    consume: ConsumeAction  # for messages, too
    ends: Ends
    push: PushAction = PushAction.RAISE
    backs_off: bool = False  # a consume waits before it pulls again, so that it never becomes a busy loop
    drops_pin: bool = False  # the pin id that the client has stored is no longer valid
    hint: str = ""  # what the user can do; part of the error text

    @property
    def pull_subscription(self) -> FetchAction:
        """For a pull subscription: as for a fetch, but a pull that ran out of time must not be empty."""
        ran_out = self.kind in (Kind.REQUEST_TIMEOUT, Kind.INTEREST_EXPIRED)
        return FetchAction.END_ERROR_IF_EMPTY if ran_out else self.fetch


class Pending(NamedTuple):
    """How much was left of the pull that a status ends; None when the status does not tell."""

    messages: int | None
    bytes: int | None


_F, _C, _P = FetchAction, ConsumeAction, PushAction

_TOO_LARGE = "the next message is larger than max_bytes: raise it"
_NOT_THERE = "JetStream, or this consumer, is not there (an election may be under way)"
_UNKNOWN = Rule(Kind.UNKNOWN, _F.ERROR, _C.ERROR, Ends.NEWEST, backs_off=True)
# Another client is pinned now: the server serves no pull with the old pin id.
_WRONG_PIN = Rule(Kind.WRONG_PIN, _F.END, _C.SILENT, Ends.ALL, backs_off=True, drops_pin=True)


def _limit(kind: Kind, hint: str) -> Rule:
    """The row for a pull that exceeds a limit of the consumer, which the server refuses on arrival."""
    return Rule(kind, _F.ERROR, _C.WARN, Ends.NEWEST, backs_off=True, hint=hint)


def _leader_gone(kind: Kind, ends: Ends) -> Rule:
    return Rule(kind, _F.END_ERROR_IF_EMPTY, _C.WARN, ends, backs_off=True, hint="try again")


# For each code: texts and their rows. The texts are in lower case, tried in this order, and matched anywhere in
# the server's text, which may have details around them. The empty text matches every other one.
_TABLE: dict[int, dict[str, Rule]] = {
    100: {
        "flowcontrol": Rule(Kind.FLOW_CONTROL, _F.IGNORE, _C.IGNORE, Ends.NONE, _P.FLOW),
        "": Rule(Kind.HEARTBEAT, _F.IGNORE, _C.IGNORE, Ends.NONE, _P.HEARTBEAT),
    },
    400: {"": _UNKNOWN._replace(kind=Kind.BAD_REQUEST)},
    # Backs off, because a no_wait pull, the only one to get it, ends at once.
    404: {"": Rule(Kind.NO_MESSAGES, _F.END, _C.SILENT, Ends.OLDEST, _P.SWALLOW, backs_off=True)},
    408: {
        "requests pending": Rule(
            Kind.REQUESTS_PENDING, _F.END, _C.SILENT, Ends.NEWEST, _P.SWALLOW, backs_off=True
        ),
        "interest expired": Rule(Kind.INTEREST_EXPIRED, _F.END, _C.SILENT, Ends.OLDEST, _P.SWALLOW),
        "": Rule(Kind.REQUEST_TIMEOUT, _F.END, _C.SILENT, Ends.OLDEST, _P.SWALLOW),
    },
    409: {
        "batch completed": Rule(Kind.BATCH_COMPLETED, _F.END, _C.SILENT, Ends.OLDEST),
        "message size exceeds": Rule(
            Kind.SIZE_EXCEEDS, _F.END_ERROR_IF_EMPTY, _C.SILENT_IF_DELIVERED, Ends.OLDEST, hint=_TOO_LARGE
        ),
        # The server sends one status for all pulls with the same reply subject.
        "leadership change": _leader_gone(Kind.LEADERSHIP_CHANGE, Ends.ALL),
        "server shutdown": _leader_gone(Kind.SERVER_SHUTDOWN, Ends.OLDEST),
        "maxrequestbatch": _limit(Kind.MAX_REQUEST_BATCH, "ask for fewer messages (max_messages)"),
        "maxrequestexpires": _limit(Kind.MAX_REQUEST_EXPIRES, "ask for a shorter expires"),
        "maxrequestmaxbytes": _limit(Kind.MAX_REQUEST_MAX_BYTES, "ask for fewer bytes (max_bytes)"),
        "maxwaiting": _limit(Kind.MAX_WAITING, "too many pulls wait on this consumer (its max_waiting)"),
        "consumer deleted": Rule(Kind.CONSUMER_DELETED, _F.ERROR, _C.TERMINAL, Ends.ALL),
        "push based": Rule(Kind.CONSUMER_IS_PUSH, _F.ERROR, _C.TERMINAL, Ends.ALL),
    },
    412: {"": Rule(Kind.API_LEVEL, _F.ERROR, _C.TERMINAL, Ends.NEWEST)},
    423: {"mismatch": _WRONG_PIN._replace(kind=Kind.PIN_MISMATCH, ends=Ends.NEWEST), "": _WRONG_PIN},
    # No server is subscribed to the pulls of this consumer. Waiting pulls are only in the memory of the leader, so
    # the earlier pulls are lost with it.
    503: {"": Rule(Kind.NO_RESPONDERS, _F.ERROR, _C.WARN, Ends.ALL, backs_off=True, hint=_NOT_THERE)},
}

_ERRORS: dict[Kind, type[PullError]] = {
    Kind.CONSUMER_DELETED: ConsumerDeletedError,
    Kind.CONSUMER_IS_PUSH: ConsumerIsPushError,
}


def classify(status: Status) -> Rule:
    """The row for a status: that of its code and text, else UNKNOWN."""
    text = status.description.lower()
    for part, rule in _TABLE.get(status.code, {}).items():
        if part in text:
            return rule
    return _UNKNOWN


def to_error(status: Status, subject: str = "", what: str = "pull request failed") -> NatsError:
    """The error for a status that ends a pull. `subject` is the subject of the pull, which names the consumer."""
    rule = classify(status)
    if rule.kind is Kind.NO_RESPONDERS:
        return NoRespondersError(subject, rule.hint)
    message = f"{what}: {status.code} {status.description}".rstrip()
    stream, _, consumer = subject.partition(".CONSUMER.MSG.NEXT.")[2].partition(".")
    if consumer:
        message = f"{message}: consumer {consumer!r} on stream {stream!r}"
    if rule.hint:
        message = f"{message}; {rule.hint}"
    error = _ERRORS.get(rule.kind, PullError)(status.code, status.description, message)
    error.stream, error.consumer = stream, consumer
    return error


def pending_of(block: bytes) -> Pending:
    """The `Nats-Pending-*` headers of a status, never negative; None where one is missing or not a number."""
    return Pending(_natural(block, b"Nats-Pending-Messages"), _natural(block, b"Nats-Pending-Bytes"))


def _natural(block: bytes, name: bytes) -> int | None:
    value = (header_value(block, name) or b"").strip()
    digits = value.removeprefix(b"-")
    # int() would accept underscores, and raise for thousands of digits; an int64 has 19.
    if not digits.isdigit() or len(digits) > 20:
        return None
    return max(0, int(value))  # some servers send negative numbers


def read_status(subject: bytes, reply: bytes | None, block: bytes, inbox: bytes) -> Status | None:
    """The status in a message with headers; None when it is a message of the stream.

    A status has three properties: its subject is the `inbox` that it was sent to (a stored message keeps its own
    subject), it has no `$JS.ACK.` reply subject, and its code is on the version line. A message without a body, or
    with a header `Status: 409`, is a stored message: any client may publish one.
    """
    if subject != inbox or (reply is not None and reply.startswith(b"$JS.ACK.")):
        return None
    return status_of(block)
