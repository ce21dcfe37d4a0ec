"""From what a user asks for to a consumer and a subscription: ADR-15's workflow.

`SubscribeRequest.make` rejects what cannot work before anything is sent. `look_up` checks an existing consumer
against the request, `create` makes one that does not exist; push and pull subscriptions share them. Nothing here
has state; what asks the server blocks for its reply and raises what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from .._deadline import seconds
from ..api.client import ApiClient
from ..api.config import AckPolicy, ConsumerConfig, ConsumerConfigLike, differences
from ..api.consumer_api import ConsumerApi
from ..api.fields import merged
from ..api.info import ConsumerInfo
from ..api.kinds import WireEnum
from ..api.stream_api import StreamApi
from ..errors import (
    APIError,
    ConsumerConfigError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    NatsError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..protocol.subjects import publish_subject, queue_name, subscribe_subject, valid_name
from .ordered_push import OrderedPushInbound, ordered_template
from .push import Callback, PendingLimits, PushInbound, PushSubscription, acking


class SubscribeRequest(NamedTuple):
    """What a call of subscribe() or pull_subscribe() asks for. Made by `make`, which rejects what cannot work."""

    subject: str | None
    stream: str | None
    bind: str | None
    queue: str | None
    config: ConsumerConfig  # what the user set, and nothing else
    ack_policy_asked: bool
    pull: bool

    @classmethod
    def make(
        cls,
        subject: str | None,
        *,
        stream: str | None,
        bind: str | None,
        durable: str | None,
        config: ConsumerConfigLike,
        fields: Mapping[str, Any],
        queue: str | None = None,
        pull: bool = False,
    ) -> SubscribeRequest:
        """Raises ConsumerConfigError, BadSubjectError, TypeError or ValueError. Sends nothing."""
        asked = merged(ConsumerConfig, config, fields)
        if subject is not None and asked.filter_subjects:
            text = (
                f"the subject is {subject!r}, but filter_subjects is {asked.filter_subjects!r}: give one of them"
            )
            _refuse("filter_subjects", text, asked.filter_subjects != [subject])
        subject = _agreed("the subject", subject, "filter_subject", asked.filter_subject)
        if subject is not None:
            subscribe_subject(subject)
        elif stream is None:
            _refuse("subject", "a subject or a stream is needed to find the consumer's stream")
        for kind, name in (("stream", stream), ("consumer", bind), ("durable name", durable)):
            if name is not None:
                valid_name(kind, name)
        asked.durable_name = given = _agreed("durable", durable, "durable_name", asked.durable_name)
        text = f"the consumer to bind to is {bind!r}, but the durable name is {given!r}"
        _refuse("durable_name", text, bind is not None and given not in (None, bind))
        if pull:
            _check_pull(asked)
        else:
            queue = _set_queue(asked, queue, bind)
        explicit = isinstance(config, ConsumerConfig) or "ack_policy" in {**(config or {}), **fields}
        return cls(subject, stream, bind, queue, asked, explicit, pull)

    @property
    def name(self) -> str | None:
        """The consumer to look for; None when an ephemeral one is to be created."""
        return self.bind or self.config.durable_name or self.config.name

    def creation(self, deliver_subject: str | None) -> ConsumerConfig:
        """The consumer to create. ADR-15: the filter is the subject, the deliver group is the queue."""
        config = replace(self.config, deliver_subject=deliver_subject, deliver_group=self.queue)
        if self.subject is not None and not config.filter_subjects:
            config.filter_subject = self.subject
        return config


def _refuse(field: str, text: str, when: object = True) -> None:
    if when:
        raise ConsumerConfigError(text, field=field)


def _agreed(what: str, value: str | None, field: str, given: str | None) -> str | None:
    """What was asked for, as an argument or as a field of the config."""
    text = f"{what} is {value!r}, but {field} is {given!r}: give one of them"
    _refuse(field, text, value is not None and given not in (None, value))
    return given if value is None else value


def _set_queue(asked: ConsumerConfig, queue: str | None, bind: str | None) -> str | None:
    """The queue, given as such or as the config's deliver group. Moves it out of the config."""
    if queue is not None:
        queue_name(queue)
    queue, asked.deliver_group = _agreed("the queue", queue, "deliver_group", asked.deliver_group), None
    if queue is None:
        return None
    for name in ("idle_heartbeat", "flow_control"):  # the server would send each of them to a random member
        _refuse(name, f"{name} is not supported with a queue", getattr(asked, name))
    if bind is None and asked.durable_name is None and asked.name is None:
        # ADR-15: each member would otherwise create a consumer of its own, and get all messages.
        asked.durable_name = valid_name("queue (and so durable) name", queue)
    return queue


