"""The byte pipe to one server, encrypted. Imported when TLS is wanted only: loading OpenSSL is a good part of the
time that importing the library takes.

TLS runs over memory buffers instead of `ssl.SSLSocket`: one OpenSSL object must not be used by two threads at
once, and a blocking `SSLSocket.recv` in the reader would either race with a sender or shut it out. Here the
socket itself is read and written without a lock, and only the in-memory encryption step takes one.
"""

from __future__ import annotations

import socket
import ssl
from _thread import allocate_lock

from .._deadline import Deadline
from .transport import DONTWAIT, RECV_SIZE, PlainTransport, recv_some, send_all


class TLSTransport(PlainTransport):
    """A TCP socket with TLS in memory. `outgoing` is plain text; what is sent is its encrypted form."""

    encrypted = True

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._encrypted = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._encrypted, server_hostname=server_hostname)
        self._tls_lock = allocate_lock()  # guards the OpenSSL object; never held across a socket call
        self._wire = PlainTransport(sock)
        self._ended = False  # the server said that nothing more comes

    def handshake(self, deadline: Deadline) -> None:
        """Run the handshake; raises ssl.SSLError, TimeoutError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                self._send_alert()
                raise
            send_all(self.sock, self._encrypted.read(), deadline)
            if done:
                return
            data = recv_some(self.sock, deadline)
            if not data:
                raise ConnectionResetError("the server closed the connection during the TLS handshake")
            self._incoming.write(data)

    def _send_alert(self) -> None:
        """Tell the server why its certificate was refused, as far as that goes without waiting."""
        alert = self._encrypted.read()
        try:
            self.sock.send(alert, DONTWAIT)
        except OSError:
            pass  # a courtesy only: the error that is being raised is what counts

    def recv(self) -> bytes:
        while not self._ended:
            plain = self.absorb(self.sock.recv(RECV_SIZE))
            if plain:
                return plain
        return b""

    def absorb(self, data: bytes) -> bytes:
        """Decrypt what the socket gave (b"" at its end), together with what was left of earlier calls."""
        chunks: list[bytes] = []
        with self._tls_lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
                self._ended = True
            try:
                while chunk := self._tls.read(RECV_SIZE):
                    chunks.append(chunk)
                self._ended = True
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                self._ended = True
            except ssl.SSLError:
                if not chunks:
                    raise
                self._ended = True
        return b"".join(chunks)

    def flush_now(self) -> bool:
        try:
            if self.outgoing and not self._wire.outgoing:
                with self._tls_lock:
                    self._tls.write(self.outgoing)
                    self._wire.outgoing = self._encrypted.read()
                self.outgoing = b""
            return self._wire.flush_now()
        except BaseException:
            # A signal handler raised between encrypting and sending: a record may be lost, so this pipe
            # must not be used further.
            self.abort()
            raise


def start_tls(
    sock: socket.socket, context: ssl.SSLContext | None, hostname: str, deadline: Deadline
) -> TLSTransport:
    """Put TLS on a connected socket and run the handshake."""
    transport = TLSTransport(sock, context or ssl.create_default_context(), hostname)
    transport.handshake(deadline)
    return transport
