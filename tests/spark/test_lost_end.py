"""A stream that has lost its end, as after a crash of the operating system, or of the server of a memory stream.

It is the same stream by name and time of creation, but new messages get sequences that were there before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import DataLossError
from jetstream_sync.spark import range_reader, stream_reader
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.testing import LocalServer

Reader = Callable[..., JetStreamStreamReader]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (range_reader, stream_reader):
        monkeypatch.setattr(module, "LAG_SECONDS", 0.0)


class ForgetfulServer:
    """A server with a stream S, which is as at save() after lose()."""

    def __init__(self, server: LocalServer, saved: Path) -> None:
        self.server = server
        self._saved = saved
        with jetstream_sync.connect(server.url) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s"])

    def publish(self, count: int) -> None:
        with jetstream_sync.connect(self.server.url) as nc:
            for _ in range(count):
                nc.jetstream().publish("s")

    def save(self) -> None:
        self.server.stop()
        shutil.copytree(self.server.store_dir, self._saved)
        self.server.start()

    def lose(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.store_dir)
        shutil.copytree(self._saved, self.server.store_dir)
        self.server.start()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[ForgetfulServer]:
    """Stream S has 30 messages, and loses the last 20."""
    with LocalServer(jetstream=True) as server:
        forgetful = ForgetfulServer(server, tmp_path / "saved")
        forgetful.publish(10)
        forgetful.save()
        forgetful.publish(20)
        yield forgetful


@pytest.fixture
def reader(forgetful: ForgetfulServer, stream_reader: Reader) -> Reader:
    return partial(stream_reader, servers=forgetful.server.url, stream="S")


def read(reader: JetStreamStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    batches = (batch for part in reader.partitions(start, end) for batch in reader.read(part))
    return [number for batch in batches for number in batch["seq"].to_pylist()]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_query_notices_that_the_stream_has_lost_its_end(
    forgetful: ForgetfulServer, reader: Reader, starting: str
) -> None:
    """The messages that get the lost sequences would never be read: an error, or a warning and the new ones."""
    first = reader(startingOffsets=starting)
    start = first.latestOffset(first.initialOffset())
    assert start["next"] == 31
    first.stop()
    forgetful.lose()
    with pytest.raises(DataLossError, match="ends at sequence 10, but was read up to 30"):
        reader(startingOffsets=starting).latestOffset(start)
    lenient = reader(failOnDataLoss="false")
    end = lenient.latestOffset(start)
    assert end["next"] == 11
    assert read(lenient, start, end) == []
    forgetful.publish(5)
    lenient.prepareForTriggerAvailableNow()  # which asks the server at once
    later = lenient.latestOffset(end)
    assert read(lenient, end, later) == [11, 12, 13, 14, 15]


def test_batch_that_begins_with_a_lost_end(forgetful: ForgetfulServer, reader: Reader) -> None:
    """It reads what follows the end of the stream as it was noticed, and the same when it runs again."""
    first = reader(startingOffsets="earliest")
    start = first.latestOffset(first.initialOffset())
    first.stop()
    forgetful.lose()
    lenient = reader(failOnDataLoss="false")
    noticed = lenient.latestOffset(start)
    forgetful.publish(3)
    lenient.prepareForTriggerAvailableNow()
    end = lenient.latestOffset(noticed)
    assert read(lenient, start, end) == [11, 12, 13]
    assert read(reader(failOnDataLoss="false"), start, end) == [11, 12, 13]


def test_task_notices_that_the_stream_has_lost_its_end(forgetful: ForgetfulServer, reader: Reader) -> None:
    """The range was stored when it was planned: that nothing of it is there is no reason to be done."""
    first = reader(startingOffsets="earliest")
    start = first.initialOffset()
    end = first.latestOffset(start)
    parts = first.partitions(start, end)
    first.stop()
    forgetful.lose()
    with pytest.raises(DataLossError, match="ends at sequence 10, sequences 11 to 30 are gone"):
        [batch for part in parts for batch in first.read(part)]
    lenient = reader(failOnDataLoss="false")
    assert [batch.num_rows for part in parts for batch in lenient.read(part)] == [10]


def test_start_behind_the_end_is_no_loss(forgetful: ForgetfulServer, reader: Reader) -> None:
    """A query that is told to start at a sequence that is not there yet waits for it."""
    waiting = reader(startingOffsets='{"seq": 34}')
    start = waiting.initialOffset()
    assert waiting.latestOffset(start) == start
    forgetful.publish(5)
    waiting.prepareForTriggerAvailableNow()
    end = waiting.latestOffset(start)
    assert read(waiting, start, end) == [34, 35]
