"""Push subscriptions: messages the server sends by itself to a subject of the consumer's (ADR-15, ADR-9).

Who does what:

  js-reader         puts messages and statuses into the mailbox, within the limits of any subscription; after a
                    reconnect it puts a mark between what came before and what comes after. Wakes js-push after
                    disconnects and reconnects.
  consuming thread  the user's thread in next_msg() or an iteration, or js-sub-<sid> with a callback. One at a
                    time has the turn: it takes from the mailbox and acts on statuses. So sequences are compared
                    in the order the user sees, and a flow-control request is answered when everything before it
                    has been handed out (and, with a callback, handled).
  js-push-<n>       with heartbeats only: raises the alarm after too long a silence. It alone uses the heartbeat
                    clock, and never touches a message. Blocks until it is woken, at most until the next alarm. It
                    looks at the connection itself each time and is not told to pause and resume: two threads could
                    tell it in the wrong order. After an alarm it looks the consumer up, which blocks for one
                    reply; one that is gone ends the subscription. Ends when the mailbox is closed, which finish()
                    wakes it after.

`_turn` is held while waiting for a message; only consuming threads ask for it. It is an RLock, because that
knows its owner: however an exception of a signal handler's comes in between, the `finally` releases it if and
only if this thread has it. `_created` passes from True to False once, under `_owner_lock`, to the thread that
deletes the consumer.
"""

from __future__ import annotations

