"""connect(): from options to a connection."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .._deadline import Deadline
from .auth import Credentials, Secret, SignatureCallback, UserJwtCallback
from .connection import Connection, link_of
from .link import links
from .options import ConnectionCallback, Duration, ErrorCallback, make_options

# How long the end of the interpreter may wait for a server that is slow to take the last messages.
EXIT_SECONDS = 1.0

if TYPE_CHECKING:
    import ssl


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    name: str | None = None,
    user: Secret | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    user_credentials: Credentials | None = None,
    nkeys_seed: str | None = None,
    nkeys_seed_str: str | None = None,
    user_jwt_cb: UserJwtCallback | None = None,
    signature_cb: SignatureCallback | None = None,
    tls: ssl.SSLContext | bool | None = None,
    tls_hostname: str | None = None,
    tls_handshake_first: bool = False,
    connect_timeout: Duration = 5.0,
    allow_reconnect: bool = True,
    max_reconnect_attempts: int | None = None,
    retry_on_failed_connect: bool = False,
    reconnect_time_wait: Duration = 0.1,
    reconnect_time_wait_max: Duration = 5.0,
    reconnect_jitter: float = 0.2,
    dont_randomize: bool = False,
    ping_interval: Duration = 120.0,
    max_outstanding_pings: int = 2,
    pending_size: int = 8 * 1024 * 1024,
    drain_timeout: Duration = 30.0,
    inbox_prefix: str = "_INBOX",
    no_echo: bool = False,
    error_cb: ErrorCallback | None = None,
    disconnected_cb: ConnectionCallback | None = None,
    reconnected_cb: ConnectionCallback | None = None,
    closed_cb: ConnectionCallback | None = None,
    discovered_server_cb: ConnectionCallback | None = None,
    lame_duck_mode_cb: ConnectionCallback | None = None,
) -> Connection:
    """Connect to a NATS server or cluster. Blocks up to `connect_timeout` seconds per server tried.

    `servers` is a URL, a comma-separated string or a list; by default the environment's NATS_URL, else
    nats://127.0.0.1:4222. `user`, `password` and `token` may be callables, asked at each (re)connect;
    `user_credentials` is a .creds file, read anew each time. `tls` is an ssl.SSLContext, or True for the default
    one. `max_reconnect_attempts` counts per server; None means for ever. Callbacks take one argument (`error_cb`
    the exception, the others the connection), run on a thread of the library's own, and may call any method.

    Raises NoServersError, which names each server tried and why it failed; AuthorizationError when the
    credentials were refused; ValueError or TypeError for options that make no sense, before anything is sent.
    """
    nc = Connection(make_options(locals()))
    link_of(nc).connect()
    return nc


def _flush_at_exit() -> None:
    """A script that ends without close() still gets its acks and publishes out, if the server takes them soon."""
    deadline = Deadline(EXIT_SECONDS)
    for link in list(links):
        if link.forked:
            continue
        link.outbox.flush()
        # The writer thread may be busy with a full socket, and ends with the interpreter.
        while link.connected and not link.outbox.idle and not deadline.expired:
            time.sleep(0.005)


atexit.register(_flush_at_exit)
