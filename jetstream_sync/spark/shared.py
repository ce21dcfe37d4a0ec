"""Connections from options: one for a task, or one that all code of a process shares."""

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

# A task waits this long for an answer of the JetStream API: elections take some seconds.
API_TIMEOUT = 15.0
CONNECT_SECONDS = 30.0
CONNECT_PAUSE = 0.25

_shared: dict[tuple[int, ConnectionOptions], Connection] = {}
_lock = threading.Lock()


def connection(**options: Any) -> Connection:
    """This process's shared connection for `options`, made on first use. Thread-safe.

    For code that runs on executors: UDFs, `mapInArrow`, `foreachPartition`, `foreachBatch`. The options are
    those of the data source: servers, credentials, user, password, token, tlsCaFile, tlsCertFile, tlsKeyFile.
    It stays open until the process ends; do not close it. A process forked later makes its own.
    Blocks while it connects; raises what connect() raises, and ValueError for an option it does not know.
    """
    parsed = ConnectionOptions.parse({name: str(value) for name, value in options.items() if value is not None})
    key = (os.getpid(), parsed)
    with _lock:
        nc = _shared.get(key)
        if nc is None or nc.is_closed:
            nc = _shared[key] = open_connection(parsed, "spark shared")
        return nc


def open_connection(options: ConnectionOptions, name: str) -> Connection:
    """A connection of the caller's own, to be closed by the caller."""
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
    """Like open_connection(), but a server that is away is given half a minute to come back.

    For tasks: Spark starts a failed one again at once, and would use up all its tries while a server restarts.
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
    """What the parent shared is the parent's; its lock may be held by a thread that is not here."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


on_fork(_after_fork_in_child)
