"""The future of one asynchronous publish. The publisher also keeps its record of that publish in it."""

from __future__ import annotations

import concurrent.futures
import time
from _thread import allocate_lock
from concurrent.futures import Future
from threading import Condition
from typing import TYPE_CHECKING, Any

from .._deadline import FOREVER
from .._platform import WAIT_SLICE, on_fork
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
    """The future of an asynchronous publish. Its result is a PubAck.

    Done-callbacks run on the connection's callback thread. It cannot be cancelled: the message has been sent.

    It is cheap while no thread waits for it. A standard future creates a Condition in its constructor; this one
    creates it when a thread first waits, and decodes the ack when the result is first read. The state changes
    under the Condition or, before there is one, under the lock for creating Conditions. So
    concurrent.futures.wait() and as_completed(), which hold the Condition, see a future that is done or one that
    will notify them, never both.
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
    _lazy_condition: Condition | None = None
    # Lists from when there is a Condition: only code that holds it uses them, here and in Future.
    _waiters: Any = ()
    _done_callbacks: Any = ()

    # The publisher's record of the publish while it waits for the ack.
    has_msg_id: bool = False
    retries: int = 0
    retry_wait: float = 0.0
    retry_at: float | None = None
    resend: bool = False

    def __init__(
        self, publisher: AsyncPublisher, subject: bytes, frame: bytes, size: int, deadline: float
    ) -> None:
        # Not Future.__init__, which would create the Condition.
        self._publisher = publisher
        self.subject = subject
        self.frame = frame
        self.size = size
        self.deadline = deadline

    @property
    def _condition(self) -> Condition:  # type: ignore[override]  # an attribute in Future, made at once there
        if self._lazy_condition is None:
            with _making_condition:
                if self._lazy_condition is None:
                    self._waiters = []
                    self._done_callbacks = []
                    self._lazy_condition = Condition()
        return self._lazy_condition

    def complete(self, raw: RawMessage | None, error: BaseException | None) -> None:
        """Set the reply, or the error. Called once, by the thread that took the future out of the pending ones."""
        if raw is not None:
            self._block, self._body = raw[2], raw[3]
        self._exception = error
        if self._lazy_condition is None:
            with _making_condition:
                if self._lazy_condition is None:
                    self._state = _FINISHED
                    self.frame = b""  # last: a thread that finds the frame empty must find the future done
                    return
        with self._lazy_condition:
            self._state = _FINISHED
            self.frame = b""  # programs may keep futures for long; the payload need not stay in memory
            self._lazy_condition.notify_all()
            for waiter in self._waiters:  # of concurrent.futures.wait and as_completed
                self._read()
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
        if self._done_callbacks:  # none can be added any more
            self._publisher.submit(self._invoke_callbacks)  # type: ignore[attr-defined]

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
        self._publisher.flush()
        ends_at = time.monotonic() + (FOREVER if timeout is None else timeout)
        with self._condition:
            while self._state == _PENDING:
                left = ends_at - time.monotonic()
                if left <= 0:
                    raise concurrent.futures.TimeoutError()
                self._condition.wait(min(left, FOREVER, WAIT_SLICE))

    def __repr__(self) -> str:
        self._read()
        return super().__repr__()

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


def complete_all(answered: list[tuple[PubAckFuture, RawMessage]]) -> None:
    """complete() for a run of replies, taking the lock once for all futures that no thread waits for."""
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
    """The parent's thread that may have held the lock, such as its reader, does not exist here to release it."""
    global _making_condition
    _making_condition = allocate_lock()


on_fork(_after_fork_in_child)
