"""The heartbeat clock: silence by arrival time, repeated alarms, pauses."""

from __future__ import annotations

import pytest

from jetstream_sync.consumers.heartbeat import PULL_FACTOR, PUSH_FACTOR, HeartbeatClock


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make(interval: float = 1.0, factor: int = PULL_FACTOR) -> tuple[Clock, HeartbeatClock]:
    clock = Clock()
    return clock, HeartbeatClock(interval, factor, clock=clock)


@pytest.mark.parametrize(("factor", "window"), [(PULL_FACTOR, 2.0), (PUSH_FACTOR, 3.0)])
def test_due_after_the_factor_of_silence(factor: int, window: float) -> None:
    """Two missed heartbeats alarm a pull, three a push subscription, and not a moment before."""
    clock, heartbeat = make(1.0, factor)
    assert heartbeat.remaining() == window
    clock.now += window - 0.001
    assert not heartbeat.due()
    clock.now += 0.001
    assert heartbeat.remaining() == 0.0
    assert heartbeat.due()


def test_due_repeats_one_window_later() -> None:
    """While silent, the alarm comes once per window."""
    clock, heartbeat = make()
    alarms = []
    for _ in range(70):
        clock.now += 0.1
        if heartbeat.due():
            alarms.append(round(clock.now - 100.0, 1))
    assert [round(a) for a in alarms] == [2, 4, 6]


def test_due_is_judged_by_arrival() -> None:
    """Something that arrived while the owner was busy counts from when it arrived."""
    clock, heartbeat = make()
    clock.now += 3.0
    heartbeat.reset(at=102.5)
    assert not heartbeat.due()
    assert heartbeat.remaining() == pytest.approx(1.5)
    assert heartbeat.silence == pytest.approx(0.5)


def test_reset_without_time_counts_from_now() -> None:
    """reset() alone means: it arrived just now."""
    clock, heartbeat = make()
    clock.now += 1.5
    heartbeat.reset()
    assert heartbeat.remaining() == 2.0


def test_reset_with_an_older_arrival_changes_nothing() -> None:
    """A late report of an old arrival brings neither the deadline nor an alarm back."""
    clock, heartbeat = make()
    heartbeat.reset(at=100.9)
    heartbeat.reset(at=100.2)
    assert heartbeat.remaining() == pytest.approx(2.9)
    clock.now = 103.0
    assert heartbeat.due()
    heartbeat.reset(at=100.95)
    assert heartbeat.remaining() == pytest.approx(2.0)
    assert heartbeat.silence == pytest.approx(2.05)


def test_pause_has_no_alarm_and_resume_a_full_window() -> None:
    """Disconnected time is not silence, however long."""
    clock, heartbeat = make()
    clock.now += 1.9
    heartbeat.pause()
    heartbeat.pause()
    clock.now += 1000.0
    assert heartbeat.paused
    assert heartbeat.remaining() is None
    assert not heartbeat.due()
    heartbeat.reset()
    assert heartbeat.remaining() is None
    heartbeat.resume()
    assert heartbeat.remaining() == 2.0
    assert heartbeat.silence == 0.0
    clock.now += 2.0
    assert heartbeat.due()


def test_resume_without_pause_changes_nothing() -> None:
    """A second resume does not put the alarm off."""
    clock, heartbeat = make()
    clock.now += 1.0
    heartbeat.resume()
    assert heartbeat.remaining() == 1.0
