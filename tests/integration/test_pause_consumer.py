"""Paused consumers: heartbeats and no messages, then all of them (server 2.11 and later)."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import TimeoutError
from tests.support.observer import server_version, stream_and_consumer


def soon(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def assert_not_answered(nc: Connection) -> None:
    """A server before 2.11 does not know the request and does not answer it."""
    stream = nc.jetstream(timeout=0.3).get_stream("S")
    with pytest.raises(TimeoutError):
        stream.pause_consumer("C", soon(60))
    with pytest.raises(TimeoutError):
        stream.resume_consumer("C")


def test_paused_consumer_delivers_nothing_until_resumed(js: JetStream, nc: Connection) -> None:
    """pause says until when, a fetch stays empty, resume lets the messages out."""
    consumer = stream_and_consumer(js, 3)
    if server_version(nc) < (2, 11):
        assert_not_answered(nc)
        return
    until = soon(60)
    paused = js.get_stream("S").pause_consumer("C", until)
    assert paused.paused is True
    assert paused.pause_until is not None
    assert abs(paused.pause_until - until) < timedelta(milliseconds=1)
    assert consumer.get_info().paused is True
    assert list(consumer.fetch(3, expires=0.5)) == []
    assert list(consumer.fetch_nowait(3)) == []
    resumed = js.get_stream("S").resume_consumer("C")
    assert resumed.paused is False
    assert len(list(consumer.fetch(3, expires=2))) == 3


def test_paused_consumer_resumes_by_itself(js: JetStream, nc: Connection) -> None:
    """At the time given the messages come."""
    consumer = stream_and_consumer(js, 1)
    if server_version(nc) < (2, 11):
        assert_not_answered(nc)
        return
    start = time.monotonic()
    js.get_stream("S").pause_consumer("C", soon(1))
    assert consumer.next(5) is not None
    assert 0.8 < time.monotonic() - start < 3


def test_paused_consumer_raises_no_heartbeat_alarm(js: JetStream, nc: Connection) -> None:
    """A paused consumer sends heartbeats: an endless loop on it waits quietly and goes on afterwards."""
    consumer = stream_and_consumer(js)
    errors: list[Exception] = []
    with consumer.messages(expires=1, idle_heartbeat=0.5, on_error=errors.append) as messages:
        if server_version(nc) < (2, 11):
            assert_not_answered(nc)
            return
        js.get_stream("S").pause_consumer("C", soon(60))
        js.publish("s.x", b"held back")
        with pytest.raises(TimeoutError):
            messages.next(2.5)
        js.get_stream("S").resume_consumer("C")
        assert messages.next(2).data == b"held back"
    assert errors == []
