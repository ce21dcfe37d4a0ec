"""Batch reads: every sequence once, and nothing left behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import DataLossError
from jetstream_sync.net.connection import link_of
from jetstream_sync.spark import fetchers
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually

Read = Callable[..., DataFrame]
Fill = Callable[..., None]


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def spark_connections(server: LocalServer) -> list[str]:
    return [each["name"] for each in server.monitor("/connz")["connections"] if "spark" in each.get("name", "")]


def test_100_000_messages_in_8_partitions(read: Read, fill: Fill, js: JetStream, nats_server: LocalServer) -> None:
    """Each sequence comes once, from 8 tasks; no consumer and no connection is left on the server."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill("s.a", 100_000)
    frame = read("S", minPartitions=8)
    assert frame.rdd.getNumPartitions() == 8
    counted = frame.selectExpr("count(seq)", "count(distinct seq)", "min(seq)", "max(seq)").first()
    assert tuple(counted) == (100_000, 100_000, 1, 100_000)
    eventually(lambda: not spark_connections(nats_server), message="connections are closed")
    assert list(js.get_stream("S").consumer_names()) == []


def test_all_columns(read: Read, js: JetStream) -> None:
    """Stream, subject, sequence, time, headers and data are those of the message; ts_ns when asked for."""
    js.create_stream(name="S", subjects=["s.>"])
    js.publish("s.ü", b"\x00\xff", headers={"A": ["1", "2"], "B": "x"})
    js.publish("s.b", b"")
    stored = js.get_stream("S").get_message(1)
    first, second = read("S", tsNanos="true").orderBy("seq").collect()
    assert (first.stream, first.subject, first.seq, bytes(first.data)) == ("S", "s.ü", 1, b"\x00\xff")
    assert first.headers == {"A": ["1", "2"], "B": ["x"]}
    assert stored.time is not None
    assert first.ts.astimezone(timezone.utc) == stored.time
    assert first.ts_ns // 1000 == int(stored.time.timestamp()) * 1_000_000 + stored.time.microsecond
    assert (second.subject, second.headers, bytes(second.data)) == ("s.b", {}, b"")


def test_subset_of_the_schema(spark: SparkSession, nats_server: LocalServer, js: JetStream) -> None:
    """A user's schema may leave columns out; a column that is not there is an error that names it."""
    js.create_stream(name="S", subjects=["s.>"])
    js.publish("s.a", b"x", headers={"A": "1"})
    source = spark.read.format("jetstream").options(servers=nats_server.url, stream="S")
    assert source.schema("data binary, seq bigint").load().collect() == [(bytearray(b"x"), 1)]
    for schema in ("value binary", "seq string"):
        with pytest.raises(Exception, match=schema.split()[0]):
            source.schema(schema).load().collect()


def test_headers_that_are_not_utf8(read: Read, nc: Connection, js: JetStream) -> None:
    """Subjects and headers that are not UTF-8 are decoded with replacement, beside others that are."""
    js.create_stream(name="S", subjects=["s.>"])
    blocks = [
        b"NATS/1.0\r\nA: caf\xe9\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\nA: 2\r\nfolded: x\r\n  y\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nEmpty:\r\n\r\n",
    ]
    for block in blocks:
        link_of(nc).outbox.publish(*link_of(nc).frame(b"s.\xff", b"x", None, block))
    nc.flush()
    eventually(lambda: js.get_stream("S").info.state.messages == len(blocks))
    rows = read("S").orderBy("seq").collect()
    assert rows[0].subject == "s.\ufffd"
    assert rows[0].headers == {"A": ["caf\ufffd"]}
    assert rows[1].headers == {"A": ["1", "2"], "folded": ["x y"]}
    assert rows[2].headers == {}
    assert rows[3].headers == {"Empty": [""]}


