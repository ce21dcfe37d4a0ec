"""Where the answers to pulls arrive: a subscription on an inbox of the pull's own.

Reader thread: deliver() and fail(). Takers: the mailbox. Two things are added on the way. A status is recognised
and gets its arrival time, because what it says of the pulls depends on when it came, not on when it is read. And
what arrives is counted, before it can be taken: whether the server still owes something is known at any
moment, however slowly the mailbox is emptied.
"""

from __future__ import annotations

import time

from .._threads import Mailbox
from ..errors import NatsError
from ..net.connection import Connection
from ..protocol.headers import Status
from ..protocol.parser import RawMessage
from .pull_options import message_size
from .status import ConsumeAction, classify, read_status


class PullInlet:
    """An inbox for pulls. Closed by its owner through `Connection._close_inlet`.

    The counters are written by the reader thread alone and may be read by any.
    """

    queue: str | None = None

    def __init__(self, nc: Connection, *, by_bytes: bool = False) -> None:
        self.subject = nc._next_inbox()
        self.wire_subject = self.subject.encode()
        self.reply = self.wire_subject  # what pulls name as their reply, and so the subject of statuses
        self.sid = b""
        self.limit = 0  # the server ends the interest after so many; 0: never
        self.mailbox: Mailbox[RawMessage] = Mailbox(before_wait=nc._outbox.flush)
        self.last_arrival = time.monotonic()
        self._by_bytes = by_bytes
        self.delivered = 0  # messages and statuses
        self.arrived = 0  # messages, or their bytes
        self.answers = 0  # statuses that are not mere signs of life
        self.conclusion: StampedStatus | None = None  # a status after which no pull is served any more
        self.handed_over = (0, 0)  # of `arrived` and `answers`, what is in the mailbox or was taken from it

    def with_sid(self, sid: bytes) -> PullInlet:
        self.sid = sid
        return self

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        self.last_arrival = now = time.monotonic()
        inbox = self.reply
        self.delivered += len(messages)
        statuses = 0
        for index, raw in enumerate(messages):
            if raw[0] == inbox:  # stored messages have subjects of their own
                status = None if raw[2] is None else read_status(raw[0], raw[1], raw[2], inbox)
                if status is not None:
                    messages[index] = stamped = StampedStatus(raw, status, now)
                    statuses += 1
                    self._note(stamped)
        if self._by_bytes:
            self.arrived += sum(message_size(raw) for raw in messages if type(raw) is not StampedStatus)
        else:
            self.arrived += len(messages) - statuses
        self.mailbox.put_run(messages)
        self.handed_over = (self.arrived, self.answers)

    def _note(self, stamped: StampedStatus) -> None:
        action = classify(stamped.status).consume
        if action is not ConsumeAction.IGNORE:
            self.answers += 1
        if action is ConsumeAction.TERMINAL:
            self.conclusion = stamped

    def fail(self, error: NatsError) -> None:
        """The server denied the inbox."""
        self.mailbox.close(error)

    @property
    def spent(self) -> bool:
        """Whether the limit is reached, so that the server has ended the interest by itself."""
        return bool(self.limit) and self.delivered >= self.limit

    def remaining(self) -> int:
        """For a resubscription: the whole limit, for a pull that was sent ended with its connection."""
        return self.limit


class StampedStatus(tuple):  # type: ignore[type-arg]
    """A raw message that is a status, what it says, and the time it came."""

    status: Status
    arrived: float

    def __new__(cls, raw: RawMessage, status: Status, arrived: float) -> StampedStatus:
        stamped = super().__new__(cls, raw)
        stamped.status = status
        stamped.arrived = arrived
        return stamped
