"""Ordered push subscriptions (ADR-17): every message once and in order, over a chain of ephemeral consumers.

Each consumer of the chain has a name and a deliver subject of its own, both chosen here before it is created. So
nothing of an old one can be taken for the present one's, and one mailbox serves them all: what carries another
name is dropped. The position is the stream sequence of the last message handed out; the next consumer starts
behind it.

  taker        compares sequences (see push.py). When one is missing it notes the loss and kicks js-push.
  js-push-<n>  notes the loss after too long a silence. Whoever noted it, this thread replaces the consumer: it
               chooses names, moves the subscription, and asks the server, again and again with a growing wait if
               that fails. Blocks in one API request at a time and in the wait, which closing cuts short.
  reader       notes the loss after a reconnect: the consumer lived in the memory of a server.

`_state` guards the position, the present name and `_lost`; nothing blocks under it. A replacement is chosen and
the loss forgotten in one step, so a loss noted later is one of the new consumer.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..api.client import ApiClient
from ..api.config import AckPolicy, ConsumerConfig, DeliverPolicy
from ..api.fields import fields_of
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerConfigError,
    ConsumerNotFoundError,
    ForkError,
    NatsError,
    NotJSMessageError,
    PermissionsError,
    StreamNotFoundError,
)
from ..protocol.headers import header_value
from ..protocol.parser import RawMessage
from ..protocol.subjects import next_nuid
from .ordered import ordered_config
from .pull_state import Backoff
from .push import Callback, PendingLimits, PushSubscription, subscribed
from .push_status import short_ack_tokens
from .push_workflow import ConsumerFields, SubscribeRequest, Workflow
from .status import read_status

# ADR-17: the heartbeat unless another is asked for, and an ack_wait that is never used.
DEFAULT_HEARTBEAT = 5.0
ACK_WAIT = 22 * 3600.0

# Creating the consumer again would get the same answer.
DEFINITE = (StreamNotFoundError, PermissionsError, ConnectionClosedError, ForkError)


class OrderedPushSubscription(PushSubscription):
    """A push subscription that mends itself: see the module's text. For the user a PushSubscription."""

    def __init__(
        self, client: ApiClient, sid: bytes, subject: str, *, template: ConsumerConfig, limits: PendingLimits
    ) -> None:
        super().__init__(client, sid, subject, limits=limits)
        self._client = client
        self._template = template
        self._state = allocate_lock()
        self._lost = False
        self._stream_seq: int | None = None  # handed out last; None: the template says where to begin
        self._consumer_seq = 0
        self._backoff = Backoff()  # js-push only

    def create_first(self, stream: str) -> None:
        """Create the first consumer. Blocks for the server's answer and raises what it says."""
        self.stream_name, self.consumer_name = stream, next_nuid()
        self._created = True  # should the answer get lost, there is something to delete
        info = self._api.create(stream, self._next_config())
        if info.delivered.consumer_seq == 0 and self._template.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT:
            # Where the server begins. The next consumer must not begin later, as `new` or a time would.
            self._stream_seq = info.delivered.stream_seq
        self.attach(info, created=True)

    def _watch(self, idle_heartbeat: float, work: Callable[[], None] | None = None) -> None:
        super()._watch(idle_heartbeat, self._replace_if_lost)

    def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the present consumer's state. Raises ConsumerNotFoundError while it is replaced."""
        return super().consumer_info()

    # --- taker --------------------------------------------------------------------------------------

    def _judge(self, raw: RawMessage) -> JetStreamMessage | None:
        message = None
        if raw[2] is not None and (status := read_status(raw[0], raw[1], raw[2], self.wire_subject)) is not None:
            self._on_status(status, raw)
        else:
            message = self._next_in_order(raw)
        if message is None:
            self._statuses += 1
        return message

    def _next_in_order(self, raw: RawMessage) -> JetStreamMessage | None:
        """The message, if it is the next one of the present consumer."""
        message = JetStreamMessage(raw, self._nc._link, self)
        tokens = short_ack_tokens(raw[1])
        if tokens and self._follows_on(tokens[3], tokens[5], tokens[6]):
            return message
        try:
            metadata = message.metadata
        except NotJSMessageError:
            return None  # a status of an old consumer
        sequence = metadata.sequence
        with self._state:
            if self._lost or metadata.consumer != self.consumer_name:
                return None
            if sequence.consumer == self._consumer_seq + 1:
                self._consumer_seq, self._stream_seq = sequence.consumer, sequence.stream
                return message
            self._lost = True
        self._kick()
        return None

    def _follows_on(self, consumer: bytes, stream_seq: bytes, consumer_seq: bytes) -> bool:
        """The usual case, without reading all of the metadata."""
        with self._state:
            if (
                self._lost
                or consumer != self.consumer_name.encode()
                or consumer_seq != b"%d" % (self._consumer_seq + 1)
                or not stream_seq.isdigit()
            ):
                return False
            self._consumer_seq += 1
            self._stream_seq = int(stream_seq)
            return True

    def _on_heartbeat(self, block: bytes) -> None:
        told = header_value(block, b"Nats-Last-Consumer")
        if told is not None and told.isdigit():
            with self._state:
                self._lost = self._lost or int(told) > self._consumer_seq
                if not self._lost:
                    return
            self._kick()

    def _kick(self) -> None:
        if self._monitor is not None:
            self._monitor.kick()

    # --- reader -------------------------------------------------------------------------------------

    def on_reconnect(self) -> None:
        with self._state:
            self._lost = True
        if self._monitor is not None:
            self._monitor.resume()

    # --- js-push ------------------------------------------------------------------------------------

    def _on_silence(self, silence: float) -> None:
        with self._state:
            self._lost = True
        super()._on_silence(silence)

    def _replace_if_lost(self) -> None:
        monitor = self._monitor
        assert monitor is not None  # it is the one who calls
        while self._lost and self._nc.is_connected and not monitor.stopped:
            wait = self._backoff.remaining(time.monotonic())
            if wait:
                monitor.wait(wait)
            else:
                self._replace()

    def _replace(self) -> None:
        inbox = self._nc.new_inbox()
        with self._state:
            old, self.consumer_name = self.consumer_name, next_nuid()
            self._consumer_seq = 0
            self._lost = False
        if not self._nc._move_subscription(self, inbox, inbox.encode()):
            return  # it has ended
        self._release(old)
        self._backoff.refused(time.monotonic())  # should this one be lost at once, too
        try:
            self._api.create(self.stream_name, self._next_config())
        except DEFINITE as error:
            self._nc._close_inlet(self)
            self.close(error)
        except NatsError as error:
            with self._state:
                self._lost = True
            if not isinstance(error, ConnectionLostError):  # which has been reported as what it is
                self._nc._report(error)
        else:
            self._backoff.delivered()
            if self.mailbox.closed:
                self._release(self.consumer_name)  # ended meanwhile: whoever ended it did not find this one

    def _next_config(self) -> ConsumerConfig:
        config = replace(self._template, name=self.consumer_name, deliver_subject=self.subject)
        if self._stream_seq is not None:
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = self._stream_seq + 1
            config.opt_start_time = None
        return config

    def _release(self, name: str) -> None:
        """Have an old consumer deleted, without waiting for it: what this misses, inactive_threshold removes."""
        subject = self._client.subject("CONSUMER", "DELETE", self.stream_name, name)
        try:
            self._nc._publish_raw(subject.encode(), b"")
        except NatsError:
            pass

    def _delete_created(self) -> None:
        try:
            super()._delete_created()
        except ConsumerNotFoundError:
            pass  # it was being replaced