import itertools
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from .._deadline import FOREVER, Deadline
from .._threads import Wakeup, acquire, join_quietly, spawn
from ..api.client import ApiClient
from ..api.config import AckPolicy
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage, Source, facts_of, parse_metadata
from ..errors import (
    MissedHeartbeatError,
    NatsError,
    NotJSMessageError,
    PermissionsError,
    SequenceMismatchError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.subscription import Inbound, Subscription
from ..protocol import commands
from ..protocol.headers import Status, header_value
from ..protocol.parser import RawMessage
from ..protocol.subjects import publish_subject, queue_name
from .heartbeat import PUSH_FACTOR, HeartbeatClock
from .look_up import GONE
from .pull import ArrivedStatus
from .retry_delay import retry_delay
from .status import PushAction, classify, read_status, to_error
from .take import take_one

Callback = Callable[[JetStreamMessage], Any]

_numbers = itertools.count(1)


# How many messages and bytes a subscription may buffer; 0 or less is no limit.
PendingLimits = tuple[int, int]

# The least time that the server is given to answer a look-up; a longer heartbeat gives it more.
LEAST_LOOK_UP_SECONDS = 1.0

# In the mailbox: what follows came on a new connection. Compared by identity.
RECONNECTED = ArrivedStatus((b"", None, None, b""), Status(0, ""), 0.0)


class Sequences:
    """Reports gaps in consumer sequences, each once: what comes after it is the new beginning."""

    __slots__ = ("_report", "last")

    def __init__(self, report: Callable[[int, int, int], None]) -> None:
        """`report` is told the sequence that was expected, the one that came, and the stream's."""
        self._report = report
        self.last: int | None = None  # delivered last: 0 for a new consumer, None when it is not known

    def message(self, raw: RawMessage) -> bool:
        """For Feed.inspect: True, after the gap before the message was reported, if there is one.

        Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`, the usual
        form of a reply subject, one token is compared: reading all metadata costs five times as much.
        """
        last, reply = self.last, raw[1]
        if last is not None and reply is not None:
            tokens = reply.split(b".")
            if len(tokens) == 9 and tokens[6] == b"%d" % (last + 1):
                self.last = last + 1
                return True
        try:
            metadata = parse_metadata(None if reply is None else reply.decode("utf-8", "surrogateescape"))
        except NotJSMessageError:
            return True  # it was published to the deliver subject
        stream_seq, self.last = metadata.sequence
        # A smaller number is a new leader's, or that of a consumer made anew: nothing is missing.
        if last is not None and metadata.num_delivered <= 1 and self.last > last + 1:
            self._report(last + 1, self.last, stream_seq)
        return True

    def heartbeat(self, block: bytes) -> None:
        """ADR-9: a heartbeat says which sequence was delivered last, so a loss shows though nothing follows it."""
        told = header_value(block, b"Nats-Last-Consumer") or b""
        if told.isdigit():
            last, self.last = self.last, int(told)
            if last is not None and self.last > last:
                stream = header_value(block, b"Nats-Last-Stream") or b""
                stream_seq = int(stream) if stream.isdigit() else 0
                self._report(last, self.last, stream_seq)


class PushInbound(Inbound):
    """The receiver of a push subscription, and the feed its messages are taken from."""

    sized = False

    def __init__(self, client: ApiClient, subject: str, queue: str | None, limits: PendingLimits) -> None:
        # publish_subject: the server publishes to it.
        wire_queue = None if queue is None else queue_name(queue)
        super().__init__(client.link, publish_subject(subject), wire_queue, *limits)
        self.stream_name: str = ""
        self._name = ""
        self.acks: bool = True
        self.items: deque[RawMessage] = self.mailbox.items
        self.source: Source = self  # of its messages: acks and items
        self.delete_when_empty = False
        self.backoff: list[float] | None = None  # of the consumer
        self.api: ConsumerApi = ConsumerApi(client)
        self._timeout = client.timeout
        self._turn = threading.RLock()
        self._not_messages = 0  # statuses and marks that were taken
        self._sequences = Sequences(self._report_gap)
        self.inspect: Callable[[RawMessage], bool] | None = self._sequences.message if queue is None else None
        self._flow_answered: bytes | None = None  # the server repeats a request until it is answered
        self._watcher: threading.Thread | None = None  # js-push
        self._wakeup = Wakeup()  # for js-push
        self._losses = self._losses_seen = 0  # of the session; the first is written by the reader thread alone
        self._may_look_up = True  # the server has not denied it in this session
        self._owner_lock = allocate_lock()
        self._created = False

    @property
    def consumer_name(self) -> str:
        return self._name

    @property
    def delivered(self) -> int:
        return super().delivered - self._not_messages

    def attach(self, info: ConsumerInfo, *, created: bool) -> None:
        """The consumer is there: watch over it from now on. Messages may have come already.

        Raises what closed the subscription meanwhile: the server denied it, or the connection was closed.
        """
        self.acks = info.config.ack_policy != AckPolicy.NONE
        self.backoff = info.config.backoff
        self._sequences.last = 0 if created else None
        self.stream_name, self._name = info.stream_name, info.name  # from now on reconnected() leaves a mark
        self._created = created
        if info.config.idle_heartbeat and self.wire_queue is None:
            clock = HeartbeatClock(info.config.idle_heartbeat, PUSH_FACTOR, clock=time.monotonic)
            self._watcher = spawn(f"push-{next(_numbers)}", self._watch, clock)
        if self.mailbox.closed:
            self.take(0)  # raises

    # --- consuming threads ------------------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> JetStreamMessage:
        deadline = Deadline(timeout)
        turn = self._turn
        try:
            if not turn.acquire(False) and not acquire(turn, deadline.wait_time()):
                raise TimeoutError("no message came in time: another thread was waiting for one, too")
            return take_one(self, deadline)
        except SubscriptionClosedError:
            self.delete_if_drained()
            raise
        finally:
            try:
                turn.release()
            except RuntimeError:
                pass  # this thread does not have it

    def _callback_raised(self, error: BaseException, message: JetStreamMessage) -> None:
        self.link.reports.callback_raised(error, self.link.logs.consumer, facts_of(message))

    def _report_gap(self, expected: int, got: int, stream_seq: int) -> None:
        names = {"stream": self.stream_name, "consumer": self.consumer_name}
        self.link.report(SequenceMismatchError(expected, got, stream_seq=stream_seq, **names))

    def wait(self, timeout: float | None) -> RawMessage:
        return self.mailbox.get(timeout)

    def account(self, count: int, size: int, processed: bool = True) -> int:
        return 1

    def left(self, count: int, size: int) -> None:
        """Nothing is counted here."""

    def on_status(self, arrived: ArrivedStatus) -> None:
        self._not_messages += 1
        if arrived is RECONNECTED:
            self._sequences.last = None  # what came in the old session may be lost, or delivered again
            self._flow_answered = None  # the reply may have been lost with the session
            return
        if arrived[0] != self.wire_subject:
            return  # of the consumer before
        action, block = classify(arrived.status).push, arrived[2]
        if action is PushAction.FLOW and arrived[1] is not None:
            self._answer_flow_control(arrived[1])
        elif action is PushAction.HEARTBEAT:
            self._on_heartbeat(block)
            stalled = header_value(block, b"Nats-Consumer-Stalled")
            # No whitespace: a client that can publish to the deliver subject could else inject a protocol line.
            if stalled and len(stalled.split()) == 1:
                self._answer_flow_control(stalled)
        elif action is PushAction.RAISE:
            error = to_error(arrived.status, self.subject, "the server reports on the push subscription")
            if not self.has_callback:
                raise error
            self.link.report(error)

    def _on_heartbeat(self, block: bytes) -> None:
        if self.wire_queue is None:
            self._sequences.heartbeat(block)

    def _answer_flow_control(self, subject: bytes) -> None:
        if subject != self._flow_answered:
            try:
                self.link.outbox.publish(commands.publish(subject, b""), 0, keep=False)
            except NatsError:
                return  # not connected: a heartbeat will repeat the request
            self._flow_answered = subject

    # --- ending -------------------------------------------------------------------------------------

    def delete_if_drained(self) -> None:
        if self.delete_when_empty:
            try:
                self.delete_created()
            except NatsError as error:
                self.link.report(error)

    def delete_created(self) -> None:
        """Delete the consumer if it is ours to delete. By one thread, once; again only after a failure."""
        mine = False
        try:
            with self._owner_lock:
                mine, self._created = self._created, False
            if mine:
                self.api.delete(self.stream_name, self.consumer_name)
        except BaseException:
            self._created |= mine
            raise

    def finish(self, reason: NatsError, *, discard: bool = False) -> None:
        super().finish(reason, discard=discard)
        self._wakeup.set()

    def join(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        super().join(timeout)
        join_quietly(self._watcher, deadline.wait_time())

    # --- reader thread ------------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        inbox = self.wire_subject
        for index, raw in enumerate(messages):
            if raw[2] is not None and raw[0] == inbox:
                status = read_status(raw[0], raw[1], raw[2], inbox)
                if status is not None:
                    messages[index] = ArrivedStatus(raw, status, time.monotonic())
        super().deliver(messages, size)

    def disconnected(self) -> None:
        self._losses += 1
        self._wakeup.set()

    def reconnected(self) -> None:
        if self._name:
            self.insert(RECONNECTED)  # without it the next message would look like a gap
        self._wakeup.set()

    # --- js-push ------------------------------------------------------------------------------------

    def _watch(self, clock: HeartbeatClock) -> None:
        while not self.mailbox.closed:
            self._follow_connection(clock)
            if clock.due():
                names = {"stream": self.stream_name, "consumer": self.consumer_name}
                self.link.report(MissedHeartbeatError(clock.silence, **names))
                self._on_silence(clock.window)
            self._on_wake()
            self._follow_connection(clock)
            wait = clock.remaining()
            self._wakeup.wait(FOREVER if wait is None else wait)

    def _follow_connection(self, clock: HeartbeatClock) -> None:
        """Silence counts from the beginning of a session, and by arrival: a slow callback is no silence."""
        connected = self.link.connected
        losses = self._losses  # read second: the loss of a session is counted before the next one is in use
        if not connected or losses != self._losses_seen:
            self._losses_seen = losses
            self._may_look_up = True
            clock.pause()
        if connected:
            clock.resume()
            clock.reset(self.last_arrival)

    def _on_silence(self, window: float) -> None:
        """An alarm, after nothing came for `window` seconds: look the consumer up, once.

        What is not a definite reply says nothing: the next alarm asks again.
        """
        if not self._may_look_up:
            return
        try:
            timeout = min(self._timeout, max(window, LEAST_LOOK_UP_SECONDS))
            self.api.info(self.stream_name, self.consumer_name, timeout=timeout)
        except GONE as error:
            if not self.mailbox.closed:  # otherwise it was ended meanwhile, and deleted by the one who did
                with self._owner_lock:
                    self._created = False  # nothing is left to delete
                self.conclude(error)
        except PermissionsError:
            self._may_look_up = False
        except NatsError as error:
            self.link.logs.consumer.debug("consumer %s could not be looked up: %s", self.consumer_name, error)

    def conclude(self, error: NatsError) -> None:
        """The consumer is gone: no message follows those that are buffered. By js-push."""
        self.link.close(self)
        self.finish(error)
        if self.has_callback:  # otherwise next_msg() and the iteration raise it
            self.link.report(error)

    def _on_wake(self) -> None:
        """js-push was woken; an ordered subscription replaces its consumer here."""


class PushSubscription(Subscription):
    """What `js.subscribe()` returns. Thread-safe; several threads may take messages from one subscription.

    Iterating blocks for each message and ends as any subscription's iteration does. Heartbeats, flow control and
    gaps are dealt with inside: alarms (MissedHeartbeatError) and gaps (SequenceMismatchError) are reported to the
    connection's error callback. A status that is an error is raised by next_msg() and the iteration, or reported
    where there is a callback; the subscription goes on after it.

    After an alarm the consumer is looked up. One that is gone ends the subscription: next_msg() and the iteration
    raise ConsumerNotFoundError or StreamNotFoundError; where there is a callback, it is reported. Without
    heartbeats (`idle_heartbeat`) a consumer that is gone cannot be told from one that has nothing to deliver.

    `unsubscribe()` and `drain()` delete the consumer if this subscription created it, durable or not; one that was
    found is left alone. Closing or draining the connection deletes nothing.
    """

    __slots__ = ()

    _inbound: PushInbound

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> JetStreamMessage:
        """The next message. Blocks up to `timeout` seconds (None: for ever).

        Raises TimeoutError when none came, PullError for a status that is an error, SubscriptionClosedError after
        unsubscribe or drain, ConnectionClosedError, PermissionsError when the server denied the subscription,
        ConsumerNotFoundError or StreamNotFoundError when the consumer is gone.
        """
        return super().next_msg(timeout)  # type: ignore[return-value]  # of what PushInbound.take() returns

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return super().__iter__()  # type: ignore[return-value]

    def unsubscribe(self, limit: int = 0) -> None:
        """Stop receiving, drop what is buffered, and delete the consumer if this subscription created it.

        A `limit` is refused: only a plain subscription has one.

        Blocks for the server's reply to the deletion and raises what it says. A second call does nothing, or tries
        again to delete the consumer where the first one failed.
        """
        if limit:
            raise ValueError("a push subscription has no limit: count the messages and unsubscribe then")
        super().unsubscribe()
        self._inbound.delete_created()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Stop receiving, but keep what the server has sent already; raises as any subscription's drain().

        A consumer that this subscription created is deleted when everything has been handled: with a callback
        before this returns (unless it is called from the callback), without one when the messages left have
        been taken and another is asked for. A deletion that fails is reported to the error callback. Blocks up to
        `timeout` seconds; by default `drain_timeout` of connect().
        """
        self._inbound.delete_when_empty = True
        super().drain(timeout)
        if not self._inbound.has_callback and not self._inbound.mailbox:
            self._inbound.delete_if_drained()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        link = self._inbound.link
        if link.forked:
            return
        try:
            self.unsubscribe()
        except NatsError as failed:
            if error is None and not link.closed:
                raise
            link.report(failed)

    @property
    def stream_name(self) -> str:
        """The stream it reads."""
        return self._inbound.stream_name

    @property
    def consumer_name(self) -> str:
        """The consumer's name on the server; that of an ordered subscription changes when it is replaced."""
        return self._inbound.consumer_name

    def __repr__(self) -> str:
        queue = f" queue={self.queue!r}" if self.queue else ""
        return (
            f"<PushSubscription of consumer {self.consumer_name!r}, stream {self.stream_name!r}:{queue} "
            f"{self._state()}>"
        )

    def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when it is gone, or while that of
        an ordered subscription is replaced."""
        inbound = self._inbound
        return inbound.api.info(inbound.stream_name, inbound.consumer_name)


def acking(callback: Callback, inbound: PushInbound) -> Callback:
    """ADR-15: acked when the callback returns, nak'ed when it raises; what it acked itself stays as it is.

    Nak'ed with a delay that grows: without one, a message that cannot be handled is a hot loop.
    """

    def handle(message: JetStreamMessage) -> None:
        try:
            callback(message)
        except BaseException:
            try:
                message.nak(retry_delay(message.metadata.num_delivered, inbound.backoff))
            except NatsError:
                pass  # it comes again after ack_wait; the callback's own error is the one to report
            raise
        message.ack()

    return handle
