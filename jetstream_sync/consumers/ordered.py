"""An ordered consumer: every message of a stream once, in order, whatever happens meanwhile (ADR-17)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..api.client import ApiClient
from ..api.config import AckPolicy, ConsumerConfig, DeliverPolicy
from ..api.consumer_api import ConsumerApi
from ..api.fields import fields_of
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage
from ..errors import (
    BadRequestError,
    ConnectionClosedError,
    ConsumerConfigError,
    ConsumerNotFoundError,
    ForkError,
    PermissionsError,
    StreamNotFoundError,
)
from ..protocol.subjects import valid_name
from .chain import Chain, ErrorCallback
from .consume import Callback, ConsumeContext, start_consume
from .fetch import MessageBatch
from .messages import MessageStream
from .ordered_feed import OrderedFeed, OrderedStream, ordered_fetch, ordered_next
from .pull_options import DEFAULT_MAX_MESSAGES, ConsumeOptions, FetchOptions

Duration = float | timedelta

# Creating the consumer again would get the same reply.
DEFINITE = (StreamNotFoundError, BadRequestError, PermissionsError, ConnectionClosedError, ForkError)
# ADR-17: what makes a consumer an ordered one. The user may say the same, but nothing else.
FIXED: dict[str, Any] = {
    "ack_policy": AckPolicy.NONE,
    "max_deliver": 1,
    "mem_storage": True,
    "num_replicas": 1,
}
INACTIVE_THRESHOLD = 300.0
# The fields of a consumer that are the user's to choose.
CHOSEN = frozenset(
    {
        "description",
        "filter_subject",
        "filter_subjects",
        "deliver_policy",
        "opt_start_seq",
        "opt_start_time",
        "replay_policy",
        "inactive_threshold",
        "headers_only",
        "metadata",
    }
)


class OrderedConsumer:
    """Reads a stream in order, every message once. Made by `ordered_consumer()`, which asks nothing of the server.

    It keeps an ephemeral consumer on the server, created on first use and replaced, behind the last message
    handed out, whenever it is lost or a message is missing. Fetches, messages() and consume() go on where the one
    before ended. Messages need no acknowledgement; acks on them are ignored.

    One fetch, messages() or consume() at a time: a second one raises ConcurrencyError.
    """

    def __init__(
        self,
        client: ApiClient,
        stream_name: str,
        fields: Mapping[str, Any],
        *,
        name_prefix: str | None = None,
        max_reset_attempts: int | None = None,
    ) -> None:
        """`fields` are checked at once: ConsumerConfigError names one that an ordered consumer cannot have."""
        if name_prefix is not None:
            valid_name("name_prefix", name_prefix)
        self._api = ConsumerApi(client)
        self._chain = Chain(
            client,
            valid_name("stream", stream_name),
            ordered_config(fields),
            definite=DEFINITE,
            name_prefix=name_prefix,
            max_attempts=_checked_attempts(max_reset_attempts),
        )

    @property
    def name(self) -> str | None:
        """The present name of the consumer on the server: a new one each time it is replaced, None before the
        first."""
        info = self._chain.info
        return None if info is None else info.name

    @property
    def stream_name(self) -> str:
        return self._chain.stream_name

    @property
    def info(self) -> ConsumerInfo | None:
        """What the server said when it created the present consumer; None before the first use."""
        return self._chain.info

    def get_info(self) -> ConsumerInfo:
        """Ask the server for the present consumer's state. Raises ConsumerNotFoundError when there is none."""
        if self.name is None:
            raise ConsumerNotFoundError(404, 10014, "the ordered consumer is created on its first use")
        return self._api.info(self.stream_name, self.name)

    def delete(self) -> None:
        """Have the consumer deleted on the server; the next use creates another and goes on. Never blocks."""
        self._chain.discard()

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Duration = 5.0,
        idle_heartbeat: Duration | None = None,
    ) -> MessageBatch:
        """Ask for up to `max_messages` or `max_bytes`; the server waits up to `expires` for them.

        Blocks only when the consumer has to be created, no longer than the fetch itself may take. Iterating the
        batch raises ConnectionLostError, MissedHeartbeatError and others after the messages that came before; the
        next fetch goes on behind them. A deleted consumer and a gap are mended on the way. A batch that is left
        early costs a new consumer: better ask for fewer messages.
        """
        options = FetchOptions.make(
            max_messages, max_bytes=max_bytes, expires=expires, idle_heartbeat=idle_heartbeat
        )
        return ordered_fetch(self._chain, options)

    def fetch_nowait(self, max_messages: int | None = None, *, max_bytes: int | None = None) -> MessageBatch:
        """Like fetch(), but only what is there now."""
        options = FetchOptions.make(max_messages, max_bytes=max_bytes, no_wait=True)
        return ordered_fetch(self._chain, options)

    def next(self, expires: Duration = 5.0, *, idle_heartbeat: Duration | None = None) -> JetStreamMessage | None:
        """One message, or None when none came within `expires`. Raises like fetch()."""
        options = FetchOptions.make(1, expires=expires, idle_heartbeat=idle_heartbeat)
        return ordered_next(self._chain, options)

    def messages(
        self,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        check_on_reconnect: bool = True,
        on_error: ErrorCallback | None = None,
    ) -> MessageStream:
        """An endless iterator over the stream's messages, pulled ahead up to `max_messages` or `max_bytes`.

        Blocks until the consumer is created and raises when it cannot be. From then on it rides out everything
        but the end of the stream or the connection: the iteration raises StreamNotFoundError,
        ConnectionClosedError, PermissionsError. `on_error` is told of the rest (else the log). stop() deletes the
        consumer. `check_on_reconnect` changes nothing here: a reconnect always brings a new consumer.
        """
        options = ConsumeOptions.make(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
        )
        feed = self._feed(options, on_error, interruptible=True)
        stream = OrderedStream(feed)  # first: interrupted after the start, it is dropped, which ends the feed
        feed.start()
        return stream

    def consume(
        self,
        callback: Callback,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        check_on_reconnect: bool = True,
        on_error: ErrorCallback | None = None,
        max_workers: int = 1,
    ) -> ConsumeContext:
        """Call `callback(msg)` for each message in order, on a thread of the library's own. Else like messages().

        A callback that raises is reported to `on_error`; its message does not come again. `max_workers` must be
        1: several would not keep the order.
        """
        if not callable(callback):
            raise TypeError("callback must be callable")
        if max_workers != 1:
            raise ValueError(f"max_workers of an ordered consumer must be 1, to keep the order: {max_workers!r}")
        options = ConsumeOptions.make(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
        )
        return start_consume(self._feed(options, on_error, interruptible=False), callback)

    def _feed(
        self, options: ConsumeOptions, on_error: ErrorCallback | None, *, interruptible: bool
    ) -> OrderedFeed:
        if on_error is not None and not callable(on_error):
            raise TypeError("on_error must be callable")
        return OrderedFeed(self._chain, options, on_error=on_error, interruptible=interruptible)

    def __repr__(self) -> str:
        return f"<OrderedConsumer {self.name!r} of stream {self.stream_name!r}>"


