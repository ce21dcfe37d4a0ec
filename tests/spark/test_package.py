"""The zip for `--py-files`: reproducible, without tests, and everything that a worker needs runs from it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jetstream_sync import JetStream
from jetstream_sync.spark import package
from jetstream_sync.testing import LocalServer
from tests.support.bare_python import bare_python

MAKE = [sys.executable, "-m", "jetstream_sync.spark.package"]

# Imports every module of the zip, then reads and writes as tasks do.
PROGRAM = """\
import importlib, sys, zipfile
archive, url = sys.argv[1:]
sys.dont_write_bytecode = True
names = [name[:-3].replace("/", ".").removesuffix(".__init__") for name in zipfile.ZipFile(archive).namelist()]
for name in names:
    assert importlib.import_module(name).__file__.startswith(archive), name

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_jetstream import DefaultSource
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import ReadOptions, WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import sink_of

options = WriteOptions.parse({"servers": url, "subject": "s.a"})
with open_connection(options, "task") as nc:
    sink = sink_of(jetstream_of(nc, options), options, TaskIdentity("w", None, 0))
    sink.write(pa.RecordBatch.from_pydict({"data": [b"0", b"1", b"2"]}))
    assert sink.finish().rows == 3
source = DefaultSource({"servers": url, "stream": "S"})
reader = source.reader(StructType([StructField("data", BinaryType())]))
rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
print(len(names), [row["data"] for row in rows])
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "out.zip"
    subprocess.run([*MAKE, str(path)], check=True, capture_output=True)
    return path


def test_what_to_do_next_is_printed(tmp_path: Path) -> None:
    """The command names the file, what is in it, and how to ship it."""
    made = subprocess.run([*MAKE, "out.zip"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"spark-submit --py-files {tmp_path}/out.zip program.py" in made.stdout
    assert (tmp_path / "out.zip").exists()
    assert made.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        ([], 2, "usage"),
        (["a.zip", "b.zip"], 2, "usage"),
        (["out.egg"], 2, ".zip"),
        (["no/such/out.zip"], 1, "no/such"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: list[str], status: int, named: str) -> None:
    """A clear sentence and an exit status; no file is left."""
    made = subprocess.run([*MAKE, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == status
    assert named in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_same_source_same_zip(archive: Path, tmp_path: Path) -> None:
    """Times and the order of a directory do not matter: a cluster's cache may compare the bytes."""
    os.utime(Path(package.__file__))
    again = tmp_path / "again.zip"
    package.package(again)
    assert again.read_bytes() == archive.read_bytes()


def test_only_source_of_the_two_packages(archive: Path) -> None:
    """Neither tests nor compiled files, and nothing of another package."""
    names = zipfile.ZipFile(archive).namelist()
    assert {name.split("/")[0] for name in names} == {"jetstream_sync", "pyspark_jetstream"}
    assert all(name.endswith(".py") for name in names)
    assert not any("/testing/" in name for name in names)


def test_everything_runs_from_the_zip(
    archive: Path, tmp_path: Path, nats_server: LocalServer, js: JetStream
) -> None:
    """An interpreter that has pyspark and pyarrow, and this library from the zip alone, reads and writes."""
    js.create_stream(name="S", subjects=["s.>"])
    ran = subprocess.run(
        [bare_python(tmp_path), "-c", PROGRAM, str(archive), nats_server.url],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    count = len(zipfile.ZipFile(archive).namelist())
    assert ran.stdout == f"{count} [b'0', b'1', b'2']\n"
