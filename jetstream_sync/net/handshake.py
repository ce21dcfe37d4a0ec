"""From a server's address to a session that is ready to use: dial, INFO, TLS, CONNECT + PING, PONG.

Runs in the thread that connects (the caller of connect(), later the reader thread) and blocks; one deadline
covers all of it. Not one byte of credentials is sent before TLS is up when TLS is wanted by either side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _platform
from .._deadline import Deadline
from .._version import __version__
from ..errors import AuthorizationError, NatsError, ProtocolError
from ..protocol import commands
from ..protocol.parser import PONG, Err, Event, Info, Parser
from .auth import describe
from .options import Options
from .server_errors import server_error
from .servers import ServerAddress
from .transport import Transport, dial, send_all


def check_tls(options: Options) -> None:
    """Raise ValueError for TLS files that cannot be used; without them nothing is loaded."""
    if options.tls_files is not None:
        # Here and not above: see net/tls.py.
        from .tls import tls_context

        tls_context(options.tls_files)


class Session(NamedTuple):
    """An established connection to one server."""

    address: ServerAddress
    transport: Transport
    parser: Parser
    info: dict[str, Any]
    events: list[Event]
    """What came behind the PONG and is still to be handled (servers from 2.12 send a second INFO there)."""


def establish(address: ServerAddress, options: Options, on_dialed: Callable[[Transport], None]) -> Session:
    """Connect to `address`. `on_dialed` gets the pipe as soon as it exists, so that close() can abort it.

    Raises AuthorizationError, ProtocolError, TimeoutError, OSError (ssl.SSLError among them).
    """
    deadline = Deadline(options.connect_timeout)
    wire = dial(address.host, address.port, deadline)
    try:
        on_dialed(wire)
        return _Handshake(wire, address, options, deadline).run()
    except BaseException:
        wire.close()
        raise


class _Handshake:
    def __init__(self, wire: Transport, address: ServerAddress, options: Options, deadline: Deadline) -> None:
        self._address = address
        self._options = options
        self._deadline = deadline
        self._transport = wire
        self._encrypted = False
        self._parser = Parser()
        self._events: list[Event] = []
        self._tried = ""  # the credentials that were sent, without their secrets

    def run(self) -> Session:
        if self._options.tls_handshake_first:
            self._upgrade()
        info = self._first_info()
        if not self._options.tls_handshake_first and self._wants_tls(info):
            if self._parser.buffered or self._events:  # not of the server that we are about to verify
                raise ProtocolError("the server sent data before the TLS handshake: refused")
            self._upgrade()
        connect = commands.connect(self._connect_options(info))
        send_all(self._transport, connect + commands.PING, self._deadline)
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
        from .tls import start_tls, tls_context

        # Files are read at each connect: certificates are replaced before they expire.
        context = self._options.tls or tls_context(self._options.tls_files)
        self._transport = start_tls(self._transport, context, hostname, self._deadline)
        self._encrypted = True

    def _first_info(self) -> dict[str, Any]:
        event = self._next_event()
        if not isinstance(event, Info):
            raise ProtocolError("the server did not begin with INFO: is this a NATS server?")
        return event.fields

    def _connect_options(self, info: dict[str, Any]) -> dict[str, Any]:
        credentials = self._options.authenticator.connect_fields(
            info.get("nonce"), self._address.user, self._address.password
        )
        self._tried = describe(credentials)
        return {
            "verbose": False,
            "pedantic": False,
            "lang": "python-jetstream-sync",
            "version": __version__,
            "name": self._options.name or "",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "echo": not self._options.no_echo,
            "tls_required": self._encrypted,
            **credentials,
        }

    def _until_pong(self, info: dict[str, Any]) -> dict[str, Any]:
        while True:
            event = self._next_event()
            if event is PONG:
                return info
            if isinstance(event, Info):
                info = event.fields

    def _next_event(self) -> Event:
        while not self._events:
            data = self._transport.recv_some(self._deadline)
            if not data:
                raise ConnectionResetError("the server closed the connection during the handshake")
            self._events.extend(self._parser.feed(data))
            if self._parser.error is not None and not self._events:
                raise self._parser.error
        event = self._events.pop(0)
        if isinstance(event, Err):
            error = server_error(event.text)
            if isinstance(error, AuthorizationError) and self._tried:
                raise AuthorizationError(f"{error}; tried: {self._tried}", credentials=self._tried)
            raise error
        return event


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
    if not isinstance(error, Exception):
        return _replace(error, f"a callable of the program raised {type(error).__name__}")
    if isinstance(error, OSError) and not isinstance(error, ConnectionError) and _platform.is_lost(error):
        return _replace(error, f"the connection was lost: {error}")
    return error


def _replace(error: BaseException, text: str) -> BaseException:
    explained = ConnectionError(text)
    explained.__cause__ = error
    return explained
