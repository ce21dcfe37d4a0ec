"""32 threads on one connection: publish, subscribe, request and flush at once, under eager thread switching."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

import jetstream_sync
from jetstream_sync import Connection, Subscription
from jetstream_sync.errors import ConnectionClosedError, NatsError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually

pytestmark = pytest.mark.usefixtures("eager_switching")

THREADS = 32


def run_in_threads(work: Callable[[int], object], count: int = THREADS) -> list[BaseException]:
    """Run `work(n)` in `count` threads at once; return the exceptions. Fails if a thread does not end."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            barrier.wait(10)
            work(number)
        except BaseException as error:  # noqa: BLE001 - seen by the test
            raised.append(error)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    return raised


def test_publish_from_many_threads(nc: Connection) -> None:
    """Messages of 32 threads arrive once each, whole, and in each thread's order."""
    received: dict[int, list[int]] = {number: [] for number in range(THREADS)}
    wrong: list[bytes] = []

    def check(msg: jetstream_sync.Message) -> None:
        who, number, filling = msg.data.split(b" ")
        if filling != who * int(number):
            wrong.append(msg.data)
        received[int(who)].append(int(number))

    nc.subscribe("many", cb=check, pending_bytes_limit=0)

    def work(who: int) -> None:
        for number in range(100):
            nc.publish("many", b"%d %d %b" % (who, number, b"%d" % who * number), headers={"Who": str(who)})

    assert run_in_threads(work) == []
    nc.flush()
    eventually(lambda: sum(map(len, received.values())) == THREADS * 100, 20)
    assert wrong == []
    assert all(numbers == list(range(100)) for numbers in received.values())


def test_mixed_use_from_many_threads(nc: Connection) -> None:
    """32 threads request, subscribe and flush at once: each gets its own replies and messages."""
    nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))

    def work(who: int) -> None:
        rng = random.Random(who)
        for number in range(30):
            payload = b"%d %d" % (who, number)
            kind = rng.randrange(3)
            if kind == 0:
                assert nc.request("echo", payload, timeout=20).data == payload
            elif kind == 1:
                with nc.subscribe(f"own.{who}") as sub:
                    nc.publish(f"own.{who}", payload)
                    assert sub.next_msg(timeout=20).data == payload
            else:
                nc.flush(20)

    assert run_in_threads(work) == []
    assert nc.stats.reconnects == 0
    assert not link_of(nc).pings.waiters


def test_takers_share_one_subscription(nc: Connection) -> None:
    """Eight threads on one subscription take every message exactly once."""
    sub = nc.subscribe("shared")
    taken: list[int] = []

    def work(_: int) -> None:
        for msg in sub:
            taken.append(int(msg.data))

    def feed() -> None:
        for number in range(3000):
            nc.publish("shared", b"%d" % number)
        nc.flush()
        eventually(lambda: len(taken) == 3000, 20)
        sub.unsubscribe()

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    assert run_in_threads(work, 8) == []
    feeder.join(5)
    assert sorted(taken) == list(range(3000))


@pytest.mark.parametrize("end", ["close", "drain"])
def test_concurrent_end(end: str, nats_server: LocalServer) -> None:
    """Four threads call close() or drain() under load: none hangs or raises, and all waiting calls end."""
    nc = jetstream_sync.connect(nats_server.url)
    subs: list[Subscription] = [nc.subscribe("load") for _ in range(4)]

    def work(who: int) -> None:
        try:
            if who < 4:
                for _ in subs[who]:
                    pass
            elif who < 8:
                while True:
                    nc.publish("load", b"x")
            elif who < 12:
                while True:
                    nc.flush(20)
            else:
                getattr(nc, end)()
        except NatsError as error:
            if who >= 12 or not isinstance(error, ConnectionClosedError):
                raise

    assert run_in_threads(work, 16) == []
    eventually(lambda: nc.is_closed, 5)


@pytest.mark.parametrize("end", ["close", "drain"])
def test_end_from_callbacks(end: str, nats_server: LocalServer) -> None:
    """close(), drain() and unsubscribe() called from callbacks neither hang nor raise."""
    ended = threading.Event()
    raised: list[Exception] = []
    nc = jetstream_sync.connect(
        nats_server.url, closed_cb=lambda closed: (closed.close(), closed.drain()), error_cb=raised.append
    )
    sub = nc.subscribe("end")

    def callback(_: jetstream_sync.Message) -> None:
        sub.unsubscribe()
        getattr(nc, end)()
        ended.set()

    nc.subscribe("end", cb=callback)
    nc.publish("end")
    assert ended.wait(10)
    eventually(lambda: nc.is_closed, 5)
    assert raised == []
