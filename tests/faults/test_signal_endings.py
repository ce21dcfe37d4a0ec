"""Signal handlers that call close(), drain() or sys.exit(), in every blocking call."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import FrameType

import pytest

from jetstream_sync import JetStream, NatsError, connect
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.interrupts import in_finalizer
from tests.support.signals import handler_of

ENDS_WITHIN = 3.0

PREAMBLE = """
import signal, sys, threading, time
import jetstream_sync
from jetstream_sync import connect
url, ending = sys.argv[1:]
nc = connect(url, drain_timeout=1.5)
js = nc.jetstream()
def end(*_):
    {"close": nc.close, "drain": nc.drain, "exit": sys.exit}[ending]()
signal.signal(signal.SIGTERM, end)
def ready():
    print("ready", flush=True)
try:
"""

EPILOGUE = """
except jetstream_sync.NatsError:
    pass
"""

CALLS = {
    "next_msg": "sub = nc.subscribe('silent'); ready(); sub.next_msg(timeout=60)",
    "iteration": "sub = nc.subscribe('silent'); ready()\nfor _ in sub: pass",
    "request": "sub = nc.subscribe('silent'); ready(); nc.request('silent', timeout=60)",
    "requests": "other = connect(url); other.subscribe('echo', cb=lambda m: m.respond(b'')); other.flush()\n"
    "ready()\nwhile True: nc.request('echo')",
    "publishes": "ready()\nwhile True: nc.publish('anything', bytes(1000))",
    "acked_publishes": "ready()\nwhile True: js.publish('s.a', b'x')",
    "flushes": "ready()\nwhile True: nc.flush()",
    "subscribes": "ready()\nwhile True: nc.subscribe('x').unsubscribe()",
    "publish_async": "ready()\nwhile True: js.publish_async('s.a', b'x')",
    "future": "sub = nc.subscribe('silent'); ready(); js.publish_async('silent', timeout=60).result()",
    "fetch": "consumer = js.get_consumer('S', 'idle'); ready(); list(consumer.fetch(10, expires=60))",
    "next": "consumer = js.get_consumer('S', 'idle'); ready(); consumer.next(expires=60)",
    "messages": "consumer = js.get_consumer('S', 'idle'); ready()\nfor _ in consumer.messages(): pass",
    "consume": "context = js.get_consumer('S', 'idle').consume(print); ready(); context.wait()",
    "fetches": "consumer = js.get_consumer('S', 'idle'); ready()\nwhile True: list(consumer.fetch_nowait(1))",
    "info": "ready()\nwhile True: js.account_info()",
}


# Every call with close(), and alternately with drain() or sys.exit().
ENDINGS = [(call, "close") for call in CALLS]
ENDINGS += [(call, ("drain", "exit")[number % 2]) for number, call in enumerate(CALLS)]


@pytest.fixture
def streams(js: JetStream) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory", max_msgs=100)
    js.create_consumer("S", name="idle", durable_name="idle", filter_subject="s.never")


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(("call", "ending"), ENDINGS)
def test_script_ends_soon_after_sigterm(call: str, ending: str, nats_server: LocalServer) -> None:
    """SIGTERM arrives in a blocking call: the script ends within three seconds, without a traceback."""
    body = textwrap.indent(CALLS[call].replace("; ", "\n"), "    ")
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + body + EPILOGUE, nats_server.url, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(random.random() * 0.05)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors.decode()) == (0, "")
        assert time.monotonic() - begun < ENDS_WITHIN
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ending", ["close", "drain"])
def test_endings_in_handlers_that_come_anywhere(ending: str, nats_server: LocalServer) -> None:
    """A handler ends the connection at many different moments of a publish loop: no hang, no drain timeout."""
    raised: list[BaseException] = []
    for number in range(60):
        nc = connect(nats_server.url)

        def end(*_: object, nc: object = nc) -> None:
            try:
                getattr(nc, ending)()
            except NatsError as error:
                raised.append(error)

        with handler_of(signal.SIGALRM, end):
            signal.setitimer(signal.ITIMER_REAL, 0.002 + number * 0.0001)
            begun = time.monotonic()
            with pytest.raises(NatsError):
                while True:
                    nc.publish("anything", b"x" * 100)
                    if number % 3 == 0:
                        nc.flush()
            assert time.monotonic() - begun < ENDS_WITHIN
        eventually(lambda nc=nc: nc.is_closed)
        nc.close()
    assert raised == []


def test_close_that_is_interrupted_is_finished(nats_server: LocalServer) -> None:
    """Ctrl-C interrupts close(): it is finished in the background, and a second close() does no harm."""
    for number in range(30):
        nc = connect(nats_server.url)
        sub = nc.subscribe("x", cb=lambda msg: None)
        nc.flush()

        def interrupt(_: int, frame: FrameType | None) -> None:
            if in_finalizer(frame):  # where the interpreter swallows what is raised
                signal.setitimer(signal.ITIMER_REAL, 0.00005)
                return
            raise KeyboardInterrupt

        with handler_of(signal.SIGALRM, interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + number * 0.00005)
            try:
                nc.close()
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass
        nc.close()
        assert nc.is_closed
        with pytest.raises(NatsError):
            sub.next_msg(0)
