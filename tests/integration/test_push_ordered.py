"""The ordered push subscription against a real server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import ConsumerConfig, JetStream, JetStreamMessage
from tests.support.eventually import eventually
from tests.support.observer import consumers, fill
from tests.support.push import take
from tests.support.watchdog import InThread

pytestmark = pytest.mark.usefixtures("stream")


def test_ordered_has_what_adr_17_prescribes(js: JetStream) -> None:
    """An ordered subscription's consumer: no acks, one delivery, in memory, flow control, heartbeat of 5 s."""
    with js.subscribe("s.>", ordered_consumer=True) as sub:
        config = sub.consumer_info().config
        assert (config.ack_policy, config.max_deliver, config.mem_storage, config.num_replicas) == (
            "none",
            1,
            True,
            1,
        )
        assert (config.flow_control, config.idle_heartbeat, config.ack_wait) == (True, 5.0, 22 * 3600.0)
        assert config.durable_name is None
    assert consumers(js) == []


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
def test_ordered_begins_where_it_is_told(js: JetStream, options: dict[str, Any], expected: list[int]) -> None:
    """The deliver policy is the user's; a ConsumerConfig's default ack policy is no objection."""
    fill(js, 5)
    with js.subscribe("s.>", ordered_consumer=True, **options) as sub:
        js.publish("s.x", b"5")
        assert take(sub, len(expected)) == expected


def test_ordered_mends_a_deleted_consumer(js: JetStream) -> None:
    """A consumer that is deleted is replaced when its heartbeats are missed: nothing is lost or doubled."""
    js.publish("s.other", b"-")  # so that stream and consumer sequences differ
    fill(js, 50)
    with js.subscribe("s.x", ordered_consumer=True, idle_heartbeat=0.2) as sub:
        assert take(sub, 20) == list(range(20))
        first = sub.consumer_name
        js.delete_consumer("S", first)
        fill(js, 50, first=50)
        assert take(sub, 80) == list(range(20, 100))
        assert sub.consumer_name != first
        assert consumers(js) == [sub.consumer_name]


def test_ordered_of_new_messages_misses_none_while_it_is_replaced(js: JetStream) -> None:
    """A consumer of new messages that is lost before its first one is replaced from where it began."""
    fill(js, 3)
    with js.subscribe("s.x", ordered_consumer=True, deliver_policy="new", idle_heartbeat=0.2) as sub:
        js.delete_consumer("S", sub.consumer_name)
        fill(js, 3, first=3)
        assert take(sub, 3) == [3, 4, 5]


def test_ordered_ends_when_the_stream_is_gone(js: JetStream) -> None:
    """Without its stream an ordered subscription cannot be mended: it ends with that error."""
    sub = js.subscribe("s.x", ordered_consumer=True, idle_heartbeat=0.2)
    js.delete_stream("S")
    error = InThread(sub.next_msg, 10.0).error(10.0)
    assert isinstance(error, jetstream_sync.StreamNotFoundError)


def test_ordered_with_dropped_messages_gets_them_again(js: JetStream) -> None:
    """What does not fit the buffer is dropped, and for an ordered subscription read again: all come, in order."""
    fill(js, 300)
    seen: list[int] = []
    slow = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        if len(seen) < 3:
            slow.wait(0.05)
        seen.append(int(message.data))

    sub = js.subscribe("s.x", ordered_consumer=True, cb=handle, pending_msgs_limit=64, idle_heartbeat=0.2)
    eventually(lambda: len(seen) == 300, 20.0)
    assert seen == list(range(300))
    assert sub.dropped > 0
    sub.unsubscribe()
