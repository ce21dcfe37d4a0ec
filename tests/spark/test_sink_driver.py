"""The driver's side of the sink: it waits for servers, checks the stream once, and commits without a server.

Spark's two processes of the driver are played here by a data source and by a pickled copy of it.
"""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from jetstream_sync import Connection, JetStream, NatsError, Stream, connect
from jetstream_sync.errors import NoServersError, StreamNotFoundError
from jetstream_sync.spark import missing_stream, sink_start
from jetstream_sync.spark.message_ids import TaskIdentity, Written
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import sink_of
from jetstream_sync.spark.source import JetStreamDataSource
from jetstream_sync.testing import LocalCluster, LocalServer
from tests.spark.queries import CopyQuery, copied, once
from tests.support.eventually import eventually

SCHEMA = StructType([StructField("data", BinaryType())])


class Saying(logging.Handler):
    """Acts as soon as a record has the text, on a thread of its own. Keeps all records."""

    def __init__(self, text: str, act: Callable[[], object]) -> None:
        super().__init__()
        self.said: list[str] = []
        self._text = text
        self._thread = threading.Thread(target=act)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if self._text in self.said[-1] and self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> Saying:
        logging.getLogger("jetstream_sync.spark").addHandler(self)
        return self

    def __exit__(self, *details: object) -> None:
        logging.getLogger("jetstream_sync.spark").removeHandler(self)
        if self._thread.ident is not None:
            self._thread.join()


def source(server: LocalServer, **options: str) -> JetStreamDataSource:
    return JetStreamDataSource({"servers": server.url, "subject": "out.a"} | options)


@pytest.fixture
def out(js: JetStream) -> None:
    js.create_stream(name="OUT", subjects=["out.>"])


@pytest.mark.parametrize("make", ["streamWriter", "writer"])
def test_waits_for_a_server_that_is_away(nats_server: LocalServer, out: None, make: str) -> None:
    """A server that is away while a batch is planned is waited for, and the log says so."""
    nats_server.stop()
    with Saying("waiting up to 60 s", nats_server.start) as log:
        getattr(source(nats_server), make)(SCHEMA, False)
    assert [text for text in log.said if "goes on after" in text]


def test_wait_is_bounded(nats_server: LocalServer, out: None) -> None:
    """The wait ends after publishTimeout, with the error that names the servers."""
    nats_server.stop()
    with pytest.raises(NoServersError, match=f"127.0.0.1:{nats_server.port}"):
        source(nats_server, publishTimeout="0.5").streamWriter(SCHEMA, False)


def test_commit_and_abort_need_no_server(nats_server: LocalServer, out: None) -> None:
    """The process that commits has a copy of the data source; it connects to nothing."""
    copy = pickle.loads(cloudpickle.dumps(source(nats_server, publishTimeout="0.5")))
    nats_server.stop()
    writer = copy.streamWriter(SCHEMA, False)
    writer.commit([], 3)
    writer.abort([None], 4)


def test_stream_is_checked_once(nats_server: LocalServer, out: None) -> None:
    """Later micro-batches are planned without a server; a query with other options is checked."""
    source(nats_server, publishTimeout="0.5").streamWriter(SCHEMA, False)
    nats_server.stop()
    source(nats_server, publishTimeout="0.5").streamWriter(SCHEMA, False)
    with pytest.raises(NoServersError):
        source(nats_server, publishTimeout="0.6").streamWriter(SCHEMA, False)


