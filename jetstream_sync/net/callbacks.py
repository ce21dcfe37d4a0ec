"""`js-callbacks`: the thread on which the callbacks of a connection run.

The first event with a callback starts it. It owns its mailbox, and blocks there and in user code. It ends when the
mailbox is closed (after `closed_cb`, the last event) and empty.
"""

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
    """Runs callbacks one at a time, in the order of their events. Thread-safe."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[tuple[Callable[[Any], Any], Any]] = Mailbox()
        self._lock = allocate_lock()
        self._thread: threading.Thread | None = None

    def submit(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Have `callback(argument)` run on the thread; a callback of None is ignored."""
        if callback is None or not self._mailbox.put((callback, argument)):
            return
        with self._lock:
            if self._thread is not None:
                return
            try:
                self._thread = spawn("callbacks", self._run)
            except RuntimeError:
                pass  # the interpreter is shutting down and starts no more threads: the callback is not called

    def close(self) -> None:
        """Accept no further callbacks. Those submitted before still run."""
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
            except BaseException:  # user code may raise anything, and must not end this thread
                log.exception("a callback raised")
