"""Timestamps to start and end at, and batches that wait for more messages. Few of these need Spark."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.testing import LocalServer
from tests.spark.queries import ADMISSION_CONTROL, CopyQuery, copied, once
from tests.support.eventually import eventually

Fill = Callable[..., None]


@pytest.fixture
def reader(
    stream_reader: Callable[..., JetStreamStreamReader], js: JetStream
) -> Callable[..., JetStreamStreamReader]:
    """A reader of stream IN: `reader(minMessagesPerTrigger="10")`."""
    js.create_stream(name="IN", subjects=["in.>"])
    return partial(stream_reader, stream="IN")


@pytest.fixture
def between(js: JetStream, fill: Fill) -> Callable[[], str]:
    """Publish 5 messages, then 5 later ones; the result is a time between them in milliseconds."""

    def publish() -> str:
        fill("in.a", 5)
        stored = js.get_stream("IN").get_message(5).time
        assert stored is not None
        moment = int(stored.timestamp() * 1000) + 1
        eventually(lambda: time.time() * 1000 > moment + 1)
        fill("in.a", 5)
        return str(moment)

    return publish


def test_batch_between_timestamps(nats_server: LocalServer, js: JetStream, between: Callable[[], str]) -> None:
    """The first message at or after the start, up to the last before the end; a timestamp wins over offsets."""
    js.create_stream(name="IN", subjects=["in.>"])
    moment = between()
    future = str(int(time.time() * 1000) + 3_600_000)

    def planned(**options: str) -> list[tuple[int, int]]:
        every = {"servers": nats_server.url, "stream": "IN", **options}
        found = JetStreamReader(ReadOptions.parse(every), ("seq",)).partitions()
        return [(each.start, each.end) for each in found if each.end > each.start]

    assert planned(startingTimestamp=moment) == [(6, 11)]
    assert planned(endingTimestamp=moment) == [(1, 6)]
    assert planned(startingTimestamp="0", endingTimestamp=future) == [(1, 11)]
    assert planned(startingTimestamp=future) == []
    assert planned(startingTimestamp=moment, endingTimestamp=moment) == []
    assert planned(startingTimestamp=moment, startingOffsets="earliest") == [(6, 11)]
    assert planned(endingTimestamp=moment, endingOffsets='{"seq": 3}') == [(1, 6)]


def test_query_starts_at_a_timestamp(
    reader: Callable[..., JetStreamStreamReader], js: JetStream, fill: Fill, between: Callable[[], str]
) -> None:
    """Where no message is that late yet, the next one is the first. A time in the future is an error."""
    assert reader(startingTimestamp=between()).initialOffset()["next"] == 6
    assert reader(startingTimestamp="0", startingOffsets="latest").initialOffset()["next"] == 1
    last = js.get_stream("IN").get_message(10).time
    assert last is not None
    after = int(last.timestamp() * 1000) + 1
    eventually(lambda: time.time() * 1000 > after)
    assert reader(startingTimestamp=str(after)).initialOffset()["next"] == 11
    for name, value in (
        ("startingTimestamp", str(after + 3_600_000)),
        ("startingOffsets", "2100-01-01T00:00:00Z"),
    ):
        with pytest.raises(ValueError, match=f"option '{name}': .* is in the future"):
            reader(**{name: value}).initialOffset()


@pytest.mark.parametrize("told", [True, False])
def test_batch_waits_for_messages(reader: Callable[..., JetStreamStreamReader], fill: Fill, told: bool) -> None:
    """The first batch takes what is there, later ones wait; also where Spark tells no start (4.0, 4.1)."""
    fill("in.a", 3)
    waiting = reader(startingOffsets="earliest", minMessagesPerTrigger="10", maxTriggerDelay="1h")
    start = waiting.initialOffset()

    def latest() -> dict[str, Any]:
        return waiting.latestOffset(start) if told else waiting.latestOffset()

    end = latest()
    assert end["next"] == 4
    waiting.partitions(start, end)
    start = end
    fill("in.a", 9)
    eventually(lambda: waiting.reportLatestOffset()["streams"]["IN"]["next"] == 13, message="it sees 9 more")
    assert latest() == start
    fill("in.a", 1)
    eventually(lambda: waiting.reportLatestOffset()["streams"]["IN"]["next"] == 14, message="it sees the tenth")
    end = latest()
    assert end["next"] == 14
    waiting.partitions(start, end)
    start = end
    assert latest() == start


def test_batch_waits_no_longer_than_the_delay(reader: Callable[..., JetStreamStreamReader], fill: Fill) -> None:
    """After the delay, fewer messages are taken, too."""
    fill("in.a", 1)
    waiting = reader(startingOffsets="earliest", minMessagesPerTrigger="1000", maxTriggerDelay="200ms")
    start = waiting.initialOffset()
    start = waiting.latestOffset(start)
    fill("in.a", 1)
    eventually(lambda: waiting.latestOffset(start)["next"] == 3)


def test_available_now_and_once_do_not_wait(reader: Callable[..., JetStreamStreamReader], fill: Fill) -> None:
    """They take all that is there, at the first batch and after it."""
    fill("in.a", 5)
    waiting = reader(startingOffsets="earliest", minMessagesPerTrigger="1000")
    start = waiting.latestOffset(waiting.initialOffset())
    assert start["next"] == 6
    fill("in.a", 5)
    eventually(lambda: waiting.reportLatestOffset()["streams"]["IN"]["next"] == 11)
    assert waiting.latestOffset(start) == start
    if ADMISSION_CONTROL:
        limits = importlib.import_module("pyspark.sql.streaming.datasource")
        assert waiting.latestOffset(start, waiting.getDefaultReadLimit()) == start
        assert waiting.latestOffset(start, limits.ReadAllAvailable())["next"] == 11
    waiting.prepareForTriggerAvailableNow()
    assert waiting.latestOffset(start)["next"] == 11


def test_query_waits_for_messages(
    spark: SparkSession, nats_server: LocalServer, fill: Fill, js: JetStream, tmp_path: Any
) -> None:
    """In Spark: what is there at the start, then nothing until there is enough; availableNow takes the rest."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"])
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options |= {"minMessagesPerTrigger": 100, "maxTriggerDelay": "1h"}
    fill("in.a", 1)
    running = query.start(processingTime="0 seconds")
    try:
        eventually(lambda: len(copied(js)) == 1, timeout=60)
        fill("in.a", 50)
        fill("in.a", 60)
        eventually(lambda: len(copied(js)) == 111, timeout=60)
        eventually(lambda: sum(each["numInputRows"] for each in running.recentProgress) == 111, timeout=60)
    finally:
        running.stop()
    sizes = [each["numInputRows"] for each in running.recentProgress if each["numInputRows"]]
    assert len(sizes) == 2
    assert sizes[0] == 1
    fill("in.a", 3)
    query.run()
    assert copied(js) == once(*range(1, 115))
