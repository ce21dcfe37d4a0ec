"""The options of a connection. connect() checks them before it opens a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from .._deadline import seconds
from ..protocol.subjects import inbox_prefix as valid_inbox_prefix
from .auth import Authenticator
from .servers import ServerAddress, parse_servers

if TYPE_CHECKING:
    import ssl

    from .connection import Connection

DEFAULT_URL = "nats://127.0.0.1:4222"

ErrorCallback = Callable[[Exception], Any]
ConnectionCallback = Callable[["Connection"], Any]
Duration = float | timedelta


# What connect() is given for the Authenticator.
_CREDENTIALS = (
    "user",
    "password",
    "token",
    "user_credentials",
    "nkeys_seed",
    "nkeys_seed_str",
    "user_jwt_cb",
    "signature_cb",
)


class Options(NamedTuple):
    """The options of connect(), checked and converted; durations are in seconds."""

    servers: tuple[ServerAddress, ...]
    authenticator: Authenticator
    name: str | None
    tls: ssl.SSLContext | None
    tls_required: bool
    tls_hostname: str | None
    tls_handshake_first: bool
    connect_timeout: float
    allow_reconnect: bool
    max_reconnect_attempts: int | None
    retry_on_failed_connect: bool
    reconnect_time_wait: float
    reconnect_time_wait_max: float
    reconnect_jitter: float
    dont_randomize: bool
    ping_interval: float
    max_outstanding_pings: int
    pending_size: int
    drain_timeout: float
    inbox_prefix: str
    no_echo: bool
    error_cb: ErrorCallback | None
    disconnected_cb: ConnectionCallback | None
    reconnected_cb: ConnectionCallback | None
    closed_cb: ConnectionCallback | None
    discovered_server_cb: ConnectionCallback | None
    lame_duck_mode_cb: ConnectionCallback | None


def drain_timeout(options: Options, timeout: Duration | None) -> float:
    """How long a drain may take: as asked for, else as connect() was told."""
    chosen = seconds(timeout)
    return options.drain_timeout if chosen is None else chosen


def server_list(servers: str | Iterable[str] | None) -> tuple[ServerAddress, ...]:
    """The addresses of `servers`; by default of the environment variable NATS_URL, else of the local server.

    Raises ValueError for a malformed URL or an empty list, TypeError for anything but strings.
    """
    if servers is None:
        servers = os.environ.get("NATS_URL") or DEFAULT_URL
    if not isinstance(servers, Iterable):
        raise TypeError(f"servers must be a URL or a list of URLs, not {type(servers).__name__}")
    urls = servers.split(",") if isinstance(servers, str) else list(servers)
    for url in urls:
        if not isinstance(url, str):
            raise TypeError(f"servers must be URLs (str), not {type(url).__name__}")
    addresses = parse_servers([url.strip() for url in urls if url.strip()])
    if not addresses:
        raise ValueError("servers must name at least one URL")
    return addresses


def positive(value: Duration, name: str) -> float:
    """`value` in seconds. Raises ValueError unless it is more than zero."""
    checked = seconds(value, name)
    if not checked:
        raise ValueError(f"{name} must be more than zero")
    return checked


def count(value: int, name: str, least: int) -> int:
    """`value`, checked to be an int of at least `least`. Raises TypeError or ValueError, which name the option."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: {value}")
    return value


def make_options(given: Mapping[str, Any]) -> Options:
    """Check and convert the arguments of connect(). Raises ValueError or TypeError, which name the option."""
    options = dict(given)
    options["authenticator"] = Authenticator(**{name: options.pop(name) for name in _CREDENTIALS})
    tls = options["tls"]
    if isinstance(tls, bool):
        options["tls"] = None
    # No isinstance: that would import ssl, which programs without TLS never load.
    elif tls is not None and not hasattr(tls, "wrap_bio"):
        raise TypeError("tls must be an ssl.SSLContext or True")
    for name in ("name", "tls_hostname"):
        if options[name] is not None and not isinstance(options[name], str):
            raise TypeError(f"{name} must be a str")
    for name, value in options.items():
        if name.endswith("_cb") and value is not None and not callable(value):
            raise TypeError(f"{name} must be callable")
    attempts = options["max_reconnect_attempts"]
    if attempts is not None and count(attempts, "max_reconnect_attempts", -1) < 0:
        options["max_reconnect_attempts"] = None  # -1 means no limit, as in nats-py
    jitter = options["reconnect_jitter"]
    if (seconds(jitter, "reconnect_jitter") or 0.0) > 1:
        raise ValueError(f"reconnect_jitter must be between 0 and 1: {jitter}")
    options["reconnect_jitter"] = float(jitter)
    addresses = options["servers"] = server_list(options["servers"])
    options["tls_required"] = bool(tls) or options["tls_handshake_first"] or any(each.tls for each in addresses)
    for name in ("connect_timeout", "ping_interval", "drain_timeout"):
        options[name] = positive(options[name], name)
    for name in ("reconnect_time_wait", "reconnect_time_wait_max"):
        options[name] = seconds(options[name], name) or 0.0
    for name, least in (("max_outstanding_pings", 1), ("pending_size", 0)):
        count(options[name], name, least)
    options["inbox_prefix"] = valid_inbox_prefix(options["inbox_prefix"])
    return Options(**options)
