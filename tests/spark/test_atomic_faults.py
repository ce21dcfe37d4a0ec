"""exactlyOnce while connections break, acknowledgements get lost, servers restart and leaders change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_sync import JetStream, connect
from jetstream_sync.errors import APIError, JetStreamError, NoStreamResponseError
from jetstream_sync.spark import atomic_sink
from jetstream_sync.spark.atomic_sink import AtomicSink
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.testing import FaultProxy, LocalCluster, LocalServer
from tests.spark.atomic import (
    DATA,
    MARKERS,
    QUERY,
    attempt,
    batch_of,
    numbered,
    settle,
    stored,
    stream,
    write_options,
)
from tests.support.clusters import leader_of, step_down
from tests.support.eventually import eventually
from tests.support.watchdog import InThread


@pytest.fixture
def proxy(nats_server: LocalServer) -> Iterator[FaultProxy]:
    with FaultProxy(nats_server, record=False) as proxy:
        yield proxy


def with_ids(count: int) -> tuple[list[bytes], list[str | None]]:
    return numbered(count), [f"id-{number}" for number in range(count)]


@pytest.mark.parametrize("ids", [False, True], ids=["plain", "msg_id"])
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_connection_that_breaks_anywhere(proxy: FaultProxy, js: JetStream, direction: str, ids: bool) -> None:
    """Inside the rows of a batch, before its marker, before its acknowledgement: all rows are stored once."""
    stream(js)
    rng = random.Random(f"{direction} {ids}")
    options = write_options(proxy.url)
    rows, msg_ids = with_ids(12_000)
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        for first in range(0, 12_000, 2000):
            proxy.cut_after(rng.randrange(1, 300_000 if direction == "to_server" else 300), direction)  # type: ignore[arg-type]
            part = slice(first, first + 2000)
            sink.write(batch_of(rows[part], msg_ids[part] if ids else None))
        proxy.heal()
        assert sink.finish().duplicates == 0
    assert stored(js) == Counter(rows)


@pytest.mark.parametrize("ids", [False, True], ids=["plain", "msg_id"])
def test_acknowledgement_that_does_not_come(proxy: FaultProxy, js: JetStream, ids: bool) -> None:
    """The chunk is stored, its acknowledgement stays away: it is sent again, and its own marker is recognised."""
    stream(js)
    options = write_options(proxy.url, publishTimeout="30")
    rows, msg_ids = with_ids(1000)
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        proxy.black_hole("to_client")
        sink.write(batch_of(rows, msg_ids if ids else None))
        eventually(lambda: js.get_stream("S").get_info().state.messages == 1000, 10)
        proxy.cut()
        proxy.heal()
        assert sink.finish().duplicates == 0
    assert stored(js) == Counter(rows)


def test_lost_acknowledgement_costs_a_part_of_the_timeout(nats_server: LocalServer, js: JetStream) -> None:
    """Elections lose replies while the session lasts: the chunk is sent again after a twelfth of the timeout."""
    stream(js)
    rows, _ = with_ids(1000)
    with FaultProxy(nats_server) as proxy:
        options = write_options(proxy.url, publishTimeout="24")
        nc = open_connection(options, "test")
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        proxy.black_hole("to_client")
        sink.write(batch_of(rows))
        finished = InThread(sink.finish)
        commits = b"Nats-Batch-Commit: 1"
        eventually(lambda: proxy.captured[-1].to_server.count(commits) == 2, 7.0, "a third of the timeout is 8 s")
        proxy.heal()
        assert finished.result().duplicates == 0
        nc.close()
    assert stored(js) == Counter(rows)


def test_server_that_is_killed_between_chunks(js: JetStream) -> None:
    """Its files survive; batches that were open, and acknowledgements, do not."""
    with LocalServer() as server, connect(server.url) as other:
        stream(other.jetstream())
        options = write_options(server.url)
        with open_connection(options, "test") as nc:
            sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
            for first in range(0, 6000, 1500):
                sink.write(batch_of(numbered(1500, first)))
                server.kill()
                server.start()
            sink.finish()
        assert stored(other.jetstream()) == Counter(numbered(6000))


@pytest.mark.parametrize("fault", ["step down", pytest.param("kill", marks=pytest.mark.soak)])
def test_leader_that_changes_between_chunks(fault: str) -> None:
    """In a cluster: the leader steps down, or is killed, while chunks are under way."""
    with LocalCluster() as cluster, connect(cluster.urls) as other:
        js = other.jetstream(timeout=20)
        out = stream(js, num_replicas=3, allow_rollup_hdrs=True)
        options = write_options(",".join(cluster.urls))
        rows, msg_ids = with_ids(10_000)
        js.publish(DATA, b"5000", msg_id="id-5000")
        with open_connection(options, "test") as nc:
            sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
            for first in range(0, 10_000, 2000):
                sink.write(batch_of(rows[first : first + 2000], msg_ids[first : first + 2000]))
                if first == 4000 and fault == "kill":
                    leader_of(cluster, out).kill()
                elif first in (2000, 6000):
                    step_down(other, "S")
            assert sink.finish().duplicates >= 1
        assert stored(js) == Counter(rows)


@pytest.mark.parametrize(
    ("subjects", "error", "named"),
    [
        (["s.data", "elsewhere.x", "s.data"], NoStreamResponseError, "elsewhere.x"),
        (["s.data", "t.data", "s.data"], APIError, "atomic publish is disabled"),
        (["u.data", "u.data"], JetStreamError, r"stream 'U' stores the subject 'u\.data', but the markers are in"),
        (["s.data", "u.data"], JetStreamError, r"stream 'U' stores the subject 'u\.data', but the markers are in"),
    ],
)
def test_row_that_another_stream_would_take(
    nats_server: LocalServer, js: JetStream, subjects: list[str], error: type[Exception], named: str
) -> None:
    """The server says only that the batch is incomplete; the error says of which row, and why."""
    stream(js)
    js.create_stream(name="T", subjects=["t.>"])
    js.create_stream(name="U", subjects=["u.>"], allow_atomic=True)
    options = WriteOptions.parse(
        {"servers": nats_server.url, "exactlyOnce": "true", "markerSubject": MARKERS, "publishTimeout": "1"}
    )
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        sink.write(pa.RecordBatch.from_pydict({"subject": subjects, "data": [b"x"] * len(subjects)}))
        with pytest.raises(error, match=named):
            sink.finish()
    assert js.get_stream("S").get_info().state.messages == 0


# --- any sequence of attempts -----------------------------------------------------------------------------

CHUNK = 3
ROWS = st.sampled_from(["abcdefgh", "abcdefgh", "abcdefgh", "abcxefgh", "hgfedcba", "abcde", "aaaaaaaa", ""])
ATTEMPT = st.tuples(ROWS, st.integers(0, 9), st.sampled_from(["fail", "append"]))


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(attempts=st.lists(ATTEMPT, min_size=1, max_size=5))
def test_any_sequence_of_attempts(
    nats_server: LocalServer, js: JetStream, attempts: list[tuple[str, int, str]]
) -> None:
    """Attempts die anywhere and run again, with the same or other rows: no row is lost.

    None is stored twice, unless rows differed and the options say append.
    """
    js.create_or_update_stream(name="S", subjects=["s.>"], allow_atomic=True)
    js.get_stream("S").purge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_sink, "ROWS_PER_CHUNK", CHUNK)
        for rows, dies_after, mode in [*attempts, (attempts[-1][0], 99, "append")]:
            before = stored(js)
            done, said = run_attempt(nats_server.url, rows, dies_after, mode)
            after = stored(js)
            if said:
                assert (mode, after) == ("fail", before)
                assert "onReplayMismatch=append" in said
            assert before <= after
            if done:
                assert Counter(payloads(rows)) <= after
    if len({rows for rows, _, _ in attempts}) == 1:
        assert stored(js) == Counter(payloads(attempts[0][0]))


def payloads(rows: str) -> list[bytes]:
    return [row.encode() for row in rows]


def run_attempt(url: str, rows: str, dies_after: int, mode: str) -> tuple[bool, str]:
    """Whether the attempt came to its end, and its error. It dies after so many rows."""
    try:
        return _run_attempt(url, payloads(rows), dies_after, mode), ""
    except JetStreamError as error:
        return False, str(error)


def _run_attempt(url: str, given: list[bytes], dies_after: int, mode: str) -> bool:
    if dies_after >= len(given):
        attempt(url, given, onReplayMismatch=mode)
        return True
    options = write_options(url, onReplayMismatch=mode)
    task = TaskIdentity(QUERY, 0, 0)
    with (
        open_connection(options, "test") as nc,
        closing(AtomicSink(jetstream_of(nc, options), options, task)) as sink,
    ):
        for row in given[:dies_after]:
            sink.write(batch_of([row]))
        settle(nc)
    return False
