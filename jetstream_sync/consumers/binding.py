"""From what a user asks for to a consumer and a subscription: ADR-15's workflow.

`SubscribeRequest.make` rejects what cannot work before anything is sent. `find_stream`, `look_up` and `create`
look streams and consumers up, check an existing consumer against the request, and create one that does not
exist; push and pull subscriptions share them. `subscribe` is js.subscribe(). Thread-safe: nothing here has
state; what asks the server blocks for its reply and raises what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from .._deadline import seconds
from ..api.client import ApiClient
from ..api.config import AckPolicy, ConsumerConfig, differences
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
    PermissionsError,
    TimeoutError,
)
from ..protocol.subjects import publish_subject, queue_name, subscribe_subject, valid_name
from .ordered_push import OrderedPushInbound, ordered_template
from .push import Callback, PendingLimits, PushInbound, PushSubscription, acking

ConsumerFields = ConsumerConfig | Mapping[str, Any] | None


class SubscribeRequest(NamedTuple):
    """What a call of subscribe() or pull_subscribe() asks for. Made by `make`, which rejects what cannot work."""

    subject: str | None
    stream: str | None
    bind: str | None
    queue: str | None
    config: ConsumerConfig
    """What the user set, and nothing else."""
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
        config: ConsumerFields,
        fields: Mapping[str, Any],
        queue: str | None = None,
        pull: bool = False,
    ) -> SubscribeRequest:
        """Raises ConsumerConfigError, BadSubjectError, TypeError or ValueError. Sends nothing."""
        asked = merged(ConsumerConfig, config, fields)
        subject = _subject(subject, asked)
        if subject is None and stream is None:
            raise ConsumerConfigError(
                "a subject or a stream is needed to find the consumer's stream", field="subject"
            )
        if subject is not None:
            subscribe_subject(subject)
        if stream is not None:
            valid_name("stream", stream)
        if bind is not None:
            valid_name("consumer", bind)
        _set_durable(asked, durable, bind)
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


def _subject(subject: str | None, asked: ConsumerConfig) -> str | None:
    """The subject asked for; a filter in the config is another way to say it."""
    given = asked.filter_subject
    if given is not None and subject is not None and given != subject:
        raise ConsumerConfigError(
            f"the subject is {subject!r}, but filter_subject is {given!r}: give one of them",
            field="filter_subject",
        )
    if subject is not None and asked.filter_subjects and asked.filter_subjects != [subject]:
        raise ConsumerConfigError(
            f"the subject is {subject!r}, but filter_subjects is {asked.filter_subjects!r}: give one of them",
            field="filter_subjects",
        )
    return given if subject is None else subject


def _set_durable(asked: ConsumerConfig, durable: str | None, bind: str | None) -> None:
    if durable is not None:
        valid_name("durable name", durable)
        if asked.durable_name is not None and asked.durable_name != durable:
            raise ConsumerConfigError(
                f"durable is {durable!r}, but durable_name is {asked.durable_name!r}", field="durable_name"
            )
        asked.durable_name = durable
    if bind is not None and asked.durable_name is not None and asked.durable_name != bind:
        raise ConsumerConfigError(
            f"the consumer to bind to is {bind!r}, but the durable name is {asked.durable_name!r}",
            field="durable_name",
        )


def _set_queue(asked: ConsumerConfig, queue: str | None, bind: str | None) -> str | None:
    """The queue, given as such or as the config's deliver group. Moves it out of the config."""
    if queue is not None:
        queue_name(queue)
        if asked.deliver_group is not None and asked.deliver_group != queue:
            raise ConsumerConfigError(
                f"the queue is {queue!r}, but deliver_group is {asked.deliver_group!r}", field="deliver_group"
            )
    queue = asked.deliver_group if queue is None else queue
    asked.deliver_group = None
    if queue is None:
        return None
    # The server would send each of them to a random member.
    if asked.idle_heartbeat:
        raise ConsumerConfigError("idle_heartbeat is not supported with a queue", field="idle_heartbeat")
    if asked.flow_control:
        raise ConsumerConfigError("flow_control is not supported with a queue", field="flow_control")
    if bind is None and asked.durable_name is None and asked.name is None:
        # ADR-15: each member would otherwise create a consumer of its own, and get all messages.
        asked.durable_name = valid_name("queue (and so durable) name", queue)
    return queue


