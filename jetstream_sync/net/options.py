"""The options of a connection. connect() checks them before it opens a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from .._deadline import seconds
from ..protocol.subjects import inbox_prefix as valid_inbox_prefix
from .auth import Authenticator
from .servers import ReconnectHandler, ServerAddress

if TYPE_CHECKING:
    import ssl

    from .connection import Connection

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


class TlsFiles(NamedTuple):
    """Paths of PEM files: the CAs to trust, the client's certificate and its key (None: it is with the former)."""

    ca: str | None
    cert: str | None
    key: str | None


class Options(NamedTuple):
    """The options of connect(), checked and converted; durations are in seconds."""

    servers: tuple[ServerAddress, ...]
    authenticator: Authenticator
    name: str | None
    tls: ssl.SSLContext | None
    tls_files: TlsFiles | None
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
    ignore_discovered_servers: bool
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
    reconnect_to_server_handler: ReconnectHandler | None


def drain_timeout(options: Options, timeout: Duration | None) -> float:
    """How long a drain may take: as asked for, else as connect() was told."""
    chosen = seconds(timeout)
    return options.drain_timeout if chosen is None else chosen


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


def _tls_files(options: dict[str, Any]) -> TlsFiles | None:
    """Takes the three paths out of `options`."""
    paths: list[str | None] = []
    for name in ("tls_ca", "tls_cert", "tls_key"):
        path = options.pop(name)
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{name} must be a path, not {type(path).__name__}")
        if path is not None and not os.fsdecode(path):
            raise ValueError(f"{name} is empty: leave it out, or pass None, to connect without it")
        paths.append(None if path is None else os.path.expanduser(os.fsdecode(path)))
    files = TlsFiles(*paths)
    if files.key is not None and files.cert is None:
        raise ValueError("tls_key needs tls_cert")
    return None if files == (None, None, None) else files


def make_options(given: Mapping[str, Any]) -> Options:
    """Check and convert the settings of a connection; `servers` are addresses.

    Raises ValueError or TypeError, which name the option.
    """
    options = dict(given)
    options["authenticator"] = Authenticator(**{name: options.pop(name) for name in _CREDENTIALS})
    tls = options["tls"]
    files = options["tls_files"] = _tls_files(options)
    if files is not None and tls not in (None, True):
        raise ValueError("tls_ca, tls_cert and tls_key contradict the tls that is given: leave one of them out")
    if isinstance(tls, bool):
        options["tls"] = None
    # No isinstance: that would import ssl, which programs without TLS never load.
    elif tls is not None and not hasattr(tls, "wrap_bio"):
        raise TypeError("tls must be an ssl.SSLContext or True")
    for name in ("name", "tls_hostname"):
        if options[name] is not None and not isinstance(options[name], str):
            raise TypeError(f"{name} must be a str")
    for name, value in options.items():
        if name.endswith(("_cb", "_handler")) and value is not None and not callable(value):
            raise TypeError(f"{name} must be callable")
    attempts = options["max_reconnect_attempts"]
    if attempts is not None and count(attempts, "max_reconnect_attempts", -1) < 0:
        options["max_reconnect_attempts"] = None  # -1 means no limit, as in nats-py
    jitter = options["reconnect_jitter"]
    if (seconds(jitter, "reconnect_jitter") or 0.0) > 1:
        raise ValueError(f"reconnect_jitter must be between 0 and 1: {jitter}")
    options["reconnect_jitter"] = float(jitter)
    in_urls = any(address.tls for address in options["servers"])
    options["tls_required"] = bool(tls) or files is not None or options["tls_handshake_first"] or in_urls
    for name in ("connect_timeout", "ping_interval", "drain_timeout"):
        options[name] = positive(options[name], name)
    for name in ("reconnect_time_wait", "reconnect_time_wait_max"):
        options[name] = seconds(options[name], name) or 0.0
    for name, least in (("max_outstanding_pings", 1), ("pending_size", -1)):
        count(options[name], name, least)
    options["inbox_prefix"] = valid_inbox_prefix(options["inbox_prefix"])
    return Options(**options)
