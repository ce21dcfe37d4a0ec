"""Makes `format("jetstream")` known to Spark, which looks for packages named `pyspark_*`."""

from jetstream_sync.spark.source import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
