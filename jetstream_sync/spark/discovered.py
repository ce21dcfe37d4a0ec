"""Servers that the cluster advertises, passed from the driver to the tasks.

A task that starts while the configured server is away connects to one of them. They are the second choice: the
configured servers come first. Their URLs hold no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ..net.connection import Connection


@dataclass(frozen=True)
class Discovered:
    """`tls_name` is the host name that certificates must have if `urls` are IP addresses; None if they are not."""

    urls: tuple[str, ...] = ()
    tls_name: str | None = None


NO_SERVERS = Discovered()


def discovered_by(nc: Connection) -> Discovered:
    """The servers that the cluster has advertised to `nc`; none where it is told to ignore those."""
    urls = tuple(server.url for server in nc.server_pool if server.discovered)
    origin = urlsplit(nc.connected_url or "").hostname or ""
    by_address = any(_is_ip(urlsplit(url).hostname or "") for url in urls)
    return Discovered(urls, origin if by_address and origin and not _is_ip(origin) else None)


def _is_ip(host: str) -> bool:
    return ":" in host or all(part.isdecimal() for part in host.split("."))
