"""The connection against a real server: options, life, state, publishing, buffers, callbacks."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Headers, Status, connect
from jetstream_sync.errors import (
    BadHeaderError,
    BadSubjectError,
    ConnectionClosedError,
    MaxPayloadError,
    NoServersError,
    OutboundBufferLimitError,
)
from jetstream_sync.net.options import server_list
from jetstream_sync.testing import FaultProxy, LocalServer, PeerConnection, ScriptedPeer
from jetstream_sync.testing.server import PortReservation
from tests.support.eventually import eventually
from tests.support.watchdog import InThread, under_watchdog


@pytest.fixture
def proxy(nats_server: LocalServer) -> Iterator[FaultProxy]:
    with FaultProxy(nats_server) as proxy:
        yield proxy


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody will."""
    reservation = PortReservation()
    yield reservation.port
    reservation.release()


def disconnect(proxy: FaultProxy, nc: Connection) -> None:
    """Cut `nc` off and let it not come back before `proxy.heal()`."""
    proxy.refuse()
    proxy.cut()
    eventually(lambda: nc.is_reconnecting)


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


def test_connect_without_servers_and_nats_url_tries_the_local_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With neither argument nor environment the local default port is used."""
    monkeypatch.setenv("NATS_URL", "")
    assert [address.url for address in server_list(None)] == ["nats://127.0.0.1:4222"]


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
    ("pending_size", -1),
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


# --- publishing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"bytes", bytearray(b"array"), memoryview(b"view"), b""])
def test_publish_bytes_like(nc: Connection, payload: Any) -> None:
    """Every bytes-like payload arrives as its bytes."""
    sub = nc.subscribe("p")
    nc.publish("p", payload)
    assert sub.next_msg().data == bytes(payload)


@pytest.mark.parametrize("payload", ["text", None, 5, ["x"]])
def test_publish_of_something_else_is_a_type_error(nc: Connection, payload: Any) -> None:
    """A str payload is a TypeError that says to encode; other types are refused as well."""
    with pytest.raises(TypeError, match="encode" if isinstance(payload, str) else "bytes-like"):
        nc.publish("p", payload)
    with pytest.raises(TypeError):
        nc.request("p", payload)
    assert nc.is_connected


def test_publish_over_max_payload_sends_nothing_and_stays(proxy: FaultProxy) -> None:
    """A payload over max_payload, headers included, is a local error; the exact size passes."""
    with connect(proxy.url) as nc:
        limit = nc.max_payload
        sub = nc.subscribe("big")
        nc.flush()
        sent = len(proxy.captured[0].to_server)
        for payload, headers in ((b"x" * (limit + 1), None), (b"x" * limit, {"A": "b"})):
            with pytest.raises(MaxPayloadError) as caught:
                nc.publish("big", payload, headers=headers)
            assert caught.value.max_payload == limit
            with pytest.raises(MaxPayloadError):
                nc.request("big", payload, headers=headers)
        nc.flush()
        assert b"PUB" not in proxy.captured[0].to_server[sent:]
        nc.publish("big", b"y" * limit)
        assert len(sub.next_msg(timeout=5).data) == limit
        assert nc.stats.reconnects == 0


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nb", "a\tb", "a\0b", ".a", "a.", "a..b", "a.*", "a.>", 5])
def test_publish_to_a_bad_subject_is_refused(nc: Connection, subject: Any) -> None:
    """Subjects that cannot be published to are refused before anything is sent."""
    for call in (nc.publish, nc.request):
        with pytest.raises((BadSubjectError, TypeError)):
            call(subject, b"x")
    if subject:
        with pytest.raises((BadSubjectError, TypeError)):
            nc.publish("ok", b"x", reply=subject)


@pytest.mark.parametrize(
    "headers", [{"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"A": "b\n"}, {"": "x"}, {"A:": "b"}, {"A": 5}]
)
def test_publish_with_bad_headers_is_refused(nc: Connection, headers: Any) -> None:
    """Header names and values that would break the block are refused before anything is sent."""
    with pytest.raises((BadHeaderError, TypeError)):
        nc.publish("ok", b"x", headers=headers)
    assert nc.stats.out_msgs == 0


def test_headers_round_trip_with_several_values(nc: Connection) -> None:
    """Several values per name arrive in order, the case of names is kept, look-up ignores it."""
    headers = Headers()
    headers.add("X-Many", "one")
    headers.add("X-Many", "two")
    headers.add("Accent", "é")
    sub = nc.subscribe("h")
    nc.publish("h", b"body", headers=headers, reply="back.to")
    nc.publish("h", b"", headers={"Plain": "dict"})
    nc.publish("h", b"none")
    first, second, third = (sub.next_msg() for _ in range(3))
    assert first.headers is not None
    assert first.headers.get_all("x-many") == ["one", "two"]
    assert list(first.headers) == ["X-Many", "Accent"]
    assert first.headers["accent"] == "é"
    assert (first.data, first.reply) == (b"body", "back.to")
    assert second.headers == {"Plain": "dict"}
    assert third.headers is None


# --- the buffer while disconnected -------------------------------------------------------------------------


def test_publishes_while_disconnected_arrive_once_in_order(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """What is published while disconnected is sent after the reconnect, once, in order."""
    with connect(nats_server.url) as observer:
        seen = observer.subscribe("buffered")
        observer.flush()
        with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
            disconnect(proxy, nc)
            for number in range(200):
                nc.publish("buffered", b"%d" % number)
            proxy.heal()
            nc.publish("buffered", b"200")
            nc.flush()
            observer.flush()
            got = [int(seen.next_msg().data) for _ in range(seen.pending_msgs)]
            assert got == list(range(201))


def test_publish_over_the_pending_buffer_raises_and_keeps_the_rest(proxy: FaultProxy) -> None:
    """Over pending_size a publish raises and is not taken; what was taken before still arrives."""
    options = {"pending_size": 1000, "reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05}
    with connect(proxy.url, **options) as nc:
        sub = nc.subscribe("small")
        disconnect(proxy, nc)
        frame = len(b"PUB small 90\r\n\r\n") + 90
        taken = 1000 // frame
        for _ in range(taken):
            nc.publish("small", b"x" * 90)
        for _ in range(2):
            with pytest.raises(OutboundBufferLimitError) as caught:
                nc.publish("small", b"x" * 90)
        assert caught.value.limit == 1000
        assert caught.value.pending == taken * frame
        proxy.heal()
        nc.flush()
        assert sub.pending_msgs == taken


def test_flush_given_up_while_disconnected_leaves_nothing_behind(proxy: FaultProxy) -> None:
    """Flushes that time out while disconnected neither pile up nor confuse later ones."""
    with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
        disconnect(proxy, nc)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                nc.flush(0.001)
        before = len(proxy.captured)
        proxy.heal()
        for _ in range(5):
            nc.flush(5)
        sent = proxy.captured[before].to_server
        assert sent.count(b"PING\r\n") == 6  # the handshake's own, and one for each flush


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
    waiting = InThread(nc.request, "nobody.answers.here", timeout=30)
    nc.subscribe("nobody.answers.here")
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
    """A close() in the middle of subscribe() makes it raise: no subscription that nobody ever ends."""
    nc = connect(nats_server.url)
    check = nc._check_usable

    def check_then_close() -> None:
        del nc._check_usable  # type: ignore[method-assign]
        check()
        nc.close()

    nc._check_usable = check_then_close  # type: ignore[method-assign]
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
    """A callback that raises, whatever it raises, harms neither the connection nor later callbacks."""
    calls: list[str] = []

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
        eventually(lambda: calls == ["error", "disconnected", "reconnected"])
        nc.flush()
    eventually(lambda: calls[-1] == "closed")


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
