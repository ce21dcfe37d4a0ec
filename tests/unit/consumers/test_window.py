"""The automatic window: how many messages are pending at most, and when the next pull is due."""

from __future__ import annotations

import pytest

from jetstream_sync.consumers.pull_options import ConsumeOptions
from jetstream_sync.consumers.pull_state import PullState, Window
from jetstream_sync.consumers.status import Pending, classify
from jetstream_sync.protocol.headers import Status


def consume(state: PullState, count: int, seconds: float) -> None:
    """Messages come, are held for `seconds` each, and are done with."""
    for _ in range(count):
        state.received(1)
        state.processed(1, seconds)


def automatic(window: Window) -> PullState:
    return PullState(ConsumeOptions.make(), window)


@pytest.mark.parametrize(
    ("ack_wait", "span"), [(30.0, 1.0), (6.0, 1.0), (5.9, 5.9 / 6), (2.0, 1 / 3), (0.3, 0.05), (3600.0, 1.0)]
)
def test_span_is_a_sixth_of_ack_wait_and_at_most_a_second(ack_wait: float, span: float) -> None:
    """The time for which a message may wait behind others."""
    assert Window(1, ack_wait).span == pytest.approx(span)


@pytest.mark.parametrize(
    ("workers", "max_ack_pending", "ceiling"),
    [
        (1, 0, 500),
        (1, -1, 500),
        (1, 1000, 500),
        (1, 500, 500),
        (1, 499, 499),
        (1, 1, 1),
        (4, 2, 4),
        (600, 0, 600),
        (600, 20, 600),
    ],
)
def test_ceiling(workers: int, max_ack_pending: int, ceiling: int) -> None:
    """500, or max_ack_pending if that is a limit and smaller, but one message for each worker."""
    assert Window(workers, 30.0, max_ack_pending).ceiling == ceiling


@pytest.mark.parametrize(
    ("workers", "size", "threshold"),
    [
        (1, 1, 0),
        (1, 2, 1),
        (1, 3, 2),
        (1, 4, 2),
        (1, 5, 3),
        (1, 500, 250),
        (4, 4, 3),
        (4, 5, 4),
        (4, 8, 6),
        (4, 500, 252),
        (8, 8, 7),
    ],
)
def test_threshold_leaves_no_worker_idle(workers: int, size: int, threshold: int) -> None:
    """With one message per worker a pull is due as soon as one of them is done."""
    window = Window(workers, 30.0)
    window.size = size
    assert window.threshold == threshold


@pytest.mark.parametrize(
    ("workers", "ack_wait", "seconds", "sizes"),
    [
        (1, 30.0, 0.0, [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]),
        (1, 30.0, 0.001, [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]),
        (1, 30.0, 0.06, [1, 2, 4, 8, 16, 17, 17]),
        (1, 30.0, 0.1, [1, 2, 4, 8, 11, 11]),
        (1, 30.0, 0.9, [1, 2, 2, 2]),
        (1, 30.0, 1.01, [1, 1, 1]),
        (1, 2.0, 0.02, [1, 2, 4, 8, 16, 17, 17]),
        (1, 2.0, 0.2, [1, 2, 2]),
        (1, 2.0, 0.5, [1, 1, 1]),
        (4, 2.0, 0.06, [4, 8, 16, 26, 26]),
        (4, 30.0, 0.001, [4, 8, 16, 32, 64, 128, 256, 500, 500]),
        (8, 2.0, 1.0, [8, 10, 10]),
        (8, 2.0, 10.0, [8, 8]),
    ],
)
def test_size_at_a_steady_pace(workers: int, ack_wait: float, seconds: float, sizes: list[int]) -> None:
    """Doubles with each pull, up to what the workers handle in `span` beside one each."""
    window = Window(workers, ack_wait)
    state = automatic(window)
    seen = []
    for _ in sizes:
        asked = state.take_pull(0.0)
        assert asked is not None
        assert state.pending == state.limit == window.size
        seen.append(window.size)
        while not state.due:
            consume(state, 1, seconds)
    assert seen == sizes


def test_first_pull_asks_for_one_message_per_worker() -> None:
    """Nothing is known yet."""
    assert automatic(Window(1, 30.0)).take_pull(0.0) == 1
    assert automatic(Window(6, 30.0)).take_pull(0.0) == 6


