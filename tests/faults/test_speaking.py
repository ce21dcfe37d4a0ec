"""Failures speak: the log of an outage, error_cb, last_error, NotConnectedError, exceptions of callbacks."""

from __future__ import annotations

import itertools
import logging
import pickle
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetstream_sync import Connection, JetStreamMessage, Message, connect
from jetstream_sync._deadline import Deadline
from jetstream_sync.consumers.continuity import MOST_UNANSWERED, Continuity
from jetstream_sync.errors import (
    ConnectionLostError,
    NatsError,
    NoServersError,
    NotConnectedError,
    OutboundBufferLimitError,
    TimeoutError,
)
from jetstream_sync.jetstream import client_of
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import stream_and_consumer

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.02, "reconnect_time_wait_max": 0.1}


@pytest.fixture
def down() -> Iterator[tuple[LocalServer, Connection]]:
    """A connection whose server is gone, with a stream S and its consumer C."""
    with LocalServer() as server, connect(server.url, name="shop", **QUICK) as nc:
        stream_and_consumer(nc.jetstream(), 2)
        nc.request("$JS.API.INFO")
        server.kill()
        eventually(lambda: not nc.is_connected)
        eventually(lambda: "attempt" in str(link_of(nc).reports.outage))
        yield server, nc


# --- an outage ------------------------------------------------------------------------------------------


def test_log_of_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Each step in order, with the connection's name; last_error is there during it and gone after it."""
    caplog.set_level(logging.INFO, "jetstream_sync")
    told: list[Exception] = []
    with LocalServer() as server:
        url = server.url
        with connect(url, name="shop", error_cb=told.append, **QUICK) as nc:
            assert nc.last_error is None
            server.kill()
            eventually(lambda: len(told) >= 7)
            assert isinstance(nc.last_error, NoServersError)
            server.start()
            eventually(lambda: nc.is_connected)
            assert nc.last_error is None
        texts = [record.getMessage() for record in caplog.records if record.name == "jetstream_sync.connection"]
    assert isinstance(told[0], ConnectionLostError)
    attempts = told[1:]
    assert {type(error) for error in attempts} == {NoServersError}
    assert all(url in str(error) for error in attempts)
    kinds = [re.sub(r"\d+(\.\d+)?", "n", text.replace(url, "URL")) for text in texts]
    last = kinds.index("shop: connected again to URL after n s, at attempt n (nats-server n.n, client id n)")
    assert kinds[0].startswith("shop: connected to URL (nats-server")
    assert kinds[1].startswith("shop: disconnected: URL")
    assert {kind.partition(" failed")[0] for kind in kinds[2:last]} == {"shop: attempt n"}
    assert kinds[last + 1 :] == ["shop: closed"]
    assert {vars(record)["connection"] for record in caplog.records} == {"shop"}


def test_six_failed_attempts_are_six_calls_at_the_first_connect_too() -> None:
    """retry_on_failed_connect: each attempt goes to error_cb and is the newest last_error."""
    with LocalServer() as server:
        server.kill()
        told: list[Exception] = []
        with connect(server.url, retry_on_failed_connect=True, error_cb=told.append, **QUICK) as nc:
            eventually(lambda: len(told) >= 6)
            assert {type(error) for error in told} == {NoServersError}
            assert type(nc.last_error) is NoServersError
            with pytest.raises(NotConnectedError, match=r"Connection refused; attempt \d+"):
                nc.flush(0.05)
            server.start()
            eventually(lambda: nc.is_connected)
            assert nc.last_error is None


def test_connect_that_fails_calls_nothing_back() -> None:
    """connect() raises every failure itself."""
    told: list[Exception] = []
    with LocalServer() as server:
        server.kill()
        with pytest.raises(NoServersError):
            connect(server.url, error_cb=told.append)
    assert told == []
    assert [thread.name for thread in threading.enumerate() if thread.name == "js-callbacks"] == []


