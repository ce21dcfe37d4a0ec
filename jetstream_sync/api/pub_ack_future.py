"""The future of one asynchronous publish, which is also the publisher's note of it."""

from __future__ import annotations

import concurrent.futures
import os
import time
from _thread import allocate_lock
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition
from typing import TYPE_CHECKING, Any

from ..errors import NatsError
from ..protocol.parser import RawMessage
from .info import PubAck
from .publish import parse_pub_ack

if TYPE_CHECKING:
    from .publish_async import AsyncPublisher

# The private names of concurrent.futures.Future that PubAckFuture replaces or uses: no documented interface, so a
# Python version may change them. test_pub_ack_future.py then fails and names what changed.
REPLACED_FIELDS = ("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks")
USED_METHODS = ("_invoke_callbacks",)
_PENDING = "PENDING"
_FINISHED = "FINISHED"

_making_condition = allocate_lock()


class PubAckFuture(Future[PubAck]):
    """A future that costs little while nobody waits on it.

    A standard future makes a Condition at once and has its result when it is set. This one makes the Condition
    when somebody waits, and reads the ack when somebody asks. The state changes under the Condition, or under the
    lock under which Conditions are made: concurrent.futures.wait and as_completed, which hold the Condition, see a
    future either done or to be told of, never both.
    Done-callbacks run on the connection's callback thread. It cannot be cancelled: the message is on its way.
    """

    # The fields that Future's methods use, here until they are set: thousands of futures may be under way.
    _state = _PENDING
    _result: PubAck | None = None
    _exception: BaseException | None = None
    # The answer's payload and header block until somebody asks. Not the message, a tuple: thousands of answers may
    # be kept, and each tuple would be one more thing for the garbage collector to look at.
    _body: bytes | None = None
    _block: bytes | None = None
    _lazy_condition: Condition | None = None
    _lazy_waiters: list[Any] | None = None
    _lazy_callbacks: list[Callable[[Future[PubAck]], Any]] | None = None

    # What the publisher notes of a publish on its way.
    has_msg_id: bool = False
    retries: int = 0
    retry_wait: float = 0.0
    retry_at: float | None = None
    resend: bool = False

    def __init__(
        self, publisher: AsyncPublisher, subject: bytes, frame: bytes, size: int, deadline: float
    ) -> None:
        # Not Future.__init__, which would make the Condition.
        self._publisher = publisher
        self.subject = subject
        self.frame = frame
        self.size = size
        self.deadline = deadline

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # an attribute in Future
        """Used only by those who hold the Condition, here and in Future; so is the next one."""
        if self._lazy_waiters is None:
            self._lazy_waiters = []
        return self._lazy_waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Future[PubAck]], Any]]:
        if self._lazy_callbacks is None:
            self._lazy_callbacks = []
        return self._lazy_callbacks

    @property
    def _condition(self) -> Condition:  # type: ignore[override]  # an attribute in Future, made at once there
        if self._lazy_condition is None:
            with _making_condition:
                if self._lazy_condition is None:
                    self._lazy_condition = Condition()
        return self._lazy_condition

    def complete(self, raw: RawMessage | None, error: BaseException | None) -> None:
        """The answer, or why there is none. Called once, by whoever took it out of the window."""
        if raw is not None:
            self._block, self._body = raw[2], raw[3]
        self._exception = error
        if self._lazy_condition is None:
            with _making_condition:
                if self._lazy_condition is None:
                    self._state = _FINISHED
                    self.frame = b""  # last: whoever finds it gone finds the future done
                    return
        with self._lazy_condition:
            self._state = _FINISHED
            self.frame = b""  # futures are often kept, payloads not
            self._lazy_condition.notify_all()
            for waiter in self._waiters:  # of concurrent.futures.wait and as_completed
                self._read()
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
            callbacks = bool(self._done_callbacks)
        if callbacks:
            self._publisher.submit(self._invoke_callbacks)  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> PubAck:
        """The ack. Blocks up to `timeout` seconds; None: until it came or the publish itself timed out.

        Raises what the publish failed with, concurrent.futures.TimeoutError when `timeout` ran out.
        """
        if self._state == _PENDING:
            self._wait(timeout)
        if self._body is not None:
            self._read()
        if self._result is not None:
            return self._result
        try:
            assert self._exception is not None
            # Without the traceback of those who raised it before: one loss fails many futures.
            raise self._exception.with_traceback(None)
        finally:
            del self  # breaks the cycle of this frame, the traceback and the exception

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the publish failed with, or None. Blocks like result()."""
        if self._state == _PENDING:
            self._wait(timeout)
        self._read()
        return self._exception

    def done(self) -> bool:
        return self._state == _FINISHED

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def _wait(self, timeout: float | None) -> None:
        self._publisher.flush()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._state == _PENDING:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise concurrent.futures.TimeoutError()
                self._condition.wait(left)

    def __repr__(self) -> str:
        self._read()
        return super().__repr__()

    def _read(self) -> None:
        """Read the answer, now that somebody wants it. Two threads may both do so, with the same outcome."""
        body = self._body
        if body is None:
            return
        try:
            self._result = parse_pub_ack(body, self._block, self.subject)
        except NatsError as error:
            self._exception = error
        self._body = None


def complete_all(answered: list[tuple[PubAckFuture, RawMessage]]) -> None:
    """complete() for a run of answers, with one lock for all that nobody waits on."""
    watched = []
    with _making_condition:
        for future, raw in answered:
            if future._lazy_condition is None:
                future._block, future._body = raw[2], raw[3]
                future._state = _FINISHED
                future.frame = b""  # last, as in complete()
            else:
                watched.append((future, raw))
    for future, raw in watched:
        future.complete(raw, None)


def _after_fork_in_child() -> None:
    """Whoever held the lock at this moment, likely the reader, does not live here: nobody would release it."""
    global _making_condition
    _making_condition = allocate_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
