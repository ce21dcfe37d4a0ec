"""A subscription: what users hold, and its receiver with the mailbox, the limits and the callback thread.

js-reader calls deliver(). It alone counts what is buffered, from the mailbox's length and a ledger of runs: taking
a message costs the consuming thread nothing but the deque's own popleft. js-sub-<sid>, with a callback only, takes
messages and calls back. It ends when the mailbox is closed, which every end of a subscription does: unsubscribe,
drain, the limit, a denial, the connection's end. There is no lock here but the mailbox's own; the auto-unsubscribe
limit is guarded by Link's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._deadline import Deadline, seconds
from .._log import MessageFacts
from .._threads import Mailbox, join, join_quietly, spawn
from ..errors import (
    ConnectionClosedError,
    DrainTimeoutError,
    NatsError,
    PermissionsError,
    SlowConsumerError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..nats_py import SubscriptionNames
from ..protocol.parser import RawMessage
from .message import Message
from .options import drain_timeout
from .receiver import JOIN_SECONDS, Receiver

if TYPE_CHECKING:
    from .link import Link

DEFAULT_PENDING_MSGS = 524288
DEFAULT_PENDING_BYTES = 128 * 1024 * 1024


class Inbound(Receiver):
    """The receiver of a subscription: its mailbox, its limits, its callback thread."""

    drains = True

    def __init__(
        self,
        link: Link,
        wire_subject: bytes,
        wire_queue: bytes | None = None,
        msgs_limit: int = DEFAULT_PENDING_MSGS,
        bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> None:
        self.link = link
        self.wire_subject = wire_subject
        self.wire_queue = wire_queue
        self.mailbox: Mailbox[RawMessage] = Mailbox(before_wait=link.outbox.flush)
        self.last_arrival: float = time.monotonic()
        """When the newest message came; heartbeats are judged by this, not by when it is taken."""
        self.draining = False  # set before the UNSUB of a drain: a reconnect must not subscribe again
        self.has_callback: bool = False
        self.subscription: Subscription | None = None  # what the user holds
        self._thread: threading.Thread | None = None
        self._msgs_limit = msgs_limit if msgs_limit > 0 else 1 << 62
        self._bytes_limit = bytes_limit if bytes_limit > 0 else 1 << 62
        # Written by the reader thread only:
        self._received = 0
        self._accepted = 0
        self._held = 0  # bytes in the mailbox, at the granularity of runs
        self._ledger: deque[tuple[int, int]] = deque()  # (accepted so far, bytes) of each run
        self._slow = False
        self.dropped: int = 0
        # Written under Link's lock:
        self._limit = 0

    @property
    def subject(self) -> str:
        return self.wire_subject.decode("utf-8", "surrogateescape")

    @property
    def delivered(self) -> int:
        """Messages taken so far."""
        return self._accepted - len(self.mailbox) - self.mailbox.discarded

    def take(self, timeout: float | None = None) -> Message:
        """The next message for the user: the one way out of the mailbox."""
        return Message(self.mailbox.get(timeout), self.link, self.sid)

    def start_callback(self, callback: Callable[[Any], Any]) -> None:
        """Have js-sub-<sid> handle the messages. Call it with no lock held."""
        self.has_callback = True
        self._thread = spawn(f"sub-{self.sid.decode()}", self._run_callback, callback)
        if self.mailbox.closed:
            self.join(JOIN_SECONDS)  # the thread that closed it found none to join

    def _run_callback(self, callback: Callable[[Any], Any]) -> None:
        take = self.take
        while True:
            try:
                message = take()
            except NatsError:
                return
            try:
                callback(message)
            except BaseException as error:  # noqa: BLE001 - user code may raise anything; the subscription goes on
                self._callback_raised(error, message)

    def _callback_raised(self, error: BaseException, message: Any) -> None:
        facts = MessageFacts(stream=None, consumer=None, subject=message.subject, sequence=None)
        self.link.reports.callback_raised(error, self.link.logs.connection, facts)

    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        """Remove the interest, finish, and wait a moment for the callback thread. May be repeated."""
        try:
            self.link.close(self)
            self.finish(reason, discard=discard)
            self.join(JOIN_SECONDS)
        except BaseException:  # a signal handler raised in the midst of it: begin anew
            self.link.close(self)
            self.finish(reason, discard=discard)
            raise

    def finish(self, reason: NatsError, *, discard: bool = False) -> None:
        """No further message but what is buffered (unless `discard`). Any thread; never blocks."""
        self.mailbox.close(reason, discard=discard)

    def wait_handled(self, deadline: Deadline) -> None:
        """Block until the callback thread, if any, has handled everything and ended."""
        thread = self._thread
        if thread is None or thread.ident == threading.get_ident():
            return
        if not join(thread, deadline.wait_time()):
            raise DrainTimeoutError(f"the callback of {self.subject!r} did not finish in time")

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    # --- reader thread ----------------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        """Put a run of messages into the mailbox, within the limits."""
        self.last_arrival = time.monotonic()
        if self._limit and self._received + len(messages) > self._limit:
            del messages[max(0, self._limit - self._received) :]
        self._received += len(messages)
        taken = self._accepted - len(self.mailbox)
        ledger = self._ledger
        while ledger and ledger[0][0] <= taken:
            self._held -= ledger.popleft()[1]
        if self._held + size > self._bytes_limit:
            self._recount_first_run()
        if len(self.mailbox) + len(messages) > self._msgs_limit or self._held + size > self._bytes_limit:
            messages, size = self._fit(messages)
        else:
            self._slow = False
        self._accepted += len(messages)
        ledger.append((self._accepted, size))
        self._held += size
        if not self.mailbox.put_run(messages):
            self._accepted -= len(messages)  # closed meanwhile: no thread will take them
        if self._limit and self._received >= self._limit:
            self._complete(SubscriptionClosedError(f"the limit of {self._limit} messages is reached"))

    def insert(self, mark: RawMessage) -> None:
        """Add something of the library's own, past the limits and counted like a message."""
        self._accepted += 1
        if not self.mailbox.put(mark):
            self._accepted -= 1

    def _recount_first_run(self) -> None:
        """Count what is left of the oldest run: the ledger has it in full until its last message is taken."""
        if self._ledger:
            buffered = self.mailbox.snapshot()
            end, size = self._ledger[0]
            left = sum(map(_size, buffered[: max(0, end - self._accepted + len(buffered))]))
            self._ledger[0] = (end, left)
            self._held += left - size

    def _fit(self, messages: list[RawMessage]) -> tuple[list[RawMessage], int]:
        """The messages of a run that fit; the rest is dropped and counted, and reported once per episode."""
        fitting: list[RawMessage] = []
        used = 0
        room = self._msgs_limit - len(self.mailbox)
        for raw in messages:
            size = _size(raw)
            if len(fitting) >= room or self._held + used + size > self._bytes_limit:
                break
            fitting.append(raw)
            used += size
        lost = len(messages) - len(fitting)
        if lost:
            self.dropped += lost
            self.link.dropped(lost)
            if not self._slow:
                self._slow = True
                error = SlowConsumerError(self.subject, self.dropped, len(self.mailbox))
                error.sub = self.subscription
                self.link.report(error)
        return fitting, used

    def denied(self, error: PermissionsError) -> None:
        self._complete(error)

    def closed(self, error: NatsError) -> None:
        self.finish(error, discard=True)

    def _complete(self, reason: NatsError) -> None:
        """The server has ended the interest; what is buffered can still be taken."""
        self.completed = True
        self.link.close(self)
        self.finish(reason)

    def remaining(self) -> int:
        if self.draining:
            return -1
        if not self._limit:
            return 0
        return self._limit - self._received or -1

    def set_limit(self, count: int) -> bool:
        # Set first, looked at second: deliver() counts first and looks at the limit second, so one of the two
        # notices that the limit is reached.
        self._limit = count
        return self._received < count


