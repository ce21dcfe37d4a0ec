"""Rates of the Spark source and sink, beside Spark's own: `python -m benchmarks.spark_rates [rows] [--more rows]`.

A million rows of 128 bytes with headers, and a tenth as many of 4 KiB, on local[2] and a server of its own. Every
round runs each scenario once, so that all of them see the same machine. The first round warms Spark's workers up
and is shown as cold; the best of the next ones counts. Beside each rate stands which processes spent how many
microseconds of CPU per row: that is steadier than the rate where the machine has other work, too.

`parquet` and `range` show what Spark itself does with the same rows on the same machine. `rate` is Spark's own
streaming source. With `--more 5000000`, reading and writing are measured with so many rows besides, and the CPU
time per row must be the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.spark import register
from jetstream_sync.spark.java import ensure_java
from jetstream_sync.testing import LocalServer

ROWS = 1_000_000
WARM_ROUNDS = 3
SMALL, LARGE = 128, 4096  # bytes of a payload
# Rows per second that each scenario must reach on two cores that have nothing else to do.
LEAST = {"read": 200_000, "write": 90_000, "exactlyOnce": 60_000}
# How much more CPU time a row may take among five times as many rows.
SAME_COST = 1.15


@dataclass
class Scenario:
    """One thing to measure: `run` is timed, `prepare` is not."""

    name: str
    rows: int
    run: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max(self.rates[1:])

    @property
    def cost(self) -> float:
        """Microseconds of CPU time per row, of all processes, in the best of the warm rounds."""
        return min(self.costs[1:])

    def measure(self) -> None:
        self.prepare()
        began, before = time.perf_counter(), cpu_seconds()
        self.run()
        self.rates.append(self.rows / (time.perf_counter() - began))
        spent = {who: (seconds - before[who]) / self.rows * 1e6 for who, seconds in cpu_seconds().items()}
        self.costs.append(sum(spent.values()))
        costs = ", ".join(f"{who} {micros:.1f}" for who, micros in spent.items())
        when = "cold" if len(self.rates) == 1 else "warm"
        print(f"  {self.name:<18} {when} {self.rates[-1]:>10,.0f} rows/s   µs CPU per row: {costs}", flush=True)

    def verdict(self) -> bool:
        least = LEAST.get(self.name)
        if least is None:
            judged = ""
        else:
            judged = f"at least {least:,}: {'reached' if self.best >= least else 'NOT REACHED'}"
        print(f"{self.name:<20} {self.best:>10,.0f} rows/s {self.cost:>6.1f} µs CPU per row   {judged}")
        return least is None or self.best >= least


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


def rows(spark: SparkSession, prefix: str, count: int, size: int) -> DataFrame:
    """Subjects, `size` bytes of data and two headers per row."""
    return spark.range(0, count, numPartitions=4).select(
        f.concat(f.lit(f"{prefix}."), f.col("id") % 10).alias("subject"),
        f.concat(f.lpad(f.col("id").cast("string"), 16, "0"), f.lit("x" * (size - 16)))
        .cast("binary")
        .alias("data"),
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


class Bench:
    """Makes the scenarios. Each kind of rows has a stream of its own, which a write empties and a read reads."""

    def __init__(self, spark: SparkSession, server: LocalServer, js: JetStream, folder: Path) -> None:
        self._spark = spark
        self._url = server.url
        self._js = js
        self._folder = folder

    def write(self, name: str, count: int, size: int = SMALL, **options: str) -> Scenario:
        stream = f"S{count}x{size}{'E' if options else ''}"
        prefix = stream.lower()
        if options:
            options["markerSubject"] = f"{prefix}.marks"

        def prepare() -> None:
            self._js.create_or_update_stream(
                name=stream, subjects=[f"{prefix}.>"], allow_atomic=True, allow_rollup_hdrs=True
            )
            self._js.get_stream(stream).purge()

        def run() -> None:
            writer = rows(self._spark, prefix, count, size).write.format("jetstream")
            writer.options(servers=self._url, stream=stream, **options).mode("append").save()
            state = self._js.get_stream(stream).info.state
            # With rollup, one marker per partition stays.
            stored = state.messages if not options else self._count(stream, prefix)
            assert stored == count, f"{stored} of {count} rows are stored"

        return Scenario(name, count, run, prepare)

    def _count(self, stream: str, prefix: str) -> int:
        """The messages of a stream that are no markers: rows have one more token behind the prefix."""
        consumer = self._js.create_consumer(stream, ack_policy="none", filter_subject=f"{prefix}.*")
        consumer.delete()
        return int(consumer.info.num_pending)

    def read(self, name: str, count: int, size: int = SMALL) -> Scenario:
        def run() -> None:
            source = self._spark.read.format("jetstream").options(servers=self._url, stream=f"S{count}x{size}")
            # Every column crosses into Spark; noop takes the rows and keeps nothing.
            source.load().write.format("noop").mode("overwrite").save()

        return Scenario(name, count, run)

    def parquet(self, count: int) -> list[Scenario]:
        path = str(self._folder / "rows.parquet")

        def write() -> None:
            rows(self._spark, "bench", count, SMALL).write.mode("overwrite").parquet(path)

        def read() -> None:
            self._spark.read.parquet(path).write.format("noop").mode("overwrite").save()

        return [Scenario("parquet write", count, write), Scenario("parquet read", count, read)]

    def range(self, count: int) -> Scenario:
        """How long Spark takes to make the rows."""

        def run() -> None:
            rows(self._spark, "bench", count, SMALL).write.format("noop").mode("overwrite").save()

        return Scenario("range to noop", count, run)

    def rate(self, count: int) -> Scenario:
        """A micro-batch of Spark's own streaming source."""
        checkpoint = self._folder / "rate"

        def run() -> None:
            source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count)
            sink = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
            query = sink.trigger(availableNow=True).start()
            query.awaitTermination()
            shutil.rmtree(checkpoint)

        return Scenario("rate to noop", count, run)


