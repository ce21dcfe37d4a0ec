"""fetch and next: one pull, an inbox of its own, no thread (ADR-37).

The consuming thread does everything; another one may close a batch, and the garbage collector a dropped one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .._deadline import Deadline
from .._threads import Mailbox, Slot, beside
from ..api.message import JetStreamMessage, Source
from ..errors import NatsError, NotConnectedError, SubscriptionClosedError, TimeoutError
from ..net.link import Link
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .pull import ArrivedStatus, Pull, PullTarget
from .pull_options import FetchOptions, client_grace
from .status import FetchAction, classify, to_error
from .take import loop, runs

# A no_wait pull is answered at once; a server that does not answer is given this long.
NO_WAIT_SECONDS = 5.0


class BatchFeed:
    """The feed of a fetch: one pull, which the consuming thread ends. What is dropped ends, too."""

    def __init__(self, target: PullTarget, options: FetchOptions, deadline: Deadline | None = None) -> None:
        """Sends nothing: start() does. `deadline`: of the client; by default some time after `expires`."""
        self.link: Link = target.link
        self.options = options
        self.sized: bool = options.max_bytes is not None
        self.inspect: Callable[[RawMessage], bool] | None = target.inspector(options.priority)
        self.received: int = 0
        self.bytes: int = 0
        self.over: bool = False  # nothing more is to be handed out
        box: Mailbox[RawMessage] = Mailbox(before_wait=self.link.outbox.flush)
        self.items: deque[RawMessage] = box.items
        self._clock = heartbeat_clock(options)
        # Without heartbeats a pull for one message is answered by one thing, a message or a status: the server
        # ends the interest after it, and no UNSUB has to follow.
        self.pull: Pull = Pull(target, box, limit=1 if options.batch == 1 and self._clock is None else 0)
        self.source: Source = self.pull
        wait = options.expires + client_grace(options.expires) if options.expires_ns else NO_WAIT_SECONDS
        self._deadline = deadline or Deadline(wait)

    def start(self) -> None:
        """Send the pull. Blocks for nothing."""
        try:
            self.pull.ask(self.options.body(self.pull.target.pin_id(self.options.priority)))
        except BaseException:
            self.end()
            raise

    @property
    def title(self) -> str:
        """What it takes from, for repr()."""
        return self.pull.target.title

    @property
    def filled(self) -> bool:
        """Whether everything that was asked for has come: when bytes are used up exactly, no status follows."""
        most = self.options.max_bytes
        return self.received >= self.options.batch or (most is not None and self.bytes >= most)

    def wait(self, timeout: float | None) -> RawMessage:
        """`timeout` is not looked at: a fetch has a deadline of its own, at which it ends in order."""
        try:
            return self.pull.wait(self._deadline, self._clock)
        except NatsError as error:
            self.close()  # what the server sends late is handed back
            if not isinstance(error, TimeoutError) or isinstance(error, NotConnectedError):
                raise
        raise SubscriptionClosedError("the fetch has ended")

    def on_status(self, status: ArrivedStatus) -> None:
        rule = classify(status.status)
        target = self.pull.target
        if rule.drops_pin:
            target.drop_pin(self.options.priority)
        if rule.fetch is FetchAction.IGNORE:
            return
        self.end()
        if rule.fetch is FetchAction.ERROR or (rule.fetch is FetchAction.END_ERROR_IF_EMPTY and not self.received):
            raise to_error(status.status, target.next_subject.decode())
        raise SubscriptionClosedError("the fetch has ended")

    def account(self, count: int, size: int, processed: bool = True) -> int:
        self.received += count
        self.bytes += size
        if self.over:
            return 0
        if self.filled:
            self.end()
            return 0
        return 1 if self.sized else self.options.batch - self.received

    def left(self, count: int, size: int) -> None:
        self.received += count
        self.bytes += size
        if not self.pull.ended:
            self.over = True
            self.link.soon(self._hand_back)

    def end(self) -> None:
        """The pull is over: nothing more comes. Idempotent, never blocks."""
        self.over = True
        try:
            self.pull.end()
        except BaseException:  # a signal handler raised in the midst of it: begin anew
            self.pull.end()
            raise

    def close(self) -> None:
        """Give the pull up: what was not handed out, and what still comes, is handed back. Ends a wait() in
        another thread. Idempotent, never blocks."""
        self.over = True
        try:
            self._hand_back()
        except BaseException:  # as above
            self._hand_back()
            raise

    def _hand_back(self) -> None:
        self.pull.hand_back(SubscriptionClosedError("the fetch was closed"))

    def __del__(self) -> None:
        # A batch that is not iterated must not go on taking messages from the server.
        pull = getattr(self, "pull", None)
        if pull is not None and pull.sid and not pull.ended:
            reason = SubscriptionClosedError("the batch was dropped")
            self.link.soon(lambda: pull.hand_back(reason))


class MessageBatch:
    """The messages of one fetch, handed out as they arrive: `for msg in batch`, or `list(batch)` for all.

    An error follows the messages that came before it, raised by the iteration. Leaving the loop early, close()
    and `with` end the pull and remove its interest at once; what was not handed out is nak'ed, so that another
    client of the consumer gets it at once. One thread at a time may iterate; any may close.
    """

    __slots__ = ("__weakref__", "_feed")

    def __init__(self, feed: BatchFeed) -> None:
        self._feed = feed

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return loop(self._feed, when_done=True)

    def close(self) -> None:
        """End the pull and remove its interest at once; a thread that iterates comes to the end of its loop.

        What was not handed out is nak'ed. Idempotent, never blocks, works from other threads and signal handlers.
        """
        beside(self._feed.close, self._feed.link.logs.consumer)

    def __repr__(self) -> str:
        feed = self._feed
        asked = f" of {feed.options.batch}" if feed.options.max_bytes is None else ""
        state = "ended" if feed.over else "open"
        return f"<MessageBatch of {feed.title}: {state} received={feed.received}{asked}>"

    def __enter__(self) -> MessageBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.close()


def fetch(target: PullTarget, options: FetchOptions) -> MessageBatch:
    """Send a pull; its messages are taken from what is returned."""
    feed = BatchFeed(target, options)
    feed.start()
    return MessageBatch(feed)


def raw_runs(batch: MessageBatch, most: int) -> Iterator[list[RawMessage]]:
    """The messages of a batch as they came, in lists of at most `most`: for code that reads many."""
    return runs(batch._feed, most)


def next_message(target: PullTarget, options: FetchOptions) -> JetStreamMessage | None:
    """One message, or None when none came within `expires`. Raises as a fetch does.

    Without heartbeats one thing answers, as for a BatchFeed: so no queue is needed.
    """
    expires, priority, link = options.expires, options.priority, target.link
    clock = heartbeat_clock(options)
    pull = Pull(target, Mailbox(before_wait=link.outbox.flush)) if clock else Pull(target, Slot(), limit=1)
    deadline = Deadline(expires + client_grace(expires))
    message = None
    try:
        pull.ask(options.body(None if priority.group is None else target.pin_id(priority)))
        while True:
            raw = pull.wait(deadline, clock)
            if type(raw) is not ArrivedStatus:
                if priority.group is not None:
                    target.learn_pin(priority, raw)
                message = JetStreamMessage(raw, link, target.single)
                break
            rule = classify(raw.status)
            if rule.drops_pin:
                target.drop_pin(priority)
            if rule.fetch in (FetchAction.ERROR, FetchAction.END_ERROR_IF_EMPTY):
                raise to_error(raw.status, target.next_subject.decode())
            if rule.fetch is not FetchAction.IGNORE:
                break
    except NotConnectedError:
        raise
    except TimeoutError:
        pass
    finally:
        try:
            pull.end()
        except BaseException:  # a signal handler raised in the midst of it: begin anew
            pull.end()
            raise
    return message


def heartbeat_clock(options: FetchOptions) -> HeartbeatClock | None:
    return HeartbeatClock(options.heartbeat, clock=time.monotonic) if options.heartbeat else None
