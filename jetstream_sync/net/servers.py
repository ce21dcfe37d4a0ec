"""Which server to try next, and when. Pure: no sockets, no clock, no randomness but what is passed in.

A pool holds the servers the user named and those the cluster advertised (`connect_urls`). Each round tries
every server once; between rounds the wait grows exponentially with jitter up to a cap.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..errors import AuthorizationError

DEFAULT_PORT = 4222

# So many in a row from the same server: its credentials will not get better, and it is given up.
MAX_AUTHORIZATION_ERRORS = 2

_BLANK_OR_CONTROL = re.compile(r"[\x00-\x20\x7f]")


class ServerAddress(NamedTuple):
    """Where a server is and what its URL said; credentials in it never show in repr."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = None
    tls_name: str | None = None
    """The host name to verify when `host` is an address that another server advertised."""

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"

    @property
    def url(self) -> str:
        """The URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def key(self) -> tuple[str, int]:
        return (self.host.lower(), self.port)


def parse_server(url: str) -> ServerAddress:
    """A server URL such as `nats://user:pass@host:4222`, `tls://host` or plain `host:port`."""
    text = url if "://" in url else f"nats://{url}"
    shown = redact(url)
    if _BLANK_OR_CONTROL.search(text):
        raise ValueError(f"server URL contains blanks or control characters: {shown!r}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its text quotes what may be a password: not chained
        raise ValueError(f"not a server URL: {shown!r} (bad host or port)") from None
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
    """`url` without what stands before the last `@`: credentials never reach an error text.

    Where there is no `@`, a port that is no number goes, too: in `nats://user:password` it is none.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    _, at_sign, host = rest.rpartition("@")
    name, colon, port = host.rpartition(":")
    if colon and not at_sign and not port.rstrip("/]").isdigit():
        host = f"{name}:…"
    return f"{scheme}{separator}{host}"


def parse_servers(urls: Iterable[str]) -> tuple[ServerAddress, ...]:
    """Parse `urls`, dropping repetitions of one host and port."""
    seen: dict[tuple[str, int], ServerAddress] = {}
    for url in urls:
        address = parse_server(url)
        seen.setdefault(address.key, address)
    return tuple(seen.values())


class Server:
    """One server in the pool and what happened with it."""

    def __init__(self, address: ServerAddress, *, discovered: bool = False) -> None:
        self.address = address
        self.discovered = discovered
        self.failures = 0  # attempts that failed since the last success
        self.authorization_failures = 0
        self.last_error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Server {self.address.url}>"


class ServerPool:
    """The servers to choose from. Owned by whichever thread connects; not thread-safe by itself."""

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        *,
        shuffle: bool = True,
        max_attempts: int | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._shuffled: Callable[[list[Server]], None] = (rng or random).shuffle
        self._max_attempts = max_attempts
        self._shuffle = shuffle
        self._servers = [Server(address) for address in addresses]
        if shuffle:
            self._shuffled(self._servers)
        self.current: Server | None = None

    @property
    def servers(self) -> list[Server]:
        return list(self._servers)

    def round(self) -> list[Server]:
        """All servers in the order to try them: the current (just lost) one last."""
        if self.current in self._servers:
            self._servers.remove(self.current)
            self._servers.append(self.current)
        return list(self._servers)

    def connected(self, server: Server) -> None:
        """`server` took us in: forget its failures."""
        server.failures = server.authorization_failures = 0
        server.last_error = None
        self.current = server

    def failed(self, server: Server, error: BaseException, *, reconnecting: bool) -> None:
        """Note a failed attempt; while reconnecting a server that used up its chances leaves the pool."""
        server.failures += 1
        server.last_error = error
        if isinstance(error, AuthorizationError):
            server.authorization_failures += 1
        else:
            server.authorization_failures = 0
        spent = self._max_attempts is not None and server.failures >= self._max_attempts
        if reconnecting and (spent or server.authorization_failures >= MAX_AUTHORIZATION_ERRORS):
            self._servers.remove(server)

    def advertise(self, urls: Iterable[object]) -> bool:
        """Take over the cluster's `connect_urls`; True when a server was new.

        Discovered servers that are no longer advertised leave, except the one in use. A list without any
        address tells nothing (a server may not advertise, or talk nonsense): it changes nothing.
        """
        origin = self.current.address if self.current else None
        advertised = {address.key: address for address in map(_lenient_address, urls) if address is not None}
        if not advertised:
            return False
        self._servers = [
            server
            for server in self._servers
            if not server.discovered or server.address.key in advertised or server is self.current
        ]
        known = {server.address.key for server in self._servers}
        fresh = [
            Server(_inherit(address, origin), discovered=True)
            for key, address in advertised.items()
            if key not in known
        ]
        if self._shuffle:
            self._shuffled(fresh)
        self._servers.extend(fresh)
        return bool(fresh)


def _lenient_address(url: object) -> ServerAddress | None:
    """An advertised address, or None: a malformed one is the cluster's mistake, not a reason to fail."""
    if not isinstance(url, str):
        return None
    try:
        return parse_server(url)
    except ValueError:
        return None


def _inherit(address: ServerAddress, origin: ServerAddress | None) -> ServerAddress:
    """Advertised addresses carry no scheme, credentials or host name: those of the advertising server hold."""
    if origin is None:
        return address
    return ServerAddress(
        host=address.host,
        port=address.port,
        tls=origin.tls,
        user=origin.user,
        password=origin.password,
        tls_name=(origin.tls_name or origin.host) if _is_ip(address.host) else None,
    )


def _is_ip(host: str) -> bool:
    """Clusters often advertise bare addresses, which no certificate names."""
    return ":" in host or all(part.isdecimal() for part in host.split("."))


class Backoff:
    """Waits between rounds: none before the first, then exponential with jitter up to a cap."""

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
        wait = 0.0
        if self._round > 0:
            # 2**30 times any sensible first wait is far beyond the cap; the bound only avoids huge integers.
            # The cap leaves room for the jitter: no wait is longer than the longest asked for.
            wait = min(self._most / (1 + self._jitter), self._first * 2.0 ** min(self._round - 1, 30))
            wait *= 1 + self._between(-self._jitter, self._jitter)
        self._round += 1
        return wait