def test_failed_check_is_made_again(nats_server: LocalServer, js: JetStream) -> None:
    """What was refused is checked at the next start, too."""
    options = {"exactlyOnce": "true", "markerSubject": "out.markers"}
    js.create_stream(name="OUT", subjects=["out.>"])
    for _ in range(2):
        with pytest.raises(ValueError, match="allow_atomic"):
            source(nats_server, **options).streamWriter(SCHEMA, False)
    js.update_stream(name="OUT", subjects=["out.>"], allow_atomic=True)
    source(nats_server, **options).streamWriter(SCHEMA, False)


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is missing is waited for less long."""
    for module in (missing_stream, sink_start):
        monkeypatch.setattr(module, "NO_STREAM_SECONDS", 0.5)


def test_subject_without_stream_is_named(nats_server: LocalServer, js: JetStream, short_wait: None) -> None:
    """Where no stream stores the subject, planning fails and names it."""
    with pytest.raises(StreamNotFoundError, match=r"no stream .*'out\.a'"):
        source(nats_server).streamWriter(SCHEMA, False)


def test_markers_in_another_stream_are_refused(nats_server: LocalServer, js: JetStream, short_wait: None) -> None:
    """An atomic batch is stored by one stream: markers and rows belong there."""
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True)
    js.create_stream(name="MARKS", subjects=["marks.>"], allow_atomic=True)
    options = {"exactlyOnce": "true", "markerSubject": "marks"}
    with pytest.raises(ValueError, match=r"'MARKS' stores 'marks', but 'OUT' stores the subject 'out\.a'"):
        source(nats_server, **options).streamWriter(SCHEMA, False)
    with pytest.raises(StreamNotFoundError, match=r"'unstored\.a'"):
        source(nats_server, **options, subject="unstored.a").streamWriter(SCHEMA, False)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"subject": "unstored.a"}, StreamNotFoundError, r"'unstored\.a'"),
        ({"subject": "marks.a"}, ValueError, r"'subject': stream 'MARKS' stores 'marks\.a', not stream 'OUT'"),
        ({"exactlyOnce": "true", "markerSubject": "unstored"}, StreamNotFoundError, r"'unstored\.x\.0'"),
        ({"exactlyOnce": "true", "markerSubject": "marks"}, ValueError, "'markerSubject': stream 'MARKS' stores"),
    ],
)
def test_subject_that_the_named_stream_does_not_store(
    nats_server: LocalServer, js: JetStream, options: dict[str, str], error: type[Exception], said: str
) -> None:
    """Also where the options name the stream, planning fails and names the subject."""
    js.create_stream(name="OUT", subjects=["out.>"], allow_atomic=True)
    js.create_stream(name="MARKS", subjects=["marks.>"], allow_atomic=True)
    with pytest.raises(error, match=said):
        source(nats_server, stream="OUT", **options).streamWriter(SCHEMA, False)


def test_stream_that_is_made_anew_is_waited_for(nats_server: LocalServer, js: JetStream) -> None:
    """A stream that is missing for a moment only is no reason to fail."""
    with Saying("no stream", lambda: js.create_stream(name="OUT", subjects=["out.>"])):
        source(nats_server).streamWriter(SCHEMA, False)


# --- in tasks ---------------------------------------------------------------------------------------------


ATOMIC = {"exactlyOnce": "true", "markerSubject": "s.markers"}


def write_rows(server: LocalServer, subject: str, options: dict[str, str]) -> Written:
    """What a task does with rows that name their subject."""
    parsed = WriteOptions.parse({"servers": server.url, **options})
    batch = pa.RecordBatch.from_pydict({"subject": ["s.a", subject], "data": [b"1", b"2"]})
    with open_connection(parsed, "test") as nc:
        with closing(sink_of(jetstream_of(nc, parsed), parsed, TaskIdentity("query", 0, 0))) as sink:
            sink.write(batch)
            return sink.finish()


def test_task_refuses_a_stream_that_was_changed_since_the_check(nats_server: LocalServer, js: JetStream) -> None:
    """A query that starts again soon finds the check of the one before: tasks see what the stream is now."""
    js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
    assert write_rows(nats_server, "s.b", ATOMIC).rows == 2
    js.update_stream(name="S", subjects=["s.>"], allow_atomic=True, max_age=60)
    with pytest.raises(ValueError, match="can remove markers by max_age"):
        write_rows(nats_server, "s.b", ATOMIC)


@pytest.mark.parametrize("options", [{}, ATOMIC])
def test_task_names_the_subject_that_no_stream_stores(
    nats_server: LocalServer, js: JetStream, short_wait: None, options: dict[str, str]
) -> None:
    """A row to a subject that no stream stores ends the task after some seconds, and not after publishTimeout."""
    js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
    with pytest.raises(StreamNotFoundError, match=r"no stream stores the subject 'unstored\.listens'"):
        write_rows(nats_server, "unstored.listens", options)


@pytest.mark.parametrize("options", [{}, ATOMIC])
def test_task_waits_for_a_stream_that_is_made_anew(
    nats_server: LocalServer, js: JetStream, options: dict[str, str]
) -> None:
    """A subject that is stored again after a moment is waited for."""
    fields: dict[str, Any] = {"name": "S", "allow_atomic": True}
    js.create_stream(subjects=["s.>"], **fields)
    with Saying("no stream stores", lambda: js.update_stream(subjects=["s.>", "t.>"], **fields)):
        assert write_rows(nats_server, "t.a", options).rows == 2


# --- with Spark ---------------------------------------------------------------------------------------------


@pytest.fixture
def sink_server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


LONG = 180.0  # a micro-batch takes a second, and a minute on a machine that does much else


def start_copy(spark: SparkSession, server: LocalServer, directory: Path, **options: Any) -> CopyQuery:
    query = CopyQuery(spark, server, directory)
    query.write_options |= options
    return query


def infos_of(nc: Connection, stream: str) -> Callable[[], int]:
    """How often STREAM.INFO was asked for a stream since now."""
    asked: list[str] = []
    nc.subscribe("$JS.EVENT.ADVISORY.API", cb=lambda msg: asked.append(json.loads(msg.data)["subject"]))
    nc.flush()
    return lambda: asked.count(f"$JS.API.STREAM.INFO.{stream}")


def test_server_of_the_sink_is_away_between_batches(
    spark: SparkSession,
    spark_stderr: Path,
    nats_server: LocalServer,
    js: JetStream,
    sink_server: LocalServer,
    tmp_path: Path,
) -> None:
    """The query goes on when the server is back; in all its batches the stream is checked once."""
    js.create_stream(name="IN", subjects=["in.>"])
    copy = start_copy(spark, nats_server, tmp_path, servers=sink_server.url)
    commits = copy.checkpoint / "commits"
    with connect(sink_server.url) as nc:
        sink = nc.jetstream()
        sink.create_stream(name="OUT", subjects=["out.>"])
        asked = infos_of(nc, "OUT")
        query = copy.start(processingTime="0 seconds")
        try:
            for batch in range(3):
                js.publish("in.a", b"x")
                eventually((commits / str(batch)).exists, timeout=LONG)
            nc.flush()
            # Spark ends the process that has checked after a minute without work: the machine may be that busy.
            times = [(commits / str(batch)).stat().st_mtime for batch in range(3)]
            assert asked() == 1 or max(later - time for time, later in pairwise(times)) > 30
            sink_server.stop()
            js.publish("in.a", b"x")
            eventually((copy.checkpoint / "offsets" / "3").exists, timeout=LONG)
            assert not query.awaitTermination(3)  # which raises the error of a query that failed
            sink_server.start()
            eventually(lambda: query.exception() or (commits / "3").exists(), timeout=LONG)
            assert query.exception() is None
            assert copied(sink) == once(1, 2, 3, 4)
            waiting = f"no NATS server could be reached (nats://127.0.0.1:{sink_server.port}"
            eventually(lambda: waiting in spark_stderr.read_text(), timeout=LONG)
        finally:
            query.stop()


def stored_in(stream: Stream) -> list[bytes] | None:
    """The messages of a stream; None while an election is under way."""
    try:
        return [stream.get_message(number + 1).data for number in range(stream.get_info().state.messages)]
    except NatsError:
        return None


def test_node_is_killed_at_commit(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, tmp_path: Path
) -> None:
    """The node that the options name dies while a batch is committed: the next batches find the others."""
    js.create_stream(name="IN", subjects=["in.>"])
    with LocalCluster(3) as cluster:
        copy = start_copy(spark, nats_server, tmp_path, servers=cluster.nodes[0].url)
        copy.write_fault = "hold commit"
        with connect(cluster.urls[1:]) as nc:
            out = nc.jetstream(timeout=3).create_stream(name="OUT", subjects=["out.>"], num_replicas=3)
            js.publish("in.a", b"1")
            query = copy.start(processingTime="0 seconds")
            try:
                eventually(copy.happened, timeout=LONG)
                cluster.nodes[0].kill()
                copy.release()
                js.publish("in.a", b"2")
                eventually(lambda: query.exception() or stored_in(out) == [b"1", b"2"], timeout=LONG)
                assert query.exception() is None
            finally:
                query.stop()
