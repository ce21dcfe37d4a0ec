"""Receiver: the base of everything that gets messages by sid and hears of the connection."""

from __future__ import annotations

from ..errors import NatsError, PermissionsError
from ..protocol.parser import RawMessage


class Receiver:
    """Registered by `Link.open()`, removed by `Link.close()`.

    `remaining` and `set_limit` are called under the link's lock and take none. The others are called without it,
    on the reader thread (`closed`: on the thread that closes the connection), and never block.
    """

    sid = b""
    wire_subject: bytes
    wire_queue: bytes | None = None
    drains = False
    """A user's subscription: not opened while the connection drains, and drained with it."""
    completed = False
    """The server has ended the interest: close() sends no UNSUB."""

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        """A run of messages for this sid; `size`: the bytes of their headers and payloads."""
        raise NotImplementedError

    def remaining(self) -> int:
        """How many messages a SUB that is about to be sent is for: 0 no limit, -1 no SUB at all."""
        return 0

    def set_limit(self, count: int) -> bool:
        """The server is about to be told to end the interest after `count` messages in all.

        False: that many have come.
        """
        return True

    def denied(self, error: PermissionsError) -> None:
        """The server refused the subscription."""

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        """The server refused a publish to `subject`."""

    def disconnected(self) -> None:
        """The session was lost."""

    def reconnected(self) -> None:
        """A new session is in use, and this receiver is subscribed on it."""

    def closed(self, error: NatsError) -> None:
        """The connection is closed for good."""

    def join(self, timeout: float) -> None:
        """Wait for a thread of this receiver, after closed()."""
