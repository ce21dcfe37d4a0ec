"""Every Python block of the pages about Spark runs as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.conftest import ROOT

PAGES = ("spark", "spark-deploy")
# What a block says about tables is looked at; that on named writes has a test in test_named_writes.py.
TABLES, NAMED_WRITES = 'format("parquet")', "writeId="


def blocks_of(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


BLOCKS = {f"{page}-{number}": block for page in PAGES for number, block in enumerate(blocks_of(page))}


@pytest.mark.parametrize("block", [each for each in BLOCKS.values() if NAMED_WRITES not in each])
def test_block_runs(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, block: str, tmp_path: Path
) -> None:
    """A block has a session `spark`, the `url` of a server, and files below /data."""
    js.create_stream(name="ORDERS", subjects=["orders.*"], storage="memory")
    js.create_stream(name="PAYMENTS", subjects=["payments.*"], storage="memory")
    js.create_stream(name="COPY", subjects=["copy.>", "seen"], storage="memory")
    js.publish("orders.a", b'{"id": "a", "cents": 5}')
    js.publish("orders.b", b"no JSON")
    names: dict[str, Any] = {"spark": spark, "url": nats_server.url}
    try:
        exec(compile(block.replace("/data/", f"{tmp_path}/"), "block", "exec"), names)
    finally:
        for query in spark.streams.active:
            query.stop()
        if "listener" in names:
            spark.streams.removeListener(names["listener"])
    if TABLES in block:
        rows = spark.read.parquet(f"{tmp_path}/tables/orders").orderBy("seq").collect()
        assert [(row.seq, row.id, row.cents) for row in rows] == [(1, "a", 5), (2, None, None)]
        assert [row.bad for row in rows] == [None, "no JSON"]
    if "thread.join()" in block:
        assert js.get_stream("COPY").info.state.messages == 2


def test_pages_have_blocks() -> None:
    """Otherwise the test above would check nothing."""
    assert {name.rpartition("-")[0] for name in BLOCKS} == set(PAGES)
    assert sum(TABLES in block for block in BLOCKS.values()) == 1
    assert sum(NAMED_WRITES in block for block in BLOCKS.values()) == 1
