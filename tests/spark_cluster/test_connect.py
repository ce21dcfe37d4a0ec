"""Spark Connect: a client without a JVM registers the data source, reads, writes, streams and listens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from examples._cluster import SparkCluster
from jetstream_sync import JetStream
from jetstream_sync.spark.package import package
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.server import PortReservation
from tests.spark.queries import copied, once
from tests.spark_cluster.conftest import ROOT
from tests.spark_cluster.test_shipping import clean_environment
from tests.support.bare_python import bare_python
from tests.support.eventually import eventually
from tests.support.observer import fill

ROWS = 20_000
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PROGRAM = ROOT / "tests" / "spark_cluster" / "connect_program.py"


@contextmanager
def connect_server(master: str, folder: Path, environment: dict[str, str], more: dict[str, str]) -> Iterator[str]:
    """A server of Spark Connect that runs its jobs on `master`; the address for clients."""
    reserved = PortReservation()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(reserved.port),
        **more,
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", SERVER, "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "connect-server.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", reserved.port)) == 0

    try:
        eventually(answers, 90, "the server of Spark Connect answers")
        yield f"sc://127.0.0.1:{reserved.port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        reserved.release()


@pytest.mark.parametrize("shipped", ["installed", "zip"])
def test_register_read_write_and_stream(
    cluster: SparkCluster, nats_server: LocalServer, js: JetStream, tmp_path: Path, shipped: str
) -> None:
    """Where the library is installed, and where the server ships it to its executors as a zip.

    An artifact of the client's session (`addArtifacts`) reaches the tasks of batch jobs only, not those of
    streaming queries. A file of the server reaches both.
    """
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )
    fill(js, ROWS, subject="in.a")
    archive = tmp_path / "jetstream.zip"
    package(archive)
    installed = shipped == "installed"
    environment = clean_environment(Path(sys.executable) if installed else bare_python(tmp_path))
    environment["PYTHONPATH"] = str(ROOT if installed else archive)
    # A worker of Python runs in the folder of the client's session, below the one that has the server's files.
    on_executors = f"../{archive.name}:{archive.name}"
    ships = {"spark.files": str(archive), "spark.executorEnv.PYTHONPATH": on_executors}
    with connect_server(cluster.url, tmp_path, environment, {} if installed else ships) as address:
        ran = subprocess.run(
            [sys.executable, PROGRAM, address, nats_server.url, str(tmp_path / "checkpoints")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert ran.returncode == 0, ran.stderr[-8000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {"read": [ROWS, ROWS], "behind": [0, 0.0]}
    for name in ("default", "exactly"):
        assert copied(js, f"out.batch.{name}") == once(*range(1, ROWS + 1))
        assert copied(js, f"out.stream.{name}") == once(*range(1, ROWS + 1))
