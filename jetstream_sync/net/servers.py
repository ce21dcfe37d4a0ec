"""Which server to connect to next, and how long to wait before. No sockets, no clock; randomness is passed in.

A pool holds the servers that the user named and those that the cluster advertised (`connect_urls`). A round tries
every server once. The wait between rounds grows exponentially, with jitter, up to a maximum.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from .._deadline import seconds
from ..errors import AuthorizationError, NatsError, ServerNotInPoolError

DEFAULT_PORT = 4222

# After so many refusals in a row a server is removed: the credentials will not become valid.
MAX_AUTHORIZATION_ERRORS = 2

# So many advertised servers are kept: a list without a bound would be tried to its end at each reconnect.
MAX_DISCOVERED = 1000

_BLANK_OR_CONTROL = re.compile(r"[\x00-\x20\x7f]")


class ServerAddress(NamedTuple):
    """The address of a server and the credentials of its URL, which repr() does not show."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = None
    tls_name: str | None = None
    """The host name that the certificate must have, where `host` is an IP address that a server advertised."""

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"

    @property
    def url(self) -> str:
        """The URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def key(self) -> tuple[str, int]:
        """Host and port: equal for URLs of the same server."""
        return (self.host.lower(), self.port)


def parse_server(url: str) -> ServerAddress:
    """Parse a URL such as `nats://user:pass@host:4222`, `tls://host` or just `host:port`.

    Raises ValueError, whose text has no credentials.
    """
    text = url if "://" in url else f"nats://{url}"
    shown = redact(url)
    if _BLANK_OR_CONTROL.search(text):
        raise ValueError(f"server URL contains blanks or control characters: {shown!r}")
    try:
        parts = urlsplit(text)
        port, valid = parts.port, True
    except ValueError:
        valid = False  # and not raised from here: the text of this error may quote a password
    if not valid:
        raise ValueError(f"not a server URL: {shown!r} (bad host or port)")
    if parts.scheme not in ("nats", "tls"):
        raise ValueError(f"server URL must start with nats:// or tls://: {shown!r}")
    if not parts.hostname or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"not a server URL (expected scheme://host:port): {shown!r}")
    return ServerAddress(
        host=parts.hostname,
        port=port if port is not None else DEFAULT_PORT,
        tls=parts.scheme == "tls",
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def redact(url: str) -> str:
    """`url` without its credentials and parameters, for error texts: everything before the last `@` is removed.

    Without an `@`, a port that is not a number is removed as well: in `nats://user:password` it is a password.
    With an `@` behind a question mark the secret may be on either side of both, and nothing is shown.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest.partition("?")[2]:
        return f"{scheme}{separator}…"
    _, at_sign, host = rest.rpartition("@")
    host = host.partition("?")[0]
    name, colon, port = host.rpartition(":")
    if colon and not at_sign and not port.rstrip("/]").isdigit():
        host = f"{name}:…"
    return f"{scheme}{separator}{host}"


def unique(addresses: Iterable[ServerAddress]) -> tuple[ServerAddress, ...]:
    """`addresses` in their order. Of several with the same host and port only the first is kept."""
    seen: dict[tuple[str, int], ServerAddress] = {}
    for address in addresses:
        seen.setdefault(address.key, address)
    return tuple(seen.values())


class PoolServer(NamedTuple):
    """A server of the pool as users see it: `nc.server_pool` lists them."""

    url: str
    """The URL, without credentials."""
    reconnects: int
    """Attempts to connect that failed since the last one that succeeded."""
    discovered: bool
    """Whether the cluster advertised it, and not the user named it."""

    @property
    def uri(self) -> SplitResult:
        """The URL in its parts, as in nats-py."""
        return urlsplit(self.url)


class Server:
    """A server of the pool, and how the attempts to connect to it went."""

    def __init__(self, address: ServerAddress, *, discovered: bool = False) -> None:
        self.address = address
        self.discovered = discovered
        self.failures = 0  # attempts that failed since the last success
        self.authorization_failures = 0
        self.last_error: BaseException | None = None

    @property
    def entry(self) -> PoolServer:
        return PoolServer(self.address.url, self.failures, self.discovered)


