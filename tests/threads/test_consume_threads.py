"""Consuming with many threads, with eager thread switching, and with random delays between the threads."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from jetstream_sync import Connection, Consumer, JetStream, JetStreamMessage
from jetstream_sync._threads import Wakeup
from jetstream_sync.consumers.refill import Refill
from jetstream_sync.errors import ConcurrencyError, NatsError
from jetstream_sync.testing import LocalServer
from tests.support.consuming import receivers
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer
from tests.support.watchdog import InThread


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Random delays where the consuming thread, the refill thread and the reader thread meet."""
    chance = random.Random(4)

    def with_delay(method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if chance.random() < 0.2:
                time.sleep(chance.random() * 0.003)
            return method(*args, **options)

        return call

    for name in ("_refill", "_pull_if_due", "_next_look", "account", "processed", "_check_heartbeat"):
        monkeypatch.setattr(Refill, name, with_delay(getattr(Refill, name)))
    monkeypatch.setattr(Wakeup, "set", with_delay(Wakeup.set))
    return chance


def test_eight_threads_fetching_from_one_consumer_get_each_message_once(js: JetStream) -> None:
    """8 threads × fetch(10), 10 000 messages: each exactly once."""
    consumer = stream_and_consumer(js, 10_000, max_ack_pending=-1)
    counts: Counter[bytes] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while True:
            got = []
            for message in consumer.fetch(10, expires=1):
                got.append(message.data)
                message.ack()
            if not got:
                return
            with lock:
                counts.update(got)

    workers = [InThread(work) for _ in range(8)]
    for worker in workers:
        worker.result(60)
    assert len(counts) == 10_000
    assert set(counts.values()) == {1}
    eventually(lambda: consumer.get_info().num_ack_pending == 0)


def test_eight_threads_with_next_get_each_message_once(js: JetStream, eager_switching: None) -> None:
    """next() from eight threads, under eager switching: each message exactly once."""
    consumer = stream_and_consumer(js, 400)
    counts: Counter[bytes] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while (message := consumer.next(1)) is not None:
            with lock:
                counts[message.data] += 1
            message.ack()

    workers = [InThread(work) for _ in range(8)]
    for worker in workers:
        worker.result(60)
    assert len(counts) == 400
    assert set(counts.values()) == {1}


def test_messages_with_random_delays_never_sticks_nor_overpulls(
    js: JetStream, nc: Connection, nats_server: LocalServer, eager_switching: None, delayed: random.Random
) -> None:
    """With late wake-ups all messages come, and the pulls never ask for more than the buffer has room for."""
    consumer = stream_and_consumer(
        js, 700
    )  # a stopped stream discards its buffer; the server delivers those again later
    with Observer(nats_server.url) as observer:
        for limit, count in ((1, 60), (2, 140), (7, 400)):
            seen = len(observer.pulls)
            with consumer.messages(max_messages=limit, expires=1) as messages:
                for _ in range(count):
                    messages.next(10).ack()
            observer.settle(nc)
            assert sum(pull.body["batch"] for pull in observer.pulls[seen:]) <= count + limit


def test_consume_with_workers_and_random_delays(
    js: JetStream, eager_switching: None, delayed: random.Random
) -> None:
    """With four workers, a small buffer and late wake-ups the callback gets each message once."""
    consumer = stream_and_consumer(js, 500)
    counts: Counter[bytes] = Counter()
    lock = threading.Lock()

    def callback(message: JetStreamMessage) -> None:
        message.ack()
        with lock:
            counts[message.data] += 1

    with consumer.consume(callback, max_workers=4, max_messages=5, expires=1):
        eventually(lambda: len(counts) == 500, 60.0)
    assert set(counts.values()) == {1}


def test_stop_at_any_moment_never_hangs(js: JetStream, eager_switching: None, delayed: random.Random) -> None:
    """stop() or drain() comes from another thread at a random moment: messages() and consume() always end."""
    consumer = stream_and_consumer(js, 3000, ack_policy="none")
    for round_ in range(30):
        name = f"R{round_}"
        consumer = js.create_consumer("S", durable_name=name, ack_policy="none")
        end = ("stop", "drain")[round_ % 2]
        if round_ % 4 < 2:
            messages = consumer.messages(max_messages=20)
            taker = InThread(lambda messages=messages: sum(1 for _ in messages))
            threading.Timer(delayed.random() * 0.03, getattr(messages, end)).start()
            taker.result(10)
            assert messages.closed
        else:
            context = consumer.consume(lambda _: None, max_messages=20, max_workers=1 + round_ % 3)
            threading.Timer(delayed.random() * 0.03, getattr(context, end)).start()
            assert context.wait(10)


def test_many_enders_at_once_are_idempotent(js: JetStream, eager_switching: None) -> None:
    """Several threads call stop() and drain() and delete the consumer at once: no call hangs."""
    stream_and_consumer(js, 200)
    for round_ in range(10):
        consumer = js.create_consumer("S", durable_name=f"R{round_}", ack_policy="none")
        context = consumer.consume(lambda _: None, max_messages=10, max_workers=2)
        messages = consumer.messages(max_messages=10)
        taker = InThread(lambda messages=messages: sum(1 for _ in messages))
        enders = [InThread(call) for call in (context.stop, context.drain, messages.drain, messages.stop)]
        enders.append(InThread(consumer.delete))
        for ender in enders:
            ender.result(5)
        assert context.wait(5) in (True, False) if context.error is None else True
        error = taker.error(5)
        assert error is None or isinstance(error, NatsError)


def test_two_threads_in_one_stream_never_count_wrongly(js: JetStream, eager_switching: None) -> None:
    """Two threads iterate over one stream, which is not allowed.

    Each message comes once, a refused thread gets ConcurrencyError, and the stream goes on pulling.
    """
    consumer = stream_and_consumer(js, 2000, max_ack_pending=-1)
    counts: Counter[bytes] = Counter()
    lock = threading.Lock()
    refused = []

    def take(messages: Any) -> None:
        while sum(counts.values()) < 2000:
            try:
                for message in messages:
                    with lock:
                        counts[message.data] += 1
                    message.ack()
                    if sum(counts.values()) >= 2000:
                        return
            except ConcurrencyError as error:
                refused.append(error)

    with consumer.messages(max_messages=50) as messages:
        takers = [InThread(take, messages) for _ in range(2)]
        eventually(lambda: sum(counts.values()) >= 2000, 30.0)
        fill(js, 1, first=9999)
        messages.stop()
        for taker in takers:
            taker.result(5)
    assert {count for data, count in counts.items() if data != b"9999"} == {1}


def test_fetches_abandoned_by_many_threads_leave_nothing_behind(
    js: JetStream, nc: Connection, eager_switching: None
) -> None:
    """Four threads close, leave and drop fetches: no receiver is left on the connection."""
    consumer: Consumer = stream_and_consumer(js)
    before = len(receivers(nc))

    def churn() -> None:
        for number in range(40):
            batch = consumer.fetch(5, expires=5)
            if number % 3 == 0:
                batch.close()
            elif number % 3 == 1:
                with batch:
                    pass
            del batch

    workers = [InThread(churn) for _ in range(4)]
    for worker in workers:
        worker.result(30)
    eventually(lambda: len(receivers(nc)) == before)
