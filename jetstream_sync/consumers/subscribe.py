"""js.subscribe(): which kind of push subscription is asked for, and what it excludes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from .._deadline import seconds
from ..api.client import ApiClient
from ..errors import ConsumerConfigError
from .ordered_push import ordered_template, subscribe_ordered
from .push import Callback, PendingLimits, PushSubscription, subscribe_push
from .push_workflow import ConsumerFields, SubscribeRequest


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
        refused = {"queue": queue, "durable_name": durable, "consumer": consumer}
        for name, value in refused.items():
            if value is not None:
                raise ConsumerConfigError(f"an ordered consumer cannot have {name}: leave it out", field=name)
        template = ordered_template(subject, config, asked)
        request = SubscribeRequest.make(
            subject, stream=stream, bind=None, durable=None, config=template, fields={}
        )
        return subscribe_ordered(client, request, cb, limits=limits)
    request = SubscribeRequest.make(
        subject, stream=stream, bind=consumer, durable=durable, config=config, fields=asked, queue=queue
    )
    return subscribe_push(client, request, cb, manual_ack=manual_ack, limits=limits)
