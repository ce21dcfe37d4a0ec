"""js-callbacks, the thread on which the user's callbacks run. It ends after `closed_cb`, the last of them."""

from __future__ import annotations

import logging
import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from .._threads import Mailbox, join_quietly, spawn
from ..errors import ConnectionClosedError

log = logging.getLogger("jetstream_sync")


class CallbackRunner:
    """Runs callbacks one after the other, in the order of their events. Thread-safe."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[tuple[Callable[[Any], Any], Any]] = Mailbox()
        self._starting = allocate_lock()  # serves the start of the thread alone
        self._thread: threading.Thread | None = None

    def put(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Queue `callback(argument)`; a callback of None is none. start() follows, when no lock is held."""
        if callback is not None:
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
            try:
                callback(argument)
            except BaseException:  # user code may raise anything; it must not end this thread
                log.exception("a callback raised")
