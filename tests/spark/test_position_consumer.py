"""positionConsumer: a durable consumer shows how far a query is. Drives the reader without Spark.

examples/spark_lag.py, which is run by test_spark_examples.py, does it in Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import Connection, ConsumerInfo, ConsumerNotFoundError, JetStream
from jetstream_sync.spark import position_consumer
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from tests.support.eventually import eventually

Fill = Callable[..., None]
Reader = Callable[..., JetStreamStreamReader]


@pytest.fixture
def reader(stream_reader: Reader, js: JetStream, fill: Fill) -> Reader:
    """A reader of stream IN with 20 messages, 10 in each batch, that shows its position as `spark`."""
    js.create_stream(name="IN", subjects=["in.>"])
    for _ in range(10):
        fill("in.a", 1)
        fill("in.b", 1)
    own = {
        "stream": "IN",
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": "10",
        "positionConsumer": "spark",
    }
    return lambda **options: stream_reader(**own | options)


@pytest.fixture
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are shown at once, not once in a second."""
    monkeypatch.setattr(position_consumer, "SECONDS_BETWEEN_MOVES", 0.0)


def shown(js: JetStream, stream: str = "IN") -> tuple[int, int]:
    """The ack floor and the number of pending messages, as `nats consumer info` shows them."""
    info: ConsumerInfo = js.get_consumer(stream, "spark").info
    assert info.num_ack_pending == 0
    return info.ack_floor.stream_seq, info.num_pending


@pytest.mark.usefixtures("without_pause")
@pytest.mark.parametrize("since", [position_consumer.RESET_SINCE, (99, 0)], ids=["reset", "older server"])
def test_ack_floor_follows_the_query(
    reader: Reader, js: JetStream, monkeypatch: pytest.MonkeyPatch, since: tuple[int, int]
) -> None:
    """What is planned is pending until Spark asks for the next batch or commits; back again, too."""
    monkeypatch.setattr(position_consumer, "RESET_SINCE", since)
    query = reader()
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert shown(js) == (0, 20)
    last = query.latestOffset(end)
    assert shown(js) == (10, 10)
    query.commit(last)
    assert shown(js) == (20, 0)
    anew = reader(startingOffsets='{"seq": 5}')
    anew.latestOffset(anew.initialOffset())
    assert shown(js) == (4, 16)


@pytest.mark.usefixtures("without_pause")
def test_pending_are_those_that_match(reader: Reader, js: JetStream) -> None:
    """The consumer has the filters of the query, also after they have changed."""
    for subjects, pending in (("in.a", 5), ("in.a,in.b", 10), ("in.b", 5)):
        query = reader(subjects=subjects)
        query.latestOffset(query.latestOffset(query.initialOffset()))
        assert shown(js) == (10, pending)


@pytest.mark.usefixtures("without_pause")
def test_each_stream_has_a_consumer(reader: Reader, js: JetStream, fill: Fill) -> None:
    """Several streams: the same name in each."""
    js.create_stream(name="B", subjects=["b.>"])
    fill("b.x", 20)
    query = reader(stream="IN,B")
    query.latestOffset(query.latestOffset(query.initialOffset()))
    assert (shown(js), shown(js, "B")) == ((5, 15), (5, 15))


@pytest.mark.usefixtures("without_pause")
def test_consumer_of_another_program_is_left_alone(
    reader: Reader, js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and the query goes on."""
    js.create_consumer("IN", durable_name="spark", ack_policy="explicit")
    created = js.get_consumer("IN", "spark").info.created
    query = reader()
    end = query.latestOffset(query.latestOffset(query.initialOffset()))
    assert end["next"] == 21
    assert (shown(js), js.get_consumer("IN", "spark").info.created) == ((0, 20), created)
    assert caplog.text.count("another program") == 1


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_streams_that_a_consumer_would_fill(
    reader: Reader, js: JetStream, retention: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Interest and work-queue streams get none: it would keep messages from being removed."""
    js.create_stream(name="Q", subjects=["q.>"], retention=retention)
    query = reader(stream="Q")
    query.latestOffset(query.initialOffset())
    with pytest.raises(ConsumerNotFoundError):
        js.get_consumer("Q", "spark")
    assert "would keep messages" in caplog.text


def test_position_is_shown_once_in_a_second(reader: Reader, nc: Connection, js: JetStream) -> None:
    """Batches may be quicker than that; the position of a query that waits comes in the end."""
    with nc.subscribe("$JS.API.CONSUMER.RESET.IN.spark") as resets:
        nc.flush()
        query = reader(maxMessagesPerTrigger="1")
        began = time.monotonic()
        position = query.initialOffset()
        for _ in range(20):
            position = query.latestOffset(position)
        eventually(lambda: query.latestOffset(position) == position and shown(js) == (20, 0))
        nc.flush()
        assert resets.pending_msgs <= time.monotonic() - began + 1


def test_run_with_available_now_shows_where_it_ended(reader: Reader, js: JetStream) -> None:
    """The last position is not left out, however short the run was."""
    query = reader()
    position = query.initialOffset()
    query.prepareForTriggerAvailableNow()
    while (end := query.latestOffset(position)) != position:
        position = end
    assert shown(js) == (20, 0)


@pytest.mark.usefixtures("without_pause")
def test_position_that_cannot_be_kept_is_a_warning(
    reader: Reader, js: JetStream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query goes on, does not ask again at once, and shows its position when it can."""
    monkeypatch.setattr(position_consumer, "FIRST_PAUSE", 3600.0)
    js.update_stream(name="IN", subjects=["in.>"], max_consumers=1)
    js.create_consumer("IN", durable_name="other", ack_policy="explicit")
    query = reader()
    position = query.latestOffset(query.initialOffset())
    assert query.latestOffset(query.latestOffset(position))["next"] == 21
    assert caplog.text.count("does not show the position of the query") == 1
    assert "maximum consumers limit reached" in caplog.text
    js.delete_consumer("IN", "other")
    again = reader()
    again.latestOffset(position)
    assert shown(js) == (10, 10)
