"""Ordered consumers: fetch, next, messages, consume, and how they go on after a loss."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import pytest

from jetstream_sync import JetStreamMessage, MessageStream, StreamNotFoundError, TimeoutError
from tests.spec.wire_scenarios.bench import PULL, Bench, scenario
from tests.support.eventually import eventually


def payloads(messages: Iterable[JetStreamMessage]) -> list[str]:
    return [message.data.decode() for message in messages]


def take(stream: MessageStream, count: int) -> list[str]:
    return [stream.next(timeout=10).data.decode() for _ in range(count)]


def steal(bench: Bench, consumer: str | None) -> None:
    """Take the next message of `consumer` away: to the one that reads it in order it is a gap."""
    assert bench.admin.get_consumer("S", str(consumer)).next() is not None


# What a fetch may take; after it had to create a consumer the server is given what is left of it.
EXPIRES = 5.0


# --- fetch and next -----------------------------------------------------------------------------------------


@scenario("ordered_fetch")
def fetches(bench: Bench) -> None:
    """One consumer serves several fetches."""
    bench.stream(9)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("the first creates the consumer", elapsing=EXPIRES):
        bench.note(*payloads(ordered.fetch(3)))
    with bench.step("the next ones use it"):
        bench.note(*payloads(ordered.fetch(2)))
        bench.note(*payloads(ordered.fetch(1)))
    with bench.step("next"):
        message = ordered.next()
        assert message is not None
        message.ack()
        bench.note(message.data.decode())
    with bench.step("without waiting: two of five are there"):
        bench.note(*payloads(ordered.fetch_nowait(5)))
    with bench.step("none comes"):
        bench.note(*payloads(ordered.fetch(2, expires=0.1)))
        bench.note(ordered.next(0.1))
    with bench.step("delete, and use again", elapsing=EXPIRES):
        ordered.delete()
        bench.fill(1)
        bench.note(*payloads(ordered.fetch(1)))


@scenario("ordered_fetch")
def with_options(bench: Bench) -> None:
    """The options of the consumer."""
    bench.stream(4)
    stream = bench.js.get_stream("S")
    with bench.step("start sequence, name, description", elapsing=EXPIRES):
        ordered = stream.ordered_consumer(
            opt_start_seq=3, name_prefix="mine", description="reads along", inactive_threshold=60
        )
        bench.note(*payloads(ordered.fetch(2)))
    with bench.step("filters, headers only, metadata", elapsing=20.0):
        ordered = stream.ordered_consumer(
            filter_subjects=["s.x", "s.y"], headers_only=True, metadata={"team": "blue"}
        )
        bench.note(len(list(ordered.fetch(2, max_bytes=100_000, expires=20, idle_heartbeat=5))))
    with bench.step("last message of each subject", elapsing=EXPIRES):
        bench.note(*payloads(stream.ordered_consumer(deliver_policy="last_per_subject").fetch(1)))


@scenario("ordered_fetch")
def left_early(bench: Bench) -> None:
    """A batch that is left early costs a consumer; the next fetch goes on behind what was handed out."""
    bench.stream(6)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("leave the loop at the first of three", elapsing=EXPIRES):
        for message in ordered.fetch(3):
            bench.note(message.data.decode())
            break
        gc.collect()
        bench.wait_for("CONSUMER.DELETE")
    with bench.step("close()", elapsing=EXPIRES):
        batch = ordered.fetch(3)
        bench.note(next(iter(batch)).data.decode())
        batch.close()
    with bench.step("fetch", elapsing=EXPIRES):
        bench.note(*payloads(ordered.fetch(2)))


@scenario("ordered_fetch")
def mended(bench: Bench) -> None:
    """The consumer is gone: the fetch goes on with another."""
    bench.stream(4)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("fetch one", elapsing=EXPIRES):
        bench.note(*payloads(ordered.fetch(1)))
    with bench.step("deleted on the server before a fetch", elapsing=EXPIRES):
        bench.admin.delete_consumer("S", str(ordered.name))
        bench.note(*payloads(ordered.fetch(2)))
    with bench.step("deleted on the server before next()", elapsing=EXPIRES):
        bench.admin.delete_consumer("S", str(ordered.name))
        message = ordered.next()
        assert message is not None
        bench.note(message.data.decode())


@scenario("ordered_fetch")
def gap(bench: Bench) -> None:
    """A gap: the fetch goes on with another consumer."""
    bench.stream(7)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("fetch one", elapsing=EXPIRES):
        bench.note(*payloads(ordered.fetch(1)))
    with bench.step("a gap before a fetch", elapsing=EXPIRES):
        steal(bench, ordered.name)
        bench.note(*payloads(ordered.fetch(2)))
    with bench.step("a gap before next()", elapsing=EXPIRES):
        steal(bench, ordered.name)
        message = ordered.next()
        assert message is not None
        bench.note(message.data.decode())


# --- messages and consume -----------------------------------------------------------------------------------


@scenario("ordered_messages")
def messages(bench: Bench) -> None:
    """A stream is read on and on."""
    bench.stream(12)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("open"):
        stream = ordered.messages(max_messages=4)
    with bench.step("take six"):
        bench.note(*take(stream, 6))
    with bench.step("stop"):
        stream.stop()
        bench.wait_for("CONSUMER.DELETE")
    with bench.step("again, with the defaults, in a `with` block"):
        with ordered.messages() as stream:
            bench.note(*take(stream, 2))
    with bench.step("one at a time"):
        with ordered.messages(max_messages=1) as stream:
            bench.note(*take(stream, 2))
    with bench.step("drain"):
        stream = ordered.messages(max_messages=10)
        bench.note(*take(stream, 2))
        stream.drain()
        bench.note(*payloads(stream))
        bench.wait_for("CONSUMER.DELETE")


def ask(stream: MessageStream) -> None:
    """Ask for a message where there is none: so the pull for it has left."""
    with pytest.raises(TimeoutError):
        stream.next(timeout=0.1)


@scenario("ordered_messages")
def mended_messages(bench: Bench) -> None:
    """The consumer is deleted on the server; then there is a gap."""
    bench.stream(2)
    errors: list[Exception] = []
    with bench.step("open and take two"):
        ordered = bench.js.ordered_consumer("S")
        stream = ordered.messages(max_messages=1, on_error=errors.append)
        bench.note(*take(stream, 2))
        ask(stream)
    with bench.step("deleted on the server"):
        bench.delete_pulled(ordered.name)
        bench.fill(1, first=2)
        bench.note(*take(stream, 1))
        ask(stream)
    with bench.step("a gap"):
        bench.fill(3, first=3)
        bench.wait_to_hear(b"\r\n3\r\n")  # which answers the only pull: the next message is not ours
        steal(bench, ordered.name)
        bench.note(*take(stream, 3))
        bench.note(*(type(error).__name__ for error in errors))
    with bench.step("stop"):
        stream.stop()
        bench.wait_for("CONSUMER.DELETE")


@scenario("ordered_messages")
def no_stream(bench: Bench) -> None:
    """There is no stream."""
    with bench.step("open"):
        with pytest.raises(StreamNotFoundError):
            bench.js.ordered_consumer("NONE").messages()


@scenario("ordered_consume")
def consume(bench: Bench) -> None:
    """A callback gets every message."""
    bench.stream(6)
    seen: list[str] = []
    with bench.step("six messages, four ahead"):
        ordered = bench.js.ordered_consumer("S")
        context = ordered.consume(lambda message: seen.append(message.data.decode()), max_messages=4)
        bench.wait_for(PULL, 4)
        bench.note(*seen)
    with bench.step("the consumer is deleted on the server"):
        bench.delete_pulled(ordered.name)
        bench.wait_for(PULL)
        bench.fill(1, first=6)
        eventually(lambda: len(seen) == 7)
    with bench.step("stop and wait"):
        context.stop()
        bench.note(context.wait(10))
        bench.wait_for("CONSUMER.DELETE")


@scenario("ordered_consume")
def drained_consume(bench: Bench) -> None:
    """drain() has everything handled that has come."""
    bench.stream(3)
    seen: list[str] = []
    with bench.step("consume"):
        context = bench.js.ordered_consumer("S").consume(lambda message: seen.append(message.data.decode()))
        eventually(lambda: len(seen) == 3)
    with bench.step("drain and wait"):
        context.drain()
        bench.note(context.wait(10))
        bench.wait_for("CONSUMER.DELETE")