# --- what times out while disconnected -------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda nc: nc.request("x", timeout=0.05),
        lambda nc: nc.flush(0.05),
        lambda nc: nc.rtt(0.05),
        lambda nc: nc.jetstream(timeout=0.05).account_info(),
        lambda nc: nc.jetstream().publish("s.x", b"", timeout=0.05),
        lambda nc: nc.jetstream().publish("s.x", b"", msg_id="1", timeout=0.05),
    ],
    ids=["request", "flush", "rtt", "api", "publish", "publish with an id"],
)
def test_call_that_could_not_be_sent_says_so(
    call: Callable[[Connection], Any], down: tuple[LocalServer, Connection]
) -> None:
    server, nc = down
    with pytest.raises(NotConnectedError) as caught:
        call(nc)
    url = re.escape(server.url)
    pattern = rf"not connected for \d+\.\d s \({url}: Connection refused; attempt \d+\): not sent"
    assert re.match(pattern, str(caught.value))
    assert caught.value.sent is False
    assert isinstance(caught.value, TimeoutError)


def test_messages_that_could_not_come_say_so(down: tuple[LocalServer, Connection]) -> None:
    """fetch, next and next_msg: no silent None or empty batch while there is no connection."""
    _, nc = down
    link = link_of(nc)
    sub = nc.subscribe("x")
    with pytest.raises(NotConnectedError, match="no message came in time"):
        sub.next_msg(0.02)
    assert link.router.holds(sub._inbound)


def test_pulls_that_could_not_be_sent_say_so() -> None:
    with LocalServer() as server, connect(server.url, **QUICK) as nc:
        js = nc.jetstream()
        consumer = stream_and_consumer(js, 0)
        pulled = js.pull_subscribe("s.>", durable="p")
        messages = consumer.messages()
        server.kill()
        eventually(lambda: not nc.is_connected)
        for call in (
            lambda: consumer.next(0.1),
            lambda: list(consumer.fetch(1, expires=0.1)),
            lambda: pulled.fetch(1, 0.1),
            lambda: pulled.fetch(5, 0.1),
            lambda: messages.next(0.1),
        ):
            with pytest.raises(NotConnectedError, match="not connected for"):
                call()
        messages.stop()