def test_without_acks_the_window_is_the_ceiling_at_once() -> None:
    """Nothing comes again, so nothing is measured."""
    state = automatic(Window(1, 30.0, acks=False))
    assert not state.measured
    assert state.take_pull(0.0) == 500
    state.received(250)
    assert state.processed(250)
    assert state.take_pull(0.0) == 250
    assert state.limit == 500


def test_first_sample_is_taken_as_it_is_and_later_ones_by_their_number() -> None:
    """hold += (sample - hold) * (1 - (7/8)^count)."""
    window = Window(1, 30.0)
    window.report(4, 2.0)
    assert window.hold == 0.5
    window.report(1, 0.1)
    assert window.hold == pytest.approx(0.5 + (0.1 - 0.5) / 8)
    before = window.hold
    window.report(32, 32 * 0.2)
    assert window.hold == pytest.approx(before + (0.2 - before) * (1 - (7 / 8) ** 32))


@pytest.mark.parametrize("hold", [0.0, 5e-324, 1e-300])
def test_hold_of_nothing_means_the_ceiling(hold: float) -> None:
    """Also where a division overflows."""
    window = Window(1, 30.0)
    window.size = 400
    window.report(1, hold)
    window.resize()
    assert window.size == 500


def test_without_a_new_sample_the_size_stays() -> None:
    """Pulls that bring nothing, because they expire or are refused, do not make the window grow."""
    window = Window(1, 30.0)
    state = automatic(window)
    state.take_pull(0.0)
    consume(state, 1, 0.001)
    for at in (100.0, 200.0, 300.0):
        assert state.take_pull(at) == 2
        state.status(classify(Status(408, "Request Timeout")), Pending(2, 0), at + 30.1)
    assert window.size == 2
    assert state.take_pull(400.0) == 2
    state.reset()  # after a reconnect or missed heartbeats
    assert state.take_pull(500.0) == 2
    assert window.size == 2


def test_messages_of_unknown_duration_are_no_sample() -> None:
    """Lost to a signal handler: done with, but not by the handler."""
    window = Window(1, 30.0)
    state = automatic(window)
    state.take_pull(0.0)
    state.received(1)
    assert state.processed(1)
    assert state.take_pull(0.0) == 1
    assert window.hold is None


def test_shrunk_window_waits_until_less_is_pending() -> None:
    """No pull goes out while more is pending than the new threshold; the mark moves down instead."""
    window = Window(1, 30.0)
    state = automatic(window)
    while window.size < 500:
        state.take_pull(0.0)
        while not state.due:
            consume(state, 1, 0.001)
    state.take_pull(0.0)
    assert state.pending == 500
    consume(state, 250, 0.099)
    assert state.due
    assert state.take_pull(0.0) is None
    assert (window.size, window.threshold) == (11, 6)
    assert not state.due
    assert state.until_due == 250 - 6
    consume(state, 243, 0.099)
    assert state.take_pull(0.0) is None
    consume(state, 1, 0.099)
    assert state.take_pull(0.0) == 5
    assert state.pending == 11


def test_reports_cover_up_to_32_messages() -> None:
    """Messages counted one by one, by several workers, make one sample; a pull that is due ends it."""

    class Noted(Window):
        def report(self, count: int, busy: float) -> None:
            noted.append((count, round(busy, 6)))
            super().report(count, busy)

    noted: list[tuple[int, float]] = []
    window = Noted(1, 30.0)
    window.size = 500
    state = automatic(window)
    state.take_pull(0.0)
    consume(state, 40, 0.5)
    state.received(30)
    state.processed(30, 3.0)  # more than what fits beside the eight
    consume(state, 180, 0.0)
    assert state.due
    assert noted == []
    state.take_pull(0.0)
    assert noted[:3] == [(32, 16.0), (8, 4.0), (32, 3.0)]
    assert [count for count, _ in noted] == [32, 8, 32, 32, 32, 32, 32, 32, 18]


def test_ten_pulls_to_full_size() -> None:
    """What the slow start costs a fast consumer."""
    window = Window(1, 30.0)
    state = automatic(window)
    pulls = 0
    while window.size < window.ceiling:
        assert state.take_pull(0.0) is not None
        pulls += 1
        while not state.due:
            consume(state, 1, 0.000_003)
    assert pulls == 10
