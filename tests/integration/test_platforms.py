"""The library on a platform that lacks what POSIX has: seen here by taking it away before the import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream_sync.testing import LocalServer
from tests.support.certs import CertKit

# What Python has on Linux and not on Windows, as far as a library like this could use it.
LACKING = {
    "os": ["register_at_fork", "fork", "forkpty", "getuid", "WNOHANG", "sysconf", "set_blocking", "posix_spawn"],
    "socket": ["MSG_DONTWAIT", "MSG_NOSIGNAL", "AF_UNIX", "AF_NETLINK", "SO_REUSEPORT", "SO_DOMAIN"],
    "select": ["poll", "epoll", "POLLIN", "POLLOUT", "POLLERR", "POLLHUP", "POLLNVAL", "PIPE_BUF"],
    "signal": [
        *("SIGKILL", "SIGSTOP", "SIGCONT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE"),
        *("alarm", "setitimer", "pthread_kill", "pthread_sigmask", "sigwait", "siginterrupt"),
    ],
}

WITHOUT_POSIX = f"""
import os, select, signal, socket, ssl, subprocess, sys, threading, time

def socketpair(*_):
    # Windows has no socketpair() of its own; Python makes one of two TCP sockets.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]

for module, names in {LACKING!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
sys.modules.pop("fcntl", None)
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = None
socket.socketpair = socketpair
sys.platform = PLATFORM
"""

ROUND_TRIP = """
import jetstream_sync
from jetstream_sync import _platform

assert not _platform.FORK_HOOKS and _platform.NOW == 0
url, ca_file = sys.argv[1:]
options = {"tls": ssl.create_default_context(cafile=ca_file)} if ca_file else {}
with jetstream_sync.connect(url, **options) as nc:
    sub = nc.subscribe("there")
    nc.publish("there", b"and back")
    assert sub.next_msg(timeout=5).data == b"and back"
    nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
    for number in range(50):
        assert nc.request("echo", b"%d" % number, timeout=5).data == b"%d" % number
    big = bytes(900_000)
    for _ in range(5):
        nc.publish("there", big)
    assert [len(sub.next_msg(timeout=5).data) for _ in range(5)] == [len(big)] * 5
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["s.>"])
    assert [js.publish("s.a", b"x").seq for _ in range(50)] == list(range(1, 51))
    assert [f.result(5).seq for f in [js.publish_async("s.a", b"y") for _ in range(50)]] == list(range(51, 101))
    consumer = js.create_consumer("S", durable_name="C", ack_policy="explicit")
    seen = []
    for msg in consumer.fetch(100):
        msg.ack()
        seen.append(msg.metadata.sequence.stream)
    assert seen == list(range(1, 101))
    done = threading.Event()
    js.publish("s.last", b"z")
    with consumer.consume(lambda msg: (msg.ack(), done.set())):
        assert done.wait(5)
    nc.force_reconnect()
    while nc.stats.reconnects == 0:
        time.sleep(0.01)
    assert nc.request("echo", b"again", timeout=5).data == b"again"
deadline = time.monotonic() + 5
while [thread for thread in threading.enumerate() if thread.name.startswith("js-")]:
    assert time.monotonic() < deadline, "close() leaves no thread behind"
    time.sleep(0.01)
print("all done")
"""


@pytest.mark.parametrize("platform", ["win32", "linux"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_round_trips_without_what_posix_has(
    platform: str, encrypted: bool, cert_kit: CertKit, tmp_path: Path
) -> None:
    """Import, publish, subscribe, request, JetStream, a reconnect and close work where the names do not exist."""
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_POSIX.replace("PLATFORM", repr(platform)) + ROUND_TRIP)
    config = cert_kit.server_tls_config(*cert_kit.server()) if encrypted else ""
    env = {**os.environ, "JETSTREAM_SYNC_PLATFORM": ""}
    with LocalServer(config=config) as server:
        command = [
            sys.executable,
            "-X",
            "dev",
            str(program),
            server.url,
            str(cert_kit.ca_file) if encrypted else "",
        ]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout == "all done\n"


SPARK = """
import jetstream_sync.spark.shared
import jetstream_sync.testing
print("imported")
"""


def test_every_module_imports_without_what_posix_has(tmp_path: Path) -> None:
    """Those of `testing` and `spark` as well: they need the names when they are called, if at all."""
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_POSIX.replace("PLATFORM", "'linux'") + SPARK)
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout == "imported\n"


# --- signals that do not interrupt a wait -----------------------------------------------------------------

# The main thread does not get the signal from the kernel, another thread does: so no wait of the main thread is
# interrupted, and Python calls the handler when the main thread next executes an instruction. As on Windows.
UNINTERRUPTED = """
import os, signal, socket, sys, threading, time
import jetstream_sync

class Interrupted(Exception):
    pass

def handle(*_):
    raise Interrupted

def strike():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(60)

signal.signal(signal.SIGUSR1, handle)
threading.Thread(target=strike, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

def connect_to(port):
    jetstream_sync.connect(f"nats://127.0.0.1:{port}", connect_timeout=60)

def publish_until_blocked():
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        sock, _ = listener.accept()
        sock.sendall(b'INFO {"max_payload":1048576,"headers":true}\\r\\n')
        sock.recv(4096)
        sock.sendall(b"PONG\\r\\n")
        time.sleep(60)
    threading.Thread(target=serve, daemon=True).start()
    silent = jetstream_sync.connect(f"nats://127.0.0.1:{listener.getsockname()[1]}")
    while True:
        silent.publish("anything", bytes(500_000))

url, call = sys.argv[1:]
nc = jetstream_sync.connect(url)
js = nc.jetstream()
js.create_stream(name="S", subjects=["s.>"])
consumer = js.create_consumer("S", durable_name="C", ack_policy="explicit")
sub = nc.subscribe("silent")
blocked = nc.subscribe("blocked", cb=lambda _: time.sleep(60))
nc.publish("blocked")
nc.flush()
listener = socket.create_server(("127.0.0.1", 0))
context = consumer.consume(lambda _: None)
started = time.monotonic()
try:
    eval(call)
except Interrupted:
    pass
else:
    raise AssertionError("was not interrupted")
print(f"{time.monotonic() - started:.2f}", flush=True)
os._exit(0)
"""

BLOCKING = {
    "connect": "connect_to(listener.getsockname()[1])",
    "next_msg": "sub.next_msg(timeout=60)",
    "iteration": "list(sub)",
    "request": "nc.request('silent', timeout=60)",
    "publish": "publish_until_blocked()",
    "drain": "blocked.drain(60)",
    "fetch": "list(consumer.fetch(1, expires=60))",
    "next": "consumer.next(expires=60)",
    "messages": "next(iter(consumer.messages()))",
    "wait": "context.wait()",
    "result": "js.publish_async('silent', timeout=60).result()",
}


@pytest.mark.parametrize("call", BLOCKING)
def test_blocking_call_is_left_where_signals_do_not_interrupt_a_wait(
    call: str, tmp_path: Path, nats_server: LocalServer
) -> None:
    """The main thread waits in slices, so the exception of a signal handler leaves the call within a second."""
    program = tmp_path / "program.py"
    program.write_text(UNINTERRUPTED)
    env = {**os.environ, "JETSTREAM_SYNC_PLATFORM": "portable"}
    command = [sys.executable, str(program), nats_server.url, BLOCKING[call]]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert run.stderr == ""
    assert float(run.stdout) < 1.5