class ServerPool:
    """The servers to choose from. One thread at a time may change it; any thread may read `servers`."""

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        *,
        shuffle: bool = True,
        max_attempts: int | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._random = (rng or random) if shuffle else None
        self._max_attempts = max_attempts
        self._servers = self._in_order([Server(address) for address in addresses])
        self.current: Server | None = None

    def _in_order(self, servers: list[Server]) -> list[Server]:
        """`servers` in the order in which to try them."""
        return servers if self._random is None else self._random.sample(servers, len(servers))

    @property
    def servers(self) -> list[Server]:
        return list(self._servers)

    def round(self) -> list[Server]:
        """All servers in the order in which to try them. The current one, which was just lost, comes last."""
        self._servers = sorted(self._servers, key=lambda server: server is self.current)
        return list(self._servers)

    def replace(self, addresses: Sequence[ServerAddress]) -> None:
        """Take these servers in place of the present ones. What is known of those named again stays."""
        known = {server.address.key: server for server in self._servers}
        fresh = []
        for address in addresses:
            server = known.get(address.key) or Server(address)
            server.address, server.discovered = address, False
            fresh.append(server)
        self._servers = self._in_order(fresh)

    def connected(self, server: Server) -> None:
        """The connection to `server` is established: reset its failures."""
        server.failures = server.authorization_failures = 0
        server.last_error = None
        self.current = server

    def failed(self, server: Server, error: BaseException, *, reconnecting: bool) -> None:
        """Record a failed attempt. While reconnecting, a server that has failed too often is removed."""
        server.failures += 1
        server.last_error = error
        refused = isinstance(error, AuthorizationError)
        server.authorization_failures = server.authorization_failures + 1 if refused else 0
        spent = self._max_attempts is not None and server.failures >= self._max_attempts
        if reconnecting and (spent or server.authorization_failures >= MAX_AUTHORIZATION_ERRORS):
            self._servers = [other for other in self._servers if other is not server]

    def advertise(self, urls: Iterable[object]) -> bool:
        """Add the servers of the cluster's `connect_urls`, MAX_DISCOVERED at most; True when one of them is new.

        Discovered servers that are no longer advertised are removed, except the current one. A list without a
        valid address is ignored: not every server advertises others.
        """
        valid = (address for address in map(_lenient_address, urls) if address is not None)
        advertised = {address.key: address for address in islice(valid, MAX_DISCOVERED)}
        if not advertised:
            return False
        self._servers = [
            server
            for server in self._servers
            if not server.discovered or server.address.key in advertised or server is self.current
        ]
        known = {server.address.key for server in self._servers}
        fresh = [
            Server(self._complete(address), discovered=True)
            for key, address in advertised.items()
            if key not in known
        ]
        self._servers += self._in_order(fresh)
        return bool(fresh)

    def _complete(self, address: ServerAddress) -> ServerAddress:
        """An advertised address, which has no scheme or credentials, with those of the advertising server."""
        if self.current is None:
            return address
        origin = self.current.address
        name = (origin.tls_name or origin.host) if _is_ip(address.host) else None
        return origin._replace(host=address.host, port=address.port, tls_name=name)


# Chooses the server of a reconnect: gets the pool and the last INFO, returns one of them (or None) and a wait.
ReconnectHandler = Callable[[list[PoolServer], dict[str, Any]], tuple[PoolServer | None, float]]


class Choice(NamedTuple):
    """What a ReconnectHandler has chosen; without a server the pool decides."""

    server: Server | None = None
    wait: float = 0.0
    error: Exception | None = None
    """What the handler raised, or why its choice is none."""


def choose(handler: ReconnectHandler, servers: Sequence[Server], info: Mapping[str, Any]) -> Choice:
    """Ask the user's handler. Never raises: a connection must not be lost to a mistake in it."""
    try:
        selected, delay = handler([server.entry for server in servers], dict(info))
        wait = seconds(delay, "the wait that reconnect_to_server_handler returns") or 0.0
        if selected is None:
            return Choice(wait=wait)
        for server in servers:
            if server.address.url == selected.url:
                return Choice(server, wait)
        error: NatsError = ServerNotInPoolError(selected.url)
        return Choice(wait=wait, error=error)
    except Exception as failed:  # noqa: BLE001 - user code may raise anything
        return Choice(error=failed)
    except BaseException as failed:  # noqa: BLE001 - sys.exit() would end js-reader, in silence
        raised = NatsError(f"reconnect_to_server_handler raised {type(failed).__name__}")
        raised.__cause__ = failed
        return Choice(error=raised)


def _lenient_address(url: object) -> ServerAddress | None:
    """An advertised address, or None when it is malformed: that must not end the connection."""
    if not isinstance(url, str):
        return None
    try:
        return parse_server(url)
    except ValueError:
        return None


def _is_ip(host: str) -> bool:
    """Whether `host` is an IP address. Clusters often advertise those, and certificates rarely name them."""
    return ":" in host or all(part.isdecimal() for part in host.split("."))


class Backoff:
    """The waits before each round: none before the first, then exponential with jitter up to a maximum."""

    def __init__(self, first: float, most: float, jitter: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._most = max(first, most)
        self._jitter = jitter
        self._between: Callable[[float, float], float] = (rng or random).uniform
        self._round = 0

    def reset(self) -> None:
        self._round = 0

    def next_wait(self) -> float:
        """Seconds to wait before the next round."""
        self._round += 1
        if self._round == 1:
            return 0.0
        # The bound of 30 only avoids huge numbers: 2**30 times any sensible first wait exceeds the maximum. The
        # maximum leaves room for the jitter: no wait is longer than `most`.
        wait = min(self._most / (1 + self._jitter), self._first * 2.0 ** min(self._round - 2, 30))
        return wait * (1 + self._between(-self._jitter, self._jitter))
