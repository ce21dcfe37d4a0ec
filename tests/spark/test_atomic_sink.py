"""The sink of exactlyOnce against a real server: attempts of tasks that die, run again, and run at once."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from jetstream_sync import JetStream
from jetstream_sync.errors import JetStreamError, MaxPayloadError
from jetstream_sync.spark import atomic_sink, batch_commits
from jetstream_sync.spark.atomic_sink import AtomicSink
from jetstream_sync.spark.checks import check_stream
from jetstream_sync.spark.markers import Marker
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.testing import LocalServer
from tests.spark.atomic import (
    DATA,
    MARKERS,
    QUERY,
    attempt,
    batch_of,
    markers,
    numbered,
    settle,
    stored,
    stream,
    write_options,
)

APPEND = {"onReplayMismatch": "append"}


@pytest.fixture
def url(nats_server: LocalServer) -> str:
    return nats_server.url


def once(rows: list[bytes]) -> Counter[bytes]:
    return Counter(rows)


# --- the same rows again ----------------------------------------------------------------------------------


def test_attempt_goes_on_behind_the_last_chunk(url: str, js: JetStream) -> None:
    """An attempt that died after two whole chunks left those; the next one passes over them."""
    stream(js)
    attempt(url, numbered(2500), finish=False)
    assert stored(js) == once(numbered(1998))
    assert attempt(url, numbered(2500)).duplicates == 1998
    again = attempt(url, numbered(2500))
    assert (again.rows, again.duplicates) == (2500, 2500)
    assert stored(js) == once(numbered(2500))


def test_how_rows_are_divided_does_not_matter(url: str, js: JetStream) -> None:
    """Spark may pass the same rows in record batches of other sizes."""
    stream(js)
    options = write_options(url)
    attempt(url, numbered(3000), finish=False)
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        for first in range(0, 3000, 7):
            sink.write(batch_of(numbered(min(7, 3000 - first), first)))
        sink.write(batch_of([]))
        assert sink.finish().duplicates == 2997
    assert stored(js) == once(numbered(3000))


def test_rows_keep_their_order(url: str, js: JetStream) -> None:
    """Sequences follow the order of the rows, over chunks and record batches."""
    stream(js)
    attempt(url, numbered(2500))
    consumer = js.create_consumer("S", ack_policy="none", filter_subject=DATA)
    assert [message.data for message in consumer.fetch(2500, expires=10)] == numbered(2500)


def test_marker_of_version_0_1_0_is_understood(url: str, js: JetStream) -> None:
    """It has no fingerprint: its rows are passed over as before."""
    stream(js)
    with js.publish_batch() as batch:
        for row in numbered(500):
            batch.add(DATA, row)
        batch.add(f"{MARKERS}.{QUERY}.0", b'{"epoch":4,"rows":500,"task":"old"}', expected_last_subject_seq=0)
    assert attempt(url, numbered(1200), epoch=4).duplicates == 500
    assert attempt(url, numbered(1200), epoch=4).duplicates == 1200
    assert stored(js) == once(numbered(1200))


def test_columns_become_messages(url: str, js: JetStream) -> None:
    """Subject, payload, headers, id and ttl of a row are those of its message."""
    stream(js, allow_msg_ttl=True)
    headers = pa.array([[("A", ["1", "2"])], None], pa.map_(pa.string(), pa.list_(pa.string())))
    batch = pa.RecordBatch.from_pydict(
        {
            "subject": pa.array(["s.a", "s.b"]),
            "data": pa.array([b"\x00\xff", b""], pa.binary()),
            "headers": headers,
            "msg_id": pa.array(["id-1", None]),
            "ttl": pa.array([60, None], pa.int32()),
        }
    )
    options = WriteOptions.parse({"servers": url, "exactlyOnce": "true", "markerSubject": MARKERS, "stream": "S"})
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        sink.write(batch)
        sink.finish()
    first, second = js.get_stream("S").get_message(1), js.get_stream("S").get_message(2)
    assert (first.subject, first.data, first.headers.get_all("A")) == ("s.a", b"\x00\xff", ["1", "2"])
    assert (first.headers["Nats-Msg-Id"], first.headers["Nats-TTL"]) == ("id-1", "60s")
    assert first.headers["Nats-Expected-Stream"] == "S"
    assert (second.subject, second.data) == ("s.b", b"")
    assert "Nats-Msg-Id" not in second.headers


def test_chunks_are_limited_in_bytes(url: str, js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows make smaller chunks; a row that is larger than a chunk is stored alone."""
    stream(js)
    monkeypatch.setattr(atomic_sink, "CHUNK_BYTES", 10_000)
    rows = [b"%d" % number * 200 for number in range(200)] + [b"x" * 20_000] + numbered(50)
    attempt(url, rows)
    assert attempt(url, rows).duplicates == len(rows)
    assert stored(js) == once(rows)
    assert 10 < markers(js)["0"] < 30
    with pytest.raises(MaxPayloadError):
        attempt(url, [b"x" * 2_000_000], epoch=1)


