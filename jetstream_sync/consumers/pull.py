"""Pull: one inbox and the requests that are sent on it (ADR-37).

Threads: the reader thread calls `deliver` and the methods about the connection. Any thread may call the others.
The consuming thread takes what has come from the box. No lock of its own.

Two things are added to what arrives. A status is recognised and gets its time of arrival, because what it says of
the pulls depends on when it came, not on when it is read. And arrivals are counted before they can be taken: so it
is known at any moment whether the server still owes something, however slowly the box is emptied.
"""

from __future__ import annotations

import time
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
from ..protocol.headers import Status
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

    # --- pinned clients (priority groups) -----------------------------------------------------------

    def pin_id(self, priority: Priority) -> str | None:
        return None if priority.group is None else self._pins.get(priority.group)

    def learn_pin(self, priority: Priority, pin: bytes | None) -> None:
        """A message carried `Nats-Pin-Id`: this client is the pinned one."""
        if pin and priority.group is not None:
            self._pins[priority.group] = pin.decode("ascii", "replace")

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


class PullOwner(Protocol):
    """Is told of the connection in place of a pull that outlives a session."""

    def disconnected(self) -> None: ...

    def reconnected(self) -> None: ...

    def closed(self, error: NatsError) -> None: ...

    def publish_denied(self, error: PermissionsError) -> None: ...


class Pull(Receiver):
    """New, idle (subscribed, nothing asked) or asked; then ended.

    The loss of the connection ends an asked pull, because its request is lost with the session; an idle one is
    subscribed again. With an `owner` the owner decides. A pull that ends closes its box, unless it has an owner:
    several pulls may share a box then.

    The counters are written by the reader thread alone and may be read by any. The pull is what its messages
    remember as their source.
    """

    def __init__(
        self,
        target: PullTarget,
        box: Mailbox[RawMessage] | Slot[RawMessage],
        owner: PullOwner | None = None,
        *,
        sized: bool = False,
    ) -> None:
        """Sends nothing. `sized`: count bytes, not messages."""
        self.target = target
        self.link = target.link
        self.acks = target.acks
        self.box = box
        self.items = box.items if isinstance(box, Mailbox) else ()
        self.wire_subject = self.reply = target.link.next_inbox()
        """The reply is the subject of statuses; stored messages have subjects of their own."""
        self.asked = False
        """A request is under way."""
        self.broken = False
        """Nothing more will come: the connection was lost, or the server refused something."""
        self.ended = False
        """end() was called and has done its work."""
        self.last_arrival = time.monotonic()
        self.delivered = 0  # messages and statuses
        self.arrived = 0  # messages, or their bytes
        self.answers = 0  # statuses that are not mere signs of life
        self.conclusion: ArrivedStatus | None = None  # a status after which no pull is served any more
        self.handed_over = (0, 0)  # of `arrived` and `answers`, what is in the box or was taken from it
        self._owner = owner
        self._sized = sized
        self._limit = 0  # the server ends the interest after so many; 0: never
        self._draining = False
        self._frame: bytes | None = None  # the newest request

    # --- any thread -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Subscribe, if that has not been done. The SUB leaves with the next thing that is sent."""
        self.link.open(self)

    def ask(self, body: bytes, reply: bytes | None = None) -> None:
        """Send a pull request; subscribes first where needed. Never blocks.

        `reply` is for a pull that is subscribed to a wildcard.
        """
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

    def limit(self, count: int) -> None:
        """Have the server end the interest after `count` messages and statuses in all."""
        if self.sid:
            self.link.limit(self, count)
        else:
            self._limit = count

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
                silence = clock.remaining() or 0.0
                left = silence if left is None else min(left, silence)
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
        """Remove the interest, take a request back that has not left, drop what is in the box. Never blocks.

        May be repeated, and is to be when a signal handler raised in it.
        """
        if self.link.forked:
            return  # a forked child does not speak for its parent
        if not self._limit or self.delivered < self._limit:
            self.withdraw()
        self.link.close(self)
        if self._owner is None:
            self.box.close(SubscriptionClosedError("the pull has ended"), discard=True)
        self.ended = True

    # --- reader thread --------------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        self.last_arrival = now = time.monotonic()
        inbox = self.reply
        self.delivered += len(messages)
        statuses = 0
        for index, raw in enumerate(messages):
            if raw[0] == inbox:
                status = None if raw[2] is None else read_status(raw[0], raw[1], raw[2], inbox)
                if status is not None:
                    messages[index] = arrived = ArrivedStatus(raw, status, now)
                    statuses += 1
                    self._note(arrived)
        if self._sized:
            self.arrived += sum(message_size(raw) for raw in messages if type(raw) is not ArrivedStatus)
        else:
            self.arrived += len(messages) - statuses
        if self._limit and self.delivered >= self._limit:
            self.completed = True
        self.box.put_run(messages)
        self.handed_over = (self.arrived, self.answers)

    def _note(self, arrived: ArrivedStatus) -> None:
        action = classify(arrived.status).consume
        if action is not ConsumeAction.IGNORE:
            self.answers += 1
        if action is ConsumeAction.TERMINAL:
            self.conclusion = arrived

    def remaining(self) -> int:
        """The whole limit: a pull that has been asked ends with its session, so this one has got nothing yet."""
        return -1 if self._draining else self._limit

    def set_limit(self, count: int) -> bool:
        # Set first, looked at second: deliver() counts first and looks at the limit second.
        self._limit = count
        return self.delivered < count

    def denied(self, error: PermissionsError) -> None:
        self.broken = True
        self.box.close(error)

    def publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        if subject != self.target.next_subject:
            return
        if self._owner is not None:
            self._owner.publish_denied(error)
        else:
            self.broken = True
            self.box.close(error)

    def disconnected(self) -> None:
        if self._owner is not None:
            self._owner.disconnected()
        elif self.asked:
            self.broken = self.completed = True
            self.link.close(self)
            self.box.close(ConnectionLostError("the connection was lost during the pull"))

    def reconnected(self) -> None:
        """A pull made while disconnected goes out now: its heartbeats count from here."""
        self.last_arrival = time.monotonic()
        if self._owner is not None:
            self._owner.reconnected()

    def closed(self, error: NatsError) -> None:
        self.broken = True
        if self._owner is not None:
            self._owner.closed(error)
        else:
            self.box.close(error)
