"""Pipelined publishing: many messages on their way at once, a future for each ack.

A publisher has an inbox of its own and a dict of what is unanswered, in order of publication. Who does what:

  caller        builds the frame, adds it to `_pending`, sends or gathers it; waits while the window is full
  reader        takes answers out of `_pending` and completes their futures; on a disconnect it fails what must
                not be sent twice, on a reconnect it sends the rest again
  js-publisher  started by the first publish; fails what is overdue, sends again what nobody took (503).
                Blocks on its kick, at most until the earliest of these. Ends when the connection is closed, or
                when the context is gone and nothing is unanswered; then it takes the inbox with it.

Whoever pops a future from `_pending` completes it; popping a dict is atomic, so each is completed once. Futures
are added under `_lock`, so that the window is never exceeded; one that is to be retried stays where it is.
Iteration is over a copy() or the keys: making a list of items() allocates, may collect garbage and switch threads.
"""

from __future__ import annotations

import itertools
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._deadline import FOREVER, Deadline, seconds
from .._threads import locked, spawn
from ..errors import (
    ConnectionLostError,
    ForkError,
    NatsError,
    PermissionsError,
    TimeoutError,
    TooManyStalledMsgsError,
)
from ..net.connection import is_no_responders
from ..net.outbox import Ephemeral
from ..protocol.parser import RawMessage
from .pub_ack_future import PubAckFuture, complete_all
from .publish import checked_retries

if TYPE_CHECKING:
    from ..net.connection import Connection

DEFAULT_MAX_PENDING = 4000

_NEVER = float("inf")  # on the monotonic clock


