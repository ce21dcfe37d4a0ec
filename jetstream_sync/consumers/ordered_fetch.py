"""fetch and next of an ordered consumer: a MessageBatch that compares sequences and goes on after a loss.

No thread: the caller itself creates the incarnation. It is kept for the next fetch as long as the server's word,
or the count, proves that it sent nothing that was not handed out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from .._deadline import Deadline
from ..api.message import JetStreamMessage
from ..errors import NatsError
from ..protocol.headers import Status
from ..protocol.parser import RawMessage
from .old_fetch import NO_WAIT_SECONDS, MessageBatch
from .ordered_cursor import LOST, OrderedCursor, Position, log, log_failed_try
from .pull_options import FetchOptions, client_grace
from .status import FetchAction, classify

# What a fetch has left for its pull when creating the consumer used up its time.
LEAST_EXPIRES = 0.1


class OrderedBatch(MessageBatch):
    """The messages of one fetch from an ordered consumer; see MessageBatch.

    A consumer that is gone, or a gap, does not end it: it goes on with a follow-up pull from a new incarnation,
    for what is left of the messages and the time.
    """

    def __init__(self, cursor: OrderedCursor, options: FetchOptions, until: float | None = None) -> None:
        """Sends the pull; blocks only for a consumer that has to be created. `until` is when time is up."""
        self._ended = True  # nothing to close yet
        self._cursor = cursor
        self._clean = False
        self._unread: Position | None = None  # where a message counted, but not yet handed out, begins
        self._follow_up: OrderedBatch | None = None
        wait = options.expires if options.expires_ns else NO_WAIT_SECONDS
        self._until = time.monotonic() + wait if until is None else until
        self._starting = True
        self._claim = cursor.claim(self)
        try:
            left = max(0.0, self._until - time.monotonic())
            target = cursor.current(time.sleep, Deadline(left + client_grace(left)), log_failed_try)
            super().__init__(target, self._within_time(options))
        finally:
            self._starting = False

    @property
    def in_use(self) -> bool:
        return self._starting or not self._ended

    def __iter__(self) -> Iterator[JetStreamMessage]:
        try:
            for message in super().__iter__():
                self._unread = None
                yield message
            return
        except LOST as error:
            follow_up = self._go_on(error)
        except GeneratorExit:  # the loop was left early
            self._abandon()
            raise
        except BaseException:
            self._take_back()
            raise
        if follow_up is not None:
            yield from follow_up

    def take_one(self) -> JetStreamMessage | None:
        try:
            return super().take_one()
        except LOST as error:
            follow_up = self._go_on(error)
        except BaseException:
            self._take_back()
            raise
        return None if follow_up is None else follow_up.take_one()

    def _take_back(self) -> None:
        """A signal handler raised between counting a message and handing it out: it must come again."""
        if self._unread is not None:
            self._cursor.rewind(self._claim, self._unread)

    def close(self) -> None:
        super().close()
        self._cursor.settle(self._claim, clean=self._clean)
        if self._follow_up is not None:
            self._follow_up.close()

    def _count(self, raw: RawMessage) -> None:
        self._unread = self._cursor.position
        self._cursor.advance(self._claim, raw)
        super()._count(raw)
        if self._is_filled():
            self._clean = True

    def _on_status(self, status: Status) -> None:
        super()._on_status(status)
        if self._error is None and classify(status).fetch is not FetchAction.IGNORE:
            self._clean = True  # the server's word that nothing more comes

    def _is_filled(self) -> bool:
        """All that was asked for has come."""
        options = self._options
        return self._received >= options.batch or (
            options.max_bytes is not None and self._bytes >= options.max_bytes
        )

    def _go_on(self, error: NatsError) -> OrderedBatch | None:
        """A pull from another incarnation for the rest; None when nothing is left to ask for."""
        log.debug("ordered consumer: %s; going on from a new one", error)
        self._cursor.troubled()
        if not self._is_filled() and time.monotonic() < self._until:
            options = self._options
            rest = options._replace(
                batch=options.batch - self._received,
                max_bytes=None if options.max_bytes is None else options.max_bytes - self._bytes,
            )
            self._follow_up = OrderedBatch(self._cursor, rest, self._until)
        return self._follow_up

    def _within_time(self, options: FetchOptions) -> FetchOptions:
        left = max(LEAST_EXPIRES, self._until - time.monotonic())
        if not options.expires_ns or left > options.expires - LEAST_EXPIRES:
            return options
        expires_ns = int(left * 1_000_000_000)
        heartbeat_ns = min(options.heartbeat_ns, expires_ns // 2)
        return options._replace(expires_ns=expires_ns, heartbeat_ns=heartbeat_ns)
