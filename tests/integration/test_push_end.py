"""How a push subscription ends, and what it leaves behind on a real server."""

from __future__ import annotations

import threading

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMessage, PushSubscription
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConsumerNotFoundError,
    PermissionsError,
    SubscriptionClosedError,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import consumers, fill
from tests.support.push import Collector
from tests.support.watchdog import InThread, under_watchdog

pytestmark = pytest.mark.usefixtures("stream")


@pytest.mark.parametrize("durable", [None, "d"])
def test_unsubscribe_deletes_the_consumer_it_created(js: JetStream, durable: str | None) -> None:
    """unsubscribe() deletes what the subscription created, durable or not. A second call does nothing."""
    sub = js.subscribe("s.>", durable=durable)
    assert len(consumers(js)) == 1
    sub.unsubscribe()
    assert consumers(js) == []
    sub.unsubscribe()


def test_unsubscribe_raises_when_the_deletion_fails(js: JetStream) -> None:
    """A deletion that fails is raised; the subscription itself has ended."""
    sub = js.subscribe("s.>", durable="d")
    js.delete_consumer("S", "d")
    with pytest.raises(ConsumerNotFoundError):
        sub.unsubscribe()
    with pytest.raises(SubscriptionClosedError):
        sub.next_msg(0.1)


def test_unsubscribe_has_no_limit(js: JetStream) -> None:
    """A limit would count statuses: it is refused."""
    with js.subscribe("s.>") as sub:
        with pytest.raises(ValueError, match="limit"):
            sub.unsubscribe(5)


def test_drain_handles_what_has_arrived_then_deletes(js: JetStream) -> None:
    """drain() with a callback blocks until everything received is handled and acked, then the consumer is gone."""
    fill(js, 30)
    handled: list[int] = []
    started = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        started.set()
        handled.append(int(message.data))
        threading.Event().wait(0.005)

    sub = js.subscribe("s.>", cb=handle)
    assert started.wait(5)
    eventually(lambda: sub.pending_msgs + len(handled) >= 29)
    sub.drain()
    assert handled == list(range(30))
    assert consumers(js) == []


def test_drain_without_callback_deletes_when_all_was_taken(js: JetStream) -> None:
    """What has arrived can be taken and acknowledged after drain(); the consumer goes when there is no more."""
    fill(js, 5)
    sub = js.subscribe("s.>", durable="d")
    eventually(lambda: sub.pending_msgs == 5)
    sub.drain()
    assert consumers(js) == ["d"]
    for message in sub:
        message.ack_sync()
    assert sub.delivered == 5
    assert consumers(js) == []


def test_drain_without_callback_and_messages_deletes_at_once(js: JetStream) -> None:
    """Nothing is left to be taken: drain() itself deletes the consumer."""
    sub = js.subscribe("s.>")
    sub.drain()
    assert consumers(js) == []


def test_drain_reports_a_deletion_that_fails(reported: tuple[Connection, list[Exception]], js: JetStream) -> None:
    """After a drain the failure to delete goes to the error callback, not to the caller."""
    nc, errors = reported
    sub = nc.jetstream().subscribe("s.>", durable="d", cb=print)
    js.delete_consumer("S", "d")
    sub.drain()
    eventually(lambda: errors)
    assert [type(error) for error in errors] == [ConsumerNotFoundError]


def test_drain_from_the_callback_finishes_what_is_buffered(js: JetStream) -> None:
    """drain() in the callback returns, the rest is handled after it, and then the consumer is deleted."""
    fill(js, 10)
    handled: list[int] = []
    subs: list[PushSubscription] = []
    ready = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        ready.wait(5)
        if not handled:
            eventually(lambda: subs[0].pending_msgs == 9)
            subs[0].drain()
        handled.append(int(message.data))

    subs.append(js.subscribe("s.>", cb=handle))
    ready.set()
    eventually(lambda: consumers(js) == [])
    assert handled == list(range(10))


def test_unsubscribe_from_the_callback_ends_it(js: JetStream) -> None:
    """unsubscribe() in the callback works: no further message is handled, and the consumer is deleted."""
    fill(js, 10)
    handled: list[int] = []
    subs: list[PushSubscription] = []
    ready = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        ready.wait(5)
        handled.append(int(message.data))
        subs[0].unsubscribe()

    subs.append(js.subscribe("s.>", cb=handle))
    ready.set()
    eventually(lambda: consumers(js) == [])
    assert handled == [0]


def test_leaving_the_block_unsubscribes(js: JetStream) -> None:
    """`with` deletes what was created, also when an exception is on its way, which it does not replace."""
    with pytest.raises(RuntimeError, match="mine"):
        with js.subscribe("s.>", durable="d") as sub:
            js.delete_consumer("S", sub.consumer_name)
            raise RuntimeError("mine")
    with js.subscribe("s.>"):
        pass
    assert consumers(js) == []


@pytest.mark.parametrize("how", ["close", "drain"])
def test_end_of_the_connection_deletes_nothing(nats_server: LocalServer, js: JetStream, how: str) -> None:
    """The end of the connection ends the subscription, a drain with all received handled; nothing is deleted."""
    fill(js, 20)
    nc = jetstream_sync.connect(nats_server.url)
    handled = Collector()
    sub = nc.jetstream().subscribe("s.>", durable="d", cb=handled, idle_heartbeat=5.0)
    eventually(lambda: sub.delivered + sub.pending_msgs >= 20)
    under_watchdog(nc.drain if how == "drain" else nc.close)
    if how == "drain":
        assert handled.wait(20) == list(range(20))
    assert consumers(js) == ["d"]
    with pytest.raises(ConnectionClosedError):
        sub.unsubscribe()


def test_iteration_ends_with_the_connection(nats_server: LocalServer, js: JetStream) -> None:
    """A loop over a push subscription ends when the user closes the connection."""
    nc = jetstream_sync.connect(nats_server.url)
    sub = nc.jetstream().subscribe("s.>")
    loop = InThread(lambda: list(sub))
    nc.close()
    assert loop.result() == []


def test_denied_deliver_subject_is_an_error_and_leaves_no_consumer() -> None:
    """A subscription that the server denies fails the call, and the consumer created for it is deleted."""
    config = """
        accounts: { A: { jetstream: enabled, users: [
            { user: admin, password: x },
            { user: app, password: x, permissions: { subscribe: { deny: ["deliver.>"] } } } ] } }
    """
    with LocalServer(config=config) as server:
        with jetstream_sync.connect(server.url, user="admin", password="x") as admin:
            admin.jetstream().create_stream(name="S", subjects=["s.>"])
            with jetstream_sync.connect(server.url, user="app", password="x", error_cb=lambda error: None) as nc:
                with pytest.raises(PermissionsError, match=r"deliver\.x"):
                    nc.jetstream().subscribe("s.>", config={"deliver_subject": "deliver.x"})
            assert consumers(admin.jetstream()) == []
