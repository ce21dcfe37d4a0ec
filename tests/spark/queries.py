"""Streaming queries for tests: copy one stream into another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer

FINISH_SECONDS = 100
# From 4.2 on Spark tells a source where a query stands and how much to read.
ADMISSION_CONTROL = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 2)


class CopyQuery:
    """Copies `stream` to subject `out.copy`, from a checkpoint. `fault` uses the data source that goes wrong."""

    def __init__(self, spark: SparkSession, server: LocalServer, directory: Path) -> None:
        self._spark = spark
        self._server = server
        self.checkpoint = directory / "checkpoint"
        self._marker = directory / "fault-happened"
        self.stream = "IN"
        self.data = "cast(seq as string)"
        self.read_options: dict[str, Any] = {"startingOffsets": "earliest"}
        self.write_options: dict[str, Any] = {"subject": "out.copy"}
        self.read_fault = ""
        self.write_fault = ""
        self.where = "true"
        self.columns = ["headers"]

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self._spark.readStream.format(self._format(self.read_fault))
        frame = reader.options(**self._options(self.read_options, self.read_fault), stream=self.stream).load()
        writer = frame.where(self.where).selectExpr(f"{self.data} as data", *self.columns).writeStream
        return (
            writer.format(self._format(self.write_fault))
            .options(**self._options(self.write_options, self.write_fault))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self) -> StreamingQuery:
        """Process everything that is there. Raises the error of the query."""
        query = self.start()
        try:
            assert query.awaitTermination(FINISH_SECONDS), "the query does not end"
        finally:
            query.stop()
        return query

    def run_to_the_end(self) -> None:
        """After a failed batch. Before pyspark 4.2 a run with availableNow is one batch: the failed one, again."""
        self.run()
        if not ADMISSION_CONTROL:
            self.run()

    def happened(self) -> bool:
        return self._marker.exists()

    def release(self) -> None:
        """Let a fault that holds the query go on."""
        self._marker.with_name(f"{self._marker.name}-released").touch()

    def _format(self, fault: str) -> str:
        return "jetstream_faulty" if fault else "jetstream"

    def _options(self, options: dict[str, Any], fault: str) -> dict[str, Any]:
        extra = {"fault": fault, "marker": str(self._marker)} if fault else {}
        return {"servers": self._server.url, **options, **extra}


def copied(js: JetStream, subject: str = "out.copy", parse: Callable[[str], Any] = int) -> Counter[Any]:
    """What of IN is in OUT, by default its sequences, and how often."""
    consumer = js.create_consumer("OUT", ack_policy="none", filter_subject=subject)
    found: Counter[Any] = Counter()
    while (left := consumer.get_info().num_pending) > 0:
        found.update(parse(message.data.decode()) for message in consumer.fetch_nowait(min(left, 10_000)))
    consumer.delete()
    return found


def once(*sequences: int) -> Counter[int]:
    return Counter(sequences)
