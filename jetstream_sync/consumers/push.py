"""Push subscriptions: messages the server sends by itself to a subject of the consumer's (ADR-15, ADR-9).

Who does what:

  reader       puts messages and statuses into the mailbox, within the limits of any subscription; after a
               reconnect it puts a mark between what came before and what comes after. Tells the monitor of
               disconnects.
  taker        the user's thread in next_msg() or an iteration, or js-sub-<sid> with a callback. One at a time
               holds the turn: it takes from the mailbox and judges, so that sequences are compared in the order
               the user sees them, and a flow-control request is answered when everything before it has been
               handed out (and, with a callback, handled).
  js-push-<n>  with heartbeats only: raises the alarm (PushMonitor). It never touches a message. It ends when the
               subscription is closed: by unsubscribe, drain, a denial, or the connection's end.

`_turn` is held while waiting for a message; nobody but takers asks for it. `_created` passes from True to False
once, under `_owner_lock`, to the thread that deletes the consumer.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from .._deadline import Deadline, seconds
from ..api.client import ApiClient
from ..api.config import AckPolicy
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage
from ..errors import (
    MissedHeartbeatError,
    NatsError,
    NotJSMessageError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.connection import Connection
from ..net.outbox import Ephemeral
from ..net.subscription import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MSGS, Subscription
from ..protocol import commands
from ..protocol.headers import Status, header_value
from ..protocol.parser import RawMessage
from ..protocol.subjects import publish_subject, queue_name
from .push_status import FlowControl, PushMonitor, Sequences
from .push_workflow import Found, SubscribeRequest, Workflow
from .status import PushAction, classify, read_status, to_error

Callback = Callable[[JetStreamMessage], Any]
AnyPush = TypeVar("AnyPush", bound="PushSubscription")


class PendingLimits(NamedTuple):
    """How much a subscription may buffer; 0 or less is no limit."""

    msgs: int = DEFAULT_PENDING_MSGS
    bytes: int = DEFAULT_PENDING_BYTES


DEFAULT_LIMITS = PendingLimits()

# In the mailbox: what follows came on a new connection. Compared by identity.
RECONNECTED: RawMessage = (b"", None, None, b"")


class PushSubscription(Subscription):
    """What `js.subscribe()` returns. Thread-safe; several threads may take messages from one subscription.

    Iterating blocks for each message and ends as any subscription's iteration does. Heartbeats, flow control and
    gaps are dealt with inside: alarms (MissedHeartbeatError) and gaps (SequenceMismatchError) are reported to the
    connection's error callback. A status that is an error is raised by next_msg() and the iteration, or reported
    where there is a callback; the subscription goes on after it.

    `unsubscribe()` and `drain()` delete the consumer if this subscription created it, durable or not; one that was
    found is left alone. Closing or draining the connection deletes nothing.
    """

    def __init__(
        self,
        client: ApiClient,
        sid: bytes,
        subject: str,
        *,
        queue: str | None = None,
        limits: PendingLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(
            client.nc,
            sid,
            subject,
            publish_subject(subject),  # the server publishes to it: what it may be called is decided there
            queue=queue,
            wire_queue=None if queue is None else queue_name(queue),
            pending_msgs_limit=limits.msgs,
            pending_bytes_limit=limits.bytes,
        )
        self._api = ConsumerApi(client)
        self.stream_name = ""
        self.consumer_name = ""
        self.acks = True
        self.items = self.mailbox.items
        self._turn = allocate_lock()
        self._has_callback = False
        self._statuses = 0  # taken, and not handed out
        self._sequences = Sequences()
        self._flow = FlowControl()
        self._monitor: PushMonitor | None = None
        self._owner_lock = allocate_lock()
        self._created = False
        self._delete_when_empty = False

    def attach(self, info: ConsumerInfo, *, created: bool) -> None:
        """The consumer is there: watch over it from now on. Messages may have come already.

        Raises what closed the subscription meanwhile: the server denied it, or the connection was closed.
        """
        self.stream_name, self.consumer_name = info.stream_name, info.name
        self.acks = info.config.ack_policy != AckPolicy.NONE
        self._created = created
        self._sequences = Sequences(0 if created else None)
        self._nc._add_listener(self)
        if info.config.idle_heartbeat and self.queue is None:
            self._watch(info.config.idle_heartbeat)
        if self.mailbox.closed:
            self._take(0)  # raises

    def _watch(self, idle_heartbeat: float, work: Callable[[], None] | None = None) -> None:
        self._monitor = PushMonitor(idle_heartbeat, lambda: self.last_arrival, self._on_silence, work)
        if not self._nc.is_connected:
            self._monitor.pause()
        if self.mailbox.closed:
            self._monitor.stop()  # closed before there was a monitor to stop

    # --- taking messages ----------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> JetStreamMessage:
        """The next message. Blocks up to `timeout` seconds (None: for ever).

        Raises TimeoutError when none came, PullError for a status that is an error, SubscriptionClosedError after
        unsubscribe or drain, ConnectionClosedError, PermissionsError when the server denied the subscription.
        """
        self._nc._check_process()
        self._check_synchronous()
        return self._take(seconds(timeout))

    def __iter__(self) -> Iterator[JetStreamMessage]:
        return super().__iter__()  # type: ignore[return-value]  # of what _take() returns

    def _take(self, timeout: float | None = None) -> JetStreamMessage:
        deadline = Deadline(timeout)
        if not self._turn.acquire(timeout=deadline.wait_time()):
            raise TimeoutError("no message came in time: another thread was waiting for one, too")
        try:
            while True:
                message = self._judge(self.mailbox.get(deadline.remaining()))
                if message is not None:
                    return message
        except SubscriptionClosedError:
            self._delete_if_drained()
            raise
        finally:
            self._turn.release()

    def _judge(self, raw: RawMessage) -> JetStreamMessage | None:
        """The user's message, or None for what was not one and has been dealt with."""
        if raw is RECONNECTED:
            self._statuses += 1
            self._sequences.forget()
            self._flow.forget()
            return None
        if raw[2] is not None:
            status = read_status(raw[0], raw[1], raw[2], self.wire_subject)
            if status is not None:
                self._statuses += 1
                self._on_status(status, raw)
                return None
        message = JetStreamMessage(raw, self._nc._link, self)
        if self.queue is None and not self._sequences.follows_on(raw[1]):
            self._check_sequence(message)
        return message

    def _check_sequence(self, message: JetStreamMessage) -> None:
        try:
            metadata = message.metadata
        except NotJSMessageError:
            return  # somebody else published to the deliver subject
        sequence = metadata.sequence
        gap = self._sequences.message(sequence.consumer, sequence.stream, redelivered=metadata.num_delivered > 1)
        if gap is not None:
            self._nc._report(gap)

    def _on_status(self, status: Status, raw: RawMessage) -> None:
        block = raw[2]
        assert block is not None
        action = classify(status).push
        if action is PushAction.FLOW and raw[1] is not None:
            self._answer_flow_control(raw[1])
        elif action is PushAction.HEARTBEAT:
            self._on_heartbeat(block)
            stalled = header_value(block, b"Nats-Consumer-Stalled")
            # One word only: whoever can publish to the deliver subject could else have us send a malformed line.
            if stalled and len(stalled.split()) == 1:
                self._answer_flow_control(stalled)
        elif action is PushAction.RAISE:
            error = to_error(status, self.subject, "the server reports on the push subscription")
            if not self._has_callback:
                raise error
            self._nc._report(error)

    def _on_heartbeat(self, block: bytes) -> None:
        if self.queue is None:
            last_stream = header_value(block, b"Nats-Last-Stream")
            gap = self._sequences.heartbeat(header_value(block, b"Nats-Last-Consumer"), last_stream)
            if gap is not None:
                self._nc._report(gap)

    def _answer_flow_control(self, subject: bytes) -> None:
        if self._flow.is_new(subject):
            try:
                self._nc._outbox.publish(Ephemeral(commands.publish(subject, b"")), 0)
            except NatsError:
                return  # not connected: a heartbeat will repeat the request
            self._flow.answered(subject)

    # --- callbacks ----------------------------------------------------------------------------------

    def start(self, callback: Callback, *, manual_ack: bool) -> None:
        """Handle messages on a thread of this subscription's own."""
        self._has_callback = True
        self.start_callback(callback if manual_ack else _acking(callback))

    # --- ending -------------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """Stop receiving, drop what is buffered, and delete the consumer if this subscription created it.

        Blocks for the server's answer to the deletion and raises what it says. A second call does nothing, or
        tries again to delete the consumer where the first one failed.
        """
        if limit:
            raise ValueError("a push subscription has no limit: count the messages and unsubscribe then")
        super().unsubscribe()
        self._delete_created()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Stop receiving, but keep what the server has sent already; raises as any subscription's drain().

        A consumer that this subscription created is deleted when everything has been handled: with a callback
        before this returns (unless it is called from the callback), without one when the messages left have
        been taken and another is asked for. A deletion that fails is reported to the error callback.
        """
        self._delete_when_empty = True
        super().drain(timeout)
        if not self._has_callback and not self.mailbox:
            self._delete_if_drained()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nc._forked:
            return
        try:
            self.unsubscribe()
        except NatsError as failed:
            if error is None and not self._nc.is_closed:
                raise
            self._nc._report(failed)

    def abandon(self) -> None:
        """The subscription could not be completed: leave nothing behind, and raise nothing more."""
        super().unsubscribe()
        try:
            self._delete_created()
        except NatsError:
            pass  # the error on its way says why

    def _delete_if_drained(self) -> None:
        if self._delete_when_empty:
            try:
                self._delete_created()
            except NatsError as error:
                self._nc._report(error)

    def _delete_created(self) -> None:
        """Delete the consumer if it is ours to delete. By one thread, once; again only after a failure."""
        with self._owner_lock:
            mine, self._created = self._created, False
        if not mine:
            return
        try:
            self._api.delete(self.stream_name, self.consumer_name)
        except BaseException:
            self._created = True
            raise

    def close(self, reason: NatsError, *, discard: bool = False) -> None:
        super().close(reason, discard=discard)
        self._nc._remove_listener(self)
        if self._monitor is not None:
            self._monitor.stop()

    def join(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        super().join(timeout)
        if self._monitor is not None:
            self._monitor.join(deadline.wait_time())

    # --- facts --------------------------------------------------------------------------------------

    def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when it is gone."""
        return self._api.info(self.stream_name, self.consumer_name)

    @property
    def delivered(self) -> int:
        """Messages taken so far; statuses are none."""
        return super().delivered - self._statuses

    # --- reader thread, and js-push for the alarm -------------------------------------------------------

    def on_disconnect(self) -> None:
        if self._monitor is not None:
            self._monitor.pause()

    def on_reconnect(self) -> None:
        # Past the limits, and counted like a message: without it the next one would look like a gap.
        self._accepted += 1
        if not self.mailbox.put(RECONNECTED):
            self._accepted -= 1
        if self._monitor is not None:
            self._monitor.resume()

    def on_closed(self, error: NatsError) -> None:
        """Nothing: the connection closes its subscriptions itself."""

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        """Nothing: whoever published it is told."""

    def _on_silence(self, silence: float) -> None:
        self._nc._report(MissedHeartbeatError(silence))


def _acking(callback: Callback) -> Callback:
    """ADR-15: acked when the callback returns, nak'ed when it raises; what it acked itself stays as it is."""

    def handle(message: JetStreamMessage) -> None:
        try:
            callback(message)
        except BaseException:
            try:
                message.nak()
            except NatsError:
                pass  # it comes again after ack_wait; the callback's own error is the one to report
            raise
        message.ack()

    return handle


def subscribe_push(
    client: ApiClient,
    request: SubscribeRequest,
    callback: Callback | None,
    *,
    manual_ack: bool,
    limits: PendingLimits,
) -> PushSubscription:
    """ADR-15's workflow: look up, subscribe, create, in this order. Leaves nothing behind when it fails."""
    nc = client.nc
    workflow = Workflow(client)
    stream = workflow.stream_name(request)
    info = workflow.look_up(stream, request)
    subject = (request.config.deliver_subject or nc.new_inbox()) if info is None else _deliver_subject(info)

    def complete(sub: PushSubscription) -> None:
        # After the SUB: interest is how the server tells a durable in use from one that is free.
        found = Found(info, False) if info is not None else workflow.create(stream, request, subject)
        if info is None and not found.created:
            # Somebody else was faster: messages go to that consumer's subject.
            deliver = _deliver_subject(found.info)
            nc._move_subscription(sub, deliver, publish_subject(deliver))
        sub.attach(found.info, created=found.created)
        if callback is not None:
            sub.start(callback, manual_ack=manual_ack)

    return subscribed(
        nc, lambda sid: PushSubscription(client, sid, subject, queue=request.queue, limits=limits), complete
    )


def subscribed(nc: Connection, make: Callable[[bytes], AnyPush], complete: Callable[[AnyPush], None]) -> AnyPush:
    """Subscribe what `make` makes and `complete` it; if that fails, nobody gets to hold half of it."""
    made: list[AnyPush] = []

    def keep(sid: bytes) -> AnyPush:
        made.append(make(sid))
        return made[0]

    try:
        sub = nc._add_subscription(keep)
        complete(sub)
        return sub
    except BaseException:
        for sub in made:
            sub.abandon()
        raise


def _deliver_subject(info: ConsumerInfo) -> str:
    subject = info.config.deliver_subject
    assert subject  # check_existing saw to it, or we created it so
    return subject
