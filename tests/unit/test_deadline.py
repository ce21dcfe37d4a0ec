"""Deadlines, with a clock that the tests set."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from jetstream_sync._deadline import FOREVER, Deadline, seconds


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_remaining_counts_down_to_zero() -> None:
    """What is left shrinks with the clock and is never negative."""
    clock = Clock()
    deadline = Deadline(5, clock)
    assert deadline.remaining() == 5.0
    clock.now += 3
    assert deadline.remaining() == 2.0
    assert not deadline.expired
    clock.now += 2
    assert deadline.remaining() == 0.0
    assert deadline.expired
    clock.now += 100
    assert deadline.remaining() == 0.0
    assert deadline.wait_time() == 0.0


def test_none_never_expires() -> None:
    """Without a limit remaining() is None, and wait_time() is about a century."""
    clock = Clock()
    deadline = Deadline(None, clock)
    clock.now += 1e12
    assert deadline.remaining() is None
    assert not deadline.expired
    assert deadline.wait_time() == FOREVER


def test_zero_is_expired_at_once() -> None:
    """A deadline with a timeout of zero is expired at once."""
    deadline = Deadline(0, Clock())
    assert deadline.expired
    assert deadline.wait_time() == 0.0


def test_wait_time_fits_a_lock() -> None:
    """Even an infinite timeout gives a number that a lock's acquire takes."""
    assert Deadline(float("inf"), Clock()).wait_time() == FOREVER
    assert Deadline(1e300, Clock()).wait_time() == FOREVER


def test_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that jumps by an hour changes no deadline."""
    deadline = Deadline(10)
    monkeypatch.setattr("time.time", lambda: 0.0)
    remaining = deadline.remaining()
    assert remaining is not None
    assert 9 < remaining <= 10


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (0, 0.0), (1.5, 1.5), (2, 2.0), (timedelta(milliseconds=250), 0.25)]
)
def test_seconds_takes_numbers_and_timedelta(value: object, expected: float | None) -> None:
    """Durations are seconds or a timedelta; None stays None."""
    assert seconds(value) == expected


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), timedelta(seconds=-1), float("-inf")])
def test_seconds_refuses_what_is_no_duration(value: object) -> None:
    """Negative durations and NaN are a ValueError that names the argument."""
    with pytest.raises(ValueError, match="expires"):
        seconds(value, "expires")


@pytest.mark.parametrize("value", ["1", b"1", True, [1], object()])
def test_seconds_refuses_other_types(value: object) -> None:
    """Anything but a number or a timedelta is a TypeError that names the argument."""
    with pytest.raises(TypeError, match="timeout"):
        seconds(value)


def test_forever_is_long_and_fits_a_lock() -> None:
    """A wait without limit lasts years, not weeks: a quiet subscription must not time out. And locks take it."""
    assert 50 * 365 * 86400 < FOREVER < threading.TIMEOUT_MAX
