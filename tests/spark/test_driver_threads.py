"""Writing from another thread of the driver: what fails there, and what docs/spark-deploy.md says helps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.queries import FINISH_SECONDS


def outcome_in_a_thread(action: Callable[[], object]) -> str:
    """How `action` ends in a thread of its own: the text of its error, or nothing."""
    outcome = [""]

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is looked at
            outcome[0] = str(error) or repr(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(FINISH_SECONDS)
    assert not thread.is_alive()
    return outcome[0]


@pytest.fixture
def copy(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path
) -> dict[str, Callable[[], object]]:
    """A batch write and a streaming query, from S to OUT."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    js.create_stream(name="OUT", subjects=["out.>"], storage="memory")
    js.publish("s.a", b"one")

    def batch() -> None:
        frame = spark.read.format("jetstream").options(servers=nats_server.url, stream="S").load()
        writer = frame.select("data").write.format("jetstream")
        writer.options(servers=nats_server.url, subject="out.a").mode("append").save()

    def streaming() -> None:
        source = spark.readStream.format("jetstream").options(servers=nats_server.url, stream="S")
        rows = source.option("startingOffsets", "earliest").load().select("data")
        sink = rows.writeStream.format("jetstream").options(servers=nats_server.url, subject="out.b")
        query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination(FINISH_SECONDS)

    return {"batch": batch, "streaming": streaming}


@pytest.mark.parametrize("kind", ["batch", "streaming"])
def test_thread_needs_an_active_session(
    spark: SparkSession, js: JetStream, copy: dict[str, Callable[[], object]], kind: str
) -> None:
    """A thread has no active session, in which Spark looks for a sink; createDataFrame() sets it."""
    assert "DATA_SOURCE_NOT_FOUND" in outcome_in_a_thread(copy[kind])

    def with_active_session() -> None:
        spark.createDataFrame([], "nothing int")
        copy[kind]()

    assert outcome_in_a_thread(with_active_session) == ""
    assert js.get_stream("OUT").info.state.messages == 1


def test_foreach_batch_needs_nothing(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, copy: dict[str, object], tmp_path: Path
) -> None:
    """The function of foreachBatch runs in a thread of Spark's, which has the session of the query."""

    def write(batch: object, epoch: int) -> None:
        writer = batch.select("data").write.format("jetstream")  # type: ignore[attr-defined]
        writer.options(servers=nats_server.url, subject="out.c").mode("append").save()

    source = spark.readStream.format("jetstream").options(servers=nats_server.url, stream="S")
    rows = source.option("startingOffsets", "earliest").load()
    query = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(FINISH_SECONDS)
    assert js.get_stream("OUT").info.state.messages == 1
