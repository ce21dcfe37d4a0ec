"""Several streams in one frame. Most of it drives the reader as Spark does, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame

from jetstream_sync import DataLossError, JetStream, StreamNotFoundError
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.testing import LocalServer
from tests.spark.queries import ADMISSION_CONTROL, CopyQuery, copied

Fill = Callable[..., None]
Reader = Callable[..., JetStreamStreamReader]
Ranges = dict[str, list[tuple[int, int]]]


@pytest.fixture
def streams(js: JetStream, fill: Fill) -> None:
    """A with 30 messages, B with 10."""
    for name, count in (("A", 30), ("B", 10)):
        js.create_stream(name=name, subjects=[f"{name.lower()}.>"])
        fill(f"{name.lower()}.x", count)


@pytest.fixture
def reader(nats_server: LocalServer) -> Iterator[Reader]:
    """A reader as Spark makes one for each start of a query: `reader("A,B", failOnDataLoss="false")`."""
    made: list[JetStreamStreamReader] = []

    def make(streams: str, **options: str) -> JetStreamStreamReader:
        every = {"servers": nats_server.url, "stream": streams, "startingOffsets": "earliest", **options}
        made.append(JetStreamStreamReader(ReadOptions.parse(every), ("stream", "seq")))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def planned(reader: JetStreamStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Ranges:
    """The partitions of a batch, as Spark gets them from the text of the checkpoint."""
    ranges: Ranges = {}
    for partition in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        ranges.setdefault(partition.stream, []).append((partition.start, partition.end))
    return ranges


def nexts(offset: dict[str, Any]) -> dict[str, int]:
    return {stream: each["next"] for stream, each in offset["streams"].items()}


@pytest.mark.usefixtures("streams")
def test_rows_of_two_streams(read: Callable[..., DataFrame]) -> None:
    """The column `stream` tells the rows apart; each stream starts and ends at its own position."""
    frame = read("A, B", minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert Counter(row.stream for row in frame.select("stream").collect()) == {"A": 30, "B": 10}
    limited = read("A,B", startingOffsets='{"A": {"seq": 29}, "B": "earliest"}', endingOffsets='{"seq": 3}')
    assert [tuple(row) for row in limited.select("stream", "seq").collect()] == [("B", 1), ("B", 2)]


@pytest.mark.usefixtures("streams")
def test_stream_added_to_a_query(reader: Reader, fill: Fill) -> None:
    """The checkpoint of one stream goes on; the stream that was added starts where the options say."""
    alone = reader("A")
    start = alone.initialOffset()
    end = alone.latestOffset(start)
    assert end["v"] == 1
    fill("a.x", 5)
    both = reader("B,A", startingOffsets='{"A": "latest", "B": {"seq": 4}}')
    later = both.latestOffset(end)
    assert nexts(later) == {"A": 36, "B": 11}
    assert planned(both, end, later) == {"A": [(31, 36)], "B": [(4, 11)]}
    assert nexts(both.latestOffset(later)) == {"A": 36, "B": 11}


@pytest.mark.usefixtures("streams")
def test_stream_added_to_a_query_that_then_crashes(reader: Reader, fill: Fill) -> None:
    """With `latest`, the batch that began with the new stream is the same when it runs again later."""
    end = reader("A").latestOffset(reader("A").initialOffset())
    first = reader("A,B", startingOffsets="latest")
    first.latestOffset(end)
    fill("b.x", 3)
    later = reader_catches_up(first, end, {"A": 31, "B": 14})
    expected = {"B": [(11, 14)]}
    assert planned(first, end, later) == expected
    fill("b.x", 50)
    assert planned(reader("A,B", startingOffsets="latest"), end, later) == expected


def reader_catches_up(
    reader: JetStreamStreamReader, start: dict[str, Any], wanted: dict[str, int]
) -> dict[str, Any]:
    """The latest offset, once the reader has asked the server anew."""
    reader.prepareForTriggerAvailableNow()  # which asks at once
    end = reader.latestOffset(start)
    assert nexts(end) == wanted
    return end


@pytest.mark.usefixtures("streams")
def test_stream_removed_from_a_query(reader: Reader, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
    """An error before the checkpoint is touched, so that naming the stream again helps. Or a warning."""
    both = reader("A,B")
    end = both.latestOffset(both.initialOffset())
    fill("a.x", 5)
    with pytest.raises(DataLossError, match=r"stream 'B'.*option 'stream' does not name it.*sequence 10"):
        reader("A").latestOffset(end)
    lenient = reader("A", failOnDataLoss="false")
    later = lenient.latestOffset(end)
    assert "option 'stream' does not name it" in caplog.text
    assert (later["v"], later["next"]) == (1, 36)
    assert planned(lenient, end, later) == {"A": [(31, 36)]}
    assert lenient.latestOffset(later) == later


@pytest.mark.usefixtures("streams")
def test_batch_that_was_planned_with_a_removed_stream(reader: Reader, js: JetStream) -> None:
    """It runs again as it was planned, while the stream exists; then it is a loss."""
    both = reader("A,B")
    start = both.initialOffset()
    end = both.latestOffset(start)
    assert planned(reader("A"), start, end) == {"A": [(1, 31)], "B": [(1, 11)]}
    js.delete_stream("B")
    with pytest.raises(DataLossError, match="stream 'B': it is gone"):
        planned(reader("A"), start, end)
    assert planned(reader("A", failOnDataLoss="false"), start, end) == {"A": [(1, 31)], "B": [(11, 11)]}
    with pytest.raises(StreamNotFoundError):
        planned(both, start, end)


@pytest.mark.usefixtures("streams")
def test_partitions_keep_their_places_when_messages_are_lost(reader: Reader, js: JetStream) -> None:
    """A sink recognises what it has stored by the number of the partition when the batch runs again."""
    options = {"failOnDataLoss": "false", "minPartitions": "8"}
    before = reader("A,B", **options)
    start = before.initialOffset()
    end = before.latestOffset(start)
    first = [(each.stream, each.start, each.end) for each in before.partitions(start, end)]
    js.get_stream("A").purge(sequence=15)
    second = [(each.stream, each.start, each.end) for each in reader("A,B", **options).partitions(start, end)]
    expected = [(name, min(max(low, 15), high) if name == "A" else low, high) for name, low, high in first]
    assert second == expected
    js.delete_stream("A")
    js.create_stream(name="A", subjects=["a.>"])
    third = [(each.stream, each.start, each.end) for each in reader("A,B", **options).partitions(start, end)]
    assert third == [(name, high if name == "A" else low, high) for name, low, high in first]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("told", [True, False])
def test_limit_is_shared(reader: Reader, told: bool) -> None:
    """maxMessagesPerTrigger is for all streams together, also where Spark does not tell the start (4.0, 4.1)."""
    both = reader("A,B", maxMessagesPerTrigger="8")
    start, sizes = both.initialOffset(), []
    while True:
        end = both.latestOffset(start) if told else both.latestOffset()
        ranges = planned(both, start, end)
        if not ranges:
            break
        sizes.append({stream: sum(high - low for low, high in each) for stream, each in ranges.items()})
        start = end
    assert sizes == [{"A": 6, "B": 2}] * 5


@pytest.mark.usefixtures("streams")
def test_loss_is_found_in_each_stream(reader: Reader, js: JetStream) -> None:
    """What is lost in one stream is named, and costs nothing of the other."""
    both, lenient = reader("A,B"), reader("A,B", failOnDataLoss="false")
    start = both.initialOffset()
    end = both.latestOffset(start)
    js.get_stream("B").purge(sequence=6)
    with pytest.raises(DataLossError, match="stream 'B': sequences 1 to 5 are not there"):
        planned(both, start, end)
    assert planned(lenient, start, end) == {"A": [(1, 31)], "B": [(6, 11)]}


@pytest.mark.usefixtures("streams")
def test_one_of_the_streams_is_created_anew(reader: Reader, fill: Fill, js: JetStream) -> None:
    """That one is read from its beginning with failOnDataLoss=false, by a batch that runs again, too."""
    both = reader("A,B")
    end = both.latestOffset(both.initialOffset())
    js.delete_stream("B")
    js.create_stream(name="B", subjects=["b.>"])
    fill("b.x", 3)
    with pytest.raises(DataLossError, match="stream 'B': it was created anew"):
        reader("A,B").latestOffset(end)
    lenient = reader("A,B", failOnDataLoss="false")
    later = lenient.latestOffset(end)
    assert nexts(later) == {"A": 31, "B": 4}
    fill("b.x", 2)
    assert planned(lenient, end, later) == {"B": [(1, 4)]}
    after = reader_catches_up(lenient, later, {"A": 31, "B": 6})
    assert planned(lenient, later, after) == {"B": [(4, 6)]}


@pytest.mark.usefixtures("streams")
def test_available_now_ends_in_each_stream(reader: Reader, fill: Fill) -> None:
    """Messages that come after the start of the run are left to the next one, in every stream."""
    both = reader("A,B")
    start = both.initialOffset()
    both.prepareForTriggerAvailableNow()
    fill("a.x", 5)
    fill("b.x", 5)
    fresh = reader("A,B")
    fresh.prepareForTriggerAvailableNow()
    assert nexts(fresh.latestOffset(start)) == {"A": 36, "B": 16}
    assert nexts(both.latestOffset(start)) == {"A": 31, "B": 11}


@pytest.mark.usefixtures("streams")
def test_latest_of_several_streams_asked_again_after_a_crash_in_batch_0(reader: Reader, fill: Fill) -> None:
    """What the planned batch 0 held is still read, in every stream."""
    first, second = (reader("A,B", startingOffsets="latest") for _ in range(2))
    start = first.initialOffset()
    fill("a.x", 2)
    fill("b.x", 1)
    end = reader_catches_up(first, start, {"A": 33, "B": 12})
    fill("a.x", 7)
    again = second.initialOffset()
    assert nexts(again) == {"A": 40, "B": 12}
    assert planned(second, again, end) == {"A": [(31, 33)], "B": [(11, 12)]}


@pytest.mark.usefixtures("streams")
def test_delete_on_commit_of_several_streams(reader: Reader, js: JetStream) -> None:
    """Each stream is emptied up to its own offset; one that was removed from the query is left alone."""
    both = reader("A,B", deleteOnCommit="true", maxMessagesPerTrigger="8")
    end = both.latestOffset(both.initialOffset())
    both.commit(end)
    assert [js.get_stream(name).info.state.first_seq for name in "AB"] == [7, 3]
    reader("A", deleteOnCommit="true").commit(both.latestOffset(end))
    assert [js.get_stream(name).info.state.first_seq for name in "AB"] == [13, 3]


@pytest.mark.usefixtures("streams")
def test_progress_names_the_streams(reader: Reader) -> None:
    """The latest offset of a progress report has names, for one stream, too."""
    assert nexts(reader("A").reportLatestOffset()) == {"A": 31}
    assert nexts(reader("A,B").reportLatestOffset()) == {"A": 31, "B": 11}


@pytest.mark.usefixtures("streams")
def test_query_that_gets_and_loses_a_stream(
    spark: Any, nats_server: LocalServer, js: JetStream, fill: Fill, tmp_path: Any
) -> None:
    """From one checkpoint: one stream, then two, then the other one alone. Each message is read once."""
    js.create_stream(name="OUT", subjects=["out.>"])
    query = CopyQuery(spark, nats_server, tmp_path)
    query.stream, query.data = "A", "concat(stream, ' ', seq)"
    query.run()
    fill("a.x", 5)
    query.stream = "A,B"
    query.run()
    assert copied(js, parse=str) == Counter([f"A {n}" for n in range(1, 36)] + [f"B {n}" for n in range(1, 11)])
    fill("b.x", 5)
    query.stream = "B"
    with pytest.raises(Exception, match="option 'stream' does not name it"):
        query.run()
    query.read_options["failOnDataLoss"] = "false"
    query.run()
    if not ADMISSION_CONTROL:
        query.run()
    assert copied(js, parse=str) == Counter([f"A {n}" for n in range(1, 36)] + [f"B {n}" for n in range(1, 16)])
