"""A small Spark for the examples: two cores of this process or of a cluster, no user interface, quiet."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import jetstream_sync
from jetstream_sync.spark import register
from jetstream_sync.spark.java import ensure_java


@contextmanager
def session(name: str, master: str = "local[2]") -> Iterator[SparkSession]:
    """A session with `format("jetstream")`, which is stopped at the end of the block."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers need this library, too
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "600m")
        .config("spark.executorEnv.PYTHONPATH", str(Path(jetstream_sync.__file__).parent.parent))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()
