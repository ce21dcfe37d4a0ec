"""A driver to be killed: copies IN to `out.copy` from a checkpoint.

Arguments: url, checkpoint directory, and options of the sink as `name=value`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from jetstream_sync.spark import register


def main(url: str, checkpoint: str, *sink: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=url, stream="IN", startingOffsets="earliest", maxMessagesPerTrigger=20_000)
        .load()
    )
    query = (
        frame.selectExpr("cast(seq as string) as data")
        .writeStream.format("jetstream")
        .options(servers=url, subject="out.copy", checkpointLocation=checkpoint)
        .options(**dict(option.split("=") for option in sink))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
