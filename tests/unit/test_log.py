"""The loggers: one per area, records that name their connection, nothing printed by ourselves."""

from __future__ import annotations

import ast
import logging
import threading
import time

import pytest

from jetstream_sync._log import AREAS, Log, Logs
from jetstream_sync._threads import detached_jobs
from tests.support.eventually import eventually
from tests.support.source_tree import RUNTIME, tree_of


def only(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    [record] = caplog.records
    return record


def test_record_names_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    Logs("shop").consumer.warning("stream %r: %s", "ORDERS", "gone", extra={"stream": "ORDERS"})
    record = only(caplog)
    assert record.name == "jetstream_sync.consumer"
    assert record.getMessage() == "shop: stream 'ORDERS': gone"
    assert vars(record)["connection"] == "shop"
    assert vars(record)["stream"] == "ORDERS"


def test_record_without_a_name(caplog: pytest.LogCaptureFixture) -> None:
    Logs(None).connection.warning("connected")
    assert only(caplog).getMessage() == "connected"
    assert vars(only(caplog))["connection"] is None


@pytest.mark.parametrize("name", ["100 %", "%s", "%d%(x)s"])
def test_percent_sign_in_name_and_text(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log = Logs(name).connection
    log.warning("50 % done")
    log.warning("%d %% done", 50)
    assert [record.getMessage() for record in caplog.records] == [f"{name}: 50 % done"] * 2


def test_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    Logs("a\nERROR: b").connection.warning("connected")
    assert "\n" not in only(caplog).getMessage()


def test_record_shows_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    log = Logs("shop").publish
    log.warning("one")
    log.log(logging.WARNING, "two")
    try:
        raise ValueError("three")
    except ValueError:
        log.exception("a callback raised")
    assert {record.funcName for record in caplog.records} == {"test_record_shows_the_line_that_logs"}
    assert caplog.records[-1].exc_info is not None


def test_nothing_is_formatted_when_the_level_is_off(caplog: pytest.LogCaptureFixture) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.WARNING, "jetstream_sync")
    Logs("shop").connection.info("%s", Unprintable())
    assert caplog.records == []


@pytest.mark.parametrize("area", AREAS)
def test_no_handler_of_our_own(area: str) -> None:
    """So that Python's last resort prints warnings and errors where logging is not set up."""
    assert Log(area, None).logger.handlers == []
    assert logging.getLogger("jetstream_sync").handlers == []


def test_only_one_module_gets_loggers() -> None:
    """Every other module logs through its connection's Logs, so that every record names the connection."""
    wrong = [
        f"{module}:{node.lineno}"
        for module in RUNTIME
        if module != "_log"
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger")
    ]
    assert wrong == []


def test_handlers_of_the_log_never_run_in_the_main_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A signal handler that raises inside of logging would leave its lock taken, and every thread hangs on it."""
    threads: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            threads.append(threading.get_ident())

    log, handler = Logs("shop").connection, Handler()
    log.logger.addHandler(handler)
    try:
        log.warning("from the main thread")
        other = threading.Thread(target=log.warning, args=("from another thread",))
        other.start()
        other.join()
    finally:
        log.logger.removeHandler(handler)
    assert len(threads) == 2
    assert threading.main_thread().ident not in threads
    assert threads[1] == other.ident
    assert [record.threadName == "MainThread" for record in caplog.records] == [True, False]


def test_slow_handler_holds_up_the_main_thread_for_a_moment_only() -> None:
    """It may wait for a lock that the code holds which a signal handler interrupted."""
    released = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            released.wait(10)

    log, handler = Logs("shop").connection, Handler()
    log.logger.addHandler(handler)
    try:
        begun = time.monotonic()
        log.warning("waits")
        assert time.monotonic() - begun < 5
    finally:
        released.set()
        log.logger.removeHandler(handler)
    eventually(lambda: detached_jobs() == [])
