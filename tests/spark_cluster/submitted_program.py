"""A program for spark-submit, which finds this library in the zip alone. Arguments: url, checkpoint directory.

Reads IN, copies it by a streaming query with each sink, and writes a batch with each sink. Prints where the
library was found on the driver and on the executors, and how many rows were read.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import jetstream_sync
from jetstream_sync.spark import register


def where_it_is(_: object) -> str:
    import jetstream_sync  # of the executor

    return str(jetstream_sync.__file__)


def main(url: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    on_executors = spark.sparkContext.parallelize(range(4), 4).map(where_it_is).collect()
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
    found = {"driver": jetstream_sync.__file__, "executors": on_executors, "read": list(read)}
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
