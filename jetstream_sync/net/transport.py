"""The byte pipe to one server: dial, TLS, receive, send, close.

Who may call what: `recv` belongs to whoever receives (see receiving.py), `outgoing` and `flush_now` to the one
thread that owns sending (see outbox.py), `abort` to anybody at any time, `close` to whoever drops the transport
last.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

from .._deadline import Deadline
from ..errors import ProtocolError, TimeoutError

# Measured: 256 KiB is best over all payload sizes.
RECV_SIZE = 256 * 1024
# Enough for an answer to one request, and cheaper to set aside.
ANSWER_SIZE = 16 * 1024

# Senders never block in a send: what the kernel does not take is left to the writer thread.
DONTWAIT = socket.MSG_DONTWAIT

# poll() counts milliseconds in an int, of 24 days at most; whoever waits longer asks again.
LONGEST_POLL = 86400.0


class Transport(Protocol):
    """A connected byte pipe."""

    outgoing: bytes
    """What flush_now() sends. Set by the sending owner, only when the previous value has left."""

    def recv(self) -> bytes:
        """Block for the next bytes; b"" at the end of the stream. Raises OSError."""

    def flush_now(self) -> bool:
        """Send of `outgoing` what can be sent without blocking; True when all has left. Raises OSError."""

    def wait_writable(self, timeout: float) -> bool:
        """Block until more can be sent, the pipe broke, or `timeout` seconds passed (then False)."""

    def finish(self) -> None:
        """Tell the server that nothing more comes; it answers by closing its side."""

    def abort(self) -> None:
        """Break the pipe at once: every blocked recv and wait returns. Idempotent, any thread."""

    def close(self) -> None:
        """Free the descriptor. Only when no other thread can be inside a call on this object."""


class PlainTransport:
    """A TCP socket."""

    encrypted = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()  # stays what it was: a wait that begins late must not fail on a closed socket
        self.outgoing = b""
        # Results of send calls on `outgoing`; see flush_now.
        self._counts: list[int] = []

    def recv(self) -> bytes:
        return self.sock.recv(RECV_SIZE)

    def absorb(self, data: bytes) -> bytes:
        """What `data`, received from the socket, means."""
        return data

    def flush_now(self) -> bool:
        while self.outgoing:
            counts = self._counts
            rest = memoryview(self.outgoing)[sum(counts) :] if counts else self.outgoing
            try:
                # A signal handler may raise as soon as a call returns into Python, before its result is
                # stored; then nobody would know how much of a frame has left. `extend` and `map` store it
                # without returning into Python, so the count survives and the next owner goes on from it.
                counts.extend(map(self.sock.send, (rest,), (DONTWAIT,)))
            except BlockingIOError:
                return False
            if sum(counts) == len(self.outgoing):
                # Two stores and no call between them: no signal handler can run in the middle.
                self.outgoing, self._counts = b"", []
        return True

    def wait_writable(self, timeout: float) -> bool:
        poller = select.poll()
        poller.register(self.sock, select.POLLOUT)
        return bool(poller.poll(min(timeout, LONGEST_POLL) * 1000))

    def finish(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # already broken: the same to the caller

    def abort(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more: nothing is blocked on it

    def close(self) -> None:
        self.sock.close()


def dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect a TCP socket. Raises OSError or TimeoutError."""
    remaining = deadline.remaining()
    if remaining is not None and remaining <= 0:
        raise TimeoutError(f"no time left to connect to {host}:{port}")
    try:
        sock = socket.create_connection((host, port), timeout=remaining)
    except UnicodeError as error:  # an empty or overlong label: the look-up does not even begin
        raise OSError(f"{host!r} cannot be a host name: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except BaseException:
        sock.close()
        raise


def recv_some(sock: socket.socket, deadline: Deadline) -> bytes:
    """One recv within what is left of `deadline`: it covers the whole handshake, not each call."""
    _arm(sock, deadline)
    return sock.recv(RECV_SIZE)


def send_all(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    _arm(sock, deadline)
    sock.sendall(data)


def _arm(sock: socket.socket, deadline: Deadline) -> None:
    remaining = deadline.remaining()
    if remaining is not None and remaining <= 0:
        raise TimeoutError("the server did not complete the handshake in time")
    sock.settimeout(remaining)


def refuse_early_bytes(buffered: int) -> None:
    """Bytes behind INFO but before the TLS handshake were not sent by the server we are about to verify."""
    if buffered:
        raise ProtocolError("the server sent data before the TLS handshake: refused")