def _check_pull(asked: ConsumerConfig) -> None:
    text = f"a pull subscription needs ack_policy explicit, not {asked.ack_policy!s}"
    _refuse("ack_policy", text, asked.ack_policy in (AckPolicy.NONE, AckPolicy.ALL))
    for name in ("deliver_subject", "deliver_group", "idle_heartbeat", "flow_control"):
        _refuse(name, f"{name} is for push consumers, not for a pull subscription", getattr(asked, name))


# --- checks, look-up and creation ---------------------------------------------------------------------


def check_existing(request: SubscribeRequest, info: ConsumerInfo) -> None:
    """Raises ConsumerConfigError unless the consumer is what the request asks for (ADR-15)."""
    actual = info.config
    who = f"consumer {info.name!r} of stream {info.stream_name!r}"
    if request.pull:
        _refuse("deliver_subject", f"cannot pull from {who}: it is a push consumer", actual.deliver_subject)
    else:
        text = f"{who} is a pull consumer: use pull_subscribe() or get_consumer()"
        _refuse("deliver_subject", text, not actual.deliver_subject)
        _check_group(request.queue, info, who)
    filters = {*(actual.filter_subjects or ()), *([actual.filter_subject] if actual.filter_subject else ())}
    text = f"{who} has the filter {', '.join(sorted(filters))}, which is not the subject {request.subject!r}"
    _refuse("filter_subject", text, filters and request.subject is not None and filters != {request.subject})
    not_compared = {"name", "filter_subject", "filter_subjects"}  # looked up by name; the filter was checked
    if not request.ack_policy_asked:
        not_compared.add("ack_policy")
    differing = [name for name in differences(request.config, actual) if name not in not_compared]
    details = (f"{name} is {_shown(actual, name)}, not {_shown(request.config, name)}" for name in differing)
    text = f"{who} differs from what is asked for, and is not changed: {', '.join(details)}"
    _refuse(", ".join(differing), text, differing)


def _check_group(queue: str | None, info: ConsumerInfo, who: str) -> None:
    group = info.config.deliver_group or None
    if queue is None:
        _refuse("deliver_group", f"{who} belongs to the queue group {group!r}: subscribe with that queue", group)
        _refuse("push_bound", f"duplicate subscription: {who} is bound to a subscription already", info.push_bound)
        return
    _refuse("deliver_group", f"{who} has no deliver group: subscribe without a queue", group is None)
    text = f"{who} belongs to a different queue group: {group!r}, not {queue!r}"
    _refuse("deliver_group", text, group != queue)
    for name in ("flow_control", "idle_heartbeat"):
        _refuse(name, f"{who} has {name}, which is not supported with a queue", getattr(info.config, name))


def _shown(config: ConsumerConfig, name: str) -> str:
    value = getattr(config, name)
    return str(value) if isinstance(value, WireEnum) else repr(value)


class Found(NamedTuple):
    """The consumer a subscription uses, and whether the subscription created it."""

    info: ConsumerInfo
    created: bool


def find_stream(client: ApiClient, request: SubscribeRequest) -> str:
    """The stream asked for, or the one on the subject. Raises StreamNotFoundError when there is not one."""
    return request.stream or StreamApi(client).name_by_subject(request.subject or "")


