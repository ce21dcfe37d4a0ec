"""Whether a stream is still the one that ordered reading began with, and still has what was read from it.

A stream can be deleted and made anew, or lose its end, while a generation is replaced. From server 2.12 on the
next generation may begin beyond the end: it would be silent until the stream has grown to there, and skip what is
new. So each generation but the first compares STREAM.INFO with what is known of the stream:

- `created`: of another stream it is another time. It is learned with the first comparison. That one has to do with
  the time at which the first generation was created: a stream that is younger is another one. In a cluster the two
  times may be from two clocks.
- `last_seq`: never below the position. A leader that was just elected may still have to catch up, so it is asked
  again for a second. Purging and expiry leave `last_seq` as it is.

It is asked when the generation was created and before a message is taken from it: by then the stream has a leader
again. No answer is no reason to go on unseen, and none to stop for ever, because an account may be allowed
CONSUMER requests alone. When it is denied, has no responders, or stays unanswered many times in a row, nothing is
compared any more in this session of the connection.

For the one thread at a time that creates generations. No lock.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from .._deadline import Deadline
from ..api.client import ApiClient
from ..api.info import ConsumerInfo, StreamInfo
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DataLossError,
    ForkError,
    JetStreamNotEnabledError,
    NatsError,
    NotConnectedError,
    PermissionsError,
    StreamNotFoundError,
    TimeoutError,
)

# How much the clocks of the servers of a cluster may differ.
CLOCK_DIFFERENCE = timedelta(seconds=1)
# For so long an end below the position may be that of a leader that catches up.
CATCH_UP_SECONDS = 1.0
# How long to wait for an answer, and how many questions in a row may be without one.
ANSWER_SECONDS = 1.0
MOST_UNANSWERED = 12

# Not about STREAM.INFO, but about the stream or the connection.
_PASSED_ON: tuple[type[NatsError], ...] = (
    StreamNotFoundError,
    ConnectionLostError,
    ConnectionClosedError,
    ForkError,
    NotConnectedError,  # not sent: that there was no answer says nothing
)


class Continuity:
    """See the module's text."""

    def __init__(self, client: ApiClient, stream_name: str) -> None:
        self._client = client
        self._stream_name = stream_name
        self._began: datetime | None = None  # when the first generation was created, by a server's clock
        self._created: datetime | None = None  # of the stream, once it is known
        self._unanswered = 0  # questions in a row
        self._low_since: float | None = None  # when the end was first seen below the position
        self._blind: int | None = None  # the session of the connection in which nothing is compared

    def began(self, first: ConsumerInfo) -> None:
        """The first generation was created."""
        self._began = first.created

    def check(self, position: int | None, deadline: Deadline) -> None:
        """Compare; another generation was created behind `position`. Blocks for one reply.

        Raises DataLossError, StreamNotFoundError; TimeoutError when it is not known yet: ask again.
        """
        session = self._client.link.reconnects
        if self._blind == session:
            return
        try:
            timeout = min(ANSWER_SECONDS, self._client.timeout, deadline.wait_time())
            answer = self._client.request("STREAM", "INFO", self._stream_name, timeout=timeout)
            info = StreamInfo.from_wire(answer)
        except _PASSED_ON:
            raise
        except (PermissionsError, JetStreamNotEnabledError):
            self._go_blind(session)
        except NatsError as error:
            self._unanswered += 1
            if self._unanswered < MOST_UNANSWERED:
                raise TimeoutError(f"the state of stream {self._stream_name!r} is not known: {error}") from error
            self._go_blind(session)
        else:
            self._unanswered = 0
            self._compare(info, position)

    def _go_blind(self, session: int) -> None:
        self._blind = session
        self._unanswered = 0
        self._client.link.logs.consumer.warning(
            "STREAM.INFO of stream %s is not answered for this account: that the stream was made anew, or lost "
            "messages, goes unnoticed by ordered consumers",
            self._stream_name,
        )

    def _compare(self, info: StreamInfo, position: int | None) -> None:
        last_seq = info.state.last_seq
        if self._is_another(info):
            text = (
                f"stream {self._stream_name!r} was deleted and made anew at {info.created}, after sequence "
                f"{position or 0} of the old one was read; make a new ordered consumer to read the new one"
            )
            raise DataLossError(self._stream_name, position or 0, last_seq, text)
        if position is not None and last_seq < position:
            now = time.monotonic()
            if self._low_since is None:
                self._low_since = now
            if now - self._low_since < CATCH_UP_SECONDS:
                raise TimeoutError(
                    f"stream {self._stream_name!r} ends with sequence {last_seq}, but {position} was read: "
                    "its leader is asked again"
                )
            raise DataLossError(self._stream_name, position, last_seq)
        self._low_since = None
        self._created = info.created

    def _is_another(self, info: StreamInfo) -> bool:
        if info.created is None:
            return False
        if self._created is not None:
            return info.created != self._created
        if self._began is None or (info.ts is not None and info.created > info.ts):
            return False  # of a clock that has been set back meanwhile
        clustered = info.cluster is not None and info.cluster.name
        difference = CLOCK_DIFFERENCE if clustered else timedelta()
        return info.created > self._began + difference
