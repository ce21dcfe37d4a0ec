"""Pull arithmetic: what is pending, when the next pull goes out, and how much it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync.consumers.pull_options import ConsumeOptions
from jetstream_sync.consumers.pull_state import Backoff, PullState
from jetstream_sync.consumers.status import Pending, classify
from jetstream_sync.protocol.headers import Status

NOTHING = Pending(None, None)
TIMEOUT = Status(408, "Request Timeout")
LEADERSHIP = Status(409, "Leadership Change")
LIMIT = Status(409, "Exceeded MaxRequestBatch of 5")
TOO_BIG = Status(409, "Message Size Exceeds MaxBytes")
HEARTBEAT = Status(100, "Idle Heartbeat")
WRONG_PIN = Status(423, "Nats-Wrong-Pin-Id")
NO_RESPONDERS = Status(503, "")


def make(**options: Any) -> PullState:
    return PullState(ConsumeOptions.make(**options))


def take(state: PullState, count: int, size: int = 0) -> None:
    """Messages come out of the mailbox and are processed."""
    state.received(size or count)
    state.processed(size or count)


def tell(state: PullState, status: Status, left: Pending = NOTHING, at: float = 1.0) -> None:
    state.status(classify(status), left, at)


def test_first_pull_fills_the_buffer() -> None:
    """The first pull asks for all of max_messages, or all of max_bytes with a formal batch; there is no second."""
    state = make(max_messages=500)
    assert state.take_pull(0.0) == 500
    assert state.take_pull(0.0) is None
    state = make(max_bytes=4096)
    assert state.take_pull(0.0) == 4096
    assert state.take_pull(0.0) is None


@pytest.mark.parametrize(
    ("limit", "threshold", "done", "expected"),
    [
        (10, None, 4, None),
        (10, None, 5, 5),
        (10, None, 6, 6),
        (10, None, 10, 10),
        (10, 1, 8, None),
        (10, 1, 9, 9),
        (10, 10, 0, None),
        (10, 10, 1, 1),
        (1, None, 0, None),
        (1, None, 1, 1),
        (2, None, 1, 1),
        (3, None, 1, None),
        (3, None, 2, 2),
    ],
)
def test_next_pull_comes_at_the_threshold(
    limit: int, threshold: int | None, done: int, expected: int | None
) -> None:
    """At the threshold or below it the buffer is filled again, above it not."""
    state = make(max_messages=limit, threshold_messages=threshold)
    state.take_pull(0.0)
    state.received(limit)
    due = state.processed(done)
    assert due == state.due == (expected is not None)
    assert state.take_pull(0.0) == expected
    assert state.pending == (limit if expected else limit - done)


@pytest.mark.parametrize(("size", "expected"), [(499, None), (500, 500), (1000, 1000)])
def test_next_pull_by_bytes_ignores_the_number_of_messages(size: int, expected: int | None) -> None:
    """With max_bytes only bytes count, whatever the number of messages."""
    state = make(max_bytes=1000)
    state.take_pull(0.0)
    take(state, 1, size)
    assert state.take_pull(0.0) == expected


def test_received_messages_stay_pending_until_processed() -> None:
    """A full mailbox is a full buffer: receiving alone frees nothing."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(10)
    assert (state.pending, state.outstanding) == (10, 0)
    assert state.take_pull(0.0) is None


def test_one_message_at_a_time_is_never_stuck() -> None:
    """A consume with max_messages=1 pulls again after each message, timeout, refusal and reset."""
    state = make(max_messages=1)
    for turn in range(100):
        assert state.take_pull(float(turn)) == 1
        if turn % 4 == 0:
            take(state, 1)
        elif turn % 4 == 1:
            tell(state, TIMEOUT, Pending(1, 0), turn + 30.0)
        elif turn % 4 == 2:
            tell(state, LIMIT, at=turn + 0.5)
        else:
            state.reset()