def test_sent_and_unanswered_may_be_stored() -> None:
    """The publish left: it is not known whether the server has it."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        js.publish("s.x", b"1")
        nc.flush()
        server.pause()
        with pytest.raises(TimeoutError, match="may be stored") as caught:
            js.publish("s.x", b"2", timeout=0.1)
        assert type(caught.value) is TimeoutError
        assert caught.value.sent is True
        with pytest.raises(TimeoutError) as unanswered:
            nc.request("s.x", timeout=0.1)
        assert unanswered.value.sent is True
        server.resume()


def test_publish_without_a_buffer_says_so() -> None:
    with LocalServer() as server, connect(server.url, pending_size=-1, **QUICK) as nc:
        server.kill()
        eventually(lambda: not nc.is_connected)
        with pytest.raises(NotConnectedError, match="not connected for") as caught:
            nc.publish("x", b"")
        assert isinstance(caught.value, OutboundBufferLimitError)
        assert caught.value.sent is False


def test_not_connected_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(NotConnectedError("not connected: not sent")))
    assert (type(error), str(error), error.sent) == (NotConnectedError, "not connected: not sent", False)


def test_outage_is_no_answer_about_a_stream(down: tuple[LocalServer, Connection]) -> None:
    """An ordered consumer does not give up comparing because questions could not be sent."""
    _, nc = down
    continuity = Continuity(client_of(nc.jetstream()), "S")
    for _ in range(MOST_UNANSWERED + 1):
        with pytest.raises(NotConnectedError):
            continuity.check(1, Deadline(0.01))


def test_what_was_not_sent_never_arrives(server: LocalServer) -> None:
    """Requests of several threads over a line that is cut again and again: `sent` False is the truth."""
    received: set[bytes] = set()
    unsent: list[bytes] = []
    numbers = itertools.count()
    over = threading.Event()

    def ask(nc: Connection) -> None:
        while not over.is_set():
            number = b"%d" % next(numbers)
            try:
                nc.request("count", number, timeout=0.005)
            except (TimeoutError, ConnectionLostError) as error:
                if error.sent is False:
                    unsent.append(number)

    with connect(server.url) as service, FaultProxy(server) as proxy, connect(proxy.url, **QUICK) as nc:

        def answer(message: Message) -> None:
            received.add(message.data)
            if len(message.data) % 2:
                message.respond(b"")

        counting = service.subscribe("count", cb=answer)
        service.flush()
        threads = [threading.Thread(target=ask, args=(nc,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(15):
            proxy.cut()
            eventually(lambda: nc.is_connected)
            threading.Event().wait(0.02)
        over.set()
        for thread in threads:
            thread.join(10)
        eventually(lambda: nc.is_connected)
        nc.flush()  # the server has all that was sent
        service.flush()
        eventually(lambda: counting.pending_msgs == 0)
    assert unsent
    assert received
    assert received.isdisjoint(unsent)


# --- exceptions of callbacks --------------------------------------------------------------------------------


def raising(_: Any) -> None:
    raise ValueError("of the callback")


def record_of(caplog: pytest.LogCaptureFixture, name: str) -> logging.LogRecord:
    def found() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.levelno == logging.ERROR and record.name == name]

    eventually(lambda: bool(found()), message="logged")
    record = found()[0]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert "raising" in caplog.text  # the traceback
    return record


@pytest.mark.parametrize("workers", [1, 2])
def test_raising_consume_callback_is_logged(
    server: LocalServer, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server.url, name="shop") as nc:
        consumer = stream_and_consumer(nc.jetstream(), 1)
        with consumer.consume(raising, max_workers=workers):
            record = record_of(caplog, "jetstream_sync.consumer")
    facts = vars(record)
    assert (facts["connection"], facts["stream"], facts["sequence"]) == ("shop", consumer.stream_name, 1)
    assert facts["consumer"] == consumer.name
    assert record.getMessage().startswith(
        f"shop: the callback raised ValueError: stream {consumer.stream_name!r}, "
    )
    assert facts["subject"] in record.getMessage()


def test_raising_push_callback_is_logged(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    with connect(server.url, name="shop") as nc:
        js = nc.jetstream()
        js.create_stream(name="PUSH", subjects=["push.>"])
        js.publish("push.a", b"secret payload", headers={"X": "secret header"})
        with js.subscribe("push.>", durable="d", cb=raising):
            facts = vars(record_of(caplog, "jetstream_sync.consumer"))
    named = [facts[name] for name in ("connection", "stream", "consumer", "subject", "sequence")]
    assert named == ["shop", "PUSH", "d", "push.a", 1]
    assert "secret" not in caplog.text


def test_raising_core_callback_is_logged(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    with connect(server.url, name="shop") as nc:
        nc.subscribe("core.>", cb=raising)
        nc.publish("core.a", b"secret payload", headers={"X": "secret header"})
        record = record_of(caplog, "jetstream_sync.connection")
    assert record.getMessage() == "shop: the callback raised ValueError: subject 'core.a'"
    assert vars(record)["subject"] == "core.a"
    assert "secret" not in caplog.text


def test_raising_connection_callback_goes_to_error_cb(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """closed_cb comes last; what it raises is still told."""
    told: list[Exception] = []
    with connect(server.url, closed_cb=raising, error_cb=told.append):
        pass
    eventually(lambda: len(told) == 1)
    assert isinstance(told[0], ValueError)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_raising_connection_callback_is_logged(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    with connect(server.url, name="shop", closed_cb=raising):
        pass
    record = record_of(caplog, "jetstream_sync.connection")
    assert record.getMessage() == "shop: the callback raising raised ValueError"


def test_callbacks_that_raise_each_time_neither_recurse_nor_end(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand messages, and every callback raises: error_cb is called once for each, and logged for itself."""
    calls: list[Exception] = []
    handled: list[Message] = []

    def error_cb(error: Exception) -> None:
        calls.append(error)
        raise RuntimeError("of error_cb")

    def callback(message: Message) -> None:
        handled.append(message)
        raise ValueError("of the callback")

    with connect(server.url, error_cb=error_cb, closed_cb=raising) as nc:
        nc.subscribe("many", cb=callback)
        for _ in range(1000):
            nc.publish("many", b"")
        eventually(lambda: len(handled) == 1000)
    eventually(lambda: len(calls) == 1001)
    eventually(lambda: sum("error_cb raised RuntimeError" in one.getMessage() for one in caplog.records) == 1001)


