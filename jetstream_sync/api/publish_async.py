"""Pipelined publishing: many messages in flight at once, a future for each ack.

A publisher is a reply inbox whose `pending` holds a future per unanswered publish, in order of publication.

  caller        builds the frame, adds its future to `pending`, sends or coalesces the frame; waits while the
                window is full
  js-reader     takes futures out of `pending` and completes them. An answer that may be asked for again is noted
                in the future (`answer`) for js-publisher. On a disconnect it fails those that must not be sent
                twice, on a reconnect it sends the rest again
  js-publisher  started by the first publish. Fails what is overdue, and decides by publish_retry what is sent
                again: what was refused for now, and what has a message id and no answer at the end of its try.
                Blocks on its wake-up, at most until the earliest of these. Ends when the connection is closed, or
                when the context is gone and nothing is unanswered; then it closes the inbox

A thread that pops a future completes it; popping a dict is atomic, so each is completed once. Futures are added
under `_lock`, so that the window is never exceeded. A future that is to be sent again stays where it is, and
js-publisher alone changes its `retries` and `retry_at`. Iteration is over a copy() or the keys: making a list of
items() allocates, may collect garbage and switch threads.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable
from typing import Any

from .._deadline import Deadline, seconds
from .._threads import Waiters, Wakeup, spawn
from ..errors import ConnectionLostError, NatsError, PermissionsError, TimeoutError, TooManyStalledMsgsError
from ..net.link import Link
from ..net.requests import ReplyInbox
from ..protocol.parser import RawMessage
from .kinds import at_least
from .pub_ack_future import NEVER, PubAckFuture, complete_all, try_length
from .publish import Duration, parse_pub_ack, unknown_fate
from .publish_retry import ASK_SECONDS, DEFAULT_RETRIES, DEFAULT_RETRY_WAIT, Meaning, judge, meaning_of

DEFAULT_MAX_PENDING = 4000
# An ack begins with the stream's name. Errors and empty replies sort before it.
_ACK = b'{"s'


class AsyncPublisher(ReplyInbox[PubAckFuture]):
    """The window of unanswered publishes of one JetStream context. Thread-safe."""

    def __init__(self, link: Link, timeout: float, max_pending: int) -> None:
        super().__init__(link.options.inbox_prefix)
        self._link = link
        self._timeout = timeout
        self._lock = allocate_lock()  # guards adding to the window; held for a few instructions
        self._opened = False
        self._ready = False  # opened, not refused, not closed: nothing to look at before a publish
        self.window: Waiters = Waiters()
        self.max_pending = max_pending
        self._seat = allocate_lock()  # held by js-publisher: there is only one
        self._wakeup = Wakeup()
        self._wakes_at = NEVER
        # Timeout and retries of the newest publish with an id, and the length of its first try.
        self._share = (0.0, 0, NEVER)
        self._losses = 0  # of the connection
        self._lost = False  # from disconnected() to the end of reconnected()
        self._end: NatsError | None = None
        self._retired = False

    @property
    def max_pending(self) -> int:
        """How many publishes may be unanswered at once. A lower limit holds for those that follow."""
        return self._max_pending

    @max_pending.setter
    def max_pending(self, limit: int) -> None:
        self._max_pending = at_least("publish_async_max_pending", limit, 1)
        self.window.wake_all()

    # --- callers ----------------------------------------------------------------------------------

    def publish(
        self,
        subject: bytes,
        payload: bytes,
        block: bytes | None,
        *,
        has_msg_id: bool,
        timeout: Duration | None,
        retry_attempts: int,
        retry_wait: Duration,
    ) -> PubAckFuture:
        """Send a message. Blocks while the window is full, up to `timeout`."""
        limit = self._timeout if timeout is None else seconds(timeout) or 0.0
        # The usual types are checked here: a call each would be a tenth of the whole cost.
        pause = (
            retry_wait if type(retry_wait) is float and retry_wait >= 0.0 else seconds(retry_wait, "retry_wait")
        )
        if type(retry_attempts) is not int or retry_attempts < 0:
            at_least("retry_attempts", retry_attempts, 0)
        if not self._ready:
            self._get_ready()
        link = self._link
        reply = self.new_reply()
        frame, size = link.frame(subject, payload, reply, block)
        now = time.monotonic()
        future = PubAckFuture(self, subject, frame, size, now + limit)
        if retry_attempts != DEFAULT_RETRIES or pause != DEFAULT_RETRY_WAIT:
            future.retries = retry_attempts
            future.retry_wait = pause or 0.0
        if has_msg_id:
            future.has_msg_id = True
            share = self._share
            if share[0] != limit or share[1] != retry_attempts:
                share = self._share = (limit, retry_attempts, try_length(limit, retry_attempts))
            future.try_ends = now + share[2]
        losses = self._losses
        try:
            if not self._add(reply, future):
                self._wait_for_window(reply, future, limit)
            # A single one leaves at once.
            link.outbox.publish(frame, size, keep=False, coalesce=len(self.pending) > 1)
            if future.deadline < self._wakes_at or (has_msg_id and future.try_ends < self._wakes_at):
                self._wakeup.set()
        except BaseException:  # no caller gets to hold the future: it must not keep its place in the window
            self.pending.pop(reply, None)
            link.outbox.withdraw(frame)
            self.window.wake_all()
            raise
        ended = None if self._ready else self._end or self.refused
        if ended is not None:
            self.fail([reply], ended)  # meanwhile: closed() or denied() may not have seen it
        if losses != self._losses and future.done():
            link.outbox.withdraw(frame)  # failed before it was queued: it must not be sent any more
        return future

    def _get_ready(self) -> None:
        self._link.check_usable()
        if not self._opened:
            # Each step may be repeated: several callers may come at once, or a signal handler may have raised.
            self._link.open(self)
            self._link.add_drain_step(self.wait)
            spawn("publisher", self._run)
            self._opened = self._ready = True
            if self.refused is not None or self._end is not None:
                self._ready = False  # denied() or closed() came before this thread said otherwise
        if self.refused is not None:
            raise self.refused.with_traceback(None)

    def _add(self, reply: bytes, future: PubAckFuture) -> bool:
        """Take a place in the window. False when there is none."""
        with self._lock:
            if len(self.pending) >= self._max_pending:
                return False
            self.pending[reply] = future
            return True

    def _wait_for_window(self, reply: bytes, future: PubAckFuture, limit: float) -> None:
        """Block until `future` has its place in the window; its own time starts then."""

        def entered() -> bool:
            future.deadline = time.monotonic() + limit
            future.begin_try(limit)
            return self._add(reply, future)

        self.flush()
        if not self.window.wait_until(entered, Deadline(limit)):
            raise TooManyStalledMsgsError(
                f"{len(self.pending)} publishes are unanswered after {limit} s: this one was not sent"
            )

    def wait(self, deadline: Deadline) -> None:
        """Block until nothing is unanswered; also a step of the connection's drain(). Raises TimeoutError."""
        self.flush()
        if not self.window.wait_until(lambda: not self.pending, deadline):
            raise TimeoutError(f"{len(self.pending)} publishes are still unanswered")

    def flush(self) -> None:
        """Send what was coalesced. Raises ForkError in a child: its parent's futures are never completed there."""
        self._link.check_process()
        self._link.outbox.flush()

    def submit(self, callback: Callable[[], Any]) -> None:
        """Run a future's done-callbacks where user code runs."""
        self._link.call(lambda _: callback(), None)

    def retire(self) -> None:
        """The context is gone, no caller can publish any more. Takes no lock: called by a finalizer."""
        self._retired = True
        self._wakeup.set()

    # --- reader thread, or the thread that closes the connection --------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        pop = self.pending.pop
        answered = []
        for raw in messages:
            if raw[3] < _ACK and self._noted(raw):
                continue
            future = pop(raw[0], None)
            if future is not None:
                answered.append((future, raw))
        complete_all(answered)
        self.window.wake_all()

    def _noted(self, raw: RawMessage) -> bool:
        """Leave an answer that may be asked for again to js-publisher. False: it is final."""
        future = self.pending.get(raw[0])
        if future is None:
            return False
        try:
            parse_pub_ack(raw[3], raw[2], future.subject)
        except NatsError as error:
            if meaning_of(error) is Meaning.FINAL:
                return False
            future.answer = error
            self._wakeup.set()
            return True
        return False

    def remaining(self) -> int:
        left = super().remaining()
        self._ready = self._opened and self._end is None
        return left

    def denied(self, error: PermissionsError) -> None:
        self._ready = False
        super().denied(error)

    def disconnected(self) -> None:
        """Sent and unanswered: stored or not, the client cannot know. Only what has an id may be sent again."""
        self._losses += 1
        self._lost = True
        unsafe = {}
        for reply, future in self.pending.copy().items():
            if future.answer is not None or future.retry_at != NEVER:
                continue  # answered, and it has not been sent since: js-publisher will
            if future.has_msg_id:
                future.maybe_stored = future.resend = True
            else:
                unsafe[reply] = future.frame
        self._link.outbox.withdraw(*unsafe.values())
        self.fail(unsafe, ConnectionLostError("the connection was lost before the ack came: it may be stored"))

    def reconnected(self) -> None:
        now = time.monotonic()
        for future in list(self.pending.values()):
            if future.has_msg_id:
                future.begin_try(future.deadline - now)
            if future.resend:
                future.resend = False
                self._send_again(future)
        self._lost = False
        self._wakeup.set()

    def closed(self, error: NatsError) -> None:
        self._end = error
        self._ready = False
        super().closed(error)
        self._wakeup.set()

    def fail(self, replies: Iterable[bytes], error: NatsError) -> None:
        super().fail(replies, error)
        self.window.wake_all()

    def _send_again(self, future: PubAckFuture) -> bool:
        """False: not connected, and the buffer is full; or closed, and closed() fails the future."""
        frame = future.frame
        if future.done():
            return True  # and the frame may be gone with its ack
        try:
            self._link.outbox.publish(frame, future.size, keep=False, coalesce=True)
        except NatsError:
            return False
        if future.done():
            self._link.outbox.withdraw(frame)  # failed meanwhile: it must not be sent any more
        return True

    # --- js-publisher -----------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._seat.acquire(blocking=False):
            return  # another caller of _open() has started one
        while self._end is None:
            self._wakes_at = NEVER  # a future that is added during the sweep wakes this thread
            self._wakes_at = wakes_at = self._sweep(time.monotonic())
            if self._retired and not self.pending:
                break  # looked at after the sweep, which would say "for ever" for want of entries
            self._wakeup.wait(wakes_at - time.monotonic())
        self._link.remove_drain_step(self.wait)
        self._link.close(self)

    def _sweep(self, now: float) -> float:
        """Fail what is overdue, send again what is due. Returns when to look next."""
        earliest = NEVER
        overdue = {}
        # The status alone is not enough: tries begin anew in reconnected(), a moment after it.
        connected = self._link.connected and not self._lost
        for reply, future in self.pending.copy().items():
            if future.deadline <= now:
                overdue[reply] = future
                continue
            answer, future.answer = future.answer, None
            if answer is not None:
                self._judge(reply, future, meaning_of(answer), answer, now)
            elif future.try_ends <= now and future.retry_at == NEVER:
                if connected and not future.resend:
                    self._judge(reply, future, Meaning.NO_ANSWER, None, now)
                else:
                    future.begin_try(future.deadline - now)  # no answer can come: the try begins with the session
            if future.retry_at <= now:
                future.retry_at = NEVER
                future.begin_try(future.deadline - now)
                if not self._send_again(future):
                    future.retry_at, future.try_ends = now + ASK_SECONDS, NEVER
            earliest = min(earliest, future.deadline, future.try_ends, future.retry_at)
        if overdue:
            unsent = set(map(id, self._link.outbox.withdraw(*(future.frame for future in overdue.values()))))
            for reply, future in overdue.items():
                unsent_try = id(future.frame) in unsent or (future.retry_at != NEVER and not connected)
                never_sent = unsent_try and not future.maybe_stored
                self.fail(
                    [reply], self._link.not_sent(future.subject) if never_sent else unknown_fate(future.subject)
                )
        return earliest

    def _judge(
        self, reply: bytes, future: PubAckFuture, meaning: Meaning, error: NatsError | None, now: float
    ) -> None:
        """Decide when a future whose try has ended is sent again. Fails it with `error` where that is final."""
        verdict = judge(
            meaning,
            has_msg_id=future.has_msg_id,
            retries=future.retries,
            retry_wait=future.retry_wait,
            maybe_stored=future.maybe_stored,
            left=future.deadline - now,
        )
        future.retries, future.maybe_stored = verdict.retries, verdict.maybe_stored
        future.try_ends = NEVER
        if verdict.pause is not None:
            future.retry_at = now + verdict.pause
        elif error is not None and not verdict.maybe_stored:
            self.fail([reply], error)
        # Otherwise a copy may be stored: its ack may come until the deadline.
