"""How messages are taken from a feed: one loop for all surfaces.

The consuming thread pops from `items` of a feed without a lock, and waits when nothing is there. It passes
statuses to the feed in their order, and says before each status and each wait how many messages it took: so the
feed knows what is left of its pulls.
"""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Protocol

from .._deadline import Deadline
from .._threads import beside, detached, spawn
from ..api.message import JetStreamMessage, Source, facts_of
from ..errors import NatsError, SubscriptionClosedError
from ..net.link import Link
from ..protocol.parser import RawMessage
from .progress import Progress
from .pull import ArrivedStatus
from .pull_options import message_size, total_size

ErrorCallback = Callable[[Any], Any]


class Feed(Protocol):
    """What messages are taken from, by one thread at a time."""

    link: Link
    sized: bool  # sizes count: account() is told of each message before the next one is taken
    source: Source  # what messages remember; not the feed: a message that is kept must not keep a stream pulling
    items: deque[RawMessage]  # messages and statuses that have come; wait() may put another deque in its place
    # Is shown each message (pin ids, order); False: it is not for the user. Never raises.
    inspect: Callable[[RawMessage], bool] | None

    @abstractmethod
    def wait(self, timeout: float | None) -> RawMessage:
        """The next message or status. What was taken before must have been accounted for.

        Raises TimeoutError, or what ended the feed: SubscriptionClosedError when it ended in order.
        """

    @abstractmethod
    def on_status(self, status: ArrivedStatus) -> None:
        """Act on a status; raises what ends the feed, as wait() does."""

    @abstractmethod
    def account(self, count: int, size: int, processed: bool = True) -> int:
        """`count` messages of `size` bytes were taken; `processed`: the user is done with them, too.

        Returns how many may be taken before the next call; 0: that was the last one. account(0, 0) asks for the
        first such number.
        """

    @abstractmethod
    def left(self, count: int, size: int) -> None:
        """A loop was left and has not accounted for these. Takes no lock: the garbage collector may call it."""


class Endless(Feed):
    """A feed that goes on until it is stopped: behind messages() and consume()."""

    title: str  # what the log and repr() call it
    number: int  # distinguishes its threads from those of other feeds
    ack_wait: float
    on_error: ErrorCallback | None
    ended: NatsError | None = None  # why it is over; SubscriptionClosedError after stop() or drain()
    draining: NatsError | None = None  # drain() was called, and why: no further pull
    user: weakref.ref[object] | None = None  # when this is gone, the feed ends
    progress: Progress | None = None  # with auto_progress: what handlers hold

    @abstractmethod
    def start(self) -> None:
        """Send the first pull. When that fails, nothing is left behind."""

    @abstractmethod
    def begin_hold(self) -> None:
        """A message is handed out: how long the user holds it, and those after it, counts from now.

        wait() and account() do so, too.
        """

    @abstractmethod
    def processed(self, count: int, size: int, busy: float) -> None:
        """The user is done with messages that were accounted for as not processed, and had them in hand for
        `busy` seconds. One thread at a time."""

    @abstractmethod
    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        """No further pull, no further message but what is buffered; with `discard` that is handed back.

        Handed back is nak'ed: another client of the consumer gets it at once. What was handed out is not touched.
        The first reason counts. May be repeated: a later call finishes what an interrupted one began.
        """

    @abstractmethod
    def drain_now(self, reason: NatsError, deadline: Deadline) -> None:
        """drain(), in this thread: blocks until everything that the server has sent has come."""

    @abstractmethod
    def join(self, timeout: float) -> None:
        """Wait for the threads of this feed, after end()."""

    @property
    def state(self) -> str:
        """How it stands, for repr(). Takes no lock."""
        ended = self.ended
        if ended is None:
            return "open" if self.draining is None else "draining"
        return "ended" if isinstance(ended, SubscriptionClosedError) else f"ended by {type(ended).__name__}"

    def left(self, count: int, size: int) -> None:
        return  # the next wait() finds out what was not accounted for

    def rouse(self) -> None:
        """Handlers hold something that may have to be kept alive, or hold it no more. Takes no lock."""

    def track_progress(self) -> None:
        """auto_progress: from now on `progress` is told what handlers hold. Without acks: nothing."""
        if self.source.acks:
            self.progress = Progress(self.rouse)

    def end_if_dropped(self) -> None:
        """For threads of the feed: a finalizer can be lost to a signal handler that raises in it."""
        at_work = self.progress is not None and self.progress.at_work
        if self.user is not None and self.user() is None and (self.ended is None or self.items or at_work):
            self.drop()

    def drop(self) -> None:
        """No code holds the message stream any more: nothing can take what is buffered."""
        if self.progress is not None:
            self.progress.release_all()
        self.end(SubscriptionClosedError("the message stream was dropped"), discard=True)

    def report(self, error: BaseException) -> None:
        """Tell on_error, on the connection's callback thread, or the log."""
        if self.on_error is not None:
            self.link.call(self.on_error, error)
        else:
            self.link.logs.consumer.warning("%s: %s", self.title, error)

    def callback_raised(self, error: BaseException, message: JetStreamMessage) -> None:
        """The user's callback raised: tell on_error as report() does, or log it with its traceback."""
        if self.on_error is not None:
            self.link.call(self.on_error, error)
        else:
            self.link.logs.consumer.callback_raised(error, facts_of(message))

    def stop(self, reason: NatsError) -> None:
        """End at once, from anywhere, signal handlers included; what is buffered is handed back.

        Outside of signal handlers it has taken effect when this returns. Raises ForkError in a forked child.
        """
        self.link.check_process()
        beside(lambda: self.end(reason, discard=True), self.link.logs.consumer)

    def drain(self, reason: NatsError, buffered: str = "process") -> None:
        """No further pull from now on; what the server has sent already is received, then the feed ends.

        Returns at once and works from anywhere: another thread waits for the server, drain_timeout at most. With
        `buffered="nak"` there is nothing to wait for: what is buffered, and what still comes, is handed back.
        """
        if buffered not in ("process", "nak"):
            raise ValueError(f"buffered must be 'process' or 'nak': {buffered!r}")
        if buffered == "nak":
            self.stop(reason)
            return
        self.link.check_process()
        self.draining = self.draining or reason
        deadline = Deadline(self.link.options.drain_timeout)
        if get_ident() == threading.main_thread().ident:  # perhaps in a signal handler
            detached(self.drain_now, reason, deadline)
        else:
            spawn(f"drain-{self.number}", self.drain_now, reason, deadline)


