"""The data source as Spark calls it: options of the other kind of read, and workers that lack the package."""

from __future__ import annotations

import logging
import sys
import venv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from jetstream_sync.spark import register
from jetstream_sync.spark.source import JetStreamDataSource
from jetstream_sync.spark.workers import problem_of_workers
from tests.spark.conftest import ROOT

SEQ = StructType([StructField("seq", LongType())])


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        ("streamReader", "endingOffsets", '{"seq": 5}'),
        ("streamReader", "endingTimestamp", "1700000000000"),
        ("reader", "maxMessagesPerTrigger", "5"),
        ("reader", "deleteOnCommit", "true"),
    ],
)
def test_option_of_the_other_kind_of_read_is_refused(make: str, option: str, value: str) -> None:
    """An option that would be ignored is an error that says where it belongs."""
    source = JetStreamDataSource({"stream": "S", option: value})
    with pytest.raises(ValueError, match=f"option '{option}' is for .+ only: a .+"):
        getattr(source, make)(SEQ)


@pytest.fixture
def other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter without this package."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "venv" / "bin" / "python")


def test_interpreter_without_the_package_is_noticed(other_python: str) -> None:
    """The problem names the interpreter, the reason and what to do."""
    problem = problem_of_workers(other_python)
    assert problem is not None
    for part in (other_python, "No module named 'jetstream_sync'", f"PYSPARK_PYTHON to '{sys.executable}'"):
        assert part in problem


def test_interpreter_with_the_package_is_no_problem(other_python: str) -> None:
    """Neither the driver's own, nor one that gets the package by the files that Spark ships."""
    assert problem_of_workers(sys.executable) is None
    assert problem_of_workers(other_python, [str(ROOT)]) is None


def test_interpreter_that_is_not_there_is_named() -> None:
    """A PYSPARK_PYTHON that does not exist is a problem, too."""
    assert "'/nowhere/python', which is not found" in str(problem_of_workers("/nowhere/python"))


def test_check_that_cannot_be_made_is_no_problem(tmp_path: Path) -> None:
    """What is no program at all says nothing about the package."""
    file = tmp_path / "python"
    file.write_bytes(b"\x00")
    file.chmod(0o755)
    assert problem_of_workers(str(file)) is None


def test_register_warns_of_workers_without_the_package(
    spark: SparkSession, other_python: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """register() says at once what queries would fail of; with the right interpreter it says nothing."""
    session = spark.newSession()  # which has its own data sources
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        register(session)
        assert caplog.text == ""
        monkeypatch.setattr(session.sparkContext, "pythonExec", other_python)
        register(session)
    assert f"Spark runs Python workers with '{other_python}'" in caplog.text
