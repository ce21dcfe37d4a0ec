"""Where a connection stands, and its counters."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Status(str, Enum):
    """Where a connection stands."""

    DISCONNECTED = "disconnected"
    """Not connected yet."""
    CONNECTED = "connected"
    """There is a session with a server."""
    RECONNECTING = "reconnecting"
    """The session was lost, or was never made, and a server is being looked for."""
    DRAINING = "draining"
    """drain() is at work."""
    CLOSED = "closed"
    """Closed for good."""


class Stats(NamedTuple):
    """Counters since the connection was made; `stats["in_msgs"]` works as well as `stats.in_msgs`."""

    in_msgs: int
    """Messages received."""
    out_msgs: int
    """Messages sent."""
    in_bytes: int
    """Bytes of the messages received."""
    out_bytes: int
    """Bytes of the messages sent."""
    reconnects: int
    """How often the connection was made again after a loss."""
    dropped: int
    """Messages dropped because a subscription's buffer was full."""

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        if name not in self._fields:
            raise KeyError(name)
        return getattr(self, name)