class AsyncPublisher:
    """The window of unanswered publishes of one JetStream context. Thread-safe."""

    queue: str | None = None

    def __init__(self, nc: Connection, timeout: float, max_pending: int) -> None:
        if max_pending < 1:
            raise ValueError(f"publish_async_max_pending must be at least 1: {max_pending}")
        self._nc = nc
        self._timeout = timeout
        self._max_pending = max_pending
        self._pending: dict[bytes, PubAckFuture] = {}
        self._next_token: Callable[[], int] = itertools.count(1).__next__
        # Guards opening, adding, the waiters and the kick; held for a few instructions.
        self._lock = allocate_lock()
        self._opened = False
        self._ready = False  # opened, not denied, not closed: nothing to look at before a publish
        self._waiters: deque[LockType] = deque()
        self._seat = allocate_lock()  # held by js-publisher: there is one only
        self._kick = locked()
        self._kicked = False
        self._wakes_at = _NEVER
        self._losses = 0  # of the connection
        self._denied: NatsError | None = None
        self._closed: NatsError | None = None
        self._retired = False
        # What the connection's reader looks at:
        self.sid = b""
        self.subject = ""
        self.wire_subject = b""
        self._prefix = b""

    @property
    def pending(self) -> int:
        return len(self._pending)

    # --- callers ----------------------------------------------------------------------------------

    def publish(
        self,
        subject: bytes,
        payload: bytes,
        block: bytes | None,
        *,
        has_msg_id: bool,
        timeout: float | timedelta | None,
        retry_attempts: int,
        retry_wait: float | timedelta,
    ) -> PubAckFuture:
        """Send a message. Blocks while the window is full, up to `timeout`."""
        limit = self._timeout if timeout is None else seconds(timeout) or 0.0
        # The usual types are checked here: a call each would be a tenth of the whole cost.
        pause = (
            retry_wait if type(retry_wait) is float and retry_wait >= 0.0 else seconds(retry_wait, "retry_wait")
        )
        if type(retry_attempts) is not int or retry_attempts < 0:
            checked_retries(retry_attempts)
        if not self._ready:
            self._get_ready()
        token = b"%x" % self._next_token()
        built, size = self._nc._frame(subject, payload, self._prefix + token, block)
        frame = Ephemeral(built)
        future = PubAckFuture(self, subject, frame, size, time.monotonic() + limit)
        future.has_msg_id = has_msg_id
        future.retries = retry_attempts
        future.retry_wait = pause or 0.0
        losses = self._losses
        try:
            if not self._add(token, future):
                self._wait_for_window(token, future, limit)
            # A lone one leaves at once.
            self._nc._outbox.publish(frame, size, gather=len(self._pending) > 1)
            if future.deadline < self._wakes_at:
                self._wake_thread()
        except BaseException:  # nobody gets to hold the future: it must not keep its place in the window
            self._pending.pop(token, None)
            self._nc._outbox.withdraw(frame)
            self._wake_waiters()
            raise
        ended = None if self._ready else self._closed or self._denied
        if ended is not None:
            self._fail([token], ended)  # meanwhile: on_closed or fail may not have seen it
        if losses != self._losses and future.done():
            self._nc._outbox.withdraw(frame)  # failed before it was queued: it must not be sent any more
        return future

    def _get_ready(self) -> None:
        self._nc._check_usable()
        if not self._opened:
            self._open()
        if self._denied is not None:
            raise self._denied.with_traceback(None)

    def _add(self, token: bytes, future: PubAckFuture) -> bool:
        """Take a place in the window. False when there is none."""
        with self._lock:
            if len(self._pending) >= self._max_pending:
                return False
            self._pending[token] = future
            return True

    def wait(self, timeout: float | timedelta | None) -> None:
        """Block until nothing is unanswered. Raises TimeoutError."""
        deadline = Deadline(timeout)
        self.flush()
        if not self._wait_until(lambda: not self._pending, deadline):
            raise TimeoutError(f"{len(self._pending)} publishes are still unanswered")

    def _settle(self, deadline: Deadline) -> None:
        """The connection drains: what was published is to have its answer."""
        self.wait(deadline.remaining())

    def flush(self) -> None:
        """Send what was gathered. Raises ForkError in a child: its parent's futures are never completed there."""
        if self._nc._forked:
            raise ForkError()
        self._nc._outbox.flush()

    def submit(self, callback: Callable[[], Any]) -> None:
        """Run a future's done-callbacks where user code runs."""
        self._nc._callbacks.submit(lambda _: callback(), None)

    def retire(self) -> None:
        """Nobody can publish here any more. Without a lock: a finalizer may run where one is held."""
        self._retired = True
        self._release_kick()

    def _wait_for_window(self, token: bytes, future: PubAckFuture, limit: float) -> None:
        """Block until `future` has its place in the window; its own time starts then."""

        def entered() -> bool:
            future.deadline = time.monotonic() + limit
            return self._add(token, future)

        self.flush()
        if not self._wait_until(entered, Deadline(limit)):
            raise TooManyStalledMsgsError(
                f"{len(self._pending)} publishes are unanswered after {limit} s: this one was not sent"
            )

    def _wait_until(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait for `condition`, which becomes true when futures are popped; it is not called again once true.

        Registered first, looked second: the reader pops first and looks for waiters second.
        """
        while True:
            waiter = locked()
            with self._lock:
                self._waiters.append(waiter)
            try:
                if condition():
                    return True
                if not waiter.acquire(timeout=deadline.wait_time()):
                    return condition()
            finally:
                with self._lock:
                    try:
                        self._waiters.remove(waiter)
                    except ValueError:
                        pass  # was woken

    def _open(self) -> None:
        with self._lock:
            if self._opened:
                return
            # Each step looks whether it is done: a signal handler may have raised in an earlier call.
            if self.sid:
                self._nc._close_inlet(self)
            inbox = self._nc.new_inbox()
            self._prefix = f"{inbox}.".encode()
            self.subject = f"{inbox}.*"
            self.wire_subject = self.subject.encode()
            self._nc._open_inlet(self._with_sid)
            if self not in self._nc._listeners:
                self._nc._add_listener(self)
            if self._settle not in self._nc._before_drained:
                self._nc._before_drained.append(self._settle)
            spawn("publisher", self._run)
            self._opened = self._ready = True
            if self._denied is not None or self._closed is not None:
                self._ready = False  # meanwhile: fail or on_closed came before we said so

    def _with_sid(self, sid: bytes) -> AsyncPublisher:
        self.sid = sid
        return self

    # --- reader thread ----------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        start = len(self._prefix)
        pop = self._pending.pop
        answered = []
        for raw in messages:
            token = raw[0][start:]
            if not raw[3] and self._retry_later(token, raw):
                continue
            future = pop(token, None)
            if future is not None:
                answered.append((future, raw))
        complete_all(answered)
        self._wake_waiters()

    def _retry_later(self, token: bytes, raw: RawMessage) -> bool:
        """ADR-22: nobody took it, for there is no leader at the moment. False when it is not to be sent again."""
        future = self._pending.get(token)
        if future is None or not future.retries or not is_no_responders(raw[2]):
            return False
        retry_at = time.monotonic() + future.retry_wait
        if retry_at >= future.deadline:
            return False
        future.retries -= 1
        future.retry_at = retry_at
        if retry_at < self._wakes_at:
            self._wake_thread()
        return True

    def remaining(self) -> int:
        """Resubscribed without a limit."""
        self._denied = None
        self._ready = self._opened and self._closed is None
        return 0

    def fail(self, error: NatsError) -> None:
        """The inbox was denied: no ack can reach us."""
        self._denied = error
        self._ready = False
        self._fail(list(self._pending), error)

    def on_disconnect(self) -> None:
        """Sent and unanswered: stored or not, nobody knows. Only what carries an id may be sent again."""
        self._losses += 1
        unsafe = {}
        for token, future in self._pending.copy().items():
            if future.retry_at is not None:
                continue  # nobody took it, and it has not been sent since: js-publisher will
            if future.has_msg_id:
                future.resend = True
            else:
                unsafe[token] = future.frame
        self._nc._outbox.withdraw_all(unsafe.values())
        self._fail(unsafe, ConnectionLostError("the connection was lost before the ack came: it may be stored"))

    def on_reconnect(self) -> None:
        for future in list(self._pending.values()):
            if future.resend:
                future.resend = False
                self._send_again(future)

    def on_closed(self, error: NatsError) -> None:
        self._closed = error
        self._ready = False
        self._fail(list(self._pending), error)
        self._wake_thread()

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        denied = [token for token, future in self._pending.copy().items() if future.subject == subject]
        self._fail(denied, error)

    def _fail(self, tokens: Iterable[bytes], error: NatsError) -> None:
        for token in tokens:
            future = self._pending.pop(token, None)
            if future is not None:
                future.complete(None, error)
        self._wake_waiters()

    def _send_again(self, future: PubAckFuture) -> None:
        frame = future.frame
        if future.done():
            return  # and the frame may be gone with its answer
        try:
            self._nc._outbox.publish(frame, future.size, gather=True)
        except NatsError:
            return  # disconnected again or closed: on_reconnect or on_closed takes it from there
        if future.done():
            self._nc._outbox.withdraw(frame)  # failed meanwhile: it must not be sent any more

    def _wake_waiters(self) -> None:
        if self._waiters:
            with self._lock:
                while self._waiters:
                    self._waiters.popleft().release()

    # --- js-publisher -----------------------------------------------------------------------------

    def _wake_thread(self) -> None:
        with self._lock:
            if not self._kicked:
                self._kicked = True
                self._release_kick()

    def _release_kick(self) -> None:
        try:
            self._kick.release()
        except RuntimeError:
            pass  # released already

    def _run(self) -> None:
        if not self._seat.acquire(blocking=False):
            return  # _open was interrupted after it had started one
        while self._closed is None:
            self._wakes_at = _NEVER  # whatever is added during the sweep kicks
            self._wakes_at = wakes_at = self._sweep(time.monotonic())
            if self._retired and not self._pending:
                break  # looked at after the sweep, whose answer would be "for ever" for want of entries
            self._kick.acquire(timeout=min(max(0.0, wakes_at - time.monotonic()), FOREVER))
            with self._lock:
                if self._kicked:
                    self._kick.acquire(blocking=False)  # a kick between the wait and here
                    self._kicked = False
        if self._closed is None:
            self._nc._before_drained.remove(self._settle)
            self._nc._remove_listener(self)
            self._nc._close_inlet(self)

    def _sweep(self, now: float) -> float:
        """Fail what is overdue, send again what was to wait; returns when to look next."""
        earliest = _NEVER
        overdue = {}
        for token, future in self._pending.copy().items():
            if future.deadline <= now:
                overdue[token] = future.frame
                continue
            if future.retry_at is not None and future.retry_at <= now:
                future.retry_at = None
                self._send_again(future)
            earliest = min(earliest, future.deadline, future.retry_at or _NEVER)
        if overdue:
            self._nc._outbox.withdraw_all(overdue.values())
            self._fail(overdue, TimeoutError("no ack came in time: the message may be stored"))
        return earliest
