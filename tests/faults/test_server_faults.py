"""A server process that dies, freezes and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import Connection, connect
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    NatsError,
    NoServersError,
    StaleConnectionError,
    TimeoutError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread, under_watchdog


@pytest.fixture
def frozen(server: LocalServer) -> Iterator[LocalServer]:
    """A server that accepts connections and sends nothing until it is resumed."""
    server.pause()
    yield server
    server.resume()


class Events:
    """The callbacks of one connection, in order."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.errors: list[Exception] = []

    def callbacks(self) -> dict[str, Any]:
        kinds = ("disconnected", "reconnected", "closed")
        return {f"{kind}_cb": self._note(kind) for kind in kinds} | {"error_cb": self.errors.append}

    def _note(self, kind: str) -> Any:
        return lambda _: self.kinds.append(kind)


# --- kill -9 ------------------------------------------------------------------------------------------------


def test_kill_and_restart_connects_again_within_five_seconds_of_the_port(server: LocalServer) -> None:
    """After kill -9 and a restart the client reconnects, subscriptions work, and each callback comes once."""
    events = Events()
    with connect(server.url, **events.callbacks()) as nc:
        sub = nc.subscribe("k.>")
        handled: list[bytes] = []
        nc.subscribe("k.cb", cb=lambda msg: handled.append(msg.data))
        server.kill()
        eventually(lambda: nc.is_reconnecting)
        assert not nc.is_connected
        assert nc.connected_url is None
        nc.publish("k.buffered", b"waited")
        server.start()
        eventually(lambda: nc.is_connected, timeout=5)
        assert sub.next_msg(timeout=5).data == b"waited"
        nc.publish("k.cb", b"after")
        eventually(lambda: handled == [b"after"])
        eventually(lambda: events.kinds == ["disconnected", "reconnected"])
        assert isinstance(events.errors[0], ConnectionLostError)
        assert {type(error) for error in events.errors[1:]} <= {NoServersError}  # attempts before it was back
        assert nc.stats.reconnects == 1
    eventually(lambda: events.kinds == ["disconnected", "reconnected", "disconnected", "closed"])


def test_kill_during_waiting_calls_ends_them_at_once(server: LocalServer) -> None:
    """request() and flush() raise ConnectionLostError when the server dies, not at their timeouts."""
    with connect(server.url) as nc:
        nc.subscribe("mute")
        nc.flush()
        asking = InThread(nc.request, "mute", timeout=60)
        eventually(lambda: len(link_of(nc).requests.pending) == 1)
        server.pause()
        flushing = InThread(nc.flush, 60)
        eventually(lambda: len(link_of(nc).pings.waiters) == 1)
        server.kill()
        assert isinstance(asking.error(3), ConnectionLostError)
        assert isinstance(flushing.error(3), ConnectionLostError)


def test_kill_without_reconnect_closes_for_good(server: LocalServer) -> None:
    """With allow_reconnect=False a lost connection is closed, and later calls raise with the reason."""
    events = Events()
    nc = connect(server.url, allow_reconnect=False, **events.callbacks())
    sub = nc.subscribe("x")
    waiting = InThread(sub.next_msg, 30)
    server.kill()
    assert isinstance(waiting.error(3), ConnectionClosedError)
    eventually(lambda: events.kinds == ["disconnected", "closed"])
    for call in (lambda: nc.publish("x"), nc.flush, lambda: nc.request("x"), lambda: nc.subscribe("x")):
        with pytest.raises(ConnectionClosedError, match=r"closed the connection|reset"):
            call()
    assert isinstance(nc.last_error, ConnectionLostError)


def test_kill_of_one_of_two_servers_moves_to_the_other(server: LocalServer) -> None:
    """The client moves, with its subscriptions, to the next server in the pool."""
    with LocalServer(jetstream=False) as other:
        with connect([server.url, other.url], dont_randomize=True) as nc:
            sub = nc.subscribe("m")
            assert nc.connected_url == server.url
            server.kill()
            eventually(lambda: nc.connected_url == other.url)
            nc.publish("m", b"moved")
            assert sub.next_msg(timeout=5).data == b"moved"
            server.start()
            other.kill()
            eventually(lambda: nc.connected_url == server.url)
            nc.publish("m", b"back")
            assert sub.next_msg(timeout=5).data == b"back"


