"""Servers and drivers that die in the middle: nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream, connect
from jetstream_sync.testing import LocalServer
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.queries import copied, once
from tests.support.eventually import eventually

Fill = Callable[..., None]


@pytest.fixture
def server_crash(nats_server: LocalServer) -> Iterator[Callable[[str], threading.Thread]]:
    """Kill and restart the server once a connection of that name has moved `at_least` messages."""
    threads = []

    def crash_at(name: str, at_least: int = 5000) -> threading.Thread:
        def busy() -> bool:
            connections = nats_server.monitor("/connz")["connections"]
            return any(
                name in each.get("name", "") and each["out_msgs"] + each["in_msgs"] >= at_least
                for each in connections
            )

        def crash() -> None:
            eventually(busy, timeout=60, message=f"a connection named {name!r} is at work")
            nats_server.kill()
            nats_server.start()

        thread = threading.Thread(target=crash)
        thread.start()
        threads.append(thread)
        return thread

    yield crash_at
    for thread in threads:
        thread.join(70)


def test_server_restarts_while_reading(
    spark: SparkSession,
    nats_server: LocalServer,
    js: JetStream,
    fill: Fill,
    server_crash: Callable[..., threading.Thread],
) -> None:
    """Tasks connect again, make their consumers anew and go on: each sequence comes once."""
    js.create_stream(name="S", subjects=["s.>"])
    fill("s.a", 100_000)
    crash = server_crash("spark read")
    frame = spark.read.format("jetstream").options(servers=nats_server.url, stream="S", minPartitions=2).load()
    counted = frame.selectExpr("count(seq)", "count(distinct seq)", "sum(length(data))").first()
    crash.join(60)
    assert tuple(counted)[:2] == (100_000, 100_000)
    assert "spark read" not in str(nats_server.monitor("/connz"))


def test_server_restarts_while_writing(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, server_crash: Callable[..., threading.Thread]
) -> None:
    """What was not acknowledged is sent again: every row is stored, none twice."""
    js.create_stream(name="S", subjects=["s.>"])
    crash = server_crash("spark write")
    frame = spark.range(0, 60_000, numPartitions=2).selectExpr("cast(id as string) as data", "'s.a' as subject")
    frame.write.format("jetstream").options(servers=nats_server.url).mode("append").save()
    crash.join(60)
    with connect(nats_server.url) as nc:
        mine = nc.jetstream()
        assert mine.get_stream("S").info.state.messages == 60_000
        consumer = mine.create_consumer("S", ack_policy="none")
        stored = {int(message.data) for message in consumer.fetch(60_000, expires=30)}
    assert stored == set(range(60_000))


def start_driver(url: str, checkpoint: Path, log: Path, sink: list[str]) -> subprocess.Popen[bytes]:
    program = ROOT / "tests" / "spark" / "driver_program.py"
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, str(program), url, str(checkpoint), *sink],
            env=spark_environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@pytest.mark.soak  # two more drivers, each with a JVM
@pytest.mark.parametrize("sink", [[], ["exactlyOnce=true", "markerSubject=marks"]], ids=["default", "exactlyOnce"])
def test_driver_is_killed_in_the_middle_of_a_batch(
    nats_server: LocalServer, js: JetStream, fill: Fill, sink: list[str], tmp_path: Path
) -> None:
    """Python, JVM and workers die at once; a new driver goes on from the checkpoint, and the total is exact."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )
    fill("in.a", 60_000)
    driver = start_driver(nats_server.url, tmp_path / "checkpoint", tmp_path / "log", sink)
    try:
        eventually(
            lambda: js.get_stream("OUT").info.state.messages > 25_000 or driver.poll() is not None, timeout=90
        )
        assert driver.poll() is None, (tmp_path / "log").read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert js.get_stream("OUT").info.state.messages < 60_000
    again = start_driver(nats_server.url, tmp_path / "checkpoint", tmp_path / "log", sink)
    try:
        assert again.wait(90) == 0, (tmp_path / "log").read_text()
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)
            again.wait()
    assert copied(js) == once(*range(1, 60_001))
