"""Request and reply over one wildcard subscription `<inbox>.*`, with a reply subject for each request.

A waiting request is one bare lock: the reader thread stores the reply and releases the lock, which is the cheapest
way to wake a thread in CPython.

`pending` is a plain dict: setting, popping and listing it are atomic in CPython. A thread that pops an entry
completes it, so each is completed once.
"""

from __future__ import annotations

import itertools
import time
from _thread import LockType
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .._deadline import FOREVER
from .._threads import acquire, locked
from ..errors import ConnectionClosedError, NatsError, PermissionsError, TimeoutError
from ..protocol.parser import Event, RawMessage, Run
from ..protocol.subjects import new_inbox
from .receiver import Receiver

if TYPE_CHECKING:
    from .link import Link


class PendingReply(Protocol):
    """What waits for one reply. Completed once, by the thread that took it out of `pending`; must not block."""

    subject: bytes

    def complete(self, raw: RawMessage | None, error: NatsError | None) -> None: ...


Pending = TypeVar("Pending", bound=PendingReply)


class ReplyInbox(Receiver, Generic[Pending]):
    """A wildcard inbox, and what waits for a reply on one of its subjects."""

    def __init__(self, prefix: str) -> None:
        inbox = new_inbox(prefix)
        self.wire_subject: bytes = f"{inbox}.*".encode()
        self._prefix = f"{inbox}.".encode()
        self._next_number: Callable[[], int] = itertools.count(1).__next__
        self.pending: dict[bytes, Pending] = {}
        """By reply subject. The thread that adds an entry removes it again if no reply came."""
        self.refused: NatsError | None = None
        """Why the server denied the inbox itself. Until the next session no reply can come."""

    def new_reply(self) -> bytes:
        """A reply subject that no other request has."""
        return b"%b%x" % (self._prefix, self._next_number())

    def fail(self, replies: Iterable[bytes], error: NatsError) -> None:
        """Fail those that wait for one of `replies`."""
        for reply in replies:
            waiting = self.pending.pop(reply, None)
            if waiting is not None:
                waiting.complete(None, error)

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        pop = self.pending.pop
        for raw in messages:
            waiting = pop(raw[0], None)
            if waiting is not None:
                waiting.complete(raw, None)

    def remaining(self) -> int:
        self.refused = None
        return 0

    def denied(self, error: PermissionsError) -> None:
        """No reply can reach us."""
        self.refused = error
        self.fail(list(self.pending), error)

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        """No service gets these requests, so no reply comes."""
        self.fail([reply for reply, each in self.pending.copy().items() if each.subject == subject], error)

    def closed(self, error: NatsError) -> None:
        self.fail(list(self.pending), error)


class RequestCall(Protocol):
    """The type of `Requests.request`."""

    def __call__(
        self, subject: bytes, payload: bytes, timeout: float | None, block: bytes | None = None
    ) -> RawMessage: ...


class ReplyWaiter:
    """A thread that blocks until its reply, or its PONG, has come."""

    __slots__ = ("error", "lock", "reply", "subject")

    def __init__(self, subject: bytes = b"") -> None:
        self.subject: bytes = subject
        self.lock: LockType = locked()
        self.reply: RawMessage | None = None
        self.error: NatsError | None = None

    @property
    def completed(self) -> bool:
        return not self.lock.locked()

    def complete(self, raw: RawMessage | None, error: NatsError | None) -> None:
        self.reply = raw
        self.error = error
        self.lock.release()


class Requests(ReplyInbox[ReplyWaiter]):
    """The requests of one connection. Opened by the first of them.

    `disconnected` does nothing: Link fails the requests that it noted when it detached the session. A request made
    later is not lost, it waits for the next session.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link.options.inbox_prefix)
        self._link = link
        self._opened = False  # the SUB is queued: what is published from now on comes after it

    def request(
        self, subject: bytes, payload: bytes, timeout: float | None, block: bytes | None = None
    ) -> RawMessage:
        """The raw reply to a request. A reply that says "no responders" is returned like any other."""
        link = self._link
        if not self._opened:
            link.open(self)
            self._opened = True
        waiting = ReplyWaiter(subject)
        reply, frame, withdrawn = self.new_reply(), None, False
        wait = FOREVER if timeout is None else min(timeout, FOREVER)
        ends_at = time.monotonic() + wait
        try:
            # Pending before it is sent: the reader thread may have the reply at once.
            self.pending[reply] = waiting
            if self.refused is not None:  # looked at second: denied() says so before it fails what is pending
                link.check_usable()
                raise self.refused.with_traceback(None)
            frame, size = link.frame(subject, payload, reply, block)
            raw = link.direct.exchange(link.outbox, frame, size, reply, self.sid, wait)
            if raw is not None:
                self.pending.pop(reply, None)
                return raw
            acquire(waiting.lock, max(0.0, ends_at - time.monotonic()))
        except ConnectionClosedError:
            link.check_usable()  # says what closed it
            raise
        finally:
            # Given up or interrupted: the request must not be sent after a reconnect.
            if self.pending.pop(reply, None) is not None and frame is not None:
                withdrawn = bool(link.outbox.withdraw(frame))
        if waiting.reply is not None:
            return waiting.reply
        if waiting.error is not None:
            link.outbox.withdraw(frame)
            raise waiting.error.with_traceback(None)
        if withdrawn:
            raise link.not_sent(subject)
        late = TimeoutError(f"no reply on {subject.decode('utf-8', 'replace')!r} within {timeout} s")
        late.sent = True
        raise late

    def is_single_reply(self, events: list[Event]) -> bool:
        """Reader thread: whether `events` is the reply to the only request, and nothing else."""
        if len(events) != 1 or self.pending:
            return False
        event = events[0]
        return type(event) is Run and event.sid == self.sid and len(event.messages) == 1
