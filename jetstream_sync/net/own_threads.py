"""js-reader and js-writer: how a connection's two threads start and end.

js-reader  started by connect(), while the first server prepares its INFO. Owns state changes, the dialer, the
parser,
           and delivering to receivers. Blocks until connect() is done, then in recv, dialling and back-off
           waits, and for milliseconds at a time during direct receive (direct.py). Ends when connect() fails,
           or when the status is CLOSED: shut_down() breaks the socket and interrupts the dialer.
js-writer  started by js-reader when connect() is done: neither connect() nor the reading of what the server says
           meanwhile has to wait for that. Owns the keep-alive, and a stuck transport's sending half. Blocks on
           its wake-up and on a full socket, both bounded by the next ping. Ends when the outbox is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._threads import join_quietly, locked, spawn
from .handshake import Session

# close() waits this long for each thread, which is idle or in user code by then.
JOIN_SECONDS = 0.5


class OwnThreads:
    """The two threads of one connection."""

    def __init__(self, read: Callable[[], None], write: Callable[[], None]) -> None:
        self._read = read
        self._write = write
        self._opening = locked()  # released when connect() is done
        self._first_session: Session | None = None
        self._reader: threading.Thread | None = None
        self._writer: threading.Thread | None = None

    # --- connect()'s thread -----------------------------------------------------------------------------

    def start_reader(self) -> None:
        """Start js-reader, once. It waits for begin() or give_up()."""
        if self._reader is None:
            self._reader = spawn("reader", self._read)

    def begin(self, session: Session | None) -> None:
        """connect() is done: js-reader goes on with `session`, or with finding one."""
        self._first_session = session
        self._opening.release()

    def give_up(self) -> None:
        """connect() has failed. The dialer is interrupted and the outbox closed, so both threads end."""
        if self._opening.locked():
            self._opening.release()

    # --- js-reader ----------------------------------------------------------------------------------------

    def first_session(self) -> Session | None:
        """Wait for the end of connect(), then start js-writer. Returns connect()'s session; None without one.

        Raises RuntimeError when no thread can be started.
        """
        self._opening.acquire()
        self._writer = spawn("writer", self._write)
        session, self._first_session = self._first_session, None
        return session

    # --- the closing thread -------------------------------------------------------------------------------

    def join_reader(self, timeout: float) -> None:
        join_quietly(self._reader, timeout)

    def join(self) -> None:
        join_quietly(self._reader, JOIN_SECONDS)
        join_quietly(self._writer, JOIN_SECONDS)  # looked at now: the reader may have been yet to start it