def main(count: int, more: int | None) -> int:
    spark = session()
    with (
        LocalServer() as server,
        jetstream_sync.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = Bench(spark, server, nc.jetstream(timeout=60), Path(folder))
        scenarios = [
            bench.write("write", count),
            bench.read("read", count),
            bench.write("exactlyOnce", count, exactlyOnce="true"),
        ]
        if more is None:
            large = count // 10
            scenarios += [bench.write("write 4 KiB", large, LARGE), bench.read("read 4 KiB", large, LARGE)]
            scenarios += [*bench.parquet(count), bench.range(count), bench.rate(count)]
        else:
            scenarios += [
                bench.write("write more", more),
                bench.read("read more", more),
                bench.write("exactlyOnce more", more, exactlyOnce="true"),
            ]
        for number in range(1 + (WARM_ROUNDS if more is None else 2)):
            print(f"round {number}", flush=True)
            for scenario in scenarios:
                scenario.measure()
    spark.stop()
    print()
    verdicts = [scenario.verdict() for scenario in scenarios]
    if more is not None:
        verdicts.append(same_cost(scenarios))
    return 0 if all(verdicts) else 1


def same_cost(scenarios: list[Scenario]) -> bool:
    """Whether a row costs as much CPU time among more rows."""
    by_name = {scenario.name: scenario for scenario in scenarios}
    good = True
    for name in LEAST:
        few, many = by_name[name], by_name[f"{name} more"]
        ratio = many.cost / few.cost
        good &= ratio <= SAME_COST
        verdict = "the same" if ratio <= SAME_COST else f"MORE THAN {SAME_COST} ×"
        print(f"{name:<20} {many.rows:,} rows against {few.rows:,}: {ratio:.2f} × the CPU time per row: {verdict}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rates of the Spark source and sink.")
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("--more", type=int, help="compare the cost per row with so many rows")
    arguments = parser.parse_args()
    sys.exit(main(arguments.rows, arguments.more))
