"""consume(callback): messages handled on threads of the library's own.

js-consume-<n>  max_workers of them, started with the context. Each takes a message (one at a time among them, so
                that statuses are judged in order), calls back, counts it as processed. Blocks in the mailbox, in
                the turn lock and in user code. Ends when the session has ended and nothing is left to take:
                ending closes the mailbox, which wakes the one that waits there, which frees the turn.
js-progress     with auto_progress only: tells the server that callbacks are still at work. Blocks on its stop lock
                for a third of ack_wait at a time. Ends when the last worker has ended.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

from .._deadline import Deadline
from .._threads import join_quietly, locked, spawn
from ..api.message import JetStreamMessage
from ..errors import NatsError, SubscriptionClosedError, TimeoutError
from .inlet import StampedStatus
from .pull_options import message_size
from .session import Session

# Leaving the `with` block waits this long for callbacks in progress.
STOP_SECONDS = 5.0
# in_progress is sent this many times per ack_wait, so one may be late.
PROGRESS_PER_ACK_WAIT = 3

Callback = Callable[[JetStreamMessage], Any]


class ConsumeContext:
    """A consume in progress. stop() and drain() may be called from anywhere: the callback, other threads, signal
    handlers. As a context manager it stops when the block is left."""

    def __init__(
        self, session: Session, callback: Callback, *, max_workers: int = 1, auto_progress: bool = False
    ) -> None:
        self._session = session
        self._callback = callback
        self._turn = allocate_lock()  # whose turn it is to take; held while waiting for a message
        self._counting = allocate_lock()  # PullSession.processed is for one thread at a time
        self._alone = max_workers == 1
        self._running = max_workers
        self._done = False
        self._progress: _Progress | None = None
        self._workers: list[threading.Thread] = []
        session.nc._before_drained.append(self._settle)  # before the workers, the last of which removes it
        try:
            if auto_progress and session.acks:
                self._progress = _Progress(session)
            for _ in range(max_workers):
                self._workers.append(spawn(f"consume-{session.number}", self._run))
        except BaseException:  # no thread to be had, or a signal handler raised: nobody gets to hold this
            session.end(SubscriptionClosedError("the consume could not start"), discard=True)
            if self._progress is not None:
                self._progress.close()
            self._leave_drain()
            raise

    @property
    def closed(self) -> bool:
        """Whether it has ended and the last callback has returned."""
        return self._done

    @property
    def error(self) -> NatsError | None:
        """What ended it; None while it runs and after stop() or drain()."""
        reason = self._session.ended
        return None if isinstance(reason, SubscriptionClosedError) else reason

    def stop(self) -> None:
        """End at once: what is buffered is dropped, and delivered again later; callbacks in progress end by
        themselves. Idempotent, waits for nothing: wait() waits."""
        self._session.stop(SubscriptionClosedError("the consume was stopped"))

    def drain(self) -> None:
        """End after what is buffered: no new pull, interest removed. Idempotent, never blocks: wait() waits."""
        self._session.drain(SubscriptionClosedError("the consume was drained"))

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until it has ended and the last callback has returned; False when `timeout` ran out.

        Raises what ended it: the consumer was deleted, the connection was closed for good.
        """
        self._session.nc._check_process()
        deadline = Deadline(timeout)
        for worker in self._workers:
            if worker is threading.current_thread():
                raise NatsError("wait() in the callback would wait for itself")
            worker.join(deadline.wait_time())
            if worker.is_alive():
                return False
        error = self.error
        if error is not None:
            raise error.with_traceback(None) from error.__cause__
        return True

    def __enter__(self) -> ConsumeContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.nc._forked:
            return
        self._session.end(SubscriptionClosedError("the consume was stopped"), discard=True)
        deadline = Deadline(STOP_SECONDS)
        for worker in self._workers:
            join_quietly(worker, deadline.wait_time())
        self._session.join(deadline.wait_time())

    # --- inside -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._alone:
                self._run_alone()
            else:
                self._run_in_turns()
        except NatsError as error:
            self._session.end(error)  # usually ended already: then this changes nothing
        finally:
            with self._counting:
                self._running -= 1
                last = self._running == 0
            if last:
                self._done = True
                self._leave_drain()
                if self._progress is not None:
                    self._progress.close()

    def _settle(self, deadline: Deadline) -> None:
        """The connection drains: what is buffered is handled while it can still be acknowledged."""
        # In this thread: it may be a worker, which is not waited for below, but the session must end in order.
        self._session.take_in(SubscriptionClosedError("the connection was drained"), deadline.wait_time())
        for worker in self._workers:
            join_quietly(worker, deadline.wait_time())
            if worker.is_alive() and worker is not threading.current_thread():
                raise TimeoutError("callbacks were still at work")

    def _leave_drain(self) -> None:
        try:
            self._session.nc._before_drained.remove(self._settle)
        except ValueError:
            pass  # a worker that was started before the next could not be was the last, and did it

    def _run_alone(self) -> None:
        """One worker has no turns to take, and reports what it has done a few messages at a time."""
        session = self._session
        nc, items, report, status = session.nc, session.items, session.taken, StampedStatus
        by_bytes, has_group = session.by_bytes, session.has_group
        callback = self._callback if self._progress is None else self._handle_in_progress
        done = size = 0
        quantum = 1
        while True:
            try:
                raw = items.popleft()
            except IndexError:
                raw = None
            if done and (raw is None or done >= quantum or type(raw) is status):
                quantum = report(done, size)
                done = size = 0
            if raw is None:
                raw = session.wait()
            if (has_group or type(raw) is status) and session.is_status(raw):
                continue
            try:
                callback(JetStreamMessage(raw, nc._link, session))
            except BaseException as error:  # noqa: BLE001 - see _handle
                session.report(error)
            done += 1
            if by_bytes:
                size += message_size(raw)

    def _run_in_turns(self) -> None:
        session = self._session
        while True:
            message = self._take()
            self._handle(message)
            with self._counting:
                session.processed(1, session.size_of(message._raw))

    def _take(self) -> JetStreamMessage:
        session = self._session
        with self._turn:
            while True:
                try:
                    raw = session.items.popleft()
                except IndexError:
                    raw = session.wait()
                if raw[2] is None or not session.is_status(raw):
                    session.received(1, session.size_of(raw))
                    return JetStreamMessage(raw, session.nc._link, session)

    def _handle(self, message: JetStreamMessage) -> None:
        try:
            if self._progress is None:
                self._callback(message)
            else:
                self._handle_in_progress(message)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, and must not end this thread
            self._session.report(error)  # the message stays unacknowledged and comes again

    def _handle_in_progress(self, message: JetStreamMessage) -> None:
        assert self._progress is not None
        self._progress.began(message)
        try:
            self._callback(message)
        finally:
            self._progress.finished(message)


