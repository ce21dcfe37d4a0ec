"""The options of a connection. connect() checks them before it opens a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
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


class Callbacks(NamedTuple):
    """The user's callbacks. All run on the connection's callback thread, `js-callbacks`."""

    error: ErrorCallback | None = None
    disconnected: ConnectionCallback | None = None
    reconnected: ConnectionCallback | None = None
    closed: ConnectionCallback | None = None
    discovered_server: ConnectionCallback | None = None
    lame_duck: ConnectionCallback | None = None


# An option of connect() is called `<field>_cb`, with these exceptions.
_CALLBACK_OPTIONS = {"lame_duck": "lame_duck_mode_cb"}


class Options(NamedTuple):
    """The options of connect(), checked and converted; durations are in seconds."""

    servers: tuple[ServerAddress, ...]
    authenticator: Authenticator
    name: str | None = None
    tls: ssl.SSLContext | None = None
    tls_required: bool = False
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    connect_timeout: float = 5.0
    allow_reconnect: bool = True
    max_reconnect_attempts: int | None = None
    retry_on_failed_connect: bool = False
    reconnect_time_wait: float = 0.1
    reconnect_time_wait_max: float = 5.0
    reconnect_jitter: float = 0.2
    dont_randomize: bool = False
    ping_interval: float = 120.0
    max_outstanding_pings: int = 2
    pending_size: int = 8 * 1024 * 1024
    drain_timeout: float = 30.0
    inbox_prefix: str = "_INBOX"
    no_echo: bool = False
    callbacks: Callbacks = Callbacks()


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


def make_options(
    servers: str | Iterable[str] | None,
    *,
    authenticator: Authenticator,
    callbacks: Callbacks,
    name: str | None,
    tls: ssl.SSLContext | bool | None,
    tls_hostname: str | None,
    tls_handshake_first: bool,
    connect_timeout: Duration,
    max_reconnect_attempts: int | None,
    reconnect_time_wait: Duration,
    reconnect_time_wait_max: Duration,
    reconnect_jitter: float,
    ping_interval: Duration,
    max_outstanding_pings: int,
    pending_size: int,
    drain_timeout: Duration,
    inbox_prefix: str,
    **flags: bool,
) -> Options:
    """Check and convert the options of connect(). Raises ValueError or TypeError, which name the option."""
    context = None if tls is None or isinstance(tls, bool) else tls
    # No isinstance: that would import ssl, which programs without TLS never load.
    if context is not None and not hasattr(context, "wrap_bio"):
        raise TypeError("tls must be an ssl.SSLContext or True")
    for label, text in (("name", name), ("tls_hostname", tls_hostname)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{label} must be a str")
    for label, callback in callbacks._asdict().items():
        if callback is not None and not callable(callback):
            raise TypeError(f"{_CALLBACK_OPTIONS.get(label, f'{label}_cb')} must be callable")
    if max_reconnect_attempts is not None and count(max_reconnect_attempts, "max_reconnect_attempts", -1) < 0:
        max_reconnect_attempts = None  # -1 means no limit, as in nats-py
    if (seconds(reconnect_jitter, "reconnect_jitter") or 0.0) > 1:
        raise ValueError(f"reconnect_jitter must be between 0 and 1: {reconnect_jitter}")
    addresses = server_list(servers)
    return Options(
        servers=addresses,
        authenticator=authenticator,
        callbacks=callbacks,
        name=name,
        tls=context,
        tls_required=bool(tls) or tls_handshake_first or any(address.tls for address in addresses),
        tls_hostname=tls_hostname,
        tls_handshake_first=tls_handshake_first,
        connect_timeout=positive(connect_timeout, "connect_timeout"),
        max_reconnect_attempts=max_reconnect_attempts,
        reconnect_time_wait=seconds(reconnect_time_wait, "reconnect_time_wait") or 0.0,
        reconnect_time_wait_max=seconds(reconnect_time_wait_max, "reconnect_time_wait_max") or 0.0,
        reconnect_jitter=float(reconnect_jitter),
        ping_interval=positive(ping_interval, "ping_interval"),
        max_outstanding_pings=count(max_outstanding_pings, "max_outstanding_pings", 1),
        pending_size=count(pending_size, "pending_size", 0),
        drain_timeout=positive(drain_timeout, "drain_timeout"),
        inbox_prefix=valid_inbox_prefix(inbox_prefix),
        **flags,
    )
