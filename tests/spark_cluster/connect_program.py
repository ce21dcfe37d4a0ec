"""A client of Spark Connect: registers, reads, writes, streams, listens. Arguments: address, url, checkpoints."""

from __future__ import annotations

import json
import queue
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from jetstream_sync.spark import Lag, LagListener, register


def main(address: str, url: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote(address).getOrCreate()
    register(spark)
    lags: queue.Queue[Lag] = queue.Queue()
    spark.streams.addListener(LagListener(lags.put, servers=url, stream="IN"))
    frame = spark.read.format("jetstream").options(servers=url, stream="IN").load()
    read = frame.select(f.count("seq"), f.countDistinct("seq")).first()
    exactly_once = {"exactlyOnce": "true", "markerSubject": "marks"}
    for name, sink in (("default", {}), ("exactly", exactly_once)):
        rows = frame.select(f.col("seq").cast("string").alias("data"))
        rows.write.format("jetstream").options(servers=url, subject=f"out.batch.{name}", **sink).mode(
            "append"
        ).save()
        source = spark.readStream.format("jetstream").options(servers=url, stream="IN", startingOffsets="earliest")
        query = (
            source.load()
            .select(f.col("seq").cast("string").alias("data"))
            .writeStream.format("jetstream")
            .options(servers=url, subject=f"out.stream.{name}", checkpointLocation=f"{checkpoint}/{name}", **sink)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    told = lags.get(timeout=60)
    print(json.dumps({"read": list(read), "behind": [told.sequences, told.seconds]}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
