"""Rates of the Spark source and sink: `python -m benchmarks.spark_rates [rows]`.

A million rows of 128 bytes with headers, on local[2] and a server of its own. The first run of each warms Spark's
workers up and is shown as cold; the best of the next ones counts. Beside each rate stands who spent how many
microseconds of CPU per row: that is steadier than the rate where the machine has other work, too.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import jetstream_sync
from jetstream_sync.spark import register
from jetstream_sync.spark.java import ensure_java
from jetstream_sync.testing import LocalServer

ROWS = 1_000_000
WARM_RUNS = 3
READ_FLOOR, READ_GOAL = 100_000, 170_000
WRITE_FLOOR, WRITE_GOAL = 50_000, 80_000


def session() -> SparkSession:
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Subjects, 128 bytes of data and two headers per row."""
    return spark.range(0, count, numPartitions=4).select(
        f.concat(f.lit("bench."), f.col("id") % 10).alias("subject"),
        f.lpad(f.col("id").cast("string"), 128, "x").cast("binary").alias("data"),
        f.create_map(
            f.lit("Region"), f.array(f.lit("north")), f.lit("Number"), f.array(f.col("id").cast("string"))
        ).alias("headers"),
    )


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of the server, of Spark's JVM and of its Python workers: all children of this process."""
    spent = {"server": 0.0, "jvm": 0.0, "workers": 0.0}
    parents: dict[int, tuple[int, str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, name, fields = re.fullmatch(r"(\d+) \((.*)\) (.*)", stat.read_text().strip(), re.DOTALL).groups()
        except (OSError, AttributeError):
            continue  # ended meanwhile
        numbers = fields.split()
        parents[int(pid)] = (int(numbers[1]), name, sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK"))
    for pid, (_, name, seconds) in parents.items():
        if _descends(pid, parents):
            spent[{"java": "jvm", "nats-server": "server"}.get(name, "workers")] += seconds
    return spent


def _descends(pid: int, parents: dict[int, tuple[int, str, float]]) -> bool:
    ancestor = parents[pid][0]
    while ancestor in parents and ancestor != os.getpid():
        ancestor = parents[ancestor][0]
    return ancestor == os.getpid()


def measured(what: str, count: int, floor: int, goal: int, run: Callable[[], None]) -> bool:
    rates = []
    for turn in range(1 + WARM_RUNS):
        began, before = time.perf_counter(), cpu_seconds()
        run()
        rates.append(count / (time.perf_counter() - began))
        spent = {who: (seconds - before[who]) / count * 1e6 for who, seconds in cpu_seconds().items()}
        costs = ", ".join(f"{who} {micros:.1f}" for who, micros in spent.items())
        print(
            f"  {what} {'cold' if not turn else 'warm'}: {rates[-1]:>10,.0f} rows/s   µs CPU per row: {costs}",
            flush=True,
        )
    best = max(rates[1:])
    verdict = "goal reached" if best >= goal else "floor reached" if best >= floor else "BELOW THE FLOOR"
    print(f"{what:<6} {best:>10,.0f} rows/s   floor {floor:,}   goal {goal:,}   {verdict}")
    return best >= floor


def main(count: int = ROWS) -> int:
    spark = session()
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream(timeout=30)

        def write() -> None:
            js.create_or_update_stream(name="BENCH", subjects=["bench.*"])
            js.get_stream("BENCH").purge()
            writer = rows(spark, count).write.format("jetstream")
            writer.options(servers=server.url, stream="BENCH").mode("append").save()
            stored = js.get_stream("BENCH").info.state.messages
            assert stored == count, f"{stored} of {count} rows are stored"

        def read() -> None:
            source = spark.read.format("jetstream").options(servers=server.url, stream="BENCH")
            # Every column crosses into Spark; noop takes the rows and keeps nothing.
            source.load().write.format("noop").mode("overwrite").save()

        good = measured("write", count, WRITE_FLOOR, WRITE_GOAL, write)
        good &= measured("read", count, READ_FLOOR, READ_GOAL, read)
    spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