# --- other rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (numbered(2500, first=1), "begins with 1998 other rows"),
        (list(reversed(numbered(2500))), "begins with 1998 other rows"),
        (numbered(1500), "has 1500 rows now, but 1998 are stored"),
        ([], "has 0 rows now, but 1998 are stored"),
    ],
    ids=["other", "another order", "fewer", "none"],
)
def test_other_rows_than_those_that_are_stored(
    url: str, js: JetStream, again: list[bytes], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that names query, batch, partition and what to do; or, if so told, all rows are stored again."""
    stream(js)
    attempt(url, numbered(2500), partition=3, finish=False)
    with pytest.raises(JetStreamError, match=said) as caught:
        attempt(url, again, partition=3)
    for named in ("batch 0", repr(QUERY), "partition 3", "onReplayMismatch=append", "stored nothing"):
        assert named in str(caught.value)
    assert stored(js) == once(numbered(1998))
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        written = attempt(url, again, partition=3, **APPEND)
    assert said in caplog.text
    assert (written.rows, written.duplicates) == (len(again), 0)
    assert stored(js) == once(numbered(1998)) + once(again)
    if again:  # and the marker is now that of the new rows
        assert attempt(url, again, partition=3).duplicates == len(again)
        assert stored(js) == once(numbered(1998)) + once(again)


@pytest.mark.parametrize("count", [10, 999, 1500])
def test_further_rows_of_a_partition_that_had_ended(url: str, js: JetStream, count: int) -> None:
    """4 partitions become 2: the first one begins with the same rows, and goes on with those of the second."""
    stream(js)
    attempt(url, numbered(count))
    attempt(url, numbered(count, first=count), partition=1)
    with pytest.raises(JetStreamError, match=f"more than the {count} rows .*onReplayMismatch=append"):
        attempt(url, numbered(2 * count))
    assert attempt(url, numbered(count)).duplicates == count
    assert stored(js) == once(numbered(2 * count))
    assert attempt(url, numbered(2 * count), **APPEND).duplicates == 0
    assert stored(js) == once(numbered(2 * count)) + once(numbered(2 * count))
    assert attempt(url, numbered(2 * count)).duplicates == 2 * count


def test_append_after_append(url: str, js: JetStream) -> None:
    """An attempt that appends and dies is continued by the next one with the same rows."""
    stream(js)
    attempt(url, numbered(1500), finish=False)
    attempt(url, numbered(2500, first=5), finish=False, **APPEND)
    assert stored(js) == once(numbered(999)) + once(numbered(1998, first=5))
    assert attempt(url, numbered(2500, first=5), **APPEND).duplicates == 1998
    assert stored(js) == once(numbered(999)) + once(numbered(2500, first=5))


def test_append_keeps_every_column(url: str, js: JetStream) -> None:
    """Rows that were passed over and are stored after all have their ids and subjects."""
    stream(js)
    options = WriteOptions.parse({"servers": url, "exactlyOnce": "true", "markerSubject": MARKERS, **APPEND})
    for text in ("old", "new"):
        batch = pa.RecordBatch.from_pydict(
            {
                "subject": [f"s.{number % 3}" for number in range(1000)],
                "data": [text.encode()] * 1000,
                "msg_id": [f"{text}-{number}" if number % 2 else None for number in range(1000)],
            }
        )
        with open_connection(options, "test") as nc:
            sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
            sink.write(batch)
            sink.finish()
    message = js.get_stream("S").get_message(1004)
    assert (message.subject, message.data, message.headers["Nats-Msg-Id"]) == ("s.1", b"new", "new-1")
    assert {subject: stored(js, subject)[b"new"] for subject in ("s.0", "s.1", "s.2")} == {
        "s.0": 334,
        "s.1": 333,
        "s.2": 333,
    }


def test_another_subject_is_another_row(url: str, js: JetStream) -> None:
    """The option `subject` is part of what a row is."""
    stream(js)
    attempt(url, numbered(10))
    with pytest.raises(JetStreamError, match="10 other rows"):
        attempt(url, numbered(10), subject="s.elsewhere")


def test_old_checkpoint_is_noticed(url: str, js: JetStream) -> None:
    """A streaming query that is behind its own markers would lose rows by passing over them."""
    stream(js)
    for epoch in range(3):
        attempt(url, numbered(10, first=10 * epoch), epoch=epoch)
    with pytest.raises(JetStreamError, match=r"batch 1 of 'query'.* comes after batch 2: .*old copy of the check"):
        attempt(url, numbered(30), epoch=1)
    assert attempt(url, numbered(30), epoch=1, **APPEND).duplicates == 0
    assert stored(js) == once(numbered(30)) + once(numbered(30))


def test_older_epoch_of_a_named_write_is_done(url: str, js: JetStream) -> None:
    """A write that the user has named and numbered is passed over if a later one is stored."""
    stream(js)
    attempt(url, numbered(10), epoch=7, named=True)
    written = attempt(url, numbered(20), epoch=6, named=True)
    assert (written.rows, written.duplicates) == (20, 20)
    assert attempt(url, numbered(10), epoch=7, named=True).duplicates == 10
    assert stored(js) == once(numbered(10))


# --- two attempts at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rollup", [False, True])
@pytest.mark.parametrize("written", [0, 999])
def test_zombie_is_refused(
    url: str, js: JetStream, rollup: bool, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream takes the chunk of one attempt and refuses the other's as a whole, at the start and later on."""
    monkeypatch.setattr(batch_commits, "STANDSTILL_SECONDS", 0.0)
    stream(js, allow_rollup_hdrs=rollup)
    options = write_options(url)
    if written:
        attempt(url, numbered(written + 1), finish=False)
    with open_connection(options, "test") as nc:
        zombie = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        attempt(url, numbered(10 + written))
        zombie.write(batch_of(numbered(20 + written)))
        with pytest.raises(JetStreamError, match="another attempt"):
            zombie.finish()
    assert stored(js) == once(numbered(10 + written))


def test_marker_that_goes_while_a_task_writes(url: str, js: JetStream) -> None:
    """The chunk that expects it is refused, and the error says so."""
    stream(js)
    options = write_options(url)
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        sink.write(batch_of(numbered(1500)))
        settle(nc)
        js.get_stream("S").purge(subject=f"{MARKERS}.>")
        with pytest.raises(JetStreamError, match=r"marker on 's.markers.query.0' is gone"):
            sink.finish()
    assert stored(js) == once(numbered(999))


def test_attempt_does_not_wait_for_later_epochs(url: str, js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that Spark believes dead must not live as long as the query goes on."""
    stream(js)
    options = write_options(url)
    monkeypatch.setattr(batch_commits, "STANDSTILL_SECONDS", 3600.0)
    with open_connection(options, "test") as nc, ThreadPoolExecutor(1) as pool:
        zombie = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        attempt(url, numbered(10))
        zombie.write(batch_of(numbered(20)))
        ended = pool.submit(zombie.finish)
        attempt(url, numbered(10), epoch=1)
        assert isinstance(ended.exception(60), JetStreamError)


def test_attempt_waits_while_another_one_writes(url: str, js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends it when the other one has finished; if it failed before, Spark would count that."""
    stream(js)
    options = write_options(url)
    monkeypatch.setattr(batch_commits, "STANDSTILL_SECONDS", 60.0)
    asked = threading.Event()
    errors: list[BaseException] = []

    def overtaken() -> None:
        with open_connection(options, "test") as nc:
            sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
            attempt(url, numbered(1000), finish=False)
            asked.set()
            try:
                sink.write(batch_of(numbered(1000)))
                sink.finish()
            except JetStreamError as error:
                errors.append(error)

    thread = threading.Thread(target=overtaken)
    thread.start()
    assert asked.wait(60)
    for chunks in (2, 3, 4):
        attempt(url, numbered(999 * chunks + 1), finish=False)
        assert thread.is_alive()
    monkeypatch.setattr(batch_commits, "STANDSTILL_SECONDS", 0.0)
    thread.join(60)
    assert not thread.is_alive()
    assert "another attempt" in str(errors[0])
    assert stored(js) == once(numbered(3996))


# --- markers that are gone --------------------------------------------------------------------------------


def test_markers_that_were_removed_are_missed(url: str, js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    """A later epoch without any marker is an error in every partition; allowMarkerLoss=true goes on."""
    stream(js)
    for partition in (0, 1):
        attempt(url, numbered(10), partition=partition)
    js.get_stream("S").purge(subject=f"{MARKERS}.>")
    for partition in (0, 1, 2):
        with pytest.raises(JetStreamError, match=r"batch 1 of 'query' finds no marker .*allowMarkerLoss=true"):
            attempt(url, numbered(10), epoch=1, partition=partition)
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        attempt(url, numbered(10), epoch=1, allowMarkerLoss="true")
    assert "finds no marker" in caplog.text
    attempt(url, numbered(10), epoch=2, partition=1)
    assert stored(js)[b"0"] == 4


def test_first_batch_that_runs_again_misses_its_markers(url: str, js: JetStream) -> None:
    """The last row of the stream says that the batch was begun, if no marker says it."""
    stream(js)
    attempt(url, numbered(3000))
    js.get_stream("S").purge(subject=f"{MARKERS}.>")
    with pytest.raises(JetStreamError, match="batch 0 of 'query' finds no marker"):
        attempt(url, numbered(3000))
    assert stored(js) == once(numbered(3000))


def test_epochs_without_rows_are_no_loss(url: str, js: JetStream) -> None:
    """Partition 0 leaves a marker, also without rows; further partitions may come and go."""
    stream(js)
    attempt(url, [])
    assert markers(js) == {"0": 1}
    attempt(url, [], epoch=1)
    attempt(url, [], epoch=1, partition=1)
    assert markers(js) == {"0": 1}
    attempt(url, numbered(5), epoch=2, partition=1)
    attempt(url, [], epoch=2)
    attempt(url, numbered(5), epoch=3, partition=2)
    assert stored(js) == once(numbered(5)) + once(numbered(5))


def test_query_that_was_begun_by_version_0_1_0_goes_on(url: str, js: JetStream) -> None:
    """It may have markers of other partitions than the first alone."""
    stream(js)
    js.publish(f"{MARKERS}.{QUERY}.3", Marker(6, 10, "old").to_bytes())
    attempt(url, numbered(5), epoch=7)
    assert stored(js) == once(numbered(5))


def test_named_write_may_begin_with_any_epoch(url: str, js: JetStream) -> None:
    stream(js)
    attempt(url, numbered(5), epoch=20260101, named=True)
    assert stored(js) == once(numbered(5))


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_age": 3600}, "max_age=3600"),
        ({"max_msgs": 1000}, "max_msgs=1000"),
        ({"max_bytes": 100_000_000}, "max_bytes=100000000"),
        ({"max_msgs_per_subject": 100}, "max_msgs_per_subject=100"),
        ({"retention": "interest"}, "retention=interest"),
        ({"retention": "workqueue"}, "retention=workqueue"),
        ({"max_msgs": 1000, "discard": "new"}, None),
    ],
)
def test_stream_whose_limits_remove_markers_is_refused(
    url: str, js: JetStream, settings: dict[str, Any], limit: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first row, with the limit's name and the option that allows it, which then warns."""
    stream(js, allow_rollup_hdrs=True, **settings)
    if limit is not None:
        with pytest.raises(ValueError, match=f"{limit}.*allowMarkerLoss=true"):
            check_stream(js, write_options(url), "S")
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        check_stream(js, write_options(url, allowMarkerLoss="true"), "S")
    assert (limit or "no limit") in caplog.text if limit else caplog.text == ""


# --- roll-up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 6), ({"allow_rollup_hdrs": True}, 1)],
    ids=["plain", "roll-up"],
)
def test_marker_replaces_the_one_before(
    url: str, js: JetStream, settings: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the stream allows it; elsewhere a warning at the start names the setting."""
    stream(js, **settings)
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        check_stream(js, write_options(url), "S")
    assert ("allow_rollup_hdrs" in caplog.text) is (count > 1)
    for epoch in (0, 1):
        attempt(url, numbered(2500), epoch=epoch)
    assert markers(js) == {"0": count}
    assert stored(js) == once(numbered(2500)) + once(numbered(2500))
