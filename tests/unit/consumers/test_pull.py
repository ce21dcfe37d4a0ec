"""Pull: its states, what ends it, what it counts; without a connection."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jetstream_sync._deadline import Deadline
from jetstream_sync._threads import Mailbox, Slot
from jetstream_sync.consumers.heartbeat import HeartbeatClock
from jetstream_sync.consumers.pull import ArrivedStatus, Pull
from jetstream_sync.consumers.pull_options import Priority, message_size
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    MissedHeartbeatError,
    NatsError,
    NotConnectedError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from jetstream_sync.net.server_errors import server_error
from jetstream_sync.protocol.parser import RawMessage
from tests.support.links import FakeLink, FakeTarget

DENIED = server_error('Permissions Violation for Subscription to "_INBOX.1"')
NOW = Deadline(0.0)


@pytest.fixture
def fake() -> FakeLink:
    return FakeLink()


@pytest.fixture
def pull(fake: FakeLink) -> Pull:
    return Pull(FakeTarget(fake), Mailbox())


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def disconnected(self) -> None:
        self.told.append("disconnected")

    def reconnected(self) -> None:
        self.told.append("reconnected")

    def closed(self, error: NatsError) -> None:
        self.told.append(error)

    def publish_denied(self, error: PermissionsError) -> None:
        self.told.append(error)


def message(number: int = 1, block: bytes | None = None) -> RawMessage:
    return (b"s.x", b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number), block, b"%d" % number)


def status(pull: Pull, text: bytes) -> RawMessage:
    return (pull.reply, None, b"NATS/1.0 " + text + b"\r\n\r\n", b"")


def test_first_request_subscribes(fake: FakeLink, pull: Pull) -> None:
    assert fake.wire == []
    pull.ask(b'{"batch":1}')
    pull.ask(b'{"batch":2}')
    assert fake.wire == [b"SUB _INBOX.1 1\r\n"]
    assert fake.outbox.sent == [
        b'PUB $JS.API.CONSUMER.MSG.NEXT.S.C _INBOX.1 11\r\n{"batch":%d}\r\n' % batch for batch in (1, 2)
    ]


def test_limit_leaves_with_the_subscription_or_later(fake: FakeLink) -> None:
    """Given at first it is part of the SUB; later it is an UNSUB of its own that counts what has come."""
    fake.open(Pull(FakeTarget(fake), Slot(), limit=1))
    later = Pull(FakeTarget(fake), Mailbox())
    fake.open(later)
    fake.limit(later, 5)
    assert fake.wire == [b"SUB _INBOX.1 1\r\n", b"UNSUB 1 1\r\n", b"SUB _INBOX.2 2\r\n", b"UNSUB 2 5\r\n"]


def test_pull_that_got_all_of_its_limit_sends_no_unsub(fake: FakeLink) -> None:
    pull = Pull(FakeTarget(fake), Slot(), limit=1)
    pull.ask(b"{}")
    pull.deliver([message()], 1)
    assert pull.wait(NOW) == message()
    pull.end()
    assert fake.wire == [b"SUB _INBOX.1 1\r\n", b"UNSUB 1 1\r\n"]
    assert fake.receivers == {}
    assert fake.outbox.withdrawn == []


def test_end_takes_the_request_back_and_drops_what_came(fake: FakeLink, pull: Pull) -> None:
    pull.ask(b"{}")
    pull.deliver([message()], 1)
    for _ in range(2):
        pull.end()
        assert pull.ended
        assert len(pull.box.items) == 0  # type: ignore[union-attr]
    assert fake.wire == [b"SUB _INBOX.1 1\r\n", b"UNSUB 1\r\n"]
    assert fake.outbox.withdrawn[:1] == fake.outbox.sent
    with pytest.raises(SubscriptionClosedError):
        pull.wait(NOW)


def test_end_in_a_forked_child_does_nothing(fake: FakeLink, pull: Pull) -> None:
    pull.ask(b"{}")
    fake.forked = True
    pull.end()
    assert not pull.ended
    assert list(fake.receivers.values()) == [pull]


def test_disconnect_ends_an_asked_pull_behind_what_came(fake: FakeLink, pull: Pull) -> None:
    pull.ask(b"{}")
    pull.deliver([message()], 1)
    pull.disconnected()
    assert pull.broken
    assert pull.wait(NOW) == message()
    with pytest.raises(ConnectionLostError, match="lost during the pull"):
        pull.wait(NOW)
    assert fake.receivers == {}
    assert b"UNSUB 1\r\n" not in fake.wire  # there is no session to send it in


def test_disconnect_leaves_an_idle_pull_alone(fake: FakeLink, pull: Pull) -> None:
    """Open and not asked, or asked and answered: it is subscribed again, and may be asked again."""
    fake.open(pull)
    pull.disconnected()
    assert (pull.broken, pull.remaining()) == (False, 0)
    pull.ask(b"{}")
    pull.rest()
    pull.disconnected()
    assert not pull.broken
    assert list(fake.receivers.values()) == [pull]


def test_owner_is_told_in_place_of_the_box(fake: FakeLink) -> None:
    owner = Owner()
    box: Mailbox[RawMessage] = Mailbox()
    pull = Pull(FakeTarget(fake), box, owner)
    pull.ask(b"{}")
    pull.disconnected()
    pull.reconnected()
    pull.publish_denied(b"another", DENIED)
    pull.publish_denied(pull.target.next_subject, DENIED)
    error = ConnectionClosedError()
    pull.closed(error)
    assert owner.told == ["disconnected", "reconnected", DENIED, error]
    pull.end()
    assert not box.closed
    pull.denied(DENIED)  # of the inbox: the owner finds it in the box
    assert box.closed


@pytest.mark.parametrize("what", ["denied", "publish_denied", "closed"])
def test_what_the_server_refuses_is_raised_behind_what_came(pull: Pull, what: str) -> None:
    pull.ask(b"{}")
    pull.deliver([message()], 1)
    if what == "denied":
        pull.denied(DENIED)
    elif what == "closed":
        pull.closed(ConnectionClosedError())
    else:
        pull.publish_denied(pull.target.next_subject, DENIED)
    assert pull.broken
    assert pull.wait(NOW) == message()
    with pytest.raises(ConnectionClosedError if what == "closed" else PermissionsError):
        pull.wait(NOW)


def test_statuses_are_marked_with_their_time_and_counted_apart(fake: FakeLink) -> None:
    pull = Pull(FakeTarget(fake), Mailbox(), Owner())
    before = time.monotonic()
    run = [message(1), status(pull, b"100 Idle Heartbeat"), message(2), status(pull, b"409 Consumer Deleted")]
    pull.deliver(list(run), 10)
    got = [pull.wait(NOW) for _ in run]
    assert got == run
    assert [type(raw) is ArrivedStatus for raw in got] == [False, True, False, True]
    last = got[3]
    assert isinstance(last, ArrivedStatus)
    assert (last.status.code, last.status.description) == (409, "Consumer Deleted")
    assert before <= last.arrived == pull.last_arrival <= time.monotonic()
    assert (pull.delivered, pull.arrived, pull.answers, pull.handed_over) == (4, 2, 1, (2, 1))
    assert pull.conclusion is last


def test_user_message_that_looks_like_a_status_is_none(pull: Pull) -> None:
    """Only what came on the inbox itself, without an ack subject, is a status."""
    forged = [
        message(1, b"NATS/1.0 409 Consumer Deleted\r\n\r\n"),
        (pull.reply, *message(2, b"NATS/1.0 408\r\n\r\n")[1:]),
    ]
    pull.deliver(list(forged), 10)
    assert [type(pull.wait(NOW)) for _ in forged] == [tuple, tuple]


def test_sized_pull_counts_bytes(fake: FakeLink) -> None:
    pull = Pull(FakeTarget(fake), Mailbox(), Owner(), sized=True)
    pull.deliver([message(1), status(pull, b"404 No Messages"), message(2)], 10)
    assert pull.arrived == 2 * message_size(message(1))


def test_wait_says_why_nothing_came(fake: FakeLink, pull: Pull) -> None:
    pull.ask(b"{}")
    with pytest.raises(TimeoutError):
        pull.wait(NOW)
    fake.connected = False
    with pytest.raises(NotConnectedError, match="pull from consumer 'C' of stream 'S'"):
        pull.wait(NOW)
    with pytest.raises(NotConnectedError, match="no message came"):  # an owner waits for the next session
        Pull(FakeTarget(fake), Mailbox(), Owner()).wait(NOW)


def test_silence_is_an_alarm_only_while_connected(fake: FakeLink, pull: Pull) -> None:
    pull.ask(b"{}")
    with pytest.raises(MissedHeartbeatError):
        pull.wait(Deadline(5), HeartbeatClock(0.02, clock=time.monotonic))
    fake.connected = False
    with pytest.raises(NotConnectedError):
        pull.wait(Deadline(0.15), HeartbeatClock(0.02, clock=time.monotonic))


def test_drained_pull_is_not_subscribed_again(fake: FakeLink, pull: Pull) -> None:
    fake.open(pull)
    pull.drain(Deadline(1))
    assert fake.wire[-1] == b"UNSUB 1\r\n"
    assert pull.remaining() == -1


def test_pin_is_learnt_and_dropped() -> None:
    target = FakeTarget(FakeLink())
    priority = Priority("A")
    assert target.inspector(Priority()) is None
    inspect = target.inspector(priority)
    assert inspect is not None
    assert inspect(message()) is True
    assert target.pin_id(priority) is None
    assert inspect(message(2, b"NATS/1.0\r\nNats-Pin-Id: p1\r\n\r\n")) is True
    assert target.pin_id(priority) == "p1"
    target.drop_pin(priority)
    assert target.pin_id(priority) is None
