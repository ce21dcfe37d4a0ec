"""When a micro-batch waits for more messages: a table, no Spark."""

from __future__ import annotations

import pytest

from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.triggers import TriggerDelay


def test_few_messages_wait_until_there_are_enough_or_the_time_has_passed() -> None:
    """The first trigger takes what is there. Later ones wait for 100 messages or 10 seconds since the last one."""
    delay = TriggerDelay(100, 10.0)
    story = [
        (50.0, 3, False),  # the first
        (51.0, 3, True),
        (59.9, 99, True),
        (60.0, 1, False),  # 10 s after the last one
        (61.0, 100, False),  # enough
        (70.9, 99, True),
        (71.0, 0, False),  # nothing to read; the time begins anew
        (80.9, 1, True),
        (81.0, 1, False),
    ]
    assert [delay.holds_back(count, now) for now, count, _ in story] == [held for _, _, held in story]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10.0),
        ("1.5", 1.5),
        ("10s", 10.0),
        ("250ms", 0.25),
        (" 15M ", 900.0),
        ("2min", 120.0),
        ("3h", 10_800.0),
        ("1d", 86_400.0),
        ("5 s", 5.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations have Spark's units; a number alone is seconds, as in the other options."""
    options = ReadOptions.parse({"stream": "S", "minMessagesPerTrigger": "10", "maxTriggerDelay": text})
    assert options.max_trigger_delay == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "s", "5 weeks", "1h30m", "1e3", "nan", "1_0", "٣"])
def test_bad_durations_are_named(text: str) -> None:
    """Anything else is an error that says what a duration looks like."""
    with pytest.raises(ValueError, match=r"option 'maxTriggerDelay': must be .*'15m'"):
        ReadOptions.parse({"stream": "S", "minMessagesPerTrigger": "10", "maxTriggerDelay": text})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"maxTriggerDelay": "5s"}, "'maxTriggerDelay' needs option 'minMessagesPerTrigger'"),
        (
            {"minMessagesPerTrigger": "11", "maxMessagesPerTrigger": "10"},
            "'minMessagesPerTrigger' is more than 'maxMessagesPerTrigger'",
        ),
        ({"minMessagesPerTrigger": "0"}, "'minMessagesPerTrigger'"),
        ({"startingTimestamp": "yesterday"}, "'startingTimestamp'.*milliseconds"),
        ({"endingTimestamp": "2026-01-01"}, "'endingTimestamp'.*milliseconds"),
        ({"startingOffsets": "latest", "endingTimestamp": "5"}, "'endingTimestamp' makes no sense"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, str], expected: str) -> None:
    """Options that need or exclude each other are refused, not ignored."""
    with pytest.raises(ValueError, match=expected):
        ReadOptions.parse({"stream": "S", **options})