def ordered_template(subject: str | None, config: ConsumerFields, fields: Mapping[str, Any]) -> ConsumerConfig:
    """The configuration that ADR-17 prescribes, with what the user may choose. Raises ConsumerConfigError.

    The `ack_policy` explicit of a ConsumerConfig object is its default, and counts as not given.
    """
    given: dict[str, Any] = {}
    if isinstance(config, ConsumerConfig):
        given = {spec.name: getattr(config, spec.name) for spec in fields_of(ConsumerConfig)}
        if given["ack_policy"] == AckPolicy.EXPLICIT:
            del given["ack_policy"]
    elif config is not None:
        given = dict(config)
    given.update(fields)
    if given.pop("flow_control", None) is False:
        raise ConsumerConfigError("an ordered consumer has flow control: leave it out", field="flow_control")
    given.pop("ack_wait", None)  # ADR-17: set without an error
    heartbeat = given.pop("idle_heartbeat", None)
    if subject is not None and not given.get("filter_subjects") and not given.get("filter_subject"):
        given["filter_subject"] = subject
    template = ordered_config(given)
    template.idle_heartbeat = heartbeat or DEFAULT_HEARTBEAT
    template.flow_control = True
    template.ack_wait = ACK_WAIT
    return template


def subscribe_ordered(
    client: ApiClient, request: SubscribeRequest, callback: Callback | None, *, limits: PendingLimits
) -> OrderedPushSubscription:
    """Subscribe, then create the first consumer. `request.config` is an ordered_template()."""
    nc = client.nc
    stream = Workflow(client).stream_name(request)
    inbox = nc.new_inbox()

    def complete(sub: OrderedPushSubscription) -> None:
        sub.create_first(stream)
        if callback is not None:
            sub.start(callback, manual_ack=True)  # there is nothing to acknowledge

    return subscribed(
        nc,
        lambda sid: OrderedPushSubscription(client, sid, inbox, template=request.config, limits=limits),
        complete,
    )
