"""exactlyOnce with a column msg_id: rows whose ids the stream has are left out, all others are stored once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from jetstream_sync import JetStream
from jetstream_sync.spark.atomic_sink import AtomicSink
from jetstream_sync.spark.message_ids import TaskIdentity, Written
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.testing import LocalServer
from tests.spark.atomic import QUERY, attempt, batch_of, markers, numbered, stored, stream, write_options


@pytest.fixture
def url(nats_server: LocalServer) -> str:
    return nats_server.url


def write(url: str, ids: list[str | None], **task: int) -> Written:
    """Store rows whose payload is their id, in one task."""
    return attempt(url, batch_of([(msg_id or "none").encode() for msg_id in ids], ids), **task)  # type: ignore[arg-type]


def names(*numbers: int) -> list[str | None]:
    return [f"id-{number}" for number in numbers]


@pytest.mark.parametrize(
    "there",
    [[0], [998], [999], [500, 501, 1500], list(range(999)), list(range(0, 2500, 2)), list(range(2500))],
    ids=["first", "last of a chunk", "first of a chunk", "some", "a whole chunk", "every second", "all"],
)
def test_rows_that_are_there_are_left_out(url: str, js: JetStream, there: list[int]) -> None:
    """Whatever the place of such rows, the others are stored, and they are counted as duplicates."""
    stream(js)
    for number in there:
        js.publish_async("s.data", b"id-%d" % number, msg_id=f"id-{number}")
    js.publish_async_wait(30)
    written = write(url, names(*range(2500)))
    assert (written.rows, written.duplicates) == (2500, len(there))
    assert stored(js) == Counter(numbered_ids(2500))
    assert markers(js) == {"0": 3}
    assert write(url, names(*range(2500))).duplicates == 2500
    assert stored(js) == Counter(numbered_ids(2500))


def numbered_ids(count: int) -> list[bytes]:
    return [b"id-" + number for number in numbered(count)]


def test_ids_twice_in_one_write(url: str, js: JetStream) -> None:
    """The first row of an id is stored, in the chunk where it comes first; rows without id are all stored."""
    stream(js)
    ids = [*names(1, 2, 1, 3, 3), None, None, *names(*range(100, 1500)), *names(1, 100, 1499), None]
    written = write(url, ids)
    assert (written.rows, written.duplicates) == (len(ids), 5)
    expected = Counter({b"id-%d" % number: 1 for number in (1, 2, 3, *range(100, 1500))}) + Counter({b"none": 3})
    assert stored(js) == expected


def test_rows_of_other_partitions_and_epochs_are_recognised(url: str, js: JetStream) -> None:
    """Ids count in the whole stream, not in a partition."""
    stream(js, allow_rollup_hdrs=True)
    write(url, names(*range(1200)))
    assert write(url, names(*range(600, 1800)), partition=1).duplicates == 600
    assert write(url, names(*range(0, 3600, 2)), epoch=1).duplicates == 900
    found = stored(js)
    assert set(found.values()) == {1}
    assert len(found) == 1800 + 900


def test_ids_that_another_writer_stores_meanwhile(url: str, js: JetStream) -> None:
    """An id may come into the stream between the look for it and the commit: the chunk is looked at again."""
    stream(js)
    options = write_options(url)
    rng = random.Random(7)
    with open_connection(options, "test") as nc:
        sink = AtomicSink(jetstream_of(nc, options), options, TaskIdentity(QUERY, 0, 0))
        expected: Counter[bytes] = Counter()
        for first in range(0, 10_000, 500):
            ids = names(*range(first, first + 500))
            for number in rng.sample(range(first, min(first + 2000, 10_000)), 20):
                js.publish("s.data", b"id-%d" % number, msg_id=f"id-{number}")
            sink.write(batch_of([str(one).encode() for one in ids], ids))
            expected.update(numbered_ids(first + 500)[first:])
        sink.finish()
    assert stored(js) == expected
