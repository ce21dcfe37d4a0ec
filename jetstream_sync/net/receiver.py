"""What gets messages by a subscription id (sid) and hears of the connection's fate."""

from __future__ import annotations

from collections.abc import Sized

from ..errors import NatsError, PermissionsError
from ..protocol.parser import RawMessage

# How long the end of a subscription or connection waits for a thread, which is idle or in user code by then.
JOIN_SECONDS = 0.5


class Receiver:
    """A subscription as the connection sees it. Opened by `Link.open()`, closed by `Link.close()`.

    The reader thread calls deliver(), denied(), publish_denied(), disconnected() and reconnected(). They never
    block. The thread that closes the connection calls closing(), closed() and join(). Under Link's lock only
    remaining() and set_limit() are called; they take no lock.
    """

    sid: bytes = b""
    wire_subject: bytes
    wire_queue: bytes | None = None
    drains: bool = False
    """A user's subscription: it cannot be opened while the connection drains, and drain() waits for it."""
    completed: bool = False
    """The server has ended the interest by itself, or forgot it with its session: close() sends no UNSUB."""

    items: Sized = ()
    """What has come and was not taken, where that is known."""

    leaving: bool = False
    """The interest was removed: what the server sent before still comes, and then the receiver is forgotten."""

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        """Reader thread: consecutive messages, `size` bytes of headers and payloads."""
        raise NotImplementedError

    def remaining(self) -> int:
        """Asked whenever a SUB is about to go: 0 no limit, n so many messages, -1 do not subscribe again."""
        return 0

    def set_limit(self, count: int) -> bool:
        """Expect `count` messages in all. False: that many have come."""
        return True

    def denied(self, error: PermissionsError) -> None:
        """The server refuses this subscription."""

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        """The server refuses a publish to `subject`, maybe one of this receiver's."""

    def disconnected(self) -> None:
        """The session is lost; another one may follow."""

    def reconnected(self) -> None:
        """A new session is in use. Receivers that were opened on this very session hear it, too."""

    def closing(self, error: NatsError) -> None:
        """The connection is about to be closed: what is queued now is still sent. Never blocks."""

    def closed(self, error: NatsError) -> None:
        """The connection is closed for good."""

    def join(self, timeout: float) -> None:
        """Wait for the receiver's own thread, if it has one."""
