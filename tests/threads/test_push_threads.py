"""Push subscriptions and threads: which threads end when, and what may be called from which thread."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMessage, PushSubscription
from jetstream_sync.consumers.push import PushInbound
from jetstream_sync.errors import MissedHeartbeatError, NatsError, SubscriptionClosedError
from jetstream_sync.net.link import Link
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.forks import in_child, raised_by
from tests.support.observer import consumers, fill
from tests.support.platforms import needs_fork_hooks
from tests.support.signals import Interrupted, interrupted_after
from tests.support.threads import thread_names
from tests.support.watchdog import InThread, under_watchdog

pytestmark = pytest.mark.usefixtures("stream")


ENDS = {
    "unsubscribe": lambda nc, sub: sub.unsubscribe(),
    "drain": lambda nc, sub: sub.drain(),
    "close": lambda nc, sub: nc.close(),
    "drain of the connection": lambda nc, sub: nc.drain(),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_threads_end_with_the_subscription(
    nats_server: LocalServer, js: JetStream, end: str, ordered: bool
) -> None:
    """The threads js-sub and js-push end with their subscription, in each of the ways to end it."""
    nc = jetstream_sync.connect(nats_server.url)
    before = set(thread_names("js-sub-", "js-push-"))
    sub = nc.jetstream().subscribe("s.>", cb=print, idle_heartbeat=1.0, ordered_consumer=ordered)
    assert len(set(thread_names("js-sub-", "js-push-")) - before) == 2
    under_watchdog(ENDS[end], nc, sub)
    eventually(lambda: set(thread_names("js-sub-", "js-push-")) <= before, 2.0)
    nc.close()


def test_each_monitor_thread_has_a_name_of_its_own(js: JetStream) -> None:
    """Every subscription with heartbeats has one thread that watches them."""
    subs = [js.subscribe("s.>", idle_heartbeat=1.0) for _ in range(3)]
    assert len(set(thread_names("js-push-"))) == 3
    for sub in subs:
        sub.unsubscribe()


def test_close_while_callbacks_acknowledge(nats_server: LocalServer, js: JetStream) -> None:
    """close() returns at once though a callback thread is sending acks at that moment, and leaves no thread."""
    fill(js, 30)
    for number in range(40):
        nc = jetstream_sync.connect(nats_server.url)
        handled: list[JetStreamMessage] = []
        nc.jetstream().subscribe("s.>", durable=f"d{number}", cb=handled.append, idle_heartbeat=5.0)
        eventually(lambda handled=handled, number=number: len(handled) > number % 30)
        started = time.monotonic()
        under_watchdog(nc.close)
        assert time.monotonic() - started < 0.45
        assert not thread_names("js-sub-")


def test_concurrent_endings_delete_once(js: JetStream) -> None:
    """unsubscribe() and drain() by several threads at once: one deletes the consumer, none raises, none hangs."""
    for _ in range(10):
        sub = js.subscribe("s.>", cb=print, idle_heartbeat=5.0)
        calls = [InThread(call) for call in (sub.unsubscribe, sub.drain, sub.unsubscribe, sub.drain)]
        for call in calls:
            call.result()
        assert consumers(js) == []


def test_unsubscribe_from_the_error_callback(nats_server: LocalServer, js: JetStream) -> None:
    """The error callback may unsubscribe the subscription that failed."""
    subs: list[PushSubscription] = []
    ended = threading.Event()

    def on_error(error: Exception) -> None:
        subs[0].unsubscribe()
        ended.set()

    nc = jetstream_sync.connect(nats_server.url, error_cb=on_error)

    def handle(message: JetStreamMessage) -> None:
        raise RuntimeError("give it up")

    ready = threading.Event()
    subs.append(nc.jetstream().subscribe("s.>", cb=lambda message: ready.wait(5) and handle(message)))
    ready.set()
    fill(js, 3)
    assert ended.wait(5)
    assert consumers(js) == []
    nc.close()


def test_close_from_the_callback(nats_server: LocalServer, js: JetStream) -> None:
    """A callback may close its own connection."""
    nc = jetstream_sync.connect(nats_server.url)
    closed = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        nc.close()
        closed.set()

    nc.jetstream().subscribe("s.>", cb=handle, idle_heartbeat=1.0)
    fill(js, 1)
    assert closed.wait(5)
    eventually(lambda: not thread_names("js-push-", "js-sub-"))


def test_many_subscriptions_leave_nothing(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """100 subscriptions made and ended: no thread, no consumer and no subscription is left."""
    fill(js, 3)
    nc.flush()
    before = nats_server.monitor(f"/connz?cid={nc.client_id}&subs=1")["connections"][0]["subscriptions"]
    for number in range(100):
        ordered = number % 3 == 0
        sub = js.subscribe("s.>", ordered_consumer=ordered, idle_heartbeat=1.0 if number % 2 else None)
        assert sub.next_msg(5.0).data == b"0"
        sub.unsubscribe()
    nc.flush()
    after = nats_server.monitor(f"/connz?cid={nc.client_id}&subs=1")["connections"][0]["subscriptions"]
    assert after == before
    assert consumers(js) == []
    eventually(lambda: not thread_names("js-push-"))


def test_ordered_unsubscribed_while_it_is_replaced(nats_server: LocalServer, js: JetStream) -> None:
    """An ordered subscription that is unsubscribed while its consumer is replaced leaves no consumer."""
    fill(js, 5)
    for number in range(10):
        sub = js.subscribe("s.>", ordered_consumer=True, idle_heartbeat=0.1, cb=lambda message: None)
        js.delete_consumer("S", sub.consumer_name)
        first = sub.consumer_name
        if number % 2:
            eventually(lambda first=first, sub=sub: sub.consumer_name != first)
        under_watchdog(sub.unsubscribe)
        eventually(lambda: consumers(js) == [])


def test_reconnect_while_the_watch_starts_does_not_silence_the_alarm(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection comes back just after js-push has found it down: the alarm is started nevertheless."""
    errors: list[Exception] = []
    attach, connected = PushInbound.attach, Link.connected
    watched: list[PushInbound] = []

    def attach_and_be_overtaken(inbound: PushInbound, *args: Any, **options: Any) -> None:
        watched.append(inbound)
        attach(inbound, *args, **options)

    def down_until_looked_at(link: Link) -> bool:
        if watched:
            watched.pop().reconnected()  # as the reader thread does, after js-push has looked and before it acts
            return False
        return connected.__get__(link)

    monkeypatch.setattr(PushInbound, "attach", attach_and_be_overtaken)
    monkeypatch.setattr(Link, "connected", property(down_until_looked_at))
    with FaultProxy(nats_server) as proxy:
        nc = jetstream_sync.connect(proxy.url, error_cb=errors.append)
        nc.jetstream().subscribe("s.>", idle_heartbeat=0.1)
        assert watched == []
        proxy.black_hole("to_client")
        eventually(lambda: [error for error in errors if isinstance(error, MissedHeartbeatError)], 3.0)
        nc.close()


