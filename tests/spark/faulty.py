"""A data source that fails once, at a place that a test chooses.

The option `fault` names the place. The option `marker` names a file that is created on the failure, so that it
happens once only. Everything else is the real data source.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from jetstream_sync.spark.source import JetStreamDataSource

# More than a sink keeps in memory: when it asks for more rows, some are stored.
ROWS_BEFORE_A_FAULT = 8000


class Fault:
    """Fail once, in the first process that gets here."""

    def __init__(self, where: str, marker: str) -> None:
        self.where = where
        self.marker = marker

    def hold(self) -> None:
        """Wait until the test goes on."""
        while not Path(f"{self.marker}-released").exists():
            time.sleep(0.02)

    def happens(self, where: str) -> bool:
        if where != self.where:
            return False
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class FaultyDataSource(JetStreamDataSource):
    @classmethod
    def name(cls) -> str:
        return "jetstream_faulty"

    def __init__(self, options: Any) -> None:
        mine = ("fault", "marker")
        super().__init__({name: value for name, value in options.items() if name.lower() not in mine})
        self.fault = Fault(options["fault"], options["marker"])

    def reader(self, schema: Any) -> Any:
        return _with_faulty_read(super().reader(schema), self.fault)

    def streamReader(self, schema: Any) -> Any:
        return _with_faulty_read(super().streamReader(schema), self.fault)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _with_faulty_write(super().writer(schema, overwrite), self.fault)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = _with_faulty_commit(super().streamWriter(schema, overwrite), self.fault)
        return _with_faulty_write(writer, self.fault)


class _FaultyRead:
    def __init__(self, read: Callable[..., Iterator[Any]], fault: Fault) -> None:
        self._read = read
        self._fault = fault

    def __call__(self, partition: Any) -> Iterator[Any]:
        return self._batches(partition)

    def _batches(self, partition: Any) -> Iterator[Any]:
        for batch in self._read(partition):
            yield batch
            if self._fault.happens("kill worker"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fault.happens("kill executor reading"):
                kill_executor()
            run_beside_a_second_attempt("overtaken while reading", self._fault)
            if self._fault.happens("fail task"):
                raise RuntimeError("the task fails here")


def _with_faulty_read(reader: Any, fault: Fault) -> Any:
    reader.read = _FaultyRead(reader.read, fault)
    return reader


class _FaultyWrite:
    """Fails when the sink has taken so many rows that some of them are stored for certain."""

    def __init__(self, write: Callable[..., Any], fault: Fault) -> None:
        self._write = write
        self._fault = fault

    def __call__(self, rows: Iterator[Any]) -> Any:
        return self._write(self._rows(rows))

    def _rows(self, rows: Iterator[Any]) -> Iterator[Any]:
        taken = 0
        for item in rows:
            if taken >= ROWS_BEFORE_A_FAULT:
                self._fail()
            yield item
            taken += getattr(item, "num_rows", 1)

    def _fail(self) -> None:
        if self._fault.happens("kill executor writing"):
            kill_executor()
        run_beside_a_second_attempt("overtaken while writing", self._fault)
        run_beside_a_second_attempt("overtaken by a slow attempt", self._fault)
        if self._fault.where == "overtaken by a slow attempt" and _attempt_number() == 1:
            time.sleep(2)  # what makes it the slow one


def _with_faulty_write(writer: Any, fault: Fault) -> Any:
    writer.write = _FaultyWrite(writer.write, fault)
    return writer


def run_beside_a_second_attempt(where: str, fault: Fault) -> None:
    """The first attempt of a task waits here until a second one has come as far."""
    if fault.where != where:
        return
    context = TaskContext.get()
    assert context is not None
    second = Path(f"{fault.marker}.{context.partitionId()}")
    if _attempt_number() > 0:
        second.touch()
    elif fault.happens(where):
        gives_up = time.monotonic() + 60
        while not second.exists():
            assert time.monotonic() < gives_up, "there is no second attempt"
            time.sleep(0.01)


def _attempt_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def executor_of_this_worker() -> int:
    """The process id of the JVM that has started the daemon that has forked this worker."""
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    executor = int(fields[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    return executor


def kill_executor() -> None:
    os.kill(executor_of_this_worker(), signal.SIGKILL)


class _FaultyCommit:
    def __init__(self, commit: Callable[..., None], fault: Fault) -> None:
        self._commit = commit
        self._fault = fault

    def __call__(self, *arguments: Any) -> None:
        if self._fault.happens("fail commit"):
            raise RuntimeError("the commit fails here")
        if self._fault.happens("hold commit"):
            self._fault.hold()
        self._commit(*arguments)


def _with_faulty_commit(writer: Any, fault: Fault) -> Any:
    writer.commit = _FaultyCommit(writer.commit, fault)
    return writer
