"""The byte pipe to one server: dial, receive, send, close.

`Transport` is all that the rest of the library knows of a socket. `PlainTransport` is a TCP socket; TLS (tls.py)
wraps another transport, and so can a WebSocket.

Which thread may call what: `recv` and `recv_some` belong to the one thread that receives at the time, `outgoing`
and `flush_now` to the one thread that sends (see outbox.py). `abort` may be called by any thread at any time. The
thread that gives the transport up last calls `close`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from .. import _platform
from .._deadline import FOREVER, Deadline
from .._platform import NOW, WOULD_BLOCK

# Measured: 256 KiB is best over all payload sizes.
RECV_SIZE = 256 * 1024
# Enough for the reply to one request, and cheaper to allocate.
REPLY_SIZE = 16 * 1024

DirectRecv = Callable[[int, int], bytes]


class Transport(Protocol):
    """A connected byte pipe."""

    outgoing: bytes
    """What flush_now() sends. The sending thread sets it, and only when the previous value has left."""

    direct_recv: DirectRecv | None
    """Receives (up to so many bytes, with the flags NOW) without blocking and in one call into C, for a caller of
    a request. None where received bytes have to be decoded first."""

    def recv(self) -> bytes:
        """Block for the next bytes; b"" at the end of the stream. Raises OSError.

        A transport that then has something of its own to send (a WebSocket's pong) keeps it for flush_now().
        """

    def recv_some(self, deadline: Deadline) -> bytes:
        """recv() with a limit, for handshakes. Raises TimeoutError, OSError."""

    def flush_now(self) -> bool:
        """Send of `outgoing`, and of what the transport itself has to send, what can be sent without blocking.

        True when all has left. Raises OSError. An exception from a signal handler loses nothing: the next call
        goes on where this one was interrupted.
        """

    def wait_readable(self, timeout: float) -> bool:
        """Block until there is something to receive, the pipe broke, or `timeout` seconds passed (then False)."""

    def wait_writable(self, timeout: float) -> bool:
        """Block until more can be sent, the pipe broke, or `timeout` seconds passed (then False)."""

    def finish(self) -> None:
        """Tell the server that nothing more comes; it replies by closing its side."""

    def abort(self) -> None:
        """Break the pipe at once: every blocked recv and wait returns. Idempotent, any thread."""

    def close(self) -> None:
        """Free the descriptor. Only when no other thread can be inside a call on this object."""


class PlainTransport:
    """A TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd: int = sock.fileno()  # stays what it was: a wait that begins late must not fail on a closed socket
        self.outgoing: bytes = b""
        self.direct_recv: DirectRecv | None = sock.recv
        self._wake = _platform.prepare(sock)
        self._aborted = False
        # Results of send calls on `outgoing`; see flush_now.
        self._counts: list[int] = []

    def recv(self) -> bytes:
        while True:
            try:
                return self.sock.recv(RECV_SIZE)
            except OSError as error:
                if self._aborted and (error.errno in WOULD_BLOCK or _platform.is_lost(error)):
                    return b""  # the end of the stream, as where shutdown() wakes a receive
                if error.errno not in WOULD_BLOCK:
                    raise
            self.wait_readable(FOREVER)  # the platform needs a non-blocking socket

    def recv_some(self, deadline: Deadline) -> bytes:
        while True:
            # A server that sends all the time must not outlast the deadline.
            if deadline.expired or not self.wait_readable(deadline.wait_time()):
                raise TimeoutError("the server did not complete the handshake in time")
            if self._aborted:
                return b""
            try:
                return self.sock.recv(RECV_SIZE, NOW)
            except OSError as error:
                if error.errno not in WOULD_BLOCK:
                    raise

    def flush_now(self) -> bool:
        while self.outgoing:
            counts = self._counts
            rest = memoryview(self.outgoing)[sum(counts) :] if counts else self.outgoing
            try:
                # A signal handler may raise as soon as a call returns into Python, before its result is
                # stored; then it would be unknown how much of a frame has left. `extend` and `map` store it
                # without returning into Python, so the count survives and the next sender goes on from it.
                counts.extend(map(self.sock.send, (rest,), (NOW,)))
            except OSError as error:
                if error.errno in WOULD_BLOCK:
                    return False
                raise
            if sum(counts) == len(self.outgoing):
                # Two stores and no call between them: no signal handler can run in the middle.
                self.outgoing, self._counts = b"", []
        return True

    def wait_readable(self, timeout: float) -> bool:
        return _platform.wait_readable(self.fd, timeout, self._wake)

    def wait_writable(self, timeout: float) -> bool:
        return _platform.wait_writable(self.fd, timeout, self._wake)

    def finish(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # already broken: the same to the caller

    def abort(self) -> None:
        self._aborted = True
        _platform.abort(self.sock, self._wake)

    def close(self) -> None:
        self.sock.close()
        if self._wake is not None:
            self._wake.close()


def dial(host: str, port: int, deadline: Deadline) -> PlainTransport:
    """Connect to a server. Raises OSError or TimeoutError."""
    remaining = deadline.remaining()
    if remaining is not None and remaining <= 0:
        raise TimeoutError(f"no time left to connect to {host}:{port}")
    try:
        sock = _platform.connect_tcp(host, port, remaining)
    except UnicodeError as error:  # an empty or overlong label: the look-up does not even begin
        raise OSError(f"{host!r} cannot be a host name: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return PlainTransport(sock)
    except BaseException:
        sock.close()
        raise


def send_all(transport: Transport, data: bytes, deadline: Deadline) -> None:
    """Send `data` during a handshake, when no other thread sends. Raises TimeoutError, OSError."""
    transport.outgoing = data
    while not transport.flush_now():
        if not transport.wait_writable(deadline.wait_time()):
            raise TimeoutError("the server did not take the handshake in time")
