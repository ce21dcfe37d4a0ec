"""The fault proxy, between a plain socket and an echoing or scripted peer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from jetstream_sync.testing import FaultProxy, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually


def echo(conn: PeerConnection) -> None:
    while True:
        conn.send(conn.read_exactly(1))


@pytest.fixture
def peer() -> Iterator[ScriptedPeer]:
    with ScriptedPeer(echo) as echoing:
        yield echoing


@pytest.fixture
def proxy(peer: ScriptedPeer) -> Iterator[FaultProxy]:
    with FaultProxy(peer.url) as between:
        yield between
    assert [t.name for t in threading.enumerate() if t.name.startswith("proxy-")] == []


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with dial(proxy) as connected:
        yield connected


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def read(client: socket.socket, size: int) -> bytes:
    """`size` bytes, or fewer when the stream ends before."""
    data = b""
    while len(data) < size and (piece := client.recv(size - len(data))):
        data += piece
    return data


def read_one_byte(proxy: FaultProxy) -> bytes:
    """Dial and read."""
    with dial(proxy) as client:
        return client.recv(1)


def says_nothing(client: socket.socket, seconds: float = 0.1) -> bool:
    client.settimeout(seconds)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        client.settimeout(5)


def talk(client: socket.socket, words: bytes = b"hello") -> None:
    """Say something and hear it back: the connection works."""
    client.sendall(words)
    assert read(client, len(words)) == words


def test_bytes_pass_both_ways_and_are_recorded(proxy: FaultProxy, client: socket.socket) -> None:
    """Without a fault everything passes, and both directions are kept for each connection."""
    talk(client)
    assert proxy.captured[0].to_server == b"hello"
    assert proxy.captured[0].to_client == b"hello"
    assert (proxy.connections, proxy.accepted) == (1, 1)


def test_large_transfer_arrives_whole_and_is_not_recorded_when_unwanted() -> None:
    """More than all buffers together passes each way, without a copy of it when `record` is off."""
    payload = bytes(range(256)) * 20000
    received: list[bytes] = []

    def bulk(conn: PeerConnection) -> None:
        received.append(conn.read_exactly(len(payload)))
        conn.send(payload)

    with ScriptedPeer(bulk) as peer, FaultProxy(("127.0.0.1", peer.port), record=False) as between:
        with dial(between) as client:
            client.sendall(payload)
            assert read(client, len(payload)) == payload
        assert between.captured[0].to_server == b""
    assert received == [payload]


def test_cut_ends_the_stream_in_order(proxy: FaultProxy, client: socket.socket) -> None:
    """After a cut the client reads an end of stream; a new connection works."""
    talk(client)
    proxy.cut()
    assert proxy.connections == 0
    assert client.recv(1) == b""
    with dial(proxy) as second:
        talk(second)


def test_cut_with_unread_bytes_is_still_in_order(proxy: FaultProxy, client: socket.socket) -> None:
    """Bytes the proxy never read do not turn the end of stream into a reset."""
    proxy.black_hole("to_server")
    client.sendall(b"x" * 200_000)
    eventually(lambda: proxy.captured and proxy.captured[0].to_server)
    proxy.cut()
    assert client.recv(1) == b""


def test_reset_breaks_the_connection(proxy: FaultProxy, client: socket.socket) -> None:
    """After a reset the client gets ECONNRESET, and the server's side is broken as well."""
    talk(client)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.connections == 0


@pytest.mark.parametrize("direction", ["both", "to_server", "to_client"])
def test_black_hole_holds_bytes_until_healed(proxy: FaultProxy, client: socket.socket, direction: str) -> None:
    """Nothing comes back while the hole is open, the connection stays, and nothing is lost after it."""
    talk(client)
    proxy.black_hole(direction)  # type: ignore[arg-type]
    client.sendall(b"held")
    assert says_nothing(client)
    assert proxy.connections == 1
    proxy.heal()
    assert read(client, 4) == b"held"


def test_black_hole_to_client_lets_the_other_way_through(
    proxy: FaultProxy, client: socket.socket, peer: ScriptedPeer
) -> None:
    """A hole in one direction leaves the other open."""
    talk(client)
    proxy.black_hole("to_client")
    client.sendall(b"onward")
    eventually(lambda: peer.connections[0].received == b"helloonward")
    assert says_nothing(client)


def test_black_hole_stalls_a_sender_of_much(proxy: FaultProxy, client: socket.socket) -> None:
    """The proxy does not read on, so that a sender's buffers fill as they do when packets are lost."""
    proxy.black_hole()
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.sendall(b"x" * 50_000_000)


def test_black_hole_holds_back_the_end_of_the_server(proxy: FaultProxy, peer: ScriptedPeer) -> None:
    """The end of the stream does not pass a black hole before it is healed."""
    with dial(proxy) as client:
        talk(client)
        proxy.black_hole()
        peer.close()
        assert says_nothing(client)
        proxy.heal()
        assert client.recv(1) == b""


def test_black_hole_holds_new_connections(proxy: FaultProxy) -> None:
    """A connection made while the hole is open is accepted, and silent."""
    proxy.black_hole()
    with dial(proxy) as client:
        client.sendall(b"a")
        assert says_nothing(client)


