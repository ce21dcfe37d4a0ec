"""Reply subjects of JetStream messages: both forms, and everything that is neither."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone

import pytest

from jetstream_sync import JetStreamMessage, NotJSMessageError
from jetstream_sync.api.message import Metadata, SequencePair, parse_metadata

STORED_NS = 1_700_000_000_123_456_789
V1 = f"$JS.ACK.ORDERS.worker.3.17.12.{STORED_NS}.42"
V2 = f"$JS.ACK.hub.AHASH.ORDERS.worker.3.17.12.{STORED_NS}.42"


def message(reply: str | None, data: bytes = b"") -> JetStreamMessage:
    return JetStreamMessage((b"orders.new", None if reply is None else reply.encode(), None, data))


def expected(domain: str) -> Metadata:
    return Metadata("ORDERS", "worker", domain, SequencePair(17, 12), 3, 42, STORED_NS)


@pytest.mark.parametrize(
    ("reply", "domain"),
    [
        (V1, ""),
        (V2, "hub"),
        (V2.replace(".hub.", "._."), ""),
        (V2 + ".random", "hub"),
        (V2 + ".random.and.more", "hub"),
    ],
    ids=["9 tokens", "11 tokens", "11 tokens without domain", "12 tokens", "14 tokens"],
)
def test_metadata_is_read_from_both_forms(reply: str, domain: str) -> None:
    """Nine tokens are the first form, eleven or more the second; what follows the eleventh is ignored."""
    assert message(reply).metadata == expected(domain)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "",
        "_INBOX.abc",
        V1.rpartition(".")[0],
        V1 + ".extra",
        V1.replace("$JS.ACK", "$JS.NAK"),
        V1.replace("$JS", "JS"),
        V1.replace(".17.", ".x17."),
        V1.replace(".17.", ".-17."),
        V1.replace(".17.", ".1_7."),
        V1.replace(".17.", ".+17."),
        V1.replace(".17.", "..") + ".9",
        V1.replace(".42", ".٤٢"),
        V1.replace(".42", "." + "9" * 5000),
        V2.replace(".12.", ".twelve."),
    ],
    ids=[
        "none",
        "empty",
        "inbox",
        "8 tokens",
        "10 tokens",
        "other verb",
        "other prefix",
        "letters",
        "negative",
        "underscore",
        "plus",
        "empty token",
        "digits of another script",
        "thousands of digits",
        "v2 not a number",
    ],
)
def test_metadata_of_something_else_raises_when_asked_for(reply: str | None) -> None:
    """The message itself can be read; only `metadata` raises NotJSMessageError."""
    msg = message(reply, b"payload")
    assert msg.data == b"payload"
    assert msg.subject == "orders.new"
    assert not msg.is_acked
    with pytest.raises(NotJSMessageError):
        _ = msg.metadata


@pytest.mark.parametrize("reply", [None, "_INBOX.abc"])
@pytest.mark.parametrize("verb", ["ack", "nak", "term", "in_progress", "ack_sync"])
def test_ack_of_a_message_that_is_not_of_jetstream_raises(reply: str | None, verb: str) -> None:
    """What did not come from a consumer cannot be acknowledged."""
    with pytest.raises(NotJSMessageError):
        getattr(message(reply), verb)()


def test_timestamp_is_aware_and_exact_to_the_microsecond() -> None:
    """The nanoseconds of the subject become a datetime in UTC; they themselves stay available."""
    metadata = parse_metadata(V1)
    assert metadata.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc)
    assert metadata.timestamp_ns == STORED_NS


def test_largest_numbers_are_read() -> None:
    """Sequences are unsigned 64-bit integers, and even their largest timestamp is a date."""
    top = 2**64 - 1
    metadata = parse_metadata(f"$JS.ACK.S.C.{top}.{top}.{top}.{top}.{top}")
    assert metadata.sequence == (top, top)
    assert metadata.num_delivered == metadata.num_pending == top
    assert metadata.timestamp.year == 2554


def test_metadata_is_parsed_once_and_pickles() -> None:
    """Asked for again it is the same object; it and its message can be carried to another process."""
    msg = message(V2)
    assert msg.metadata is msg.metadata
    assert pickle.loads(pickle.dumps(msg.metadata)) == msg.metadata
    assert pickle.loads(pickle.dumps(msg)).metadata == msg.metadata


def test_ack_of_an_unpickled_message_says_why_not() -> None:
    """An unpickled message has no connection to acknowledge on."""
    copy = pickle.loads(pickle.dumps(message(V1)))
    with pytest.raises(Exception, match="unpickled"):
        copy.ack()
    assert not copy.is_acked


@pytest.mark.parametrize("reason", ["a\r\nPUB x 0", "tab\there", "nul\0"])
def test_term_reason_with_control_characters_is_refused(reason: str) -> None:
    """A reason cannot break out of its payload's line."""
    with pytest.raises(ValueError, match="reason"):
        message(V1).term(reason)


@pytest.mark.parametrize(("delay", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_nak_delay_that_is_no_duration_is_refused(delay: object, error: type[Exception]) -> None:
    """A negative delay, not-a-number and a string are errors before anything is sent."""
    with pytest.raises(error, match="delay"):
        message(V1).nak(delay)  # type: ignore[arg-type]
