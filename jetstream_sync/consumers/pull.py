"""Pull: one inbox and the requests that are sent on it (ADR-37). No lock of its own.

Statuses get their time of arrival, because what one says of the pulls depends on when it came, not on when it is
read. Arrivals are counted before they can be taken: so it is known at any moment whether the server still owes
something, however slowly the box is emptied.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from time import monotonic
from typing import Protocol

from .._deadline import Deadline
from .._threads import Mailbox, Slot
from ..api.client import ApiClient
from ..api.config import AckPolicy
from ..api.info import ConsumerInfo
from ..api.message import SingleSource
from ..errors import (
    ConnectionLostError,
    MissedHeartbeatError,
    NatsError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.receiver import Receiver
from ..protocol import commands
from ..protocol.headers import Status, header_value
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .pull_options import Priority, message_size
from .status import ConsumeAction, classify, read_status


class PullTarget:
    """A consumer as pulls see it. Thread-safe: the pins are a dict whose single operations are atomic."""

    def __init__(self, client: ApiClient, info: ConsumerInfo) -> None:
        self.link = client.link
        self.stream_name = info.stream_name
        self.name = info.name
        self.acks = info.config.ack_policy != AckPolicy.NONE
        # The shortest time in which the server may lose patience: backoff replaces ack_wait.
        self.ack_wait = min(info.config.backoff or [info.config.ack_wait or 30.0])
        self.next_subject = client.subject("CONSUMER", "MSG", "NEXT", info.stream_name, info.name).encode()
        self.single = SingleSource(self.acks)  # the source of messages that come one at a time
        self._pins: dict[str, str] = {}

    def pull_frame(self, body: bytes, reply: bytes) -> bytes:
        """A pull request as it goes out."""
        return commands.publish(self.next_subject, body, reply)

    def pin_id(self, priority: Priority) -> str | None:
        """The id by which the server knows this client as the pinned one of a priority group."""
        return None if priority.group is None else self._pins.get(priority.group)

    def learn_pin(self, priority: Priority, raw: RawMessage) -> bool:
        """`Nats-Pin-Id` in a message says that this client is the pinned one. True: it is for the user."""
        pin = None if raw[2] is None else header_value(raw[2], b"Nats-Pin-Id")
        if pin and priority.group is not None:
            self._pins[priority.group] = pin.decode("ascii", "replace")
        return True

    def inspector(self, priority: Priority) -> Callable[[RawMessage], bool] | None:
        """learn_pin() for a feed; None without a priority group, where there are no pins."""
        return None if priority.group is None else partial(self.learn_pin, priority)

    def drop_pin(self, priority: Priority) -> None:
        """423: another client is pinned now."""
        if priority.group is not None:
            self._pins.pop(priority.group, None)


class ArrivedStatus(tuple):  # type: ignore[type-arg]
    """A raw message that is a status, what it says, and the time it came."""

    status: Status
    arrived: float

    def __new__(cls, raw: RawMessage, status: Status, arrived: float) -> ArrivedStatus:
        made = super().__new__(cls, raw)
        made.status = status
        made.arrived = arrived
        return made


Box = Mailbox[RawMessage] | Slot[RawMessage]


class PullOwner(Protocol):
    """Is told of the connection in place of a pull that outlives a session."""

    def disconnected(self) -> None: ...
    def reconnected(self) -> None: ...
    def closed(self, error: NatsError) -> None: ...
    def publish_denied(self, error: PermissionsError) -> None: ...


class Pull(Receiver):
    """New, idle (subscribed, nothing asked) or asked; then ended.

    The loss of the connection ends an asked pull, whose request is lost with the session; an idle one is
    subscribed again. With an `owner` the owner decides. A pull that ends closes its box, unless it has an owner:
    several pulls may share a box then. The pull is what its messages remember as their source.
    """

    items: Sized = ()
    last_arrival = 0.0  # when something came, or could come for the first time
    # The counters are written by the reader thread alone and may be read by any.
    delivered = 0  # messages and statuses
    arrived = 0  # messages, or their bytes; for an owner, like the next two
    answers = 0  # statuses that are not mere signs of life
    handed_over = (0, 0)  # of `arrived` and `answers`, what is in the box or was taken from it
    conclusion: ArrivedStatus | None = None  # a status after which no pull is served any more
    asked = False  # a request is under way
    broken = False  # nothing more will come: the connection was lost, or the server refused something
    ended = False  # end() was called and has done its work
    _draining = False
    _frame: bytes | None = None  # the newest request

    def __init__(
        self, target: PullTarget, box: Box, owner: PullOwner | None = None, *, sized: bool = False, limit: int = 0
    ) -> None:
        """Sends nothing. `sized`: count bytes for the owner, not messages. `limit`: after so many messages and
        statuses the server ends the interest; 0: it does not."""
        self.target = target
        self.link = link = target.link
        self.box = box
        self.acks = target.acks
        if type(box) is Mailbox:
            self.items = box.items
        # The subject of statuses; stored messages have subjects of their own.
        self.wire_subject = self.reply = link.next_inbox()
        self._owner, self._sized, self._limit = owner, sized, limit

    # --- any thread -----------------------------------------------------------------------------------

    def ask(self, body: bytes, reply: bytes | None = None) -> None:
        """Send a request, subscribing first where needed. Never blocks. `reply`: for a wildcard subscription."""
        if not self.sid:
            self.link.open(self)
        if reply is not None:
            self.reply = reply
        self._frame = frame = self.target.pull_frame(body, self.reply)
        self.asked = True
        self.link.outbox.publish(frame, len(body), keep=False)

    def withdraw(self) -> None:
        """Take the newest request back if it has not left."""
        if self._frame is not None:
            self.link.outbox.withdraw(self._frame)

    def rest(self) -> None:
        """The request has been answered in full: the pull is idle and may be asked again."""
        self.asked = False
        self._frame = None

    def wait(self, deadline: Deadline, clock: HeartbeatClock | None = None) -> RawMessage:
        """The next message or status; the one place that blocks for it.

        Raises TimeoutError at the deadline, ConnectionLostError when there was no connection then,
        MissedHeartbeatError when `clock` says that the server has been silent for too long, and what closed the
        box: ConnectionLostError, PermissionsError, ConnectionClosedError, SubscriptionClosedError after end().
        """
        while True:
            left = deadline.remaining()
            if clock is not None:
                clock.reset(self.last_arrival)
                left = min(deadline.wait_time(), clock.remaining() or 0.0)
            try:
                return self.box.get(left)
            except TimeoutError:
                pass  # and not from here: what is raised would carry this error as its context
            connected = self.link.connected
            if deadline.expired:
                if not connected and self._owner is None:
                    raise ConnectionLostError("not connected to a server: the pull could not be sent")
                raise TimeoutError("no message came in time")
            if clock is not None:
                clock.reset(self.last_arrival)
                # Made while disconnected, the pull waits for the next session, and so do the heartbeats.
                if clock.due() and connected:
                    raise MissedHeartbeatError(clock.silence)

    def drain(self, deadline: Deadline) -> None:
        """Remove the interest and wait until everything that the server sent before has come."""
        self._draining = True
        self.link.drain([self], deadline)

    def end(self) -> None:
        """Remove the interest, take back a request that has not left, drop what is in the box.

        Never blocks. May be repeated, and is to be when a signal handler raised in it.
        """
        if self.link.forked:
            return  # a forked child does not speak for its parent
        all_came = 0 < self._limit <= self.delivered
        if not all_came:
            self.withdraw()
        self.link.close(self)
        if self._owner is None and not all_came:  # otherwise no thread waits for more
            self.box.close(SubscriptionClosedError("the pull has ended"), discard=True)
        self.ended = True

    # --- reader thread --------------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        self.last_arrival = now = monotonic()
        inbox, statuses = self.reply, 0
        for raw in messages:
            if raw[0] == inbox:
                statuses = self._mark_statuses(messages, now)
                break
        self.delivered = delivered = self.delivered + len(messages)
        if self._limit and delivered >= self._limit:
            self.completed = True
        if self._owner is None:
            self.box.put_run(messages)
            return
        if self._sized:
            self.arrived += sum(message_size(raw) for raw in messages if type(raw) is not ArrivedStatus)
        else:
            self.arrived += len(messages) - statuses
        self.box.put_run(messages)
        self.handed_over = (self.arrived, self.answers)

    def _mark_statuses(self, messages: list[RawMessage], now: float) -> int:
        """Put an ArrivedStatus in the place of each status; returns how many there are."""
        inbox, statuses = self.reply, 0
        for index, (subject, reply, block, _) in enumerate(messages):
            status = None if block is None else read_status(subject, reply, block, inbox)
            if status is not None:
                messages[index] = arrived = ArrivedStatus(messages[index], status, now)
                statuses += 1
                action = classify(status).consume
                if action is not ConsumeAction.IGNORE:
                    self.answers += 1
                if action is ConsumeAction.TERMINAL:
                    self.conclusion = arrived
        return statuses

    def remaining(self) -> int:
        """The whole limit: a pull that has been asked ends with its session, so this one has got nothing yet."""
        return -1 if self._draining else self._limit

    def set_limit(self, count: int) -> bool:
        # Set first, looked at second: deliver() counts first and looks at the limit second.
        self._limit = count
        return self.delivered < count

    def denied(self, error: NatsError) -> None:
        self.broken = True
        self.box.close(error)

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self.target.next_subject:
            if self._owner is not None:
                self._owner.publish_denied(error)
            else:
                self.denied(error)

    def disconnected(self) -> None:
        if self._owner is not None:
            self._owner.disconnected()
        elif self.asked:
            self.broken = self.completed = True
            self.link.close(self)
            self.box.close(ConnectionLostError("the connection was lost during the pull"))

    def reconnected(self) -> None:
        """A pull made while disconnected goes out now: its heartbeats count from here."""
        self.last_arrival = monotonic()
        if self._owner is not None:
            self._owner.reconnected()

    def closed(self, error: NatsError) -> None:
        if self._owner is not None:
            self._owner.closed(error)
        else:
            self.denied(error)
