"""What is measured, by `python -m benchmarks` and by `python -m benchmarks.compare`: one entry per row."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from fnmatch import fnmatchcase

STREAM = "BENCH"
SUBJECT = "bench.data"
CORE_SUBJECT = "core.data"
CREDIT_SUBJECT = "core.credit"
# Messages that arrive beside each request of "request_load": few enough that they never pile up.
LOAD = 20

# Kinds that read a stream which is filled before the measurement.
READING = {"messages", "consume", "fetch", "fetch_single", "pull_subscribe", "push", "ordered"}


@dataclass(frozen=True)
class Scenario:
    """`key` is what `--only` selects by; `kind` names the function of each client's module that measures it."""

    key: str
    name: str
    kind: str
    count: int
    size: int = 128
    ack: bool = True
    unit: str = "rate"
    """"rate": messages per second, more is better; "latency": seconds, less is better."""
    workers: int = 1
    processes: int = 1
    """How many processes make one measurement of `compare`: for what one process can do only once."""

    @property
    def needs_stored(self) -> bool:
        return self.kind in READING


SCENARIOS = [
    Scenario("core", "core subscription, 128 B", "core", 200_000),
    Scenario("messages-16b", "messages(), ack each, 16 B", "messages", 100_000, 16),
    Scenario("messages", "messages(), ack each, 128 B", "messages", 100_000),
    Scenario("messages-no-ack", "messages(), no ack, 128 B", "messages", 100_000, ack=False),
    Scenario("messages-1k", "messages(), ack each, 1 KiB", "messages", 60_000, 1024),
    Scenario("messages-16k", "messages(), ack each, 16 KiB", "messages", 15_000, 16384),
    Scenario("consume", "consume(), ack each, 128 B", "consume", 100_000),
    Scenario("consume-no-ack", "consume(), no ack, 128 B", "consume", 100_000, ack=False),
    Scenario("consume-4", "consume(), 4 workers, ack each, 128 B", "consume", 50_000, workers=4),
    Scenario("ordered", "ordered consumer, messages(), 128 B", "ordered", 100_000, ack=False),
    Scenario("push", "push subscription, ack each, 128 B", "push", 60_000),
    Scenario("fetch", "fetch(500) loop, ack each, 128 B", "fetch", 100_000),
    Scenario("pull-subscribe", "pull_subscribe().fetch(500), ack each", "pull_subscribe", 60_000),
    Scenario("fetch-1", "fetch(1) loop, ack each, 128 B", "fetch_single", 2_000, unit="latency"),
    Scenario("publish-async", "publish_async, 1000 unanswered, 128 B", "publish_async", 50_000),
    Scenario("publish-async-16k", "publish_async, 1000 unanswered, 16 KiB", "publish_async", 10_000, 16384),
    Scenario("publish", "publish, one at a time, 128 B", "publish", 3_000, unit="latency"),
    Scenario("info", "stream info round trip", "info", 2_000, unit="latency"),
    Scenario("request-load", "request while a subscription receives", "request_load", 2_000, unit="latency"),
    Scenario("next", "next(), end to end", "next_latency", 1_000, unit="latency"),
    Scenario(
        "messages-single", "messages(), single message end to end", "messages_latency", 1_000, unit="latency"
    ),
    Scenario("connect", "connect", "connect", 200, unit="latency"),
    Scenario("import", "import", "import", 1, unit="latency", processes=5),
]


def by_key(key: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.key == key)


def select(only: str) -> list[Scenario]:
    """The scenarios whose keys match one of the comma-separated patterns (`push,messages*`); all for "".

    Raises ArgumentTypeError for a pattern that matches none.
    """
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(scenario.key, pattern) for scenario in SCENARIOS):
            keys = ", ".join(scenario.key for scenario in SCENARIOS)
            raise ArgumentTypeError(f"no scenario {pattern!r}; there are: {keys}")
    return [
        scenario
        for scenario in SCENARIOS
        if not patterns or any(fnmatchcase(scenario.key, pattern) for pattern in patterns)
    ]