@pytest.mark.parametrize(
    "status",
    [TIMEOUT, TOO_BIG, Status(409, "Server Shutdown"), WRONG_PIN, Status(408, "Interest Expired")]
    + [Status(409, "Something New"), Status(777, ""), LEADERSHIP, HEARTBEAT],
)
def test_status_with_pending_headers_gives_back_exactly_that(status: Status) -> None:
    """Pending headers are subtracted whatever the status says; what was received stays."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(3)
    tell(state, status, Pending(7, 0), 30.0)
    assert (state.pending, state.outstanding) == (3, 0)
    assert state.take_pull(30.0) == 7


def test_status_with_pending_headers_by_bytes_takes_the_bytes() -> None:
    """With max_bytes the header for bytes is the one that counts."""
    state = make(max_bytes=1000)
    state.take_pull(0.0)
    take(state, 2, 700)
    tell(state, TOO_BIG, Pending(999_998, 300))
    assert state.pending == 0
    assert state.take_pull(2.0) == 1000


def test_status_with_absurd_pending_headers_never_goes_below_zero() -> None:
    """More given back than was asked for is all of it; negative numbers are read as 0 by pending_of."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(4)
    tell(state, TIMEOUT, Pending(10**18, 0), 30.0)
    assert (state.pending, state.outstanding) == (4, 0)
    tell(state, TIMEOUT, Pending(5, 0), 30.0)
    assert state.pending == 4


@pytest.mark.parametrize(
    "status",
    [Status(404, "No Messages"), Status(408, "Requests Pending"), LEADERSHIP, LIMIT, WRONG_PIN, NO_RESPONDERS]
    + [Status(423, "Nats-Pin-Id mismatch"), Status(400, "Bad Request - x"), Status(409, "New"), Status(777, "")],
)
def test_status_without_pending_headers_ends_the_only_pull(status: Status) -> None:
    """What the pull had outstanding is given back, what was received of it stays pending, and a pull is due."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(3)
    tell(state, status)
    assert (state.pending, state.outstanding) == (3, 0)
    assert state.take_pull(2.0) == 7


def test_status_heartbeat_ends_nothing() -> None:
    """A heartbeat leaves the counters alone."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    tell(state, HEARTBEAT)
    assert state.outstanding == 10


def two_pulls() -> PullState:
    """Pulls of 10 (6 of them received and processed) at 0 s and of 6 at 1 s."""
    state = make(max_messages=10)
    assert state.take_pull(0.0) == 10
    take(state, 6)
    assert state.take_pull(1.0) == 6
    return state


@pytest.mark.parametrize(
    ("status", "left"),
    [(LIMIT, 4), (NO_RESPONDERS, 0), (LEADERSHIP, 0), (WRONG_PIN, 0), (Status(404, "No Messages"), 6)],
)
def test_status_without_pending_headers_ends_its_pull_of_several(status: Status, left: int) -> None:
    """A refusal answers the newest pull, a later end the oldest, and a lost leader has lost them all."""
    state = two_pulls()
    tell(state, status, at=2.0)
    assert state.outstanding == left


@pytest.mark.parametrize(("status", "left"), [(LIMIT, 1 + 3), (LEADERSHIP, 3), (NO_RESPONDERS, 3)])
def test_status_does_not_end_pulls_published_after_it_arrived(status: Status, left: int) -> None:
    """A status that waited in the mailbox does not end a pull that was sent after it arrived."""
    state = make(max_messages=10, threshold_messages=10)
    state.take_pull(0.0)
    take(state, 6)
    state.take_pull(1.0)
    take(state, 3)  # the first pull has 1 left, the second 6
    assert state.take_pull(3.0) == 3
    tell(state, status, at=2.0)
    assert state.outstanding == left


def test_refusals_in_turn_end_one_pull_each() -> None:
    """Two refused pulls are given back by two statuses, not by one."""
    state = two_pulls()
    tell(state, LIMIT, at=2.0)
    assert state.outstanding == 4
    assert state.take_pull(2.0) == 6
    tell(state, LIMIT, at=3.0)
    assert state.outstanding == 4


def test_exact_fit_of_max_bytes_needs_no_status() -> None:
    """When the messages use up max_bytes to the byte no status comes: counting bytes sees the end."""
    state = make(max_bytes=1000)
    for turn in range(50):
        assert state.take_pull(float(turn)) == 1000
        take(state, 3, 1000)
        assert state.outstanding == 0


