"""The status table: every status a server was seen to send, and those it might."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetstream_sync.consumers.status import (
    ConsumeAction,
    Ends,
    FetchAction,
    Kind,
    Pending,
    PushAction,
    classify,
    pending_of,
    read_status,
    to_error,
)
from jetstream_sync.errors import ConsumerDeletedError, ConsumerIsPushError, NoRespondersError, PullError
from jetstream_sync.protocol.headers import Status, status_of

STATUSES = Path(__file__).parents[2] / "data" / "statuses.jsonl"

F, C, P = FetchAction, ConsumeAction, PushAction

# (code, description in statuses.jsonl) → kind, fetch, consume, push, pull subscription, ends, backs off, drops pin
EXPECTED = {
    ("100", "FlowControl Request"): (
        Kind.FLOW_CONTROL, F.IGNORE, C.IGNORE, P.FLOW, F.IGNORE, Ends.NONE, False, False,
    ),
    ("100", "Idle Heartbeat"): (
        Kind.HEARTBEAT, F.IGNORE, C.IGNORE, P.HEARTBEAT, F.IGNORE, Ends.NONE, False, False,
    ),
    ("404", "No Messages"): (
        Kind.NO_MESSAGES, F.END, C.SILENT, P.SWALLOW, F.END, Ends.OLDEST, True, False,
    ),
    ("408", "Interest Expired"): (
        Kind.INTEREST_EXPIRED, F.END, C.SILENT, P.SWALLOW, F.END_ERROR_IF_EMPTY, Ends.OLDEST, False, False,
    ),
    ("408", "Request Timeout"): (
        Kind.REQUEST_TIMEOUT, F.END, C.SILENT, P.SWALLOW, F.END_ERROR_IF_EMPTY, Ends.OLDEST, False, False,
    ),
    ("408", "Requests Pending"): (
        Kind.REQUESTS_PENDING, F.END, C.SILENT, P.SWALLOW, F.END, Ends.NEWEST, True, False,
    ),
    ("409", "Batch Completed"): (
        Kind.BATCH_COMPLETED, F.END, C.SILENT, P.RAISE, F.END, Ends.OLDEST, False, False,
    ),
    ("409", "Consumer Deleted"): (
        Kind.CONSUMER_DELETED, F.ERROR, C.TERMINAL, P.RAISE, F.ERROR, Ends.ALL, False, False,
    ),
    ("409", "Consumer is push based"): (
        Kind.CONSUMER_IS_PUSH, F.ERROR, C.TERMINAL, P.RAISE, F.ERROR, Ends.ALL, False, False,
    ),
    ("409", "Exceeded MaxRequestBatch of N"): (
        Kind.MAX_REQUEST_BATCH, F.ERROR, C.WARN, P.RAISE, F.ERROR, Ends.NEWEST, True, False,
    ),
    ("409", "Exceeded MaxRequestExpires of N"): (
        Kind.MAX_REQUEST_EXPIRES, F.ERROR, C.WARN, P.RAISE, F.ERROR, Ends.NEWEST, True, False,
    ),
    ("409", "Exceeded MaxRequestMaxBytes of N"): (
        Kind.MAX_REQUEST_MAX_BYTES, F.ERROR, C.WARN, P.RAISE, F.ERROR, Ends.NEWEST, True, False,
    ),
    ("409", "Exceeded MaxWaiting"): (
        Kind.MAX_WAITING, F.ERROR, C.WARN, P.RAISE, F.ERROR, Ends.NEWEST, True, False,
    ),
    ("409", "Leadership Change"): (
        Kind.LEADERSHIP_CHANGE, F.END_ERROR_IF_EMPTY, C.WARN, P.RAISE, F.END_ERROR_IF_EMPTY,
        Ends.ALL, True, False,
    ),
    ("409", "Message Size Exceeds MaxBytes"): (
        Kind.SIZE_EXCEEDS, F.END_ERROR_IF_EMPTY, C.SILENT_IF_DELIVERED, P.RAISE, F.END_ERROR_IF_EMPTY,
        Ends.OLDEST, False, False,
    ),
    ("409", "Server Shutdown"): (
        Kind.SERVER_SHUTDOWN, F.END_ERROR_IF_EMPTY, C.WARN, P.RAISE, F.END_ERROR_IF_EMPTY,
        Ends.OLDEST, True, False,
    ),
    ("412", "Required Api Level"): (
        Kind.API_LEVEL, F.ERROR, C.TERMINAL, P.RAISE, F.ERROR, Ends.NEWEST, False, False,
    ),
    ("423", "Nats-Pin-Id mismatch"): (
        Kind.PIN_MISMATCH, F.END, C.SILENT, P.RAISE, F.END, Ends.NEWEST, True, True,
    ),
    ("423", "Nats-Wrong-Pin-Id"): (
        Kind.WRONG_PIN, F.END, C.SILENT, P.RAISE, F.END, Ends.ALL, True, True,
    ),
    ("503", ""): (
        Kind.NO_RESPONDERS, F.ERROR, C.WARN, P.RAISE, F.ERROR, Ends.ALL, True, False,
    ),
}  # fmt: skip
_BAD_REQUEST = (Kind.BAD_REQUEST, F.ERROR, C.ERROR, P.RAISE, F.ERROR, Ends.NEWEST, True, False)
EXPECTED.update(
    {
        ("400", f"Bad Request - {reason}"): _BAD_REQUEST
        for reason in (
            "Invalid Priority Group",
            "Not a Overflow Priority consumer",
            "Not a Pinned Client Priority consumer",
            "Priority Group missing",
            "Priority must be between 0 and 9",
            "heartbeat value too large",
            "json: ...",
            "unexpected end of JSON input",
        )
    }
)


def recorded() -> list[dict[str, object]]:
    lines = STATUSES.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [row for row in rows if row["code"] != "-ERR"]


def block_of(example: str) -> bytes:
    """The header block of a recorded HMSG."""
    control, _, rest = example.encode().partition(b"\r\n")
    return rest[: int(control.split()[-2])]


def test_classify_every_recorded_status() -> None:
    """Each status that a server was seen to send has exactly the actions named for it here."""
    seen = set()
    for row in recorded():
        key = (str(row["code"]), str(row["description"]))
        seen.add(key)
        status = status_of(block_of(str(row["example"])))
        assert status is not None, row
        rule = classify(status)
        got = (rule.kind, rule.fetch, rule.consume, rule.push, rule.pull_subscription, rule.ends)
        assert (*got, rule.backs_off, rule.drops_pin) == EXPECTED[key], key
    assert seen == set(EXPECTED)


def test_pending_of_every_recorded_status() -> None:
    """Pending headers are found exactly where the recording has them."""
    for row in recorded():
        pending = pending_of(block_of(str(row["example"])))
        headers = row["headers"]
        assert isinstance(headers, list)
        assert (pending.messages is not None) == ("Nats-Pending-Messages" in headers), row
        assert (pending.bytes is not None) == ("Nats-Pending-Bytes" in headers), row


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status(409, "EXCEEDED MAXREQUESTBATCH OF 7"), Kind.MAX_REQUEST_BATCH),
        (Status(409, "Exceeded MaxRequestBatch"), Kind.MAX_REQUEST_BATCH),
        (Status(409, "consumer deleted (really)"), Kind.CONSUMER_DELETED),
        (Status(409, "Something New"), Kind.UNKNOWN),
        (Status(409, ""), Kind.UNKNOWN),
        (Status(408, ""), Kind.REQUEST_TIMEOUT),
        (Status(408, "Something New"), Kind.REQUEST_TIMEOUT),
        (Status(404, "Something New"), Kind.NO_MESSAGES),
        (Status(423, "Something New"), Kind.WRONG_PIN),
        (Status(100, ""), Kind.HEARTBEAT),
        (Status(100, "flowcontrol request"), Kind.FLOW_CONTROL),
        (Status(503, "No Responders Available"), Kind.NO_RESPONDERS),
        (Status(500, "Server Error"), Kind.UNKNOWN),
        (Status(429, "Too Many Requests"), Kind.UNKNOWN),
        (Status(0, ""), Kind.UNKNOWN),
    ],
)
def test_classify_tolerates_other_texts(status: Status, kind: Kind) -> None:
    """Case and details do not matter; an unknown text falls to its code's default, an unknown code to UNKNOWN."""
    assert classify(status).kind is kind


