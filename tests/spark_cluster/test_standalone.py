"""Read, stream and write on two workers. An executor is killed in the middle of each, and the totals are exact.

The fault is in a task itself, which kills the JVM that runs it: the executor was at work for certain.
What is stored is counted over a connection of the test, never by Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples._cluster import SparkCluster
from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.faulty import executor_of_this_worker
from tests.spark.queries import CopyQuery, copied, once
from tests.support.eventually import eventually

Fill = Callable[..., None]

EXACTLY_ONCE = {"exactlyOnce": "true", "markerSubject": "marks"}
SINKS = pytest.mark.parametrize("sink", [{}, EXACTLY_ONCE], ids=["default", "exactlyOnce"])


@pytest.fixture
def out(js: JetStream) -> None:
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )


@pytest.fixture
def faulty(nats_server: LocalServer, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """The options of the data source that goes wrong in one place, once."""

    def options(fault: str) -> dict[str, Any]:
        return {"servers": nats_server.url, "fault": fault, "marker": str(tmp_path / "fault-happened")}

    return options


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, numPartitions=4).select(f.col("id").cast("string").alias("data"))


def stored(js: JetStream) -> Counter[int]:
    return copied(js, "out.copy")


def all_executors(cluster: SparkCluster) -> list[int]:
    """Wait until every worker has an executor again."""
    return eventually(lambda: len(cluster.executors()) == 2 and cluster.executors(), 60, "two executors") or []


def test_tasks_run_on_both_workers(
    spark: SparkSession, cluster: SparkCluster, nats_server: LocalServer, js: JetStream, fill: Fill
) -> None:
    """A read is divided between two executors, and every message comes once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill("s.a", 100_000)
    executors = all_executors(cluster)
    frame = spark.read.format("jetstream").options(servers=nats_server.url, stream="S", minPartitions=8).load()
    where = f.udf(executor_of_this_worker, "bigint", useArrow=False).asNondeterministic()
    rows = (
        frame.select("seq", where().alias("executor"))
        .groupBy("executor")
        .agg(f.count("seq"), f.countDistinct("seq"))
        .collect()
    )
    assert {row[0] for row in rows} == set(executors)
    assert [sum(row[column] for row in rows) for column in (1, 2)] == [100_000, 100_000]


def test_executor_is_killed_while_reading(
    spark: SparkSession, js: JetStream, fill: Fill, faulty: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    """Its tasks run again on the other executor: every message comes once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill("s.a", 100_000)
    source = spark.read.format("jetstream_faulty").options(**faulty("kill executor reading"), stream="S")
    counted = source.load().selectExpr("count(seq)", "count(distinct seq)", "min(seq)", "max(seq)").first()
    assert (tmp_path / "fault-happened").exists()
    assert tuple(counted) == (100_000, 100_000, 1, 100_000)


@SINKS
def test_executor_is_killed_while_writing(
    spark: SparkSession,
    js: JetStream,
    out: None,
    faulty: Callable[[str], dict[str, Any]],
    sink: dict[str, str],
    tmp_path: Path,
) -> None:
    """The rows that it had stored are recognised: every row is stored once."""
    writer = numbers(spark, 100_000).write.format("jetstream_faulty")
    writer.options(**faulty("kill executor writing"), **sink, subject="out.copy").mode("append").save()
    assert (tmp_path / "fault-happened").exists()
    assert stored(js) == once(*range(100_000))


@SINKS
@pytest.mark.parametrize("fault", ["kill executor reading", "kill executor writing"])
def test_executor_is_killed_while_streaming(
    spark: SparkSession,
    nats_server: LocalServer,
    js: JetStream,
    out: None,
    fill: Fill,
    sink: dict[str, str],
    fault: str,
    tmp_path: Path,
) -> None:
    """The micro-batch ends without the executor, and every message is copied once."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    fill("in.a", 60_000)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["maxMessagesPerTrigger"] = 40_000
    query.read_options["minPartitions"] = 2
    query.write_options.update(sink)
    query.read_fault, query.write_fault = (fault, "") if fault.endswith("reading") else ("", fault)
    query.run_to_the_end()
    assert query.happened()
    assert stored(js) == once(*range(1, 60_001))
