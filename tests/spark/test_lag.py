"""How far queries are behind. The listener is driven with reports as Spark makes them; one test runs in Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.spark import Lag, LagListener
from jetstream_sync.spark.offsets import Offset, Offsets
from jetstream_sync.spark.stream_view import created_of
from jetstream_sync.testing import LocalServer
from tests.spark.queries import ADMISSION_CONTROL, CopyQuery
from tests.support.eventually import eventually

Fill = Callable[..., None]


class Reports:
    """Makes the reports of a query, hands them to a listener, and collects what that tells."""

    def __init__(self, js: JetStream, url: str) -> None:
        self._js = js
        self._url = url
        self.told: list[Lag] = []
        self.listeners: list[LagListener] = []

    def listener(self, streams: str, **options: Any) -> LagListener:
        self.listeners.append(LagListener(self.told.append, stream=streams, **{"servers": self._url, **options}))
        return self.listeners[-1]

    def offset(self, stream: str, following: int, base: int | None = None) -> Offset:
        return Offset(following, created_of(self._js.get_stream(stream).info), base)

    def progress(self, listener: LagListener, end: dict[str, Any], latest: Any = None, query: str = "q") -> None:
        """A batch has ended at `end`; `latest` is what Spark 4.2 adds."""
        foreign = SimpleNamespace(endOffset='{"topic": {"0": 5}}', latestOffset="None")
        source = SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(latest))
        report = SimpleNamespace(id=query, name=f"name of {query}", batchId=7, sources=[foreign, source])
        listener.onQueryProgress(SimpleNamespace(progress=report))

    def terminated(self, listener: LagListener, query: str = "q") -> None:
        listener.onQueryTerminated(SimpleNamespace(id=query))


@pytest.fixture
def reports(js: JetStream, nats_server: LocalServer, fill: Fill) -> Iterator[Reports]:
    """A with 30 messages, B with 10."""
    for name, count in (("A", 30), ("B", 10)):
        js.create_stream(name=name, subjects=[f"{name.lower()}.>"])
        fill(f"{name.lower()}.x", count)
    made = Reports(js, nats_server.url)
    yield made
    for listener in made.listeners:
        listener.close()


def lag_connections(server: LocalServer) -> list[str]:
    names = [each.get("name", "") for each in server.monitor("/connz")["connections"]]
    return [name for name in names if name.startswith("spark lag")]


def lag_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "js-spark-lag"]


def test_lag_of_one_stream(reports: Reports, js: JetStream) -> None:
    """Sequences, and the age of the oldest message that is not processed; the report names no stream."""
    stored = js.get_stream("A").get_message(21).time
    assert stored is not None
    listener = reports.listener("A")
    reports.progress(listener, Offsets({"A": reports.offset("A", 21, 1)}).to_json())
    eventually(lambda: reports.told, timeout=30)
    (told,) = reports.told
    assert told.seconds is not None
    assert 0 <= told.seconds <= time.time() - stored.timestamp() + 1
    assert told == Lag("q", "name of q", 7, "A", 21, 30, 10, told.seconds)
    reports.progress(listener, Offsets({"A": reports.offset("A", 31, 1)}).to_json())
    eventually(lambda: len(reports.told) == 2, timeout=30)
    assert (reports.told[1].sequences, reports.told[1].seconds) == (0, 0.0)


def test_lag_grows_with_time(reports: Reports) -> None:
    """The same position is further behind later."""
    listener = reports.listener("A")
    end = Offsets({"A": reports.offset("A", 1, 1)}).to_json()

    def asked() -> float:
        count = len(reports.told)
        reports.progress(listener, end)
        eventually(lambda: len(reports.told) > count, timeout=30)
        return reports.told[-1].seconds or 0.0

    first = asked()
    eventually(lambda: asked() > first + 0.2, timeout=30)


def test_lag_of_several_streams(reports: Reports) -> None:
    """One for each stream of the options; other streams and other sources are passed over."""
    both = Offsets({"A": reports.offset("A", 21, 1), "B": reports.offset("B", 11, 1)}).to_json()
    reports.progress(reports.listener("A,B"), both)
    eventually(lambda: len(reports.told) == 2, timeout=30)
    assert [(each.stream, each.sequences) for each in reports.told] == [("A", 10), ("B", 0)]
    other = reports.listener("B")
    reports.progress(other, Offsets({"A": reports.offset("A", 21, 1)}).to_json(), query="of A")
    reports.progress(other, both)
    eventually(lambda: len(reports.told) == 3, timeout=30)
    assert reports.told[-1].stream == "B"


def test_only_messages_that_match_have_an_age(reports: Reports, fill: Fill) -> None:
    """With `subjects`, a query that waits for other messages is 0 seconds behind."""
    fill("a.y", 1)
    for subjects, old in (("a.x", False), ("a.y", True), ("a.x,a.y", True)):
        listener = reports.listener("A", subjects=subjects)
        reports.progress(listener, Offsets({"A": reports.offset("A", 31, 1)}).to_json())
        eventually(lambda: len(reports.told) == 1, timeout=30)
        told = reports.told.pop()
        assert (told.sequences, bool(told.seconds)) == (1, old)
        listener.close()


def test_server_is_away(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    """The listener returns at once; the report tells the sequences where it can, and one warning says the rest."""
    listener = reports.listener("A", servers="nats://127.0.0.1:1")
    end = Offsets({"A": reports.offset("A", 21, 1)}).to_json()
    reports.progress(listener, end)  # Spark 4.0: nothing but the end
    reports.progress(listener, end, Offsets({"A": reports.offset("A", 31)}).to_named_json(), query="4.2")
    eventually(lambda: reports.told, timeout=30)
    assert reports.told == [Lag("4.2", "name of 4.2", 7, "A", 21, 30, 10, None)]
    assert caplog.text.count("how far queries are behind is not known") == 1


def test_callback_that_raises(
    reports: Reports, caplog: pytest.LogCaptureFixture, nats_server: LocalServer
) -> None:
    """The log has the traceback, and the next progress is told."""
    told: list[Lag] = []

    def on_lag(each: Lag) -> None:
        told.append(each)
        raise RuntimeError("no such gauge")

    listener = LagListener(on_lag, stream="A", servers=nats_server.url)
    reports.listeners.append(listener)
    for expected in (1, 2):
        reports.progress(listener, Offsets({"A": reports.offset("A", 21, 1)}).to_json())
        eventually(lambda count=expected: len(told) == count, timeout=30)
    assert caplog.text.count("no such gauge") >= 1


def test_slow_callback_holds_up_nothing(reports: Reports, nats_server: LocalServer) -> None:
    """Spark's thread returns at once; the newest progress of each query is what is told next."""
    told: list[int] = []
    entered, free = threading.Event(), threading.Event()

    def on_lag(each: Lag) -> None:
        told.append(each.next_seq)
        entered.set()
        free.wait(30)

    listener = LagListener(on_lag, stream="A", servers=nats_server.url)
    reports.listeners.append(listener)
    for following in range(1, 20):
        reports.progress(listener, Offsets({"A": reports.offset("A", following, 1)}).to_json())
        assert entered.wait(30)
    free.set()
    eventually(lambda: len(told) == 2, timeout=30)
    assert told == [1, 19]


