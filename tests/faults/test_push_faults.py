"""Push and pull subscriptions while servers are stopped, killed and cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMessage
from jetstream_sync.errors import MissedHeartbeatError, NatsError, SequenceMismatchError
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import fill
from tests.support.watchdog import InThread


@contextmanager
def connected(url: str, **options: Any) -> Iterator[tuple[Connection, list[tuple[float, Exception]]]]:
    """A connection, and the errors that its error callback gets, with the times."""
    errors: list[tuple[float, Exception]] = []
    options = {"reconnect_time_wait": 0.05, "reconnect_time_wait_max": 0.2, **options}
    nc = jetstream_sync.connect(url, error_cb=lambda error: errors.append((time.monotonic(), error)), **options)
    try:
        yield nc, errors
    finally:
        nc.close()


def of_kind(errors: list[tuple[float, Exception]], kind: type[Exception]) -> list[tuple[float, Any]]:
    return [(at, error) for at, error in errors if isinstance(error, kind)]


def make_stream(server: LocalServer, count: int = 0) -> None:
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        fill(js, count)


class Handler:
    """A callback that records the numbers of its messages."""

    def __init__(self, pause: float = 0.0) -> None:
        self.seen: list[int] = []
        self._pause = pause

    def __call__(self, message: JetStreamMessage) -> None:
        if self._pause:
            threading.Event().wait(self._pause)
        self.seen.append(int(message.data))


# --- heartbeats ----------------------------------------------------------------------------------------------


def test_stopped_server_raises_the_alarm(server: LocalServer) -> None:
    """SIGSTOP: with heartbeats of 0.5 s the alarm comes after 1.4 to 2.6 s, and again until the server resumes."""
    make_stream(server, 3)
    with connected(server.url) as (nc, errors):
        handler = Handler()
        sub = nc.jetstream().subscribe("s.>", durable="d", cb=handler, idle_heartbeat=0.5)
        eventually(lambda: handler.seen == [0, 1, 2])
        before_last = time.monotonic()  # the silence begins between here and the pause
        fill(nc.jetstream(), 1, first=3)
        eventually(lambda: handler.seen == [0, 1, 2, 3])
        server.pause()
        stopped = time.monotonic()
        eventually(lambda: len(of_kind(errors, MissedHeartbeatError)) == 2, 6.0)
        server.resume()
        (first, alarm), (second, _) = of_kind(errors, MissedHeartbeatError)
        assert first - before_last >= 1.4
        assert first - stopped <= 2.6
        assert 1.4 <= alarm.silence <= 2.6
        assert 1.4 <= second - first <= 2.6
        fill(nc.jetstream(), 1, first=4)
        eventually(lambda: handler.seen == [0, 1, 2, 3, 4])
        count = len(of_kind(errors, MissedHeartbeatError))
        threading.Event().wait(2.0)
        assert len(of_kind(errors, MissedHeartbeatError)) == count
        sub.unsubscribe()


def test_no_alarm_while_disconnected(server: LocalServer) -> None:
    """While the connection is down there is no alarm. After the reconnect the consumer delivers again."""
    make_stream(server, 2)
    with FaultProxy(server) as proxy, connected(proxy.url) as (nc, errors):
        handler = Handler()
        sub = nc.jetstream().subscribe("s.>", durable="d", cb=handler, idle_heartbeat=0.2)
        eventually(lambda: handler.seen == [0, 1])
        proxy.refuse()
        proxy.cut()
        threading.Event().wait(1.2)
        assert of_kind(errors, MissedHeartbeatError) == []
        proxy.heal()
        eventually(lambda: nc.is_connected)
        with jetstream_sync.connect(server.url) as other:
            fill(other.jetstream(), 3, first=2)
        eventually(lambda: handler.seen == [0, 1, 2, 3, 4])
        threading.Event().wait(0.8)
        assert of_kind(errors, MissedHeartbeatError) == []
        assert of_kind(errors, SequenceMismatchError) == []
        sub.unsubscribe()


def test_alarm_for_a_consumer_that_died_with_its_server(server: LocalServer) -> None:
    """A consumer in memory is gone after kill -9: the alarm comes after the reconnect, and the end."""
    make_stream(server, 1)
    with connected(server.url) as (nc, errors):
        handler = Handler()
        sub = nc.jetstream().subscribe("s.>", cb=handler, idle_heartbeat=0.3, config={"mem_storage": True})
        eventually(lambda: handler.seen == [0])
        server.kill()
        server.start()
        eventually(lambda: nc.is_connected, 10.0)
        reconnected = time.monotonic()
        eventually(lambda: of_kind(errors, MissedHeartbeatError))
        at, _ = of_kind(errors, MissedHeartbeatError)[0]
        assert 0.8 <= at - reconnected <= 2.0
        eventually(lambda: of_kind(errors, jetstream_sync.ConsumerNotFoundError))
        sub.unsubscribe()  # nothing is left to delete


# --- kill -9 and restart -------------------------------------------------------------------------------------


def publish_numbers(server: LocalServer, first: int, count: int) -> None:
    """Publish, with retries through restarts: a number may be stored twice, but none is missing."""
    with jetstream_sync.connect(server.url, reconnect_time_wait=0.05) as nc:
        js = nc.jetstream()
        for number in range(first, first + count):
            for _ in range(50):
                try:
                    js.publish("s.x", b"%d" % number, msg_id=str(number), timeout=2.0)
                    break
                except NatsError:
                    threading.Event().wait(0.1)
            else:
                raise AssertionError(f"{number} could not be published")


def test_durable_push_survives_kill_and_restart(server: LocalServer) -> None:
    """kill -9 and restart under load: with explicit acks nothing is lost, no gap and no alarm is reported."""
    make_stream(server)
    with connected(server.url) as (nc, errors):
        handler = Handler()
        options: dict[str, Any] = {"durable": "d", "idle_heartbeat": 1.0, "config": {"ack_wait": 1.0}}
        sub = nc.jetstream().subscribe("s.>", cb=handler, **options)
        publisher = InThread(publish_numbers, server, 0, 2000)
        eventually(lambda: len(handler.seen) >= 100, 10.0)
        assert publisher.running
        server.kill()
        server.start()
        publisher.result(60.0)
        eventually(lambda: set(handler.seen) == set(range(2000)), 30.0, "every number was handled")
        assert of_kind(errors, SequenceMismatchError) == []
        assert of_kind(errors, MissedHeartbeatError) == []
        sub.unsubscribe()


def test_queue_members_survive_kill_and_restart(server: LocalServer) -> None:
    """After kill -9 and restart both members of a queue group go on, and together get every message."""
    make_stream(server)
    with connected(server.url) as (first, _), connected(server.url) as (second, _):
        one, two = Handler(), Handler()
        config = {"ack_wait": 1.0}
        subs = [
            nc.jetstream().subscribe("s.>", queue="q", cb=cb, config=config)
            for nc, cb in ((first, one), (second, two))
        ]
        publisher = InThread(publish_numbers, server, 0, 300)
        eventually(lambda: len(one.seen) + len(two.seen) >= 50, 10.0)
        server.kill()
        server.start()
        publisher.result(60.0)
        eventually(lambda: set(one.seen + two.seen) == set(range(300)), 30.0, "every number was handled")
        assert one.seen
        assert two.seen
        for sub in reversed(subs):
            sub.unsubscribe()


@pytest.mark.parametrize("form", ["callback", "next_msg"])
def test_ordered_push_through_kill_and_restart(server: LocalServer, form: str) -> None:
    """Ordered push, 1 … 1000 across kill -9 and restart: every message once, in order."""
    make_stream(server, 700)
    with connected(server.url) as (nc, _):
        seen: list[int] = []
        reached = threading.Event()

        def handle(message: JetStreamMessage) -> None:
            seen.append(int(message.data))
            if len(seen) == 300:
                reached.set()
            if len(seen) > 250:
                threading.Event().wait(0.001)

        js = nc.jetstream()
        sub = js.subscribe("s.>", ordered_consumer=True, cb=handle if form == "callback" else None)
        taker = None if form == "callback" else InThread(lambda: [handle(sub.next_msg(30.0)) for _ in range(1000)])
        assert reached.wait(10)
        server.kill()
        server.start()
        InThread(publish_numbers, server, 700, 300).result(60.0)
        # The reconnect replaces the consumer, long before a default heartbeat could be missed.
        eventually(lambda: len(seen) >= 1000, 10.0, "all numbers have come")
        if taker is not None:
            taker.result()
        sub.unsubscribe()
        assert seen == list(range(1000))


def test_ordered_push_through_many_cuts(server: LocalServer) -> None:
    """An ordered subscription whose connection is cut again and again delivers every message once, in order."""
    make_stream(server, 3000)
    with FaultProxy(server, record=False) as proxy, connected(proxy.url) as (nc, _):
        handler = Handler()
        sub = nc.jetstream().subscribe("s.>", ordered_consumer=True, cb=handler)
        for _ in range(8):
            proxy.cut_after(30_000)
            start = len(handler.seen)
            eventually(lambda start=start: len(handler.seen) > start + 100 or len(handler.seen) == 3000, 10.0)
        proxy.heal()
        eventually(lambda: len(handler.seen) >= 3000, 20.0)
        assert handler.seen == list(range(3000))
        sub.unsubscribe()
    with jetstream_sync.connect(server.url) as nc:
        # The consumers of lost sessions are deleted when they are replaced.
        eventually(lambda: list(nc.jetstream().get_stream("S").consumer_names()) == [])


@pytest.mark.parametrize("batch", [1, 10])
def test_pull_subscription_through_kill_and_restart(server: LocalServer, batch: int) -> None:
    """After kill -9 and restart the fetch in flight ends, later fetches work, and nothing is lost."""
    make_stream(server)
    with connected(server.url) as (nc, _):
        sub = nc.jetstream().pull_subscribe("s.>", "d", config={"ack_wait": 1.0})
        seen: set[int] = set()

        def work() -> None:
            deadline = time.monotonic() + 60.0
            while len(seen) < 200 and time.monotonic() < deadline:
                try:
                    messages = sub.fetch(batch, timeout=1.0)
                except NatsError:
                    threading.Event().wait(0.02)
                    continue
                for message in messages:
                    seen.add(int(message.data))
                    message.ack()

        worker = InThread(work)
        publisher = InThread(publish_numbers, server, 0, 200)
        eventually(lambda: len(seen) >= 50, 10.0)
        server.kill()
        server.start()
        publisher.result(60.0)
        worker.result(60.0)
        assert seen == set(range(200))
        sub.unsubscribe()


def test_flow_control_goes_on_after_a_reconnect(server: LocalServer) -> None:
    """After a cut in the middle of a flow-controlled delivery all messages come."""
    with jetstream_sync.connect(server.url) as nc:
        js: JetStream = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        for number in range(60):
            js.publish("s.x", b"%d" % number + b" " * 60_000)
    with FaultProxy(server, record=False) as proxy, connected(proxy.url) as (nc, _):
        handler = Handler(pause=0.005)
        config = {"ack_wait": 1.0}
        sub = nc.jetstream().subscribe(
            "s.>", durable="d", cb=handler, idle_heartbeat=0.5, flow_control=True, config=config
        )
        eventually(lambda: len(handler.seen) >= 10)
        proxy.cut()
        eventually(lambda: set(handler.seen) == set(range(60)), 20.0, "every message was handled")
        sub.unsubscribe()
