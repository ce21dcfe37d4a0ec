"""Behind messages() and consume() of an ordered consumer (ADR-17).

An ordered consumer is a chain of ephemeral consumers on the server, *incarnations*. Each has an inbox of its own,
so nothing of an old one can be taken for the present one's, and a consumer sequence that must run 1, 2, 3 …
without a gap. The position is the stream sequence of the last message handed out: the next one starts right behind
it. Nothing else decides what the user sees, so it does not matter what an old incarnation had sent, or to whom.

Who does what in messages() and consume():

  taker        takes from the present incarnation's mailbox and compares sequences. When the incarnation is lost
               (a gap, a missed heartbeat, a disconnect, a deletion, no responders), starts js-ordered and waits.
  js-ordered   at most one, while there is no incarnation: creates the next one, backing off while that fails,
               and hands it over. Blocks in one API request at a time and in the back-off, which `end` cuts short.
               Ends with the hand-over, a definite error, or the end of the session.
  js-refill    of the present incarnation (see PullSession): a missed heartbeat ends it, which closes its mailbox
               and so wakes the taker.
  reader       a disconnect ends the incarnation in the same way: what the server had sent on the old connection
               is lost to its consumer, though not to the stream.

`OrderedCursor._lock` guards the position and whose it is, `OrderedSession._lock` how the session stands. Nothing
blocks under either. To delete an incarnation is to publish a request whose answer nobody waits for; what that
misses, inactive_threshold removes.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections import deque

from .._deadline import Deadline
from .._threads import Mailbox, join_quietly, locked, run_detached, spawn
from ..errors import (
    ConnectionLostError,
    ConsumerDeletedError,
    MissedHeartbeatError,
    NatsError,
    NoRespondersError,
    NotJSMessageError,
    SequenceMismatchError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..protocol.parser import RawMessage
from .inlet import StampedStatus
from .ordered_cursor import LOST, ErrorCallback, OrderedCursor, log, log_failed_try
from .pull_options import ConsumeOptions
from .pull_session import PullSession
from .session import Session
from .status import Kind, classify
from .target import PullTarget

# What an endless session rides out; more than a fetch does.
RIDDEN_OUT = (*LOST, ConnectionLostError, MissedHeartbeatError)


class CheckedBacklog:
    """What has arrived from the present incarnation, handed out as long as it is the next message in order.

    For the taker alone. Empty to those who ask: whatever is not the next message takes OrderedSession.wait().
    """

    __slots__ = ("_claim", "_cursor", "items")

    def __init__(self, cursor: OrderedCursor, claim: object) -> None:
        self._cursor = cursor
        self._claim = claim
        self.items: deque[RawMessage] = deque()

    def __len__(self) -> int:
        return 0

    def popleft(self) -> RawMessage:
        raw = self.items.popleft()
        if type(raw) is not StampedStatus:
            try:
                self._cursor.advance(self._claim, raw)
                return raw
            except NatsError:
                pass
        self.items.appendleft(raw)
        raise IndexError


class Incarnation(PullSession):
    """The pulls from one incarnation. It ends with whatever may have cost it a message; its owner goes on."""

    def __init__(
        self, owner: OrderedSession, cursor: OrderedCursor, target: PullTarget, options: ConsumeOptions
    ) -> None:
        self._owner = owner
        self._cursor = cursor
        super().__init__(target, options, check=None, on_error=None)

    def report(self, error: BaseException) -> None:
        self._owner.report(error)
        if isinstance(error, (MissedHeartbeatError, NoRespondersError)):
            self.end(error)

    def on_disconnect(self) -> None:
        self.end(ConnectionLostError("the connection was lost"))

    def on_reconnect(self) -> None:
        if not self._connected:  # the disconnect came before this object could be told of it
            self.on_disconnect()

    def on_closed(self, error: NatsError) -> None:
        self._owner.end(error)

    def _on_status(self, raw: StampedStatus) -> None:
        super()._on_status(raw)
        if classify(raw.status).kind is Kind.HEARTBEAT:
            self._cursor.check_heartbeat(raw[2])


class OrderedSession(Session):
    """An endless run of messages in stream order: what a PullSession is to a consumer. See the module's text."""

    acks = False

    def __init__(
        self, cursor: OrderedCursor, options: ConsumeOptions, *, on_error: ErrorCallback | None = None
    ) -> None:
        """Creates the first incarnation and sends its first pull. Raises when that fails."""
        self.nc = cursor.nc
        self._cursor = cursor
        self._options = options
        self._on_error = on_error
        self._lock = allocate_lock()
        self._ended: NatsError | None = None
        self._draining: NatsError | None = None
        self._stopped = locked()  # released by end(): cuts a back-off short
        self._handover: Mailbox[Incarnation] = Mailbox()
        self._present: Incarnation | None = None  # the newest
        self._taking: Incarnation | None = None  # the taker's: None while it waits for another
        self._thread: threading.Thread | None = None
        self._claim = cursor.claim(self)
        self.items = self._checked = CheckedBacklog(cursor, self._claim)
        try:
            target = cursor.current(self._pause, Deadline(cursor.client.timeout), log_failed_try)
            self._take_from(self._begin(target))
        except BaseException:
            self.end(SubscriptionClosedError("the consume could not start"))
            raise

    @property
    def in_use(self) -> bool:
        """Until it has ended and what is buffered has been taken."""
        return self._ended is None or bool(self._taking is not None and self._taking.items)

    @property
    def ended(self) -> NatsError | None:
        return self._ended

    # --- taker ------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> RawMessage:
        """The next message of the stream. Raises TimeoutError, or what ended the session."""
        try:
            return self._checked.popleft()
        except IndexError:
            pass  # and not from here: what is raised would carry this error as its context
        deadline = Deadline(timeout)
        while True:
            present = self._taking or self._take_from(self._handover.get(deadline.remaining()))
            try:
                raw = present.wait(deadline.remaining())
                if type(raw) is StampedStatus:
                    present.is_status(raw)
                    continue
                self._cursor.advance(self._claim, raw)
                return raw
            except TimeoutError:
                raise
            except NatsError as error:
                self._recover(present, error)

    def is_status(self, raw: RawMessage) -> bool:
        """No: wait() has judged it."""
        return False

    # Messages are counted for the incarnation that sent them: the taker does so before each wait(), and only that
    # brings another incarnation.

    def taken(self, count: int, size: int) -> int:
        return self._taken_from.taken(count, size)

    def received(self, count: int, size: int) -> None:
        self._taken_from.received(count, size)

    def processed(self, count: int, size: int) -> None:
        self._taken_from.processed(count, size)

    def size_of(self, raw: RawMessage) -> int:
        return self._taken_from.size_of(raw)

    @property
    def by_bytes(self) -> bool:
        return self._options.max_bytes is not None

    @property
    def has_group(self) -> bool:
        return False

    @property
    def _taken_from(self) -> Incarnation:
        assert self._taking is not None  # wait() has returned a message of it
        return self._taking

    def _take_from(self, incarnation: Incarnation) -> Incarnation:
        self._taking = incarnation
        self._checked.items = incarnation.inlet.mailbox.items
        self.number, self.target, self.inlet = incarnation.number, incarnation.target, incarnation.inlet
        return incarnation

    def _recover(self, lost: Incarnation, error: NatsError) -> None:
        """Have another incarnation take over from `lost`, or raise what ends the session."""
        if self.nc._forked:
            raise error
        lost.end(error, discard=True)  # what is behind a gap comes again
        reason = self._ended or self._draining
        if reason is not None:
            raise reason.with_traceback(None)
        if not isinstance(error, RIDDEN_OUT):
            self.end(error)
            raise error
        self._taking = None
        self._cursor.abandon()
        self._cursor.troubled()
        if isinstance(error, (ConsumerDeletedError, SequenceMismatchError, NotJSMessageError)):
            self.report(error)  # of the others, some have been reported; a lost connection is not ours to report
        self._thread = spawn(f"ordered-{self.number}", self._run)

    def report(self, error: BaseException) -> None:
        """Tell on_error, on the connection's callback thread, or the log."""
        if self._on_error is not None:
            self.nc._callbacks.submit(self._on_error, error)
        else:
            log.warning("ordered consumer of %s: %s", self._cursor.stream_name, error)

    # --- ending -----------------------------------------------------------------------------------

    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        """No further message but what is buffered (unless `discard`); has the consumer deleted.

        The first call counts.
        """
        if self.nc._forked:
            return  # a forked child does not speak for its parent
        with self._lock:
            first = self._ended is None
            if first:
                self._ended = reason
            present = self._present
        if present is not None:
            present.end(reason, discard=discard)
        if first:
            self._stopped.release()
            self._handover.close(reason)
            self._cursor.settle(self._claim, clean=False)

    def drain(self, reason: NatsError) -> None:
        """No further pull from now on; what the server has sent already is taken in, then the session ends.

        Returns at once and works from anywhere: a short thread waits for the server, drain_timeout at most.
        """
        self.nc._check_process()
        self._draining = reason
        run_detached(self.take_in, reason, self.nc._options.drain_timeout)

    def take_in(self, reason: NatsError, timeout: float) -> None:
        self._draining = reason
        with self._lock:
            present = self._present  # the last: js-ordered looks at _draining under the lock
        if present is not None:
            present.take_in(reason, timeout)
        self.end(reason)

    def join(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        join_quietly(self._thread, deadline.wait_time())
        if self._present is not None:
            self._present.join(deadline.wait_time())

    # --- js-ordered ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            target = self._cursor.create(self._pause, Deadline(None), self.report)
            self._handover.put(self._begin(target))
        except NatsError as error:
            self.end(error)  # when it has ended already, this changes nothing

    def _begin(self, target: PullTarget) -> Incarnation:
        """Pull from `target`, unless the session has ended meanwhile: then raises why."""
        incarnation = Incarnation(self, self._cursor, target, self._options)
        with self._lock:
            reason = self._ended or self._draining
            if reason is None:
                self._present = incarnation
                return incarnation
        incarnation.end(reason, discard=True)
        self._cursor.delete(target.name)
        raise reason.with_traceback(None)

    def _pause(self, wait: float) -> None:
        """Sleep, or raise as soon as the session has ended."""
        if self._stopped.acquire(timeout=wait):
            assert self._ended is not None
            raise self._ended.with_traceback(None)
