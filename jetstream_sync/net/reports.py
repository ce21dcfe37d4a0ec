"""What the user is told of a connection: the callbacks of connect(), the log, `last_error`.

Owned by Link. Methods that queue callbacks are called under Link's lock, so that callbacks come in the order of
what they tell; start() and what logs follow without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._log import Log, MessageFacts
from ..errors import NatsError, NotConnectedError, TimeoutError
from .callbacks import CallbackRunner
from .options import Options
from .outage import Outage

if TYPE_CHECKING:
    from .connection import Connection
    from .handshake import Session


class Reports:
    """See the module's text. Thread-safe."""

    def __init__(self, options: Options, connection: Connection, log: Log) -> None:
        self.last_error: Exception | None = None
        """The newest error; None again once a session follows."""
        self.outage: Outage = Outage(log, time.monotonic)
        self._options = options
        self._connection = connection  # the argument of the user's callbacks
        self._log = log
        self._callbacks = CallbackRunner(log, options.error_cb)
        self._end_told = False
        self.ending: bool = False
        """Being closed: what that leads to is no news."""
        self.outage.begin()

    # --- the story of the connection: by the thread that changes its state ---------------------------------

    def lost(self, session: Session, error: Exception) -> None:
        """Under Link's lock. log_loss() follows."""
        self.last_error = error
        self.outage.begin(session.address.url, error)
        # Queued here: a close() right behind us has its own callback to announce after these.
        self._callbacks.put(self._options.error_cb, error)
        self._callbacks.put(self._options.disconnected_cb, self._connection)

    def log_loss(self, session: Session, error: Exception) -> None:
        self._callbacks.start()
        self.outage.log_loss(session.address.url, error, reported=self._options.error_cb is not None)

    def attempt_failed(self, url: str, error: BaseException, summary: NatsError, *, connecting: bool) -> None:
        """A server did not take us in. `connecting`: connect() has not returned, and may raise all failures."""
        self.outage.failed(url, error)
        self.last_error = summary
        if not connecting:
            self.call(self._options.error_cb, summary)
        elif self._options.retry_on_failed_connect:
            # js-reader starts the thread: in the caller's, a signal handler could raise in the midst of that.
            self._callbacks.put(self._options.error_cb, summary)

    def opened(self, *, first: bool) -> None:
        """Under Link's lock. log_session() follows."""
        self.last_error = None
        self.outage.end()
        if not first:
            self._callbacks.put(self._options.reconnected_cb, self._connection)

    def log_session(self, session: Session, *, discovered: bool) -> None:
        if discovered:
            self._callbacks.put(self._options.discovered_server_cb, self._connection)
        self._callbacks.start()
        self.outage.log_session(session.address.url, session.info)

    def closed(self, *, had_session: bool) -> None:
        """No callback comes after those of the end. May be repeated."""
        if not self._callbacks.closed:
            if had_session:
                self._callbacks.put(self._options.disconnected_cb, self._connection)
            self._callbacks.put(self._options.closed_cb, self._connection)
            self._callbacks.close()
        self._callbacks.start()

    def log_end(self, error: Exception | None) -> None:
        """May be repeated."""
        told, self._end_told = self._end_told, True
        if not told:
            self.outage.log_end(error, reported=self._options.error_cb is not None)

    def start(self) -> None:
        """js-reader, when connect() is done: run what connect() has queued."""
        self._callbacks.start()

    def give_up(self) -> None:
        """connect() raises: there is no connection to tell of."""
        self._callbacks.close()

    def join(self, timeout: float) -> None:
        self._callbacks.join(timeout)

    # --- any thread ---------------------------------------------------------------------------------------

    def report(self, error: Exception) -> None:
        """Tell the error callback, or the log where there is none. Call it without a lock."""
        self.last_error = error
        if self._options.error_cb is not None:
            self.call(self._options.error_cb, error)
        elif not self.ending:
            self._log.warning("%s: %s", type(error).__name__, error)

    def callback_raised(self, error: BaseException, log: Log, facts: MessageFacts) -> None:
        """The callback of a subscription raised: tell the error callback, or `log` where there is none."""
        if self._options.error_cb is not None and isinstance(error, Exception):
            self.report(error)
        else:  # nor may sys.exit() in a callback end it in silence
            log.callback_raised(error, facts)

    def call(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Run `callback(argument)` on js-callbacks. Call it without a lock."""
        self._callbacks.put(callback, argument)
        self._callbacks.start()

    def not_connected(self, outcome: str) -> NotConnectedError:
        """For a call that gave up while there was no session: `outcome` is what did not happen."""
        return NotConnectedError(f"{self.outage}: {outcome}")

    def not_sent(self, what: str, *, connected: bool) -> TimeoutError:
        """For a call that gave up and took back `what`, which had not left."""
        if not connected:
            return self.not_connected(f"not sent ({what})")
        error = TimeoutError(f"the server takes no more data: not sent ({what})")
        error.sent = False
        return error

    def no_message(self, *, connected: bool) -> TimeoutError:
        """For a call that only waited for a message."""
        text = "no message came in time"
        return TimeoutError(text) if connected else self.not_connected(text)
