"""A TCP proxy that injects faults between a client and a server, when a test asks for them.

Threads (named `proxy-…`): one accepts connections; each connection has one thread per direction. They wait for
their sockets and for a wake-up socket, so each ends as soon as its connection is ended or the proxy is closed. The
last thread of a connection closes its sockets, so that no descriptor is reused while a thread still reads from it.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal
from urllib.parse import urlsplit

from jetstream_sync.testing.server import HOST, LocalServer, PortReservation

Direction = Literal["to_server", "to_client"]
Directions = Literal["both", "to_server", "to_client"]
Refusal = Literal["refuse", "close", "reset"]

_RECEIVE_SIZE = 65536
_DIAL_TIMEOUT = 5.0
_JOIN_TIMEOUT = 5.0
_LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN


@dataclass
class Faults:
    """The faults that are active. Guarded by the proxy's condition."""

    held: set[str] = field(default_factory=set)
    delay: float = 0.0
    chunk: int = 0
    chunk_pause: float = 0.0
    refusal: Refusal | None = None
    cut_after: dict[str, int] = field(default_factory=dict)
    cut_once: bool = True


class FaultProxy:
    """A proxy in front of `target`: a `LocalServer`, a `nats://host:port` URL, or `(host, port)`.

    A context manager: entering opens the port, leaving closes everything. All methods may be called from any
    thread at any time, and apply to open connections as well as to later ones. `heal()` ends every fault, but does
    not restore connections. `record=False` keeps no copy of the traffic.
    """

    def __init__(self, target: LocalServer | str | tuple[str, int], *, record: bool = True) -> None:
        self._target = _address_source(target)
        self.record = record
        """Whether a copy of the traffic is kept."""
        self._changed = threading.Condition()
        self._faults = Faults()
        self._all: list[ProxiedConnection] = []
        self._reservation: PortReservation | None = None
        self._acceptor: _Acceptor | None = None

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> FaultProxy:
        """Open the port. Does nothing when it is open."""
        if self._reservation is None:
            self._reservation = PortReservation()
            self._acceptor = _Acceptor(self._reservation.port, self._accepted)
        return self

    def close(self) -> None:
        """End all connections and threads and release the port. Idempotent."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        self.cut()
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "not started" if self._reservation is None else self.url
        return f"<FaultProxy {where} accepted={len(self._all)}>"

    # --- facts ----------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port to connect to. Raises RuntimeError before start()."""
        if self._reservation is None:
            raise RuntimeError("the proxy is not started")
        return self._reservation.port

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"nats://{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._live())

    @property
    def accepted(self) -> int:
        """How many connections were accepted so far, without those that were refused."""
        with self._changed:
            return len(self._all)

    @property
    def captured(self) -> list[ProxiedConnection]:
        """All connections so far, in order. Their `to_server` and `to_client` are the bytes that passed."""
        with self._changed:
            return list(self._all)

    # --- faults ---------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close all connections with FIN to both sides. Returns when they are closed."""
        self._end_all(reset=False)

    def reset(self) -> None:
        """Break all connections with RST to both sides. Returns when they are closed."""
        self._end_all(reset=True)

    def black_hole(self, direction: Directions = "both") -> None:
        """Let nothing pass in that `direction`, not even the end of a connection, and close nothing.

        Data that is sent meanwhile waits in the sender's buffers, as when packets are lost, and arrives after
        `heal()`.
        """
        held = {"to_server", "to_client"} if direction == "both" else {direction}
        self._change(lambda faults: faults.held.update(held))

    def delay(self, seconds: float) -> None:
        """Delay all data in both directions by so many `seconds`."""
        self._change(lambda faults: setattr(faults, "delay", seconds))

    def chunk(self, size: int, pause: float = 0.0) -> None:
        """Forward data in segments of at most `size` bytes, `pause` seconds apart."""
        if size < 1:
            raise ValueError(f"chunk size must be at least 1, not {size}")

        def apply(faults: Faults) -> None:
            faults.chunk, faults.chunk_pause = size, pause

        self._change(apply)

    def cut_after(self, n_bytes: int, direction: Direction = "to_client", *, once: bool = True) -> None:
        """Close a connection with FIN after `n_bytes` more bytes have passed in that `direction`.

        Each connection has its own count: a new one from its first byte, an open one from now. With `once`, the
        first cut ends the fault for all connections; otherwise later connections are cut as well. With 0, the next
        byte is not forwarded and cuts the connection.
        """

        def apply(faults: Faults) -> None:
            faults.cut_after[direction] = n_bytes
            faults.cut_once = once
            for connection in self._all:
                connection.allowance[direction] = n_bytes

        if n_bytes < 0:
            raise ValueError(f"n_bytes must not be negative: {n_bytes}")
        self._change(apply)

    def refuse(self, how: Refusal = "refuse") -> None:
        """Accept no new connection. `how`: "refuse" it, or accept it and "close" or "reset" it at once.

        Open connections are not affected. Returns when the change has taken effect.
        """
        self._change(lambda faults: setattr(faults, "refusal", how))
        if self._acceptor is not None:
            self._acceptor.listen(how != "refuse")

    def heal(self) -> None:
        """End every fault. Returns when connections are accepted again."""
        with self._changed:
            self._faults = Faults()
            for connection in self._all:
                connection.allowance.clear()
            self._changed.notify_all()
        if self._acceptor is not None:
            self._acceptor.listen(True)

    # --- inside ---------------------------------------------------------------------------------

    def _change(self, apply: Callable[[Faults], None]) -> None:
        with self._changed:
            apply(self._faults)
            self._changed.notify_all()

    def _live(self) -> list[ProxiedConnection]:
        return [connection for connection in self.captured if not connection.closed.is_set()]

    def _end_all(self, *, reset: bool) -> None:
        ending = self._live()
        for connection in ending:
            connection.end(reset=reset)
        for connection in ending:
            connection.join()

    def _accepted(self, client: socket.socket) -> None:
        with self._changed:
            refusal = self._faults.refusal
            if refusal is None:
                connection = ProxiedConnection(self, client, len(self._all))
                connection.allowance.update(self._faults.cut_after)
                self._all.append(connection)
        if refusal is None:
            connection.start(self._target)
        else:
            _close(client, reset=refusal == "reset")

    def _pass_on(self, connection: ProxiedConnection, direction: Direction, data: bytes) -> bool:
        """Forward `data` as the faults allow; False when the connection has ended."""
        rest = memoryview(data)
        while rest and self._wait_for_faults(connection, direction):
            size, is_last = self._grant(connection, direction, len(rest))
            if not connection.send(direction, rest[:size]):
                return False
            if is_last:
                connection.end(reset=False)
                return False
            rest = rest[size:]
        return not rest

    def _wait_open(self, connection: ProxiedConnection, direction: Direction) -> bool:
        """Wait while the direction is a black hole; False when the connection has ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: connection.ended.is_set() or direction not in self._faults.held)
            return not connection.ended.is_set()

    def _wait_for_faults(self, connection: ProxiedConnection, direction: Direction) -> bool:
        """Wait as long as the faults require; False when the connection has ended meanwhile."""
        if not self._wait_open(connection, direction):
            return False
        with self._changed:
            faults = self._faults
            pause = faults.delay + faults.chunk_pause
            if pause:  # heal() replaces self._faults, which ends the pause at once
                self._changed.wait_for(
                    lambda: connection.ended.is_set() or self._faults is not faults, timeout=pause
                )
        return self._wait_open(connection, direction)  # a black hole may have begun during the pause

    def _grant(self, connection: ProxiedConnection, direction: Direction, most: int) -> tuple[int, bool]:
        """How many of `most` bytes may pass now, and whether `cut_after` ends the connection after them."""
        with self._changed:
            size = min(most, self._faults.chunk or most)
            if direction not in connection.allowance:
                return size, False
            size = min(size, connection.allowance[direction])
            connection.allowance[direction] -= size
            is_last = connection.allowance[direction] == 0
            if is_last and self._faults.cut_once:
                self._faults.cut_after.pop(direction, None)
                for other in self._all:
                    other.allowance.pop(direction, None)
            return size, is_last

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ProxiedConnection:
    """The connection of one client through the proxy, and the bytes that passed.

    Bytes are recorded when they arrive at the proxy, before a fault delays them.
    """

    def __init__(self, proxy: FaultProxy, client: socket.socket, number: int) -> None:
        self.number = number
        self.allowance: dict[str, int] = {}  # guarded by the proxy's condition
        self.ended: threading.Event = threading.Event()
        self.closed: threading.Event = threading.Event()
        self._proxy = proxy
        self._reset = False
        self._sockets: dict[str, socket.socket] = {"to_client": client}  # by the direction that is sent to it
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._record: dict[str, bytearray] = {"to_server": bytearray(), "to_client": bytearray()}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def to_server(self) -> bytes:
        return bytes(self._record["to_server"])

    @property
    def to_client(self) -> bytes:
        return bytes(self._record["to_client"])

    def start(self, target: Callable[[], tuple[str, int]]) -> None:
        name = f"proxy-connection-{self.number}"
        thread = threading.Thread(target=self._run, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self, *, reset: bool) -> None:
        """Have both threads end and close the connection. Only the first call has an effect."""
        with self._lock:
            if self.ended.is_set():
                return
            self._reset = reset
            self.ended.set()
            self._wake_writer.close()  # the end of file wakes both threads, whenever they look
        self._proxy._wake_all()

    def join(self) -> None:
        """Wait until the sockets are closed."""
        self.closed.wait(_JOIN_TIMEOUT)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_TIMEOUT)

    def send(self, direction: Direction, data: memoryview) -> bool:
        """Send all of `data`; False when the connection has ended or is broken."""
        destination = self._sockets[direction]
        while data:
            if not self._ready(destination, select.POLLOUT):
                return False
            try:
                data = data[destination.send(data) :]
            except BlockingIOError:
                continue
            except OSError:
                self.end(reset=True)
                return False
        return True

    def _run(self, target: Callable[[], tuple[str, int]]) -> None:
        """Dial the server, then forward what the client sends; another thread forwards what the server sends."""
        try:
            server = socket.create_connection(target(), timeout=_DIAL_TIMEOUT)
        except OSError:
            self.end(reset=True)  # the connection is accepted, so it can no longer be refused
        else:
            self._carry_both_ways(server)
        self._close_sockets()

    def _carry_both_ways(self, server: socket.socket) -> None:
        self._sockets["to_server"] = server
        for one in self._sockets.values():
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # one segment per send
        name = f"proxy-connection-{self.number}-back"
        way_back = threading.Thread(target=self._carry, args=("to_client",), name=name, daemon=True)
        way_back.start()
        self._carry("to_server")
        way_back.join()  # it ends when the server closes its side, or when the connection is ended

    def _carry(self, direction: Direction) -> None:
        source = self._sockets["to_client" if direction == "to_server" else "to_server"]
        while self._ready(source, select.POLLIN):
            try:
                data = source.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                continue
            except OSError:
                self.end(reset=True)
                return
            if not data:
                self._pass_on_end(direction)
                return
            if self._proxy.record:
                self._record[direction] += data
            if not self._proxy._pass_on(self, direction, data):
                return

    def _pass_on_end(self, direction: Direction) -> None:
        """The source has sent FIN: forward it to the destination, once no black hole is active."""
        if self._proxy._wait_open(self, direction):
            try:
                self._sockets[direction].shutdown(socket.SHUT_WR)
            except OSError:
                self.end(reset=True)

    def _ready(self, one: socket.socket, event: int) -> bool:
        """Wait for the socket; False when the connection has ended meanwhile."""
        poll = select.poll()
        poll.register(one, event)
        poll.register(self._wake_reader, select.POLLIN)
        poll.poll()
        return not self.ended.is_set()

    def _close_sockets(self) -> None:
        self.end(reset=False)
        for one in self._sockets.values():
            _close(one, reset=self._reset)
        self._wake_reader.close()
        self.closed.set()


class _Acceptor:
    """The listening socket and its thread, `proxy-accept`, which ends when `close()` wakes it."""

    def __init__(self, port: int, accepted: Callable[[socket.socket], None]) -> None:
        self._port = port
        self._accepted = accepted
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_writer: socket.socket | None = None
        self.listen(True)

    def listen(self, wanted: bool) -> None:
        """Open or close the port. Returns when that is done."""
        with self._lock:
            if wanted and self._thread is None:
                self._open()
            elif not wanted and self._thread is not None:
                self._shut()

    def close(self) -> None:
        self.listen(False)

    def _open(self) -> None:
        listener = socket.create_server((HOST, self._port), backlog=128)
        listener.setblocking(False)
        wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(
            target=self._run, args=(listener, wake_reader), name=f"proxy-accept-{self._port}", daemon=True
        )
        self._thread.start()

    def _shut(self) -> None:
        assert self._thread is not None
        assert self._wake_writer is not None
        self._wake_writer.close()
        self._thread.join(_JOIN_TIMEOUT)
        self._thread = self._wake_writer = None

    def _run(self, listener: socket.socket, wake_reader: socket.socket) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(wake_reader, select.POLLIN)
        with listener, wake_reader:
            while wake_reader.fileno() not in dict(poll.poll()):
                try:
                    client, _ = listener.accept()
                except OSError:  # the client closed the connection before it was accepted
                    continue
                self._accepted(client)


def _close(one: socket.socket, *, reset: bool) -> None:
    try:
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        else:
            one.setblocking(False)
            one.shutdown(socket.SHUT_WR)
            # Unread bytes would turn the FIN into a RST.
            while one.recv(_RECEIVE_SIZE):
                pass
    except OSError:  # nothing more to read, or the other side has closed the connection
        pass
    one.close()


def _address_source(target: LocalServer | str | tuple[str, int]) -> Callable[[], tuple[str, int]]:
    """A function that returns the address to dial. It is called for each connection, because a port may change."""
    if isinstance(target, LocalServer):
        return lambda: (HOST, target.port)
    if isinstance(target, tuple):
        return lambda: target
    parts = urlsplit(target)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"the target must name a host and a port: {target!r}")
    address = (parts.hostname, parts.port)
    return lambda: address
