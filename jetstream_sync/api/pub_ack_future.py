"""The future of one asynchronous publish. The publisher also keeps its record of that publish in it."""

from __future__ import annotations

import concurrent.futures
import time
from _thread import RLock, allocate_lock
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .._deadline import Deadline
from .._platform import on_fork
from .._threads import Waiters, acquire
from ..errors import NatsError
from ..protocol.parser import RawMessage
from .info import PubAck
from .publish import parse_pub_ack
from .publish_retry import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT, try_seconds

if TYPE_CHECKING:
    from .publish_async import AsyncPublisher

# The private names of concurrent.futures.Future that PubAckFuture replaces or uses: no documented interface, so a
# Python version may change them. test_pub_ack_future.py then fails and names what changed.
REPLACED_FIELDS = ("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks")
USED_METHODS = ("_invoke_callbacks",)
_PENDING = "PENDING"
_FINISHED = "FINISHED"
_making_lock = allocate_lock()
NEVER = float("inf")  # on the monotonic clock

# A future's lock is held for some instructions. One that is not free after so long was left taken by a signal
# handler that raised in concurrent.futures.wait(), which takes those of all its futures one after the other.
LEFT_TAKEN_SECONDS = 2.0
# For the next ones after that: they are many.
MORE_LEFT_TAKEN_SECONDS = 0.002
_left_taken_at = -NEVER  # when one was found last


