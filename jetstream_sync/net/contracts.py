"""What the parts of a connection know of each other."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, Protocol

from ..errors import NatsError, PermissionsError


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


class Listener(Protocol):
    """The library's own observers. Called on the reader thread (on_closed: on the closing one): never block."""

    def on_disconnect(self) -> None: ...

    def on_reconnect(self) -> None: ...

    def on_closed(self, error: NatsError) -> None: ...

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None: ...


class Inlet(Protocol):
    """What the reader delivers to: a subscription or the request inbox."""

    sid: bytes
    subject: str
    queue: str | None
    wire_subject: bytes

    def deliver(self, messages: list[Any], size: int) -> None: ...

    def fail(self, error: NatsError) -> None: ...

    def remaining(self) -> int: ...


class SingleUse(Inlet, Listener, Protocol):
    """An inlet for one message that watches the connection itself."""

    spent: bool
    """Whether that message has come: the server has ended the interest then."""