def test_classify_unknown_is_an_error_that_a_consume_survives() -> None:
    """An unknown status fails a fetch; a consume reports it and recovers with back-off."""
    rule = classify(Status(409, "Something New"))
    assert (rule.fetch, rule.consume, rule.push) == (F.ERROR, C.ERROR, P.RAISE)
    assert rule.backs_off


def test_classify_repeatable_refusals_back_off() -> None:
    """Whatever can answer a pull at once, again and again, is backed off from (or ends the consume)."""
    for kind_of in (Ends.NEWEST, Ends.ALL):
        for key, expected in EXPECTED.items():
            if expected[5] is kind_of:
                assert expected[6] or expected[2] is C.TERMINAL, key


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status(409, "Consumer Deleted"), ConsumerDeletedError),
        (Status(409, "Consumer is push based"), ConsumerIsPushError),
        (Status(409, "Exceeded MaxWaiting"), PullError),
        (Status(400, "Bad Request - heartbeat value too large"), PullError),
        (Status(999, ""), PullError),
    ],
)
def test_to_error_carries_code_and_description(status: Status, error: type[PullError]) -> None:
    """The error is of the status' own class and has the server's words."""
    got = to_error(status)
    assert type(got) is error
    assert isinstance(got, PullError)
    assert (got.code, got.description) == status
    assert status.description in str(got)


