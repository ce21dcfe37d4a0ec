"""Fake servers for tests of the connection: scripted ones, and one that drops every client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from jetstream_sync.testing import PeerConnection

# Options of a connection that tries again at once.
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05, "connect_timeout": 1.0}


def serve(conn: PeerConnection, **info: Any) -> None:
    """A script that does the handshake and answers pings until the client closes the connection."""
    conn.handshake(**info)
    answer_pings(conn)


def answer_pings(conn: PeerConnection) -> None:
    while True:
        if conn.expect_line(timeout=60) == b"PING":
            conn.send(b"PONG\r\n")


class CountingListener:
    """Accepts each connection, records when, passes it to `treat`, and closes it."""

    def __init__(self, port: int, treat: Callable[[socket.socket], None]) -> None:
        self.times: list[float] = []
        self._treat = treat
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.05)
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            self.times.append(time.monotonic())
            with client:
                self._treat(client)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self._listener.close()


def drop(client: socket.socket) -> None:
    """Send nothing: the listener closes the connection."""
