"""messages(): an iterator over a consumer's messages."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from .._deadline import Deadline
from .._threads import detached
from ..api.message import JetStreamMessage
from ..errors import ConcurrencyError, SubscriptionClosedError
from ..protocol.parser import RawMessage
from .pull import ArrivedStatus
from .take import Endless, loop, take_one

# Leaving the `with` block waits this long for the threads of the feed, which have nothing left to do by then.
JOIN_SECONDS = 1.0


class StreamFeed:
    """What a MessageStream and its loops take from. When the last of them is gone, the endless feed ends.

    Keeps what was taken and is not yet accounted for, by next() and by loops that were left.
    """

    def __init__(self, endless: Endless) -> None:
        self.endless = endless
        endless.user = weakref.ref(self)
        self.link = endless.link
        self.sized = endless.sized
        self.inspect = endless.inspect
        self.source = endless.source
        self.items = endless.items
        self._taken = self._size = 0
        self._quantum = 1
        self.waiting = False

    def check_alone(self) -> None:
        """Raises ForkError in a forked child, ConcurrencyError while another thread waits for a message."""
        self.link.check_process()
        if self.waiting:
            raise ConcurrencyError("another thread is taking from this message stream: give each thread its own")

    def wait(self, timeout: float | None) -> RawMessage:
        self.check_alone()
        try:
            self.waiting = True  # inside: a signal handler may raise after any call, and this must be undone
            self._report()
            raw = self.endless.wait(timeout)
            self.items = self.endless.items
            return raw
        finally:
            self.waiting = False

    def on_status(self, status: ArrivedStatus) -> None:
        self._report()
        self.endless.on_status(status)

    def account(self, count: int, size: int, processed: bool = True) -> int:
        self._taken += count
        self._size += size
        # One at a time (next()) they are collected; a loop has done so itself.
        if count != 1 or self._taken >= self._quantum:
            self._quantum = self.endless.account(self._taken, self._size, processed)
            self._taken = self._size = 0
        return self._quantum - self._taken

    def left(self, count: int, size: int) -> None:
        self._taken += count
        self._size += size

    def _report(self) -> None:
        if self._taken:
            self._quantum = self.endless.account(self._taken, self._size)
            self._taken = self._size = 0

    def __del__(self) -> None:
        # A stream that no code holds any more must not go on pulling.
        endless = getattr(self, "endless", None)
        if endless is not None and endless.ended is None and not endless.link.forked:
            reason = SubscriptionClosedError("the message stream was dropped")
            detached(lambda: endless.end(reason, discard=True))  # nothing can take what is buffered


class MessageStream:
    """Messages as they come: `for msg in consumer.messages(): …`. Pulls ahead in the background.

    The loop ends after stop() or drain(); it raises when the consumer is gone or the connection is closed for
    good. One thread at a time may take messages; stop() and drain() may be called from anywhere, signal handlers
    included. As a context manager it stops when the block is left. When it is dropped, it stops, too.
    """

    def __init__(self, endless: Endless) -> None:
        self._endless = endless
        self._feed = StreamFeed(endless)

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return loop(self._feed)

    def __next__(self) -> JetStreamMessage:
        try:
            return self.next()
        except SubscriptionClosedError:
            raise StopIteration from None

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMessage:
        """The next message. Blocks up to `timeout` seconds; None: for ever.

        Raises TimeoutError, SubscriptionClosedError after stop() or drain(), and what else ended the stream.
        """
        deadline = Deadline(timeout)
        self._feed.check_alone()
        return take_one(self._feed, deadline)

    @property
    def closed(self) -> bool:
        """Whether the stream has ended; after drain() there may still be messages to take."""
        return self._endless.ended is not None

    def stop(self) -> None:
        """End at once: what is buffered is dropped, and delivered again later. Idempotent, never waits for the
        server or for other threads' work."""
        self._endless.stop(SubscriptionClosedError("the message stream was stopped"))

    def drain(self) -> None:
        """End after what is buffered: no new pull, interest removed. Idempotent, never blocks."""
        self._endless.drain(SubscriptionClosedError("the message stream was drained"))

    def __enter__(self) -> MessageStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not self._endless.link.forked:
            self._endless.end(SubscriptionClosedError("the message stream was stopped"), discard=True)
            self._endless.join(JOIN_SECONDS)