def test_max_reconnect_attempts_used_up_closes_with_no_servers_error(server: LocalServer) -> None:
    """After max_reconnect_attempts the connection is closed; the error names the server and the reason."""
    events = Events()
    nc = connect(
        server.url,
        max_reconnect_attempts=3,
        reconnect_time_wait=0.01,
        reconnect_time_wait_max=0.02,
        **events.callbacks(),
    )
    sub = nc.subscribe("x")
    loop = InThread(list, sub)
    server.kill()
    eventually(lambda: nc.is_closed)
    eventually(lambda: events.kinds == ["disconnected", "closed"])
    assert isinstance(nc.last_error, NoServersError)
    assert server.url in str(nc.last_error)
    assert "refused" in str(nc.last_error).lower()
    assert any(isinstance(error, NoServersError) for error in events.errors)
    with pytest.raises(ConnectionClosedError, match="no NATS server"):
        nc.flush()
    assert isinstance(loop.error(3), ConnectionClosedError)


def test_close_while_reconnecting_returns_at_once(server: LocalServer) -> None:
    """close() while the client waits between attempts returns at once and calls closed_cb."""
    events = Events()
    nc = connect(server.url, reconnect_time_wait=30, reconnect_time_wait_max=60, **events.callbacks())
    server.kill()
    eventually(lambda: nc.is_reconnecting)
    asking = InThread(nc.request, "x", timeout=60)
    eventually(lambda: len(link_of(nc).requests.pending) == 1)
    closing = InThread(nc.close)
    closing.result(3)
    assert closing.seconds < 1.5
    assert isinstance(asking.error(3), ConnectionClosedError)
    eventually(lambda: events.kinds == ["disconnected", "closed"])


# --- SIGSTOP ------------------------------------------------------------------------------------------------


def test_connect_to_a_stopped_server_raises_within_its_timeout(frozen: LocalServer) -> None:
    """The server accepts and sends nothing: connect() raises NoServersError at its timeout."""
    connecting = InThread(connect, frozen.url, connect_timeout=0.4)
    error = connecting.error(5)
    assert isinstance(error, NoServersError)
    assert "timed out" in str(error) or "in time" in str(error)
    assert 0.35 < connecting.seconds < 1.5


def test_stopped_server_is_found_stale_by_ping(server: LocalServer) -> None:
    """Pings without a PONG end the session with StaleConnectionError; the client reconnects after the resume."""
    events = Events()
    with connect(
        server.url,
        ping_interval=0.1,
        max_outstanding_pings=2,
        connect_timeout=0.5,
        reconnect_time_wait=0.05,
        reconnect_time_wait_max=0.1,
        **events.callbacks(),
    ) as nc:
        sub = nc.subscribe("s")
        nc.flush()
        server.pause()
        stopped = time.monotonic()
        eventually(lambda: events.kinds == ["disconnected"])
        assert 0.15 < time.monotonic() - stopped < 2
        assert isinstance(events.errors[0], StaleConnectionError)
        server.resume()
        eventually(lambda: nc.is_connected)
        nc.publish("s", b"alive")
        assert sub.next_msg(timeout=5).data == b"alive"


def test_flush_and_request_time_out_at_a_stopped_server(server: LocalServer) -> None:
    """flush(), rtt() and request() time out while the server is stopped, and work again after the resume."""
    with connect(server.url) as nc:
        nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        nc.flush()
        server.pause()
        for call in (nc.flush, nc.rtt, lambda timeout: nc.request("echo", timeout=timeout)):
            waiting = InThread(call, timeout=0.2)
            assert isinstance(waiting.error(), TimeoutError)
            assert 0.19 < waiting.seconds < 1
        server.resume()
        nc.flush(5)
        assert nc.request("echo", b"x").data == b"x"
        assert 0 < nc.rtt() < 5


def stuck_publisher(nc: Connection) -> InThread[None]:
    """Start a thread that publishes to a frozen server; return when it is blocked."""
    published = [0]
    block = b"x" * 100_000

    def publish() -> None:
        while True:
            nc.publish("fill", block)
            published[0] += 1

    publishing = InThread(publish)
    steady: list[int] = []

    def is_stuck() -> bool:
        steady.append(published[0])
        return published[0] > 10 and len(steady) > 30 and len(set(steady[-20:])) == 1

    eventually(is_stuck, timeout=15)
    assert publishing.running
    return publishing


