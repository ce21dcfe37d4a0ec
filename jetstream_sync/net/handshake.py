"""From a server's address to a session that is ready to use: dial, INFO, TLS, CONNECT + PING, PONG.

Runs in the thread that connects (the caller of connect(), later the reader thread) and blocks; one deadline
covers all of it. Not one byte of credentials is sent before TLS is up when TLS is wanted by either side.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from .._deadline import Deadline
from .._version import __version__
from ..errors import NatsError, ProtocolError
from ..protocol import commands
from ..protocol.parser import PONG, Err, Event, Info, Parser
from .options import Options
from .server_errors import server_error
from .servers import ServerAddress
from .transport import PlainTransport, dial, recv_some, refuse_early_bytes


class Session:
    """An established connection to one server."""

    def __init__(
        self,
        address: ServerAddress,
        transport: PlainTransport,
        parser: Parser,
        info: dict[str, Any],
        events: list[Event],
    ) -> None:
        self.address = address
        self.transport = transport
        self.parser = parser
        self.info = info
        self.events = events
        """What came behind the PONG and is still to be handled (servers from 2.12 send a second INFO there)."""


def establish(
    address: ServerAddress, options: Options, on_socket: Callable[[socket.socket], None] = lambda _: None
) -> Session:
    """Connect to `address`. `on_socket` sees the socket as soon as it exists, so that close() can break it.

    Raises AuthorizationError, ProtocolError, TimeoutError, OSError (ssl.SSLError among them).
    """
    deadline = Deadline(options.connect_timeout)
    sock = dial(address.host, address.port, deadline)
    try:
        on_socket(sock)
        session = _Handshake(sock, address, options, deadline).run()
        sock.settimeout(None)  # from here the reader blocks in recv; abort() ends it
        return session
    except BaseException:
        sock.close()
        raise


class _Handshake:
    def __init__(self, sock: socket.socket, address: ServerAddress, options: Options, deadline: Deadline) -> None:
        self._address = address
        self._options = options
        self._deadline = deadline
        self._transport = PlainTransport(sock)
        self._parser = Parser()
        self._events: list[Event] = []

    def run(self) -> Session:
        if self._options.tls_handshake_first:
            self._upgrade()
        info = self._first_info()
        if not self._options.tls_handshake_first and self._wants_tls(info):
            refuse_early_bytes(self._parser.buffered + len(self._events))
            self._upgrade()
        self._send(commands.connect(self._connect_options(info)) + commands.PING)
        info = self._until_pong(info)
        return Session(self._address, self._transport, self._parser, info, self._events)

    def _wants_tls(self, info: dict[str, Any]) -> bool:
        wanted = self._options.tls_required or self._options.tls is not None or self._address.tls
        if wanted and not (info.get("tls_required") or info.get("tls_available")):
            # Never a fallback to plaintext.
            raise ProtocolError("TLS was asked for, but the server does not offer it: not connecting")
        return wanted or bool(info.get("tls_required"))

    def _upgrade(self) -> None:
        hostname = self._options.tls_hostname or self._address.tls_name or self._address.host
        # Here and not above: see net/tls.py.
        from .tls import start_tls

        self._transport = start_tls(self._transport.sock, self._options.tls, hostname, self._deadline)

    def _first_info(self) -> dict[str, Any]:
        event = self._next_event()
        if isinstance(event, Err):
            raise server_error(event.text)
        if not isinstance(event, Info):
            raise ProtocolError("the server did not begin with INFO: is this a NATS server?")
        return event.fields

    def _connect_options(self, info: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python-jetstream-sync",
            "version": __version__,
            "name": self._options.name or "",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "echo": not self._options.no_echo,
            "tls_required": self._transport.encrypted,
        }
        nonce = info.get("nonce")
        fields.update(
            self._options.authenticator.connect_fields(nonce, self._address.user, self._address.password)
        )
        return fields

    def _until_pong(self, info: dict[str, Any]) -> dict[str, Any]:
        while True:
            event = self._next_event()
            if event is PONG:
                return info
            if isinstance(event, Err):
                raise server_error(event.text)
            if isinstance(event, Info):
                info = event.fields

    def _next_event(self) -> Event:
        while not self._events:
            data = self._recv()
            self._events.extend(self._parser.feed(data))
            if self._parser.error is not None and not self._events:
                raise self._parser.error
        return self._events.pop(0)

    def _recv(self) -> bytes:
        data = recv_some(self._transport.sock, self._deadline)
        if not data:
            raise ConnectionResetError("the server closed the connection during the handshake")
        return self._transport.absorb(data)

    def _send(self, data: bytes) -> None:
        self._transport.outgoing = data
        while not self._transport.flush_now():
            if not self._transport.wait_writable(self._deadline.remaining() or 0.001):
                raise TimeoutError("the server did not take CONNECT in time")


def explain(error: BaseException) -> BaseException:
    """`error` of a failed attempt with a text that says what to do, where the original does not."""
    if isinstance(error, NatsError):
        return error
    if type(error).__module__ == "ssl":  # by name: without TLS the module is not loaded
        refused = getattr(error, "verify_message", None)
        if refused:
            return _replace(error, f"TLS certificate refused: {refused}")
        return _replace(error, f"TLS handshake failed: {getattr(error, 'reason', None) or error}")
    if isinstance(error, TimeoutError):
        return _replace(error, "timed out")
    return error


def _replace(error: BaseException, text: str) -> BaseException:
    explained = ConnectionError(text)
    explained.__cause__ = error
    return explained
