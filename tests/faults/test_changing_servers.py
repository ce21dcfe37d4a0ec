"""Servers that come and go: discovery, rotation, lame duck mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import Connection, PoolServer, connect
from jetstream_sync.errors import ConnectionClosedError, NoServersError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.peers import QUICK, CountingListener, answer_pings, drop, serve
from tests.support.threads import thread_names


def test_discovered_servers_join_and_leave() -> None:
    """Servers in connect_urls join the pool, with a callback, and leave it when they are no longer advertised."""
    found: list[Connection] = []
    steps: list[threading.Event] = [threading.Event() for _ in range(4)]

    def script(conn: PeerConnection) -> None:
        conn.handshake(connect_urls=["10.0.0.1:4222"])
        for step, urls in zip(
            steps,
            (
                ["10.0.0.1:4222", "10.0.0.2:4222", "nonsense:port", 7],
                ["10.0.0.2:4222"],
                None,
                "not a list",
            ),
            strict=True,
        ):
            step.wait(10)
            conn.send_info(connect_urls=urls)
        answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url, discovered_server_cb=found.append) as nc:
        assert nc.discovered_servers == ["nats://10.0.0.1:4222"]
        steps[0].set()
        eventually(lambda: len(nc.discovered_servers) == 2)
        assert set(nc.servers) == {peer.url, "nats://10.0.0.1:4222", "nats://10.0.0.2:4222"}
        eventually(lambda: found == [nc])
        steps[1].set()
        eventually(lambda: nc.discovered_servers == ["nats://10.0.0.2:4222"])
        steps[2].set()
        steps[3].set()
        nc.flush()
        assert nc.discovered_servers == ["nats://10.0.0.2:4222"]
        assert nc.stats.reconnects == 0
        nc.close()
    assert found == [nc]


def test_pool_of_discovered_servers_is_bounded() -> None:
    """An INFO that names 10 003 servers adds 1 000 to the pool, and one that names fewer leaves those alone."""
    urls = [f"10.{number // 65536}.{number // 256 % 256}.{number % 256}:4222" for number in range(10_003)]
    step = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.handshake(connect_urls=urls)
        step.wait(10)
        conn.send_info(connect_urls=urls[5000:5003])
        answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url) as nc:
        assert len(nc.discovered_servers) == 1000
        assert len(nc.servers) == 1001
        step.set()
        eventually(lambda: len(nc.discovered_servers) == 3)
        nc.close()


def test_discovered_servers_are_ignored_when_asked() -> None:
    """ignore_discovered_servers: the pool is what the user named, and no callback tells of others."""
    found: list[Connection] = []

    def script(conn: PeerConnection) -> None:
        conn.handshake(connect_urls=["10.0.0.1:4222"])
        conn.send_info(connect_urls=["10.0.0.2:4222"])
        answer_pings(conn)

    with ScriptedPeer(script) as peer:
        options = {"ignore_discovered_servers": True, "discovered_server_cb": found.append}
        with connect(peer.url, **options) as nc:
            nc.flush()
            assert (nc.servers, nc.discovered_servers, found) == ([peer.url], [], [])
            nc.close()


def test_discovered_server_is_used_when_the_known_one_goes(nats_server: LocalServer) -> None:
    """When the server is lost the client moves, with its subscriptions, to one it knows only from INFO."""

    def script(conn: PeerConnection) -> None:
        conn.handshake(connect_urls=[f"127.0.0.1:{nats_server.port}"])
        conn.expect_line(b"SUB")
        conn.close()

    with ScriptedPeer(script) as peer, connect(peer.url, **QUICK) as nc:
        sub = nc.subscribe("taken.over")
        eventually(lambda: nc.connected_url == nats_server.url)
        nc.publish("taken.over", b"x")
        assert sub.next_msg(timeout=5).data == b"x"
        nc.close()


def test_rotation_goes_round_all_servers() -> None:
    """Each loss moves to the next server: the one just lost comes last."""
    order: list[int] = []
    gates = [threading.Semaphore(0) for _ in range(3)]

    def script_of(number: int) -> Callable[[PeerConnection], None]:
        def script(conn: PeerConnection) -> None:
            order.append(number)
            conn.handshake()
            gates[number].acquire(timeout=10)

        return script

    peers = [ScriptedPeer(script_of(number)).start() for number in range(3)]
    try:
        nc = connect([peer.url for peer in peers], dont_randomize=True, error_cb=lambda _: None, **QUICK)
        for turn in range(6):
            eventually(lambda turn=turn: nc.stats.reconnects == turn and nc.is_connected)
            gates[turn % 3].release()
        eventually(lambda: len(order) == 7 and nc.is_connected)
        nc.close()
        assert order == [0, 1, 2, 0, 1, 2, 0]
    finally:
        for gate in gates:
            gate.release()
        for peer in peers:
            peer.close()


def test_servers_are_shuffled_unless_asked_not_to() -> None:
    """Connections spread over the servers; with dont_randomize they all take the first."""
    with ScriptedPeer(serve) as one, ScriptedPeer(serve) as two:
        chosen = set()
        for _ in range(20):
            nc = connect([one.url, two.url])
            chosen.add(nc.connected_url)
            nc.close()
        assert chosen == {one.url, two.url}
        for _ in range(3):
            nc = connect([one.url, two.url], dont_randomize=True)
            assert nc.connected_url == one.url
            nc.close()


def test_max_reconnect_attempts_counts_each_server(proxy: FaultProxy) -> None:
    """Each server is tried max_reconnect_attempts times; then the connection closes with NoServersError."""
    first, second = CountingListener(0, drop), CountingListener(0, drop)
    nc = connect(
        [proxy.url, first.url, second.url],
        dont_randomize=True,
        max_reconnect_attempts=4,
        error_cb=lambda _: None,
        **QUICK,
    )
    proxy.refuse()
    proxy.cut()
    eventually(lambda: nc.is_closed)
    first.close()
    second.close()
    assert (len(first.times), len(second.times)) == (4, 4)
    assert isinstance(nc.last_error, NoServersError)
    assert {url for url, _ in nc.last_error.attempts} == {proxy.url, first.url, second.url}


@pytest.mark.parametrize("info", [{"ldm": True}], ids=["ldm"])
def test_lame_duck_without_alternative_stays(info: dict[str, Any]) -> None:
    """If no other server is known the client stays with the lame duck; the callback is called once."""
    ducks: list[Connection] = []

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        conn.send_info(**info)
        conn.send_info(**info)
        answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url, lame_duck_mode_cb=ducks.append) as nc:
        eventually(lambda: ducks == [nc])
        nc.flush()
        assert nc.is_connected
        assert nc.stats.reconnects == 0
        nc.close()
    assert ducks == [nc]


def test_lame_duck_that_closes_at_once_does_not_cost_the_next_session(nats_server: LocalServer) -> None:
    """A lame duck closes before the client has moved: one reconnect, and the new session is not broken."""
    go_lame = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        go_lame.wait(10)
        conn.send_info(ldm=True)
        conn.expect_line(b"PING")

    def break_late(*args: Any) -> None:
        eventually(lambda: nc.connected_url == nats_server.url)
        give_up(*args)

    with ScriptedPeer(script) as peer:
        with connect([peer.url, nats_server.url], dont_randomize=True, **QUICK) as nc:
            link = link_of(nc)
            give_up = link.break_session
            link.break_session = break_late  # type: ignore[method-assign]
            go_lame.set()
            eventually(lambda: nc.connected_url == nats_server.url)
            eventually(lambda: not thread_names("js-lameduck"))
            nc.flush()
            assert nc.stats.reconnects == 1


# --- the user's pool and the user's choice ----------------------------------------------------------------------


def test_replaced_pool_is_used_by_the_next_reconnect(nats_server: LocalServer) -> None:
    """set_server_pool() leaves the connection alone; when it is lost, the new servers are used, and no other."""
    with LocalServer(jetstream=False) as other, FaultProxy(nats_server) as proxy:
        with connect(proxy.url, ignore_discovered_servers=True, **QUICK) as nc:
            nc.set_server_pool(["nats://127.0.0.1:1", other.url])
            assert nc.connected_url == proxy.url
            assert set(nc.servers) == {"nats://127.0.0.1:1", other.url}
            assert nc.server_pool == [PoolServer(url, 0, False) for url in nc.servers]
            proxy.cut()
            eventually(lambda: nc.connected_url == other.url)
            assert nc.stats.reconnects == 1


def test_pool_replaced_while_no_server_is_there(nats_server: LocalServer) -> None:
    """At two in the morning the servers have new addresses: the running connection is told of them."""
    with FaultProxy(nats_server) as proxy:
        with connect(proxy.url, ignore_discovered_servers=True, **QUICK) as nc:
            nc.set_server_pool("nats://127.0.0.1:1")
            proxy.cut()
            eventually(lambda: nc.server_pool[0].reconnects >= 2)
            nc.set_server_pool(nats_server.url)
            eventually(lambda: nc.connected_url == nats_server.url)


@pytest.mark.parametrize("servers", [[], "", 5, ["nats://h:x"], "nats://h?name=x"])
def test_bad_pool_is_refused_and_the_old_one_stays(nats_server: LocalServer, servers: Any) -> None:
    """Nothing changes when one of the URLs is none."""
    with connect(nats_server.url) as nc:
        before = nc.server_pool
        with pytest.raises((ValueError, TypeError)):
            nc.set_server_pool(servers)
        assert nc.server_pool == before
    with pytest.raises(ConnectionClosedError):
        nc.set_server_pool("nats://h")


def test_handler_chooses_the_server_of_a_reconnect(nats_server: LocalServer) -> None:
    """It gets the pool and the last INFO, once per attempt, and its choice is tried after its wait."""
    calls: list[tuple[list[PoolServer], dict[str, Any]]] = []

    with LocalServer(jetstream=False) as second, LocalServer(jetstream=False) as third:

        def handler(pool: list[PoolServer], info: dict[str, Any]) -> tuple[PoolServer | None, float]:
            calls.append((pool, info))
            return next(server for server in pool if server.url == third.url), 0.3

        with FaultProxy(nats_server) as proxy:
            options = {"reconnect_to_server_handler": handler, "ignore_discovered_servers": True}
            with connect([proxy.url, second.url, third.url], dont_randomize=True, **options) as nc:
                assert nc.connected_url == proxy.url
                assert calls == []
                started = time.monotonic()
                proxy.cut()
                eventually(lambda: nc.connected_url == third.url)
                assert time.monotonic() - started >= 0.3
                assert {server.url for server in calls[0][0]} == {proxy.url, second.url, third.url}
        [(_, info)] = calls
        assert info["server_name"] == nats_server.monitor("/varz")["server_name"]


def test_handler_that_fails_is_reported_and_the_pool_decides(nats_server: LocalServer) -> None:
    """An exception, or a server that is not in the pool, goes to error_cb; the connection comes back."""
    told: list[Exception] = []
    answers = iter([ZeroDivisionError(), (PoolServer("nats://elsewhere:1", 0, False), 0.0), SystemExit(1)])

    def handler(pool: list[PoolServer], info: dict[str, Any]) -> Any:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with FaultProxy(nats_server) as proxy:
        options: dict[str, Any] = {"reconnect_to_server_handler": handler, "error_cb": told.append, **QUICK}
        with connect(proxy.url, ignore_discovered_servers=True, **options) as nc:
            for expected, reconnects in (("ZeroDivision", 1), ("ServerNotInPool", 2), ("raised SystemExit", 3)):
                proxy.cut()
                eventually(lambda: nc.stats.reconnects == reconnects)  # noqa: B023
                eventually(lambda: any(expected in repr(one) for one in told))  # noqa: B023


def test_handler_without_a_wait_is_no_hot_loop(nats_server: LocalServer) -> None:
    """A server that refuses is tried again after reconnect_time_wait, whatever the handler says."""
    calls: list[float] = []

    def handler(pool: list[PoolServer], info: dict[str, Any]) -> tuple[PoolServer | None, float]:
        calls.append(time.monotonic())
        return pool[0], 0.0

    with FaultProxy(nats_server) as proxy:
        options: dict[str, Any] = {"reconnect_to_server_handler": handler, "reconnect_time_wait": 0.1}
        with connect(proxy.url, ignore_discovered_servers=True, **options) as nc:
            proxy.refuse()
            proxy.cut()
            eventually(lambda: len(calls) >= 5)
            assert calls[4] - calls[0] >= 0.28
            proxy.heal()
            eventually(lambda: nc.is_connected)
