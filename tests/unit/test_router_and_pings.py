"""Router and Pings: the pure parts of a connection."""

from __future__ import annotations

from jetstream_sync.net.pings import Pings
from jetstream_sync.net.receiver import Receiver
from jetstream_sync.net.requests import ReplyWaiter
from jetstream_sync.net.router import Router


class Limited(Receiver):
    """A receiver with a limit of so many messages."""

    def __init__(self, subject: bytes, left: int = 0, queue: bytes | None = None) -> None:
        self.wire_subject = subject
        self.wire_queue = queue
        self.left = left

    def remaining(self) -> int:
        return self.left


def test_receivers_get_new_sids_and_their_interest() -> None:
    """Each SUB has a sid of its own; a limit follows as UNSUB."""
    router = Router()
    assert router.add(Limited(b"a")) == b"SUB a 1\r\n"
    assert router.add(Limited(b"b", 3, b"q")) == b"SUB b q 2\r\nUNSUB 2 3\r\n"
    assert list(router.receivers) == [b"1", b"2"]


def test_removed_receiver_is_not_held() -> None:
    """Removing is idempotent, and does not touch another receiver under the same sid."""
    router, first, stranger = Router(), Limited(b"a"), Limited(b"a")
    router.add(first)
    stranger.sid = first.sid
    router.remove(stranger)
    assert router.holds(first)
    router.remove(first)
    router.remove(first)
    assert not router.holds(first)


def test_resubscriptions_leave_out_what_has_ended() -> None:
    """After a reconnect the rest of a limit is asked for; a receiver that wants nothing more is forgotten."""
    router, whole, rest, ended = Router(), Limited(b"a"), Limited(b"b"), Limited(b"c")
    for receiver in (whole, rest, ended):
        router.add(receiver)
    rest.left, ended.left = 2, -1
    assert router.resubscriptions() == b"SUB a 1\r\nSUB b 2\r\nUNSUB 2 2\r\n"
    assert router.snapshot() == [whole, rest]


def test_pongs_go_to_their_waiters_in_order() -> None:
    """PONGs are told apart by their order; one of the keep-alive has no waiter."""
    pings, first, second = Pings(10, 2), ReplyWaiter(), ReplyWaiter()
    pings.waiters.extend([first, None, second])
    assert [pings.pong() for _ in range(4)] == [first, None, second, None]


def test_keep_alive_is_due_once_per_interval_and_stale_beyond_its_limit() -> None:
    """A PING per interval; with more unanswered than allowed the session is stale, until a PONG comes."""
    now = 0.0
    pings = Pings(10, 2, lambda: now)
    assert (pings.due(), pings.wait_time()) == (False, 10)
    for unanswered in (1, 2, 3):
        now = 10.0 * unanswered
        assert pings.due()
        assert not pings.due()
        assert pings.stale == (unanswered == 3)
    pings.pong()
    assert not pings.stale