def test_message_larger_than_the_free_bytes_waits_for_more_room() -> None:
    """A message that did not fit beside what is held is not asked for again until more is free."""
    state = make(max_bytes=1000)
    state.take_pull(0.0)
    state.received(100)
    tell(state, TOO_BIG, Pending(999_999, 900))
    assert state.take_pull(1.0) is None  # 900 free, which is known to be too little
    assert state.processed(100)
    assert state.take_pull(1.0) == 1000


def test_message_larger_than_max_bytes_still_pulls() -> None:
    """Offered the whole buffer and refused, the consume pulls again (its owner backs off) and later goes on."""
    state = make(max_bytes=1000)
    for _ in range(3):
        assert state.take_pull(0.0) == 1000
        tell(state, TOO_BIG, Pending(1_000_000, 1000))
    state.take_pull(0.0)
    take(state, 1, 600)
    assert state.take_pull(0.0) == 600


def test_more_received_than_asked_for_is_held_too() -> None:
    """Messages that were not asked for occupy the buffer all the same."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(14)
    assert (state.pending, state.outstanding) == (14, 0)
    state.processed(8)
    assert state.take_pull(0.0) is None
    state.processed(1)
    assert state.take_pull(0.0) == 5


def test_reset_forgets_pulls_but_not_messages() -> None:
    """After a reconnect the new pull leaves room for what is held and what is unread."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.received(2)
    state.reset(3)
    assert (state.pending, state.outstanding) == (5, 3)
    assert state.take_pull(1.0) == 5
    take(state, 3)
    state.processed(2)
    assert (state.pending, state.outstanding) == (5, 5)


def test_reset_by_bytes_takes_the_unread_bytes() -> None:
    """With max_bytes it is the bytes in the mailbox that count."""
    state = make(max_bytes=1000)
    state.take_pull(0.0)
    state.reset(400)
    assert state.take_pull(1.0) == 600


@pytest.mark.parametrize("resets", [1, 2, 50])
def test_reset_again_and_again_does_not_drift(resets: int) -> None:
    """However often the connection breaks, the pull after it is a full one."""
    state = make(max_messages=10)
    for turn in range(resets):
        assert state.take_pull(float(turn)) == 10
        state.reset()
    assert state.pending == 0


