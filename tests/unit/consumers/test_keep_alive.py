"""KeepAlive and Progress: which messages need more time, by counts alone."""

from __future__ import annotations

import random
from collections import deque

import pytest

from jetstream_sync._deadline import FOREVER
from jetstream_sync.api.message import JetStreamMessage, naks_for, progress_for, raws_of
from jetstream_sync.consumers.keep_alive import LOOKS_PER_ACK_WAIT, SHORTEST_PERIOD, KeepAlive, Leases
from jetstream_sync.consumers.progress import Progress

RAW = (b"s.x", b"$JS.ACK.S.C.1.1.1.0.0", None, b"x")


@pytest.mark.parametrize(("ack_wait", "period"), [(30.0, 5.0), (2.0, 2 / 6), (0.3, 0.05), (0.01, SHORTEST_PERIOD)])
def test_looks_six_times_per_ack_wait(ack_wait: float, period: float) -> None:
    """But not more often than every 50 ms."""
    assert KeepAlive(ack_wait, 0.0).period == pytest.approx(period)


def test_only_what_was_there_at_the_look_before_is_old() -> None:
    """What was added since is at the end of the buffer, whatever was taken from its front."""
    keep_alive = KeepAlive(6.0, 0.0)
    assert keep_alive.look(1.0, added=10, buffered=10) == 0
    assert keep_alive.look(2.0, added=10, buffered=9) == 9
    assert keep_alive.look(3.0, added=15, buffered=12) == 7
    assert keep_alive.look(4.0, added=115, buffered=50) == 0  # all that was there is taken
    assert keep_alive.look(5.0, added=115, buffered=0) == 0


def test_pauses_when_nothing_is_handed_out_for_ack_wait() -> None:
    """A handler that hangs holds its buffer for ack_wait; one that goes on, or is at work, keeps it."""
    keep_alive = KeepAlive(6.0, 0.0)
    assert keep_alive.look(1.0, 5, 4) == 0
    assert [keep_alive.look(now, 5, 4) for now in (2.0, 6.0, 7.0, 7.1, 8.0)] == [4, 4, 4, 0, 0]
    assert keep_alive.hangs(8.0)
    assert keep_alive.look(9.0, 5, 4, at_work=True) == 4
    assert keep_alive.look(10.0, 5, 4) == 0
    assert keep_alive.look(11.0, 5, 3) == 3  # one was taken
    assert not keep_alive.hangs(11.0)


def test_sleeps_without_a_timer_until_roused() -> None:
    """Roused before the next look would have been due, it waits for that: at most one look in each period."""
    keep_alive = KeepAlive(6.0, 0.0)
    assert keep_alive.remaining(5.0) == FOREVER
    keep_alive.rouse()
    assert keep_alive.remaining(5.0) == 0.0
    keep_alive.look(5.0, 1, 0)
    keep_alive.sleep()
    assert keep_alive.remaining(5.1) == FOREVER
    keep_alive.rouse()
    assert keep_alive.remaining(5.25) == pytest.approx(0.75)


@pytest.mark.parametrize("seed", range(20))
def test_model_what_is_handed_out_has_two_thirds_of_its_time_left(seed: int) -> None:
    """Random arrivals and handlers no slower than ack_wait: no message waits for more than a third without
    in_progress, and nothing gets one that came since the look before."""
    rng = random.Random(seed)
    ack_wait = 6.0
    keep_alive = KeepAlive(ack_wait, 0.0)
    buffer: deque[float] = deque()  # since when each message's time runs
    arrived_at: deque[float] = deque()
    added = 0
    handler_free, next_look, last_look = 0.0, keep_alive.period, 0.0
    now = 0.0
    pace = rng.choice((0.05, 0.3, 2.0, 5.9))
    while now < 300.0:
        now += rng.random() * 0.05
        if rng.random() < 0.02 and len(buffer) < 500:
            count = rng.choice((1, 1, 5, 100))
            buffer.extend([now] * count)
            arrived_at.extend([now] * count)
            added += count
        while buffer and handler_free <= now:
            assert now - buffer.popleft() <= ack_wait / 3 + 0.06
            arrived_at.popleft()
            handler_free = now + rng.random() * pace
        if now >= next_look:
            old = keep_alive.look(now, added, len(buffer))
            assert old == sum(1 for arrived in arrived_at if arrived <= last_look)
            for index in range(old):
                buffer[index] = now
            last_look, next_look = now, now + ack_wait / LOOKS_PER_ACK_WAIT


