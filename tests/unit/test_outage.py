"""The story of an outage, with a clock of the test's own: what is logged, at which level, how often."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jetstream_sync._log import Log
from jetstream_sync.errors import AuthorizationError, ConnectionLostError, ProtocolError
from jetstream_sync.net.outage import Outage

A, B = "nats://a:4222", "nats://b:4222"
INFO: dict[str, Any] = {"version": "2.15.1", "client_id": 5}
REFUSED = ConnectionRefusedError(111, "Connection refused")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.DEBUG)
    outage = Outage(Log("connection", "shop"), clock)
    outage.begin()
    return outage


def lose(outage: Outage, error: Exception) -> None:
    outage.begin(A, error)
    outage.log_loss(A, error, reported=False)


def connect(outage: Outage, url: str = A) -> None:
    outage.end()
    outage.log_session(url, INFO)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_story_in_order(outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    connect(outage)
    lose(outage, ConnectionLostError(f"{A} closed the connection"))
    outage.failed(A, REFUSED)
    clock.now += 2.34
    outage.failed(B, REFUSED)
    assert str(outage) == f"not connected for 2.3 s ({B}: Connection refused; attempt 2)"
    connect(outage, B)
    assert str(outage) == "connected"
    outage.log_end(None, reported=False)
    assert lines(caplog) == [
        ("INFO", f"shop: connected to {A} (nats-server 2.15.1, client id 5)"),
        ("INFO", f"shop: disconnected: {A} closed the connection"),
        ("INFO", f"shop: attempt 1 failed: {A}: Connection refused; not connected for 0.0 s"),
        ("INFO", f"shop: attempt 2 failed: {B}: Connection refused; not connected for 2.3 s"),
        ("INFO", f"shop: connected again to {B} after 2.3 s, at attempt 3 (nats-server 2.15.1, client id 5)"),
        ("INFO", "shop: closed"),
    ]


def test_before_the_first_session(outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert str(outage) == "not connected for 0.0 s (connecting)"
    outage.failed(A, REFUSED)
    clock.now += 1
    connect(outage)
    assert "connected to nats://a:4222 after 1.0 s, at attempt 2" in lines(caplog)[-1][1]


def test_cause_until_an_attempt_has_failed(outage: Outage) -> None:
    lose(outage, ProtocolError("nonsense"))
    assert str(outage) == f"not connected for 0.0 s ({A}: nonsense)"


def test_a_thousand_attempts_do_not_flood_the_log(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """At the longest back-off that is an hour and a half; the newest failure is told each time."""
    for _ in range(1000):
        outage.failed(A, REFUSED)
        clock.now += 5
    assert 15 < len(caplog.records) < 30
    assert "attempt 1000" in str(outage)


def test_failures_that_differ_each_time_do_not_flood_the_log(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        outage.failed(A, OSError(f"reason {number}"))
        clock.now += 0.001
    assert len(caplog.records) < 20


def test_a_new_reason_is_told_at_once(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    """Refused credentials are not hidden behind the failures of another server."""
    outage.failed(A, REFUSED)
    outage.failed(A, REFUSED)
    outage.failed(B, AuthorizationError("refused"))
    assert [text.partition(": ")[2] for _, text in lines(caplog)] == [
        f"attempt 1 failed: {A}: Connection refused; not connected for 0.0 s",
        f"attempt 3 failed: {B}: refused; not connected for 0.0 s",
    ]


def test_an_outage_that_lasts_is_a_warning_and_so_is_its_end(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    connect(outage)
    lose(outage, ConnectionLostError("lost"))
    for _ in range(100):
        outage.failed(A, REFUSED)
        clock.now += 0.1
    connect(outage)
    levels = [record.levelno for record in caplog.records]
    assert levels == sorted(levels)
    assert levels[:3] == [logging.INFO] * 3
    assert levels[-2:] == [logging.WARNING] * 2


@pytest.mark.parametrize("reported", [False, True])
def test_what_a_person_must_act_on(reported: bool, outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    """A server's word against us, and a connection that is given up; error_cb, where there is one, has it."""
    outage.log_loss(A, AuthorizationError("the server said: User Authentication Expired"), reported=reported)
    outage.log_end(AuthorizationError("refused"), reported=reported)
    wanted = ["INFO", "INFO"] if reported else ["WARNING", "ERROR"]
    assert [record.levelname for record in caplog.records] == wanted
    assert lines(caplog)[-1][1] == "shop: closed, and not connecting again: refused"


def test_what_a_server_says_of_itself_cannot_forge_a_line(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.end()
    outage.log_session(A, {"version": "1\nERROR forged", "client_id": None})
    assert "\n" not in lines(caplog)[0][1]