def test_subject_filters(read: Read, fill: Fill, js: JetStream) -> None:
    """One filter or several: what matches comes, in every partition, though the range goes beyond."""
    js.create_stream(name="S", subjects=["s.>"])
    for turn in range(20):
        for subject in ("s.a", "s.b.c", "s.d"):
            fill(subject, 5, first=turn)
    assert read("S", subjects="s.a", minPartitions=4).count() == 100
    assert read("S", subjects="s.a, s.b.*", minPartitions=4).count() == 200
    assert read("S", subjects="s.x").count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 101)),
        ({"startingOffsets": "latest"}, ()),
        ({"startingOffsets": '{"seq": 90}'}, range(90, 101)),
        ({"endingOffsets": '{"seq": 11}'}, range(1, 11)),
        ({"startingOffsets": '{"seq": 5}', "endingOffsets": '{"seq": 5}'}, ()),
        ({"startingOffsets": '{"seq": 99}', "endingOffsets": '{"seq": 5000}'}, (99, 100)),
        ({"startingOffsets": '{"seq": 5000}'}, ()),
    ],
)
def test_offsets(read: Read, fill: Fill, js: JetStream, options: dict[str, str], expected: range) -> None:
    """Batches start and end where the options say; an end is exclusive, as Kafka's is."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 100)
    assert sequences(read("S", **options)) == list(expected)


def test_offsets_by_time(read: Read, fill: Fill, js: JetStream) -> None:
    """A timestamp finds the first message stored then or later."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 50)
    between = datetime.now(timezone.utc)
    fill("s.a", 50)
    assert sequences(read("S", startingOffsets=between.isoformat())) == list(range(51, 101))
    assert sequences(read("S", endingOffsets=between.isoformat())) == list(range(1, 51))
    assert sequences(read("S", startingOffsets="2100-01-01T00:00:00Z")) == []


def test_empty_stream(read: Read, js: JetStream) -> None:
    """No message, no row, no error."""
    js.create_stream(name="S", subjects=["s.>"])
    assert read("S").count() == 0


def test_holes_are_no_loss(read: Read, fill: Fill, js: JetStream) -> None:
    """Deleted messages, and those a subject's limit removed, are just not there."""
    js.create_stream(name="S", subjects=["s.>"], max_msgs_per_subject=5)
    fill("s.first", 1)
    fill("s.a", 20)
    js.get_stream("S").delete_message(19)
    assert sequences(read("S", minPartitions=3)) == [1, 17, 18, 20, 21]


def test_large_messages(read: Read, js: JetStream) -> None:
    """Messages of a megabyte, more than one pull takes."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(40):
        js.publish("s.a", bytes([number]) * 1_000_000)
    assert read("S").selectExpr("sum(length(data))").first()[0] == 40_000_000


def test_purged_between_planning_and_reading(read: Read, fill: Fill, js: JetStream) -> None:
    """failOnDataLoss raises and names the range; with false the job ends with what is left."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 100)
    strict = read("S").rdd
    lenient = read("S", failOnDataLoss="false").rdd
    assert strict.getNumPartitions() == lenient.getNumPartitions() == 1
    js.get_stream("S").purge(sequence=61)
    with pytest.raises(Exception, match=r"data loss in stream 'S': sequences 1 to 60 .*failOnDataLoss"):
        strict.count()
    assert lenient.count() == 40


