"""Streaming queries: every sequence exactly once in an idempotent sink, whatever dies meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from jetstream_sync import JetStream, connect
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.testing import LocalServer
from tests.spark.queries import ADMISSION_CONTROL, CopyQuery, copied, once
from tests.support.eventually import eventually

Fill = Callable[..., None]


@pytest.fixture
def query(spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path) -> CopyQuery:
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True)
    return CopyQuery(spark, nats_server, tmp_path)


def test_resumes_from_the_checkpoint(
    query: CopyQuery, fill: Fill, js: JetStream, nats_server: LocalServer
) -> None:
    """A second run reads what came since the first, and nothing twice; no connection and no consumer stays."""
    fill("in.a", 2000)
    query.run()
    assert copied(js) == once(*range(1, 2001))
    fill("in.a", 500)
    query.run()
    assert copied(js) == once(*range(1, 2501))
    query.run()
    assert copied(js) == once(*range(1, 2501))
    assert list(js.get_stream("IN").consumer_names()) == []
    names = lambda: [each.get("name", "") for each in nats_server.monitor("/connz")["connections"]]  # noqa: E731
    eventually(lambda: not any("spark" in name for name in names()), message="connections are closed")


@pytest.mark.parametrize("fault", ["kill worker", "fail task"])
def test_worker_dies_in_the_middle(query: CopyQuery, fill: Fill, js: JetStream, fault: str) -> None:
    """Spark runs the task again, with the same rows: what was written before is recognised."""
    fill("in.a", 30_000)
    query.read_fault = fault
    query.read_options["minPartitions"] = 2
    query.run()
    assert query.happened()
    assert copied(js) == once(*range(1, 30_001))


def test_commit_of_the_sink_fails(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """All rows are written, then the commit fails: the replay writes duplicates, which the stream drops."""
    fill("in.a", 3000)
    query.write_fault = "fail commit"
    with pytest.raises(Exception, match="the commit fails here"):
        query.run()
    assert sum(copied(js).values()) == 3000
    fill("in.a", 10)
    query.run_to_the_end()
    assert copied(js) == once(*range(1, 3011))


def test_exactly_once_outlives_the_duplicate_window(
    spark: SparkSession, nats_server: LocalServer, fill: Fill, js: JetStream, tmp_path: Path
) -> None:
    """With exactlyOnce=true a replay is recognised by its markers, long after the stream forgot all ids."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True, duplicate_window=0.1)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.write_options |= {"exactlyOnce": "true", "markerSubject": "out.markers"}
    query.read_options["minPartitions"] = 2
    query.write_fault = "fail commit"
    fill("in.a", 5000)
    with pytest.raises(Exception, match="the commit fails here"):
        query.run()
    written = time.monotonic()
    eventually(lambda: time.monotonic() - written > 0.3, message="the window has passed")
    fill("in.a", 10)
    query.run_to_the_end()
    assert copied(js) == once(*range(1, 5011))


