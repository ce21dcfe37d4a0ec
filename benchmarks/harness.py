"""What every measurement needs: one server, the publisher process, a stream, and a process per measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import jetstream_sync
from jetstream_sync.testing import LocalServer

from .scenarios import STREAM, SUBJECT, Scenario

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENT_TIMEOUT = 300


class MeasurementError(Exception):
    """A measuring process failed; the text is what it said."""


class Bench:
    """A context manager. One measurement runs at a time; meanwhile this process only waits."""

    def __init__(self) -> None:
        self._exit = ExitStack()

    def __enter__(self) -> Bench:
        with ExitStack() as stack:
            self.url = stack.enter_context(LocalServer()).url
            nc = stack.enter_context(jetstream_sync.connect(self.url))
            self.server_version: str = nc.server_info["version"]
            self._js = nc.jetstream(timeout=60)
            publisher = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.publisher", self.url],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            stack.enter_context(publisher)  # closes its output and waits for its end
            stack.callback(publisher.terminate)
            assert publisher.stdout is not None
            if publisher.stdout.readline() != "ready\n":
                raise MeasurementError("the publisher process did not start")
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    def prepare(self, scenario: Scenario) -> None:
        """A memory stream with the messages of the scenario in it."""
        self._stream = self._js.create_or_update_stream(name=STREAM, subjects=[SUBJECT], storage="memory")
        self._stream.purge()
        if scenario.needs_stored:
            payload = b"x" * scenario.size
            for _ in range(scenario.count):
                self._js.publish_async(SUBJECT, payload)
            self._js.publish_async_wait(120)

    def measure(
        self,
        client: str,
        scenario: Scenario,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> dict[str, Any]:
        """One measurement, in a process of its own with `environment` beside ours. Raises MeasurementError."""
        self._restore(scenario)
        command = [sys.executable, "-m", "benchmarks.measure", client, scenario.key, self.url]
        try:
            finished = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=MEASUREMENT_TIMEOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder or ROOT,
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"not done after {MEASUREMENT_TIMEOUT} s") from None
        if finished.returncode:
            raise MeasurementError(finished.stderr.strip() or f"exit status {finished.returncode}")
        result: dict[str, Any] = json.loads(finished.stdout)
        return result

    def _restore(self, scenario: Scenario) -> None:
        """The server as the first measurement found it: without the consumers and messages of those before."""
        for name in list(self._stream.consumer_names()):
            self._stream.delete_consumer(name)
        if not scenario.needs_stored:
            self._stream.purge()
