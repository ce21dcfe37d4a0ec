"""The thread on which a connection's user callbacks run.

Owns: nothing but its mailbox. Started by the first event there is a callback for. Blocks in the mailbox and in
user code. Ends when the mailbox is closed (after `closed_cb`, the last event) and what it holds has been called.
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
    """Runs callbacks one after the other, in the order of their events. Thread-safe."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[tuple[Callable[[Any], Any], Any]] = Mailbox()
        self._lock = allocate_lock()
        self._thread: threading.Thread | None = None

    def submit(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Have `callback(argument)` run. A callback of None is none."""
        if callback is None or not self._mailbox.put((callback, argument)):
            return
        with self._lock:
            if self._thread is not None:
                return
            try:
                self._thread = spawn("callbacks", self._run)
            except RuntimeError:
                pass  # the interpreter is shutting down: nobody is left to call

    def close(self) -> None:
        """No further callbacks; those submitted still run."""
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
