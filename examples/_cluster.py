"""A Spark standalone cluster on this machine, for `make demo CLUSTER=1` and `make test-spark-cluster`.

A master and workers, each a JVM of the installed pyspark, on 127.0.0.1 and on free ports. A worker offers one
core, so that two tasks run on two executors. On Linux each worker has a loopback address of its own: Spark takes
them for two machines, as speculation needs it. Every process of the cluster belongs to the session of its master
or worker. `close()` kills these sessions. When this process dies first, a guard per JVM kills its process group:
a small shell that waits for the end of a pipe. Spark's Python workers end with their executor.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from types import TracebackType

import pyspark

from jetstream_sync.spark.java import ensure_java
from jetstream_sync.testing.server import HOST, PortReservation

START_SECONDS = 90.0
_GUARD = 'read -r _ || { kill -9 "-$1"; rm -rf "$2"; }'
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and `workers` workers with one core and `memory` each. A context manager. For one thread."""

    def __init__(self, workers: int = 2, memory: str = "1g") -> None:
        self._size = workers
        self._memory = memory
        self.home = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        """Where the cluster keeps its files, until it is closed."""
        self._ports = [PortReservation(), PortReservation()]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._guards: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """What to pass to `SparkSession.builder.master()`."""
        return f"spark://{HOST}:{self._ports[0].port}"

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and the workers."""
        return [process.pid for process in self._processes]

    @property
    def log(self) -> str:
        """What the master, the workers and their executors have printed."""
        files = [*self.home.glob("*.log"), *self.home.glob("work*/app-*/*/std*")]
        return "\n".join(
            f"--- {path.relative_to(self.home)}\n{path.read_text(errors='replace')}" for path in files
        )

    def start(self) -> SparkCluster:
        """Start everything, and wait until the workers are registered. Raises RuntimeError with the log."""
        try:
            port, web = (str(each.port) for each in self._ports)
            ports = ("--port", port, "--webui-port", web)
            self._launch("master", HOST, "org.apache.spark.deploy.master.Master", *ports)
            self._wait("the master answers", lambda: self._state() is not None)
            for number in range(1, self._size + 1):
                folder = str(self.home / f"work{number}")
                limits = ("--port", "0", "--webui-port", "0", "-c", "1", "-m", self._memory, "-d", folder)
                host = f"127.0.0.{number + 1}" if sys.platform == "linux" else HOST
                self._launch(f"worker{number}", host, "org.apache.spark.deploy.worker.Worker", *limits, self.url)
            self._wait("all workers are registered", lambda: self._alive_workers() == self._size)
        except BaseException:
            self.close()
            raise
        return self

    def executors(self) -> list[int]:
        """The process ids of the executors that run, in the order of their workers."""
        processes = list(_processes())
        children = [each for pid in self.pids[1:] for each in processes if each.parent == pid]
        return [each.pid for each in children if _EXECUTOR in each.command]

    def executor_with(self, port: int) -> int | None:
        """The process id of the executor that has a connection from the local port `port`, in one of its tasks."""
        parents = {each.pid: each.parent for each in _processes()}
        executors = self.executors()
        pid = _owner_of(port, parents)
        while pid is not None and pid not in executors:
            pid = parents.get(pid)
        return pid

    def close(self) -> None:
        """Kill every process of the cluster, wait until they are gone, and remove its files."""
        for process in reversed(self._processes):
            _end_session(process)
        for guard in self._guards:
            assert guard.stdin is not None
            guard.stdin.write(b"\n")  # ends the guard without a kill
            guard.stdin.close()
            guard.wait()
        for port in self._ports:
            port.release()
        self._processes, self._guards, self._ports = [], [], []
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _launch(self, name: str, host: str, main_class: str, *arguments: str) -> None:
        spark_home = Path(pyspark.__file__).parent
        # Another machine would not have the driver's settings of Python, either.
        foreign = ("PYTHON", "PYSPARK", "SPARK")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "JAVA_HOME": str(Path(os.path.realpath(ensure_java())).parent.parent),
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOG_DIR": str(self.home),
        }
        command = [str(spark_home / "bin" / "spark-class"), main_class, "--host", host, *arguments]
        with open(self.home / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        self._guards.append(
            subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", str(process.pid), str(self.home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        gives_up = time.monotonic() + START_SECONDS
        while not holds():
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() >= gives_up:
                raise RuntimeError(f"the Spark cluster did not come up ({what}):\n{self.log}")
            time.sleep(0.05)

    def _state(self) -> dict[str, object] | None:
        """What the master's web page says; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._ports[1].port}/json/", timeout=5) as page:
                state: dict[str, object] = json.loads(page.read())
                return state
        except (OSError, HTTPException, ValueError):
            return None  # it does not answer, or not yet with JSON

    def _alive_workers(self) -> int:
        state = self._state()
        return 0 if state is None else int(str(state["aliveworkers"]))


class _Process:
    """A process of this machine."""

    def __init__(self, pid: int, parent: int, session: int, ended: bool, command: str) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.ended = ended
        self.command = command


def _processes() -> Iterator[_Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        yield _Process(int(folder.name), int(fields[1]), int(fields[3]), fields[0] in "ZX", command)


def _owner_of(port: int, pids: Iterable[int]) -> int | None:
    """The process that has the TCP socket with this local port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = {f"socket:[{fields[9]}]" for fields in map(str.split, lines) if fields[1].endswith(f":{port:04X}")}
    for pid in pids:
        try:
            if any(os.readlink(fd) in sockets for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
        except OSError:
            continue  # ended, or closed, meanwhile
    return None


def _end_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill every process of a session until there is none, as a worker may just be starting an executor."""
    while True:
        alive = [each.pid for each in _processes() if each.session == leader.pid and not each.ended]
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended by itself
        leader.poll()
        if not alive:
            leader.wait()
            return
        time.sleep(0.01)
