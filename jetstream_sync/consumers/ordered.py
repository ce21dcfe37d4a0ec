"""An ordered consumer: every message of a stream once, in order, whatever happens meanwhile (ADR-17)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
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
from .chain import Chain
from .consumer import PullConsumer
from .fetch import MessageBatch
from .ordered_feed import OrderedFeed, OrderedStream, ordered_fetch, ordered_next
from .pull_options import ConsumeOptions, FetchOptions, Priority, check_integer
from .take import ErrorCallback

# Creating the consumer again would get the same reply.
DEFINITE = (StreamNotFoundError, BadRequestError, PermissionsError, ConnectionClosedError, ForkError)
# ADR-17: what makes a consumer an ordered one. The user may say the same, but nothing else.
FIXED: dict[str, Any] = {"ack_policy": AckPolicy.NONE, "max_deliver": 1, "mem_storage": True, "num_replicas": 1}
INACTIVE_THRESHOLD = 300.0
# The fields of a consumer that are the user's to choose.
CHOSEN = {
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


class OrderedConsumer(PullConsumer):
    """Reads a stream in order, every message once. Made by `ordered_consumer()`, which asks nothing of the server.

    It keeps an ephemeral consumer on the server, created on first use and replaced, behind the last message
    handed out, whenever it is lost or a message is missing. Fetches, messages() and consume() go on where the one
    before ended. Messages need no acknowledgement; acks on them are ignored.

    One fetch, messages() or consume() at a time: a second one raises ConcurrencyError. What differs from Consumer:

    - A call blocks while the consumer is created: a fetch no longer than it may take itself; messages() and
      consume() raise when it cannot be created.
    - A deleted consumer and a gap are mended on the way. After another error the next fetch goes on behind the
      messages that came. A batch that is left early costs a new consumer: better ask for fewer messages.
    - messages() and consume() ride out everything but the end of the stream or the connection:
      StreamNotFoundError, ConnectionClosedError, PermissionsError. Their stop() deletes the consumer.
      `check_on_reconnect` changes nothing: a reconnect always brings a new consumer.
    - A stream that was deleted and made anew, or that lost its end, raises DataLossError, in a fetch, too. Each
      consumer but the first asks for STREAM.INFO to notice it. An account that may not ask reads on unwarned.
    - The message of a callback that raises does not come again. `max_workers` must be 1, to keep the order.
    - There are no priority groups: `group`, `min_pending`, `min_ack_pending` and `priority` raise TypeError.
    """

    __slots__ = ("_api", "_chain")

    _stream = OrderedStream

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
        check_integer(max_reset_attempts, "max_reset_attempts", 1)
        self._api = ConsumerApi(client)
        self._chain = Chain(
            client,
            valid_name("stream", stream_name),
            ordered_config(fields),
            definite=DEFINITE,
            name_prefix=name_prefix,
            max_attempts=max_reset_attempts,
        )

    @property
    def name(self) -> str | None:
        """The consumer's present name on the server: a new one each time it is replaced; None before the first."""
        info = self._chain.info
        return None if info is None else info.name

    @property
    def stream_name(self) -> str:
        """The stream it reads."""
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

    def _fetch(self, options: FetchOptions) -> MessageBatch:
        return ordered_fetch(self._chain, options)

    def _next(self, options: FetchOptions) -> JetStreamMessage | None:
        return ordered_next(self._chain, options)

    def _endless(
        self, options: ConsumeOptions, check: bool, on_error: ErrorCallback | None, workers: int = 0
    ) -> OrderedFeed:
        if workers > 1:
            raise ValueError(f"max_workers of an ordered consumer must be 1, to keep the order: {workers!r}")
        return OrderedFeed(self._chain, options, on_error=on_error, interruptible=workers == 0)

    def _priority(self, *given: Any) -> Priority:
        if given != (None, None, None, None):
            raise TypeError("an ordered consumer has no priority groups: leave group and what goes with it out")
        return Priority()

    def __repr__(self) -> str:
        position = self._chain.position
        begun = "not begun" if position is None else f"last_seq={position}"
        return f"<OrderedConsumer {self.name!r} of stream {self.stream_name!r} {begun}>"


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
    if config.filter_subject and config.filter_subjects:
        raise ConsumerConfigError(
            "filter_subject and filter_subjects exclude each other: give one of them", field="filter_subjects"
        )
    if config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not config.filter_subject:
        config.filter_subjects = config.filter_subjects or [">"]  # the server wants one
    if not config.inactive_threshold:
        raise ConsumerConfigError("inactive_threshold must be more than 0 s", field="inactive_threshold")
    return config


def _check_start(config: ConsumerConfig) -> None:
    """The start options belong to a deliver policy each; given alone, they choose it."""
    starts = {"opt_start_seq": DeliverPolicy.BY_START_SEQUENCE, "opt_start_time": DeliverPolicy.BY_START_TIME}
    for name, policy in starts.items():
        if getattr(config, name) is not None:
            config.deliver_policy = config.deliver_policy or policy
            if config.deliver_policy != policy:
                raise ConsumerConfigError(
                    f"{name} goes with deliver_policy {policy!s}, not {config.deliver_policy!s}", field=name
                )
        elif config.deliver_policy == policy:
            raise ConsumerConfigError(f"deliver_policy {policy!s} needs {name}", field=name)
