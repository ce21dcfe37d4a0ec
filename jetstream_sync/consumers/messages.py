"""messages(): an iterator over a consumer's messages."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from .._deadline import Deadline
from .._threads import detached
from ..api.message import JetStreamMessage, Source
from ..errors import ConcurrencyError, SubscriptionClosedError
from ..net.link import Link
from ..protocol.parser import RawMessage
from .progress import Progress
from .pull import ArrivedStatus
from .take import Endless, loop, take_raw

# Leaving the `with` block waits this long for the threads of the feed, which have nothing left to do by then.
JOIN_SECONDS = 1.0


class StreamFeed:
    """What a MessageStream and its loops take from. When the last of them is gone, the endless feed ends.

    Keeps what was taken and is not yet accounted for, by next() and by loops that were left.
    """

    def __init__(self, endless: Endless) -> None:
        self.endless = endless
        endless.user = weakref.ref(self)
        self.link: Link = endless.link
        self.sized: bool = endless.sized
        self.inspect: Callable[[RawMessage], bool] | None = endless.inspect
        self.source: Source = endless.source
        self.items: deque[RawMessage] = endless.items
        self._taken = self._size = 0
        self._quantum = 1
        self.waiting: bool = False

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
        if processed:
            self._quantum = self.endless.account(self._taken + count, self._size + size)
            self._taken = self._size = 0
        else:
            # next() hands it out: the user is done with it when next() is called again.
            if not self._taken:
                self.endless.begin_hold()
            self.left(count, size)
        return self._quantum

    def next_is_asked_for(self) -> None:
        """The user is done with all that was handed out."""
        if self._taken >= self._quantum:  # else the next wait() is early enough
            self._report()

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
        if endless is not None and (endless.ended is None or endless.items) and not endless.link.forked:
            detached(endless.drop)


class MessageStream:
    """Messages as they come: `for msg in consumer.messages(): …`. Pulls ahead in the background.

    The loop ends after stop() or drain(); it raises when the consumer is gone or the connection is closed for
    good. One thread at a time may take messages; stop() and drain() may be called from anywhere, signal handlers
    included. As a context manager it stops when the block is left. When it is dropped, it stops, too.

    What waits in the buffer is kept alive: the server is asked for more time before its ack_wait runs out, as long
    as messages are taken. A stream that nothing is taken from for ack_wait lets its messages go to other clients.
    """

    __slots__ = ("__weakref__", "_endless", "_feed")

    def __init__(self, endless: Endless, auto_progress: bool = False) -> None:
        self._endless = endless
        self._feed = StreamFeed(endless)
        if auto_progress:
            endless.track_progress()

    def __iter__(self) -> Iterator[JetStreamMessage]:
        messages, progress = loop(self._feed, when_done=True), self._endless.progress
        return messages if progress is None else _holding(messages, progress)

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
        feed, progress = self._feed, self._endless.progress
        feed.check_alone()
        if progress is not None:
            progress.release_all()
        feed.next_is_asked_for()
        message = JetStreamMessage(take_raw(feed, deadline, processed=False), feed.link, feed.source)
        if progress is not None:
            progress.hold(message)
        return message

    @property
    def closed(self) -> bool:
        """Whether the stream has ended; after drain() there may still be messages to take."""
        return self._endless.ended is not None

    def stop(self) -> None:
        """End at once. What is buffered and was not handed out is nak'ed, so that another client of the consumer
        gets it at once; the message handed out last is not touched.

        Idempotent, never waits for the server or for other threads' work. Without a connection the server delivers
        again what is not acknowledged, after ack_wait.
        """
        self._endless.stop(SubscriptionClosedError("the message stream was stopped"))

    def drain(self, buffered: str = "process") -> None:
        """End after what is buffered: no new pull, interest removed. Idempotent, never blocks.

        With `buffered="nak"` what is buffered is handed back to the server instead, as stop() does.
        """
        self._endless.drain(SubscriptionClosedError("the message stream was drained"), buffered)

    def stop_progress(self, msg: JetStreamMessage) -> None:
        """With `auto_progress`: ask the server for no more time for `msg`, so that it is delivered again when its
        ack_wait runs out. For a message that is not held: nothing. Any thread, never blocks."""
        if self._endless.progress is not None:
            self._endless.progress.release(msg)

    def __repr__(self) -> str:
        endless = self._endless
        return f"<MessageStream of {endless.title}: {endless.state} buffered={len(endless.items)}>"

    def __enter__(self) -> MessageStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not self._endless.link.forked:
            if self._endless.progress is not None:
                self._endless.progress.release_all()
            self._endless.end(SubscriptionClosedError("the message stream was stopped"), discard=True)
            self._endless.join(JOIN_SECONDS)


def _holding(messages: Iterator[JetStreamMessage], progress: Progress) -> Iterator[JetStreamMessage]:
    """`messages`, while `progress` is told which one the user holds: until the next one is asked for, from here or
    by next()."""
    progress.release_all()
    for message in messages:
        progress.hold(message)
        yield message
        progress.release_all()
