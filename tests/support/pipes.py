"""A transport over a socket pair, for tests of what is below the connection."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from jetstream_sync.net.transport import PlainTransport


class Pipe:
    """A transport, and `peer`: the socket at its other end. `size` makes the buffers of both sockets small."""

    def __init__(
        self, transport: Callable[[socket.socket], Any] = PlainTransport, *, size: int | None = None
    ) -> None:
        ours, self.peer = socket.socketpair()
        if size is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        self.transport = transport(ours)
        self.received = bytearray()

    def start_reading(self, pause: float = 0.0) -> threading.Thread:
        """Have a thread read at the peer, with pauses now and then, until the transport is closed."""
        thread = threading.Thread(target=self._read, args=(pause,), daemon=True)
        thread.start()
        return thread

    def _read(self, pause: float) -> None:
        rng = random.Random(1)
        while data := self.peer.recv(rng.choice((1, 100, 3000))):
            self.received += data
            if pause and rng.random() < 0.05:
                time.sleep(pause)

    def close(self) -> None:
        self.transport.close()
        self.peer.close()
