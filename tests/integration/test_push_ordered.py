"""The ordered push subscription against a real server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import ConsumerConfig, JetStream, JetStreamMessage
from tests.support.eventually import eventually
from tests.support.observer import fill
from tests.support.push import consumers, take
from tests.support.watchdog import InThread


@pytest.fixture
def stream(js: JetStream) -> JetStream:
    js.create_stream(name="S", subjects=["s.>"])
    return js


def test_ordered_has_what_adr_17_prescribes(stream: JetStream) -> None:
    """An ordered subscription's consumer: no acks, one delivery, in memory, flow control, heartbeat of 5 s."""
    with stream.subscribe("s.>", ordered_consumer=True) as sub:
        config = sub.consumer_info().config
        assert (config.ack_policy, config.max_deliver, config.mem_storage, config.num_replicas) == (
            "none",
            1,
            True,
            1,
        )
        assert (config.flow_control, config.idle_heartbeat, config.ack_wait) == (True, 5.0, 22 * 3600.0)
        assert config.durable_name is None
    assert consumers(stream) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"config": {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}}, [2, 3, 4, 5]),
        ({"config": ConsumerConfig(deliver_policy="last")}, [4, 5]),
        ({"deliver_policy": "new", "idle_heartbeat": 1.0}, [5]),
        ({"config": {"max_deliver": 1, "ack_policy": "none", "flow_control": True}}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ordered_begins_where_it_is_told(stream: JetStream, options: dict[str, Any], expected: list[int]) -> None:
    """The deliver policy is the user's; a ConsumerConfig's default ack policy is no objection."""
    fill(stream, 5)
    with stream.subscribe("s.>", ordered_consumer=True, **options) as sub:
        stream.publish("s.x", b"5")
        assert take(sub, len(expected)) == expected


def test_ordered_mends_a_deleted_consumer(stream: JetStream) -> None:
    """A consumer that is deleted is replaced when its heartbeats are missed: nothing is lost or doubled."""
    stream.publish("s.other", b"-")  # so that stream and consumer sequences differ
    fill(stream, 50)
    with stream.subscribe("s.x", ordered_consumer=True, idle_heartbeat=0.2) as sub:
        assert take(sub, 20) == list(range(20))
        first = sub.consumer_name
        stream.delete_consumer("S", first)
        fill(stream, 50, first=50)
        assert take(sub, 80) == list(range(20, 100))
        assert sub.consumer_name != first
        assert consumers(stream) == [sub.consumer_name]


def test_ordered_of_new_messages_misses_none_while_it_is_replaced(stream: JetStream) -> None:
    """A consumer of new messages that is lost before its first one is replaced from where it began."""
    fill(stream, 3)
    with stream.subscribe("s.x", ordered_consumer=True, deliver_policy="new", idle_heartbeat=0.2) as sub:
        stream.delete_consumer("S", sub.consumer_name)
        fill(stream, 3, first=3)
        assert take(sub, 3) == [3, 4, 5]


def test_ordered_ends_when_the_stream_is_gone(stream: JetStream) -> None:
    """Without its stream an ordered subscription cannot be mended: it ends with that error."""
    sub = stream.subscribe("s.x", ordered_consumer=True, idle_heartbeat=0.2)
    stream.delete_stream("S")
    error = InThread(sub.next_msg, 10.0).error(10.0)
    assert isinstance(error, jetstream_sync.StreamNotFoundError)


def test_ordered_with_dropped_messages_gets_them_again(stream: JetStream) -> None:
    """What does not fit the buffer is dropped, and for an ordered subscription read again: all come, in order."""
    fill(stream, 300)
    seen: list[int] = []
    slow = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        if len(seen) < 3:
            slow.wait(0.05)
        seen.append(int(message.data))

    sub = stream.subscribe("s.x", ordered_consumer=True, cb=handle, pending_msgs_limit=64, idle_heartbeat=0.2)
    eventually(lambda: len(seen) == 300, 20.0)
    assert seen == list(range(300))
    assert sub.dropped > 0
    sub.unsubscribe()