def test_ids_alone_do_not_outlive_the_duplicate_window(
    spark: SparkSession, nats_server: LocalServer, fill: Fill, js: JetStream, tmp_path: Path
) -> None:
    """The limit of the default, which the documentation names: past the window a replay is stored again."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"], duplicate_window=0.1)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.write_fault = "fail commit"
    fill("in.a", 100)
    with pytest.raises(Exception, match="the commit fails here"):
        query.run()
    query.run()
    assert set(copied(js).values()) == {2}


def test_crash_in_the_middle_of_exactly_once_chunks(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """A task that dies between two chunks goes on behind the last one that was stored."""
    fill("in.a", 25_000)
    query.write_options |= {"exactlyOnce": "true", "markerSubject": "out.markers"}
    query.read_options["maxMessagesPerPartition"] = 100_000
    query.read_fault = "kill worker"
    query.run()
    assert query.happened()
    assert copied(js) == once(*range(1, 25_001))


def test_latest_asked_again_after_a_crash_in_batch_0(nats_server: LocalServer, fill: Fill, js: JetStream) -> None:
    """Spark asks for the initial offset anew; what the planned batch 0 held is still read."""
    js.create_stream(name="IN", subjects=["in.>"])
    fill("in.a", 10)
    options = ReadOptions.parse({"servers": nats_server.url, "stream": "IN"})
    first, second = JetStreamStreamReader(options, ("seq",)), JetStreamStreamReader(options, ("seq",))
    try:
        start = first.initialOffset()
        fill("in.a", 10)
        eventually(lambda: first.latestOffset(start)["next"] == 21)
        end = first.latestOffset(start)
        fill("in.a", 10)
        again = second.initialOffset()
        assert (start["next"], end["next"], again["next"]) == (11, 21, 31)
        (partition,) = second.partitions(again, end)
        assert (partition.start, partition.end) == (11, 21)
    finally:
        first.stop()
        second.stop()


def test_latest_with_a_crash_in_batch_0_while_messages_come(
    query: CopyQuery, nats_server: LocalServer, js: JetStream
) -> None:
    """Nothing is skipped between the first start and the end, though the start was asked for twice."""
    query.read_options = {"startingOffsets": "latest"}
    query.write_fault = "fail commit"
    stop = threading.Event()

    def keep_publishing() -> None:
        with connect(nats_server.url) as nc:
            mine = nc.jetstream()
            while not stop.is_set():
                mine.publish("in.a", b"x")

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        with pytest.raises(Exception, match="the commit fails here"):
            query.start(processingTime="0 seconds").awaitTermination(60)
        began = first_start(query.checkpoint)
        seen = js.get_stream("IN").info.state.last_seq
        eventually(lambda: js.get_stream("IN").info.state.last_seq > seen + 50)
        running = query.start(processingTime="0 seconds")
        eventually(lambda: copied(js), timeout=60)
        stop.set()
        publisher.join()
        last = js.get_stream("IN").info.state.last_seq
        eventually(lambda: last in copied(js), timeout=60)
        running.stop()
    finally:
        stop.set()
        publisher.join()
    assert copied(js) == once(*range(began, last + 1))


def first_start(checkpoint: Path) -> int:
    """Where the query first started, as batch 0 in the checkpoint remembers it."""
    return int(json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])["base"])


def test_messages_removed_below_the_checkpoint(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """failOnDataLoss stops the query and names the range; with false it goes on from what is left."""
    fill("in.a", 100)
    query.run()
    fill("in.a", 100)
    js.get_stream("IN").purge(sequence=151)
    with pytest.raises(Exception, match="sequences 101 to 150 are not there any more"):
        query.run()
    query.read_options["failOnDataLoss"] = "false"
    query.run()
    assert copied(js) == once(*range(1, 101), *range(151, 201))


def test_stream_created_anew(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """Another stream of the same name is data loss; with failOnDataLoss=false it is read from its beginning."""
    fill("in.a", 100)
    query.run()
    js.delete_stream("IN")
    js.create_stream(name="IN", subjects=["in.>"])
    fill("in.a", 20)
    with pytest.raises(Exception, match="created anew"):
        query.run()
    query.read_options["failOnDataLoss"] = "false"
    query.run()
    assert sum(copied(js).values()) == 120
    fill("in.a", 5)
    query.run()
    assert sum(copied(js).values()) == 125


def test_batches_are_capped(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """maxMessagesPerTrigger bounds each batch, the first one of a run included."""
    fill("in.a", 1000)
    query.read_options["maxMessagesPerTrigger"] = 400
    running = query.start(processingTime="0 seconds")
    try:
        eventually(lambda: len(copied(js)) == 1000, timeout=60)
        fill("in.a", 1000)
        eventually(lambda: len(copied(js)) == 2000, timeout=60)
        eventually(lambda: sum(sizes_of(running)) == 2000, timeout=60)
    finally:
        running.stop()
    assert max(sizes_of(running)) <= 400
    fill("in.a", 1000)
    again = query.start(processingTime="0 seconds")
    try:
        eventually(lambda: len(copied(js)) == 3000, timeout=60)
        eventually(lambda: sum(sizes_of(again)) == 1000, timeout=60)
    finally:
        again.stop()
    assert max(sizes_of(again)) <= 400
    assert copied(js) == once(*range(1, 3001))


def test_available_now_with_a_cap(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """availableNow runs as many capped batches as it takes; before pyspark 4.2 one capped batch in each run."""
    fill("in.a", 1000)
    query.read_options["maxMessagesPerTrigger"] = 400
    if ADMISSION_CONTROL:
        assert sizes_of(query.run()) == [400, 400, 200]
    else:
        assert [sizes_of(query.run()) for _ in range(4)] == [[400], [400], [200], []]
    assert copied(js) == once(*range(1, 1001))


def sizes_of(query: StreamingQuery) -> list[int]:
    return [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]


def test_work_queue_is_emptied_on_commit(
    spark: SparkSession, nats_server: LocalServer, fill: Fill, js: JetStream, tmp_path: Path
) -> None:
    """deleteOnCommit removes what Spark has committed, and only that."""
    js.create_stream(name="IN", subjects=["in.>"], retention="workqueue", allow_direct=True)
    js.create_stream(name="OUT", subjects=["out.>"])
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["deleteOnCommit"] = "true"
    fill("in.a", 300)
    running = query.start(processingTime="0 seconds")
    try:
        eventually(lambda: len(copied(js)) == 300, timeout=60)
        fill("in.a", 200)
        eventually(lambda: len(copied(js)) == 500, timeout=60)
        eventually(lambda: js.get_stream("IN").info.state.first_seq > 300, timeout=60)
    finally:
        running.stop()
    fill("in.a", 50)
    query.run_to_the_end()
    assert copied(js) == once(*range(1, 551))


def test_idle_query_asks_rarely(query: CopyQuery, fill: Fill, js: JetStream, nats_server: LocalServer) -> None:
    """Spark asks an idle source about 90 times a second; the stream is asked at most 10 times."""
    fill("in.a", 10)
    with connect(nats_server.url) as nc, nc.subscribe("$JS.API.STREAM.INFO.IN") as asked:
        running = query.start(processingTime="0 seconds")
        try:
            eventually(lambda: len(copied(js)) == 10, timeout=60)
            before, began = asked.pending_msgs, time.monotonic()
            eventually(lambda: time.monotonic() - began > 2.0, timeout=10)
            count, lasted = asked.pending_msgs - before, time.monotonic() - began
        finally:
            running.stop()
        assert count <= 10 * lasted + 2
