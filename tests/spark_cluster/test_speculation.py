"""`spark.speculation=true`: two attempts of a task write side by side, and every row is stored once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.queries import CopyQuery, copied, once
from tests.support.eventually import eventually
from tests.support.observer import fill

ROWS = 60_000


@pytest.fixture(scope="module")
def spark_settings() -> dict[str, str]:
    """Spark starts a second attempt of a task as soon as it takes longer than the others."""
    return {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "100ms",
    }


SINKS = pytest.mark.parametrize(
    "sink", [{}, {"exactlyOnce": "true", "markerSubject": "marks"}], ids=["default", "exactlyOnce"]
)


@pytest.fixture
def out(js: JetStream) -> None:
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )


def was_overtaken(folder: Path) -> bool:
    """Whether the first attempt has waited, and a second one has come."""
    return len(list(folder.glob("fault-happened*"))) >= 2


def wait_for_zombies(server: LocalServer) -> None:
    """Wait until no task writes any more: an attempt that Spark has given up may outlive its job for a while."""

    def over() -> bool:
        return not any("spark write" in each.get("name", "") for each in server.monitor("/connz")["connections"])

    eventually(over, 60, "the last attempt has ended")


def test_two_attempts_read_at_once(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path
) -> None:
    """Spark takes the rows of the attempt that ends first, and those only."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    fill(js, ROWS, subject="in.a")
    fault = {"fault": "overtaken while reading", "marker": str(tmp_path / "fault-happened")}
    source = spark.read.format("jetstream_faulty").options(servers=nats_server.url, stream="IN", **fault)
    counted = source.load().selectExpr("count(seq)", "count(distinct seq)").first()
    assert was_overtaken(tmp_path)
    assert tuple(counted) == (ROWS, ROWS)


@SINKS
@pytest.mark.parametrize("fault", ["overtaken while writing", "overtaken by a slow attempt"])
def test_two_attempts_write_at_once(
    spark: SparkSession,
    nats_server: LocalServer,
    js: JetStream,
    out: None,
    sink: dict[str, str],
    fault: str,
    tmp_path: Path,
) -> None:
    """The job ends well, whichever of the attempts comes first, and however long the other one takes."""
    frame = spark.range(0, ROWS, numPartitions=4).selectExpr("cast(id as string) as data")
    options = {"servers": nats_server.url, "subject": "out.copy", **sink}
    options |= {"fault": fault, "marker": str(tmp_path / "fault-happened")}
    frame.write.format("jetstream_faulty").options(**options).mode("append").save()
    assert was_overtaken(tmp_path)
    wait_for_zombies(nats_server)
    assert copied(js) == once(*range(ROWS))


@SINKS
def test_two_attempts_of_a_micro_batch(
    spark: SparkSession,
    nats_server: LocalServer,
    js: JetStream,
    out: None,
    sink: dict[str, str],
    tmp_path: Path,
) -> None:
    """A streaming query goes on, too, and its next batches are stored once."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    fill(js, ROWS, subject="in.a")
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["maxMessagesPerTrigger"] = ROWS * 2 // 3
    query.write_options.update(sink)
    query.write_fault = "overtaken while writing"
    query.run_to_the_end()
    assert was_overtaken(tmp_path)
    wait_for_zombies(nats_server)
    assert copied(js) == once(*range(1, ROWS + 1))