def ordered_config(fields: Mapping[str, Any]) -> ConsumerConfig:
    """The configuration of an ordered consumer. Raises ConsumerConfigError naming what it cannot have."""
    given = {name: value for name, value in fields.items() if value is not None}
    known = {spec.name for spec in fields_of(ConsumerConfig)}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"ordered_consumer() has no option {name!r}")
        if name in FIXED and value != FIXED[name]:
            raise ConsumerConfigError(
                f"{name} of an ordered consumer is {FIXED[name]!s}, not {value!r}: leave it out", field=name
            )
        if name not in FIXED and name not in CHOSEN:
            raise ConsumerConfigError(f"an ordered consumer cannot have {name}: leave it out", field=name)
    config = ConsumerConfig(**{"inactive_threshold": INACTIVE_THRESHOLD, **copy.deepcopy(given), **FIXED})
    _check_start(config)
    _check_filters(config)
    if not config.inactive_threshold:
        raise ConsumerConfigError("inactive_threshold must be more than 0 s", field="inactive_threshold")
    return config


def _check_start(config: ConsumerConfig) -> None:
    """The start options belong to a deliver policy each; given alone, they choose it."""
    starts = {
        "opt_start_seq": DeliverPolicy.BY_START_SEQUENCE,
        "opt_start_time": DeliverPolicy.BY_START_TIME,
    }
    for name, policy in starts.items():
        if getattr(config, name) is not None:
            config.deliver_policy = config.deliver_policy or policy
            if config.deliver_policy != policy:
                raise ConsumerConfigError(
                    f"{name} goes with deliver_policy {policy!s}, not {config.deliver_policy!s}", field=name
                )
        elif config.deliver_policy == policy:
            raise ConsumerConfigError(f"deliver_policy {policy!s} needs {name}", field=name)


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise ConsumerConfigError(
            "filter_subject and filter_subjects exclude each other: give one of them", field="filter_subjects"
        )
    if config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not config.filter_subject:
        config.filter_subjects = config.filter_subjects or [">"]  # the server wants one


def _checked_attempts(attempts: int | None) -> int | None:
    if attempts is None:
        return None
    if isinstance(attempts, bool) or not isinstance(attempts, int):
        raise TypeError(f"max_reset_attempts must be an int or None, not {type(attempts).__name__}")
    if attempts < 1:
        raise ValueError(f"max_reset_attempts must be at least 1, or None for no limit: {attempts}")
    return attempts
