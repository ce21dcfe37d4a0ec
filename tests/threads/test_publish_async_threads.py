"""publish_async() from many threads at once: the window, the waiters, reconnects and close under load."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from jetstream_sync import (
    ConnectionClosedError,
    ConnectionLostError,
    JetStream,
    NatsError,
    PubAck,
    Stream,
    TimeoutError,
    connect,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread

THREADS = 8
IMPATIENT: dict[str, Any] = {
    "reconnect_time_wait": 0.01,
    "reconnect_time_wait_max": 0.05,
    "error_cb": lambda error: None,
}


def ids_of(stream: Stream) -> Counter[str]:
    """How often each message id is stored."""
    consumer = stream.create_consumer(ack_policy="none", inactive_threshold=60)
    total = stream.get_info().state.messages
    found: Counter[str] = Counter()
    while total:
        batch = [
            str(message.headers["Nats-Msg-Id"]) for message in consumer.fetch(min(total, 5000)) if message.headers
        ]
        assert batch, "the stream ended early"
        found.update(batch)
        total -= len(batch)
    return found


@pytest.mark.parametrize("window", [1, 7, 500])
def test_window_is_never_exceeded_and_everything_stored_once(
    nats_server: LocalServer, js: JetStream, stream: Stream, window: int
) -> None:
    """Eight threads share a window: it is never exceeded, no caller is stuck, every message is stored once."""
    count = {1: 60, 7: 200}.get(window, 500)
    most = [0]
    ended = threading.Event()
    with connect(nats_server.url) as nc:
        own = nc.jetstream(publish_async_max_pending=window)

        def publish(thread: int) -> list[Future[PubAck]]:
            return [own.publish_async(f"s.{thread}", b"x", timeout=20) for _ in range(count)]

        def sample() -> None:
            while not ended.is_set():
                most[0] = max(most[0], own.publish_async_pending)

        sampling = InThread(sample)
        publishing = [InThread(publish, number) for number in range(THREADS)]
        futures = [future for call in publishing for future in call.result(30)]
        own.publish_async_wait(20)
        ended.set()
        sampling.result()
    assert most[0] <= window
    assert sorted(future.result(0).seq for future in futures) == list(range(1, THREADS * count + 1))


def test_callers_of_wait_all_return(js: JetStream, stream: Stream) -> None:
    """Four threads wait for the acks while another publishes: all of them return."""
    for _ in range(20):
        for _ in range(50):
            js.publish_async("s.a")
        waiting = [InThread(js.publish_async_wait, 10) for _ in range(4)]
        js.publish_async("s.b")
        for call in waiting:
            call.result(10)
    js.publish_async_wait(10)
    assert stream.get_info().state.messages == 20 * 51


def test_reconnects_under_load_lose_and_double_nothing(
    nats_server: LocalServer, js: JetStream, stream: Stream
) -> None:
    """Four threads publish with ids while the connection is dropped again and again: each id once."""
    with connect(nats_server.url, **IMPATIENT) as nc:
        own = nc.jetstream(publish_async_max_pending=200)
        ended = threading.Event()

        def publish(thread: int) -> list[Future[PubAck]]:
            return [
                own.publish_async("s.a", b"x", msg_id=f"{thread}-{number}", timeout=30) for number in range(1500)
            ]

        def disturb() -> int:
            for drop in range(30):
                before = nc.stats.reconnects
                nc.force_reconnect()
                eventually(lambda before=before: nc.stats.reconnects > before)  # type: ignore[misc]
                if ended.wait(random.uniform(0.0, 0.02)):
                    return drop + 1
            return 30

        disturbing = InThread(disturb)
        publishing = [InThread(publish, number) for number in range(4)]
        futures = [future for call in publishing for future in call.result(60)]
        own.publish_async_wait(30)
        ended.set()
        assert disturbing.result(20) >= 3
        assert all(future.result(0).stream == "S" for future in futures)
    expected = {f"{thread}-{number}" for thread in range(4) for number in range(1500)}
    found = ids_of(stream)
    assert expected - set(found) == set()
    assert {msg_id: times for msg_id, times in found.items() if times != 1} == {}


def test_reconnects_without_ids_end_every_future(nats_server: LocalServer, js: JetStream, stream: Stream) -> None:
    """Each future ends with an ack or ConnectionLostError. All acks differ, and what is acked is stored."""
    with connect(nats_server.url, **IMPATIENT) as nc:
        own = nc.jetstream(publish_async_max_pending=200)

        def publish() -> list[Future[PubAck]]:
            return [own.publish_async("s.a", b"x", timeout=30) for _ in range(3000)]

        publishing = [InThread(publish) for _ in range(2)]
        while any(call.running for call in publishing):
            before = nc.stats.reconnects
            nc.force_reconnect()
            eventually(lambda before=before: nc.stats.reconnects > before)  # type: ignore[misc]
        futures = [future for call in publishing for future in call.result(30)]
        own.publish_async_wait(30)
        errors = [future.exception(0) for future in futures]
    assert {type(error) for error in errors} <= {type(None), ConnectionLostError}
    acked = [future.result(0).seq for future, error in zip(futures, errors, strict=True) if error is None]
    stored = stream.get_info().state.messages
    assert len(set(acked)) == len(acked) <= stored <= len(futures)
    assert max(acked, default=0) <= stored


@pytest.mark.parametrize("subject", ["s.a", "mute"])
def test_close_under_load_ends_every_future_and_caller(
    nats_server: LocalServer, js: JetStream, stream: Stream, mute: str, subject: str
) -> None:
    """close() while threads publish, with and without acks: every future ends and every caller returns."""
    for _ in range(5):
        nc = connect(nats_server.url)
        own = nc.jetstream(publish_async_max_pending=50)
        futures: list[Future[PubAck]] = []

        def publish(own: JetStream = own, futures: list[Future[PubAck]] = futures) -> None:
            while True:
                futures.append(own.publish_async(subject, b"x", timeout=60))

        publishing = [InThread(publish) for _ in range(4)]
        eventually(lambda futures=futures: len(futures) >= 50)  # type: ignore[misc]
        nc.close()
        for call in publishing:
            assert isinstance(call.error(3), ConnectionClosedError)
        for future in futures:
            assert isinstance(future.exception(2), (ConnectionClosedError, type(None)))
        assert own.publish_async_pending == 0


def test_timeouts_under_load_end_every_future(nats_server: LocalServer, mute: str) -> None:
    """Futures with different timeouts, shorter ones after longer ones: all end with TimeoutError."""
    with connect(nats_server.url) as nc:
        own = nc.jetstream()

        def publish(seed: int) -> list[Future[PubAck]]:
            pick = random.Random(seed)
            return [own.publish_async(mute, timeout=pick.uniform(0.01, 0.5)) for _ in range(300)]

        publishing = [InThread(publish, number) for number in range(4)]
        futures = [future for call in publishing for future in call.result(10)]
        own.publish_async_wait(3)
        assert all(isinstance(future.exception(0), TimeoutError) for future in futures)


def test_one_context_for_publish_and_publish_async_and_requests(js: JetStream, stream: Stream) -> None:
    """Eight threads publish with and without waiting and read messages: each call gets its own reply."""

    def work(number: int) -> None:
        for round_ in range(30):
            futures = [js.publish_async(f"s.{number}", b"%d" % round_) for _ in range(5)]
            ack = js.publish(f"s.{number}", b"sync")
            assert stream.get_message(ack.seq).data == b"sync"
            for future in futures:
                assert stream.get_message(future.result(5).seq).subject == f"s.{number}"

    calls = [InThread(work, number) for number in range(THREADS)]
    errors: list[NatsError] = [error for call in calls if (error := call.error(60)) is not None]  # type: ignore[misc]
    assert errors == []
    assert stream.get_info().state.messages == THREADS * 30 * 6
