"""positionConsumer: the position of a query as the ack floor of a durable consumer, for the eyes of operators.

`nats consumer info` then shows how far the query is, and how many messages are pending. Nothing is ever delivered
to this consumer: it is moved. Servers of 2.14 and later reset it to a sequence. On older ones it is deleted and
created anew with that start, so it is missing for a moment.

The consumer is for display only: a query starts from its checkpoint, whatever the consumer shows. So a position
that cannot be kept is a warning, never an error of the query, and the query waits for it a few seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..api.config import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo, StreamInfo
from ..errors import ConsumerNotFoundError, NatsError
from ..jetstream import JetStream, client_of
from .offsets import Offset
from .stream_view import log

# What the metadata of our consumers contain. A consumer without it belongs to another program.
OURS = {"jetstream_sync": "position of a Spark query"}
RESET_SINCE = (2, 14)
SECONDS_BETWEEN_MOVES = 1.0
REQUEST_SECONDS = 2.0
# After a failure, the next attempt waits so long, twice as long after each further one, up to the longest pause.
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 300.0


class PositionKeeper:
    """Moves the consumer `name` in each stream of a query. For one thread: the one that plans the batches."""

    def __init__(self, name: str, subjects: tuple[str, ...]) -> None:
        self._name = name
        self._subjects = subjects
        self._kept: dict[str, Offset] = {}
        self._refused: set[str] = set()  # streams that cannot have the consumer
        self._not_before = 0.0
        self._pause = FIRST_PAUSE

    def keep(
        self,
        js: JetStream,
        offsets: Mapping[str, Offset],
        infos: Mapping[str, StreamInfo],
        *,
        last_chance: bool = False,
    ) -> None:
        """Show that everything before `offsets` is processed, unless a position was shown a moment ago.

        Called again and again with the same offsets, it shows them in the end. With `last_chance` it is not called
        again, and does not wait for its time. Blocks a few seconds at most, and raises nothing.
        """
        moved = [
            stream
            for stream, offset in offsets.items()
            if stream in infos and stream not in self._refused and self._kept.get(stream) != offset
        ]
        now = time.monotonic()
        if not moved or (now < self._not_before and not last_chance):
            return
        self._not_before = now + SECONDS_BETWEEN_MOVES
        consumers = ConsumerApi(client_of(js))
        try:
            for stream in moved:
                self._move(consumers, infos[stream], max(1, offsets[stream].next))
                self._kept[stream] = offsets[stream]
            self._pause = FIRST_PAUSE
        except NatsError as error:
            self._not_before = time.monotonic() + self._pause
            log.warning(
                "the consumer %r of stream %r does not show the position of the query: %s; next attempt in %g s",
                self._name,
                stream,
                error,
                self._pause,
            )
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _move(self, consumers: ConsumerApi, info: StreamInfo, position: int) -> None:
        stream = info.config.name
        if info.config.retention not in (None, RetentionPolicy.LIMITS):
            self._refuse(stream, "in an interest or work-queue stream it would keep messages from being removed")
            return
        resets = can_reset(info)
        found = self._find(consumers, stream)
        if found is not None and not _is_ours(found):
            self._refuse(stream, "there is one of that name which another program has made")
            return
        if found is not None and not (resets and self._can_be_reset(found)):
            consumers.delete(stream, self._name, timeout=REQUEST_SECONDS)
            found = None
        if found is None:
            consumers.create(stream, self._config(resets, position), timeout=REQUEST_SECONDS)
        if resets:
            consumers.reset(stream, self._name, position, timeout=REQUEST_SECONDS)

    def _find(self, consumers: ConsumerApi, stream: str) -> ConsumerInfo | None:
        try:
            return consumers.info(stream, self._name, timeout=REQUEST_SECONDS)
        except ConsumerNotFoundError:
            return None

    def _can_be_reset(self, found: ConsumerInfo) -> bool:
        """Whether it can go to any sequence, and has the filters of this query."""
        config = found.config
        filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
        return config.deliver_policy == DeliverPolicy.ALL and filters == list(self._subjects)

    def _config(self, resets: bool, position: int) -> ConsumerConfig:
        start = (DeliverPolicy.ALL, None) if resets else (DeliverPolicy.BY_START_SEQUENCE, position)
        return ConsumerConfig(
            durable_name=self._name,
            description="the position of a Spark query; nothing is delivered",
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=start[0],
            opt_start_seq=start[1],
            filter_subjects=list(self._subjects),
            metadata=dict(OURS),
        )

    def _refuse(self, stream: str, why: str) -> None:
        self._refused.add(stream)
        log.warning("positionConsumer: stream %r gets no consumer %r: %s", stream, self._name, why)


def can_reset(info: StreamInfo) -> bool:
    """Whether the server that leads the stream can reset a consumer. It reports its version since 2.11."""
    version = (info.config.metadata or {}).get("_nats.ver", "")
    numbers = version.partition("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= RESET_SINCE


def _is_ours(info: ConsumerInfo) -> bool:
    metadata = info.config.metadata or {}
    return all(metadata.get(key) == value for key, value in OURS.items())
