"""pushFilters: filters of a query narrow what the server sends, and never what the query returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSourceReader

from jetstream_sync import JetStream
from jetstream_sync.errors import DataLossError
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.reader import batch_reader
from jetstream_sync.testing import LocalServer

SETTING = "spark.sql.python.filterPushdown.enabled"
HAS_PUSHDOWN = hasattr(DataSourceReader, "pushFilters")

needs_pushdown = pytest.mark.skipif(not HAS_PUSHDOWN, reason="pyspark 4.0 has no filter pushdown")

TURNS = 300
SUBJECTS = ("s.a", "s.b.c", "t.d")


def fill_in_turn(js: JetStream, turns: int) -> None:
    """Streams S and T with a message on each of SUBJECTS in each turn: sequences 1, 2, 3, and so on."""
    js.create_stream(name="S", subjects=["s.>", "t.>"], storage="memory")
    js.create_stream(name="T", subjects=["other"], storage="memory")
    for turn in range(turns):
        for subject in SUBJECTS:
            js.publish_async(subject, b"%d" % turn)
    js.publish_async("other", b"")
    js.publish_async_wait(60)


def sent(server: LocalServer) -> int:
    return int(server.monitor("/varz")["out_msgs"])


@pytest.fixture
def pushing(spark: SparkSession, nats_server: LocalServer) -> Iterator[Callable[..., DataFrame]]:
    """A DataFrame of stream S whose filters are pushed, while Spark's setting is on."""

    def load(**options: str) -> DataFrame:
        source = spark.read.format("jetstream").options(servers=nats_server.url, stream="S", pushFilters="true")
        return source.options(**options).load()

    spark.conf.set(SETTING, "true")
    yield load
    spark.conf.unset(SETTING)


@needs_pushdown
@pytest.mark.parametrize(
    ("condition", "holds", "most"),
    [
        ("seq > 10 AND seq <= 20", lambda seq, subject: 10 < seq <= 20, 10),
        ("seq IN (7, 9, 2999999) AND NOT seq = 8", lambda seq, subject: seq in (7, 9), 3),
        ("subject LIKE 's.b.%' AND seq < 31", lambda seq, subject: subject == "s.b.c" and seq < 31, 10),
        ("subject IN ('no.such', 'neither')", lambda seq, subject: False, 0),
        ("seq % 2 = 0 AND seq < 9 OR seq = 3", lambda seq, subject: seq in (2, 3, 4, 6, 8), 3 * TURNS),
    ],
)
def test_queries_return_the_same_and_the_server_sends_less(
    pushing: Callable[..., DataFrame],
    nats_server: LocalServer,
    js: JetStream,
    condition: str,
    holds: Callable[[int, str], bool],
    most: int,
) -> None:
    """What Spark returns is what the filter means; the server sends `most` messages, and replies of the API."""
    fill_in_turn(js, TURNS)
    rows = [(number, SUBJECTS[(number - 1) % 3]) for number in range(1, 3 * TURNS + 1)]
    before = sent(nats_server)
    found = pushing().where(condition).select("seq", "subject").collect()
    assert sorted((row.seq, row.subject) for row in found) == [row for row in rows if holds(*row)]
    assert sent(nats_server) - before <= most + 40


@needs_pushdown
def test_query_by_time(pushing: Callable[..., DataFrame], nats_server: LocalServer, js: JetStream) -> None:
    """The literal that Spark passes is compared with the stored times; searching takes a few requests."""
    fill_in_turn(js, TURNS)
    stream = js.get_stream("S")
    moment = stream.get_message(500).time
    first = next(seq for seq in range(400, 501) if stream.get_message(seq).time == moment)
    before = sent(nats_server)
    found = pushing().where(f"ts < '{moment}' AND seq >= 490").select("seq").collect()
    assert sorted(row.seq for row in found) == list(range(490, first))
    assert sent(nats_server) - before <= 10 + 40


@needs_pushdown
def test_setting_of_spark_is_off(spark: SparkSession, nats_server: LocalServer, js: JetStream) -> None:
    """Spark refuses the read, and names its setting."""
    fill_in_turn(js, 1)
    source = spark.read.format("jetstream").options(servers=nats_server.url, stream="S", pushFilters="true")
    with pytest.raises(Exception, match=f"PushFiltersReader.*{SETTING}"):
        source.load().where("seq = 1").count()
    with pytest.raises(Exception, match=f"PushFiltersReader.*{SETTING}"):
        source.load().count()


