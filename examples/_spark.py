"""A small local Spark for the examples: two cores, no user interface, quiet."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from jetstream_sync.spark import register
from jetstream_sync.spark.java import ensure_java


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """A session with `format("jetstream")`, which is stopped at the end of the block."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers need this library, too
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()