def test_close_returns_while_another_thread_is_stuck_in_a_publish(server: LocalServer) -> None:
    """close() returns within 3 s although the socket is full, and the stuck publish() raises."""
    nc = connect(server.url)
    server.pause()
    publishing = stuck_publisher(nc)
    closing = InThread(nc.close)
    closing.result(5)
    assert closing.seconds < 3
    assert isinstance(publishing.error(3), ConnectionClosedError)
    server.resume()


def test_deadlines_of_others_hold_while_a_publish_is_stuck(server: LocalServer) -> None:
    """request() and flush() time out in time although the socket is full; after the resume everything is sent."""
    with connect(server.url) as nc:
        nc.subscribe("mute")
        nc.flush()
        server.pause()
        publishing = stuck_publisher(nc)
        for call in (lambda: nc.request("mute", timeout=0.3), lambda: nc.flush(0.3)):
            waiting = InThread(call)
            assert isinstance(waiting.error(), TimeoutError)
            assert waiting.seconds < 1.2
        others = [InThread(nc.request, "mute", timeout=0.3) for _ in range(8)]
        assert all(isinstance(one.error(3), TimeoutError) for one in others)
        server.resume()
        nc.flush(10)
        assert nc.stats.reconnects == 0
        nc.close()
        publishing.error(5)


def test_stuck_publish_is_freed_by_the_stale_ping(server: LocalServer) -> None:
    """Pings are counted while the socket is full: the session is found stale and the stuck publish() raises."""
    errors: list[Exception] = []
    nc = connect(
        server.url,
        ping_interval=0.2,
        connect_timeout=0.3,
        reconnect_time_wait=0.05,
        reconnect_time_wait_max=0.1,
        pending_size=50_000,
        error_cb=errors.append,
    )
    server.pause()
    failed = InThread(publish_until_error, nc)
    assert isinstance(failed.result(10), NatsError)
    eventually(lambda: any(isinstance(error, StaleConnectionError) for error in errors))
    server.resume()
    eventually(lambda: nc.is_connected)
    nc.flush(5)
    nc.close()


def publish_until_error(nc: Connection) -> NatsError:
    while True:
        try:
            nc.publish("fill", b"x" * 100_000)
        except NatsError as error:
            return error


def test_drain_at_a_stopped_server_ends_by_its_timeout(server: LocalServer) -> None:
    """drain() against a silent server raises at its timeout and closes."""
    nc = connect(server.url, drain_timeout=0.3)
    nc.subscribe("d", cb=lambda msg: None)
    nc.flush()
    server.pause()
    draining = InThread(nc.drain)
    assert isinstance(draining.error(5), NatsError)
    assert draining.seconds < 3.5
    assert nc.is_closed
    server.resume()


def test_close_while_dialling_a_stopped_server_returns(server: LocalServer) -> None:
    """close() ends a handshake that waits for INFO."""
    nc = connect(server.url, connect_timeout=30, reconnect_time_wait=0.01)
    server.kill()
    eventually(lambda: nc.is_reconnecting)
    server.start()
    eventually(lambda: nc.is_connected)
    server.pause()
    nc.force_reconnect()
    eventually(lambda: link_of(nc).dialer.dialing)
    closing = InThread(nc.close)
    closing.result(5)
    assert closing.seconds < 1.5
    server.resume()


def test_ping_of_the_server_is_answered_while_a_callback_is_busy() -> None:
    """The reader replies to PINGs while a callback runs: the server does not close the connection."""
    release = threading.Event()
    with LocalServer(jetstream=False, config='ping_interval: "150ms"\nping_max: 1') as server:
        with connect(server.url, ping_interval=60) as nc:
            nc.subscribe("busy", cb=lambda msg: release.wait(20))
            nc.publish("busy")
            under_watchdog(nc.flush)
            deadline = time.monotonic() + 1.2
            while time.monotonic() < deadline:
                assert nc.is_connected
                under_watchdog(nc.rtt)
                threading.Event().wait(0.05)
            assert nc.stats.reconnects == 0
            release.set()
