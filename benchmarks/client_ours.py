"""The measurements, with this library: through its public names alone, as `compare` runs older revisions, too."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import jetstream_sync

from .measure import Result, Span
from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, LOAD, STREAM, SUBJECT, Scenario


def run(scenario: Scenario, url: str) -> Result:
    if scenario.kind == "connect":
        return connect(scenario, url)
    with jetstream_sync.connect(url) as nc:
        measure: Callable[[jetstream_sync.Connection, Scenario], Result] = globals()[scenario.kind]
        return measure(nc, scenario)


def connect(scenario: Scenario, url: str) -> Result:
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc = jetstream_sync.connect(url)
        samples.append(time.perf_counter() - start)
        nc.close()
    return span.end(scenario.count, samples)


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
    with new_consumer(nc, scenario).messages() as stream:
        return take_all(stream, scenario, Span())


def ordered(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    with nc.jetstream().ordered_consumer(STREAM).messages() as stream:
        return take_all(stream, scenario, Span())


def push(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    span = Span()  # the server sends before subscribe() returns
    sub = nc.jetstream().subscribe(SUBJECT, stream=STREAM, ack_policy="explicit", mem_storage=True)
    with sub:
        return take_all(sub, scenario, span)


def take_all(source: Iterable[jetstream_sync.JetStreamMessage], scenario: Scenario, span: Span) -> Result:
    ack, last = scenario.ack, scenario.count
    for received, message in enumerate(source, start=1):
        if ack:
            message.ack()
        if received == last:
            return span.end(received)
    raise AssertionError("unreachable")


def consume(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = new_consumer(nc, scenario)
    finished = threading.Event()
    ack, last = scenario.ack, scenario.count
    received = itertools.count(1)  # one step for any number of workers, without a lock

    def handle(message: jetstream_sync.JetStreamMessage) -> None:
        if ack:
            message.ack()
        if next(received) == last:
            finished.set()

    span = Span()
    with consumer.consume(handle, max_workers=scenario.workers):
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


def fetch_single(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = new_consumer(nc, scenario)

    def fetch_one() -> None:
        (message,) = consumer.fetch(1, expires=5)
        message.ack()

    return timed(fetch_one, scenario.count)


def pull_subscribe(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    received = 0
    with nc.jetstream().pull_subscribe(SUBJECT, stream=STREAM, ack_policy="explicit", mem_storage=True) as sub:
        span = Span()
        while received < scenario.count:
            for message in sub.fetch(500, timeout=5):
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
    return timed(lambda: js.publish(SUBJECT, payload), scenario.count)


def info(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    stream = nc.jetstream().get_stream(STREAM)
    return timed(stream.get_info, scenario.count)


def request_load(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    """Requests to the server, each beside some messages of the publisher process: the CPU is that of both."""
    finished = threading.Event()
    received, last = itertools.count(1), LOAD * scenario.count

    def handle(_message: jetstream_sync.Message) -> None:
        if next(received) == last:
            finished.set()

    samples, credit = [], b"%d" % LOAD
    with nc.subscribe(CORE_SUBJECT, cb=handle):
        nc.flush()
        span = Span()
        for _ in range(scenario.count):
            nc.publish(CREDIT_SUBJECT, credit)
            start = time.perf_counter()
            nc.request("$JS.API.INFO")
            samples.append(time.perf_counter() - start)
        finished.wait()
        return span.end(scenario.count, samples)


def next_latency(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    """From asking the publisher process for a message to having it."""
    consumer = nc.jetstream().create_consumer(STREAM, deliver_policy="new", mem_storage=True)
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc.publish(CREDIT_SUBJECT, b"one")
        message = consumer.next(5)
        assert message is not None
        samples.append(time.perf_counter() - start)
        message.ack()
    return span.end(scenario.count, samples)


def messages_latency(nc: jetstream_sync.Connection, scenario: Scenario) -> Result:
    consumer = nc.jetstream().create_consumer(STREAM, deliver_policy="new", mem_storage=True)
    samples = []
    with consumer.messages() as stream:
        span = Span()
        for _ in range(scenario.count):
            start = time.perf_counter()
            nc.publish(CREDIT_SUBJECT, b"one")
            message = stream.next(5)
            samples.append(time.perf_counter() - start)
            message.ack()
        return span.end(scenario.count, samples)


def timed(action: Callable[[], Any], count: int) -> Result:
    samples = []
    span = Span()
    for _ in range(count):
        start = time.perf_counter()
        action()
        samples.append(time.perf_counter() - start)
    return span.end(count, samples)