def test_callback_that_closes_and_raises(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    nc = connect(server.url)

    def callback(_: Message) -> None:
        nc.close()
        raise ValueError("of the callback")

    nc.subscribe("x", cb=callback)
    nc.publish("x", b"")
    eventually(lambda: nc.is_closed)
    record_of_callback = [one for one in caplog.records if "the callback raised" in one.getMessage()]
    eventually(lambda: any("the callback raised" in one.getMessage() for one in caplog.records))
    assert len(record_of_callback) <= 1


SCRIPT = """
import sys, threading, jetstream_sync
url, kind = sys.argv[1:]
raised = threading.Event()

def handler(msg):
    raised.set()
    raise ValueError("of the handler")

nc = jetstream_sync.connect(url, name="worker 7")
js = nc.jetstream()
if kind == "core":
    nc.subscribe("k.>", cb=handler)
elif kind == "push":
    js.subscribe("k.>", cb=handler)
else:
    stream = js.create_or_update_stream(name="K", subjects=["k.>"])
    stream.create_or_update_consumer(name="c").consume(handler)
nc.publish("k.1", b"the payload")
assert raised.wait(10)
nc.drain()
"""


@pytest.mark.parametrize("kind", ["core", "push", "consume"])
def test_traceback_on_stderr_where_logging_is_not_set_up(kind: str, server: LocalServer) -> None:
    """A script of the user's, no line of logging in it: Python's last resort prints the error."""
    with connect(server.url) as nc:
        nc.jetstream().create_or_update_stream(name="K", subjects=["k.>"])
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), server.url, kind]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "worker 7: the callback raised ValueError: " in run.stderr
    assert "subject 'k.1'" in run.stderr
    assert ("stream 'K'" in run.stderr) is (kind != "core")
    assert "Traceback" in run.stderr
    assert "in handler" in run.stderr
    assert "the payload" not in run.stderr


# --- user code in handlers of the log ----------------------------------------------------------------------


def test_log_filter_that_raises_does_not_end_a_thread(server: LocalServer) -> None:
    """js-reader logs: what a filter raises goes to threading.excepthook, and the connection goes on."""
    seen: list[type[BaseException] | None] = []
    hook, threading.excepthook = threading.excepthook, lambda args: seen.append(args.exc_type)
    log = logging.getLogger("jetstream_sync.connection")
    level, main = log.level, threading.get_ident()

    def refuse(_: logging.LogRecord) -> bool:
        if threading.get_ident() != main:
            raise LookupError("of the filter")
        return True

    log.addFilter(refuse)
    log.setLevel(logging.INFO)
    try:
        with FaultProxy(server) as proxy, connect(proxy.url, **QUICK) as nc:
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
            nc.flush()
    finally:
        log.removeFilter(refuse)
        log.setLevel(level)
        threading.excepthook = hook
    assert seen
    assert set(seen) == {LookupError}


def test_on_error_has_what_the_callback_raised(server: LocalServer) -> None:
    """on_error has the very exception that the callback raised, with its traceback."""
    told: list[BaseException] = []
    with connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 1)

        def callback(message: JetStreamMessage) -> None:
            message.ack()
            raise ValueError("of the callback")

        with consumer.consume(callback, on_error=told.append):
            eventually(lambda: len(told) == 1)
    assert isinstance(told[0], ValueError)
    assert told[0].__traceback__ is not None
    assert not isinstance(told[0], NatsError)
