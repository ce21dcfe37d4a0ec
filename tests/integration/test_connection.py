"""The connection against a real server: where it connects to, what it sends, and the facts it tells."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from jetstream_sync import Connection, Status, connect
from jetstream_sync.errors import (
    NoServersError,
)
from jetstream_sync.testing import FaultProxy, LocalServer, PeerConnection, ScriptedPeer
from jetstream_sync.testing.server import PortReservation
from tests.support.eventually import eventually
from tests.support.watchdog import under_watchdog


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that stays reserved without a listener."""
    reservation = PortReservation()
    yield reservation.port
    reservation.release()


# --- where to connect -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda dead, good: good,
        lambda dead, good: f"{dead},{good}",
        lambda dead, good: f" {dead} , {good} ",
        lambda dead, good: [dead, good],
        lambda dead, good: (url for url in (dead, good)),
        lambda dead, good: good.removeprefix("nats://"),
    ],
    ids=["url", "comma-separated", "with-blanks", "list", "generator", "no-scheme"],
)
def test_connect_servers_in_every_form(nats_server: LocalServer, closed_port: int, form: Any) -> None:
    """Servers may be one URL, a comma-separated string, or any iterable; a dead one is passed over."""
    with connect(form(f"nats://127.0.0.1:{closed_port}", nats_server.url), dont_randomize=True) as nc:
        assert nc.is_connected
        assert nc.connected_url == nats_server.url


def test_connect_without_servers_uses_nats_url(nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's NATS_URL is the default."""
    monkeypatch.setenv("NATS_URL", nats_server.url)
    with connect() as nc:
        assert nc.connected_url == nats_server.url


def test_connect_to_closed_ports_names_each_server_and_why(closed_port: int) -> None:
    """NoServersError names every server tried with its reason, and no credentials."""
    urls = [f"nats://joe:hush@127.0.0.1:{closed_port}", f"nats://localhost:{closed_port}"]
    with pytest.raises(NoServersError) as caught:
        under_watchdog(connect, urls, dont_randomize=True)
    text = str(caught.value)
    assert f"nats://127.0.0.1:{closed_port}" in text
    assert f"nats://localhost:{closed_port}" in text
    assert text.lower().count("refused") >= 2
    assert "hush" not in text
    assert "joe" not in text
    assert len(caught.value.attempts) == 2


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 64 + ".example"])
def test_connect_to_an_impossible_host_is_a_no_servers_error(host: str) -> None:
    """A host that cannot be looked up, or cannot even be a name, is reported like any unreachable server."""
    with pytest.raises(NoServersError, match=host[:10]):
        under_watchdog(connect, f"nats://{host}:4222", connect_timeout=3, limit=20)


def test_connect_to_something_else_than_nats_says_so() -> None:
    """A peer that does not begin with INFO is reported as such."""
    with ScriptedPeer(lambda conn: conn.send(b"SSH-2.0-OpenSSH_9.0\r\n")) as peer:
        with pytest.raises(NoServersError, match=r"SSH-2\.0|NATS"):
            under_watchdog(connect, peer.url)


def test_retry_on_failed_connect_connects_later() -> None:
    """With retry_on_failed_connect the connection comes up when the server does, and sends what waited."""
    server = LocalServer(jetstream=False)
    came = threading.Event()
    try:
        nc = connect(
            server.url,
            retry_on_failed_connect=True,
            reconnect_time_wait=0.02,
            reconnect_time_wait_max=0.05,
            reconnected_cb=lambda _: came.set(),
        )
        with nc:
            assert nc.is_reconnecting
            assert not nc.is_connected
            assert isinstance(nc.last_error, NoServersError)
            sub = nc.subscribe("early")
            nc.publish("early", b"bird")
            server.start()
            assert sub.next_msg(timeout=5).data == b"bird"
            assert came.wait(5)
    finally:
        server.close()


