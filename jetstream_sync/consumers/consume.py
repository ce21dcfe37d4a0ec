"""consume(callback): messages handled on threads of the library's own.

js-consume-<n>   max_workers of them, started by start_consume(). A single one iterates over the feed. Several take
                 one message at a time, in turns, so that statuses are judged in order; each calls back and counts
                 its message as processed. Blocks in the mailbox, in the turn lock and in user code. Ends when the
                 feed has ended and nothing is left to take: ending closes the mailbox, which wakes the one that
                 waits there, which releases the turn.
js-refill-<n>    of the feed: with auto_progress it is told what callbacks hold, and asks the server for more time
                 for it. It goes on until the last callback has returned.

`_turn` is held by the worker that takes a message, also while it waits for one; `_counting` for a few
instructions, by a worker that counts. Only workers take them, and signal handlers never run in workers.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .._deadline import Deadline
from .._threads import join, join_quietly, spawn
from ..api.message import JetStreamMessage
from ..errors import ConnectionClosedError, NatsError, SubscriptionClosedError, TimeoutError
from .progress import Progress
from .pull_options import message_size
from .take import Endless, loop, take_raw

# Leaving the `with` block waits this long for callbacks in progress.
STOP_SECONDS = 5.0

Callback = Callable[[JetStreamMessage], Any]


class ConsumeContext:
    """A consume in progress. stop() and drain() may be called from anywhere: the callback, other threads, signal
    handlers. As a context manager it stops when the block is left."""

    __slots__ = (
        "__weakref__",
        "_callback",
        "_counting",
        "_feed",
        "_max_workers",
        "_running",
        "_turn",
        "_workers",
    )

    def __init__(self, feed: Endless, callback: Callback, max_workers: int, auto_progress: bool) -> None:
        """Starts nothing: start_consume() does, because a signal handler may raise right behind a constructor."""
        if auto_progress:
            feed.track_progress()
        self._feed = feed
        self._callback = callback if feed.progress is None else _holding(callback, feed.progress)
        self._turn = allocate_lock()
        self._counting = allocate_lock()
        self._running = self._max_workers = max_workers
        self._workers: list[threading.Thread] = []

    @property
    def closed(self) -> bool:
        """Whether it has ended and the last callback has returned."""
        return self._running == 0

    @property
    def error(self) -> NatsError | None:
        """What ended it; None while it runs and after stop() or drain()."""
        reason = self._feed.ended
        return None if isinstance(reason, SubscriptionClosedError) else reason

    def stop(self) -> None:
        """End at once. What is buffered and was given to no callback is nak'ed, so that another client of the
        consumer gets it at once; callbacks in progress end by themselves.

        Idempotent, waits for nothing: wait() waits. Without a connection the server delivers again what is not
        acknowledged, after ack_wait.
        """
        self._feed.stop(SubscriptionClosedError("the consume was stopped"))

    def drain(self, buffered: str = "process") -> None:
        """End after what is buffered: no new pull, interest removed. Idempotent, never blocks: wait() waits.

        With `buffered="nak"` only what callbacks hold is finished; what is buffered is handed back to the server,
        as stop() does.
        """
        self._feed.drain(SubscriptionClosedError("the consume was drained"), buffered)

    def stop_progress(self, msg: JetStreamMessage) -> None:
        """With `auto_progress`: ask the server for no more time for `msg`, so that it is delivered again when its
        ack_wait runs out. For a message that no callback holds: nothing. Any thread, never blocks."""
        if self._feed.progress is not None:
            self._feed.progress.release(msg)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until it has ended and the last callback has returned; False when `timeout` ran out.

        Raises what ended it: the consumer was deleted, the connection was closed for good.
        """
        self._feed.link.check_process()
        deadline = Deadline(timeout)
        for worker in self._workers:
            if worker is threading.current_thread():
                raise NatsError("wait() in the callback would wait for itself")
            if not join(worker, deadline.wait_time()):
                return False
        error = self.error
        if error is not None:
            raise error.with_traceback(None) from error.__cause__
        return True

    def __repr__(self) -> str:
        feed = self._feed
        return f"<ConsumeContext of {feed.title}: {feed.state} workers={self._running} buffered={len(feed.items)}>"

    def __enter__(self) -> ConsumeContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._feed.link.forked:
            return
        self._feed.end(SubscriptionClosedError("the consume was stopped"), discard=True)
        deadline = Deadline(STOP_SECONDS)
        for worker in self._workers:
            join_quietly(worker, deadline.wait_time())
        self._feed.join(deadline.wait_time())

    # --- inside -------------------------------------------------------------------------------------

    def _start(self) -> None:
        feed = self._feed
        try:
            feed.start()
            feed.link.add_drain_step(self._drain_step)  # before the workers, the last of which removes it
            for _ in range(self._max_workers):
                self._workers.append(spawn(f"consume-{feed.number}", self._run))
        except BaseException:  # no thread to be had, or a signal handler raised: no code gets to hold the context
            feed.end(SubscriptionClosedError("the consume could not start"), discard=True)
            self._finish()
            raise

    def _finish(self) -> None:
        self._feed.link.remove_drain_step(self._drain_step)

    def _run(self) -> None:
        try:
            if self._max_workers == 1:
                self._run_alone()
            else:
                self._run_in_turns()
        except NatsError as error:
            self._feed.end(error)  # usually ended already: then this changes nothing
        finally:
            with self._counting:
                self._running -= 1
                last = not self._running
            if last:
                self._report_end()
            if self.closed:  # two of them may see it: that does no harm
                self._finish()

    def _report_end(self) -> None:
        """A consume that ends because its consumer is gone says so, though no thread may be in wait()."""
        reason = self._feed.ended
        if reason is not None and not isinstance(reason, (SubscriptionClosedError, ConnectionClosedError)):
            self._feed.report(reason)

    def _drain_step(self, deadline: Deadline) -> None:
        """The connection drains: what is buffered is handled while it can still be acknowledged."""
        # In this thread: it may be a worker, which is not waited for below, but the feed must end in order.
        self._feed.drain_now(SubscriptionClosedError("the connection was drained"), deadline)
        for worker in self._workers:
            join_quietly(worker, deadline.wait_time())
            if worker.is_alive() and worker is not threading.current_thread():
                raise TimeoutError("callbacks were still at work")

    def _run_alone(self) -> None:
        for message in loop(self._feed, when_done=True):
            try:
                self._callback(message)
            except BaseException as error:  # noqa: BLE001 - user code may raise anything; the thread goes on
                self._feed.callback_raised(error, message)  # the message stays unacknowledged and comes again

    def _run_in_turns(self) -> None:
        feed, forever = self._feed, Deadline(None)
        while True:
            with self._turn:
                raw = take_raw(feed, forever, processed=False)
            message = JetStreamMessage(raw, feed.link, feed.source)
            began = time.monotonic()
            try:
                self._callback(message)
            except BaseException as error:  # noqa: BLE001 - as above
                feed.callback_raised(error, message)
            with self._counting:
                feed.processed(1, message_size(raw) if feed.sized else 0, time.monotonic() - began)


def start_consume(feed: Endless, callback: Callback, max_workers: int, auto_progress: bool) -> ConsumeContext:
    """Start a feed and the threads that call back."""
    context = ConsumeContext(feed, callback, max_workers, auto_progress)
    context._start()
    return context


def _holding(callback: Callback, progress: Progress) -> Callback:
    """`callback`, while `progress` is told what it holds."""

    def handle(message: JetStreamMessage) -> None:
        try:
            progress.hold(message)
            callback(message)
        finally:
            progress.release(message)

    return handle
