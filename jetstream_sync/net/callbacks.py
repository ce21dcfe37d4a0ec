"""js-callbacks, the thread on which the user's callbacks run. It ends after `closed_cb`, the last of them."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from .._log import Log
from .._threads import Mailbox, join_quietly, spawn
from ..errors import ConnectionClosedError

# So many callbacks may wait before errors are left out: error_cb may be slower than errors come, or hang.
MAX_WAITING = 1000


class CallbackRunner:
    """Runs callbacks one after the other, in the order of their events. Thread-safe."""

    def __init__(self, log: Log, error_cb: Callable[[Any], Any] | None) -> None:
        """`error_cb` is told what another callback raises."""
        self._log = log
        self._error_cb = error_cb
        self._mailbox: Mailbox[tuple[Callable[[Any], Any], Any]] = Mailbox()
        self._starting = allocate_lock()  # serves the start of the thread alone
        self._thread: threading.Thread | None = None
        self._left_out = False

    def put(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Queue `callback(argument)`; a callback of None is none. start() follows, when no lock is held."""
        if callback is None:
            return
        if callback is self._error_cb and len(self._mailbox) >= MAX_WAITING:
            self._left_out = True
            return
        self._mailbox.put((callback, argument))

    def start(self) -> None:
        """Have a thread run what is queued."""
        if self._thread is None and len(self._mailbox):
            with self._starting:
                if self._thread is None:
                    try:
                        self._thread = spawn("callbacks", self._run)
                    except RuntimeError:
                        pass  # the interpreter is shutting down: no callback runs any more

    @property
    def closed(self) -> bool:
        return self._mailbox.closed

    def close(self) -> None:
        """No further callbacks; those queued still run."""
        self._mailbox.close(ConnectionClosedError())

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    def _run(self) -> None:
        while True:
            try:
                callback, argument = self._mailbox.get()
            except ConnectionClosedError:
                return
            if self._left_out:
                self._left_out = False
                self._log.warning("error_cb is slower than errors come: some were left out")
            self._call(callback, argument)

    def _call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """User code may raise anything, which must not end this thread. No callback hears of its own failure."""
        try:
            callback(argument)
            return
        except BaseException as error:  # noqa: BLE001 - told to error_cb, or logged
            failure = error
        error_cb = self._error_cb
        if error_cb is None or callback is error_cb or not isinstance(failure, Exception):
            self._log_failure(callback, failure)
            return
        try:
            error_cb(failure)
        except BaseException as error:  # noqa: BLE001 - logged
            self._log_failure(callback, failure)
            self._log_failure(error_cb, error)

    def _log_failure(self, callback: Callable[[Any], Any], error: BaseException) -> None:
        name = getattr(callback, "__qualname__", type(callback).__name__)
        self._log.error("the callback %s raised %s", name, type(error).__name__, exc_info=error)
