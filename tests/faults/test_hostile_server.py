"""A server that breaks the protocol: the client reports an error, reconnects, and keeps its memory bounded."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetstream_sync import Connection, connect
from jetstream_sync.errors import (
    AuthorizationError,
    NatsError,
    NoServersError,
    PermissionsError,
    ProtocolError,
    StaleConnectionError,
)
from jetstream_sync.testing import PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.jwt import new_seed
from tests.support.peers import answer_pings
from tests.support.watchdog import InThread, under_watchdog

MEGABYTE = 1024 * 1024
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05}

BROKEN_STREAMS: dict[str, bytes] = {
    "size 99999999999": b"MSG s 1 99999999999\r\n",
    "size -1": b"MSG s 1 -1\r\n\r\n",
    "size 0x10": b"MSG s 1 0x10\r\n0123456789abcdef\r\n",
    "size 1e3": b"MSG s 1 1e3\r\n",
    "size +5": b"MSG s 1 +5\r\nhello\r\n",
    "size 5_0": b"MSG s 1 5_0\r\nhello\r\n",
    "size of 30 digits": b"MSG s 1 " + b"9" * 30 + b"\r\n",
    "size over the limit": b"MSG s 1 99999999\r\n",
    "no size": b"MSG s 1\r\n",
    "too many fields": b"MSG s 1 r x 5\r\nhello\r\n",
    "size too small": b"MSG s 1 2\r\nhello\r\n",
    "header longer than the message": b"HMSG s 1 20 10\r\n0123456789\r\n",
    "header size -1": b"HMSG s 1 -1 10\r\n0123456789\r\n",
    "header size of 30 digits": b"HMSG s 1 " + b"1" * 30 + b" 10\r\n",
    "unknown verb": b"HELLO there\r\n",
    "client's verb": b"PUB s 5\r\nhello\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nul bytes": b"\0" * 100 + b"\r\n",
    "no carriage return": b"PING\n",
    "control line of 1 MB": b"MSG " + b"s" * MEGABYTE,
    "line of 1 MB without a verb": b"x" * MEGABYTE,
    "INFO a list": b"INFO []\r\n",
    "INFO a number": b"INFO 5\r\n",
    "INFO null": b"INFO null\r\n",
    "INFO not JSON": b"INFO {nonsense\r\n",
    "INFO not UTF-8": b'INFO {"a":"\xff"}\r\n',
    "INFO nested 100000 deep": b"INFO " + b"[" * 100_000 + b"\r\n",
    "INFO of 10 MB": b'INFO {"a":"' + b"x" * (10 * MEGABYTE) + b'"}\r\n',
}


def peak_memory() -> int:
    """The highest resident memory of this process since the last reset, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def send_quietly(conn: PeerConnection, data: bytes) -> None:
    """Send `data`, which the client may not read to the end."""
    try:
        conn.send(data)
    except OSError:
        pass


class HostileOnce:
    """A peer that sends `words` after the first handshake, and behaves on later connections."""

    def __init__(self, words: bytes) -> None:
        self.words = words
        self.dropped = threading.Event()
        self.peer = ScriptedPeer(self._script)

    def _script(self, conn: PeerConnection) -> None:
        conn.handshake()
        if conn.number == 0:
            conn.expect_line(b"SUB")
            send_quietly(conn, b"MSG s 1 5\r\nfirst\r\n" + self.words)
            conn.wait_closed(10)
            self.dropped.set()
        else:
            answer_pings(conn)


@pytest.mark.parametrize("words", BROKEN_STREAMS.values(), ids=BROKEN_STREAMS.keys())
def test_broken_stream_is_dropped_and_the_next_connection_works(words: bytes) -> None:
    """A protocol error is reported once, the client reconnects, and its memory stays bounded."""
    errors: list[Exception] = []
    hostile = HostileOnce(words)
    with hostile.peer as peer, connect(peer.url, error_cb=errors.append, **QUICK) as nc:
        reset_peak_memory()
        before = peak_memory()
        sub = nc.subscribe("s")
        eventually(lambda: nc.stats.reconnects == 1)
        assert hostile.dropped.wait(5)
        under_watchdog(nc.flush)
        assert peak_memory() - before < 20 * MEGABYTE
        assert sub.next_msg().data == b"first"
        assert sub.pending_msgs == 0
        eventually(lambda: len(errors) == 1)
        assert isinstance(errors[0], ProtocolError)
        assert len(str(errors[0])) < 500
        assert nc.stats.reconnects == 1
        nc.close()


