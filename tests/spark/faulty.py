"""A data source that fails once, at a place that a test chooses.

The option `fault` names the place. The option `marker` names a file that is created on the failure, so that it
happens once only. Everything else is the real data source.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jetstream_sync.spark.source import JetStreamDataSource


class Fault:
    """Fail once, in the first process that gets here."""

    def __init__(self, where: str, marker: str) -> None:
        self.where = where
        self.marker = marker

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

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return _with_faulty_commit(super().streamWriter(schema, overwrite), self.fault)


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
            if self._fault.happens("fail task"):
                raise RuntimeError("the task fails here")


def _with_faulty_read(reader: Any, fault: Fault) -> Any:
    reader.read = _FaultyRead(reader.read, fault)
    return reader


class _FaultyCommit:
    def __init__(self, commit: Callable[..., None], fault: Fault) -> None:
        self._commit = commit
        self._fault = fault

    def __call__(self, *arguments: Any) -> None:
        if self._fault.happens("fail commit"):
            raise RuntimeError("the commit fails here")
        self._commit(*arguments)


def _with_faulty_commit(writer: Any, fault: Fault) -> Any:
    writer.commit = _FaultyCommit(writer.commit, fault)
    return writer
