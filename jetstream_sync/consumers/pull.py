"""Pull: one inbox and the requests that are sent on it (ADR-37). No lock of its own.

There are two ways to end: end() when nothing more is to come, and hand_back(), which naks what was not taken:
what is in the box, and what the server sent before it heard of the end. The box decides whether a message is taken
or handed back, and gives each to one side alone: what a consuming thread has taken is never nak'ed here.

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
from ..api.message import SingleSource, naks_for
from ..errors import (
    ConnectionLostError,
    MissedHeartbeatError,
    NatsError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.link import Link
from ..net.receiver import Receiver
from ..protocol import commands
from ..protocol.headers import Status, header_value
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .keep_alive import KeepAlive, Leases
from .pull_options import Priority, message_size
from .status import ConsumeAction, classify, read_status


class PullTarget:
    """A consumer as pulls see it. Thread-safe: the pins are a dict whose single operations are atomic."""

    def __init__(self, client: ApiClient, info: ConsumerInfo) -> None:
        self.link: Link = client.link
        self.stream_name: str = info.stream_name
        self.name: str = info.name
        self.acks: bool = info.config.ack_policy != AckPolicy.NONE
        self.ack_wait: float = 30.0
        self.max_ack_pending: int = 0
        self.learn(info)
        self.next_subject: bytes = client.subject("CONSUMER", "MSG", "NEXT", info.stream_name, info.name).encode()
        self.single: SingleSource = SingleSource(self.acks)  # the source of messages that come one at a time
        self._pins: dict[str, str] = {}

    def learn(self, info: ConsumerInfo) -> None:
        """What the server said last of what may change."""
        # The shortest time in which the server may lose patience: backoff replaces ack_wait.
        self.ack_wait = min(info.config.backoff or [info.config.ack_wait or 30.0])
        self.max_ack_pending = info.config.max_ack_pending or 0

    @property
    def title(self) -> str:
        """What logs and repr() call it."""
        return f"consumer {self.name} of {self.stream_name}"

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
    def closing(self, error: NatsError) -> None: ...
    def closed(self, error: NatsError) -> None: ...
    def publish_denied(self, error: PermissionsError) -> None: ...
    def rouse(self) -> None: ...


class Pull(Receiver):
    """New, idle (subscribed, nothing asked) or asked; then ended.

    The loss of the connection ends an asked pull, whose request is lost with the session; an idle one is
    subscribed again. With an `owner` the owner decides. A pull that ends closes its box, unless it has an owner:
    several pulls may share a box then. The pull is what its messages remember as their source.
    """

    last_arrival: float = 0.0  # when something came, or could come for the first time
    # The counters are written by the reader thread alone and may be read by any.
    delivered: int = 0  # messages and statuses
    arrived: int = 0  # messages, or their bytes; for an owner, like the next two
    answers: int = 0  # statuses that are not mere signs of life
    handed_over: tuple[int, int] = (0, 0)  # of `arrived` and `answers`, what is in the box or was taken from it
    added: int = 0  # of `delivered`, the same
    conclusion: ArrivedStatus | None = None  # a status after which no pull is served any more
    asked: bool = False  # a request is under way
    broken: bool = False  # nothing more will come: the connection was lost, or the server refused something
    completed: bool = False
    ended: bool = False  # end() was called and has done its work
    keep_alive: KeepAlive | None = None  # of the owner: what comes while it sleeps has it look again
    leases: Leases | None = None  # of what is in the box; the owner's, if there is one
    _draining: bool = False
    _frame: bytes | None = None  # the newest request

    def __init__(
        self, target: PullTarget, box: Box, owner: PullOwner | None = None, *, sized: bool = False, limit: int = 0
    ) -> None:
        """Sends nothing. `sized`: count bytes for the owner, not messages. `limit`: after so many messages and
        statuses the server ends the interest; 0: it does not."""
        self.target = target
        self.link: Link = target.link
        self.box = box
        self.acks: bool = target.acks
        if type(box) is Mailbox:
            self.items: Sized = box.items
        # The subject of statuses; stored messages have subjects of their own.
        self.wire_subject: bytes = self.link.next_inbox()
        self.reply: bytes = self.wire_subject
        self._owner, self._sized, self._limit = owner, sized, limit
        if owner is None and self.acks and type(box) is Mailbox:
            self.leases = Leases(target.ack_wait)
        self._not_taken: list[RawMessage] = []  # to be handed back

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

    def withdraw(self) -> bool:
        """Take the newest request back if it has not left. True: it had not."""
        return self._frame is not None and bool(self.link.outbox.withdraw(self._frame))

    def rest(self) -> None:
        """The request has been answered in full: the pull is idle and may be asked again."""
        self.asked = False
        self._frame = None

    def wait(self, deadline: Deadline, clock: HeartbeatClock | None = None) -> RawMessage:
        """The next message or status; the one place that blocks for it.

        Raises TimeoutError at the deadline, NotConnectedError when the request could not be sent until then,
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
                    raise self._not_connected()
                raise self.link.no_message()
            if clock is not None:
                clock.reset(self.last_arrival)
                # Made while disconnected, the pull waits for the next session, and so do the heartbeats.
                if clock.due() and connected:
                    names = {"stream": self.target.stream_name, "consumer": self.target.name}
                    raise MissedHeartbeatError(clock.silence, **names)

    def _not_connected(self) -> NatsError:
        if not self.withdraw():  # lost at this very moment
            return ConnectionLostError("the connection was lost during the pull")
        target = self.target
        what = f"pull from consumer {target.name!r} of stream {target.stream_name!r}"
        return self.link.not_connected(f"not sent ({what})")

    def drain(self, deadline: Deadline) -> None:
        """Remove the interest and wait until everything that the server sent before has come."""
        self._draining = True
        self.link.drain([self], deadline)

    def end(self) -> None:
        """Remove the interest, take back a request that has not left, drop what is in the box.

        Never blocks. May be repeated, and is to be when a signal handler raised in it.
        """
        if self.ended or self.link.forked:
            return  # a forked child does not speak for its parent
        all_came = 0 < self._limit <= self.delivered
        if not all_came:
            self.withdraw()
        self.link.close(self)
        if self._owner is None and not all_came:  # otherwise no thread waits for more
            self.box.close(SubscriptionClosedError("the pull has ended"), discard=True)
        self.ended = True

    def hand_back(self, reason: NatsError) -> None:
        """end(), and nak what was not taken, in one write: other clients get it at once. Closes the box.

        The naks are for the present session alone: on a later one the server may have delivered the messages to
        other clients. So it may have where ack_wait has run out: what has lapsed is dropped, and without acks all
        of it. May be repeated, like end().
        """
        box = self.box
        if not self.acks or not isinstance(box, Mailbox) or self.link.forked:
            self.end()
            box.close(reason, discard=True)
            return
        if not self.ended:
            self.withdraw()
            self._draining = True
            self.link.leave(self)  # UNSUB before the naks: else they would come back here
        box.close(reason, into=self._not_taken)
        self._nak(self._not_taken, self._naks)
        self.ended = True

    def _nak(
        self, messages: list[RawMessage], encode: Callable[[list[RawMessage]], list[bytes]] = naks_for
    ) -> None:
        outbox = self.link.outbox
        outbox.send_all(messages, encode)
        outbox.flush()

    def _naks(self, not_taken: list[RawMessage]) -> list[bytes]:
        """For what was in the box when it was closed, but what has lapsed: that came first.

        Not `added`: the reader puts a run into the box first and counts it second.
        """
        lapsed = 0 if self.leases is None else self.leases.lapsed(monotonic())
        return naks_for(not_taken[max(0, lapsed - (self.delivered - len(not_taken))) :])

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
            if self.leases is not None:
                self.leases.mark(delivered, now, now)
            self._put(messages)
            return
        if self._sized:
            self.arrived += sum(message_size(raw) for raw in messages if type(raw) is not ArrivedStatus)
        else:
            self.arrived += len(messages) - statuses
        keep_alive, box = self.keep_alive, self.box
        asleep = keep_alive is not None and keep_alive.asleep
        taken_at_once = asleep and len(messages) == 1 and isinstance(box, Mailbox) and box.awaited
        self._put(messages)
        self.handed_over = (self.arrived, self.answers)
        # Looked at second: the keep-alive falls asleep first and looks at the box second.
        if keep_alive is not None and keep_alive.asleep and not taken_at_once:
            self._owner.rouse()

    def _put(self, messages: list[RawMessage]) -> None:
        """Into the box; back to the server if that was closed before. A link that says goodbye sends no more."""
        if self.box.put_run(messages):
            self.added = self.delivered
        elif self.acks and not self.link.closed:
            self._nak(list(messages))

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

    def closing(self, error: NatsError) -> None:
        if self._owner is not None:
            self._owner.closing(error)

    def closed(self, error: NatsError) -> None:
        if self._owner is not None:
            self._owner.closed(error)
        else:
            self.denied(error)
