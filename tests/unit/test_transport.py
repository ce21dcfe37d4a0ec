"""The transport: a send never blocks its caller."""

from __future__ import annotations

import socket
import threading

from jetstream_sync._deadline import FOREVER
from jetstream_sync.net.transport import PlainTransport


def test_flush_now_returns_when_the_socket_is_full() -> None:
    """While the other end does not read, flush_now() returns that something is left, instead of waiting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = PlainTransport(ours)
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
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert PlainTransport(ours).wait_writable(FOREVER)