class _Progress:
    """Sends in_progress for messages whose callback takes long, before their ack_wait runs out.

    And for those that wait behind it in the buffer: their ack_wait runs as well.
    """

    def __init__(self, session: Session) -> None:
        self._period = session.target.ack_wait / PROGRESS_PER_ACK_WAIT
        self._session = session
        self._lock = allocate_lock()  # guards _at_work
        self._at_work: dict[int, tuple[JetStreamMessage, float]] = {}
        self._closed = locked()
        self._thread = spawn(f"progress-{session.number}", self._run)

    def began(self, message: JetStreamMessage) -> None:
        with self._lock:
            self._at_work[id(message)] = (message, time.monotonic())

    def finished(self, message: JetStreamMessage) -> None:
        with self._lock:
            self._at_work.pop(id(message), None)

    def close(self) -> None:
        self._closed.release()

    def _run(self) -> None:
        while not self._closed.acquire(timeout=self._period / 2):
            for message in self._due():
                try:
                    message.in_progress()
                except NatsError as error:
                    self._session.report(error)
                    break  # the connection is gone, and with it the others

    def _due(self) -> list[JetStreamMessage]:
        """Messages whose callback has run for a while, and with them what waits in the buffer."""
        since = time.monotonic() - self._period / 2
        with self._lock:
            due = [message for message, began in self._at_work.values() if began <= since]
        if due:
            session = self._session
            waiting = session.inlet.mailbox.snapshot()
            link = session.nc._link
            due += [JetStreamMessage(raw, link, session) for raw in waiting if type(raw) is not StampedStatus]
        return due
