"""How a connection to a real server ends, and the callbacks that tell of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, connect
from jetstream_sync.errors import (
    ConnectionClosedError,
)
from jetstream_sync.net import callbacks
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread, under_watchdog

# --- ending ------------------------------------------------------------------------------------------------


def test_leaving_the_block_drains(nats_server: LocalServer) -> None:
    """Leaving `with` handles everything received and flushes everything published, then closes."""
    with connect(nats_server.url) as observer:
        seen = observer.subscribe("done")
        observer.flush()
        with connect(nats_server.url) as nc:
            nc.subscribe("work", cb=lambda msg: (time.sleep(0.001), nc.publish("done", msg.data)))
            for number in range(100):
                nc.publish("work", b"%d" % number)
            nc.flush()
        assert nc.is_closed
        observer.flush()
        assert [int(seen.next_msg().data) for _ in range(seen.pending_msgs)] == list(range(100))


def test_leaving_the_block_with_an_exception_closes(nats_server: LocalServer) -> None:
    """An exception on its way closes at once and is not replaced."""
    release = threading.Event()
    nc = connect(nats_server.url)

    def block() -> None:
        with nc:
            nc.subscribe("slow", cb=lambda msg: release.wait(30))
            nc.publish("slow")
            nc.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        under_watchdog(block, limit=3)
    assert nc.is_closed
    release.set()


def test_drain_waits_for_callbacks_and_flushes(nats_server: LocalServer) -> None:
    """drain() handles all callback messages, sends what they publish, refuses new subscriptions and closes."""
    events: list[str] = []
    handled: list[int] = []
    nc = connect(nats_server.url, closed_cb=lambda _: events.append("closed"))
    entered = threading.Event()
    go_on = threading.Event()

    def work(msg: jetstream_sync.Message) -> None:
        entered.set()
        go_on.wait(10)
        handled.append(int(msg.data))

    nc.subscribe("d", cb=work)
    for number in range(50):
        nc.publish("d", b"%d" % number)
    nc.flush()
    assert entered.wait(5)
    draining = InThread(nc.drain, 20)
    eventually(lambda: nc.is_draining)
    assert nc.is_connected
    with pytest.raises(ConnectionClosedError, match="draining"):
        nc.subscribe("late")
    go_on.set()
    draining.result()
    assert handled == list(range(50))
    assert nc.is_closed
    nc.drain()
    nc.close()
    eventually(lambda: events == ["closed"])


def test_drain_that_takes_too_long_raises_and_closes(nats_server: LocalServer) -> None:
    """A drain over its time raises DrainTimeoutError, and the connection is closed."""
    release = threading.Event()
    nc = connect(nats_server.url)
    nc.subscribe("stuck", cb=lambda msg: release.wait(30))
    nc.publish("stuck")
    nc.flush()
    draining = InThread(nc.drain, 0.2)
    assert isinstance(draining.error(5), jetstream_sync.errors.DrainTimeoutError)
    assert nc.is_closed
    release.set()


def test_close_is_idempotent_and_ends_everything(nats_server: LocalServer) -> None:
    """After close() each call raises ConnectionClosedError, iteration ends, and closing again does nothing."""
    nc = connect(nats_server.url)
    sub = nc.subscribe("c")
    loop = InThread(list, sub)
    waiting = InThread(nc.request, "unanswered.here", timeout=30)
    nc.subscribe("unanswered.here")
    under_watchdog(nc.close, limit=3)
    assert loop.result() == []
    waiting.error()
    for call in (
        lambda: nc.publish("c"),
        lambda: nc.request("c"),
        lambda: nc.subscribe("c"),
        nc.flush,
        nc.rtt,
        nc.force_reconnect,
        lambda: sub.next_msg(),
    ):
        with pytest.raises(ConnectionClosedError):
            call()
    nc.close()
    nc.drain()
    sub.unsubscribe()
    sub.drain()


@pytest.mark.parametrize("callback", [None, lambda msg: None], ids=["plain", "callback"])
def test_subscribe_overtaken_by_close_raises(nats_server: LocalServer, callback: Any) -> None:
    """A close() in the middle of subscribe() makes it raise: no subscription is left open."""
    nc = connect(nats_server.url)
    link = link_of(nc)
    check = link.check_usable

    def check_then_close() -> None:
        del link.check_usable  # type: ignore[method-assign]
        check()
        nc.close()

    link.check_usable = check_then_close  # type: ignore[method-assign]
    with pytest.raises(ConnectionClosedError):
        nc.subscribe("x", cb=callback)


def test_close_sends_what_was_published_before(nats_server: LocalServer) -> None:
    """close() right after a publish does not lose it."""
    with connect(nats_server.url) as observer:
        seen = observer.subscribe("last.words")
        observer.flush()
        for number in range(20):
            nc = connect(nats_server.url)
            nc.publish("last.words", b"%d" % number)
            nc.close()
        assert [int(seen.next_msg().data) for _ in range(20)] == list(range(20))


def test_close_from_many_threads_at_once(nats_server: LocalServer) -> None:
    """Concurrent close() and drain() calls neither deadlock nor raise."""
    for _ in range(5):
        nc = connect(nats_server.url)
        nc.subscribe("x", cb=lambda msg: None)
        calls = [InThread(nc.close if n % 2 else nc.drain) for n in range(8)]
        for call in calls:
            call.result(5)
        assert nc.is_closed


# --- callbacks ------------------------------------------------------------------------------------------------


def test_callbacks_run_once_each_on_a_library_thread(proxy: FaultProxy) -> None:
    """disconnected, reconnected and closed callbacks get the connection, once each, on a js- thread."""
    events: list[tuple[str, str, Any]] = []

    def note(kind: str) -> Any:
        return lambda argument: events.append((kind, threading.current_thread().name, argument))

    nc = connect(
        proxy.url,
        error_cb=note("error"),
        disconnected_cb=note("disconnected"),
        reconnected_cb=note("reconnected"),
        closed_cb=note("closed"),
        reconnect_time_wait=0.01,
    )
    proxy.cut()
    eventually(lambda: [kind for kind, *_ in events if kind != "error"] == ["disconnected", "reconnected"])
    nc.close()
    eventually(lambda: events and events[-1][0] == "closed")
    kinds = [kind for kind, *_ in events]
    assert kinds == ["error", "disconnected", "reconnected", "disconnected", "closed"]
    assert all(thread.startswith("js-") for _, thread, _ in events)
    assert all(argument is nc for kind, _, argument in events if kind != "error")
    assert all(isinstance(argument, Exception) for kind, _, argument in events if kind == "error")


@pytest.mark.parametrize("error", [ValueError("user"), SystemExit(3)], ids=["exception", "exit"])
def test_callbacks_may_raise(proxy: FaultProxy, error: BaseException) -> None:
    """A callback that raises, whatever it raises, harms neither the connection nor later callbacks.

    error_cb hears of exceptions of the others, and not of its own.
    """
    calls: list[str] = []
    told = ["error"] if isinstance(error, Exception) else []

    def failing(kind: str) -> Any:
        def callback(_: Any) -> None:
            calls.append(kind)
            raise error

        return callback

    with connect(
        proxy.url,
        error_cb=failing("error"),
        disconnected_cb=failing("disconnected"),
        reconnected_cb=failing("reconnected"),
        closed_cb=failing("closed"),
        reconnect_time_wait=0.01,
    ) as nc:
        proxy.cut()
        eventually(lambda: calls == ["error", "disconnected", *told, "reconnected", *told])
        nc.flush()
    eventually(lambda: calls[-1 - len(told) :] == ["closed", *told])


def test_error_cb_that_hangs_does_not_gather_errors_without_a_bound(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond a thousand (here: 5) that wait, errors are left out; a warning says so, and other callbacks come."""
    monkeypatch.setattr(callbacks, "MAX_WAITING", 5)
    release = threading.Event()
    told: list[Exception] = []
    reconnected: list[Connection] = []

    def error_cb(error: Exception) -> None:
        told.append(error)
        release.wait(30)

    with connect(
        proxy.url, error_cb=error_cb, reconnected_cb=reconnected.append, reconnect_time_wait_max=0.01
    ) as nc:
        proxy.refuse()
        proxy.cut()
        eventually(lambda: nc.server_pool[0].reconnects >= 20)
        proxy.heal()
        eventually(lambda: nc.is_connected)
        release.set()
        eventually(lambda: reconnected)
    assert len(told) <= 8
    assert "some were left out" in caplog.text


