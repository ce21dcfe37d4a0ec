"""connect(): from options to a connection."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from .._deadline import Deadline
from .._log import Log
from ..errors import SubscriptionClosedError, did_you_mean
from .auth import Credentials, Secret, SignatureCallback, UserJwtCallback
from .connection import Connection, hand_back, link_of
from .handshake import check_tls
from .open_links import links
from .options import ConnectionCallback, Duration, ErrorCallback, make_options
from .servers import ReconnectHandler
from .settings import resolve

# How long the end of the interpreter may wait for a server that is slow to take the last messages.
EXIT_SECONDS = 1.0

# A context is a few hundred bytes. A path to something else is not read to its end.
MAX_FILE_SIZE = 1 << 20

if TYPE_CHECKING:
    import ssl

P = ParamSpec("P")


def read_text(path: str) -> str:
    """The text of a file. Raises OSError, and UnicodeDecodeError, which is a ValueError."""
    with open(path, encoding="utf-8") as file:
        return file.read(MAX_FILE_SIZE)


def _with_settings(function: Callable[P, Connection]) -> Callable[P, Connection]:
    """Complete the arguments that a call has by what URL, environment and context say; see net/settings.py.

    Only a wrapper can tell an argument that is given from a default that has the same value.
    """
    defaults = function.__kwdefaults__ or {}

    @wraps(function)
    def connect(*args: P.args, **keywords: P.kwargs) -> Connection:
        if len(args) > 1 or (args and "servers" in keywords):
            return function(*args, **keywords)  # raises TypeError
        for name in keywords.keys() - {"servers", *defaults}:
            hint = did_you_mean(name, defaults)
            raise TypeError(f"connect() got an unexpected keyword argument {name!r}{hint}")
        given = {**keywords, **({"servers": args[0]} if args else {})}
        # None stands for an option that is not given, where that is its default.
        unset = [name for name, value in given.items() if value is None and defaults.get(name) is None]
        for name in unset:
            del given[name]
        settings = resolve(given, os.environ, read_text)
        label = settings.values.get("name")
        Log("connection", label if isinstance(label, str) else None).debug("settings: %s", settings)
        return function(**settings.values)  # type: ignore[call-arg]

    return connect


@_with_settings
def connect(
    servers: str | Iterable[str] | None = None,
    *,
    name: str | None = None,
    user: Secret | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    user_credentials: Credentials | None = None,
    nkeys_seed: str | os.PathLike[str] | None = None,
    nkeys_seed_str: str | None = None,
    user_jwt_cb: UserJwtCallback | None = None,
    signature_cb: SignatureCallback | None = None,
    tls: ssl.SSLContext | bool | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
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
    ignore_discovered_servers: bool = False,
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
    reconnect_to_server_handler: ReconnectHandler | None = None,
) -> Connection:
    """Connect to a NATS server or cluster. Blocks up to `connect_timeout` seconds per server tried.

    `servers` is a URL, a comma-separated string or a list; by default the environment's NATS_URL, else
    nats://127.0.0.1:4222. `dont_randomize` tries them in that order. `ignore_discovered_servers` leaves out those
    that the cluster advertises. `name` is what the server's monitoring shows.

    What is not given as an argument may be a parameter of the URL, as in
    `tls://host?tls_ca=/etc/ca.pem&name=shop`, or in the environment: NATS_USER, NATS_PASSWORD, NATS_TOKEN,
    NATS_CREDS, NATS_NKEY, NATS_CA, NATS_CERT, NATS_KEY, NATS_CONTEXT (docs/connecting.md).

    Credentials: `user`, `password` and `token` may be callables, asked at each (re)connect; `user_credentials` is
    a .creds file, read anew each time, or the text of one; `nkeys_seed` is a file with a seed, `nkeys_seed_str`
    the seed itself; with `user_jwt_cb` and `signature_cb` the program supplies the JWT and signs the server's
    nonce itself. `tls` is an ssl.SSLContext, or True for the default one; `tls_ca`, `tls_cert` and `tls_key` are
    PEM files, read anew each time; `tls_hostname` is the name that the certificate must have, and
    `tls_handshake_first` begins with TLS before the server has spoken.

    A lost connection is made again unless `allow_reconnect` is False; with `retry_on_failed_connect` so is one
    that never was, in the background. `max_reconnect_attempts` counts per server; None, or -1, means for ever. The
    wait between rounds grows from `reconnect_time_wait` to `reconnect_time_wait_max` seconds, give or take the
    share `reconnect_jitter`. Every `ping_interval` seconds the server is asked for a sign of life;
    `max_outstanding_pings` without an answer mean that the connection is lost. While it is, up to `pending_size`
    bytes of publishes are kept; -1 keeps none. `drain_timeout` is how long drain() may take. `inbox_prefix` begins
    the subjects of replies. With `no_echo` the connection does not receive what it publishes itself.

    Callbacks take one argument, run on a thread of the library's own, and may call any method: `error_cb` gets the
    exception, `disconnected_cb`, `reconnected_cb`, `closed_cb`, `discovered_server_cb` and `lame_duck_mode_cb` get
    the connection. `reconnect_to_server_handler` gets the pool (a list of PoolServer) and the last INFO, and
    returns the server to try next, or None, and the seconds to wait before; it runs while there is no connection
    and must not block.

    Raises NoServersError, which names each server tried and why it failed; AuthorizationError when the credentials
    were refused; ValueError or TypeError for options that make no sense, before anything is sent.
    """
    options = make_options(locals())
    check_tls(options)
    nc = Connection(options)
    link_of(nc).connect()
    return nc


def _flush_at_exit() -> None:
    """A script that ends without close() still gets its acks and publishes out, if the server takes them soon.

    What its consumes have buffered goes back. They end as by stop(): a loop in a daemon thread, without an error.
    """
    deadline = Deadline(EXIT_SECONDS)
    for link in list(links):
        if link.forked:
            continue
        link.outbox.flush()
        if not deadline.expired:
            hand_back(link, SubscriptionClosedError("the interpreter exits"), idle=False)
        # The writer thread may be busy with a full socket, and ends with the interpreter.
        while link.connected and not link.outbox.idle and not deadline.expired:
            time.sleep(0.005)


atexit.register(_flush_at_exit)
