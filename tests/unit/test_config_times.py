"""Durations and times of configs: exact on the wire, and read back as they were."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.api.config import (
    ConsumerConfig,
    StreamConfig,
)
from jetstream_sync.api.kinds import nanoseconds, parse_time
from jetstream_sync.errors import JetStreamError

UTC = timezone.utc
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "wire"),
    [
        (0, 0),
        (30, 30_000_000_000),
        (0.1, 100_000_000),
        (0.3, 300_000_000),
        (1.1, 1_100_000_000),
        (1e-9, 1),
        (2.5e-9, 2),
        (31_536_000.1, 31_536_000_100_000_000),
        (timedelta(days=1, microseconds=1), 86_400_000_001_000),
        (timedelta(days=3650, microseconds=999_999), 315_360_000_999_999_000),
    ],
)
def test_duration_is_sent_as_exact_nanoseconds(seconds: Any, wire: int) -> None:
    """Seconds and timedeltas become the integer that was written, without the errors of binary fractions."""
    assert ConsumerConfig(ack_wait=seconds).to_wire()["ack_wait"] == wire


@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_duration_read_and_sent_is_the_same(wire: int) -> None:
    """Any duration below eleven days survives as a float to the nanosecond."""
    assert nanoseconds(wire / 10**9) == wire


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_timedelta_is_exact_to_the_microsecond(duration: timedelta) -> None:
    """A timedelta up to a century reaches the wire with every microsecond."""
    sent = ConsumerConfig(ack_wait=duration).to_wire()["ack_wait"]
    assert round(sent / 1000) == duration // timedelta(microseconds=1)


@pytest.mark.parametrize("wire", [9_007_199_254_740_993, 2**63 - 1, 31_536_000_000_000_001])
def test_duration_too_fine_for_a_float_is_sent_back_as_it_was(wire: int) -> None:
    """A duration a float cannot hold is kept exactly until the user changes it."""
    config = StreamConfig.from_wire({"name": "S", "max_age": wire})
    assert config.to_wire()["max_age"] == wire
    config.max_age = 5.0
    assert config.to_wire()["max_age"] == 5_000_000_000


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (-0.001, ValueError),
        (timedelta(seconds=-1), ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (10**10, ValueError),
        ("5s", TypeError),
        (True, TypeError),
        ([1], TypeError),
    ],
)
def test_bad_duration_is_refused_naming_the_field(value: Any, error: type[Exception]) -> None:
    """Negative, endless, too long or not a number of seconds: refused when set."""
    with pytest.raises(error, match=r"ConsumerConfig\.ack_wait"):
        ConsumerConfig(ack_wait=value)


def test_bad_duration_in_a_list_is_named_by_its_place() -> None:
    """The error says which of several durations is wrong."""
    with pytest.raises(ValueError, match=r"ConsumerConfig\.backoff\[1\]"):
        ConsumerConfig(backoff=[1, -2])


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("2024-02-29T12:00:00.1Z", datetime(2024, 2, 29, 12, 0, 0, 100_000, tzinfo=UTC)),
        ("2024-02-29T12:00:00.123456999Z", NOON),
        ("2024-02-29T13:30:00.123456+01:30", NOON),
        ("2024-02-29T08:00:00.123456-04:00", NOON),
        ("0001-01-01T00:00:00Z", None),
    ],
)
def test_time_is_read_as_aware_datetime(text: str, time: datetime | None) -> None:
    """RFC 3339 with up to nine digits is cut to microseconds; Go's zero time is None."""
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "yesterday", "2024-02-29", "2024-02-30T00:00:00Z", "2024-02-29T12:00:00"])
def test_bad_time_from_the_server_is_a_clear_error(text: str) -> None:
    """A time that is none names the field."""
    with pytest.raises(JetStreamError, match=r"ConsumerConfig\.pause_until"):
        ConsumerConfig.from_wire({"pause_until": text})


@pytest.mark.parametrize(
    ("time", "wire"),
    [
        (NOON, "2024-02-29T12:00:00.123456Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2024-02-29T12:00:00.123456Z"),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"),
    ],
)
def test_time_is_sent_in_utc(time: datetime, wire: str) -> None:
    """An aware datetime of any zone is sent as the same moment in UTC."""
    assert ConsumerConfig(opt_start_time=time).to_wire()["opt_start_time"] == wire


def test_zero_time_in_a_config_is_none() -> None:
    """The server's zero time means that there is none; nothing of it is kept for sending back."""
    config = ConsumerConfig.from_wire({"opt_start_time": "0001-01-01T00:00:00Z"})
    assert config.opt_start_time is None
    assert config._exact_wire == {}


def test_naive_datetime_is_refused() -> None:
    """A naive datetime is rejected: it does not say which moment it means."""
    with pytest.raises(ValueError, match=r"ConsumerConfig\.pause_until .* time zone"):
        ConsumerConfig(pause_until=datetime(2024, 1, 1))


@pytest.mark.parametrize("value", ["2024-01-01T00:00:00Z", 1_700_000_000, timedelta(1)])
def test_other_types_for_a_time_are_refused(value: Any) -> None:
    """Only datetimes are times."""
    with pytest.raises(TypeError, match="must be a datetime"):
        ConsumerConfig(pause_until=value)