def look_up(client: ApiClient, stream: str, request: SubscribeRequest) -> ConsumerInfo | None:
    """The consumer asked for, checked; None when there is none and one is to be created."""
    name = request.name
    if name is None:
        return None
    try:
        info = ConsumerApi(client).info(stream, name)
    except (APIError, TimeoutError, PermissionsError) as error:
        if request.pull and request.bind is not None:
            # ADR-15: a client that pulls from a consumer by name need not be allowed to look at it.
            return ConsumerInfo(stream_name=stream, name=name)
        if request.bind is None and isinstance(error, ConsumerNotFoundError):
            return None
        raise
    check_existing(request, info)
    return info


def create(client: ApiClient, stream: str, request: SubscribeRequest, deliver_subject: str | None = None) -> Found:
    """Create the consumer. Should another client have done it since the look-up, that one is checked and used."""
    try:
        return Found(ConsumerApi(client).create(stream, request.creation(deliver_subject)), True)
    except ConsumerExistsError:
        info = look_up(client, stream, request)
        if info is None:
            raise
        return Found(info, False)


def find_or_create(client: ApiClient, request: SubscribeRequest) -> Found:
    """The consumer of a pull subscription."""
    stream = find_stream(client, request)
    info = look_up(client, stream, request)
    return create(client, stream, request) if info is None else Found(info, False)


# --- push subscriptions -------------------------------------------------------------------------------


def subscribe(
    client: ApiClient,
    subject: str | None,
    *,
    queue: str | None,
    cb: Callback | None,
    durable: str | None,
    stream: str | None,
    consumer: str | None,
    config: ConsumerConfigLike,
    fields: Mapping[str, Any],
    manual_ack: bool,
    ordered_consumer: bool,
    idle_heartbeat: float | timedelta | None,
    flow_control: bool,
    limits: PendingLimits,
) -> PushSubscription:
    """See JetStream.subscribe()."""
    if cb is not None and not callable(cb):
        raise TypeError("cb must be callable")
    asked = dict(fields)
    if idle_heartbeat is not None:
        asked["idle_heartbeat"] = seconds(idle_heartbeat, "idle_heartbeat")
    if flow_control:
        asked["flow_control"] = True
    if ordered_consumer:
        for name, value in {"queue": queue, "durable_name": durable, "consumer": consumer}.items():
            _refuse(name, f"an ordered consumer cannot have {name}: leave it out", value is not None)
        config, asked = ordered_template(subject, config, asked), {}
    request = SubscribeRequest.make(
        subject, stream=stream, bind=consumer, durable=durable, config=config, fields=asked, queue=queue
    )
    stream_name = find_stream(client, request)
    if ordered_consumer:
        ordered = OrderedPushInbound(client, stream_name, request.config, limits)
        return _subscribed(ordered, ordered.create_first, cb)
    # ADR-15's workflow: look up, subscribe, create, in this order.
    info = look_up(client, stream_name, request)
    inbox = (request if info is None else info).config.deliver_subject or client.link.new_inbox()
    inbound = PushInbound(client, inbox, request.queue, limits)

    def bind() -> None:
        # After the SUB: interest is how the server tells a durable in use from one that is free.
        found = create(client, stream_name, request, inbox) if info is None else Found(info, False)
        if info is None and not found.created:
            # Another client was faster: messages go to that consumer's subject.
            client.link.move(inbound, publish_subject(found.info.config.deliver_subject or ""))
        inbound.attach(found.info, created=found.created)

    return _subscribed(inbound, bind, cb if cb is None or manual_ack else acking(cb, inbound))


def _subscribed(inbound: PushInbound, bind: Callable[[], None], callback: Callback | None) -> PushSubscription:
    """Subscribe, bind the consumer, start the callback thread. Leaves nothing behind when it fails."""
    link = inbound.link
    subscription = PushSubscription(inbound)
    try:
        link.open(inbound)
        link.outbox.flush()
        bind()
        if callback is not None:
            inbound.start_callback(callback)
        return subscription
    except BaseException:  # also of a signal handler: the caller does not get to hold it
        inbound.end(SubscriptionClosedError("the subscription could not be made"), discard=True)
        try:
            inbound.delete_created()
        except NatsError:
            pass  # the error on its way says why
        raise