@pytest.mark.parametrize(
    "info",
    [
        {"connect_urls": 5},
        {"connect_urls": "nats://x"},
        {"connect_urls": [1, None, {}, "a..b:1", "x" * 300, "::::", "h:99999999"]},
        {"connect_urls": {"a": 1}},
        {"max_payload": "big"},
        {"max_payload": -5},
        {"max_payload": 10**40},
        {"max_payload": None},
        {"client_id": "x", "version": 7, "headers": "no", "proto": []},
        {"nonce": 5, "tls_required": 0, "ldm": 0},
    ],
    ids=repr,
)
def test_info_with_nonsense_in_it_harms_nothing(info: dict[str, Any]) -> None:
    """INFO fields of the wrong type, at the handshake or later, do not break the connection."""

    def script(conn: PeerConnection) -> None:
        conn.handshake(**info)
        conn.send_info(**info)
        answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url, **QUICK) as nc:
        under_watchdog(nc.flush)
        nc.publish("s", b"x")
        nc.force_reconnect()
        eventually(lambda: nc.stats.reconnects == 1)
        under_watchdog(nc.flush)
        assert nc.max_payload > 0
        assert isinstance(nc.servers, list)
        nc.close()


def test_discovered_nonsense_host_does_not_stop_reconnecting() -> None:
    """An advertised address that is no valid host name costs one failed attempt; reconnecting goes on."""

    def script(conn: PeerConnection) -> None:
        conn.handshake(connect_urls=["a..b:4222", "x" * 70 + ".example:4222"])
        if conn.number == 0:
            conn.expect_line(b"SUB")
        else:
            answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url, error_cb=lambda _: None, **QUICK) as nc:
        assert len(nc.discovered_servers) == 2
        nc.subscribe("s")
        eventually(lambda: nc.stats.reconnects == 1)
        under_watchdog(nc.flush)
        nc.close()


def test_nonce_of_the_wrong_kind_is_a_typed_error() -> None:
    """A nonce that is not a string cannot be signed: connect() raises a typed error."""

    def script(conn: PeerConnection) -> None:
        conn.send_info(nonce=5)
        conn.wait_closed(10)

    with ScriptedPeer(script) as peer:
        with pytest.raises((NoServersError, AuthorizationError)):
            under_watchdog(connect, peer.url, nkeys_seed_str=new_seed())


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"PONG\r\n",
        b"MSG s 1 5\r\nhello\r\n",
        b"-ERR 'maximum connections exceeded'\r\n",
        b"INFO 5\r\n",
        b"INFO {}\r\nHELLO\r\n",
        b"INFO {\"headers\":true}\r\n-ERR 'Unknown Protocol Operation'\r\n",
        b"INFO " + b"x" * (2 * MEGABYTE),
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=lambda words: repr(words[:30]),
)
def test_handshake_with_nonsense_is_a_typed_error(words: bytes) -> None:
    """A server that sends something else than a handshake: connect() raises NoServersError soon."""

    def script(conn: PeerConnection) -> None:
        send_quietly(conn, words)
        conn.close()

    with ScriptedPeer(script) as peer:
        connecting = InThread(connect, peer.url, connect_timeout=3)
        error = connecting.error(5)
        assert isinstance(error, NoServersError)
        assert peer.url in str(error)
        assert len(str(error)) < 500


def test_handshake_that_drips_ends_at_the_connect_timeout() -> None:
    """connect_timeout covers the whole handshake: a server that sends a byte now and then does not extend it."""

    def script(conn: PeerConnection) -> None:
        for byte in b"INFO " + b" " * 1000:
            conn.send(bytes([byte]))
            if threading.Event().wait(0.05):
                return

    with ScriptedPeer(script) as peer:
        connecting = InThread(connect, peer.url, connect_timeout=0.4)
        assert isinstance(connecting.error(5), NoServersError)
        assert 0.35 < connecting.seconds < 1.5


def test_server_that_is_always_hostile_is_met_with_back_off() -> None:
    """A server that breaks the protocol after each handshake: the waits between attempts grow."""

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        conn.send(b"NONSENSE\r\n")
        conn.wait_closed(5)

    errors: list[Exception] = []
    with ScriptedPeer(script) as peer:
        options = {"reconnect_time_wait": 0.03, "reconnect_time_wait_max": 0.3}
        nc = connect(peer.url, error_cb=errors.append, **options)
        cpu = time.process_time()
        threading.Event().wait(1.5)
        cpu = time.process_time() - cpu
        count = len(peer.connections)
        under_watchdog(nc.close, limit=3)
    assert 5 <= count <= 14
    assert cpu < 0.75
    assert errors
    assert all(isinstance(error, ProtocolError) for error in errors)