@pytest.mark.parametrize("where", ["error_cb", "disconnected_cb", "reconnected_cb", "closed_cb"])
def test_close_from_a_callback(proxy: FaultProxy, where: str) -> None:
    """Every callback may call close(): no deadlock, and closed_cb still comes."""
    closed = threading.Event()
    holder: list[Connection] = []
    ready = threading.Event()

    def close(_: Any) -> None:
        ready.wait(5)
        holder[0].close()

    def close_and_tell(nc: Connection) -> None:
        nc.close()
        closed.set()

    callbacks: dict[str, Any] = {"closed_cb": lambda _: closed.set(), where: close}
    if where == "closed_cb":
        callbacks[where] = close_and_tell
    nc = connect(proxy.url, reconnect_time_wait=0.01, **callbacks)
    holder.append(nc)
    ready.set()
    if where == "closed_cb":
        nc.close()
    else:
        proxy.cut()
    assert closed.wait(5)
    assert nc.is_closed


def test_close_and_drain_from_a_subscription_callback(nats_server: LocalServer) -> None:
    """A message callback may close or drain its own connection."""
    for end in (Connection.close, Connection.drain):
        ended = threading.Event()
        nc = connect(nats_server.url)

        def handler(msg: Any, nc: Connection = nc, end: Any = end, ended: Any = ended) -> None:
            end(nc)
            ended.set()

        nc.subscribe("end", cb=handler)
        nc.publish("end")
        assert ended.wait(5)
        assert nc.is_closed