def _check_pull(asked: ConsumerConfig) -> None:
    if asked.ack_policy in (AckPolicy.NONE, AckPolicy.ALL):
        raise ConsumerConfigError(
            f"a pull subscription needs ack_policy explicit, not {asked.ack_policy!s}", field="ack_policy"
        )
    for name in ("deliver_subject", "deliver_group", "idle_heartbeat", "flow_control"):
        if getattr(asked, name):
            raise ConsumerConfigError(f"{name} is for push consumers, not for a pull subscription", field=name)


# --- an existing consumer ---------------------------------------------------------------------------


def check_existing(request: SubscribeRequest, info: ConsumerInfo) -> None:
    """Raises ConsumerConfigError unless the consumer is what the request asks for (ADR-15)."""
    actual = info.config
    who = f"consumer {info.name!r} of stream {info.stream_name!r}"
    if request.pull and actual.deliver_subject:
        raise ConsumerConfigError(f"cannot pull from {who}: it is a push consumer", field="deliver_subject")
    if not request.pull and not actual.deliver_subject:
        raise ConsumerConfigError(
            f"{who} is a pull consumer: use pull_subscribe() or get_consumer()", field="deliver_subject"
        )
    if not request.pull:
        _check_group(request.queue, info, who)
    filters = {*(actual.filter_subjects or ()), *([actual.filter_subject] if actual.filter_subject else ())}
    if filters and request.subject is not None and filters != {request.subject}:
        raise ConsumerConfigError(
            f"{who} has the filter {', '.join(sorted(filters))}, which is not the subject {request.subject!r}",
            field="filter_subject",
        )
    _check_config(request, actual, who)


def _check_group(queue: str | None, info: ConsumerInfo, who: str) -> None:
    group = info.config.deliver_group or None
    if queue is None:
        if group is not None:
            raise ConsumerConfigError(
                f"{who} belongs to the queue group {group!r}: subscribe with that queue", field="deliver_group"
            )
        if info.push_bound:
            raise ConsumerConfigError(
                f"duplicate subscription: {who} is bound to a subscription already", field="push_bound"
            )
        return
    if group is None:
        raise ConsumerConfigError(f"{who} has no deliver group: subscribe without a queue", field="deliver_group")
    if group != queue:
        raise ConsumerConfigError(
            f"{who} belongs to a different queue group: {group!r}, not {queue!r}", field="deliver_group"
        )
    if info.config.flow_control:
        raise ConsumerConfigError(
            f"{who} has flow_control, which is not supported with a queue", field="flow_control"
        )
    if info.config.idle_heartbeat:
        raise ConsumerConfigError(
            f"{who} has idle_heartbeat, which is not supported with a queue", field="idle_heartbeat"
        )


def _check_config(request: SubscribeRequest, actual: ConsumerConfig, who: str) -> None:
    not_compared = {"name", "filter_subject", "filter_subjects"}  # looked up by name; the filter was checked
    if not request.ack_policy_asked:
        not_compared.add("ack_policy")
    differing = [name for name in differences(request.config, actual) if name not in not_compared]
    if differing:
        details = ", ".join(
            f"{name} is {_shown(getattr(actual, name))}, not {_shown(getattr(request.config, name))}"
            for name in differing
        )
        raise ConsumerConfigError(
            f"{who} differs from what is asked for, and is not changed: {details}", field=", ".join(differing)
        )


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, WireEnum) else repr(value)


# --- look-up and creation -----------------------------------------------------------------------------


class Found(NamedTuple):
    """The consumer a subscription uses, and whether the subscription created it."""

    info: ConsumerInfo
    created: bool