def test_progress_is_due_for_what_was_held_at_the_look_before() -> None:
    """Not for what is released, acknowledged or taken out; each message that begins rouses the keep-alive."""
    roused = []
    progress = Progress(lambda: roused.append(True))
    first, second = JetStreamMessage(RAW), JetStreamMessage(RAW)
    progress.hold(first)
    assert (progress.due(), progress.at_work, len(roused)) == ([], True, 1)
    progress.hold(second)
    assert progress.due() == [first]
    assert progress.due() == [first, second]
    progress.release(first)
    progress.release(first)
    assert progress.due() == [second]
    second._done = True
    assert (progress.due(), progress.at_work) == ([], False)
    progress.hold(first)
    progress.release_all()
    assert (progress.due(), progress.at_work) == ([], False)


def test_frames_for_messages_as_they_came() -> None:
    """Statuses, and messages that did not come from JetStream, get none."""
    status = (b"_INBOX.1", None, b"NATS/1.0 100\r\n\r\n", b"")
    stranger = (b"s.x", b"reply.here", None, b"x")
    assert naks_for([RAW, status, stranger]) == [b"PUB $JS.ACK.S.C.1.1.1.0.0 4\r\n-NAK\r\n"]
    assert progress_for(raws_of([JetStreamMessage(RAW)])) == [b"PUB $JS.ACK.S.C.1.1.1.0.0 4\r\n+WPI\r\n"]


def test_leases_lapse_in_the_order_of_arrival() -> None:
    leases = Leases(ack_wait=6.0)
    leases.mark(5, at=1.0, now=1.0)
    leases.mark(8, at=2.0, now=2.0)
    assert [leases.lapsed(now) for now in (6.9, 7.0, 8.0)] == [0, 5, 8]
    leases.mark(9, at=7.5, now=7.5)  # forgets what it need not know any more
    assert [leases.lapsed(now) for now in (7.5, 8.0, 13.5)] == [5, 8, 9]


def test_renewed_leases_last_longer_unless_they_had_lapsed() -> None:
    leases = Leases(ack_wait=6.0)
    leases.mark(5, at=1.0, now=1.0)
    leases.mark(8, at=2.0, now=2.0)
    leases.renew(10, at=7.0, now=7.5)
    assert [leases.lapsed(now) for now in (7.5, 12.9, 13.0)] == [5, 5, 10]


@pytest.mark.parametrize("why", ["hang", "outage"])
def test_what_is_not_kept_alive_lapses(why: str) -> None:
    """What came later lapses later, and what has lapsed stays so when the handler, or the connection, is back."""
    keep_alive = KeepAlive(6.0, 0.0)
    keep_alive.look(1.0, added=10, buffered=10)
    for now in range(2, 20):
        taken = 0 if why == "hang" else now
        keep_alive.look(float(now), added=10, buffered=10 - min(taken, 9), connected=why == "hang" or now < 7)
    assert keep_alive.leases.lapsed(19.0) == 10
    keep_alive.look(20.0, added=30, buffered=11)
    assert keep_alive.leases.lapsed(20.0) == 10
    assert keep_alive.look(21.0, added=30, buffered=10) == 10
    assert keep_alive.leases.lapsed(25.9) == 10


def test_kept_alive_does_not_lapse() -> None:
    keep_alive = KeepAlive(6.0, 0.0)
    for now in range(1, 100):
        keep_alive.look(float(now), added=200, buffered=200 - now)
        assert keep_alive.leases.lapsed(float(now)) == 0


def test_what_came_while_the_keep_alive_slept_has_not_lapsed() -> None:
    keep_alive = KeepAlive(6.0, 0.0)
    keep_alive.look(1.0, added=3, buffered=0)
    keep_alive.sleep()
    assert keep_alive.leases.lapsed(1000.0) == 3
    keep_alive.rouse()
    assert keep_alive.leases.lapsed(1000.0) == 3  # taken long ago
    keep_alive.look(1000.0, added=503, buffered=500)
    assert keep_alive.leases.lapsed(1000.0) == 3
