"""Programs that end without close(): they exit soon, with code 0 and no output, and everything is sent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually
from tests.support.observer import stream_and_consumer

EXIT_SECONDS = 3.0

SCRIPTS = {
    "idle": """
        nc = connect(url)
        """,
    "after a request": """
        nc = connect(url)
        nc.subscribe("ask", cb=lambda msg: msg.respond(b"yes"))
        nc.request("ask")
        """,
    "subscribed with a callback": """
        nc = connect(url)
        nc.subscribe("s.>", cb=lambda msg: None)
        for number in range(1000):
            nc.publish("s.x", b"%d" % number)
        """,
    "subscribed and not reading": """
        nc = connect(url)
        sub = nc.subscribe("s.>")
        for number in range(1000):
            nc.publish("s.x", bytes(1000))
        """,
    "reconnecting": """
        nc = connect(url, disconnected_cb=lambda _: lost.set())
        print("connected", flush=True)
        assert lost.wait(10)
        """,
    "reconnecting with messages waiting": """
        nc = connect(url, disconnected_cb=lambda _: lost.set())
        print("connected", flush=True)
        assert lost.wait(10)
        nc.publish("x", b"waiting")
        """,
    "inside a callback": """
        nc = connect(url)
        def stay(msg):
            lost.set()
            threading.Event().wait()
        nc.subscribe("stay", cb=stay)
        nc.publish("stay")
        assert lost.wait(10)
        """,
    "inside an event callback": """
        def stay(_):
            lost.set()
            threading.Event().wait()
        nc = connect(url, disconnected_cb=stay)
        print("connected", flush=True)
        assert lost.wait(10)
        """,
    "other threads waiting": """
        nc = connect(url)
        sub = nc.subscribe("silent")
        for _ in range(8):
            threading.Thread(target=sub.next_msg, args=(None,), daemon=True).start()
        """,
    "other threads publishing": """
        nc = connect(url)
        def flood():
            while True:
                nc.publish("flood", bytes(1000))
        for _ in range(4):
            threading.Thread(target=flood, daemon=True).start()
        nc.flush()
        """,
    "garbage": """
        for _ in range(5):
            connect(url).publish("x", b"y")
        """,
}

LAST_LINE = """
        print("the end", flush=True)
        """

PREAMBLE = """
import sys, threading
from jetstream_sync import connect
from jetstream_sync.net.connection import link_of
url = sys.argv[1]
lost = threading.Event()
"""


def start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "error::RuntimeWarning",
            "-c",
            PREAMBLE + textwrap.dedent(script),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def assert_ends_well(process: subprocess.Popen[bytes]) -> None:
    """Exit code 0 and nothing on stderr, except the unclosed sockets that `-X dev` reports."""
    _, complaints = process.communicate(timeout=20)
    lines = [line for line in complaints.decode().splitlines() if line.strip()]
    told = [line for line in lines if "ResourceWarning" not in line and not line.startswith("  ")]
    assert (process.returncode, told) == (0, [])


@pytest.mark.parametrize("case", SCRIPTS)
def test_program_ends_without_close(case: str, nats_server: LocalServer) -> None:
    """A program that never calls close() ends by itself within seconds, silently."""
    with FaultProxy(nats_server, record=False) as proxy:
        process = start(SCRIPTS[case] + LAST_LINE, proxy.url)
        assert process.stdout is not None
        if "connected" in SCRIPTS[case]:
            assert process.stdout.readline() == b"connected\n"
            proxy.refuse("close")
            proxy.cut()
        # The time is measured from here: on a busy machine an interpreter takes seconds to start.
        assert process.stdout.readline() == b"the end\n"
        begin = time.monotonic()
        assert_ends_well(process)
        assert time.monotonic() - begin < EXIT_SECONDS


@pytest.mark.parametrize(("count", "size"), [(1, 10), (20_000, 100), (300, 100_000)])
def test_last_messages_are_sent_at_exit(count: int, size: int, nats_server: LocalServer) -> None:
    """Every message published before the program ended arrives, also if the socket was full."""
    with jetstream_sync.connect(nats_server.url) as nc:
        received: list[bytes] = []
        nc.subscribe("last", cb=lambda msg: received.append(msg.data[:8]), pending_bytes_limit=0)
        nc.flush()
        process = start(
            f"""
            nc = connect(url)
            for number in range({count}):
                nc.publish("last", b"%08d" % number + bytes({size}))
            """,
            nats_server.url,
        )
        assert_ends_well(process)
        nc.flush()
        eventually(lambda: len(received) == count, 10, f"{count} messages")
        assert received == [b"%08d" % number for number in range(count)]


def test_full_socket_is_emptied_at_exit(nats_server: LocalServer) -> None:
    """Messages that wait behind a slow connection when the program ends still arrive."""
    with jetstream_sync.connect(nats_server.url) as nc, FaultProxy(nats_server, record=False) as proxy:
        received: list[bytes] = []
        nc.subscribe("last", cb=lambda msg: received.append(msg.data[:8]), pending_bytes_limit=0)
        nc.flush()
        proxy.chunk(65536, pause=0.004)
        process = start(
            """
            nc = connect(url)
            for number in range(120):
                nc.publish("last", b"%08d" % number + bytes(100_000))
            """,
            proxy.url,
        )
        assert_ends_well(process)
        eventually(lambda: len(received) == 120, 10, "all messages")


def test_exit_while_server_is_stopped(nats_server: LocalServer) -> None:
    """A program ends in time although the server reads no more data."""
    process = start(
        """
        nc = connect(url)
        print("connected", flush=True)
        def flood():
            while True:
                nc.publish("flood", bytes(100_000))
        threading.Thread(target=flood, daemon=True).start()
        while not link_of(nc).outbox.congested:
            pass
        """,
        nats_server.url,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"connected\n"
    nats_server.pause()
    try:
        begin = time.monotonic()
        assert_ends_well(process)
        assert time.monotonic() - begin < EXIT_SECONDS
    finally:
        nats_server.resume()


def test_system_exit_inside_with_block(nats_server: LocalServer) -> None:
    """sys.exit() inside the connection's block closes it and keeps its code."""
    process = start("with connect(url) as nc:\n    nc.publish('x')\n    sys.exit(7)", nats_server.url)
    _, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (7, b"")


@pytest.mark.parametrize("how", ["the script ends", "sys.exit() in a signal handler", "consume"])
def test_exit_hands_back_what_is_buffered(how: str, nats_server: LocalServer, js: JetStream) -> None:
    """Another worker has it at once, though the program used neither `with` nor close()."""
    consumer = stream_and_consumer(js, 100, ack_wait=60)
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        consumer = connect(url).jetstream().get_consumer("S", "C")
        held = threading.Event()
        def work(message):
            message.ack()
            held.set()
            time.sleep(60)
        """
    if how == "consume":
        script += """
        context = consumer.consume(work, max_messages=100)
        held.wait()
        while len(context._feed.items) < 99: time.sleep(0.01)
        """
    else:
        script += """
        stream = consumer.messages(max_messages=100)
        for message in stream:
            message.ack()
            while len(stream._endless.items) < 99: time.sleep(0.01)
            if sys.argv[2] == "loop": break
            os.kill(os.getpid(), signal.SIGTERM)
        """
    assert_ends_well(start(script, nats_server.url, "loop" if how == "the script ends" else "handler"))
    assert len(list(consumer.fetch(99, expires=2))) == 99