def test_signal_in_next_msg_leaves_the_subscription_usable(js: JetStream) -> None:
    """An exception of a signal handler ends the wait at once; the next call gets the next message."""
    sub = js.subscribe("s.>", idle_heartbeat=1.0)
    for number in range(5):
        with pytest.raises(Interrupted), interrupted_after(0.05, Interrupted):
            sub.next_msg(None)
        js.publish("s.x", b"%d" % number)
        assert sub.next_msg(2.0).data == b"%d" % number
    sub.unsubscribe()


@needs_fork_hooks
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_fork_leaves_the_parents_subscription_alone(js: JetStream) -> None:
    """A forked child that uses an inherited subscription gets ForkError, and the parent notices nothing."""
    sub = js.subscribe("s.>", durable="d", idle_heartbeat=1.0)
    pull = js.pull_subscribe("s.>", "p")
    calls: list[Callable[[], object]] = [
        lambda: sub.next_msg(1.0),
        sub.unsubscribe,
        sub.drain,
        pull.fetch,
        pull.unsubscribe,
        lambda: next(iter(sub)),
    ]

    def use() -> list[str]:
        outcomes = [raised_by(call) for call in calls]
        with sub, pull:
            return outcomes

    assert in_child(use) == ["ForkError"] * len(calls)
    fill(js, 1)
    assert sub.next_msg(2.0).data == b"0"
    assert len(pull.fetch(1)) == 1
    assert consumers(js) == ["d", "p"]
    sub.unsubscribe()
    pull.unsubscribe()


@pytest.mark.parametrize("form", ["callback", "waiting", "ordered"])
def test_interpreter_exit_without_close(nats_server: LocalServer, js: JetStream, form: str) -> None:
    """A script that ends without closing anything ends at once, exit code 0, with nothing on stderr."""
    script = textwrap.dedent(f"""
        import threading, jetstream_sync
        js = jetstream_sync.connect({nats_server.url!r}).jetstream()
        form = {form!r}
        if form == "waiting":
            sub = js.subscribe("s.>", idle_heartbeat=0.2)
            threading.Thread(target=sub.next_msg, args=(None,), daemon=True).start()
        else:
            seen = threading.Event()
            ordered = form == "ordered"
            sub = js.subscribe("s.>", cb=lambda m: seen.set(), idle_heartbeat=0.2, ordered_consumer=ordered)
            js.publish("s.x", b"1")
            assert seen.wait(5)
    """)
    started = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert time.monotonic() - started < 6.0


def test_reader_is_not_held_up_by_a_slow_callback(nc: Connection, js: JetStream) -> None:
    """While a callback sleeps, other subscriptions, requests and pings of the connection go on."""
    fill(js, 5)
    release = threading.Event()
    sub = js.subscribe("s.>", cb=lambda message: release.wait(10), flow_control=True, idle_heartbeat=0.5)
    other = js.subscribe("s.>")
    assert [int(other.next_msg(2.0).data) for _ in range(5)] == list(range(5))
    assert nc.rtt() < 1.0
    release.set()
    sub.unsubscribe()
    other.unsubscribe()
    with pytest.raises(SubscriptionClosedError):
        other.next_msg(0.1)


def test_subscribe_on_a_closed_connection(nats_server: LocalServer) -> None:
    """A closed connection makes no subscription, of either kind."""
    nc = jetstream_sync.connect(nats_server.url)
    js = nc.jetstream()
    nc.close()
    for call in (lambda: js.subscribe("s.>"), lambda: js.pull_subscribe("s.>", "d")):
        with pytest.raises(NatsError, match="closed"):
            call()
