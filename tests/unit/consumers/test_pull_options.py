"""Pull requests: the JSON that is sent, and every bound of their options."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from jetstream_sync.consumers.pull_options import (
    ConsumeOptions,
    FetchOptions,
    Priority,
    client_grace,
    message_size,
    pull_body,
)

S = 1_000_000_000


def test_pull_body_sends_only_what_is_set() -> None:
    """A bare pull is its batch alone, in compact JSON."""
    assert pull_body(batch=1) == b'{"batch":1}'
    assert pull_body(batch=5, expires_ns=S, no_wait=False) == b'{"batch":5,"expires":1000000000}'


def test_pull_body_sends_everything() -> None:
    """Every option has the server's name for it; priority 0 is a value, not unset."""
    body = pull_body(
        batch=10,
        expires_ns=2 * S,
        max_bytes=1000,
        heartbeat_ns=S,
        no_wait=True,
        priority=Priority("g", 3, 4, 0),
        pin_id="p",
    )
    assert json.loads(body) == {
        "batch": 10,
        "expires": 2 * S,
        "max_bytes": 1000,
        "idle_heartbeat": S,
        "no_wait": True,
        "group": "g",
        "min_pending": 3,
        "min_ack_pending": 4,
        "id": "p",
        "priority": 0,
    }


@pytest.mark.parametrize(("expires", "grace"), [(0.0, 1.0), (5.0, 1.0), (10.0, 1.0), (30.0, 3.0), (600.0, 60.0)])
def test_client_grace_is_a_second_or_a_tenth(expires: float, grace: float) -> None:
    """The client waits a second longer than the server, or a tenth of a long expiry."""
    assert client_grace(expires) == pytest.approx(grace)


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        ((b"a.b", None, None, b""), 3),
        ((b"a.b", b"$JS.ACK.x", None, b"data"), 3 + 9 + 4),
        ((b"a.b", b"r", b"NATS/1.0\r\n\r\n", b"data"), 3 + 1 + 12 + 4),
    ],
)
def test_message_size_is_as_the_server_counts(
    raw: tuple[bytes, bytes | None, bytes | None, bytes], size: int
) -> None:
    """The size is that of subject, reply, headers and payload; a part that is missing counts as 0."""
    assert message_size(raw) == size


def test_fetch_defaults() -> None:
    """Five seconds, no heartbeat, no limit of bytes."""
    options = FetchOptions.make(10)
    assert json.loads(options.body()) == {"batch": 10, "expires": 5 * S}
    assert options.expires == 5.0
    assert options.heartbeat is None


def test_fetch_with_max_bytes_alone_sends_a_formal_batch() -> None:
    """With max_bytes alone the batch is 1 000 000; with both, both are sent."""
    assert json.loads(FetchOptions.make(max_bytes=100).body()) == {
        "batch": 1_000_000,
        "max_bytes": 100,
        "expires": 5 * S,
    }
    both = json.loads(FetchOptions.make(7, max_bytes=100).body())
    assert (both["batch"], both["max_bytes"]) == (7, 100)


def test_fetch_nowait_has_neither_expiry_nor_heartbeat() -> None:
    """A no_wait pull returns only messages that are available now."""
    assert json.loads(FetchOptions.make(3, no_wait=True).body()) == {"batch": 3, "no_wait": True}


@pytest.mark.parametrize(
    ("expires", "heartbeat_ns"),
    [
        (5.0, 0),
        (30.0, 0),
        (30.5, 15_250_000_000),
        (60.0, 30 * S),
        (600.0, 30 * S),
        (timedelta(seconds=40), 20 * S),
    ],
)
def test_fetch_heartbeat_default_for_long_pulls_only(expires: Any, heartbeat_ns: int) -> None:
    """More than 30 s: half of expires, at most 30 s; else none."""
    assert FetchOptions.make(1, expires=expires).heartbeat_ns == heartbeat_ns


