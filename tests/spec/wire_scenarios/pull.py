"""Pull consumers, one pull at a time: fetch, next, pull_subscribe; and acknowledgements."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial

import pytest

from jetstream_sync import ConsumerDeletedError, JetStreamMessage, MessageBatch, NoRespondersError, TimeoutError
from tests.spec.wire_scenarios.bench import PULL, Bench, scenario
from tests.support.consuming import buffered
from tests.support.eventually import eventually


def acked(messages: Iterable[JetStreamMessage]) -> list[str]:
    """Acknowledge each message as it comes; their payloads."""
    seen = []
    for message in messages:
        seen.append(message.data.decode())
        message.ack()
    return seen


def arrived(batch: MessageBatch, count: int) -> MessageBatch:
    """`batch`, when so many messages have come: what is handed back does not depend on the time."""
    eventually(lambda: buffered(batch) == count)
    return batch


# --- fetch --------------------------------------------------------------------------------------------------


@scenario("fetch")
def fetch(bench: Bench) -> None:
    """Batches of messages that are there."""
    consumer = bench.consumer(10)
    with bench.step("three, each acknowledged when it comes"):
        bench.note(*acked(consumer.fetch(3)))
    with bench.step("two, acknowledged at the end"):
        for message in list(consumer.fetch(2)):
            message.ack()
    with bench.step("one"):
        bench.note(*acked(consumer.fetch(1)))
    with bench.step("with heartbeats"):
        bench.note(*acked(consumer.fetch(2, expires=60)))
        bench.note(*acked(consumer.fetch(1, idle_heartbeat=1)))
    with bench.step("without waiting: one of five is there"):
        bench.note(*acked(consumer.fetch_nowait(5)))
    with bench.step("without waiting: none is there"):
        bench.note(*acked(consumer.fetch_nowait(5)))
        bench.note(*acked(consumer.fetch_nowait(1)))


@scenario("fetch")
def fetch_bytes(bench: Bench) -> None:
    """Batches limited by bytes."""
    consumer = bench.consumer(6, size=1000)
    with bench.step("the next message does not fit"):
        bench.note(len(list(consumer.fetch(max_bytes=2500))))
    with bench.step("bytes and messages"):
        bench.note(len(list(consumer.fetch(1, max_bytes=2500))))
        bench.note(len(list(consumer.fetch(2, max_bytes=5000))))
    with bench.step("without waiting"):
        bench.note(len(list(consumer.fetch_nowait(max_bytes=5000))))


@scenario("fetch")
def fetch_waits(bench: Bench) -> None:
    """Batches of messages that are yet to come, or do not come."""
    consumer = bench.consumer(1)
    with bench.step("one of three comes"):
        bench.note(*acked(consumer.fetch(3, expires=0.2)))
    with bench.step("two come later"):
        bench.when(PULL, partial(bench.fill, 2))
        bench.note(*acked(consumer.fetch(2, expires=20)))
    with bench.step("one comes later, with heartbeats"):
        bench.when(PULL, partial(bench.fill, 1))
        bench.note(*acked(consumer.fetch(1, expires=20, idle_heartbeat=5)))
    with bench.step("none comes"):
        bench.note(*acked(consumer.fetch(3, expires=0.1)))
    with bench.step("none comes for a batch of one"):
        bench.note(*acked(consumer.fetch(1, expires=0.1)))


@scenario("fetch")
def fetch_left(bench: Bench) -> None:
    """Batches that are left early."""
    consumer = bench.consumer(9)
    with bench.step("the loop is left"):
        for message in arrived(consumer.fetch(3), 3):
            bench.note(message.data.decode())
            break
        gc.collect()
        bench.wait_for("UNSUB")
    with bench.step("close(), twice"):
        batch = arrived(consumer.fetch(3), 3)
        next(iter(batch))
        batch.close()
        batch.close()
    with bench.step("a `with` block"):
        with arrived(consumer.fetch(100), 7):
            pass


@scenario("fetch")
def fetch_given_up(bench: Bench) -> None:
    """Batches that are left before anything has come."""
    consumer = bench.consumer()
    with bench.step("a `with` block"):
        with consumer.fetch(1, expires=20):
            pass
    with bench.step("never iterated, and dropped"):
        consumer.fetch(2, expires=20)
        gc.collect()
        bench.wait_for("UNSUB")


@scenario("fetch")
def fetch_fails(bench: Bench) -> None:
    """The consumer is deleted during a fetch, and before one."""
    consumer = bench.consumer(1)
    with bench.step("deleted during a fetch"):
        bench.when(PULL, partial(bench.delete_pulled, "C"))
        with pytest.raises(ConsumerDeletedError):
            bench.note(*acked(consumer.fetch(2, expires=20)))
    with bench.step("deleted before a fetch"):
        with pytest.raises(NoRespondersError):
            list(consumer.fetch(2, expires=20))
        with pytest.raises(NoRespondersError):
            list(consumer.fetch(1, expires=20))


# --- next ---------------------------------------------------------------------------------------------------


@scenario("next")
def next_message(bench: Bench) -> None:
    """One message at a time."""
    consumer = bench.consumer(3)
    with bench.step("two that are there"):
        for _ in range(2):
            message = consumer.next()
            assert message is not None
            message.ack()
    with bench.step("with a heartbeat"):
        message = consumer.next(10, idle_heartbeat=2)
        assert message is not None
        message.ack()
    with bench.step("one that comes later"):
        bench.when(PULL, partial(bench.fill, 1))
        message = consumer.next(20)
        assert message is not None
        message.ack()
    with bench.step("none comes"):
        bench.note(consumer.next(0.1))
    with bench.step("the consumer is deleted"):
        bench.when(PULL, partial(bench.delete_pulled, "C"))
        with pytest.raises(ConsumerDeletedError):
            consumer.next(20)
    with bench.step("no consumer"):
        with pytest.raises(NoRespondersError):
            consumer.next(20)


@scenario("next", since=(2, 11))
def priority_groups(bench: Bench) -> None:
    """Priority groups: the options of a pull, and the id of a pinned client."""
    bench.stream(6)
    group = {"priority_groups": ["g"], "ack_policy": "none"}
    pinning = {"priority_policy": "pinned_client", "priority_timeout": 60}
    bench.admin.create_consumer("S", durable_name="P", **pinning, **group)
    bench.admin.create_consumer("S", durable_name="O", priority_policy="overflow", **group)
    pinned, overflow = bench.js.get_consumer("S", "P"), bench.js.get_consumer("S", "O")
    with bench.step("pinned: the second pull has the id"):
        assert pinned.next(group="g") is not None
        assert pinned.next(group="g") is not None
        bench.note(len(list(pinned.fetch(2, group="g"))))
    with bench.step("overflow"):
        bench.note(len(list(overflow.fetch_nowait(2, group="g", min_pending=1))))
        bench.note(len(list(overflow.fetch_nowait(2, group="g", min_ack_pending=1, min_pending=1))))


# --- acknowledgements ---------------------------------------------------------------------------------------


@scenario("acks")
def acks(bench: Bench) -> None:
    """Each kind of acknowledgement, once per message."""
    consumer = bench.consumer(8, ack_wait=60)
    with bench.step("fetch"):
        first, second, third, fourth, fifth, sixth, seventh, eighth = consumer.fetch(8)
    with bench.step("ack, and again"):
        first.ack()
        first.ack()
        first.nak()
    with bench.step("nak, nak with a delay"):
        second.nak()
        third.nak(30)
    with bench.step("term, term with a reason"):
        fourth.term()
        fifth.term("cannot be read")
    with bench.step("in progress, then ack"):
        sixth.in_progress()
        sixth.in_progress()
        sixth.ack()
        sixth.in_progress()
    with bench.step("ack_sync"):
        seventh.ack_sync()
        seventh.ack_sync()
        eighth.ack_sync()


@scenario("acks")
def no_acks(bench: Bench) -> None:
    """Of a consumer with ack policy none nothing is acknowledged."""
    consumer = bench.consumer(2, ack_policy="none")
    with bench.step("fetch and acknowledge"):
        first, second = consumer.fetch(2)
        first.ack()
        second.nak()
        second.ack_sync()


# --- pull_subscribe -----------------------------------------------------------------------------------------

# What a fetch is given, and what is left of it for the server: a margin is the client's.
TIMEOUT = 20.0
EXPIRES = 19.9


@scenario("pull_subscribe")
def pull_subscribe(bench: Bench) -> None:
    """A durable is created, used and deleted."""
    bench.stream(6)  # not later: the ack of a message does not mean that a no-wait pull finds it
    with bench.step("subscribe"):
        sub = bench.js.pull_subscribe("s.x", "D")
    with bench.step("fetch one that is there, twice"):
        bench.note(*acked(sub.fetch(1)), *acked(sub.fetch(1)))
    with bench.step("fetch three that are there"):
        bench.note(*acked(sub.fetch(3)))
    with bench.step("fetch one of three that is there"):
        bench.note(*acked(sub.fetch(3)))
    with bench.step("fetch one that comes later", elapsing=EXPIRES):
        bench.when(PULL, partial(bench.fill, 1), count=2)
        bench.note(*acked(sub.fetch(1, TIMEOUT)))
    with bench.step("fetch three of which one comes later", elapsing=EXPIRES):
        bench.when(PULL, partial(bench.fill, 1), count=2)
        bench.note(*acked(sub.fetch(3, TIMEOUT)))
    with bench.step("none comes", elapsing=0.9):
        with pytest.raises(TimeoutError):
            sub.fetch(2, 1.0)
    with bench.step("unsubscribe, twice"):
        sub.unsubscribe()
        sub.unsubscribe()


@scenario("pull_subscribe")
def pull_subscribe_bound(bench: Bench) -> None:
    """Other ways to subscribe: what was found is left alone."""
    bench.consumer(2)
    with bench.step("bind to a consumer, in a `with` block"):
        with bench.js.pull_subscribe(stream="S", consumer="C") as sub:
            bench.note(*acked(sub.fetch(1)))
    with bench.step("a durable that is there"):
        with bench.js.pull_subscribe("s.x", "C") as sub:
            bench.note(*acked(sub.fetch(1)))
    with bench.step("without a name"):
        with bench.js.pull_subscribe("s.x", config={"max_deliver": 3}) as sub:
            bench.note(*acked(sub.fetch(1)))
    with bench.step("bind to a consumer that is not there: its pulls are not answered"):
        with bench.js.pull_subscribe(stream="S", consumer="NONE") as sub:
            with pytest.raises(NoRespondersError):
                sub.fetch(1)
            with pytest.raises(NoRespondersError):
                sub.fetch(2)
