"""Pull consumers without an end: messages and consume."""

from __future__ import annotations

import gc
import threading
from functools import partial
from itertools import islice

import pytest

from jetstream_sync import ConsumerDeletedError, JetStreamMessage, MessageStream
from tests.spec.wire_scenarios.bench import ACK, PULL, Bench, scenario
from tests.support.eventually import eventually


def take(stream: MessageStream, count: int, *, ack: bool = False) -> list[str]:
    """The next messages, each acknowledged when it comes if asked for; their payloads."""
    seen = []
    for _ in range(count):
        message = stream.next(timeout=10)
        seen.append(message.data.decode())
        if ack:
            message.ack()
    return seen


# --- messages -----------------------------------------------------------------------------------------------


@scenario("messages")
def one_ahead(bench: Bench) -> None:
    """One message at a time: the next pull leaves when the next message is asked for, after the ack."""
    consumer = bench.consumer(4)
    with bench.step("open"):
        stream = consumer.messages(max_messages=1)
    for number in range(2):
        with bench.step(f"take message {number}"):
            bench.note(*take(stream, 1, ack=True))
    with bench.step("take two by iterating"):
        for message in islice(stream, 2):
            bench.note(message.data.decode())
            message.ack()
    with bench.step("stop, twice"):
        stream.stop()
        stream.stop()
        bench.wait_for("UNSUB")


@scenario("messages")
def by_default(bench: Bench) -> None:
    """Defaults: the first pull asks for one message, the next ones for twice as many."""
    consumer = bench.consumer(3)
    with bench.step("open and take", apart=ACK):
        stream = consumer.messages()
        bench.note(*take(stream, 3, ack=True))
    with bench.step("leave the `with` block"):
        with stream:
            pass
    with bench.step("many messages"):
        bench.fill(600)
        with consumer.messages(max_messages=500) as stream:
            take(stream, 600)
    with bench.step("dropped"):
        consumer.messages()
        gc.collect()
        bench.wait_for("UNSUB")


@scenario("messages")
def thresholds(bench: Bench) -> None:
    """The next pull leaves when as many are pending as the threshold says."""
    consumer = bench.consumer(100, ack_policy="none")
    with bench.step("half of ten by default"):
        with consumer.messages(max_messages=10) as stream:
            for count in (4, 1, 4, 1):
                take(stream, count)
                bench.nc.flush()
    with bench.step("one of four"):
        with consumer.messages(max_messages=4, threshold_messages=1, expires=20, idle_heartbeat=5) as stream:
            for count in (2, 1, 3):
                take(stream, count)
                bench.nc.flush()
    with bench.step("all of two, iterated"):
        with consumer.messages(max_messages=2, threshold_messages=2) as stream:
            for _ in islice(stream, 3):
                bench.nc.flush()


@scenario("messages")
def drained(bench: Bench) -> None:
    """drain() ends the interest; what is buffered can still be taken."""
    consumer = bench.consumer(5)
    with bench.step("open and take one"):
        stream = consumer.messages(max_messages=10)
        bench.note(*take(stream, 1, ack=True))
        bench.wait_to_hear(b"\r\n4\r\n")
    with bench.step("drain and take the rest", apart=ACK):
        stream.drain()
        for message in stream:
            bench.note(message.data.decode())
            message.ack()


@scenario("messages")
def limited_by_bytes(bench: Bench) -> None:
    """Limited by bytes."""
    consumer = bench.consumer(4, size=1000, ack_policy="none")
    with bench.step("open and take four"):
        with consumer.messages(max_bytes=8000, threshold_bytes=6000) as stream:
            for _ in range(4):
                take(stream, 1)
                bench.nc.flush()


@scenario("messages")
def expired(bench: Bench) -> None:
    """A pull that expires is followed by another."""
    consumer = bench.consumer(1)
    with bench.step("take one, wait for the expiry, take another", apart=ACK):
        stream = consumer.messages(max_messages=10, expires=2)
        bench.when(PULL, partial(bench.fill, 1, first=1), count=2)
        bench.note(*take(stream, 2, ack=True))
    with bench.step("stop"):
        stream.stop()
        bench.wait_for("UNSUB")


@scenario("messages")
def deleted(bench: Bench) -> None:
    """The consumer is deleted."""
    consumer = bench.consumer()
    with bench.step("open, delete the consumer, take"):
        stream = consumer.messages()
        bench.delete_pulled("C")
        with pytest.raises(ConsumerDeletedError):
            stream.next(timeout=10)


@scenario("messages", since=(2, 11))
def in_a_group(bench: Bench) -> None:
    """A priority group: the second pull has the id of the pinned client."""
    bench.stream(4)
    bench.admin.create_consumer(
        "S",
        durable_name="C",
        ack_policy="none",
        priority_groups=["g"],
        priority_policy="pinned_client",
        priority_timeout=60,
    )
    consumer = bench.js.get_consumer("S", "C")
    with bench.step("take three"):
        with consumer.messages(max_messages=2, group="g") as stream:
            take(stream, 3)


