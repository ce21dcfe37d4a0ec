"""The library reaches the executors as a zip: their interpreter has pyspark and pyarrow, and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from examples._cluster import SparkCluster
from jetstream_sync import JetStream
from jetstream_sync.spark.package import package
from jetstream_sync.testing import LocalServer
from tests.spark.queries import copied, once
from tests.spark_cluster.conftest import ROOT
from tests.support.bare_python import bare_python
from tests.support.observer import fill

ROWS = 30_000
PROGRAM = ROOT / "tests" / "spark_cluster" / "submitted_program.py"
SINKS = ("default", "exactly")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "jetstream.zip"
    package(path)
    return path


def clean_environment(interpreter: Path) -> dict[str, str]:
    """Without what would let Python find this checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    return {**kept, "PYSPARK_PYTHON": str(interpreter), "SPARK_LOCAL_IP": "127.0.0.1"}


def submit(
    cluster: SparkCluster, archive: Path, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the program as users do, from a folder that has nothing of ours."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "600m",
        "spark.driver.host": "127.0.0.1",
    }
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(spark_submit), "--master", cluster.url, "--py-files", str(archive)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    copy = folder / "program.py"
    copy.write_bytes(PROGRAM.read_bytes())
    return subprocess.run(
        [*command, str(copy), *arguments],
        # Spark starts the process that plans a streaming query without what --py-files names.
        env={**clean_environment(bare_python(folder)), "PYTHONPATH": str(archive)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_interpreter_of_the_executors_does_not_have_it(tmp_path: Path) -> None:
    """Without the zip the import fails; otherwise the next test would show nothing."""
    ran = subprocess.run(
        [bare_python(tmp_path), "-c", "import pyspark, pyarrow, jetstream_sync"],
        env=clean_environment(bare_python(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "No module named 'jetstream_sync'" in ran.stderr


def test_zip_is_enough_for_batch_and_streaming(
    cluster: SparkCluster, nats_server: LocalServer, js: JetStream, archive: Path, tmp_path: Path
) -> None:
    """`--py-files` and the driver's PYTHONPATH are all that reading, writing and streaming need."""
    js.create_stream(name="IN", subjects=["in.>"], storage="memory")
    js.create_stream(
        name="OUT", subjects=["out.>", "marks.>"], allow_atomic=True, allow_rollup_hdrs=True, storage="memory"
    )
    fill(js, ROWS, subject="in.a")
    ran = submit(cluster, archive, tmp_path, nats_server.url, str(tmp_path / "checkpoints"))
    assert ran.returncode == 0, ran.stderr[-8000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert ".zip/" in found["driver"]
    assert all(".zip/" in place for place in found["executors"])
    assert not any(place.startswith(str(archive)) for place in found["executors"])  # their own copies
    assert found["read"] == [ROWS, ROWS]
    for name in SINKS:
        assert copied(js, f"out.batch.{name}") == once(*range(1, ROWS + 1))
        assert copied(js, f"out.stream.{name}") == once(*range(1, ROWS + 1))
