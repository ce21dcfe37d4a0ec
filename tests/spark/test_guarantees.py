"""Cells of the table of guarantees in docs/spark.md that no other module has a test for."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetstream_sync
from jetstream_sync import JetStream, JetStreamError
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.testing import LocalCluster, LocalServer
from tests.spark.atomic import attempt, stored, stream
from tests.spark.queries import CopyQuery, copied, once
from tests.support.observer import fill as publish

Fill = Callable[..., None]

EXACTLY_ONCE = {"exactlyOnce": "true", "markerSubject": "marks"}
SINKS = pytest.mark.parametrize("sink", [{}, EXACTLY_ONCE], ids=["default", "exactlyOnce"])


@pytest.mark.soak  # a cluster, and an election of up to ten seconds
def test_node_is_killed_while_reading() -> None:
    """The leader of the stream dies in the middle of a range: the task goes on with another node."""
    with LocalCluster(3) as cluster, jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=30)
        js.create_stream(name="S", subjects=["s.>"], num_replicas=3, storage="memory")
        publish(js, 30_000, subject="s.a")
        options = ReadOptions.parse({"servers": ",".join(cluster.urls), "stream": "S", "minPartitions": "1"})
        reader = JetStreamReader(options, ("seq",))
        found: list[int] = []
        for partition in reader.partitions():
            for batch in reader.read(partition):
                if not found:
                    leader = js.get_stream("S").info.cluster.leader
                    next(node for node in cluster.nodes if node.name == leader).kill()
                found += batch["seq"].to_pylist()
    assert sorted(found) == list(range(1, 30_001))


@SINKS
def test_lost_checkpoint_begins_anew(
    spark: SparkSession,
    nats_server: LocalServer,
    js: JetStream,
    fill: Fill,
    sink: dict[str, str],
    tmp_path: Path,
) -> None:
    """It is another query, which reads from startingOffsets and stores what it reads once more."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )
    fill("in.a", 100)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.write_options.update(sink)
    query.run()
    shutil.rmtree(query.checkpoint)
    query.run()
    assert copied(js) == once(*range(1, 101), *range(1, 101))


def test_restored_checkpoint_reads_again(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, fill: Fill, tmp_path: Path
) -> None:
    """An old copy of the checkpoint: its next batch reads again, and rows of the same batch are recognised."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    js.create_stream(name="OUT", subjects=["out.>"], storage="memory")
    query = CopyQuery(spark, nats_server, tmp_path)
    fill("in.a", 100)
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    fill("in.a", 100)
    query.run()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "copy", query.checkpoint)
    fill("in.a", 100)
    query.run()
    assert copied(js) == once(*range(1, 301))


def test_identical_rows_with_exactly_once(nats_server: LocalServer, js: JetStream) -> None:
    """Markers count rows: as many identical ones are stored as there are, also by a second attempt."""
    stream(js)
    rows = [b"same"] * 2500
    attempt(nats_server.url, rows, finish=False)
    attempt(nats_server.url, rows)
    assert stored(js) == Counter(rows)


def test_stream_of_exactly_once_is_created_anew(nats_server: LocalServer, js: JetStream) -> None:
    """Its markers are gone with it: the next batch is an error, not a guess."""
    stream(js)
    attempt(nats_server.url, [b"1", b"2"])
    js.delete_stream("S")
    stream(js)
    with pytest.raises(JetStreamError, match="finds no marker"):
        attempt(nats_server.url, [b"3"], epoch=1)
    assert stored(js) == Counter()
