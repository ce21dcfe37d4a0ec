"""Where a connection stands, and its counters."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Status(str, Enum):
    """Where a connection stands."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    DRAINING = "draining"
    CLOSED = "closed"


class Stats(NamedTuple):
    """Counters since the connection was made; `stats["in_msgs"]` works as well as `stats.in_msgs`."""

    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    reconnects: int
    dropped: int

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        if name not in self._fields:
            raise KeyError(name)
        return getattr(self, name)
