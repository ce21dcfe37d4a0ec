"""Warnings reach stderr: what Spark's Python processes on the driver and on the executors really print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.queries import CopyQuery
from tests.support.eventually import eventually


@pytest.fixture
def printed(spark: SparkSession, spark_stderr: Path) -> Callable[[str], bool]:
    """Wait until Spark's processes have printed a text, beginning with now."""
    before = spark_stderr.stat().st_size

    def waits_for(text: str) -> bool:
        eventually(lambda: text.encode() in spark_stderr.read_bytes()[before:], timeout=120, message=text)
        return True

    return waits_for


def test_driver_prints_what_a_batch_read_skips(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, printed: Callable[[str], bool]
) -> None:
    """With failOnDataLoss=false the range that is gone when a read is planned is on stderr."""
    js.create_stream(name="LOST1", subjects=["lost1"])
    for _ in range(10):
        js.publish("lost1", b"x")
    js.get_stream("LOST1").purge(sequence=5)
    reader = spark.read.format("jetstream").options(
        servers=nats_server.url, stream="LOST1", failOnDataLoss="false"
    )
    assert reader.option("startingOffsets", '{"seq": 1}').load().count() == 6
    assert printed("data loss in stream 'LOST1': sequences 1 to 4 ")


def test_executor_prints_what_a_task_skips(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, printed: Callable[[str], bool]
) -> None:
    """What is removed after the plan is noticed by the task, which says so."""
    js.create_stream(name="LOST2", subjects=["lost2"])
    for _ in range(10):
        js.publish("lost2", b"x")
    reader = spark.read.format("jetstream").options(
        servers=nats_server.url, stream="LOST2", failOnDataLoss="false"
    )
    rows = reader.load().select("seq").rdd
    assert rows.getNumPartitions() == 1  # planned now
    js.get_stream("LOST2").purge(sequence=5)
    assert rows.count() == 6
    assert printed("data loss in stream 'LOST2': sequences 1 to 4 were removed before they were read")


def test_streaming_source_prints_what_it_skips(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path, printed: Callable[[str], bool]
) -> None:
    """A query that goes on from its checkpoint behind a purge says what it did not read."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"], duplicate_window=10)
    copy = CopyQuery(spark, nats_server, tmp_path)
    copy.read_options["failOnDataLoss"] = "false"
    js.publish("in.a", b"x")
    copy.run()
    assert printed("stream 'OUT' has a duplicate_window of 10 s")
    for _ in range(5):
        js.publish("in.a", b"x")
    js.get_stream("IN").purge(sequence=4)
    copy.run()
    assert printed("data loss in stream 'IN': sequences 2 to 3 ")


def test_executor_prints_that_ids_are_forgotten_soon(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, printed: Callable[[str], bool]
) -> None:
    """Where rows name the subject, a task is the first to know the stream: it warns of a short window."""
    js.create_stream(name="SHORT", subjects=["short"], duplicate_window=7)
    rows = spark.range(3).selectExpr("cast(id as string) as data", "'short' as subject")
    rows.write.format("jetstream").options(servers=nats_server.url).mode("append").save()
    assert printed("spark write 0: stream 'SHORT' has a duplicate_window of 7 s")