def test_loss_is_reported_where_it_does_not_fail(
    nats_server: LocalServer, fill: Fill, js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false the log names the range that was lost."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 100)
    options = {"servers": nats_server.url, "stream": "S", "failOnDataLoss": "false"}
    reader = JetStreamReader(ReadOptions.parse(options), ("seq",))
    (partition,) = reader.partitions()
    js.get_stream("S").purge(sequence=61)
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        assert sum(batch.num_rows for batch in reader.read(partition)) == 40
    assert "sequences 1 to 60" in caplog.text


def test_purged_while_reading(nats_server: LocalServer, fill: Fill, js: JetStream) -> None:
    """A purge in the middle of a range is noticed, too."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill("s.a", 60_000)
    options = {"servers": nats_server.url, "stream": "S", "maxMessagesPerPartition": "100000"}
    reader = JetStreamReader(ReadOptions.parse({**options, "maxMessagesPerPartition": "60000"}), ("seq",))
    partition = max(reader.partitions(), key=lambda each: each.end - each.start)
    partition.start, partition.end = 1, 60_001
    batches = reader.read(partition)
    assert next(batches).num_rows == 10_000
    js.get_stream("S").purge(sequence=60_000)
    with pytest.raises(DataLossError, match="data loss"):
        list(batches)


@pytest.fixture
def half_matching(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pa.RecordBatch]:
    """500 of 1000 messages read by a filter, in batches of 100. The stream's odd sequences match."""
    monkeypatch.setattr(fetchers, "RUN", 100)
    monkeypatch.setattr(fetchers, "CHUNK_ROWS", 100)
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(1000):
        js.publish_async(f"s.{'ab'[number % 2]}", b"x")
    js.publish_async_wait(60)
    options = ReadOptions.parse({"servers": nats_server.url, "stream": "S", "subjects": "s.a"})
    reader = JetStreamReader(options, ("seq",))
    (partition,) = reader.partitions()
    return reader.read(partition)


def test_retention_behind_a_filtered_read_is_no_loss(
    half_matching: Iterator[pa.RecordBatch], js: JetStream
) -> None:
    """Only messages that had been read, or did not match, were removed: that is no loss."""
    assert next(half_matching).num_rows == 100
    (name,) = js.get_stream("S").consumer_names()
    eventually(lambda: js.get_consumer("S", name).info.num_pending == 0, message="all is on its way")
    js.get_stream("S").purge(sequence=701)
    assert sum(batch.num_rows for batch in half_matching) == 400


def test_retention_ahead_of_a_filtered_read_is_noticed(
    half_matching: Iterator[pa.RecordBatch], js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that match were removed before they were read: the error counts them."""
    monkeypatch.setattr(fetchers, "PULL_MESSAGES", 100)
    assert next(half_matching).num_rows == 100
    js.get_stream("S").purge(sequence=601)
    with pytest.raises(DataLossError, match="200 messages of sequences 200 to 600 were removed"):
        list(half_matching)


def test_recreated_between_planning_and_reading(nats_server: LocalServer, fill: Fill, js: JetStream) -> None:
    """A stream that was deleted and created again after planning is reported as data loss."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 10)
    reader = JetStreamReader(ReadOptions.parse({"servers": nats_server.url, "stream": "S"}), ("seq",))
    (partition,) = reader.partitions()
    js.delete_stream("S")
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 10)
    with pytest.raises(DataLossError, match="created anew"):
        list(reader.read(partition))


@pytest.mark.parametrize("allow_direct", [True, False])
def test_work_queue_and_interest_streams(read: Read, fill: Fill, js: JetStream, allow_direct: bool) -> None:
    """Streams that refuse consumers without acks are read all the same, headers, time and filters included."""
    js.create_stream(name="S", subjects=["s.>"], retention="workqueue", allow_direct=allow_direct)
    fill("s.a", 1500)
    js.publish("s.b", b"last", headers={"A": ["1", "2"]}, msg_id="id")
    js.get_stream("S").delete_message(700)
    assert sequences(read("S", minPartitions=2)) == [n for n in range(1, 1502) if n != 700]
    (row,) = read("S", subjects="s.b", tsNanos="true").collect()
    assert (row.subject, bytes(row.data), row.headers["A"]) == ("s.b", b"last", ["1", "2"])
    assert row.headers["Nats-Msg-Id"] == ["id"]
    assert set(row.headers) == {"A", "Nats-Msg-Id"}
    assert row.ts_ns // 1000 == int(row.ts.timestamp()) * 1_000_000 + row.ts.microsecond
    assert read("S", subjects="s.b,s.c").count() == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stream": "S", "startOffsets": "latest"}, "startOffsets|startoffsets"),
        ({"stream": "S", "minPartitions": "many"}, "minPartitions"),
        ({}, "'stream' is required"),
        ({"stream": "NOSUCH"}, "stream not found"),
    ],
)
def test_bad_options_are_named(
    spark: SparkSession, nats_server: LocalServer, options: dict[str, str], named: str
) -> None:
    """An unknown option, a bad value, a missing stream: the error says which."""
    with pytest.raises(Exception, match=named):
        spark.read.format("jetstream").options(servers=nats_server.url, **options).load().count()


def test_sql(spark: SparkSession, nats_server: LocalServer, fill: Fill, js: JetStream) -> None:
    """`USING jetstream` works in SQL."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 10)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING jetstream OPTIONS (servers '{nats_server.url}', stream 'S')"
    )
    assert spark.sql("SELECT count(*) FROM v WHERE seq > 5").first()[0] == 5
