"""The byte pipe to one server, encrypted. Imported only when TLS is wanted: loading OpenSSL is a good part of the
time that importing the library takes.

TLS runs over memory buffers: one OpenSSL object must not be used by two threads at once, and a blocking
`SSLSocket.recv` in the reader would either race with a sender or shut it out.

Signals: a handler may raise in the sending thread between any two instructions. What it interrupts must neither be
lost nor sent twice, for a missing or repeated record ends the session. A message passes through four places:
`outgoing` (plain text), OpenSSL's output buffer, `_records`, the wire's `outgoing`. Each step from one to the next
either is one call into C or plain stores, after which no handler can run in between. The encryption is the
exception: Python runs handlers inside `SSLObject.write`, after OpenSSL has done its work, so an exception from
there does not say whether the message was encrypted. The length of OpenSSL's output does: it is noted before
(`_mark`), and the next thread that uses the session compares it (`_settle`).
"""

from __future__ import annotations

import contextlib
import ssl
from _thread import allocate_lock
from collections.abc import Callable

from .._deadline import Deadline
from .options import TlsFiles
from .transport import RECV_SIZE, DirectRecv, Transport, send_all

_ALL = (-1,)  # of what a memory buffer holds


class TLSTransport:
    """TLS in memory over another transport. `outgoing` is plain text; what is sent is its encrypted form."""

    direct_recv: DirectRecv | None = None

    def __init__(self, wire: Transport, context: ssl.SSLContext, server_hostname: str) -> None:
        self.outgoing: bytes = b""
        self._wire = wire
        self.wait_readable: Callable[[float], bool] = wire.wait_readable
        self.wait_writable: Callable[[float], bool] = wire.wait_writable
        self.finish: Callable[[], None] = wire.finish
        self.abort: Callable[[], None] = wire.abort
        self.close: Callable[[], None] = wire.close
        self._incoming = ssl.MemoryBIO()
        self._encrypted = ssl.MemoryBIO()
        self._take_encrypted = self._encrypted.read
        self._tls = context.wrap_bio(self._incoming, self._encrypted, server_hostname=server_hostname)
        self._lock = allocate_lock()  # guards the OpenSSL object and its buffers; never held across a socket call
        self._mark: int | None = None
        """The length of OpenSSL's output before `outgoing` began to be encrypted; None when it did not begin."""
        self._records: list[bytes] = []  # taken out of OpenSSL's output, not yet given to the wire
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
                # The server is told why its certificate was refused, as far as that goes without waiting.
                self._wire.outgoing = self._encrypted.read()
                with contextlib.suppress(OSError):
                    self._wire.flush_now()
                raise
            send_all(self._wire, self._encrypted.read(), deadline)
            if done:
                return
            data = self._wire.recv_some(deadline)
            if not data:
                raise ConnectionResetError("the server closed the connection during the TLS handshake")
            self._incoming.write(data)

    def recv(self) -> bytes:
        return self._receive(self._wire.recv)

    def recv_some(self, deadline: Deadline) -> bytes:
        return self._receive(self._wire.recv_some, deadline)

    def _receive(self, recv: Callable[..., bytes], *args: Deadline) -> bytes:
        while not self._ended:
            plain = self._decrypt(recv(*args))
            if plain:
                return plain
        return b""

    def _decrypt(self, data: bytes) -> bytes:
        """Decrypt what the wire gave (b"" at its end), together with what was left of earlier calls."""
        chunks: list[bytes] = []
        with self._lock:
            if self._mark is not None:
                self._settle()
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
            except ssl.SSLError as error:
                self._ended = True
                if not chunks and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                    raise
        return b"".join(chunks)

    def flush_now(self) -> bool:
        wire = self._wire
        if wire.outgoing and not wire.flush_now():
            return False
        with self._lock:
            if self._mark is not None:
                self._settle()
            if self.outgoing:
                self._mark = self._encrypted.pending
                self._tls.write(self.outgoing)
                self.outgoing, self._mark = b"", None
            # Also what OpenSSL itself has to say, such as a change of keys.
            records = self._records
            records.extend(map(self._take_encrypted, _ALL))
            data = records[0] if len(records) == 1 else b"".join(records)
            wire.outgoing, self._records = data, []
        return wire.flush_now()

    def _settle(self) -> None:
        """Find out whether an encryption that a signal handler interrupted has taken place."""
        assert self._lock.locked()
        assert self._mark is not None
        if self._encrypted.pending > self._mark:
            self.outgoing, self._mark = b"", None
        else:
            self._mark = None


def tls_context(files: TlsFiles | None) -> ssl.SSLContext:
    """The context for PEM files, or the default one. Raises ValueError, which names the file that is no use."""
    if files is None:
        return ssl.create_default_context()
    what = f"tls_ca {files.ca!r}"
    try:
        context = ssl.create_default_context(cafile=files.ca)
        if files.cert is not None:
            what = f"tls_cert {files.cert!r}" + ("" if files.key is None else f" with tls_key {files.key!r}")
            # Without a password of ours OpenSSL would ask for one on the terminal.
            context.load_cert_chain(files.cert, files.key, password=_no_password)
    except _EncryptedKey:
        reason = "the key is encrypted: load it into an ssl.SSLContext and pass that as tls"
    except OSError as error:  # ssl.SSLError among them
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    else:
        return context
    raise ValueError(f"cannot use {what}: {reason}")


class _EncryptedKey(Exception):
    """Raised through OpenSSL, in place of the password that it asks for."""


def _no_password() -> str:
    raise _EncryptedKey


def start_tls(wire: Transport, context: ssl.SSLContext, hostname: str, deadline: Deadline) -> TLSTransport:
    """Put TLS on a connected transport and run the handshake."""
    transport = TLSTransport(wire, context, hostname)
    transport.handshake(deadline)
    return transport
