"""Opens connections from options: one for a task, or one that all code of a process shares."""

from __future__ import annotations

import os
import ssl
import threading
import time
from typing import Any

from .._platform import on_fork
from ..api.client import DEFAULT_PREFIX
from ..errors import NoServersError
from ..jetstream import JetStream
from ..net.connect import connect
from ..net.connection import Connection
from .options import ConnectionOptions, Secret

# How long a task waits for a reply of the JetStream API: an election takes some seconds.
API_TIMEOUT = 15.0
CONNECT_SECONDS = 30.0
CONNECT_PAUSE = 0.25

_shared: dict[tuple[int, ConnectionOptions], Connection] = {}
_lock = threading.Lock()


def connection(**options: Any) -> Connection:
    """The connection that all code of this process shares for these options, opened on first use. Thread-safe.

    For code that runs on executors: UDFs, `mapInArrow`, `foreachPartition`, `foreachBatch`. The options are those
    of the data source: servers, credentials, user, password, token, tlsCaFile, tlsCertFile, tlsKeyFile. The
    connection stays open until the process ends; do not close it. A process that is forked later opens its own.
    Blocks while it connects. Raises what connect() raises, and ValueError for an unknown option.
    """
    parsed = ConnectionOptions.parse({name: str(value) for name, value in options.items() if value is not None})
    key = (os.getpid(), parsed)
    with _lock:
        nc = _shared.get(key)
        if nc is None or nc.is_closed:
            nc = _shared[key] = open_connection(parsed, "spark shared")
        return nc


def open_connection(options: ConnectionOptions, name: str) -> Connection:
    """Open a connection, which the caller closes. Blocks and raises as connect() does."""
    return connect(
        _revealed(options.servers),
        name=name,
        user_credentials=options.credentials,
        user=_revealed(options.user),
        password=_revealed(options.password),
        token=_revealed(options.token),
        tls=_tls_context(options),
    )


def open_patiently(options: ConnectionOptions, name: str) -> Connection:
    """Like open_connection(), but try for half a minute while no server is reachable.

    For tasks: Spark repeats a failed task at once, and would use up all attempts while a server restarts.
    """
    gives_up = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return open_connection(options, name)
        except NoServersError:
            if time.monotonic() >= gives_up:
                raise
            time.sleep(CONNECT_PAUSE)


def jetstream_of(nc: Connection, options: ConnectionOptions, **more: Any) -> JetStream:
    prefix = options.api_prefix or DEFAULT_PREFIX
    return nc.jetstream(domain=options.domain, prefix=prefix, timeout=API_TIMEOUT, **more)


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.value


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    if options.tls_ca_file is None and options.tls_cert_file is None:
        return None
    context = ssl.create_default_context(cafile=options.tls_ca_file)
    if options.tls_cert_file is not None:
        context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
    return context


def _after_fork_in_child() -> None:
    """The connections belong to the parent. A thread that exists only there may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


on_fork(_after_fork_in_child)
