"""Push subscriptions: plain, durable, queue, flow control, ordered."""

from __future__ import annotations

import pytest

from jetstream_sync import JetStreamMessage, PushSubscription, StreamNotFoundError
from tests.spec.wire_scenarios.bench import ACK, Bench, scenario
from tests.support.eventually import eventually
from tests.support.wire import Frame


def take(sub: PushSubscription, count: int, *, ack: bool = False) -> list[str]:
    seen = []
    for _ in range(count):
        message = sub.next_msg(10)
        seen.append(message.data.decode())
        if ack:
            message.ack()
    return seen


@scenario("push")
def ephemeral(bench: Bench) -> None:
    """A consumer without a name is created and deleted with the subscription."""
    bench.stream(2)
    with bench.step("subscribe"):
        sub = bench.js.subscribe("s.x")
    with bench.step("take two"):
        bench.note(*take(sub, 2, ack=True))
    with bench.step("unsubscribe, twice"):
        sub.unsubscribe()
        sub.unsubscribe()
    with bench.step("options, in a `with` block"):
        with bench.js.subscribe(
            "s.*", stream="S", config={"max_deliver": 3}, ack_wait=20, ack_policy="none", idle_heartbeat=5
        ) as sub:
            bench.note(*take(sub, 2, ack=True))
    with bench.step("no stream"):
        with pytest.raises(StreamNotFoundError):
            bench.js.subscribe("t.x")


@scenario("push")
def durable(bench: Bench) -> None:
    """A durable is created, found, bound to."""
    bench.stream(3)
    with bench.step("create it"):
        sub = bench.js.subscribe("s.x", durable="D", deliver_subject="here.d")
        bench.note(*take(sub, 3, ack=True))
    with bench.step("drain: it is deleted"):
        sub.drain()
    bench.admin.create_consumer("S", durable_name="D", deliver_subject="there.d", filter_subject="s.x")
    with bench.step("find it"):
        sub = bench.js.subscribe("s.x", durable="D")
        bench.note(*take(sub, 3, ack=True))
    with bench.step("unsubscribe: it stays"):
        sub.unsubscribe()
    bench.unbound("D")
    with bench.step("bind to it and look at it"):
        with bench.js.subscribe(stream="S", consumer="D") as sub:
            bench.note(sub.consumer_info().name)


@scenario("push")
def queue(bench: Bench) -> None:
    """A queue: its members share a durable, which the first one creates."""
    bench.stream()
    with bench.step("two members"):
        first = bench.js.subscribe("s.x", queue="crew")
        second = bench.js.subscribe("s.x", queue="crew")
    with bench.step("the second leaves, the first leaves"):
        second.unsubscribe()
        first.unsubscribe()
    with bench.step("a durable of another name"):
        with bench.js.subscribe("s.x", queue="crew", durable="D"):
            pass


@scenario("push")
def callbacks(bench: Bench) -> None:
    """A callback: acknowledged when it returns, nak'ed when it raises, neither with manual_ack."""
    bench.stream(3)

    def handle(message: JetStreamMessage) -> None:
        if message.data == b"1":
            raise ZeroDivisionError
        if message.data == b"2":
            message.term()

    with bench.step("three messages"):
        sub = bench.js.subscribe("s.x", cb=handle, max_deliver=1)
        bench.wait_for(ACK, 3)
    with bench.step("drain"):
        sub.drain()
    seen: list[JetStreamMessage] = []
    with bench.step("manual_ack"):
        sub = bench.js.subscribe("s.x", cb=seen.append, manual_ack=True)
        eventually(lambda: len(seen) == 3)
        seen[1].ack()
    with bench.step("unsubscribe"):
        sub.unsubscribe()


@scenario("push")
def flow_control(bench: Bench) -> None:
    """A flow-control request is answered when everything before it has been taken."""
    bench.stream(20, size=64 * 1024)
    with bench.step("subscribe, and let the server send until it asks"):
        sub = bench.js.subscribe("s.x", flow_control=True, idle_heartbeat=10, ack_policy="none")
        bench.wait_to_hear(b"FlowControl")
    with bench.step("take all"):
        bench.note(len(take(sub, 20)))
    with bench.step("unsubscribe"):
        sub.unsubscribe()


# --- ordered ------------------------------------------------------------------------------------------------


def deleted_twice(frame: Frame) -> bool:
    """The deletion of the consumer by the thread that replaced the one before.

    That thread sends it when the subscription ended before it has seen the reply to the creation. The first
    message of the new consumer may be taken before.
    """
    return "CONSUMER.DELETE" in frame.text and len(frame.words) == 1


@scenario("push_ordered")
def ordered(bench: Bench) -> None:
    """Every message once, in order."""
    bench.stream(3)
    with bench.step("subscribe and take three"):
        sub = bench.js.subscribe("s.x", ordered_consumer=True)
        bench.note(*take(sub, 3))
    with bench.step("unsubscribe"):
        sub.unsubscribe()


@scenario("push_ordered")
def gap(bench: Bench) -> None:
    """A gap: another consumer takes over behind the last message."""
    bench.stream(3)
    with bench.step("subscribe; the buffer has no room for the third message"):
        sub = bench.js.subscribe("s.x", ordered_consumer=True, pending_msgs_limit=2)
        bench.wait_to_hear(b"\r\n2\r\n")
    with bench.step("take two"):
        bench.note(*take(sub, 2))
    with bench.step("the fourth message shows that one is missing"):
        bench.fill(1, first=3)
        bench.note(*take(sub, 2))
    with bench.step("unsubscribe", optional=deleted_twice):
        sub.unsubscribe()


@scenario("push_ordered")
def silent(bench: Bench) -> None:
    """The consumer is deleted on the server: no heartbeat comes, and another consumer takes over."""
    bench.stream(2)
    with bench.step("subscribe and take two"):
        sub = bench.js.subscribe("s.x", ordered_consumer=True, idle_heartbeat=0.5)
        bench.note(*take(sub, 2))
    with bench.step("deleted on the server"):
        bench.admin.delete_consumer("S", sub.consumer_name)
        bench.fill(1, first=2)
        bench.note(*take(sub, 1))
    with bench.step("drain", optional=deleted_twice):
        sub.drain()


@scenario("push_ordered")
def with_callback(bench: Bench) -> None:
    """With a callback and options; nothing is acknowledged."""
    bench.stream(3)
    seen: list[JetStreamMessage] = []
    with bench.step("subscribe"):
        sub = bench.js.subscribe(
            "s.x",
            stream="S",
            cb=seen.append,
            ordered_consumer=True,
            deliver_policy="by_start_sequence",
            opt_start_seq=2,
            headers_only=True,
        )
        eventually(lambda: len(seen) == 2)
        seen[0].ack()
    with bench.step("unsubscribe"):
        sub.unsubscribe()
