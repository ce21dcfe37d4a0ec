"""The measurements, with this library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jetstream_sync

from .measure import Span, quantiles
from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, STREAM, SUBJECT, Scenario

Result = dict[str, Any]


def run(scenario: Scenario, url: str) -> Result:
    if scenario.kind == "connect":
        return connect(scenario, url)
    with jetstream_sync.connect(url) as nc:
        measure: Callable[[jetstream_sync.Connection, Scenario], Result] = globals()[scenario.kind]
        return measure(nc, scenario)


def connect(scenario: Scenario, url: str) -> Result:
    samples = []
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc = jetstream_sync.connect(url)
        samples.append(time.perf_counter() - start)
        nc.close()
    return quantiles(samples)


def core(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    """The publisher process sends a portion for each credit: fast, but never more than buffers hold."""
    sub = nc.subscribe(CORE_SUBJECT)
    nc.flush()
    portion = 10_000
    nc.publish(CREDIT_SUBJECT, b"%d" % portion)
    nc.publish(CREDIT_SUBJECT, b"%d" % portion)
    span = Span()
    for received, _message in enumerate(sub, start=1):
        if received % portion == 0:
            nc.publish(CREDIT_SUBJECT, b"%d" % portion)
            if received >= scenario.count:
                return span.end(received)
    raise AssertionError("unreachable")


def new_consumer(nc: jetstream_sync.Connection, scenario: Scenario) -> jetstream_sync.Consumer:
    policy = "explicit" if scenario.ack else "none"
    return nc.jetstream().create_consumer(STREAM, ack_policy=policy, mem_storage=True)


def messages(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = new_consumer(nc, scenario)
    received, ack = 0, scenario.ack
    with consumer.messages() as stream:
        span = Span()
        for message in stream:
            if ack:
                message.ack()
            received += 1
            if received == scenario.count:
                return span.end(received)
    raise AssertionError("unreachable")


def consume(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = new_consumer(nc, scenario)
    finished = threading.Event()
    received, ack = 0, scenario.ack

    def handle(message: jetstream_sync.JetStreamMessage) -> None:
        nonlocal received
        if ack:
            message.ack()
        received += 1
        if received == scenario.count:
            finished.set()

    span = Span()
    with consumer.consume(handle):
        finished.wait()
        return span.end(scenario.count)


def fetch(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = new_consumer(nc, scenario)
    received, ack = 0, scenario.ack
    span = Span()
    while received < scenario.count:
        for message in consumer.fetch(500, expires=5):
            if ack:
                message.ack()
            received += 1
    return span.end(received)


def publish_async(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    js = nc.jetstream(publish_async_max_pending=1000)
    payload = b"x" * scenario.size
    js.publish(SUBJECT, payload)
    span = Span()
    futures = [js.publish_async(SUBJECT, payload) for _ in range(scenario.count)]
    for future in futures:
        future.result()
    return span.end(scenario.count)


def publish(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    js = nc.jetstream()
    payload = b"x" * scenario.size
    return quantiles(timed(lambda: js.publish(SUBJECT, payload), scenario.count))


def info(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    stream = nc.jetstream().get_stream(STREAM)
    return quantiles(timed(stream.get_info, scenario.count))


def next_latency(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    """From asking the publisher process for a message to having it."""
    consumer = nc.jetstream().create_consumer(STREAM, deliver_policy="new", mem_storage=True)
    samples = []
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc.publish(CREDIT_SUBJECT, b"one")
        message = consumer.next(5)
        assert message is not None
        samples.append(time.perf_counter() - start)
        message.ack()
    return quantiles(samples)


def messages_latency(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = nc.jetstream().create_consumer(STREAM, deliver_policy="new", mem_storage=True)
    samples = []
    with consumer.messages() as stream:
        for _ in range(scenario.count):
            start = time.perf_counter()
            nc.publish(CREDIT_SUBJECT, b"one")
            message = stream.next(5)
            samples.append(time.perf_counter() - start)
            message.ack()
    return quantiles(samples)


def timed(action: Callable[[], Any], count: int) -> list[float]:
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        action()
        samples.append(time.perf_counter() - start)
    return samples
