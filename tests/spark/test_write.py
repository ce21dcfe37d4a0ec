"""Batch writes: what the columns mean, and that nothing is stored twice."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_sync import JetStream
from jetstream_sync.spark.checks import check_stream
from jetstream_sync.spark.encoding import batch_of
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.outgoing import Columns
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import IdempotentSink, sink_of
from jetstream_sync.testing import LocalServer

Write = Callable[..., None]


@pytest.fixture
def write(nats_server: LocalServer) -> Write:
    def save(frame: DataFrame, mode: str = "append", **options: Any) -> None:
        frame.write.format("jetstream").options(servers=nats_server.url, **options).mode(mode).save()

    return save


def test_columns_become_messages(spark: SparkSession, write: Write, js: JetStream) -> None:
    """Subject, data, headers, id and ttl are those of the row; columns the sink does not know are passed over."""
    js.create_stream(name="S", subjects=["s.>"], allow_msg_ttl=True)
    rows = [("s.a", b"\x00\xff", {"A": ["1", "2"]}, "id-1", 60, 7), ("s.b", b"", None, None, None, 8)]
    schema = "subject string, data binary, headers map<string,array<string>>, msg_id string, ttl int, other int"
    write(spark.createDataFrame(rows, schema).coalesce(1))
    first, second = js.get_stream("S").get_message(1), js.get_stream("S").get_message(2)
    assert (first.subject, first.data, first.headers.get_all("A")) == ("s.a", b"\x00\xff", ["1", "2"])
    assert (first.headers["Nats-Msg-Id"], first.headers["Nats-TTL"]) == ("id-1", "60s")
    assert (second.subject, second.data) == ("s.b", b"")
    assert re.fullmatch(r"\w+/0/[0-9a-f]{16}\.0", second.headers["Nats-Msg-Id"])


def test_subject_option_and_strings(spark: SparkSession, write: Write, js: JetStream) -> None:
    """The option `subject` wins over the column; strings are written as UTF-8; every id is different."""
    js.create_stream(name="S", subjects=["s.>"])
    write(spark.range(1000).selectExpr("'ü' as data", "'elsewhere' as subject"), subject="s.x", stream="S")
    info = js.get_stream("S").get_info(subjects_filter=">")
    assert info.state.subjects == {"s.x": 1000}
    assert js.get_stream("S").get_message(1).data == "ü".encode()


def test_copy_of_a_stream_keeps_headers(
    spark: SparkSession, write: Write, nats_server: LocalServer, js: JetStream
) -> None:
    """What was read can be written: user headers stay, what judged the first publish does not."""
    js.create_stream(name="S", subjects=["s.>"])
    js.create_stream(name="T", subjects=["t.>"])
    js.publish("s.a", b"1", headers={"A": ["x", "y"]}, msg_id="old", expected_stream="S")
    write(spark.read.format("jetstream").options(servers=nats_server.url, stream="S").load(), subject="t.a")
    copy = js.get_stream("T").get_message(1)
    assert copy.headers.get_all("A") == ["x", "y"]
    assert copy.headers["Nats-Msg-Id"] != "old"
    assert "Nats-Expected-Stream" not in copy.headers


@pytest.mark.parametrize(
    ("frame", "options", "mode", "named"),
    [
        ("1 as data", {"subject": "s.a"}, "append", "'data' must be binary or string"),
        ("'x' as payload", {"subject": "s.a"}, "append", "column 'data'"),
        ("'x' as data", {}, "append", "'subject'"),
        ("'x' as data", {"subject": "s.a"}, "overwrite", "append"),
        ("'x' as data", {"subject": "s.a", "exactlyOnce": "true"}, "append", "markerSubject"),
        (
            "'x' as data",
            {"subject": "s.a", "exactlyOnce": "true", "markerSubject": "s.m"},
            "append",
            "allow_atomic",
        ),
        ("'x' as data", {"subject": "unstored.a"}, "append", "no stream"),
        ("'x' as data", {"subject": "s.a", "topic": "t"}, "append", "topic"),
        ("'x' as data, 'unstored.listens' as subject", {"publishTimeout": "1"}, "append", "no stream answered"),
        ("'x' as data, 's. a' as subject", {}, "append", "s. a"),
    ],
)
def test_what_cannot_work_is_named(
    spark: SparkSession, write: Write, js: JetStream, frame: str, options: dict[str, str], mode: str, named: str
) -> None:
    """Missing columns, wrong types and options, subjects without stream: the error says which."""
    js.create_stream(name="S", subjects=["s.>"])
    with pytest.raises(Exception, match=named):
        write(spark.range(1).selectExpr(*frame.split(", ")), mode=mode, **options)
    assert js.get_stream("S").info.state.messages == 0


def test_exactly_once_batch_write(spark: SparkSession, write: Write, js: JetStream) -> None:
    """Rows arrive once, in chunks with a marker each, on a subject of their own."""
    js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
    frame = spark.range(0, 5000, numPartitions=2).selectExpr("cast(id as string) as data", "'s.data' as subject")
    write(frame, exactlyOnce="true", markerSubject="s.markers")
    subjects = js.get_stream("S").get_info(subjects_filter=">").state.subjects
    assert subjects.pop("s.data") == 5000
    assert sorted(name.rpartition(".")[2] for name in subjects) == ["0", "1"]
    assert set(subjects.values()) == {3}


# --- the sinks themselves, as a task that runs again sees them --------------------------------------------


def rows(count: int) -> pa.RecordBatch:
    return batch_of(Columns([b"%d" % number for number in range(count)]))


def run_sink(server: LocalServer, count: int, options: dict[str, str], *, finish: bool = True) -> Any:
    parsed = WriteOptions.parse({"servers": server.url, "subject": "s.data", **options})
    nc = open_connection(parsed, "test")
    try:
        sink = sink_of(jetstream_of(nc, parsed), parsed, TaskIdentity("query", 0, 0))
        sink.write(rows(count))
        return sink.finish() if finish else None
    finally:
        nc.close()


ATOMIC = {"exactlyOnce": "true", "markerSubject": "s.markers"}


@pytest.mark.parametrize("options", [{}, ATOMIC])
def test_task_that_runs_again_stores_nothing_twice(
    nats_server: LocalServer, js: JetStream, options: dict[str, str]
) -> None:
    """A second attempt reports every row as a duplicate."""
    js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
    first = run_sink(nats_server, 2500, options)
    again = run_sink(nats_server, 2500, options)
    assert (first.rows, first.duplicates) == (2500, 0)
    assert (again.rows, again.duplicates) == (2500, 2500)
    assert js.get_stream("S").get_info(subjects_filter="s.data").state.subjects == {"s.data": 2500}


def test_short_duplicate_window_is_warned_of(
    nats_server: LocalServer, js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    """A window shorter than a replay may take is said at start, with what to do."""
    js.create_stream(name="S", subjects=["s.>"], duplicate_window=10)
    js.create_stream(name="T", subjects=["t.>"])
    options = WriteOptions.parse({"servers": nats_server.url})
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        check_stream(js, options, "T")
        assert caplog.text == ""
        check_stream(js, options, "S")
    assert "duplicate_window of 10 s" in caplog.text
    assert "exactlyOnce" in caplog.text


def test_short_duplicate_window_is_warned_of_when_rows_name_the_subject(
    nats_server: LocalServer, js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    """The options do not tell the stream: the first task says it once it knows."""
    js.create_stream(name="S", subjects=["s.>"], duplicate_window=10)
    options = WriteOptions.parse({"servers": nats_server.url})
    named = pa.RecordBatch.from_pydict({"subject": ["s.data"] * 5, "data": [b"x"] * 5})
    with open_connection(options, "test") as nc, caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        for partition in (1, 0):
            assert caplog.text == ""
            sink = IdempotentSink(jetstream_of(nc, options), options, TaskIdentity("query", 3, partition))
            sink.write(named)
            sink.finish()
    assert "duplicate_window of 10 s" in caplog.text
