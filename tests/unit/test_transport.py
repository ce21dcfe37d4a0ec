"""The byte pipe: a send never blocks its caller."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from jetstream_sync._deadline import FOREVER
from jetstream_sync.net.transport import PlainTransport


@contextmanager
def pipe() -> Iterator[tuple[PlainTransport, socket.socket]]:
    """A transport and the other end of it."""
    ours, theirs = socket.socketpair()
    transport = PlainTransport(ours)
    with theirs, closing(transport):
        yield transport, theirs


def test_flush_now_returns_when_the_socket_is_full() -> None:
    """With nobody reading at the other end flush_now() says that something is left, instead of waiting."""
    with pipe() as (transport, _):
        transport.outgoing = bytes(16 * 1024 * 1024)
        results: list[bool] = []
        sender = threading.Thread(target=lambda: results.append(transport.flush_now()), daemon=True)
        sender.start()
        sender.join(5)
        blocked = sender.is_alive()
        transport.abort()  # frees a sender that waits after all
        sender.join(5)
        assert not blocked
        assert results == [False]


def test_wait_writable_takes_any_timeout() -> None:
    """A timeout of a century (a connection that never pings) is no error, and the wait ends when there is room."""
    with pipe() as (transport, _):
        assert transport.wait_writable(FOREVER)
