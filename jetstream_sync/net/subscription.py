"""A subscription: a sid, a mailbox and its limits.

The reader thread calls deliver(), callers take messages out of the mailbox. Counting of what is buffered is done
by the reader alone, from the mailbox's length and a ledger of delivered runs, so that taking a message costs the
caller nothing but the deque's own popleft.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._deadline import Deadline, seconds
from .._threads import Mailbox, join_quietly, spawn
from ..errors import (
    ConnectionClosedError,
    DrainTimeoutError,
    NatsError,
    SlowConsumerError,
    SubscriptionClosedError,
)
from ..protocol.parser import RawMessage
from .message import Message

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("jetstream_sync")

DEFAULT_PENDING_MSGS = 524288
DEFAULT_PENDING_BYTES = 128 * 1024 * 1024


class Subscription:
    """Made by `Connection.subscribe()`. Thread-safe; several threads may take messages from one subscription.

    Iterating blocks for each message and ends when the subscription is unsubscribed, drained or its connection
    closed; it raises when the server denied the subscription or an error ended the connection.
    """

    def __init__(
        self,
        nc: Connection,
        sid: bytes,
        subject: str,
        wire_subject: bytes,
        *,
        queue: str | None = None,
        wire_queue: bytes | None = None,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> None:
        self._nc = nc
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.wire_subject = wire_subject
        self.wire_queue = wire_queue
        self.mailbox: Mailbox[RawMessage] = Mailbox(before_wait=nc._outbox.flush)
        self.last_arrival = time.monotonic()
        """When the newest message came; heartbeats are judged by this, not by when it is taken."""
        self._msgs_limit = pending_msgs_limit if pending_msgs_limit > 0 else 1 << 62
        self._bytes_limit = pending_bytes_limit if pending_bytes_limit > 0 else 1 << 62
        # Written by the reader thread only:
        self._received = 0
        self._accepted = 0
        self._held = 0  # bytes in the mailbox, at the granularity of runs
        self._ledger: deque[tuple[int, int]] = deque()  # (accepted so far, bytes) of each run
        self._slow = False
        self.dropped = 0
        # Guarded by the connection's lock:
        self._limit = 0
        self.draining = False  # UNSUB was sent: a reconnect must not subscribe again
        self._thread: threading.Thread | None = None

    # --- taking messages ----------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> Message:
        """The next message. Blocks up to `timeout` seconds (None: for ever).

        Raises TimeoutError when none came, SubscriptionClosedError after unsubscribe or drain,
        ConnectionClosedError, PermissionsError when the server denied the subscription.
        """
        self._nc._check_process()
        self._check_synchronous()
        return self._take(seconds(timeout))

    def __iter__(self) -> Iterator[Message]:
        self._nc._check_process()
        self._check_synchronous()
        take = self._take
        while True:
            try:
                message = take()
            except SubscriptionClosedError:
                return
            except ConnectionClosedError:
                if self._nc._failed:
                    raise
                return
            yield message

    def _take(self, timeout: float | None = None) -> Message:
        """The next message for the user: the one way out of the mailbox."""
        return Message(self.mailbox.get(timeout), self._nc._link)

    def _check_synchronous(self) -> None:
        if self._thread is not None:
            raise NatsError("this subscription has a callback: its messages go there")

    # --- ending -------------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """Stop receiving: at once, dropping what is buffered, or after `limit` messages in all. Idempotent."""
        if limit < 0:
            raise ValueError(f"limit must not be negative: {limit}")
        self._nc._unsubscribe(self, limit)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Stop receiving, but keep what the server has sent already.

        Blocks until all of that has arrived and, with a callback, until it has been handled; without one, the
        messages left can still be taken. Raises DrainTimeoutError.
        """
        self._nc._check_process()
        deadline = Deadline(self._nc._drain_timeout(timeout))
        self._nc._start_drain(self)
        self._nc._finish_drain([self], deadline)

    def wait_handled(self, deadline: Deadline) -> None:
        """Block until the callback thread, if any, has handled everything and ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(deadline.wait_time())
        if thread.is_alive():
            raise DrainTimeoutError(f"the callback of {self.subject!r} did not finish in time")

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._nc._forked:
            self.unsubscribe()

    # --- facts --------------------------------------------------------------------------------------

    @property
    def pending_msgs(self) -> int:
        """Messages received and not yet taken."""
        return len(self.mailbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes (headers and payloads) of the messages received and not yet taken."""
        return sum(map(_size, self.mailbox.snapshot()))

    @property
    def delivered(self) -> int:
        """Messages taken so far."""
        return self._accepted - len(self.mailbox) - self.mailbox.discarded

    def __repr__(self) -> str:
        queue = f" queue={self.queue!r}" if self.queue else ""
        return f"<{type(self).__name__} {self.subject!r}{queue} pending={self.pending_msgs}>"

    # --- the connection's side ------------------------------------------------------------------------

    def start_callback(self, callback: Callable[[Any], Any]) -> None:
        """Handle messages on a thread of this subscription's own.

        It blocks in the mailbox and in user code, and ends when the mailbox is closed: by unsubscribe, drain,
        the limit, a denial, or the connection's end — each of them closes the mailbox.
        """
        self._thread = spawn(f"sub-{self.sid.decode()}", self._run_callback, callback)

    def _run_callback(self, callback: Callable[[Any], Any]) -> None:
        take = self._take
        while True:
            try:
                message = take()
            except NatsError:
                return
            try:
                callback(message)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the subscription goes on
                self._nc._report(error)
            except BaseException:  # sys.exit() in a callback must not end its subscription in silence
                log.exception("the callback of %r raised", self.subject)

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        """Reader thread: put a run of messages into the mailbox, within the limits."""
        self.last_arrival = time.monotonic()
        if self._limit and self._received + len(messages) > self._limit:
            del messages[self._limit - self._received :]
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
            self._accepted -= len(messages)  # closed meanwhile: nobody will take them
        if self._limit and self._received >= self._limit:
            self.finish_limit()

    def _recount_first_run(self) -> None:
        """Count what is left of the oldest run: the ledger has it in full until its last message is taken."""
        if self._ledger:
            buffered = self.mailbox.snapshot()
            end, size = self._ledger[0]
            left = sum(map(_size, buffered[: max(0, end - self._accepted + len(buffered))]))
            self._ledger[0] = (end, left)
            self._held += left - size

    def finish_limit(self) -> None:
        """All messages of the auto-unsubscribe limit have come: what is buffered can still be taken."""
        self._nc._forget(self)
        self.close(SubscriptionClosedError(f"the limit of {self._limit} messages is reached"))

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
            self._nc._count_dropped(lost)
            if not self._slow:
                self._slow = True
                self._nc._report(SlowConsumerError(self.subject, self.dropped, len(self.mailbox)))
        return fitting, used

    def remaining(self) -> int:
        """For a resubscription: the messages left of an auto-unsubscribe limit, 0 for no limit, -1 for none."""
        if self.draining:
            return -1
        if not self._limit:
            return 0
        return self._limit - self._received or -1

    def set_limit(self, limit: int) -> bool:
        """Requires the connection's lock. False when that many have come already.

        Set first, looked at second: deliver() counts first and looks at the limit second, so one of the two
        notices that the limit is reached.
        """
        self._limit = limit
        return self._received < limit

    def fail(self, error: NatsError) -> None:
        """Reader thread: the server denied this subscription."""
        self._nc._forget(self)
        self.close(error)

    def close(self, reason: NatsError, *, discard: bool = False) -> None:
        self.mailbox.close(reason, discard=discard)

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)


def _size(raw: RawMessage) -> int:
    """Bytes of headers and payload."""
    return len(raw[3]) + (0 if raw[2] is None else len(raw[2]))