BAD_OPTIONS: list[tuple[str, Any]] = [
    ("servers", 7),
    ("servers", [b"nats://x"]),
    ("servers", ""),
    ("servers", []),
    ("name", 1),
    ("tls", "yes"),
    ("tls_hostname", 1),
    ("connect_timeout", 0),
    ("connect_timeout", -1),
    ("connect_timeout", "5"),
    ("connect_timeout", float("nan")),
    ("max_reconnect_attempts", "3"),
    ("max_reconnect_attempts", 1.5),
    ("reconnect_time_wait", -1),
    ("reconnect_time_wait_max", "1"),
    ("reconnect_jitter", "a"),
    ("reconnect_jitter", 2),
    ("ping_interval", 0),
    ("ping_interval", None),
    ("max_outstanding_pings", 0),
    ("max_outstanding_pings", 1.5),
    ("pending_size", -2),
    ("pending_size", "8M"),
    ("drain_timeout", 0),
    ("inbox_prefix", "a b"),
    ("inbox_prefix", ""),
    ("inbox_prefix", 5),
    ("inbox_prefix", "a.*"),
    ("error_cb", 1),
    ("disconnected_cb", 1),
    ("reconnected_cb", 1),
    ("closed_cb", 1),
    ("discovered_server_cb", 1),
    ("lame_duck_mode_cb", 1),
]


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS, ids=lambda value: repr(value)[:20])
def test_connect_with_a_bad_option_names_it(option: str, value: Any) -> None:
    """A wrong option raises ValueError or TypeError that names the option, before anything is sent."""
    options = {"servers": "nats://127.0.0.1:1", option: value}
    with pytest.raises((ValueError, TypeError)) as caught:
        under_watchdog(connect, **options)
    assert option.replace("_", " ") in str(caught.value).replace("_", " ")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:4222",
        "nats://",
        "nats://h:0",
        "nats://h:99999",
        "nats://h:1/x",
        "nats://h\r\n:4222",
        "nats://h:1?x",
    ],
)
def test_connect_with_a_bad_url_refuses_it(url: str) -> None:
    """What is not a server URL is refused at once."""
    with pytest.raises(ValueError):
        connect(url)


# --- facts ---------------------------------------------------------------------------------------------


def test_facts_of_a_connected_connection(nats_server: LocalServer) -> None:
    """Every property says what it should while connected, and after close()."""
    nc = connect(nats_server.url, name="facts")
    assert nc.status is Status.CONNECTED
    assert nc.status == "connected"
    assert (nc.is_connected, nc.is_reconnecting, nc.is_draining, nc.is_closed) == (True, False, False, False)
    assert nc.server_info["version"]
    assert nc.max_payload == nc.server_info["max_payload"]
    assert isinstance(nc.client_id, int)
    assert nc.servers == [nats_server.url]
    assert nc.discovered_servers == []
    assert nc.last_error is None
    assert "connected" in repr(nc)
    assert nc.new_inbox().startswith("_INBOX.")
    assert nc.new_inbox() != nc.new_inbox()
    names = [client.get("name") for client in nats_server.monitor("/connz")["connections"]]
    assert "facts" in names
    nc.close()
    assert (nc.is_connected, nc.is_reconnecting, nc.is_draining, nc.is_closed) == (False, False, False, True)
    assert nc.connected_url is None
    assert nc.last_error is None


def test_inbox_prefix_is_used_for_requests_too(nats_server: LocalServer) -> None:
    """inbox_prefix begins new_inbox() and the reply subjects of requests."""
    with connect(nats_server.url, inbox_prefix="_MINE.x") as nc:
        seen: list[str | None] = []
        nc.subscribe("who", cb=lambda msg: (seen.append(msg.reply), msg.respond(b"")))
        nc.request("who")
        assert nc.new_inbox().startswith("_MINE.x.")
        assert str(seen[0]).startswith("_MINE.x.")


