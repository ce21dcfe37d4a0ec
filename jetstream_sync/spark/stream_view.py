"""What planning and reading know of a stream: where it begins and ends, what is stored, what has been lost."""

from __future__ import annotations

import logging

from ..api.info import StreamInfo
from ..api.kinds import TIMESTAMP
from ..api.stream_api import StreamApi
from ..errors import (
    ConnectionLostError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    DataLossError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    MessageNotFoundError,
    MissedHeartbeatError,
    PullError,
    TimeoutError,
)
from ..jetstream import JetStream, client_of
from .options import ReadOptions

log = logging.getLogger("jetstream_sync.spark")

# A task fails when it has read nothing for this long; Spark then runs it again elsewhere.
NO_PROGRESS_SECONDS = 60.0
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)

# Errors that are temporary: a reconnect, an election, a server that restarted and lost the consumer.
PASSING = (
    ConnectionLostError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    MissedHeartbeatError,
    PullError,
    TimeoutError,
)


class StreamView:
    """The questions that planning and reading ask about one stream. For one thread at a time."""

    def __init__(self, js: JetStream, options: ReadOptions) -> None:
        self._streams = StreamApi(client_of(js))
        self._options = options

    def info(self) -> StreamInfo:
        return self._streams.info(self._options.stream)

    def next_stored(self, seq: int, subjects: tuple[str, ...] = ()) -> int | None:
        """The first sequence at or after `seq` that the stream's leader has; None when there is none."""
        found = [self._next_of(seq, subject) for subject in subjects or (">",)]
        return min((each for each in found if each is not None), default=None)

    def _next_of(self, seq: int, subject: str) -> int | None:
        try:
            # Never Direct Get: any replica may serve it, and a replica may lag.
            message = self._streams.get_message(
                self._options.stream, direct=False, seq=max(1, seq), last_by_subject=None, next_by_subject=subject
            )
        except MessageNotFoundError:
            return None
        return message.seq

    def stored_at(self, seq: int) -> float | None:
        """When the first message at or after `seq` was stored, in seconds since 1970; None when there is none."""
        try:
            message = self._streams.get_message(
                self._options.stream, direct=False, seq=max(1, seq), last_by_subject=None, next_by_subject=">"
            )
        except MessageNotFoundError:
            return None
        return None if message.time is None else message.time.timestamp()


def created_of(info: StreamInfo) -> str:
    """The time of the stream's creation as text. It differs for another stream of the same name."""
    return "" if info.created is None else str(TIMESTAMP.encode(info.created))


def first_sequence(info: StreamInfo) -> int:
    """The first sequence in the stream; for an empty stream, the sequence of the next message."""
    state = info.state
    return state.last_seq + 1 if not state.messages else max(1, state.first_seq)


def report_loss(options: ReadOptions, what: str) -> None:
    """Raise DataLossError, or only log it, according to failOnDataLoss."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"data loss in stream {options.stream!r}: {what}. Set failOnDataLoss=false to go on without it"
        )
    log.warning("data loss in stream %r: %s; going on (failOnDataLoss=false)", options.stream, what)
