"""nc.check(): a health record of a connection in every state, and never an error for an unhealthy one."""

from __future__ import annotations

import dataclasses
import time

import pytest

from jetstream_sync import Connection, ConnectionLostError, Health, Status, TimeoutError, connect
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.forks import in_child
from tests.support.platforms import needs_fork_hooks
from tests.support.watchdog import InThread


def test_healthy_connection(nats_server: LocalServer, nc: Connection) -> None:
    """It says which server answered, how fast, and that JetStream does, too."""
    health = nc.check()
    assert health
    assert health.ok
    assert health.connected
    assert health.status is Status.CONNECTED
    assert health.server == nc.connected_url
    assert health.server_name == nc.server_info["server_name"]
    assert health.server_version == nc.server_info["version"]
    assert health.rtt is not None
    assert 0 < health.rtt < 2
    assert health.jetstream is True
    assert (health.pending_bytes, health.reconnects, health.disconnected_for) == (0, 0, None)
    assert health.last_error is None
    assert str(health).startswith(f"ok: connected to {nc.connected_url} (")
    assert "JetStream available" in str(health)
    with pytest.raises(dataclasses.FrozenInstanceError):
        health.ok = False  # type: ignore[misc]


def test_server_without_jetstream() -> None:
    """The connection is well; JetStream is told apart from it."""
    with LocalServer(jetstream=False) as server, connect(server.url) as nc:
        health = nc.check()
        assert health.ok
        assert health.jetstream is False
        assert "JetStream not available" in str(health)


def test_user_who_may_not_ask_for_jetstream() -> None:
    """Whether JetStream is there is not known then; the connection is well."""
    user = '{ user: u, password: p, permissions: { publish: { deny: "$JS.>" } } }'
    with LocalServer(config=f"authorization {{ users: [ {user} ] }}") as server:
        with connect(server.url, user="u", password="p", error_cb=lambda error: None) as nc:
            started = time.monotonic()
            health = nc.check(5)
            assert time.monotonic() - started < 3
            assert health.ok
            assert health.jetstream is None
            assert "JetStream" not in str(health).split("last error")[0]


def test_paused_server() -> None:
    """Connected, and no answer: not ok after the timeout, and ok again when the server goes on."""
    with LocalServer() as server, connect(server.url) as nc:
        assert nc.check()
        server.pause()
        started = time.monotonic()
        health = nc.check(timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 1.5
        assert not health
        assert health.connected
        assert health.rtt is None
        assert health.jetstream is None
        assert isinstance(health.last_error, TimeoutError)
        assert "no answer in time" in str(health)
        server.resume()
        assert nc.check(5)


def test_stopped_server() -> None:
    """Not connected: told at once, with for how long and why; afterwards it counts the reconnect."""
    with LocalServer() as server, connect(server.url, reconnect_time_wait=0.05, error_cb=lambda error: None) as nc:
        server.stop()
        eventually(lambda: not nc.is_connected)
        nc.publish("s", b"12345")
        time.sleep(0.2)
        started = time.monotonic()
        health = nc.check(timeout=10)
        assert time.monotonic() - started < 1
        assert not health
        assert not health.connected
        assert health.status is Status.RECONNECTING
        assert (health.server, health.server_name, health.server_version, health.rtt) == (None,) * 4
        assert health.disconnected_for is not None
        assert 0.2 <= health.disconnected_for < 10
        assert health.pending_bytes > 5
        assert health.last_error is not None
        assert str(health).startswith("not ok: not connected for ")
        assert "bytes wait to be sent" in str(health)
        server.start()
        eventually(lambda: nc.is_connected, timeout=10)
        health = nc.check(5)
        assert health
        assert health.reconnects == 1
        assert "reconnects: 1" in str(health)


def test_connection_lost_during_the_check() -> None:
    """The server dies while the check waits: not ok, at once, and no error is raised."""
    with LocalServer() as server:
        nc = connect(server.url, error_cb=lambda error: None)
        server.pause()
        checking = InThread(nc.check, 20)
        eventually(lambda: nc._link.pings.waiters)
        server.kill()
        health: Health = checking.result(5)
        assert not health
        assert isinstance(health.last_error, ConnectionLostError)
        assert health.rtt is None
        nc.close()


def test_closed_connection(nats_server: LocalServer) -> None:
    """Closed is an answer, too."""
    nc = connect(nats_server.url)
    nc.close()
    health = nc.check()
    assert not health
    assert health.status is Status.CLOSED
    assert "closed" in str(health)


@needs_fork_hooks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12+, in a process with threads
def test_connection_of_the_parent_process(nc: Connection) -> None:
    """In a forked child the connection cannot be used: not ok, and nothing is sent."""

    def check() -> list[object]:
        health = nc.check()
        return [health.ok, type(health.last_error).__name__]

    assert in_child(check) == [False, "ForkError"]
    assert nc.check()


def test_bad_timeout_is_refused(nc: Connection) -> None:
    """A mistake of the caller is no state of the connection."""
    with pytest.raises(ValueError, match="timeout"):
        nc.check(-1)
    with pytest.raises(TypeError, match="timeout"):
        nc.check("2")  # type: ignore[arg-type]