@pytest.mark.skipif(HAS_PUSHDOWN, reason="pyspark 4.1 and later have filter pushdown")
def test_pyspark_without_pushdown_is_named(spark: SparkSession, nats_server: LocalServer) -> None:
    """pyspark 4.0 does not know filter pushdown: an error says so."""
    options = ReadOptions.parse({"servers": nats_server.url, "stream": "S", "pushFilters": "true"})
    with pytest.raises(ValueError, match=r"'pushFilters' needs pyspark 4\.1 or later; this is 4\.0"):
        batch_reader(options, ("seq",))


# --- without Spark ------------------------------------------------------------------------------------


def read_pushed(server: LocalServer, *filters: Any, **options: str) -> list[int]:
    """The sequences that are read with these filters, before Spark applies them again."""
    parsed = ReadOptions.parse({"servers": server.url, "stream": "S", "pushFilters": "true", **options})
    reader = batch_reader(parsed, ("seq",))
    assert list(reader.pushFilters(list(filters))) == list(filters)  # type: ignore[attr-defined]
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [seq for batch in batches for seq in batch["seq"].to_pylist()]


def pushed(kind: str, column: str, value: Any) -> Any:
    return getattr(spark_filters, kind)((column,), value)


@needs_pushdown
def test_subjects_of_the_option_and_of_filters(nats_server: LocalServer, js: JetStream) -> None:
    """A filter only narrows what the option admits."""
    fill_in_turn(js, 2)
    equal = pushed("EqualTo", "subject", "s.b.c")
    assert read_pushed(nats_server, equal, subjects="s.>") == [2, 5]
    assert read_pushed(nats_server, equal, subjects="t.>") == []
    assert read_pushed(nats_server, pushed("In", "subject", ("s.a", "t.d")), subjects="t.*,s.b.c") == [3, 6]
    assert read_pushed(nats_server, pushed("StringStartsWith", "subject", "s."), subjects="*.*.c,t.d") == [2, 5]


@needs_pushdown
def test_several_streams(nats_server: LocalServer, js: JetStream) -> None:
    """Filters on the column `stream` leave out whole streams; other filters hold for each."""
    fill_in_turn(js, 2)
    assert read_pushed(nats_server, pushed("EqualTo", "stream", "T"), stream="S,T") == [1]
    assert read_pushed(nats_server, pushed("EqualTo", "seq", 1), stream="S,T") == [1, 1]


@needs_pushdown
def test_times_are_compared_in_microseconds(nats_server: LocalServer, js: JetStream) -> None:
    """The server has nanoseconds: a message matches the microsecond that the column shows, to its end."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for _ in range(5):
        js.publish("s.a", b"")
    times = [js.get_stream("S").get_message(seq).time for seq in range(1, 6)]
    third = times[2]
    assert third is not None
    assert len(set(times)) == 5
    assert read_pushed(nats_server, pushed("EqualTo", "ts", third)) == [3]
    assert read_pushed(nats_server, pushed("GreaterThan", "ts", third)) == [4, 5]
    assert read_pushed(nats_server, pushed("GreaterThanOrEqual", "ts", third)) == [3, 4, 5]
    assert read_pushed(nats_server, pushed("LessThan", "ts", third)) == [1, 2]
    assert read_pushed(nats_server, pushed("LessThanOrEqual", "ts", third)) == [1, 2, 3]
    assert read_pushed(nats_server, pushed("GreaterThan", "ts", third + timedelta(days=1))) == []


@needs_pushdown
def test_loss_is_reported_of_what_is_wanted_only(nats_server: LocalServer, js: JetStream) -> None:
    """Sequences that a filter leaves out are not missed; those that it wants are."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for _ in range(10):
        js.publish("s.a", b"")
    before = js.get_stream("S").get_message(1).time
    seventh = js.get_stream("S").get_message(7).time
    js.get_stream("S").purge(sequence=6)
    start = {"startingOffsets": '{"seq": 1}'}
    assert read_pushed(nats_server, pushed("GreaterThan", "seq", 7), **start) == [8, 9, 10]
    assert read_pushed(nats_server, pushed("In", "seq", (6, 9)), **start) == [6, 7, 8, 9]
    assert read_pushed(nats_server, pushed("GreaterThanOrEqual", "ts", seventh), **start) == [7, 8, 9, 10]
    for wanted in (
        pushed("GreaterThan", "seq", 3),
        pushed("EqualTo", "seq", 2),
        pushed("GreaterThanOrEqual", "ts", before),
        pushed("LessThanOrEqual", "ts", before),
        pushed("EqualTo", "subject", "s.a"),
    ):
        with pytest.raises(DataLossError, match="data loss in stream 'S'"):
            read_pushed(nats_server, wanted, **start)
    assert read_pushed(nats_server, pushed("EqualTo", "seq", 2)) == []  # not asked for from there on