def test_chatter_that_means_nothing_is_ignored() -> None:
    """Messages for unknown subscriptions, unexpected PONGs, +OK and verbs in lower case are ignored."""

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        conn.expect_line(b"SUB")
        conn.send(b"PONG\r\n" * 50 + b"+OK\r\n" * 50 + b"MSG s 77 5\r\nhello\r\n")
        conn.send(b"msg\ts  1   2\r\nhi\r\npong\r\nInfo {}\r\nHMSG s 77 12 12\r\nNATS/1.0\r\n\r\n\r\n")
        answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url) as nc:
        sub = nc.subscribe("s")
        assert sub.next_msg(timeout=5).data == b"hi"
        under_watchdog(nc.flush)
        assert sub.pending_msgs == 0
        assert nc.stats.reconnects == 0
        nc.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Stale Connection", StaleConnectionError),
        ("Authorization Violation", AuthorizationError),
        ("Unknown Protocol Operation", ProtocolError),
        ("Maximum Payload Violation", ProtocolError),
        ("maximum control line exceeded", ProtocolError),
        ("maximum connections exceeded", ProtocolError),
    ],
)
def test_err_before_a_close_is_reported_as_its_reason(text: str, kind: type[NatsError]) -> None:
    """If the server sends -ERR before it closes, the client reports that error, once."""
    errors: list[Exception] = []

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        if conn.number == 0:
            conn.expect_line(b"SUB")
            conn.send(b"-ERR '%s'\r\n" % text.encode())
        else:
            answer_pings(conn)

    with ScriptedPeer(script) as peer, connect(peer.url, error_cb=errors.append, **QUICK) as nc:
        nc.subscribe("s")
        eventually(lambda: nc.stats.reconnects == 1 and errors)
        under_watchdog(nc.flush)
        assert [type(error) for error in errors] == [kind]
        assert text in str(errors[0])
        nc.close()


def respond_to(verb: bytes, words: bytes) -> Callable[[PeerConnection], None]:
    """A script that sends `words` after the first line that begins with `verb`, and then replies to pings."""

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        while not conn.expect_line().startswith(verb):
            pass
        conn.send(words)
        answer_pings(conn)

    return script


def test_permission_errors_go_to_the_call_they_concern() -> None:
    """A denied request fails within a second; next_msg() of a denied subscription raises; the session stays."""
    denied = b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n"
    with ScriptedPeer(respond_to(b"PUB", denied)) as peer, connect(peer.url, error_cb=lambda _: None) as nc:
        asking = InThread(nc.request, "secret", b"x", timeout=30)
        error = asking.error(5)
        assert isinstance(error, PermissionsError)
        assert error.subject == "secret"
        assert asking.seconds < 1
        assert nc.stats.reconnects == 0
        nc.close()
    denied = b"-ERR 'Permissions Violation for Subscription to \"secret.>\"'\r\n"
    with ScriptedPeer(respond_to(b"SUB", denied)) as peer, connect(peer.url, error_cb=lambda _: None) as nc:
        sub = nc.subscribe("secret.>")
        assert isinstance(InThread(sub.next_msg, 30).error(5), PermissionsError)
        nc.close()


def test_reader_delivers_text_that_is_not_utf8() -> None:
    """Subjects, reply subjects and headers that are not UTF-8 are delivered with their bytes."""
    frame = b"MSG \xff\xfe 1 \xfd 1\r\n!\r\nHMSG s 1 20 20\r\n\xff\xff NATS\r\nno colon\r\n"
    assert len(b"\xff\xff NATS\r\nno colon\r\n") == 19

    def script(conn: PeerConnection) -> None:
        conn.handshake()
        conn.expect_line(b"SUB")
        conn.send(frame.replace(b"20 20", b"19 19") + b"\r\n")
        answer_pings(conn)

    with ScriptedPeer(script) as peer:
        nc: Connection = connect(peer.url)
        with nc:
            sub = nc.subscribe(">")
            first, second = sub.next_msg(timeout=5), sub.next_msg(timeout=5)
            assert first.raw_subject == b"\xff\xfe"
            assert first.subject.encode("utf-8", "surrogateescape") == b"\xff\xfe"
            assert first.reply is not None
            assert second.raw_headers == b"\xff\xff NATS\r\nno colon\r\n"
            assert second.headers is not None
            nc.close()