def test_timeout_of_a_pull_from_before_a_reset_gives_nothing_back() -> None:
    """After a quick reconnect the server may still have the old pull; its timeout does not end the new pull."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.reset()
    assert state.take_pull(10.0) == 10
    tell(state, TIMEOUT, Pending(10, 0), 30.0)
    assert state.outstanding == 10
    assert state.take_pull(30.0) is None
    tell(state, TIMEOUT, Pending(10, 0), 40.0)
    assert state.outstanding == 0
    assert state.take_pull(40.0) == 10


@pytest.mark.parametrize(
    "status", [Status(409, "Server Shutdown"), TIMEOUT, TOO_BIG, LEADERSHIP, LIMIT, WRONG_PIN]
)
@pytest.mark.parametrize("left", [Pending(6, 6), NOTHING])
def test_status_from_before_a_reset_gives_nothing_back(status: Status, left: Pending) -> None:
    """The status of a shutdown that is read after the reconnect ends neither the new pull nor unread messages."""
    state = make(max_messages=10)
    state.take_pull(0.0)
    state.reset(4)
    assert state.take_pull(2.0) == 6
    tell(state, status, left, at=1.0)
    take(state, 4)
    tell(state, status, left, at=1.0)
    assert state.outstanding == 6


def test_timeout_of_the_older_of_two_pulls_served_in_turn() -> None:
    """The server serves waiting pulls in turn, so the older one may have more left than its order suggests."""
    state = two_pulls()
    take(state, 4)  # two from each: the older has 2 left, the younger 4
    tell(state, TIMEOUT, Pending(2, 0), 30.0)
    assert state.outstanding == 4


def test_pull_that_never_ended_is_given_up_after_its_time() -> None:
    """The pulls of a killed leader count as lost after expires and its grace."""
    state = two_pulls()
    tell(state, HEARTBEAT, at=32.9)
    assert state.outstanding == 10
    tell(state, HEARTBEAT, at=33.0)
    assert state.outstanding == 6
    tell(state, HEARTBEAT, at=34.0)
    assert state.outstanding == 0


def test_runs_of_messages_count_like_single_ones() -> None:
    """Reporting a run at once and message by message come to the same."""
    one, run = make(max_messages=8), make(max_messages=8)
    one.take_pull(0.0)
    run.take_pull(0.0)
    for _ in range(4):
        take(one, 1)
    take(run, 4)
    assert one.take_pull(1.0) == run.take_pull(1.0) == 4


def refuse_for(backoff: Backoff, start: float, length: float, deliver: bool = False) -> list[float]:
    """The times of the pulls that go out when each is refused at once."""
    now, pulls = start, []
    while now < start + length:
        now += backoff.remaining(now)
        pulls.append(now)
        if deliver:
            backoff.delivered()
        backoff.refused(now)
    return pulls


@pytest.mark.parametrize("deliver", [False, True])
def test_backoff_allows_at_most_five_pulls_per_second(deliver: bool) -> None:
    """Refused again and again, also with messages in between, no second has more than five pulls."""
    pulls = refuse_for(Backoff(), 50.0, 20.0, deliver)
    for start in pulls:
        assert sum(start <= at < start + 1.0 for at in pulls) <= 5
    assert pulls[:2] == [50.0, 50.0]


def test_backoff_grows_to_a_second() -> None:
    """At once, then after 0.25 s, 0.5 s, and every second: an election's end is seen within one."""
    pulls = refuse_for(Backoff(), 0.0, 4.0)
    assert pulls == pytest.approx([0.0, 0.0, 0.25, 0.75, 1.75, 2.75, 3.75, 4.75])


def test_backoff_starts_over_after_a_message() -> None:
    """After a delivered message, the pull after the next refusal is sent at once."""
    backoff = Backoff()
    refuse_for(backoff, 0.0, 10.0)
    assert backoff.refusals > 5
    backoff.delivered()
    assert backoff.refusals == 0
    backoff.refused(60.0)
    assert backoff.remaining(60.0) == 0.0
    backoff.refused(60.0)
    assert backoff.remaining(60.0) == pytest.approx(0.25)


def test_backoff_reset_lets_the_next_pull_out_at_once() -> None:
    """After a reconnect the next pull is sent at once, whatever was refused before."""
    backoff = Backoff()
    refuse_for(backoff, 0.0, 10.0)
    backoff.reset()
    assert backoff.remaining(10.0) == 0.0


@pytest.mark.parametrize(
    ("ended_after", "delivered", "waits"),
    [(0.0, False, 0.25), (0.1, False, 0.15), (0.25, False, 0.0), (30.0, False, 0.0), (0.0, True, 0.0)],
)
def test_backoff_after_a_pull_that_ended_in_order(ended_after: float, delivered: bool, waits: float) -> None:
    """A pull that delivered nothing is followed by the next no sooner than 0.25 s after it was sent."""
    backoff = Backoff()
    backoff.ended(40.0)
    if delivered:
        backoff.delivered()
    backoff.ended(50.0)
    assert backoff.remaining(50.0 + ended_after) == pytest.approx(waits)
    backoff.delivered()
    assert backoff.remaining(50.0 + ended_after) == 0.0


def test_backoff_after_a_delivering_pull_counts_anew() -> None:
    """Messages before one end say nothing about the next pull."""
    backoff = Backoff()
    backoff.delivered()
    backoff.ended(1.0)
    backoff.ended(2.0)
    assert backoff.remaining(2.0) == pytest.approx(0.25)


def test_backoff_never_overflows() -> None:
    """Refused for days, the delay is still a second."""
    backoff = Backoff()
    for turn in range(5000):
        backoff.refused(float(turn))
    assert backoff.remaining(4999.0) <= 1.0