def test_fetch_heartbeat_is_taken_when_asked_for() -> None:
    """Up to exactly half of expires is fine; 0 turns it off."""
    assert FetchOptions.make(1, expires=0.3, idle_heartbeat=0.15).heartbeat_ns == 150_000_000
    assert FetchOptions.make(1, expires=60, idle_heartbeat=0).heartbeat_ns == 0


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({}, ValueError, "max_messages or max_bytes"),
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"max_messages": -1}, ValueError, "max_messages"),
        ({"max_messages": 2**63}, ValueError, "max_messages"),
        ({"max_messages": 1.0}, TypeError, "max_messages"),
        ({"max_messages": True}, TypeError, "max_messages"),
        ({"max_messages": "5"}, TypeError, "max_messages"),
        ({"max_bytes": 0}, ValueError, "max_bytes"),
        ({"max_messages": 1, "expires": 0}, ValueError, "expires"),
        ({"max_messages": 1, "expires": -1}, ValueError, "expires"),
        ({"max_messages": 1, "expires": float("nan")}, ValueError, "expires"),
        ({"max_messages": 1, "expires": float("inf")}, ValueError, "expires"),
        ({"max_messages": 1, "expires": 1e-10}, ValueError, "expires"),
        ({"max_messages": 1, "expires": "5"}, TypeError, "expires"),
        ({"max_messages": 1, "expires": None}, TypeError, "expires"),
        ({"max_messages": 1, "expires": 2, "idle_heartbeat": 1.001}, ValueError, "idle_heartbeat"),
        ({"max_messages": 1, "idle_heartbeat": -1}, ValueError, "idle_heartbeat"),
    ],
)
def test_fetch_refuses_what_is_out_of_bounds(
    arguments: dict[str, Any], error: type[Exception], names: str
) -> None:
    """Nothing is sent that the server would refuse; the error names the option."""
    with pytest.raises(error, match=names):
        FetchOptions.make(**arguments)


def test_consume_defaults() -> None:
    """500 messages, refilled at 250, 30 s, heartbeat 15 s."""
    options = ConsumeOptions.make()
    assert (options.limit, options.threshold, options.by_bytes) == (500, 250, False)
    assert (options.expires, options.heartbeat) == (30.0, 15.0)
    assert json.loads(options.body(500, "pin")) == {
        "batch": 500,
        "expires": 30 * S,
        "idle_heartbeat": 15 * S,
        "id": "pin",
    }


def test_consume_by_bytes_leaves_messages_unlimited() -> None:
    """max_bytes alone limits a pull; max_messages beside it is refused, whatever its value."""
    options = ConsumeOptions.make(max_bytes=1001)
    assert (options.limit, options.threshold, options.by_bytes) == (1001, 500, True)
    assert json.loads(options.body(300))["max_bytes"] == 300
    assert json.loads(options.body(300))["batch"] == 1_000_000
    with pytest.raises(ValueError, match="exclude each other"):
        ConsumeOptions.make(max_messages=500, max_bytes=1001)


@pytest.mark.parametrize(
    ("given", "automatic"),
    [
        ({}, True),
        ({"expires": 5, "priority": Priority(group="g")}, True),
        ({"max_messages": 500}, False),
        ({"max_messages": 1}, False),
        ({"max_bytes": 1000}, False),
        ({"threshold_messages": 100}, False),
        ({"max_bytes": 1000, "threshold_bytes": 100}, False),
    ],
)
def test_consume_is_automatic_when_no_size_is_given(given: dict[str, Any], automatic: bool) -> None:
    """A number of messages or bytes, or a threshold, is taken as it is."""
    assert ConsumeOptions.make(**given).automatic is automatic


@pytest.mark.parametrize(("limit", "threshold"), [(1, 1), (2, 1), (3, 1), (4, 2), (500, 250)])
def test_consume_threshold_default_is_half_and_at_least_one(limit: int, threshold: int) -> None:
    """Half of the limit, never 0."""
    assert ConsumeOptions.make(max_messages=limit).threshold == threshold
    assert ConsumeOptions.make(max_bytes=limit).threshold == threshold