def test_thread_ends_with_the_last_query(reports: Reports, nats_server: LocalServer) -> None:
    """No thread and no connection stays; a query that comes later has its own."""
    listener = reports.listener("A")
    end = Offsets({"A": reports.offset("A", 21, 1)}).to_json()
    assert not lag_threads()
    for count in (2, 4):
        for query in ("one", "two"):
            reports.progress(listener, end, query=query)
        eventually(lambda expected=count: len(reports.told) == expected, timeout=30)
        reports.terminated(listener, "one")
        assert lag_threads()
        reports.terminated(listener, "two")
        eventually(lambda: not lag_threads())
        eventually(lambda: not lag_connections(nats_server), message="the connection is closed")


def test_close(reports: Reports) -> None:
    """close() ends the thread, may be called twice, and later progress is ignored."""
    listener = reports.listener("A")
    end = Offsets({"A": reports.offset("A", 21, 1)}).to_json()
    reports.progress(listener, end)
    eventually(lambda: reports.told, timeout=30)
    listener.close()
    listener.close()
    assert not lag_threads()
    reports.progress(listener, end)
    assert not lag_threads()
    assert len(reports.told) == 1
    assert repr(listener) == "LagListener(streams=['A'], queries=1)"


def test_bad_options_are_named() -> None:
    """Options that are wrong are an error at once, not a thread that says nothing."""
    for options, named in (
        ({}, "stream"),
        ({"stream": "A", "sreams": 1}, "sreams"),
        ({"stream": "A.B"}, "stream"),
    ):
        with pytest.raises(ValueError, match=named):
            LagListener(**options)


def test_lag_in_spark(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, fill: Fill, tmp_path: Any
) -> None:
    """Batches of 10 out of 30: each report is closer to the end, and the last one is there."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"])
    fill("in.a", 30)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["maxMessagesPerTrigger"] = 10
    told: list[Lag] = []
    listener = LagListener(told.append, servers=nats_server.url, stream="IN")
    spark.streams.addListener(listener)
    try:
        running = query.start(processingTime="0 seconds")
        try:
            eventually(lambda: told and told[-1].sequences == 0, timeout=60)
        finally:
            running.stop()
        eventually(lambda: not lag_threads(), timeout=30, message="the query has ended")
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    assert {each.query_id for each in told} == {str(running.id)}
    assert [each.sequences for each in told] == sorted((each.sequences for each in told), reverse=True)
    assert told[-1] == Lag(str(running.id), None, 2, "IN", 31, 30, 0, 0.0)
    reported = [source["latestOffset"] for batch in running.recentProgress for source in batch["sources"]]
    assert all(("streams" in str(each)) == ADMISSION_CONTROL for each in reported)