def drain(link: Link, inbounds: Sequence[Inbound], deadline: Deadline) -> None:
    """End subscriptions in order: all that the server sent before arrives, then callbacks handle it.

    Without a callback the messages left can still be taken. Raises DrainTimeoutError.
    """
    told = False
    try:
        for inbound in inbounds:
            inbound.draining = True
        link.drain(list(inbounds), deadline)
        told = True
    except NatsError as error:
        told = True
        if isinstance(error, TimeoutError):
            raise DrainTimeoutError("the server did not answer while draining") from error
        raise
    finally:
        for inbound in inbounds:
            # A second UNSUB is needed only where an exception of a signal handler may have cut off the first.
            inbound.completed = told
            link.close(inbound)
            inbound.finish(SubscriptionClosedError("the subscription was drained"))
    for inbound in inbounds:
        inbound.wait_handled(deadline)


class Subscription(SubscriptionNames):
    """Made by `Connection.subscribe()`. Thread-safe; several threads may take messages from one subscription.

    Iterating blocks for each message and ends when the subscription is unsubscribed, drained or its connection
    closed; it raises when the server denied the subscription or an error ended the connection.
    """

    __slots__ = ("__weakref__", "_inbound")

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound
        inbound.subscription = self

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> Message:
        """The next message. Blocks up to `timeout` seconds (None: for ever).

        Raises TimeoutError when none came (NotConnectedError when there was no connection at that moment),
        SubscriptionClosedError after unsubscribe or drain, ConnectionClosedError, PermissionsError when the server
        denied the subscription.
        """
        inbound = self._inbound
        if inbound.has_callback or inbound.link.forked:
            self._check_synchronous()  # raises
        try:
            return inbound.take(seconds(timeout))
        except TimeoutError:
            if inbound.link.connected:
                raise
        raise inbound.link.no_message()

    def __iter__(self) -> Iterator[Message]:
        self._check_synchronous()
        link, take = self._inbound.link, self._inbound.take
        while True:
            try:
                message = take()
            except SubscriptionClosedError:
                return
            except ConnectionClosedError:
                if link.failed:
                    raise
                return
            yield message

    def _check_synchronous(self) -> None:
        self._inbound.link.check_process()
        if self._inbound.has_callback:
            raise NatsError("this subscription has a callback: its messages go there")

    def unsubscribe(self, limit: int = 0) -> None:
        """Stop receiving: at once, dropping what is buffered, or after `limit` messages in all. Idempotent."""
        if limit < 0:
            raise ValueError(f"limit must not be negative: {limit}")
        inbound = self._inbound
        link = inbound.link
        link.check_process()
        goes_on = limit > 0 and link.limit(inbound, limit)
        link.outbox.flush()
        if not goes_on:
            inbound.end(SubscriptionClosedError("the subscription was unsubscribed"), discard=not limit)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Stop receiving, but keep what the server has sent already.

        Blocks until all of that has arrived and, with a callback, until it has been handled; without one, the
        messages left can still be taken. Raises DrainTimeoutError after `timeout` seconds; by default those of
        `drain_timeout` of connect().
        """
        link = self._inbound.link
        link.check_process()
        drain(link, [self._inbound], Deadline(drain_timeout(link.options, timeout)))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not self._inbound.link.forked:
            self.unsubscribe()

    @property
    def subject(self) -> str:
        """The subject it is subscribed to."""
        return self._inbound.subject

    @property
    def queue(self) -> str | None:
        """The queue group it belongs to, if any."""
        queue = self._inbound.wire_queue
        return None if queue is None else queue.decode("utf-8", "surrogateescape")

    @property
    def pending_msgs(self) -> int:
        """Messages received and not yet taken."""
        return len(self._inbound.mailbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes (headers and payloads) of the messages received and not yet taken."""
        return sum(map(_size, self._inbound.mailbox.snapshot()))

    @property
    def delivered(self) -> int:
        """Messages taken so far."""
        return self._inbound.delivered

    @property
    def dropped(self) -> int:
        """Messages dropped because the limits of what may be pending were reached."""
        return self._inbound.dropped

    def __repr__(self) -> str:
        queue = f" queue={self.queue!r}" if self.queue else ""
        return f"<{type(self).__name__} {self.subject!r}{queue} {self._state()}>"

    def _state(self) -> str:
        """For repr(): whether it is open, and its counts. Takes no lock."""
        inbound = self._inbound
        state = "closed" if inbound.mailbox.closed else "draining" if inbound.draining else "open"
        return f"{state} pending={self.pending_msgs} delivered={self.delivered} dropped={self.dropped}"


def _size(raw: RawMessage) -> int:
    """Bytes of headers and payload."""
    return len(raw[3]) + (0 if raw[2] is None else len(raw[2]))
