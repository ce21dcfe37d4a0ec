"""Named writes (writeId, epoch): a job that runs again, or a replayed foreachBatch, stores nothing twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from jetstream_sync import JetStream
from jetstream_sync.spark.encoding import batch_of
from jetstream_sync.spark.message_ids import TaskIdentity, Written
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.outgoing import Columns
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import sink_of
from jetstream_sync.spark.source import JetStreamDataSource
from jetstream_sync.testing import LocalServer
from tests.spark.conftest import ROOT
from tests.spark.queries import copied, once

Fill = Callable[..., None]

DEFAULT: dict[str, str] = {}
EXACTLY_ONCE = {"exactlyOnce": "true", "markerSubject": "markers.s"}
MODES = pytest.mark.parametrize("mode", [DEFAULT, EXACTLY_ONCE], ids=["default", "exactlyOnce"])


@pytest.fixture(autouse=True)
def _streams(js: JetStream) -> None:
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>", "markers.>"], allow_atomic=True, allow_rollup_hdrs=True)


# --- the sinks ------------------------------------------------------------------------------------------------


def run_task(server: LocalServer, rows: range, epoch: int, mode: dict[str, str]) -> Written:
    options = WriteOptions.parse(
        {"servers": server.url, "subject": "out.copy", "writeId": "my app", "epoch": str(epoch), **mode}
    )
    assert options.write_id is not None
    with open_connection(options, "test") as nc:
        identity = TaskIdentity(options.write_id, options.epoch, 0, named=True)
        sink = sink_of(jetstream_of(nc, options), options, identity)
        sink.write(batch_of(Columns([b"%d" % number for number in rows])))
        return sink.finish()


@MODES
def test_epochs_of_a_name(nats_server: LocalServer, js: JetStream, mode: dict[str, str]) -> None:
    """The same epoch again is recognised, another one is stored, even with the same rows."""
    assert run_task(nats_server, range(1500), 7, mode).duplicates == 0
    assert run_task(nats_server, range(1500), 7, mode).duplicates == 1500
    assert run_task(nats_server, range(1500), 8, mode).duplicates == 0
    assert copied(js) == Counter(dict.fromkeys(range(1500), 2))


def test_older_epoch_is_skipped_with_exactly_once(nats_server: LocalServer, js: JetStream) -> None:
    """As with Delta's txnVersion: what is older than the newest epoch counts as done, whatever its rows are."""
    run_task(nats_server, range(1500), 7, EXACTLY_ONCE)
    late = run_task(nats_server, range(5000, 5010), 6, EXACTLY_ONCE)
    assert (late.rows, late.duplicates) == (10, 10)
    assert copied(js) == once(*range(1500))


# --- with Spark -------------------------------------------------------------------------------------------------


@MODES
def test_job_that_runs_again(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, mode: dict[str, str]
) -> None:
    """Without a name its rows are stored again; with one they are not."""

    def job(**options: Any) -> None:
        frame = spark.range(0, 2000, numPartitions=2).selectExpr("cast(id as string) as data")
        writer = frame.write.format("jetstream").options(servers=nats_server.url, subject="out.copy", **mode)
        writer.options(**options).mode("append").save()

    job(writeId="nightly", epoch=20260101)
    job(writeId="nightly", epoch=20260101)
    assert copied(js) == once(*range(2000))
    job(writeId="nightly", epoch=20260102)
    assert copied(js) == Counter(dict.fromkeys(range(2000), 2))


def test_streaming_query_refuses_a_name(nats_server: LocalServer) -> None:
    """It is named by its checkpoint."""
    source = JetStreamDataSource({"servers": nats_server.url, "subject": "out.copy", "writeId": "w"})
    schema = StructType([StructField("data", StringType())])
    with pytest.raises(ValueError, match="option 'writeId' is for batch writes"):
        source.streamWriter(schema, overwrite=False)


@MODES
def test_replayed_foreach_batch(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, fill: Fill, tmp_path: Path, mode: dict[str, str]
) -> None:
    """The function fails after its write: Spark runs the batch again when the query is started anew."""
    fill("in.a", 3000)
    crashes = [True]

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("cast(seq as string) as data")
        writer = rows.write.format("jetstream").options(servers=nats_server.url, subject="out.copy", **mode)
        writer.options(writeId="copy", epoch=batch_id).mode("append").save()
        if crashes.pop():
            raise RuntimeError("the function fails here")

    def run() -> None:
        options = {"servers": nats_server.url, "stream": "IN", "startingOffsets": "earliest"}
        frame = spark.readStream.format("jetstream").options(**options).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(100)

    with pytest.raises(Exception, match="the function fails here"):
        run()
    assert copied(js) == once(*range(1, 3001))
    crashes[:] = [False, False]
    run()
    assert copied(js) == once(*range(1, 3001))


def test_example_of_the_docs(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, fill: Fill, tmp_path: Path
) -> None:
    """The code of docs/spark.md on named writes runs as it is."""
    js.create_stream(name="ORDERS", subjects=["orders.>"])
    js.create_stream(name="COPY", subjects=["copy.>", "totals"])
    fill("orders.a", 300)
    section = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8").partition("## Named writes")[2]
    code = re.search("```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    exec(code[1], {"spark": spark, "url": nats_server.url, "checkpoint": str(tmp_path)})
    assert js.get_stream("COPY").get_info(subjects_filter=">").state.subjects == {
        "copy.orders.a": 300,
        "totals": 1,
    }
