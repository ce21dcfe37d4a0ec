"""messages(): an iterator over a consumer's messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType

from .._deadline import Deadline
from .._threads import run_detached
from ..api.message import JetStreamMessage
from ..errors import ConcurrencyError, NatsError, SubscriptionClosedError
from ..protocol.parser import RawMessage
from .inlet import StampedStatus
from .pull_options import message_size
from .session import Session

# Leaving the `with` block waits this long for the refill thread, which has nothing left to do by then.
JOIN_SECONDS = 1.0


class MessageStream:
    """Messages as they come: `for msg in consumer.messages(): …`. Pulls ahead in the background.

    The loop ends after stop() or drain(); it raises when the consumer is gone or the connection is closed for
    good. One thread at a time may take messages; stop() and drain() may be called from anywhere, signal handlers
    included. As a context manager it stops when the block is left. When nobody holds it any more, it stops, too.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Taken and not yet reported to the session: by next(), and by loops that were left.
        self._taken = 0
        self._size = 0
        self._quantum = 1
        self._busy = False

    def __iter__(self) -> Iterator[JetStreamMessage]:
        session = self._session
        nc, items, report = session.nc, session.items, session.taken
        by_bytes, has_group, status = session.by_bytes, session.has_group, StampedStatus
        self._report()  # what the loop before this one left
        taken = size = 0
        quantum = 1
        try:
            while True:
                try:
                    raw = items.popleft()
                except IndexError:
                    if taken:
                        quantum = report(taken, size)
                        taken = size = 0
                    try:
                        raw = self._wait()
                    except SubscriptionClosedError:
                        return
                    except NatsError as error:
                        raise error from error.__cause__  # not "while handling" that nothing was there
                if type(raw) is status:
                    if taken:
                        quantum = report(taken, size)
                        taken = size = 0
                    session.is_status(raw)
                    continue
                if has_group:
                    session.is_status(raw)  # learns the pin
                taken += 1
                if by_bytes:
                    size += message_size(raw)
                if taken >= quantum:
                    quantum = report(taken, size)
                    taken = size = 0
                yield JetStreamMessage(raw, nc._link, session)
        finally:
            # The loop was left. No lock here: the garbage collector may have closed us in a thread that holds it.
            self._taken += taken
            self._size += size

    def __next__(self) -> JetStreamMessage:
        try:
            return self.next()
        except SubscriptionClosedError:
            raise StopIteration from None

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMessage:
        """The next message. Blocks up to `timeout` seconds; None: for ever.

        Raises TimeoutError, SubscriptionClosedError after stop() or drain(), and what else ended the stream.
        """
        session = self._session
        deadline = Deadline(timeout)
        self._refuse_second_taker()
        try:
            self._busy = True  # inside: a signal handler may raise after any call, and this must be undone
            while True:
                raw = self._take(deadline.remaining())
                if type(raw) is StampedStatus:
                    self._report()
                if raw[2] is None or not session.is_status(raw):
                    self._taken += 1
                    self._size += session.size_of(raw)
                    if self._taken >= self._quantum:
                        self._report()
                    return JetStreamMessage(raw, session.nc._link, session)
        finally:
            self._busy = False

    @property
    def closed(self) -> bool:
        """Whether the stream has ended; after drain() there may still be messages to take."""
        return self._session.ended is not None

    def stop(self) -> None:
        """End at once: what is buffered is dropped, and delivered again later. Idempotent, never waits for the
        server or for other threads' work."""
        self._session.stop(SubscriptionClosedError("the message stream was stopped"))

    def drain(self) -> None:
        """End after what is buffered: no new pull, interest removed. Idempotent, never blocks."""
        self._session.drain(SubscriptionClosedError("the message stream was drained"))

    def __enter__(self) -> MessageStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._session.nc._forked:
            self._session.end(SubscriptionClosedError("the message stream was stopped"), discard=True)
            self._session.join(JOIN_SECONDS)

    def __del__(self) -> None:
        # A stream that nobody holds any more must not go on pulling.
        session = getattr(self, "_session", None)
        if session is not None and session.ended is None and not session.nc._forked:
            run_detached(session.end, SubscriptionClosedError("the message stream was dropped"))

    # --- inside -------------------------------------------------------------------------------------

    def _refuse_second_taker(self) -> None:
        if self._busy:
            raise ConcurrencyError("another thread is taking from this message stream: give each thread its own")

    def _wait(self) -> RawMessage:
        """For the loop, whose messages have run out."""
        self._refuse_second_taker()
        try:
            self._busy = True
            return self._take(None)
        finally:
            self._busy = False

    def _take(self, timeout: float | None) -> RawMessage:
        session = self._session
        if not session.items:
            session.nc._check_process()
            self._report()
        return session.wait(timeout)

    def _report(self) -> None:
        if self._taken:
            self._quantum = self._session.taken(self._taken, self._size)
            self._taken = self._size = 0