def test_cut_during_a_black_hole_ends_the_connection(proxy: FaultProxy, client: socket.socket) -> None:
    """A held connection can be cut at once."""
    talk(client)
    proxy.black_hole()
    client.sendall(b"held")
    proxy.cut()
    assert client.recv(1) == b""


def test_delay_holds_each_piece(proxy: FaultProxy, client: socket.socket) -> None:
    """An answer takes the delay twice: there and back."""
    talk(client)
    proxy.delay(0.1)
    before = time.monotonic()
    talk(client)
    assert 0.2 <= time.monotonic() - before < 2
    proxy.heal()
    before = time.monotonic()
    talk(client)
    assert time.monotonic() - before < 0.2


def test_heal_ends_a_delay_that_runs(proxy: FaultProxy, client: socket.socket) -> None:
    """Bytes held by a long delay come as soon as it is healed."""
    proxy.delay(60)
    client.sendall(b"a")
    eventually(lambda: proxy.captured and proxy.captured[0].to_server)
    proxy.heal()
    assert read(client, 1) == b"a"


def test_chunk_splits_what_passes(proxy: FaultProxy, peer: ScriptedPeer) -> None:
    """Data arrive in segments of the given size, in order and complete."""
    proxy.chunk(3, pause=0.01)
    with dial(proxy) as client:
        client.sendall(b"abcdefgh")
        pieces = []
        while sum(map(len, pieces)) < 8:
            pieces.append(client.recv(100))
    assert b"".join(pieces) == b"abcdefgh"
    assert max(map(len, pieces)) <= 3


@pytest.mark.parametrize("n_bytes", [0, 1, 7])
def test_cut_after_lets_exactly_n_bytes_pass(proxy: FaultProxy, peer: ScriptedPeer, n_bytes: int) -> None:
    """The connection ends after byte n of the direction, and the next one is left alone."""
    proxy.cut_after(n_bytes, "to_server")
    with dial(proxy) as client:
        client.sendall(b"0123456789")
        assert b"0123456789"[:n_bytes].startswith(read(client, 100))
    # The peer may not have accepted yet when the client has already seen the end.
    eventually(lambda: [len(connection.received) for connection in peer.connections] == [n_bytes])
    with dial(proxy) as second:
        talk(second)


def test_cut_after_to_client_counts_from_now_on_a_living_connection(
    proxy: FaultProxy, client: socket.socket
) -> None:
    """A connection that lives is cut after n more bytes."""
    talk(client, b"many bytes before")
    proxy.cut_after(4, "to_client")
    client.sendall(b"123456")
    assert read(client, 100) == b"1234"


def test_cut_after_every_time_cuts_each_connection(proxy: FaultProxy) -> None:
    """Without `once` every connection is cut, until healed."""
    proxy.cut_after(2, "to_client", once=False)
    for _ in range(3):
        with dial(proxy) as client:
            client.sendall(b"abcd")
            assert read(client, 100) == b"ab"
    proxy.heal()
    with dial(proxy) as client:
        talk(client)


def test_refuse_refuses_new_connections_and_keeps_old_ones(proxy: FaultProxy, client: socket.socket) -> None:
    """While refusing, the port is closed to new clients only; the same port opens again when healed."""
    talk(client)
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    talk(client)
    proxy.heal()
    assert proxy.port == port
    with dial(proxy) as second:
        talk(second)


def test_refuse_with_close_accepts_and_closes(proxy: FaultProxy) -> None:
    """The client gets a connection that ends at once, and the server never sees it."""
    proxy.refuse("close")
    with dial(proxy) as client:
        assert client.recv(1) == b""
    assert proxy.accepted == 0


def test_refuse_with_reset_accepts_and_resets(proxy: FaultProxy) -> None:
    """The client gets a connection that breaks at once, even while it still dials."""
    proxy.refuse("reset")
    with pytest.raises(ConnectionResetError):
        read_one_byte(proxy)


def test_target_that_is_down_resets_the_client(proxy: FaultProxy, peer: ScriptedPeer) -> None:
    """When the server cannot be reached, the client's connection breaks."""
    peer.close()
    with pytest.raises(ConnectionResetError):
        read_one_byte(proxy)
    eventually(lambda: proxy.connections == 0)


def test_end_of_the_client_reaches_the_server(proxy: FaultProxy, peer: ScriptedPeer) -> None:
    """A client that closes ends the connection on both sides."""
    with dial(proxy) as client:
        talk(client)
    eventually(lambda: proxy.connections == 0)


def test_close_twice_is_harmless(peer: ScriptedPeer) -> None:
    """Closing is idempotent, and the port is refused afterwards."""
    proxy = FaultProxy(peer.url).start()
    port = proxy.port
    proxy.close()
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize("target", ["nats://127.0.0.1", "nowhere"])
def test_target_without_host_or_port_is_refused(target: str) -> None:
    """A target that cannot be dialled is a ValueError at once."""
    with pytest.raises(ValueError, match="host and a port"):
        FaultProxy(target)


def test_bad_sizes_are_refused(proxy: FaultProxy) -> None:
    """Sizes that make no sense are ValueErrors."""
    with pytest.raises(ValueError, match="chunk size"):
        proxy.chunk(0)
    with pytest.raises(ValueError, match="n_bytes"):
        proxy.cut_after(-1)
