"""The life of a connection: opened, lost, connected again, shut down; its pings and its observers.

The base of `Connection`, whose module says which threads and locks there are.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .._deadline import FOREVER, Deadline
from .._threads import join_quietly, locked, spawn
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ForkError,
    NatsError,
    StaleConnectionError,
    TimeoutError,
)
from ..protocol import commands
from ..protocol.subjects import new_inbox
from .callbacks import CallbackRunner
from .contracts import Inlet, Listener, Status
from .dialer import Dialer
from .handshake import Session
from .options import Options
from .outbox import Abandoned, Outbox
from .reader import Reader
from .receiving import Receiving
from .requests import RequestMux, Slot
from .subscription import Subscription

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("jetstream_sync")
log.addHandler(logging.NullHandler())  # without it logging prints warnings to stderr where nobody set it up

# close() waits this long for the server to take what was sent last and to close its side.
GOODBYE_SECONDS = 1.0
# … and this long for each thread, which is idle or in user code by then.
JOIN_SECONDS = 0.5


class Lifecycle:
    """State and its changes. Only the reader thread moves between CONNECTED and RECONNECTING."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = allocate_lock()
        self._status = Status.DISCONNECTED
        self._outbox = Outbox(options.pending_size)
        self._receiving = Receiving()
        self._dialer = Dialer(options)
        self._callbacks = CallbackRunner()
        self._reader = Reader(cast("Connection", self), self._dialer)
        self._subs: dict[bytes, Inlet] = {}
        self._last_sid = 0
        self._mux: RequestMux | None = None
        self._inbox_root = new_inbox(options.inbox_prefix)
        self._next_inbox_number: Callable[[], int] = itertools.count(1).__next__
        self._listeners: list[Listener] = []
        self._before_drained: list[Callable[[Deadline], None]] = []
        """What drain() waits for besides the subscriptions; each raises TimeoutError at its deadline."""
        self._session: Session | None = None
        self._server_info: dict[str, Any] = {}
        self._max_payload = 1024 * 1024
        self._pongs: deque[Slot | None] = deque()  # who waits for each PONG; None: a ping of the timer's
        self._pings_out = 0
        self._next_ping = time.monotonic() + options.ping_interval
        self._break_reason: NatsError | None = None
        self._last_error: Exception | None = None
        self._failed = False  # an error, not a call of the user's, closed the connection
        self._opening = locked()  # released when connect() is done, and its outcome in _first_session
        self._first_session: Session | None = None
        self._reader_thread: threading.Thread | None = None
        self._writer_thread: threading.Thread | None = None
        self._in_msgs = self._in_bytes = self._reconnects = self._dropped = 0
        self._forked = False
        connections.add(self)

    def _open(self) -> None:
        """Connect and start the threads. Raises what the dialer raises, unless retrying was asked for."""
        session: Session | None = None
        try:
            session = self._dialer.first(self._start_reader)
        except BaseException as error:
            if not isinstance(error, NatsError) or not self._options.retry_on_failed_connect:
                self._abandon_opening()
                self._join_own_threads()
                raise
            self._last_error = error
            self._status = Status.RECONNECTING
        try:
            if session is not None:
                self._adopt(session, first=True)
            self._start_reader()
            self._first_session = session
            self._opening.release()
        except BaseException:  # a signal handler raised: nobody gets to hold this connection
            self._abandon_opening()
            self._shut_down(None, goodbye=False)
            raise

    def _start_reader(self) -> None:
        """Start the threads while the server prepares its answer: that takes as long as starting them."""
        if self._reader_thread is None:
            self._reader_thread = spawn("reader", self._reader.run)

    def _await_opening(self) -> Session | None:
        """Reader thread, first of all: the session to begin with; None when there is none yet, or not to be one.

        Waits for the end of connect(), however that does. Then starts the writer thread: neither connect() nor the
        reading of what the server says meanwhile has to wait for that.
        """
        self._opening.acquire()
        try:
            self._writer_thread = spawn("writer", self._run_writer)
        except RuntimeError as error:  # no thread to be had: better closed than with nobody to read
            self._shut_down(error)
            return None
        session, self._first_session = self._first_session, None
        return session

    def _abandon_opening(self) -> None:
        """connect() fails: the threads it started find an interrupted dialer and a closed outbox, and end."""
        self._dialer.interrupt()
        self._outbox.close()
        if self._opening.locked():
            self._opening.release()

    def _adopt(self, session: Session, *, first: bool = False) -> bool:
        """A session is established: subscriptions go out first, then what waited. False when closed meanwhile."""
        with self._lock:
            if self._status is Status.CLOSED:
                closed = True
            else:
                closed = False
                self._session = session
                self._take_info(session.info)
                self._break_reason = None
                self._pings_out = 0
                self._next_ping = time.monotonic() + self._options.ping_interval
                if self._status is not Status.DRAINING:
                    self._status = Status.CONNECTED
                self._outbox.attach(session.transport, self._resubscriptions())
                if not first:
                    self._reconnects += 1
                    # Still under the lock, as in _lost(): callbacks come in the order of what they tell.
                    self._callbacks.submit(self._options.callbacks.reconnected, self)
        if closed:
            session.transport.close()
            return False
        if self._dialer.advertise(session.info) and not first:
            self._callbacks.submit(self._options.callbacks.discovered_server, self)
        self._outbox.flush()
        return True

    def _resubscriptions(self) -> bytes:
        # Requires holding _lock.
        frames: list[bytes] = []
        for sid, sub in list(self._subs.items()):
            left = sub.remaining()
            if left < 0:
                del self._subs[sid]
                continue
            queue = sub.queue.encode("utf-8", "surrogateescape") if sub.queue else None
            frames.append(commands.subscribe(sub.wire_subject, sid, queue))
            if left:
                frames.append(commands.unsubscribe(sid, left))
        return b"".join(frames)

    def _take_info(self, info: dict[str, Any]) -> None:
        # Requires holding _lock.
        self._server_info = info
        limit = info.get("max_payload")
        if isinstance(limit, int) and limit > 0:
            self._max_payload = limit

    def _lost(self, error: Exception) -> bool:
        """Reader thread: the session broke. True when there is to be another."""
        with self._lock:
            if self._status is Status.CLOSED:
                return False
            again = self._options.allow_reconnect and self._status is not Status.DRAINING
            if again:
                self._status = Status.RECONNECTING
            self._session = None
            self._last_error = error
            # In one step: a PING without its waiter, or a waiter without its PING, would shift all later ones.
            pongs, self._pongs = self._pongs, deque()
            abandoned = self._outbox.detach()
            # After the detach: a request that comes later is not lost, it waits for the next connection.
            requests = [] if self._mux is None else self._mux.waiting()
            listeners = list(self._listeners)
            # Still under the lock: a close() right behind us has its own callback to announce after these.
            self._callbacks.submit(self._options.callbacks.error, error)
            self._callbacks.submit(self._options.callbacks.disconnected, self)
        abandoned.abort()
        abandoned.close()
        lost = ConnectionLostError(f"the connection was lost: {error}")
        self._fail_waiting(lost, pongs, requests)
        for listener in listeners:
            listener.on_disconnect()
        if self._options.callbacks.error is None:
            log.warning("%s: %s", type(error).__name__, error)
        if not again:
            self._shut_down(error)
        return again

    def _fail_waiting(
        self, error: NatsError, pongs: deque[Slot | None], requests: list[bytes] | None = None
    ) -> None:
        if self._mux is not None:
            self._mux.fail_all(error, requests)
        for slot in pongs:
            if slot is not None:
                slot.fail(error)

    def _reconnected(self) -> None:
        """Reader thread: a new session is in use; tell the library's own observers."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_reconnect()

    def _break(self, reason: NatsError, session: Session | None) -> None:
        """Give up `session` if it is still the present one; the reader notices and goes on from there."""
        with self._lock:
            if session is None or session is not self._session:
                return
            if self._break_reason is None:
                self._break_reason = reason
        session.transport.abort()
        self._receiving.call_back()

    def _shut_down(self, error: Exception | None, *, goodbye: bool = True) -> None:
        with self._lock:
            if self._status is Status.CLOSED:
                return
            was_connected = self._session is not None
            session, self._session = self._session, None
            self._status = Status.CLOSED
            self._failed = error is not None
            if error is not None:
                self._last_error = error
            inlets = list(self._subs.values())
            self._subs.clear()
            pongs, self._pongs = self._pongs, deque()
            listeners, self._listeners = self._listeners, []
        self._receiving.call_back()
        connections.discard(self)
        closed = ConnectionClosedError() if error is None else closed_by(error)
        subs = [inlet for inlet in inlets if isinstance(inlet, Subscription)]
        try:
            if session is not None and goodbye:
                self._say_goodbye(session)
        finally:  # also when a signal handler raised out of the goodbye: a second close() does nothing
            self._dialer.interrupt()
            abandoned = self._outbox.detach(for_good=True)
            abandoned.abort()
            self._outbox.close()
            self._tell_closed(closed, pongs, subs, listeners, was_connected=was_connected)
            self._join_threads(abandoned, subs)

    def _tell_closed(
        self,
        closed: NatsError,
        pongs: deque[Slot | None],
        subs: list[Subscription],
        listeners: list[Listener],
        *,
        was_connected: bool,
    ) -> None:
        """Wake whoever waits on something of this connection."""
        self._fail_waiting(closed, pongs)
        for sub in subs:
            sub.close(closed, discard=True)
        for listener in listeners:
            listener.on_closed(closed)
        if was_connected:
            self._callbacks.submit(self._options.callbacks.disconnected, self)
        self._callbacks.submit(self._options.callbacks.closed, self)
        self._callbacks.close()

    def _join_threads(self, abandoned: Abandoned, subs: list[Subscription]) -> None:
        try:
            self._join_own_threads()
        finally:
            abandoned.close()  # the reader, which may have been receiving from it, has ended
        deadline = Deadline(JOIN_SECONDS)  # for all together: each may be in user code
        for sub in subs:
            sub.join(deadline.wait_time())
        self._callbacks.join(JOIN_SECONDS)

    def _join_own_threads(self) -> None:
        join_quietly(self._reader_thread, JOIN_SECONDS)
        join_quietly(self._writer_thread, JOIN_SECONDS)  # looked at now: the reader may have been yet to start it

    def _say_goodbye(self, session: Session) -> None:
        """Send what is queued and wait for the server to close: a plain close could cut off our last bytes."""
        self._outbox.flush()
        if not self._outbox.idle:
            return  # the socket is stuck: nothing more can be said
        session.transport.finish()
        join_quietly(self._reader_thread, GOODBYE_SECONDS)

    # --- where it stands ----------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        return self._status

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    @property
    def is_reconnecting(self) -> bool:
        return self._status is Status.RECONNECTING

    @property
    def is_draining(self) -> bool:
        return self._status is Status.DRAINING

    @property
    def is_closed(self) -> bool:
        return self._status is Status.CLOSED

    # --- pings --------------------------------------------------------------------------------------

    def _ping_pong(self, deadline: Deadline) -> None:
        slot = Slot(b"")
        with self._lock:
            if self._status is Status.CLOSED:
                raise ConnectionClosedError()
            ping = self._outbox.ping(self._pongs, slot)
        answered = False
        try:
            self._receiving.call_back()
            self._outbox.flush()
            answered = slot.lock.acquire(timeout=deadline.wait_time())
        finally:
            if not answered:
                self._take_back(ping, slot)
        if slot.error is not None:
            raise slot.error.with_traceback(None)
        if not answered:
            raise TimeoutError("the server did not answer a ping in time")

    def _take_back(self, ping: bytes, slot: Slot) -> None:
        """A ping that has not left (we are disconnected) goes, together with its place among the waiters."""
        with self._lock:
            self._outbox.unping(ping, self._pongs, slot)

    def _on_pong(self) -> None:
        """Reader thread."""
        with self._lock:
            slot = self._pongs.popleft() if self._pongs else None
            self._pings_out = 0
        if slot is not None:
            slot.lock.release()

    def _run_writer(self) -> None:
        while self._outbox.serve(self._ping_wait()):
            self._ping_if_due()

    def _ping_wait(self) -> float:
        return min(max(0.0, self._next_ping - time.monotonic()), FOREVER)

    def _ping_if_due(self) -> None:
        """Writer thread: the keep-alive. With `max_outstanding_pings` unanswered the connection is stale."""
        if time.monotonic() < self._next_ping:
            return
        stale = False
        with self._lock:
            self._next_ping = time.monotonic() + self._options.ping_interval
            session = self._session
            if session is not None:
                self._pings_out += 1
                stale = self._pings_out > self._options.max_outstanding_pings
                if not stale:
                    self._outbox.ping(self._pongs, None)
        if stale:
            self._break(StaleConnectionError("the server answered no ping: the connection is stale"), session)
        else:
            self._outbox.flush()

    # --- for the rest of the library ------------------------------------------------------------------

    def _add_listener(self, listener: Listener) -> None:
        """Have `listener` told of disconnects; whoever adds it removes it. Raises when already closed."""
        with self._lock:
            if self._status is Status.CLOSED:
                raise ConnectionClosedError()
            self._listeners.append(listener)

    def _remove_listener(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _report(self, error: Exception) -> None:
        """Tell the error callback, or the log where there is none."""
        self._last_error = error
        if self._options.callbacks.error is not None:
            self._callbacks.submit(self._options.callbacks.error, error)
        elif not self.is_closed:
            log.warning("%s: %s", type(error).__name__, error)

    def _count_dropped(self, count: int) -> None:
        self._dropped += count  # reader thread only

    def _check_process(self) -> None:
        if self._forked:
            raise ForkError()

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkError()
        if self._status is Status.CLOSED:
            raise ConnectionClosedError() if not self._failed else closed_by(self._last_error)


def closed_by(error: Exception | None) -> NatsError:
    closed = ConnectionClosedError(f"the connection is closed: {error}")
    closed.__cause__ = error
    return closed


# --- other processes ----------------------------------------------------------------------------------

connections: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Connections inherited by a forked child belong to the parent; their locks may be held by nobody."""
    for nc in list(connections):
        nc._forked = True
        nc._receiving.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