def find_stream(client: ApiClient, request: SubscribeRequest) -> str:
    """The stream asked for, or the one on the subject. Raises StreamNotFoundError when there is not one."""
    if request.stream is not None:
        return request.stream
    assert request.subject is not None  # SubscribeRequest.make saw to it
    return StreamApi(client).name_by_subject(request.subject)


def look_up(client: ApiClient, stream: str, request: SubscribeRequest) -> ConsumerInfo | None:
    """The consumer asked for, checked; None when there is none and one is to be created."""
    name = request.name
    if name is None:
        return None
    try:
        info = ConsumerApi(client).info(stream, name)
    except ConsumerNotFoundError:
        if request.bind is None:
            return None
        if request.pull:
            return ConsumerInfo(stream_name=stream, name=name)
        raise
    except (APIError, TimeoutError, PermissionsError):
        # ADR-15: a client that pulls from a consumer by name need not be allowed to look at it.
        if request.pull and request.bind is not None:
            return ConsumerInfo(stream_name=stream, name=name)
        raise
    check_existing(request, info)
    return info


def create(client: ApiClient, stream: str, request: SubscribeRequest, deliver_subject: str | None = None) -> Found:
    """Create the consumer. Should another client have done it since the look-up, that one is checked and used."""
    consumers = ConsumerApi(client)
    try:
        return Found(consumers.create(stream, request.creation(deliver_subject)), True)
    except ConsumerExistsError:
        name = request.name
        if name is None:
            raise
    info = consumers.info(stream, name)
    check_existing(request, info)
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
    config: ConsumerFields,
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
            if value is not None:
                raise ConsumerConfigError(f"an ordered consumer cannot have {name}: leave it out", field=name)
        config, asked = ordered_template(subject, config, asked), {}
    request = SubscribeRequest.make(
        subject, stream=stream, bind=consumer, durable=durable, config=config, fields=asked, queue=queue
    )
    if ordered_consumer:
        return _subscribe_ordered(client, request, cb, limits)
    return _subscribe_push(client, request, cb if cb is None or manual_ack else acking(cb), limits)


def _subscribe_push(
    client: ApiClient, request: SubscribeRequest, callback: Callback | None, limits: PendingLimits
) -> PushSubscription:
    """ADR-15's workflow: look up, subscribe, create, in this order."""
    stream = find_stream(client, request)
    info = look_up(client, stream, request)
    own_subject = request.config.deliver_subject or client.link.new_inbox()
    subject = own_subject if info is None else _deliver_subject(info)
    inbound = PushInbound(client, subject, request.queue, limits)

    def bind() -> None:
        # After the SUB: interest is how the server tells a durable in use from one that is free.
        found = Found(info, False) if info is not None else create(client, stream, request, subject)
        if info is None and not found.created:
            # Another client was faster: messages go to that consumer's subject.
            client.link.move(inbound, publish_subject(_deliver_subject(found.info)))
        inbound.attach(found.info, created=found.created)

    return _subscribed(inbound, bind, callback)


def _subscribe_ordered(
    client: ApiClient, request: SubscribeRequest, callback: Callback | None, limits: PendingLimits
) -> PushSubscription:
    """Subscribe, then create the first consumer. `request.config` is an ordered_template()."""
    stream = find_stream(client, request)
    inbound = OrderedPushInbound(
        client, client.link.new_inbox(), stream=stream, template=request.config, limits=limits
    )
    return _subscribed(inbound, inbound.create_first, callback)


def _subscribed(inbound: PushInbound, bind: Callable[[], None], callback: Callback | None) -> PushSubscription:
    """Subscribe, bind the consumer, start the callback thread. Leaves nothing behind when it fails."""
    link = inbound.link
    try:
        link.open(inbound)
        link.outbox.flush()
        bind()
        if callback is not None:
            inbound.start_callback(callback)
        return PushSubscription(inbound)
    except BaseException:  # also of a signal handler: the caller does not get to hold it
        inbound.abandon()
        raise


def _deliver_subject(info: ConsumerInfo) -> str:
    subject = info.config.deliver_subject
    assert subject  # check_existing saw to it, or we created it so
    return subject
