"""`format("jetstream")`: the data source that Spark finds, and its registration."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import SparkFiles
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

from .._log import Log
from .options import ReadOptions, WriteOptions
from .reader import batch_reader
from .schema import checked_columns, default_schema
from .stream_reader import JetStreamStreamReader
from .workers import problem_of_workers
from .writer import batch_writer, stream_writer

log: Log = Log("spark", None)


class JetStreamDataSource(DataSource):
    """Reads and writes JetStream, in batches and in streaming queries. See docs/spark.md for all options."""

    _is_copy = False  # whether another process made this object

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Spark copies a data source to the process that commits the micro-batches of a sink."""
        self.__dict__.update(state)
        self._is_copy = True

    def schema(self) -> str:
        return default_schema(ts_nanos=ReadOptions.parse(self.options).ts_nanos)

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(ReadOptions.parse(self.options).for_batch(), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = ReadOptions.parse(self.options).for_streaming()
        return JetStreamStreamReader(options, checked_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = WriteOptions.parse(self.options).for_streaming()
        return stream_writer(options, schema, overwrite, to_commit=self._is_copy)


def register(spark: SparkSession) -> None:
    """Register `format("jetstream")` with a session. Not needed where Spark discovers it by itself.

    Warns if the session runs its Python workers on this machine with an interpreter that lacks this package.
    """
    try:
        spark.dataSource.register(JetStreamDataSource)
    except AnalysisException as error:
        # pyspark 4.0 rejects a name that it has discovered already.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    _check_workers(spark)


def _check_workers(spark: SparkSession) -> None:
    # A session of Spark Connect is no SparkSession and has no context: its workers run elsewhere, as on a cluster.
    context = spark.sparkContext if isinstance(spark, SparkSession) else None
    if context is None or not context.master.startswith("local"):
        return
    # What SparkContext.addPyFile() and --py-files add is on the driver's path, too.
    shipped = [entry for entry in sys.path if entry.startswith(SparkFiles.getRootDirectory())]
    problem = problem_of_workers(context.pythonExec, shipped)
    if problem is not None:
        log.warning("%s", problem)
