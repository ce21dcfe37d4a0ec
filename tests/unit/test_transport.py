"""The byte pipe, on this platform and with the fallbacks: a send never blocks, a receive can be ended."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from jetstream_sync import _platform
from jetstream_sync._deadline import FOREVER, Deadline
from jetstream_sync.net import transport as transport_module
from jetstream_sync.net.transport import PlainTransport, send_all
from tests.support.pipes import Pipe
from tests.support.watchdog import InThread


class DeafSocket(socket.socket):
    """A socket whose shutdown() wakes no thread, as on Windows."""

    def shutdown(self, how: int) -> None:
        pass


def force_fallbacks(patch: pytest.MonkeyPatch) -> None:
    """What JETSTREAM_SYNC_PLATFORM=portable does, for one test."""
    patch.setattr(_platform, "_HAS_FLAG", False)
    patch.setattr(_platform, "_SHUTDOWN_WAKES", False)
    patch.setattr(_platform, "wait_readable", _platform._by_select(reading=True))
    patch.setattr(_platform, "wait_writable", _platform._by_select(reading=False))
    patch.setattr(transport_module, "NOW", 0)


@pytest.fixture(params=["native", "portable"], autouse=True)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        force_fallbacks(monkeypatch)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with closing(Pipe()) as pipe:
        yield pipe


# --- sending ----------------------------------------------------------------------------------------------


def test_flush_now_returns_when_the_socket_is_full(pipe: Pipe) -> None:
    """When the peer does not read, flush_now() says that something is left instead of waiting."""
    pipe.transport.outgoing = bytes(16 * 1024 * 1024)
    sending = InThread(pipe.transport.flush_now)
    assert sending.result() is False
    assert not pipe.transport.wait_writable(0.05)


def test_what_is_left_goes_on_where_it_stopped(pipe: Pipe) -> None:
    """A message larger than the socket takes at once arrives whole, in as many calls as that needs."""
    message = bytes(range(256)) * 20_000
    received = bytearray()

    def read() -> None:
        while len(received) < len(message):
            received.extend(pipe.peer.recv(100_000))

    reading = InThread(read)
    send_all(pipe.transport, message, Deadline(10))
    assert pipe.transport.outgoing == b""
    reading.result()
    assert received == message


def test_send_all_in_time(pipe: Pipe) -> None:
    """A peer that does not read costs a handshake the time that was given, not more."""
    with pytest.raises(TimeoutError):
        send_all(pipe.transport, bytes(16 * 1024 * 1024), Deadline(0.05))


def test_send_to_a_closed_peer_fails(pipe: Pipe) -> None:
    """It raises the socket's error, which has a number: the sender tells it from a signal handler's by that."""
    pipe.peer.close()
    pipe.transport.outgoing = b"lost"
    with pytest.raises(OSError) as caught:
        pipe.transport.flush_now()
    assert _platform.is_lost(caught.value)


def test_wait_writable_takes_any_timeout(pipe: Pipe) -> None:
    """A timeout of a century (a connection that never pings) is no error, and the wait ends when there is room."""
    assert pipe.transport.wait_writable(FOREVER)


# --- receiving --------------------------------------------------------------------------------------------


def test_recv_waits_for_data_and_for_the_end(pipe: Pipe) -> None:
    """It blocks, returns what comes, and b"" when the peer has closed."""
    receiving = InThread(pipe.transport.recv)
    time.sleep(0.05)
    assert receiving.running
    pipe.peer.send(b"hello")
    assert receiving.result() == b"hello"
    pipe.peer.close()
    assert pipe.transport.recv() == b""


def test_recv_ends_when_aborted(pipe: Pipe) -> None:
    """abort() in another thread is the end of the stream for a thread that receives, and for one that waits."""
    calls = [InThread(pipe.transport.recv), InThread(pipe.transport.recv_some, Deadline(60))]
    time.sleep(0.05)
    assert calls[1].running
    pipe.transport.abort()
    pipe.transport.abort()
    assert [call.result() for call in calls] == [b"", b""]


def test_recv_ends_when_aborted_where_shutdown_does_not_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On such a platform the receiving thread also waits for a wake socket."""
    force_fallbacks(monkeypatch)
    with closing(Pipe(lambda sock: PlainTransport(DeafSocket(fileno=sock.detach())))) as pipe:
        receiving = InThread(pipe.transport.recv)
        time.sleep(0.05)
        assert receiving.running
        pipe.transport.abort()
        assert receiving.result() == b""
        assert pipe.transport.recv() == b""


def test_recv_some_in_time(pipe: Pipe) -> None:
    """It gives up at its deadline, also when the peer sends all the time."""
    with pytest.raises(TimeoutError):
        pipe.transport.recv_some(Deadline(0.05))
    stop = threading.Event()

    def babble() -> None:
        while not stop.is_set():
            pipe.peer.send(b"x" * 1000)

    babbling = InThread(babble)
    deadline = Deadline(0.2)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        while True:
            assert pipe.transport.recv_some(deadline)
    assert time.monotonic() - started < 5
    stop.set()
    pipe.transport.abort()
    babbling.error()


def test_direct_receive_does_not_block(pipe: Pipe) -> None:
    """One call into C that takes what is there or says that there is nothing."""
    assert pipe.transport.direct_recv is not None
    with pytest.raises(BlockingIOError):
        pipe.transport.direct_recv(100, transport_module.NOW)
    assert not pipe.transport.wait_readable(0.01)
    pipe.peer.send(b"reply")
    assert pipe.transport.wait_readable(5)
    assert pipe.transport.direct_recv(100, transport_module.NOW) == b"reply"


def test_finish_ends_the_sending_half_alone(pipe: Pipe) -> None:
    """The peer sees the end, and can still send."""
    pipe.transport.finish()
    assert pipe.peer.recv(10) == b""
    pipe.peer.send(b"goodbye")
    assert pipe.transport.recv() == b"goodbye"
