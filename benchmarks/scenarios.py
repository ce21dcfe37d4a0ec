"""What is measured: one entry per row of the table."""

from __future__ import annotations

from dataclasses import dataclass

STREAM = "BENCH"
SUBJECT = "bench.data"
CORE_SUBJECT = "core.data"
CREDIT_SUBJECT = "core.credit"


@dataclass(frozen=True)
class Scenario:
    """`kind` names the method of each client's worker."""

    name: str
    kind: str
    count: int
    size: int = 128
    ack: bool = True
    unit: str = "rate"
    """"rate": messages per second, more is better; "latency": seconds, less is better."""

    @property
    def needs_stored(self) -> bool:
        return self.kind in ("messages", "consume", "fetch")


SCENARIOS = [
    Scenario("core subscription, 128 B", "core", 200_000),
    Scenario("messages(), ack each, 16 B", "messages", 100_000, 16),
    Scenario("messages(), ack each, 128 B", "messages", 100_000),
    Scenario("messages(), no ack, 128 B", "messages", 100_000, ack=False),
    Scenario("messages(), ack each, 1 KiB", "messages", 60_000, 1024),
    Scenario("messages(), ack each, 16 KiB", "messages", 15_000, 16384),
    Scenario("consume(), ack each, 128 B", "consume", 100_000),
    Scenario("consume(), no ack, 128 B", "consume", 100_000, ack=False),
    Scenario("fetch(500) loop, ack each, 128 B", "fetch", 100_000),
    Scenario("publish_async, 1000 unanswered, 128 B", "publish_async", 50_000),
    Scenario("publish, one at a time, 128 B", "publish", 3_000, unit="latency"),
    Scenario("stream info round trip", "info", 2_000, unit="latency"),
    Scenario("next(), end to end", "next_latency", 1_000, unit="latency"),
    Scenario("messages(), lone message end to end", "messages_latency", 1_000, unit="latency"),
    Scenario("connect", "connect", 200, unit="latency"),
    Scenario("import", "import", 1, unit="latency"),
]
