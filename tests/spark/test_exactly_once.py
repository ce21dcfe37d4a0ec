"""exactlyOnce=true with Spark: queries that were changed, markers that are gone, streams that would lose them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from tests.spark.queries import CopyQuery, copied, once

Fill = Callable[..., None]
EXACTLY_ONCE = {"exactlyOnce": "true", "markerSubject": "out.markers"}


@pytest.fixture
def query(spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path) -> CopyQuery:
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True, allow_rollup_hdrs=True)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["minPartitions"] = 2
    query.write_options |= EXACTLY_ONCE
    return query


def stop_in_the_middle(query: CopyQuery, js: JetStream, fill: Fill) -> Counter[int]:
    """Run a batch of 6 000 rows in 2 partitions. Row 5 800 cannot be written. Returns what is stored then."""
    fill("in.a", 6000)
    del query.write_options["subject"]
    query.columns = ["if(seq = 5800, null, 'out.copy') as subject"]
    with pytest.raises(Exception, match="column 'subject' is NULL"):
        query.run()
    stored = copied(js)
    assert 0 < len(stored) < 5999
    return stored


def test_mended_query_goes_on_where_it_stopped(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """A `where` that skips the poisoned row leaves the rows before it as they are: every row is stored once."""
    stop_in_the_middle(query, js, fill)
    query.where = "seq <> 5800"
    query.run_to_the_end()
    assert copied(js) == once(*range(1, 5800), *range(5801, 6001))


def test_query_that_was_changed_stops_and_loses_nothing(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """Another partitioning makes other rows: an error that says what to do, and then no row is lost."""
    before = stop_in_the_middle(query, js, fill)
    query.where = "seq <> 5800"
    query.read_options["minPartitions"] = 4
    with pytest.raises(Exception, match=r"batch 0 of '[-0-9a-f]{36}', partition [0-3], .*onReplayMismatch=append"):
        query.run()
    query.write_options["onReplayMismatch"] = "append"
    query.run_to_the_end()
    found = copied(js)
    assert set(found) == {*range(1, 5800), *range(5801, 6001)}
    assert before <= found


def test_query_whose_markers_are_gone_stops(query: CopyQuery, fill: Fill, js: JetStream) -> None:
    """Also when its first batches had no rows, which is no loss; allowMarkerLoss=true goes on."""
    fill("in.a", 100)
    query.where = "false"
    query.run()
    query.where = "true"
    fill("in.a", 3000)
    query.run()
    assert copied(js) == once(*range(101, 3101))
    js.get_stream("OUT").purge(subject="out.markers.>")
    fill("in.a", 100)
    with pytest.raises(Exception, match=r"batch 2 of .* finds no marker below 'out.markers.*allowMarkerLoss=true"):
        query.run()
    assert copied(js) == once(*range(101, 3101))
    query.write_options["allowMarkerLoss"] = "true"
    query.run()
    assert copied(js) == once(*range(101, 3201))


@pytest.mark.parametrize("limit", [{"max_age": 3600}, {"max_msgs_per_subject": 10_000}])
def test_stream_that_removes_markers_is_refused_at_the_start(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, limit: dict[str, Any]
) -> None:
    """Before the first row, in batch writes, too."""
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True, **limit)
    writer = spark.range(10).selectExpr("cast(id as string) as data").write.format("jetstream").mode("append")
    writer = writer.options(servers=nats_server.url, subject="out.copy", **EXACTLY_ONCE)
    (name,) = limit
    with pytest.raises(Exception, match=f"{name}.*allowMarkerLoss=true"):
        writer.save()
    assert copied(js) == once()
    writer.option("allowMarkerLoss", "true").save()
    assert copied(js) == once(*range(10))
