"""next(): one pull for one message, on the shortest way.

Without heartbeats such a pull is answered by one thing, a message or a status. So there is nothing to queue, and
the server is told with the subscription to end it after one. One object is all there is to it: the inbox, the
listener that ends it with the connection, and a bare lock to wait on (see net/requests.py). No thread of its own;
the caller blocks, the reader (or whoever closes the connection) completes it.
"""

from __future__ import annotations

import time

from .._threads import locked
from ..api.message import JetStreamMessage
from ..errors import ConnectionLostError, NatsError, PermissionsError
from ..protocol.parser import RawMessage
from .pull_options import FetchOptions, client_grace
from .status import FetchAction, classify, read_status, to_error
from .target import PullTarget


class SinglePull:
    """One pull. For one thread, once: take()."""

    __slots__ = ("_answered", "_error", "_nc", "_raw", "_target", "sid", "spent", "subject", "wire_subject")

    queue: str | None = None

    def __init__(self, target: PullTarget) -> None:
        self._nc = nc = target.nc
        self._target = target
        self.sid = b""
        self.subject = inbox = nc._next_inbox()
        self.wire_subject = inbox.encode()
        self.spent = False  # something came: the server has ended the interest by itself
        self._raw: RawMessage | None = None
        self._error: NatsError | None = None
        self._answered = locked()

    def take(self, options: FetchOptions) -> JetStreamMessage | None:
        """Send the pull and wait for its message; None when none came. Raises as a fetch does."""
        nc, expires = self._nc, options.expires
        frame = self._target.pull_frame(options.body(), self.wire_subject)
        ends_at = time.monotonic() + expires + client_grace(expires)
        try:
            nc._open_pull(self)
            nc._outbox.publish(frame, 0)
            raw = self._wait(ends_at)
        finally:
            try:
                self._close(frame)
            except BaseException:  # a signal handler raised in the midst of it: begin anew
                self._close(frame)
                raise
        return None if raw is None else JetStreamMessage(raw, nc._link, self._target.alone)

    def _close(self, frame: bytes) -> None:
        if not self._nc._forked:  # a forked child does not speak for its parent
            if not self.spent:
                self._nc._outbox.withdraw(frame)
            self._nc._close_pull(self)

    def _wait(self, ends_at: float) -> RawMessage | None:
        while self._answered.acquire(timeout=max(0.0, ends_at - time.monotonic())):
            raw = self._raw
            if raw is None:
                assert self._error is not None
                raise self._error.with_traceback(None)
            status = None if raw[2] is None else read_status(raw[0], raw[1], raw[2], self.wire_subject)
            if status is None:
                return raw
            action = classify(status).fetch
            if action is FetchAction.ERROR or action is FetchAction.END_ERROR_IF_EMPTY:
                raise to_error(status, self._target.next_subject.decode())
            if action is not FetchAction.IGNORE:
                return None
        if not self._nc.is_connected:
            raise ConnectionLostError("not connected to a server: the pull could not be sent")
        return None

    # --- reader thread, or whoever closes the connection ----------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        self.spent = True
        self._raw = messages[0]
        self._wake()

    def remaining(self) -> int:
        """For a resubscription: a pull made while disconnected goes out then."""
        return 1

    def fail(self, error: NatsError) -> None:
        """The server denied the inbox."""
        self._error = error
        self._wake()

    on_closed = fail

    def on_disconnect(self) -> None:
        self._nc._forget(self)
        self.fail(ConnectionLostError("the connection was lost during the pull"))

    def on_reconnect(self) -> None:
        """A pull made while disconnected has gone out."""

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self._target.next_subject:
            self.fail(error)

    def _wake(self) -> None:
        try:
            self._answered.release()
        except RuntimeError:
            pass  # completed already, and not yet taken notice of: the first thing counts
