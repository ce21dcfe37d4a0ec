"""What planning and reading know of a stream: where it begins and ends, what is stored, what has been lost."""

from __future__ import annotations

from .._log import Log
from ..api.info import RawStreamMsg, StreamInfo
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
    NoRespondersError,
    PullError,
    TimeoutError,
)
from ..jetstream import JetStream, client_of
from .options import ReadOptions

log: Log = Log("spark", None)

# A task fails when it has read nothing for this long; Spark then runs it again elsewhere.
NO_PROGRESS_SECONDS = 60.0
# A leader that was just elected may lag for a moment. A stream whose end is missing for longer has lost it.
LAG_SECONDS = 10.0
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)

# Errors that are temporary: a reconnect, an election, a server that restarted and lost the consumer, or that has
# deleted it because Spark took longer than INACTIVE_THRESHOLD for the rows of a pull.
PASSING = (
    ConnectionLostError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    JetStreamNotEnabledError,
    JetStreamUnavailableError,
    MissedHeartbeatError,
    NoRespondersError,
    PullError,
    TimeoutError,
)


class StreamView:
    """The questions that planning and reading ask about one stream. For one thread at a time."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._streams = StreamApi(client_of(js))
        self._stream = stream

    def info(self) -> StreamInfo:
        return self._streams.info(self._stream)

    def next_stored(self, seq: int, subjects: tuple[str, ...] = ()) -> int | None:
        """The first sequence at or after `seq` that the stream's leader has; None when there is none."""
        message = self._first(seq, subjects)
        return None if message is None else message.seq

    def stored_at(self, seq: int, subjects: tuple[str, ...] = ()) -> float | None:
        """When the first message at or after `seq` was stored, in seconds since 1970; None when there is none."""
        message = self._first(seq, subjects)
        return None if message is None or message.time is None else message.time.timestamp()

    def _first(self, seq: int, subjects: tuple[str, ...]) -> RawStreamMsg | None:
        found = [self._first_of(seq, subject) for subject in subjects or (">",)]
        return min((each for each in found if each is not None), key=lambda each: each.seq, default=None)

    def _first_of(self, seq: int, subject: str) -> RawStreamMsg | None:
        try:
            # Never Direct Get: any replica may serve it, and a replica may lag.
            return self._streams.get_message(
                self._stream, direct=False, seq=max(1, seq), last_by_subject=None, next_by_subject=subject
            )
        except MessageNotFoundError:
            return None


def created_of(info: StreamInfo) -> str:
    """The time of the stream's creation as text. It differs for another stream of the same name."""
    return "" if info.created is None else str(TIMESTAMP.encode(info.created))


def first_sequence(info: StreamInfo) -> int:
    """The first sequence in the stream; for an empty stream, the sequence of the next message."""
    state = info.state
    return state.last_seq + 1 if not state.messages else max(1, state.first_seq)


def report_loss(options: ReadOptions, stream: str, what: str) -> None:
    """Raise DataLossError, or only log it, according to failOnDataLoss."""
    if options.fail_on_data_loss:
        text = f"data loss in stream {stream!r}: {what}. Set failOnDataLoss=false to go on without it"
        raise DataLossError(stream, message=text)
    log.warning("data loss in stream %r: %s; going on (failOnDataLoss=false)", stream, what)