def test_stats_count_messages_bytes_and_reconnects(proxy: FaultProxy) -> None:
    """stats counts what went out and came in (headers and payload), and reconnects."""
    with connect(proxy.url, reconnect_time_wait=0.01) as nc:
        sub = nc.subscribe("s")
        for _ in range(3):
            nc.publish("s", b"12345")
        for _ in range(3):
            sub.next_msg()
        assert (nc.stats.out_msgs, nc.stats.out_bytes) == (3, 15)
        assert (nc.stats.in_msgs, nc.stats.in_bytes) == (3, 15)
        assert (nc.stats["reconnects"], nc.stats["dropped"]) == (0, 0)
        with pytest.raises(KeyError):
            nc.stats["nonsense"]
        proxy.cut()
        eventually(lambda: nc.stats.reconnects == 1)


def test_pickling_a_connection_says_what_to_do(nc: Connection) -> None:
    """A connection cannot be pickled, and the error says to connect in the other process."""
    with pytest.raises(TypeError, match=r"connect\(\)"):
        pickle.dumps(nc)


def test_flush_and_rtt_make_a_round_trip(nc: Connection) -> None:
    """flush() returns when the server has taken everything; rtt() is the time of a round trip."""
    other = nc.subscribe("flushed")
    nc.publish("flushed", b"x")
    under_watchdog(nc.flush, timedelta(seconds=5))
    assert other.pending_msgs == 1
    assert 0 < under_watchdog(nc.rtt) < 5


def test_no_echo_keeps_own_messages_away(nats_server: LocalServer) -> None:
    """With no_echo a connection does not get what it published itself, but others do."""
    with connect(nats_server.url, no_echo=True) as deaf, connect(nats_server.url) as other:
        own, foreign = deaf.subscribe("e"), other.subscribe("e")
        deaf.flush()
        other.flush()
        deaf.publish("e", b"mine")
        deaf.flush()
        assert foreign.next_msg().data == b"mine"
        other.publish("e", b"theirs")
        assert own.next_msg().data == b"theirs"
        assert own.pending_msgs == 0


def test_force_reconnect_moves_on_and_keeps_subscriptions(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """force_reconnect() drops the session, takes the next server, and subscriptions go on."""
    with connect([nats_server.url, proxy.url], dont_randomize=True) as nc:
        sub = nc.subscribe("f")
        assert nc.connected_url == nats_server.url
        nc.force_reconnect()
        eventually(lambda: nc.stats.reconnects == 1)
        assert nc.connected_url == proxy.url
        nc.publish("f", b"again")
        assert sub.next_msg(timeout=5).data == b"again"


def test_connect_sends_what_the_protocol_asks_for() -> None:
    """CONNECT carries the fields that servers look at, and verbose and pedantic are off."""
    seen: list[dict[str, Any]] = []

    def script(conn: PeerConnection) -> None:
        seen.append(conn.handshake())
        conn.wait_closed()

    with ScriptedPeer(script) as peer, connect(peer.url, name="n", no_echo=True, user="u", password="p") as nc:
        assert nc.is_connected
        nc.close()
    fields = seen[0]
    expected = {
        "verbose": False,
        "pedantic": False,
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": False,
        "name": "n",
        "user": "u",
        "pass": "p",
    }
    assert {key: fields.get(key) for key in expected} == expected
    assert fields["lang"]
    assert fields["version"]


def test_connect_without_a_name_sends_an_empty_one() -> None:
    """CONNECT has the field `name` in any case."""
    seen: list[dict[str, Any]] = []

    def script(conn: PeerConnection) -> None:
        seen.append(conn.handshake())
        conn.wait_closed()

    with ScriptedPeer(script) as peer, connect(peer.url) as nc:
        nc.close()
    assert seen[0]["name"] == ""


def test_jetstream_context_is_made_from_the_connection(nc: Connection) -> None:
    """nc.jetstream() gives a context on this connection."""
    assert nc.jetstream(timeout=1.0) is not None