def test_to_error_names_the_subject_without_responders() -> None:
    """A 503 is NoRespondersError on the subject that was asked."""
    got = to_error(Status(503, ""), "$JS.API.CONSUMER.MSG.NEXT.S.C")
    assert isinstance(got, NoRespondersError)
    assert "not there" in str(got)  # what it means, besides the subject
    assert got.subject == "$JS.API.CONSUMER.MSG.NEXT.S.C"


def test_to_error_says_what_to_do() -> None:
    """A message that fits into no pull says which option to raise."""
    assert "max_bytes" in str(to_error(Status(409, "Message Size Exceeds MaxBytes")))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"Nats-Pending-Messages: 3\r\nNats-Pending-Bytes: 40\r\n", Pending(3, 40)),
        (b"nats-pending-messages:3\r\n", Pending(3, None)),
        (b"Nats-Pending-Bytes: 7\r\n", Pending(None, 7)),
        (b"Nats-Pending-Messages: -4\r\nNats-Pending-Bytes: -1\r\n", Pending(0, 0)),
        (b"Nats-Pending-Messages: \r\nNats-Pending-Bytes: x\r\n", Pending(None, None)),
        (b"Nats-Pending-Messages: 1_0\r\nNats-Pending-Bytes: 1.5\r\n", Pending(None, None)),
        (b"Nats-Pending-Messages: --1\r\nNats-Pending-Bytes: " + b"9" * 5000 + b"\r\n", Pending(None, None)),
        (b"", Pending(None, None)),
    ],
)
def test_pending_of_clamps_and_ignores_garbage(lines: bytes, expected: Pending) -> None:
    """Negative numbers are zero; what is no number is as good as missing."""
    assert pending_of(b"NATS/1.0 409 Whatever\r\n" + lines + b"\r\n") == expected


INBOX = b"_INBOX.abc.1"
ACK = b"$JS.ACK.S.C.1.1.1.1700000000000000000.0"
TIMEOUT = b"NATS/1.0 408 Request Timeout\r\n\r\n"


@pytest.mark.parametrize(
    ("subject", "reply", "block", "expected"),
    [
        (INBOX, None, TIMEOUT, Status(408, "Request Timeout")),
        (INBOX, b"$JS.FC.S.F.x", b"NATS/1.0 100 FlowControl Request\r\n\r\n", Status(100, "FlowControl Request")),
        (INBOX, None, b"NATS/1.0 503\r\n\r\n", Status(503, "")),
        # A stored message with a forged version line: it keeps its own subject, or has an ack reply.
        (b"orders.new", ACK, TIMEOUT, None),
        (b"orders.new", None, TIMEOUT, None),
        (INBOX, ACK, TIMEOUT, None),
        # A header that only looks like a status.
        (INBOX, None, b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n", None),
        (INBOX, None, b"NATS/9.9 409 Consumer Deleted\r\n\r\n", None),
        (INBOX, None, b"garbage", None),
    ],
)
def test_read_status_needs_subject_reply_and_version_line(
    subject: bytes, reply: bytes | None, block: bytes, expected: Status | None
) -> None:
    """A status is told by its subject, its reply and its version line together, never by a header."""
    assert read_status(subject, reply, block, INBOX) == expected
