"""What messages of an ordered consumer are taken from: OrderedBatchFeed (fetch, next), OrderedFeed (the others).

See chain.py for what a generation is. Both compare sequences as they take messages. After a loss (a gap, a
deletion, no responders; for OrderedFeed also a missed heartbeat and a disconnect) they go on from the next
generation.

A fetch has no thread: the consuming thread creates the generation itself. It is kept for the next fetch as long as
the server's word, or the count, proves that it sent nothing that was not handed out. Behind an OrderedFeed:

  consuming thread  takes from the mailbox of the present generation. Notes a loss, and in wait() gives the
                    generation up, has js-ordered create the next one, and waits for it.
  js-ordered-<n>    one at a time, while there is no generation: creates the next one. Blocks in one API request at
                    a time and in the back-off, which end() cuts short. Ends when the generation is there, with a
                    definite error, or with the end of the feed.
  js-refill-<n>     of the present generation (see Refill): a missed heartbeat ends it, which closes its mailbox
                    and so wakes the consuming thread.
  js-reader         a disconnect does the same: what was sent in the old session is lost to the generation.

`OrderedFeed._lock` guards `ended`, the newest generation and which js-ordered may bring it; nothing blocks under
it. Every step of the consuming thread can be repeated: a signal handler may have raised in the midst of it.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta

from .._deadline import Deadline
from .._threads import Wakeup, join_quietly, spawn
from ..api.message import JetStreamMessage, SingleSource, Source
from ..errors import (
    ConnectionLostError,
    ConsumerDeletedError,
    MissedHeartbeatError,
    NatsError,
    NoRespondersError,
    NotJSMessageError,
    SequenceMismatchError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.link import Link
from ..protocol.parser import RawMessage
from .chain import LOST, Chain, ErrorCallback, Lease
from .fetch import NO_WAIT_SECONDS, BatchFeed, MessageBatch
from .messages import MessageStream
from .pull import ArrivedStatus, PullTarget
from .pull_options import ConsumeOptions, FetchOptions, client_grace
from .refill import Refill
from .status import FetchAction, Kind, classify, to_error
from .take import Endless, take_one

# What a fetch has left for its pull when creating the consumer used up its time.
LEAST_EXPIRES = 0.1

_NEVER = Deadline(None)


class Recalled(NatsError):
    """Inside only: a message was taken and not handed out; the next generation brings it again."""


# What an endless feed rides out; more than a fetch does.
RIDDEN_OUT = (*LOST, ConnectionLostError, MissedHeartbeatError, Recalled)


class Order:
    """What both feeds have: compares sequences as messages are taken, and notes a loss for wait()."""

    def __init__(self, chain: Chain, *, interruptible: bool = True) -> None:
        """`interruptible`: signal handlers may raise in the consuming thread, which says what it handed out."""
        self.chain = chain
        self.lease: Lease | None = None
        self.loss: NatsError | None = None
        self._interruptible = interruptible

    def is_next(self, raw: RawMessage) -> bool:
        if self.loss is None:
            chain = self.chain
            try:
                chain.advance(self.lease, raw)
                if not self._interruptible:
                    chain.handed_out = chain.position
                return True
            except NatsError as error:
                self.loss = error
        return False

    def recall(self) -> None:
        """A message that was taken and not handed out is to come again: a signal handler raised in between."""
        if self.chain.position != self.chain.handed_out:
            self.loss = Recalled("a message was not handed out because a signal handler raised")
            self.chain.take_back(self.lease)

    def handing_out(self, messages: Iterator[JetStreamMessage]) -> Iterator[JetStreamMessage]:
        """`messages`, while the chain is told which of them the user got."""
        chain = self.chain
        try:
            self.recall()
            chain.consuming_thread = get_ident()
            for message in messages:
                chain.handed_out = chain.position
                yield message
        except GeneratorExit:
            raise  # the loop was left, by a user who has got the message
        except BaseException:
            self.recall()
            raise

    def hand_out(self, take: Callable[[], JetStreamMessage]) -> JetStreamMessage:
        """The message that `take` returns, while the chain is told that the user got it."""
        chain = self.chain
        try:
            self.recall()
            chain.consuming_thread = get_ident()
            message = take()
            chain.handed_out = chain.position
            return message
        except BaseException:
            self.recall()
            raise


# --- fetch and next -------------------------------------------------------------------------------------


class OrderedBatchFeed(BatchFeed):
    """The feed of a fetch. Goes on with a follow-up pull, for what is left of the messages and the time."""

    in_use: bool
    inspect: Callable[[RawMessage], bool] | None

    def __init__(self, chain: Chain, options: FetchOptions) -> None:
        """Sends nothing: start() does."""
        self.order: Order = Order(chain)
        self.options = options
        self.received = self.bytes = 0
        self.in_use = self._pulling = self._concluded = False
        self._until = time.monotonic() + (options.expires if options.expires_ns else NO_WAIT_SECONDS)

    @property
    def title(self) -> str:
        return self.order.chain.title

    def start(self) -> None:
        """Send a pull for what is left to ask for. Blocks only for a consumer that has to be created."""
        order = self.order
        try:
            self.in_use = True
            order.lease = order.lease or order.chain.lease(self)
            left = max(0.0, self._until - time.monotonic())
            target = order.chain.current(
                time.sleep, Deadline(left + client_grace(left)), order.chain.log_failed_try
            )
            super().__init__(target, self._rest())
            self.inspect = order.is_next
            order.loss = None
            self._pulling = True
            super().start()
        except BaseException:
            self.end()
            raise

    def wait(self, timeout: float | None) -> RawMessage:
        if self.order.loss is not None:
            self._go_on(self.order.loss)
        return super().wait(timeout)

    def on_status(self, status: ArrivedStatus) -> None:
        action = classify(status.status).fetch
        error = to_error(status.status, self.pull.target.next_subject.decode())
        if action is FetchAction.ERROR and isinstance(error, LOST):
            self.order.loss = self.order.loss or error
        if self.order.loss is None:
            # The server's word that nothing more comes.
            ended = action is FetchAction.END or (action is FetchAction.END_ERROR_IF_EMPTY and self.received > 0)
            self._concluded = ended
            super().on_status(status)

    def left(self, count: int, size: int) -> None:
        super().left(count, size)
        if self.in_use:
            self.order.chain.soon(self.end)

    def close(self) -> None:
        self.end()  # without acks there is nothing to hand back

    def end(self) -> None:
        if self._pulling:  # else the next user of the chain gives up a generation that may exist
            super().end()
            self.order.chain.release(self.order.lease, clean=self._concluded or self.filled)
        self.in_use = False

    def _go_on(self, error: NatsError) -> None:
        """Pull the rest from the next generation; SubscriptionClosedError when nothing is left to ask for."""
        self.link.logs.consumer.debug("ordered consumer: %s; going on from a new one", error)
        self.pull.end()
        if isinstance(error, SubscriptionClosedError) or self.filled or time.monotonic() >= self._until:
            self.end()
            raise SubscriptionClosedError("the fetch has ended")
        self.order.chain.discard()
        self.order.chain.record_failure()
        self.start()

    def _rest(self) -> FetchOptions:
        """What is left to ask for: of the messages, and of the time, of which creating a consumer took some."""
        options, left = self.options, max(LEAST_EXPIRES, self._until - time.monotonic())
        if self.received:
            most = None if options.max_bytes is None else options.max_bytes - self.bytes
            options = options._replace(batch=options.batch - self.received, max_bytes=most)
        if not options.expires_ns or left > options.expires - LEAST_EXPIRES:
            return options
        expires_ns = int(left * 1_000_000_000)
        return options._replace(expires_ns=expires_ns, heartbeat_ns=min(options.heartbeat_ns, expires_ns // 2))


class OrderedBatch(MessageBatch):
    """The messages of one fetch from an ordered consumer; see MessageBatch."""

    _feed: OrderedBatchFeed

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return self._feed.order.handing_out(super().__iter__())


def ordered_fetch(chain: Chain, options: FetchOptions) -> MessageBatch:
    """Send a pull; its messages are taken from what is returned."""
    feed = OrderedBatchFeed(chain, options)
    feed.start()
    return OrderedBatch(feed)


def ordered_next(chain: Chain, options: FetchOptions) -> JetStreamMessage | None:
    """One message, or None when none came within `expires`. Raises as a fetch does."""
    feed = OrderedBatchFeed(chain, options)
    try:
        feed.start()
        return feed.order.hand_out(lambda: take_one(feed, _NEVER))
    except SubscriptionClosedError:
        return None  # ended in order
    except BaseException:
        feed.end()
        raise


# --- messages and consume -------------------------------------------------------------------------------


class Generation(Refill):
    """The pulls from one generation. It ends with whatever may have cost it a message; its owner goes on."""

    def __init__(self, owner: OrderedFeed, target: PullTarget, options: ConsumeOptions) -> None:
        super().__init__(target, options, check=None, on_error=None)
        self._owner = owner

    def report(self, error: BaseException) -> None:
        self._owner.report(error)
        if isinstance(error, (MissedHeartbeatError, NoRespondersError)):
            self.end(error)

    def disconnected(self) -> None:
        self.end(ConnectionLostError("the connection was lost"))

    def reconnected(self) -> None:
        if not self._connected:  # the disconnect came before this object could be told of it
            self.disconnected()

    def closed(self, error: NatsError) -> None:
        self._owner.end(error)

    def look(self) -> float:
        self._owner.end_if_dropped()
        if self._owner.ended is not None:
            self.end(self._owner.ended)  # a signal handler raised in the call that was to do this
        return super().look()

    def _recover(self, arrived: int, answers: int) -> None:
        raise Recalled("a message was taken and, because a signal handler raised, not handed out")


class OrderedFeed(Endless):
    """An endless run of messages in stream order: what a Refill is to a consumer. See the module's text."""

    ended: NatsError | None = None
    draining: NatsError | None = None

    def __init__(
        self, chain: Chain, options: ConsumeOptions, *, on_error: ErrorCallback | None, interruptible: bool
    ) -> None:
        """Sends nothing: start() does."""
        self.link: Link = chain.link
        self.title: str = chain.title
        self.on_error = on_error
        self.ack_wait: float = 0.0
        self.sized: bool = options.by_bytes
        self.source: Source = SingleSource(acks=False)
        self.items: deque[RawMessage] = deque()
        self.order: Order = Order(chain, interruptible=interruptible)
        self.inspect: Callable[[RawMessage], bool] | None = self.order.is_next
        self.number: int = 0
        self.chain = chain
        self._options = options
        self._lock = allocate_lock()
        self._newest: Generation | None = None  # None: the next one is still to come
        self._present: Generation  # what messages are taken from
        self._job: object = None  # of the js-ordered that may bring the next generation
        self._thread: threading.Thread | None = None
        self._brought = Wakeup()  # for the consuming thread
        self._stopped = Wakeup()  # for js-ordered

    def start(self) -> None:
        try:
            self.order.lease = self.chain.lease(self)
            target = self.chain.current(
                self._pause, Deadline(self.chain.client.timeout), self.chain.log_failed_try
            )
            self._take_over(self._begin(target, None))
        except BaseException:
            self.end(SubscriptionClosedError("the consume could not start"), discard=True)
            raise

    @property
    def in_use(self) -> bool:
        """Until it has ended and what is buffered has been taken."""
        return self.ended is None or bool(self.items)

    # --- consuming thread ---------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> RawMessage:
        deadline = Deadline(timeout)
        while True:
            if self._newest is not self._present:
                self._await_next(deadline)
            error = self.order.loss
            if error is None:
                try:
                    return self._present.wait(deadline.remaining())
                except TimeoutError:
                    raise
                except NatsError as ended:
                    error = ended
            self._recover(error)

    def on_status(self, status: ArrivedStatus) -> None:
        if self.order.loss is None:
            try:
                self._present.on_status(status)
                if classify(status.status).kind is Kind.HEARTBEAT:
                    self.order.loss = self.chain.gap_before(status[2])
            except NatsError as error:
                self.order.loss = error

    def account(self, count: int, size: int, processed: bool = True) -> int:
        """With the generation that sent them: this comes before each wait(), and only that brings another one."""
        return self._present.account(count, size, processed)

    def begin_hold(self) -> None:
        self._present.begin_hold()

    def processed(self, count: int, size: int, busy: float) -> None:
        """Not called: an ordered consumer has one worker, which accounts for messages as processed."""

    def _await_next(self, deadline: Deadline) -> None:
        """Take from the next generation as soon as js-ordered has brought it."""
        while self._newest is None:
            if self.ended is not None:
                raise self.ended.with_traceback(None)
            if self._thread is None or not self._thread.is_alive():
                self._job = job = object()
                self._thread = spawn(f"ordered-{self.number}", self._run, job)
            if not self._brought.wait(deadline.remaining()) and deadline.expired:
                raise self.link.no_message()
        self._take_over(self._newest)

    def _take_over(self, generation: Generation) -> None:
        self.items, self.number = generation.items, generation.number
        self.order.loss = None
        self._present = generation

    def _recover(self, error: NatsError) -> None:
        """Give up the present generation, so that the next one takes over; or raise what ends the feed."""
        if self.link.forked:
            raise error
        self._present.end(error, discard=True)  # what is behind a gap comes again
        reason = self.ended or self.draining
        if reason is not None:
            raise reason.with_traceback(None)
        if not isinstance(error, RIDDEN_OUT):
            self.end(error)
            raise error
        self.chain.discard()
        self.chain.record_failure()
        if isinstance(error, (ConsumerDeletedError, SequenceMismatchError, NotJSMessageError)):
            self.report(error)  # of the others, some have been reported; a lost connection is not ours to report
        self._newest = None

    # --- ending -------------------------------------------------------------------------------------

    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        if self.link.forked:
            return  # a forked child does not speak for its parent
        try:
            self._finish(reason, discard)
        except BaseException:  # a signal handler raised in the midst of it: begin anew
            self._finish(reason, discard)
            raise

    def _finish(self, reason: NatsError, discard: bool) -> None:
        with self._lock:
            self.ended = self.ended or reason
            newest = self._newest
        self._stopped.set()
        self._brought.set()
        if newest is not None:
            newest.end(self.ended, discard=discard)
        self.chain.release(self.order.lease, clean=False)

    def drain_now(self, reason: NatsError, deadline: Deadline) -> None:
        self.draining = self.draining or reason
        with self._lock:
            newest = self._newest  # the last: js-ordered looks at `draining` under the lock
        if newest is not None:
            newest.drain_now(reason, deadline)
        self.end(reason)

    def join(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        join_quietly(self._thread, deadline.wait_time())
        if self._newest is not None:
            self._newest.join(deadline.wait_time())

    # --- js-ordered ---------------------------------------------------------------------------------

    def _run(self, job: object) -> None:
        try:
            self._begin(self.chain.current(self._pause, _NEVER, self.report), job)
        except NatsError as error:
            if self._job is job:
                self.end(error)  # when it has ended already, this changes nothing
        self._brought.set()
        self.chain.delete_dropped()

    def _begin(self, target: PullTarget, job: object) -> Generation:
        """Pull from `target`, unless the feed has ended meanwhile, or another js-ordered was started."""
        generation = Generation(self, target, self._options)
        generation.start()
        with self._lock:
            reason = self.ended or self.draining
            if reason is None and self._job is job:
                self._newest = generation
                return generation
        reason = reason or SubscriptionClosedError("another generation has taken over")
        generation.end(reason, discard=True)
        raise reason.with_traceback(None)

    def _pause(self, wait: float) -> None:
        """Sleep, or raise as soon as the feed has ended."""
        if self.ended is None:
            self._stopped.wait(wait)
        if self.ended is not None:
            raise self.ended.with_traceback(None)


class OrderedStream(MessageStream):
    """A MessageStream that tells the chain what it has handed out."""

    __slots__ = ()

    _endless: OrderedFeed

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return self._endless.order.handing_out(super().__iter__())

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMessage:
        self._feed.check_alone()
        return self._endless.order.hand_out(lambda: MessageStream.next(self, timeout))
