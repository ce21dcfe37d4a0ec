"""A data pipeline: orders in a stream, aggregated by Spark per region and window, results in another stream.

Runs as it is, on a server of its own. It publishes orders, lets a streaming query work off what is there, reads
the results back, and checks that the totals agree with what was published. Then it does so once more from the
same checkpoint, with more orders: the query goes on where it stopped.

With `--cluster` Spark is a standalone cluster of two workers on this machine. One of the two executors is killed
while it reads. The totals agree all the same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from _cluster import SparkCluster
from _spark import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer

REGIONS = ["north", "south", "east", "west"]
FIRST_RUN, SECOND_RUN = 200_000, 50_000
# Each run is one day of the shop: it opens at 08:00, sells an order every 20 ms, and sends a message when it
# closes.
OPENING, CLOSING, DAY = 1_767_254_400, 1_767_304_800, 86_400  # in seconds, the first on 1 January 2026

Totals = dict[str, list[int]]  # region → number of orders, their sum in cents


def main(first_run: int = FIRST_RUN, second_run: int = SECOND_RUN) -> int:
    with session("pipeline") as spark, LocalServer() as server:
        return pipeline(spark, server, first_run, second_run)


def main_on_a_cluster(first_run: int = FIRST_RUN, second_run: int = SECOND_RUN) -> int:
    print("Starting a Spark cluster: a master and two workers")
    with SparkCluster() as cluster, session("pipeline", cluster.url) as spark, LocalServer() as server:
        with an_executor_killed(cluster, server) as killed:
            differ = pipeline(spark, server, first_run, second_run)
        print("An executor was killed on the way" if killed.is_set() else "NO EXECUTOR WAS KILLED")
        return differ or not killed.is_set()


@contextmanager
def an_executor_killed(cluster: SparkCluster, server: LocalServer) -> Iterator[threading.Event]:
    """Kill the first executor that is seen reading. The event tells that it has happened."""
    killed, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.01) and not killed.is_set():
            for connection in server.monitor("/connz")["connections"]:
                reads = connection.get("name", "").startswith("spark read")
                executor = cluster.executor_with(connection["port"]) if reads else None
                if executor is not None and not killed.is_set():
                    os.kill(executor, signal.SIGKILL)
                    print(f"  killed the executor with process id {executor}, which was reading", flush=True)
                    killed.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


def pipeline(spark: SparkSession, server: LocalServer, first_run: int, second_run: int) -> int:
    random.seed(6)
    published: Totals = defaultdict(lambda: [0, 0])
    with tempfile.TemporaryDirectory() as checkpoint:
        with jetstream_sync.connect(server.url) as nc:
            js = nc.jetstream()
            js.create_stream(name="ORDERS", subjects=["orders.*"])
            js.create_stream(name="REVENUE", subjects=["revenue.*"])
            agree = True
            for day, count in enumerate((first_run, second_run)):
                publish_orders(js, day, count, published)
                run_query(spark, server.url, checkpoint)
                agree &= show_results(js, published)
    orders = sum(count for count, _ in published.values())
    print(f"\n2 days, {orders:,} orders: {'all totals agree' if agree else 'TOTALS DIFFER'}")
    return 0 if agree else 1


def publish_orders(js: JetStream, day: int, count: int, published: Totals) -> None:
    """Publish pipelined: thousands of orders may wait for their ack at once; in the end all are stored."""
    print(f"\nPublishing {count:,} orders")
    began = time.perf_counter()

    def orders() -> Iterator[tuple[str, bytes, None, str]]:
        for number in range(count):
            region, cents = random.choice(REGIONS), random.randrange(100, 50_000)
            order = {"cents": cents, "at": OPENING + day * DAY + number * 0.02}
            published[region][0] += 1
            published[region][1] += cents
            yield f"orders.{region}", json.dumps(order).encode(), None, f"order-{day}-{number}"

    js.publish_many(orders(), timeout=60, progress=lambda so_far: progress(so_far.published, count))
    # Spark writes the result of a window when the watermark has passed it: a last message ends the day.
    js.publish("orders.none", json.dumps({"cents": 0, "at": CLOSING + day * DAY}).encode())
    rate("published", count, began)


def run_query(spark: SparkSession, url: str, checkpoint: str) -> None:
    """Process everything that is in the stream now. The checkpoint records the position."""
    print("Aggregating with Structured Streaming")
    began = time.perf_counter()
    orders = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("stream", "ORDERS")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", 100_000)
        .load()
    )
    query = (
        results_of(revenue_per_window(orders))
        .writeStream.format("jetstream")
        .option("servers", url)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    rows = sum(batch["numInputRows"] for batch in batches)
    start = json.loads(batches[0]["sources"][0]["startOffset"] or "null")  # none before the first batch
    end = json.loads(batches[-1]["sources"][0]["endOffset"])
    where = "the beginning" if start is None else f"the checkpoint, sequence {start['next']},"
    print(f"  from {where} to sequence {end['next'] - 1}, in {len(batches)} micro-batches")
    rate("aggregated", rows, began)


def revenue_per_window(orders: DataFrame) -> DataFrame:
    order = f.from_json(f.col("data").cast("string"), "cents bigint, at double")
    parsed = orders.select(
        f.substring_index("subject", ".", -1).alias("region"),
        order["cents"].alias("cents"),
        f.timestamp_seconds(order["at"]).alias("at"),
    )
    return (
        parsed.withWatermark("at", "10 minutes")
        .groupBy("region", f.window("at", "10 minutes"))
        .agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
    )


def results_of(revenue: DataFrame) -> DataFrame:
    """A message per window: the subject has the region, the payload is JSON."""
    window = f.date_format("window.start", "yyyy-MM-dd HH:mm").alias("window")
    return revenue.where("cents > 0").select(  # the closing message is no sale
        f.concat(f.lit("revenue."), f.col("region")).alias("subject"),
        f.to_json(f.struct("region", window, "orders", "cents")).alias("data"),
    )


def show_results(js: JetStream, published: Totals) -> bool:
    """Read the results stream from its beginning, add up the sales, and compare."""
    consumer = js.create_consumer("REVENUE", ack_policy="none")
    totals: Totals = defaultdict(lambda: [0, 0])
    windows: dict[str, int] = defaultdict(int)
    if consumer.info.num_pending:
        for msg in consumer.messages():
            result = json.loads(msg.data)
            windows[result["region"]] += 1
            totals[result["region"]][0] += result["orders"]
            totals[result["region"]][1] += result["cents"]
            if msg.metadata.num_pending == 0:
                break
    consumer.delete()

    print(f"\n  {'region':<8}{'windows':>8}{'orders':>10}{'revenue':>16}   agrees with what was published")
    for region in sorted(published):
        orders, cents = totals[region]
        agrees = "yes" if totals[region] == published[region] else f"NO: {published[region]}"
        print(f"  {region:<8}{windows[region]:>8}{orders:>10,}{cents / 100:>16,.2f}   {agrees}")
    return totals == published


def progress(done: int, total: int) -> None:
    if sys.stdout.isatty():
        filled = 40 * done // total
        print(f"\r  [{'#' * filled}{'.' * (40 - filled)}] {done:,}", end="" if done < total else "\n", flush=True)


def rate(what: str, count: int, began: float) -> None:
    seconds = time.perf_counter() - began
    print(f"  {what} {count:,} in {seconds:.1f} s: {count / seconds:,.0f} per second")


if __name__ == "__main__":
    counts = [int(argument) for argument in sys.argv[1:] if argument != "--cluster"]
    sys.exit(main_on_a_cluster(*counts) if "--cluster" in sys.argv else main(*counts))
