"""TLS over a socket pair: an interrupted send neither loses nor repeats a record, wherever it is interrupted."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from jetstream_sync._deadline import Deadline
from jetstream_sync.net.tls import TLSTransport
from jetstream_sync.net.transport import PlainTransport
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.interrupts import Code, InterruptAt
from tests.support.signals import Interrupted

SENDING = Code(TLSTransport.flush_now, TLSTransport._settle, PlainTransport.flush_now)
# More than one TLS record holds, and more than the socket takes at once.
BIG = 40_000


class TlsPipe:
    """A TLS transport over a socket pair, and a thread that decrypts at the other end."""

    def __init__(self, cert_kit: CertKit) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*map(str, cert_kit.server()))
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._peer = theirs
        self.received = bytearray()
        self.error: Exception | None = None
        self._to_say: deque[bytes] = deque()
        self._thread = threading.Thread(target=self._read, args=(context,), daemon=True)
        self._thread.start()
        self.transport = TLSTransport(
            PlainTransport(ours), ssl.create_default_context(cafile=str(cert_kit.ca_file)), "localhost"
        )
        self.transport.handshake(Deadline(10))

    def _read(self, context: ssl.SSLContext) -> None:
        try:
            with context.wrap_socket(self._peer, server_side=True, suppress_ragged_eofs=True) as session:
                session.settimeout(0.01)
                while self._read_once(session):
                    if self._to_say:
                        session.sendall(self._to_say.popleft())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _read_once(self, session: ssl.SSLSocket) -> bool:
        try:
            data = session.recv(65536)
        except TimeoutError:
            return True
        self.received += data
        return bool(data)

    def send_rest(self) -> None:
        while not self.transport.flush_now():
            assert self.transport.wait_writable(10)

    def say(self, data: bytes) -> bytes:
        """Have the peer send `data`; return what the transport receives."""
        self._to_say.append(data)
        return self.transport.recv()

    def close(self) -> None:
        self.transport.finish()
        self._thread.join(10)
        self.transport.close()


@pytest.fixture
def pipe(cert_kit: CertKit) -> Iterator[TlsPipe]:
    with closing(TlsPipe(cert_kit)) as pipe:
        yield pipe


@pytest.mark.parametrize("size", [10, BIG])
def test_send_interrupted_anywhere(size: int, pipe: TlsPipe) -> None:
    """Wherever a signal handler raises in a send, the next call continues: every message arrives once."""
    sent = b""
    for place in count():
        message = b"%06d" % place + b"x" * size
        pipe.transport.outgoing = message
        interrupt = InterruptAt(SENDING, place)
        interrupt.call(pipe.send_rest)
        pipe.send_rest()
        sent += message
        if not interrupt.done:
            break
    assert place > 8
    eventually(lambda: len(pipe.received) >= len(sent))
    assert pipe.received == sent
    assert pipe.error is None


class InterruptedSession:
    """An OpenSSL session in whose write() a signal handler raises, before or after OpenSSL has done its work."""

    def __init__(self, session: Any, *, done: bool) -> None:
        self._session = session
        self._done = done

    def read(self, size: int) -> bytes:
        return self._session.read(size)

    def write(self, data: bytes) -> int:
        if self._done:
            self._session.write(data)
        raise Interrupted


@pytest.mark.parametrize("meanwhile", ["nothing", "received"])
@pytest.mark.parametrize("done", [False, True])
def test_interrupted_encryption_is_neither_lost_nor_repeated(done: bool, meanwhile: str, pipe: TlsPipe) -> None:
    """A signal handler raises before or after OpenSSL's write() has encrypted: the transport finds out which."""
    transport = pipe.transport
    session = transport._tls
    for number in range(3):
        transport.outgoing = b"<%d>" % number
        transport._tls = InterruptedSession(session, done=done)  # type: ignore[assignment]
        with pytest.raises(Interrupted):
            transport.flush_now()
        transport._tls = session
        if meanwhile == "received":
            assert pipe.say(b"hello") == b"hello"
        pipe.send_rest()
    eventually(lambda: len(pipe.received) == 9)
    assert pipe.received == b"<0><1><2>"
    assert pipe.error is None


def test_what_the_session_itself_has_to_send_leaves_with_the_next_flush(pipe: TlsPipe) -> None:
    """What OpenSSL itself has to send, such as a change of keys, is sent even if there is no message."""
    transport = pipe.transport
    own = transport._tls.write(b"the session's own")  # stands in for a change of keys
    assert own == 17
    assert transport.outgoing == b""
    pipe.send_rest()
    eventually(lambda: pipe.received == b"the session's own")


def test_receive_ends_in_order_when_aborted(pipe: TlsPipe) -> None:
    """A blocked recv() returns the end of the stream when another thread aborts the transport."""
    results: list[bytes] = []
    receiver = threading.Thread(target=lambda: results.append(pipe.transport.recv()), daemon=True)
    receiver.start()
    receiver.join(0.1)
    assert receiver.is_alive()
    pipe.transport.abort()
    receiver.join(5)
    assert results == [b""]