# --- consume ------------------------------------------------------------------------------------------------


class Handler:
    """A callback that acknowledges and counts."""

    def __init__(self) -> None:
        self.handled: list[int] = []

    def __call__(self, message: JetStreamMessage) -> None:
        message.ack()
        self.handled.append(int(message.data))

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.handled) >= count, 10, f"{count} messages are handled")


@scenario("consume")
def one_ahead_of_a_callback(bench: Bench) -> None:
    """One message at a time: the next pull leaves when the callback has returned, after its ack."""
    consumer = bench.consumer(3)
    handler = Handler()
    with bench.step("three messages"):
        context = consumer.consume(handler, max_messages=1)
        bench.wait_for(PULL, 4)
        bench.note(*handler.handled)
    with bench.step("stop and wait"):
        context.stop()
        bench.note(context.wait(5))
        bench.wait_for("UNSUB")


@scenario("consume")
def one_worker(bench: Bench) -> None:
    """One worker: the pulls depend on the threshold, not on when messages come."""
    consumer = bench.consumer(12)
    handler = Handler()
    with bench.step("twelve messages", apart=ACK):
        context = consumer.consume(handler, max_messages=8)
        handler.wait(12)
        bench.wait_for(PULL, 4)
        bench.wait_for(ACK, 12)
    with bench.step("leave the `with` block"):
        with context:
            pass
    with bench.step("the defaults"):
        with consumer.consume(handler):
            bench.wait_for(PULL)
    with bench.step("a threshold, an expiry, a heartbeat"):
        with consumer.consume(handler, max_messages=9, threshold_messages=2, expires=10, idle_heartbeat=1):
            bench.wait_for(PULL)
    with bench.step("bytes"):
        with consumer.consume(handler, max_bytes=10_000):
            bench.wait_for(PULL)


@scenario("consume")
def four_workers(bench: Bench) -> None:
    """Four workers: a pull for every four messages that they have handled."""
    consumer = bench.consumer(12)
    gates = [threading.Event() for _ in range(3)]
    gates[0].set()

    def handle(message: JetStreamMessage) -> None:
        assert gates[int(message.data) // 4].wait(10)
        message.ack()

    with bench.step("twelve messages, four at a time", apart=ACK, any_order=True):
        context = consumer.consume(handle, max_messages=8, max_workers=4)
        for pulls, gate in enumerate(gates[1:], 2):
            bench.wait_for(PULL, pulls)
            gate.set()
        bench.wait_for(PULL, 4)
    with bench.step("drain and wait"):
        context.drain()
        bench.note(context.wait(10))


@scenario("consume")
def drained_consume(bench: Bench) -> None:
    """drain() has what is buffered handled."""
    consumer = bench.consumer(4)
    handler = Handler()
    begun, gate = threading.Event(), threading.Event()

    def handle(message: JetStreamMessage) -> None:
        begun.set()
        assert gate.wait(10)
        handler(message)

    with bench.step("drain during the first callback", apart=ACK):
        context = consumer.consume(handle, max_messages=10)
        assert begun.wait(10)
        bench.wait_to_hear(b"\r\n3\r\n")
        context.drain()
        bench.wait_for("UNSUB")
        gate.set()
        bench.note(context.wait(10))
        bench.note(*handler.handled)


@scenario("consume")
def stopped_by_its_callback(bench: Bench) -> None:
    """stop() in the callback: what is buffered is not handled."""
    consumer = bench.consumer(4)
    began = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        assert began.wait(10)
        message.ack()
        context.stop()

    with bench.step("stop at the first message"):
        context = consumer.consume(handle, max_messages=10)
        bench.wait_to_hear(b"\r\n3\r\n")
        began.set()
        bench.note(context.wait(10))


@scenario("consume")
def a_callback_raises(bench: Bench) -> None:
    """A callback that raises leaves its message unacknowledged; a deleted consumer ends the consume."""
    consumer = bench.consumer(2, max_deliver=1)
    errors: list[Exception] = []

    def handle(message: JetStreamMessage) -> None:
        if message.data == b"0":
            raise ZeroDivisionError
        message.ack()

    with bench.step("two messages"):
        context = consumer.consume(handle, max_messages=10, on_error=errors.append)
        bench.wait_for(ACK)
        eventually(lambda: errors)
    with bench.step("the consumer is deleted"):
        bench.delete_pulled("C")
        with pytest.raises(ConsumerDeletedError):
            context.wait(10)


@scenario("consume")
def slow_callback(bench: Bench) -> None:
    """auto_progress tells the server that a callback is still at work."""
    consumer = bench.consumer(1, ack_wait=2)
    gate = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        assert gate.wait(10)
        message.ack()

    with bench.step("one message", repeated="+WPI"):
        context = consumer.consume(handle, max_messages=10, auto_progress=True)
        bench.wait_for("+WPI")
        gate.set()
        bench.wait_for("+ACK")
    with bench.step("drain"):
        context.drain()
        bench.note(context.wait(10))
