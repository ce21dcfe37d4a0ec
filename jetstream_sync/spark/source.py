"""`format("jetstream")`: the data source that Spark finds, and its registration."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .options import ReadOptions, WriteOptions
from .reader import JetStreamReader
from .schema import checked_columns, default_schema
from .stream_reader import JetStreamStreamReader
from .writer import batch_writer, stream_writer


class JetStreamDataSource(DataSource):
    """Reads and writes JetStream, in batches and in streaming queries. See docs/spark.md for all options."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        return default_schema(ts_nanos=ReadOptions.parse(self.options).ts_nanos)

    def reader(self, schema: StructType) -> DataSourceReader:
        return JetStreamReader(ReadOptions.parse(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JetStreamStreamReader(ReadOptions.parse(self.options), checked_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(WriteOptions.parse(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("jetstream")` with a session. Not needed where Spark discovers it by itself."""
    try:
        spark.dataSource.register(JetStreamDataSource)
    except AnalysisException as error:
        # pyspark 4.0 rejects a name that it has discovered already.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
