"""Lame duck mode on a cluster of three: one callback, a move before the shutdown, and nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.errors import NatsError
from jetstream_sync.testing import LocalCluster, LocalServer
from jetstream_sync.testing.peer import PeerConnection, ScriptedPeer
from tests.support.eventually import eventually

# Shorter than the defaults of the server: 2 minutes and 10 seconds.
CONFIG = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "3s"\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def nodes(cluster: LocalCluster) -> list[LocalServer]:
    """The nodes, all of them running and connected to each other."""
    for node in cluster.nodes:
        if not node.is_running:
            node.start()
    cluster.wait_ready()
    return cluster.nodes


def lame(node: LocalServer) -> None:
    """Have `node` enter lame duck mode. The fixture `nodes` starts it again for the next test."""
    node.lame_duck()


def propagated(nodes: list[LocalServer], subject: str, node: LocalServer) -> bool:
    """Whether interest in `subject` has reached `node` over its routes."""
    routes = node.monitor("/routez?subs=1")["routes"]
    return any(subject in (route.get("subscriptions_list") or ()) for route in routes)


def test_client_moves_before_the_shutdown(nodes: list[LocalServer]) -> None:
    """The callback is called once; the client moves, with its subscriptions, while the old server still runs."""
    told: list[Connection] = []
    duck, other = nodes[0], nodes[1]
    nc = jetstream_sync.connect(duck.url, lame_duck_mode_cb=told.append, error_cb=lambda _: None)
    eventually(lambda: len(nc.discovered_servers) >= 2, 5, "the cluster is known")
    sub = nc.subscribe("after.move")
    nc.flush()
    lame(duck)
    eventually(lambda: nc.stats.reconnects == 1 and nc.is_connected, 5, "moved")
    assert duck.is_running
    assert nc.connected_url != duck.url
    with jetstream_sync.connect(other.url) as publisher:
        eventually(lambda: publish_and_see(publisher, sub), 5, "the subscription works")
    eventually(lambda: told == [nc], 2)
    duck.kill()
    nc.flush()
    assert told == [nc]
    assert nc.stats.reconnects == 1
    nc.close()


def publish_and_see(publisher: Connection, sub: jetstream_sync.Subscription) -> bool:
    publisher.publish("after.move", b"x")
    publisher.flush()
    try:
        return sub.next_msg(timeout=0.2).data == b"x"
    except TimeoutError:
        return False


def test_requests_across_lame_duck(nodes: list[LocalServer]) -> None:
    """During the move each request gets its own reply or fails soon with a typed error."""
    duck, other = nodes[0], nodes[1]
    with jetstream_sync.connect(other.url) as responder:
        responder.subscribe("across.ask", cb=lambda msg: msg.respond(msg.data))
        responder.flush()
        eventually(lambda: propagated(nodes, "across.ask", duck), 5)
        nc = jetstream_sync.connect(duck.url, error_cb=lambda _: None)
        eventually(lambda: len(nc.discovered_servers) >= 2, 5)
        answered, failed, slow = [], [], []
        stop = threading.Event()

        def ask() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                payload = b"%d" % number
                start = time.monotonic()
                try:
                    assert nc.request("across.ask", payload, timeout=5).data == payload
                    answered.append(number)
                except NatsError as error:
                    failed.append(error)
                slow.append(time.monotonic() - start)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        eventually(lambda: len(answered) > 50)
        lame(duck)
        eventually(lambda: nc.stats.reconnects == 1, 5)
        before = len(answered)
        eventually(lambda: len(answered) > before + 50, 10, "requests are answered after the move")
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        assert len(failed) <= 2  # at most those in flight at the moment of the move
        assert max(slow) < 4.0
        nc.close()
    duck.kill()


def test_publishes_across_lame_duck_arrive(nodes: list[LocalServer]) -> None:
    """Every message that a flush() confirmed arrives, although the publisher moves meanwhile."""
    duck, other = nodes[0], nodes[1]
    with jetstream_sync.connect(other.url) as observer:
        received: set[int] = set()
        observer.subscribe("across.count", cb=lambda msg: received.add(int(msg.data)))
        observer.flush()
        eventually(lambda: propagated(nodes, "across.count", duck), 5)
        nc = jetstream_sync.connect(duck.url, error_cb=lambda _: None)
        eventually(lambda: len(nc.discovered_servers) >= 2, 5)
        confirmed: set[int] = set()
        number = 0
        moved_at = None
        while moved_at is None or number < moved_at + 200:
            number += 1
            if number == 100:
                lame(duck)
            if moved_at is None and nc.stats.reconnects:
                moved_at = number
            nc.publish("across.count", b"%d" % number)
            try:
                nc.flush(5)
                confirmed.add(number)
            except NatsError:
                pass
        nc.close()
        eventually(lambda: confirmed <= received, 10, "what was confirmed has arrived")
        assert len(confirmed) >= number - 2
    duck.kill()


def test_lame_duck_without_another_server() -> None:
    """If no other server is known the connection stays; the callback is called once."""
    told: list[Connection] = []
    go = threading.Event()

    def duck(connection: PeerConnection) -> None:
        connection.handshake()
        go.wait(5)
        connection.send_info(ldm=True)
        connection.send_info(ldm=True)
        connection.expect_line(b"PING")
        connection.send(b"PONG\r\n")
        connection.wait_closed(10)

    with ScriptedPeer(duck) as peer:
        nc = jetstream_sync.connect(peer.url, lame_duck_mode_cb=told.append)
        go.set()
        eventually(lambda: told, 5)
        nc.flush()
        assert told == [nc]
        assert nc.is_connected
        assert nc.stats.reconnects == 0
        nc.close()