class PubAckFuture(Future[PubAck]):
    """The future of an asynchronous publish. Its result is a PubAck.

    Done-callbacks run on the connection's callback thread. It cannot be cancelled: the message has been sent.

    It is cheap while no thread waits for it. A standard future creates a Condition in its constructor; this one
    creates a lock when a thread first waits, and decodes the ack when the result is first read. The state changes
    under that lock or, before there is one, under the lock for creating locks. So concurrent.futures.wait() and
    as_completed(), which hold it, see a future that is done or one that will notify them, never both.

    No thread waits on a Condition: one that a signal handler interrupts may leave its lock in either state.
    """

    # The fields that Future's methods use. They are class attributes until they are set, which saves memory:
    # thousands of futures may be pending.
    _state = _PENDING
    _result: PubAck | None = None
    _exception: BaseException | None = None
    # Payload and header block of the reply until the result is read. Not the message itself: it is a tuple, and
    # with thousands of replies the garbage collector would have as many more objects to look at.
    _body: bytes | None = None
    _block: bytes | None = None
    _lazy_lock: RLock | None = None
    _waiting: Waiters  # from when there is a lock: threads in result() and exception()
    # Lists from when there is a lock: only code that holds it uses them, here and in Future.
    _waiters: Any = ()
    _done_callbacks: Any = ()

    # The publisher's record of the publish while it waits for the ack.
    has_msg_id: bool = False
    retries: int = DEFAULT_RETRIES
    retry_wait: float = DEFAULT_RETRY_WAIT
    try_ends: float = NEVER  # when an answer that has not come counts as lost
    answer: NatsError | None = None  # to the present try, until js-publisher has judged it
    retry_at: float = NEVER
    resend: bool = False  # on the next session
    maybe_stored: bool = False  # an earlier copy

    def __init__(
        self, publisher: AsyncPublisher, subject: bytes, frame: bytes, size: int, deadline: float
    ) -> None:
        # Not Future.__init__, which would create the Condition.
        self._publisher = publisher
        self.subject = subject
        self.frame: bytes = frame
        self.size = size
        self.deadline = deadline

    def begin_try(self, left: float) -> None:
        """The message is about to be sent, `left` seconds before its deadline."""
        if self.has_msg_id:
            self.try_ends = self.deadline - left + try_length(left, self.retries)

    @property
    def _condition(self) -> RLock:  # type: ignore[override]  # a Condition in Future, made at once there
        if self._lazy_lock is None:
            with _making_lock:
                if self._lazy_lock is None:
                    self._waiters = []
                    self._done_callbacks = []
                    self._waiting = Waiters()
                    self._lazy_lock = RLock()
        return self._lazy_lock

    def complete(self, raw: RawMessage | None, error: BaseException | None) -> None:
        """Set the reply, or the error. Called once, by the thread that took the future out of the pending ones."""
        if raw is not None:
            self._block, self._body = raw[2], raw[3]
        self._exception = error
        if self._lazy_lock is None:
            with _making_lock:
                if self._lazy_lock is None:
                    self._state = _FINISHED
                    self.frame = b""  # last: a thread that finds the frame empty must find the future done
                    return
        lock = self._take_lock(self._lazy_lock)
        try:
            self._state = _FINISHED
            self.frame = b""  # programs may keep futures for long; the payload need not stay in memory
            self._waiting.wake_all()
            for waiter in self._waiters:  # of concurrent.futures.wait and as_completed
                self._read()
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
        finally:
            lock.release()
        if self._done_callbacks:  # none can be added any more
            self._publisher.submit(self._invoke_callbacks)  # type: ignore[attr-defined]

    def _take_lock(self, lock: RLock) -> RLock:
        """Take `lock`. One that was left taken is replaced: js-reader must not wait for it for ever."""
        global _left_taken_at
        found = time.monotonic() - _left_taken_at < LEFT_TAKEN_SECONDS
        if not acquire(lock, MORE_LEFT_TAKEN_SECONDS if found else LEFT_TAKEN_SECONDS):
            _left_taken_at = time.monotonic()
            lock = RLock()
            lock.acquire()
            self._lazy_lock = lock
        return lock

    def result(self, timeout: float | None = None) -> PubAck:
        """The ack. Blocks up to `timeout` seconds; None (default) blocks until the publish succeeds or fails.

        Raises the error of the publish, or concurrent.futures.TimeoutError after `timeout` seconds.
        """
        if self._state == _PENDING:
            self._wait(timeout)
        if self._body is not None:
            self._read()
        if self._result is not None:
            return self._result
        try:
            assert self._exception is not None
            # Without the traceback of earlier calls: a lost connection fails many futures with one error object.
            raise self._exception.with_traceback(None)
        finally:
            del self  # breaks the cycle of this frame, the traceback and the exception

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the publish, or None. Blocks like result()."""
        if self._state == _PENDING:
            self._wait(timeout)
        self._read()
        return self._exception

    def done(self) -> bool:
        """Whether the publish has succeeded or failed."""
        return self._state == _FINISHED

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def _wait(self, timeout: float | None) -> None:
        deadline = Deadline(None if timeout is None else max(0.0, timeout))
        self._publisher.flush()
        _ = self._condition  # makes _waiting
        if not self._waiting.wait_until(self.done, deadline):
            raise concurrent.futures.TimeoutError()

    def __dir__(self) -> Iterable[str]:
        # What a user sees is a Future. The publisher's record is in it because an object more per publish costs.
        return dir(Future)

    def __repr__(self) -> str:
        # Not Future's, which takes the Condition: a signal handler may have interrupted the code that holds it.
        if self._state == _PENDING:
            return f"<PubAckFuture {_text(self.subject)} pending>"
        self._read()
        result, error = self._result, self._exception
        outcome = f"raised {type(error).__name__}" if result is None else f"returned {result!r}"
        return f"<PubAckFuture {_text(self.subject)} {outcome}>"

    def _read(self) -> None:
        """Decode the reply, if that has not been done. Two threads may do so at once, with equal results."""
        body = self._body
        if body is None:
            return
        try:
            self._result = parse_pub_ack(body, self._block, self.subject)
        except NatsError as error:
            self._exception = error
        self._body = None


def _text(subject: bytes) -> str:
    return repr(subject.decode("utf-8", "surrogateescape"))


def try_length(left: float, retries: int) -> float:
    """How long a try with a message id waits for its answer. The last one has no end but the deadline."""
    return try_seconds(left, retries) if retries else NEVER


def complete_all(answered: list[tuple[PubAckFuture, RawMessage]]) -> None:
    """complete() for a run of replies, taking the lock once for all futures that no thread waits for."""
    watched = []
    with _making_lock:
        for future, raw in answered:
            if future._lazy_lock is None:
                future._block, future._body = raw[2], raw[3]
                future._state = _FINISHED
                future.frame = b""  # last, as in complete()
            else:
                watched.append((future, raw))
    for future, raw in watched:
        future.complete(raw, None)


def _after_fork_in_child() -> None:
    """The parent's thread that may have held the lock, such as its reader, does not exist here to release it."""
    global _making_lock
    _making_lock = allocate_lock()


on_fork(_after_fork_in_child)
