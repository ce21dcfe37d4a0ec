"""Opens connections from options: one for a task, or one that all code of a process shares."""

from __future__ import annotations

import os
import threading
from typing import Any

from .._log import Log
from .._platform import on_fork
from ..api.client import DEFAULT_PREFIX
from ..errors import NoServersError
from ..jetstream import JetStream
from ..net.connect import connect
from ..net.connection import Connection
from .discovered import NO_SERVERS, Discovered
from .identity import CALLER, PLANNER, TASK, identity_of, revealed
from .options import ConnectionOptions, holds_credentials
from .patience import Patience

# How long a task waits for a reply of the JetStream API: an election takes some seconds.
API_TIMEOUT = 15.0
CONNECT_SECONDS = 30.0

log: Log = Log("spark", None)

_shared: dict[tuple[int, ConnectionOptions], Connection] = {}
_lock = threading.Lock()


def connection(**options: Any) -> Connection:
    """The connection that all code of this process shares for these options, opened on first use. Thread-safe.

    For code that runs on executors: UDFs, `mapInArrow`, `foreachPartition`, `foreachBatch`. The options are those
    of the data source: servers, credentials, user, password, token, nkeySeedFile, tlsCaFile and so on, and
    nkeySeed; credentialsEnv, passwordEnv, tokenEnv and nkeySeedEnv name environment variables of this process. The
    connection stays open until the process ends; do not close it. A process that is forked later opens its own.
    Blocks while it connects. Raises what connect() raises, and ValueError for an unknown option or a variable that
    is not set.
    """
    parsed = ConnectionOptions.parse({name: str(value) for name, value in options.items() if value is not None})
    key = (os.getpid(), parsed)
    found = _usable(key)
    if found is not None:
        return found
    opened = open_connection(parsed, "spark shared", CALLER)  # not under the lock: it may take seconds
    with _lock:
        nc = _shared.get(key)
        if nc is None or nc.is_closed:
            nc = _shared[key] = opened
    if nc is not opened:
        opened.close()  # another thread was faster
    return nc


def _usable(key: tuple[int, ConnectionOptions]) -> Connection | None:
    with _lock:
        nc = _shared.get(key)
    return None if nc is None or nc.is_closed else nc


def open_connection(
    options: ConnectionOptions, name: str, process: str = PLANNER, discovered: Discovered = NO_SERVERS
) -> Connection:
    """Open a connection, which the caller closes. Blocks and raises as connect() does.

    `process` says for errors which process this is. Raises ValueError when an environment variable that the
    options name is not set in it. The `discovered` servers are tried if none of the options' servers is reachable.
    """
    keywords = {"name": name, **identity_of(options, os.environ, process), **_settings(options)}
    try:
        return connect(revealed(options.servers), **keywords)
    except NoServersError:
        configured = revealed(options.servers) or os.environ.get("NATS_URL", "")
        # Credentials in a URL are for its server only.
        if not discovered.urls or holds_credentials(configured):
            raise
    if discovered.tls_name is not None:
        keywords.setdefault("tls_hostname", discovered.tls_name)
    return connect([*configured.split(","), *discovered.urls], **keywords)


def _settings(options: ConnectionOptions) -> dict[str, Any]:
    """Keywords of connect(), without those that no option gives: its own defaults hold for them."""
    keywords = {
        "tls_ca": options.tls_ca_file,
        "tls_cert": options.tls_cert_file,
        "tls_key": options.tls_key_file,
        "tls_hostname": options.tls_hostname,
        "tls_handshake_first": options.tls_first or None,
        "connect_timeout": options.connect_timeout,
        "inbox_prefix": options.inbox_prefix,
    }
    return {name: value for name, value in keywords.items() if value is not None}


def open_patiently(
    options: ConnectionOptions,
    name: str,
    process: str = TASK,
    *,
    discovered: Discovered = NO_SERVERS,
    seconds: float = CONNECT_SECONDS,
) -> Connection:
    """Like open_connection(), but try for so many seconds while no server is reachable, and log that.

    For tasks: Spark repeats a failed task at once, and would use up all attempts while a server restarts.
    """
    patience = Patience(seconds, name, log)
    return patience.call(lambda: open_connection(options, name, process, discovered), (NoServersError,))


def jetstream_of(nc: Connection, options: ConnectionOptions, **more: Any) -> JetStream:
    prefix = options.api_prefix or DEFAULT_PREFIX
    return nc.jetstream(**{"domain": options.domain, "prefix": prefix, "timeout": API_TIMEOUT, **more})


def _after_fork_in_child() -> None:
    """The connections belong to the parent. A thread that exists only there may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


on_fork(_after_fork_in_child)