@pytest.mark.parametrize(
    ("expires", "heartbeat_ns"), [(1, S // 2), (30, 15 * S), (60, 30 * S), (3600, 30 * S), (1.1, 550_000_000)]
)
def test_consume_heartbeat_default_is_half_of_expires(expires: float, heartbeat_ns: int) -> None:
    """Half of expires in whole nanoseconds, at most 30 s, and never more than the server accepts."""
    options = ConsumeOptions.make(expires=expires)
    assert options.heartbeat_ns == heartbeat_ns
    assert 2 * options.heartbeat_ns <= options.expires_ns


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"max_messages": 2.5}, TypeError, "max_messages"),
        ({"max_bytes": 0}, ValueError, "max_bytes"),
        ({"max_messages": 10, "max_bytes": 10}, ValueError, "exclude"),
        ({"expires": 0.999}, ValueError, "expires"),
        ({"expires": timedelta(milliseconds=999)}, ValueError, "expires"),
        ({"idle_heartbeat": 0.499}, ValueError, "idle_heartbeat"),
        ({"idle_heartbeat": 0}, ValueError, "idle_heartbeat"),
        ({"idle_heartbeat": 30.001, "expires": 100}, ValueError, "idle_heartbeat"),
        ({"idle_heartbeat": 15.001}, ValueError, "half of expires"),
        ({"threshold_messages": 0}, ValueError, "threshold_messages"),
        ({"threshold_messages": 501}, ValueError, "threshold_messages"),
        ({"threshold_messages": 1.5}, TypeError, "threshold_messages"),
        ({"threshold_bytes": 10}, ValueError, "threshold_bytes"),
        ({"max_bytes": 10, "threshold_bytes": 11}, ValueError, "threshold_bytes"),
        ({"max_bytes": 10, "threshold_messages": 1}, ValueError, "threshold_messages"),
    ],
)
def test_consume_refuses_what_is_out_of_bounds(
    arguments: dict[str, Any], error: type[Exception], names: str
) -> None:
    """Every bound is checked before anything is sent; the error names the option."""
    with pytest.raises(error, match=names):
        ConsumeOptions.make(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"idle_heartbeat": 0.5},
        {"idle_heartbeat": 30, "expires": 60},
        {"idle_heartbeat": timedelta(seconds=15)},
        {"threshold_messages": 500},
        {"threshold_messages": 1},
        {"max_bytes": 10, "threshold_bytes": 10},
        {"expires": 1},
    ],
)
def test_consume_accepts_the_bounds_themselves(arguments: dict[str, Any]) -> None:
    """Each bound is inclusive."""
    ConsumeOptions.make(**arguments)


def test_priority_goes_with_every_pull() -> None:
    """A fetch's and a consume's pulls carry the priority options."""
    priority = Priority(group="g", min_pending=5, min_ack_pending=6, priority=9).checked()
    sent = {"group": "g", "min_pending": 5, "min_ack_pending": 6, "priority": 9}
    fetch = json.loads(FetchOptions.make(1, priority=priority).body("pin"))
    consume = json.loads(ConsumeOptions.make(priority=priority).body(1))
    assert sent.items() <= fetch.items()
    assert fetch["id"] == "pin"
    assert sent.items() <= consume.items()
    assert "id" not in consume


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({"group": ""}, ValueError, "group"),
        ({"group": 5}, TypeError, "group"),
        ({"min_pending": 5}, ValueError, "group"),
        ({"priority": 0}, ValueError, "group"),
        ({"group": "g", "min_pending": 0}, ValueError, "min_pending"),
        ({"group": "g", "min_ack_pending": 0}, ValueError, "min_ack_pending"),
        ({"group": "g", "priority": 10}, ValueError, "priority"),
        ({"group": "g", "priority": -1}, ValueError, "priority"),
        ({"group": "g", "priority": "1"}, TypeError, "priority"),
    ],
)
def test_priority_refuses_what_is_out_of_bounds(
    arguments: dict[str, Any], error: type[Exception], names: str
) -> None:
    """Priority options are checked and need their group."""
    with pytest.raises(error, match=names):
        Priority(**arguments).checked()