def loop(feed: Feed, *, when_done: bool = False) -> Iterator[JetStreamMessage]:
    """Every message of a feed.

    A message is accounted for when it is handed out, or with `when_done` when the next one is asked for.
    """
    link, source, sized, inspect, account = feed.link, feed.source, feed.sized, feed.inspect, feed.account
    pop = feed.items.popleft
    raw: RawMessage | None
    taken = size = 0
    quantum = account(0, 0)
    try:
        while quantum:
            try:
                raw = pop()
            except IndexError:
                raw = None  # and no wait() from here: what it raises would carry this error as its context
            if type(raw) is not tuple:  # nothing, or a status
                if taken:
                    quantum = account(taken, size)
                    taken = size = 0
                if raw is None:
                    raw = feed.wait(None)
                    pop = feed.items.popleft
                if type(raw) is ArrivedStatus:
                    feed.on_status(raw)
                    continue
            if inspect is not None and not inspect(raw):
                continue
            taken += 1
            if sized:
                size += message_size(raw)
            if when_done:
                yield JetStreamMessage(raw, link, source)
            if taken >= quantum:
                quantum = account(taken, size)
                taken = size = 0
            if not when_done:
                yield JetStreamMessage(raw, link, source)
    except SubscriptionClosedError:
        return  # ended in order
    finally:
        feed.left(taken, size)


def take_one(feed: Feed, deadline: Deadline) -> JetStreamMessage:
    """The next message. Raises TimeoutError at the deadline, and what ended the feed."""
    return JetStreamMessage(take_raw(feed, deadline), feed.link, feed.source)


def take_raw(feed: Feed, deadline: Deadline, *, processed: bool = True) -> RawMessage:
    """The next message as it came; unless `processed`, `Endless.processed` is to follow."""
    inspect = feed.inspect
    raw: RawMessage | None
    while True:
        try:
            raw = feed.items.popleft()
        except IndexError:
            raw = None  # and no wait() from here, as in loop()
        if raw is None:
            raw = feed.wait(deadline.remaining())
        if type(raw) is ArrivedStatus:
            feed.on_status(raw)
        elif inspect is None or inspect(raw):
            feed.account(1, message_size(raw) if feed.sized else 0, processed)
            return raw


def runs(feed: Feed, most: int) -> Iterator[list[RawMessage]]:
    """Every message of a feed as it came, in lists of what has come, of at most `most`.

    An error follows the messages that came before it.
    """
    inspect, account, sized = feed.inspect, feed.account, feed.sized
    quantum = account(0, 0)
    try:
        while quantum:
            run, status = _taken(feed.items, most if sized else min(most, quantum))
            if inspect is not None:
                run = list(filter(inspect, run))
            if run:
                quantum = account(len(run), total_size(run) if sized else 0)
                yield run
            if status is not None:
                feed.on_status(status)
            elif not run:
                raw = feed.wait(None)  # first: it may put another deque in the place of `items`
                feed.items.appendleft(raw)
    except SubscriptionClosedError:
        return  # ended in order
    finally:
        feed.left(0, 0)


def _taken(items: deque[RawMessage], most: int) -> tuple[list[RawMessage], ArrivedStatus | None]:
    """Up to `most` messages from the front of `items`, and the status behind them if one follows.

    Nothing is done for single messages outside of C: a loop would take ten times as long.
    """
    run: list[RawMessage] = []
    try:
        run.extend(map(deque.popleft, repeat(items, most)))
    except IndexError:
        pass  # it is empty
    if ArrivedStatus not in map(type, run):
        return run, None
    place = next(place for place, raw in enumerate(run) if type(raw) is ArrivedStatus)
    items.extendleft(reversed(run[place + 1 :]))
    status = run[place]
    assert isinstance(status, ArrivedStatus)
    return run[:place], status
