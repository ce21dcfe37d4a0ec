"""Servers that come and go: discovery, rotation, lame duck mode."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import Connection, connect
from jetstream_sync.errors import (
    NoServersError,
)
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
