"""What an ordered consumer may be asked for, and what is refused before anything is sent."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync import AckPolicy, ConsumerConfigError, DeliverPolicy, NotJSMessageError
from jetstream_sync.consumers.chain import delivery_of
from jetstream_sync.consumers.ordered import ordered_config

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def test_config_without_fields_is_an_ephemeral_that_acknowledges_nothing() -> None:
    """ack none, one delivery, in memory, one replica, removed after five minutes without use."""
    assert ordered_config({}).to_wire() == {
        "ack_policy": "none",
        "max_deliver": 1,
        "inactive_threshold": 300_000_000_000,
        "num_replicas": 1,
        "mem_storage": True,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("durable_name", "d"),
        ("name", "n"),
        ("deliver_subject", "inbox"),
        ("deliver_group", "g"),
        ("ack_policy", "explicit"),
        ("ack_policy", AckPolicy.ALL),
        ("max_deliver", 2),
        ("max_deliver", -1),
        ("mem_storage", False),
        ("num_replicas", 3),
        ("flow_control", True),
        ("idle_heartbeat", 5),
        ("backoff", [1]),
        ("ack_wait", 30),
        ("max_ack_pending", 10),
        ("priority_groups", ["g"]),
    ],
)
def test_config_with_a_field_of_other_consumers_is_refused(field: str, value: Any) -> None:
    """The error names the field."""
    with pytest.raises(ConsumerConfigError, match=field) as caught:
        ordered_config({field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ack_policy", "none"),
        ("ack_policy", AckPolicy.NONE),
        ("max_deliver", 1),
        ("mem_storage", True),
        ("num_replicas", 1),
        ("durable_name", None),
        ("deliver_subject", None),
    ],
)
def test_config_that_says_what_holds_anyway_is_taken(field: str, value: Any) -> None:
    """Naming the fixed value, or None, changes nothing."""
    assert ordered_config({field: value}) == ordered_config({})


def test_config_with_chosen_fields_keeps_them() -> None:
    """What is the user's to choose goes to the server."""
    chosen = {
        "description": "d",
        "filter_subjects": ["a", "b.>"],
        "replay_policy": "original",
        "inactive_threshold": timedelta(seconds=7),
        "headers_only": True,
        "metadata": {"k": "v"},
    }
    wire = ordered_config(chosen).to_wire()
    assert wire["filter_subjects"] == ["a", "b.>"]
    assert wire["replay_policy"] == "original"
    assert wire["inactive_threshold"] == 7_000_000_000
    assert wire["headers_only"] is True
    assert wire["metadata"] == {"k": "v"}
    assert wire["description"] == "d"


def test_config_is_independent_of_the_fields_given() -> None:
    """Changing a list afterwards does not change the consumer."""
    subjects = ["a"]
    config = ordered_config({"filter_subjects": subjects})
    subjects.append("b")
    assert config.filter_subjects == ["a"]


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"opt_start_seq": 5}, DeliverPolicy.BY_START_SEQUENCE),
        ({"opt_start_time": NOON}, DeliverPolicy.BY_START_TIME),
        ({"opt_start_seq": 5, "deliver_policy": "by_start_sequence"}, DeliverPolicy.BY_START_SEQUENCE),
    ],
)
def test_start_option_alone_chooses_its_deliver_policy(fields: dict[str, Any], policy: DeliverPolicy) -> None:
    """opt_start_seq and opt_start_time say where to begin without a deliver_policy beside them."""
    assert ordered_config(fields).deliver_policy == policy


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"opt_start_seq": 5, "deliver_policy": "all"}, "opt_start_seq"),
        ({"opt_start_time": NOON, "deliver_policy": "new"}, "opt_start_time"),
        ({"opt_start_seq": 5, "opt_start_time": NOON}, "opt_start_time"),
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq"),
        ({"deliver_policy": "by_start_time"}, "opt_start_time"),
        ({"filter_subject": "a", "filter_subjects": ["b"]}, "filter_subjects"),
        ({"inactive_threshold": 0}, "inactive_threshold"),
    ],
)
def test_options_that_contradict_each_other_are_refused(fields: dict[str, Any], named: str) -> None:
    """The error names the field."""
    with pytest.raises(ConsumerConfigError) as caught:
        ordered_config(fields)
    assert caught.value.field == named


def test_last_per_subject_without_a_filter_covers_all_subjects() -> None:
    """The server refuses that policy without a filter."""
    assert ordered_config({"deliver_policy": "last_per_subject"}).filter_subjects == [">"]
    one = ordered_config({"deliver_policy": "last_per_subject", "filter_subject": "a.*"})
    assert one.filter_subject == "a.*"
    assert one.filter_subjects is None


def test_unknown_option_is_a_type_error() -> None:
    """A misspelt name is not silently dropped."""
    with pytest.raises(TypeError, match="filter_subjcet"):
        ordered_config({"filter_subjcet": "a"})


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.c.1.17.4.1700000000000000000.3",
        b"$JS.ACK._.hash.S.c.1.17.4.1700000000000000000.3",
        b"$JS.ACK.dom.hash.S.c.1.17.4.1700000000000000000.3.more",
    ],
)
def test_sequences_are_read_from_both_forms_of_the_reply(reply: bytes) -> None:
    """Nine tokens, or eleven and more."""
    assert delivery_of((b"s", reply, None, b"")) == (b"c", 17, 4)


@pytest.mark.parametrize("reply", [None, b"_INBOX.x", b"$JS.ACK.S.c.1.x.4.5.3", b"$JS.ACK.a.S.c.1.17.4.5.3"])
def test_sequences_of_a_foreign_message_raise(reply: bytes | None) -> None:
    """What did not come from JetStream has no place in the order."""
    with pytest.raises(NotJSMessageError):
        delivery_of((b"s", reply, None, b""))
