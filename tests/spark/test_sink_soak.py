"""Tasks of both sinks that die, run again and run twice at once, while connections break and the server is killed.

Every batch is run until its tasks have ended well. Then the stream must hold each of its rows once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pyarrow as pa
import pytest

from jetstream_sync import NatsError, connect
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_patiently
from jetstream_sync.spark.sinks import sink_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.spark.atomic import DATA, MARKERS, stored

SECONDS = 60.0
PARTITIONS = 3
COUNTS = (0, 1, 998, 999, 1000, 1998, 2500, 6000)
ATOMIC = {"exactlyOnce": "true", "markerSubject": MARKERS}


class Died(Exception):
    """An attempt of a task ends in the middle, as if its process was killed."""


def rows_of(epoch: int, partition: int) -> list[bytes]:
    pick = random.Random(f"{epoch}/{partition}")
    large = pick.random() < 0.2
    sizes = [pick.randrange(60_000) if large and number % 50 == 0 else 0 for number in range(pick.choice(COUNTS))]
    return [b"%d/%d/%d/" % (epoch, partition, number) + b"x" * size for number, size in enumerate(sizes)]


def batches(rows: list[bytes], ids: list[str], pick: random.Random) -> Iterator[pa.RecordBatch]:
    first = 0
    while first < len(rows):
        end = first + pick.choice((1, 7, 100, 999, 1000, 3000))
        columns = {"data": pa.array(rows[first:end], pa.binary())}
        if ids:
            columns["msg_id"] = pa.array(ids[first:end], pa.string())
        yield pa.RecordBatch.from_pydict(columns)
        first = end


class Tasks:
    """Runs the tasks of batches with one kind of sink."""

    def __init__(self, url: str, options: dict[str, str], *, with_ids: bool) -> None:
        self._options = WriteOptions.parse({"servers": url, "subject": DATA, "publishTimeout": "30", **options})
        self._with_ids = with_ids

    def run(self, epoch: int, partition: int) -> None:
        """Run a task until an attempt has ended well. Some attempts die, and some have a zombie beside them."""
        pick = random.Random(f"task {epoch}/{partition}")
        for number in count():
            dies = number < pick.choice((0, 0, 1, 2))
            zombies = []
            with ThreadPoolExecutor(1) as pool:
                if pick.random() < 0.3:
                    its_own = random.Random(f"zombie {epoch}/{partition}/{number}")
                    zombies.append(pool.submit(self._attempt, epoch, partition, its_own, dies=True))
                try:
                    self._attempt(epoch, partition, pick, dies=dies)
                    return
                except (Died, NatsError):
                    continue
                finally:
                    for zombie in zombies:
                        assert isinstance(zombie.exception(), (Died, NatsError))

    def _attempt(self, epoch: int, partition: int, pick: random.Random, *, dies: bool) -> None:
        rows = rows_of(epoch, partition)
        ids = [f"{epoch}/{partition}/{number}" for number in range(len(rows))] if self._with_ids else []
        last = pick.randrange(len(rows) + 1) if dies else len(rows)
        done = 0
        with open_patiently(self._options, "soak", seconds=60) as nc:
            task = TaskIdentity("query", epoch, partition)
            with closing(sink_of(jetstream_of(nc, self._options), self._options, task)) as sink:
                for batch in batches(rows, ids, pick):
                    if dies and done >= last:
                        raise Died
                    sink.write(batch)
                    done += batch.num_rows
                if dies:
                    raise Died
                sink.finish()


def cause_faults(proxy: FaultProxy, server: LocalServer, stop: threading.Event) -> None:
    pick = random.Random(7)
    while not stop.wait(pick.random()):
        fault = pick.choice(("cut", "reset", "cut rows", "cut acks", "hold rows", "hold acks", "kill", "pause"))
        if fault in ("cut", "reset"):
            getattr(proxy, fault)()
        elif fault == "cut rows":
            proxy.cut_after(pick.randrange(1, 300_000), "to_server")
        elif fault == "cut acks":
            proxy.cut_after(pick.randrange(1, 2000), "to_client")
        elif fault.startswith("hold"):
            proxy.black_hole("to_server" if fault == "hold rows" else "to_client")
            stop.wait(pick.random() * 2)
            proxy.cut()
            proxy.heal()
        elif fault == "kill":
            server.kill()
            server.start()
        else:
            server.pause()
            stop.wait(pick.random())
            server.resume()
    proxy.heal()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "with_ids", "rollup"),
    [({}, False, False), (ATOMIC, False, False), (ATOMIC, False, True), (ATOMIC, True, True)],
    ids=["default", "exactlyOnce", "exactlyOnce with roll-up", "exactlyOnce with msg_id"],
)
def test_every_row_is_stored_once(options: dict[str, str], with_ids: bool, rollup: bool) -> None:
    """Whatever happens to tasks, connections and the server."""
    expected: Counter[bytes] = Counter()
    stop = threading.Event()
    with LocalServer() as server, FaultProxy(server, record=False) as proxy:
        with connect(server.url) as nc:
            nc.jetstream().create_stream(
                name="S", subjects=["s.>"], allow_atomic=True, allow_rollup_hdrs=rollup, duplicate_window=600
            )
        tasks = Tasks(proxy.url, options, with_ids=with_ids)
        with ThreadPoolExecutor(PARTITIONS + 1) as pool:
            faults = pool.submit(cause_faults, proxy, server, stop)
            try:
                ends = time.monotonic() + SECONDS
                for epoch in count():
                    runs = [pool.submit(tasks.run, epoch, partition) for partition in range(PARTITIONS)]
                    for partition, run in enumerate(runs):
                        run.result()
                        expected.update(rows_of(epoch, partition))
                    if time.monotonic() >= ends:
                        break
            finally:
                stop.set()
            faults.result()
        with connect(server.url) as nc:
            assert stored(nc.jetstream(timeout=30)) == expected
