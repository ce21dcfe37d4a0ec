"""Lets Spark discover `format("jetstream")`: it looks for packages named `pyspark_*`."""

from jetstream_sync.spark.source import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
