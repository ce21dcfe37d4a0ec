"""The scripted peer, driven by a plain socket as the client."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable

import pytest

from jetstream_sync.testing import PeerConnection, ScriptedPeer
from tests.support.eventually import eventually


def dial(peer: ScriptedPeer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", peer.port), timeout=5)


def read_all(client: socket.socket) -> bytes:
    """Everything up to the end of the stream."""
    client.settimeout(5)
    data = b""
    while piece := client.recv(4096):
        data += piece
    return data


def say_to_failing_script(script: Callable[[PeerConnection], object], words: bytes) -> None:
    """Raises what the script failed with."""
    with ScriptedPeer(script) as peer, dial(peer) as client:
        client.sendall(words)
        eventually(lambda: peer.errors)


def peer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("peer-")]


def test_send_says_exactly_these_bytes_and_closes_at_the_end_of_the_script() -> None:
    """What the script sends arrives unchanged, and its return ends the connection."""
    with ScriptedPeer(lambda conn: conn.send(b"\x00 nonsense")) as peer, dial(peer) as client:
        assert read_all(client) == b"\x00 nonsense"


def test_handshake_returns_the_connect_object() -> None:
    """The handshake sends INFO with the given fields, and PONG after CONNECT and PING."""
    seen: list[dict[str, object]] = []

    def script(conn: PeerConnection) -> None:
        seen.append(conn.handshake(max_payload=17, jetstream=None))
        conn.wait_closed()

    with ScriptedPeer(script) as peer, dial(peer) as client:
        reader = client.makefile("rb")
        info = json.loads(reader.readline().removeprefix(b"INFO "))
        client.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert reader.readline() == b"PONG\r\n"
        reader.close()
    assert info["max_payload"] == 17
    assert "jetstream" not in info
    assert seen == [{"verbose": False}]


def test_handshake_with_something_else_than_connect_fails_the_test() -> None:
    """A client that does not send CONNECT makes the script fail, and leaving the context says so."""
    with pytest.raises(AssertionError, match="expected CONNECT"):
        say_to_failing_script(lambda conn: conn.handshake(), b"HELLO\r\n")


def test_reads_take_bytes_in_order() -> None:
    """Lines, delimiters and counts are taken one after the other from the same stream."""
    taken: list[bytes] = []

    def script(conn: PeerConnection) -> None:
        taken.append(conn.expect_line(b"PUB "))
        taken.append(conn.read_exactly(7))
        taken.append(conn.read_until(b"|"))
        taken.append(conn.wait_closed())

    with ScriptedPeer(script) as peer:
        with dial(peer) as client:
            client.sendall(b"PUB a 5\r\nhello\r\nleft|right")
        eventually(lambda: len(taken) == 4)
        assert peer.connections[0].received == b"PUB a 5\r\nhello\r\nleft|right"
    assert taken == [b"PUB a 5", b"hello\r\n", b"left|", b"right"]


def test_expect_line_with_another_beginning_is_an_error() -> None:
    """A line that does not begin as expected is reported with what came instead."""
    with pytest.raises(AssertionError, match="PONG"):
        say_to_failing_script(lambda conn: conn.expect_line(b"PING"), b"PONG\r\n")


def test_read_without_data_times_out() -> None:
    """A read ends at its timeout and names what had come until then."""
    with pytest.raises(TimeoutError, match="half a li"):
        say_to_failing_script(lambda conn: conn.expect_line(timeout=0.05), b"half a li")


def test_client_that_leaves_is_no_error() -> None:
    """The end of the client ends the script without a report."""
    with ScriptedPeer(lambda conn: conn.expect_line()) as peer:
        dial(peer).close()
        eventually(lambda: peer.connections and not peer_threads()[1:])
        assert peer.errors == []


def test_reset_breaks_the_connection() -> None:
    """A reset is seen by the client as such, not as an end of stream."""

    def script(conn: PeerConnection) -> None:
        conn.expect_line()
        conn.reset()

    with ScriptedPeer(script) as peer, dial(peer) as client:
        client.sendall(b"PING\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_connections_are_numbered() -> None:
    """Each connection knows which one it is, so that a script can tell a reconnect."""
    with ScriptedPeer(lambda conn: conn.send(b"%d" % conn.number)) as peer:
        for number in range(3):
            with dial(peer) as client:
                assert read_all(client) == b"%d" % number


def test_connect_serves_a_socket_pair() -> None:
    """The script serves a socket pair just as an accepted connection, without a port."""
    peer = ScriptedPeer(lambda conn: conn.send(conn.expect_line()))
    with peer.connect() as client:
        client.sendall(b"echo\r\n")
        assert read_all(client) == b"echo"
    peer.close()
    assert peer_threads() == []


def test_close_ends_scripts_that_wait() -> None:
    """Closing the peer ends its connections, and so the scripts and all threads."""
    with ScriptedPeer(lambda conn: conn.wait_closed()) as peer, dial(peer) as client:
        eventually(lambda: peer.connections)
        peer.close()
        assert read_all(client) == b""
    peer.close()
    assert peer_threads() == []


def test_port_is_refused_after_close() -> None:
    """After close() the port no longer accepts connections."""
    with ScriptedPeer(lambda conn: None) as peer:
        port = peer.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
