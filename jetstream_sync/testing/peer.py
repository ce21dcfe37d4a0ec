"""A peer that plays the server from a script, to send what a test needs, valid or not."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from jetstream_sync._deadline import Deadline
from jetstream_sync.testing.server import HOST

READ_TIMEOUT = 5.0
_RECEIVE_SIZE = 65536
_JOIN_TIMEOUT = 5.0
_LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN

INFO_DEFAULTS: dict[str, Any] = {
    "server_id": "SCRIPTED",
    "server_name": "scripted",
    "version": "2.10.25",
    "proto": 1,
    "headers": True,
    "max_payload": 1048576,
    "jetstream": True,
}


class PeerConnection:
    """The peer's end of one connection. Only the thread of its script may use it.

    Reads block up to `timeout` seconds. They raise `TimeoutError`, and `EOFError` when the client has closed the
    connection.
    """

    def __init__(self, sock: socket.socket, number: int = 0) -> None:
        self.number = number
        """The number of this connection, from 0: with it a script can treat a reconnect differently."""
        self.socket = sock
        """The socket, for what the methods do not offer."""
        self._received = bytearray()
        self._taken = 0

    def __repr__(self) -> str:
        return f"<PeerConnection {self.number} received={len(self._received)} bytes>"

    @property
    def received(self) -> bytes:
        """All bytes from the client that were read so far."""
        return bytes(self._received)

    # --- sending --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send exactly the bytes `data`. Raises `OSError` when the client has closed the connection."""
        self.socket.settimeout(READ_TIMEOUT)
        self.socket.sendall(data)

    def send_info(self, **fields: Any) -> None:
        """Send the INFO of an ordinary server, overridden by `fields`; None removes a field."""
        info = {name: value for name, value in {**INFO_DEFAULTS, **fields}.items() if value is not None}
        self.send(b"INFO " + json.dumps(info).encode() + b"\r\n")

    def handshake(self, **fields: Any) -> dict[str, Any]:
        """Send INFO with `fields`, read CONNECT and PING, send PONG; return the JSON object of the CONNECT."""
        self.send_info(**fields)
        connect = self.expect_line()
        if not connect.upper().startswith(b"CONNECT "):
            raise AssertionError(f"expected CONNECT, the client sent {connect!r}")
        options: dict[str, Any] = json.loads(connect[len(b"CONNECT ") :])
        ping = self.expect_line()
        if ping.upper() != b"PING":
            raise AssertionError(f"expected PING, the client sent {ping!r}")
        self.send(b"PONG\r\n")
        return options

    # --- reading --------------------------------------------------------------------------------

    def expect_line(self, prefix: bytes = b"", timeout: float = READ_TIMEOUT) -> bytes:
        """The next line, without its CR LF. Raises `AssertionError` when it does not begin with `prefix`."""
        line = self.read_until(b"\r\n", timeout)[:-2]
        if not line.startswith(prefix):
            raise AssertionError(f"expected a line that begins with {prefix!r}, the client sent {line!r}")
        return line

    def read_until(self, end: bytes, timeout: float = READ_TIMEOUT) -> bytes:
        """The next bytes, up to and including `end`."""
        deadline = Deadline(timeout)
        while (found := self._received.find(end, self._taken)) < 0:
            self._receive(deadline)
        return self._take(found + len(end))

    def read_exactly(self, size: int, timeout: float = READ_TIMEOUT) -> bytes:
        """The next `size` bytes."""
        deadline = Deadline(timeout)
        while len(self._received) - self._taken < size:
            self._receive(deadline)
        return self._take(self._taken + size)

    def wait_closed(self, timeout: float | None = None) -> bytes:
        """Read until the client, or the end of the test, closes the connection; return what was read."""
        deadline = Deadline(timeout)
        try:
            while True:
                self._receive(deadline)
        except (EOFError, ConnectionError):
            return self._take(len(self._received))

    # --- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection with FIN. Idempotent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)  # close() alone would send RST if bytes are unread
        except OSError:  # the client has closed it already
            pass
        self.socket.close()

    def reset(self) -> None:
        """Break the connection with RST. On a socket pair, which has no RST, this is `close()`."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.socket.close()

    def _take(self, end: int) -> bytes:
        taken = bytes(self._received[self._taken : end])
        self._taken = end
        return taken

    def _receive(self, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        if remaining == 0.0:
            raise TimeoutError(f"the client sent nothing more after {bytes(self._received[self._taken :])!r}")
        self.socket.settimeout(remaining)
        try:
            data = self.socket.recv(_RECEIVE_SIZE)
        except TimeoutError:
            return  # the caller loops, and the next call finds that the deadline has expired
        if not data:
            raise EOFError("the client closed the connection")
        self._received += data


Script = Callable[[PeerConnection], object]


class ScriptedPeer:
    """Runs `script(connection)` on its own thread for each client, and closes the connection when it returns.

    A context manager that listens on a free port of 127.0.0.1; `connect()` returns a client socket without a port.
    When a script raises `EOFError` or `ConnectionError`, its client has closed the connection, which is no
    failure. Any other exception is kept in `errors`, and leaving the context raises the first, so that a test does
    not pass while its script fails.

    A thread (`peer-…`) ends when its script returns. `close()` ends the connections, which ends every script that
    reads or writes.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._connections: list[PeerConnection] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._wake_writer: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self.errors: list[BaseException] = []
        """What scripts raised."""

    def __repr__(self) -> str:
        where = "not listening" if self._listener is None else self.url
        return f"<ScriptedPeer {where} connections={len(self._connections)} errors={len(self.errors)}>"

    @property
    def port(self) -> int:
        """The port it listens on. Raises RuntimeError before start()."""
        if self._listener is None:
            raise RuntimeError("the peer is not listening")
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"nats://{HOST}:{self.port}"

    @property
    def connections(self) -> list[PeerConnection]:
        """All connections so far, in order. Any thread may read their `received`."""
        with self._lock:
            return list(self._connections)

    def start(self) -> ScriptedPeer:
        """Start to listen. Does nothing when the peer listens already."""
        if self._listener is None:
            self._listener = socket.create_server((HOST, 0), backlog=128)
            self._listener.setblocking(False)
            wake_reader, self._wake_writer = socket.socketpair()
            name = f"peer-accept-{self.port}"
            arguments = (self._listener, wake_reader)
            self._acceptor = threading.Thread(target=self._accept, args=arguments, name=name, daemon=True)
            self._acceptor.start()
        return self

    def connect(self) -> socket.socket:
        """The client's end of a socket pair; the script gets the other end. The caller closes it."""
        client, served = socket.socketpair()
        self._serve(served)
        return client

    def close(self) -> None:
        """Stop listening, end all connections, and wait for the scripts. Idempotent.

        Raises `RuntimeError` when a script does not end with its connection.
        """
        if self._acceptor is not None and self._wake_writer is not None:
            self._wake_writer.close()  # the end of file wakes the accepting thread
            self._acceptor.join(_JOIN_TIMEOUT)
            self._acceptor = self._wake_writer = self._listener = None
        for connection in self.connections:
            try:
                connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is closed already
                pass
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT)
            if thread.is_alive():
                raise RuntimeError(f"the script of {thread.name} does not end with its connection")

    def __enter__(self) -> ScriptedPeer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self.errors:
            raise self.errors[0]

    def _accept(self, listener: socket.socket, wake_reader: socket.socket) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(wake_reader, select.POLLIN)
        with listener, wake_reader:
            while wake_reader.fileno() not in dict(poll.poll()):
                try:
                    client, _ = listener.accept()
                except OSError:  # the client closed the connection before it was accepted
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # one segment per send of the script
                self._serve(client)

    def _serve(self, sock: socket.socket) -> None:
        with self._lock:
            connection = PeerConnection(sock, len(self._connections))
            self._connections.append(connection)
            name = f"peer-connection-{connection.number}"
            thread = threading.Thread(target=self._run, args=(connection,), name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def _run(self, connection: PeerConnection) -> None:
        try:
            self._script(connection)
        except (EOFError, ConnectionError):
            pass  # the client has closed the connection, which is the usual end
        except BaseException as error:  # noqa: BLE001 - any error of the script is raised in the test's thread
            self.errors.append(error)
        finally:
            connection.close()
