"""Heartbeat alarms (ADR-9, ADR-37): raised when the server is silent, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.errors import MissedHeartbeatError
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.consuming import pull_of
from tests.support.eventually import eventually
from tests.support.observer import Observer, stream_and_consumer, waiting_pulls
from tests.support.watchdog import InThread


@pytest.fixture
def nc(server: LocalServer) -> Iterator[Connection]:
    connection = jetstream_sync.connect(server.url, ping_interval=60)
    yield connection
    if server.is_running:
        server.resume()
    connection.close()


class Alarms:
    """An on_error callback that notes when it was called."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.errors: list[Exception] = []

    def __call__(self, error: Exception) -> None:
        self.at.append(time.monotonic())
        self.errors.append(error)


def test_stopped_server_raises_the_alarm_in_time_and_again(server: LocalServer, nc: Connection) -> None:
    """SIGSTOP, idle_heartbeat 1 s: consume() and messages() report 2.0 to 2.5 s of silence, again and again.

    Neither of them ends: both go on when the server resumes.
    """
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["s.>"])
    alarms = [Alarms(), Alarms()]
    got: list[list[bytes]] = [[], []]
    consumers = [js.create_consumer("S", durable_name=name) for name in ("A", "B")]
    context = consumers[0].consume(
        lambda message: got[0].append(message.data), expires=4, idle_heartbeat=1, on_error=alarms[0]
    )
    messages = consumers[1].messages(expires=4, idle_heartbeat=1, on_error=alarms[1])
    taker = InThread(lambda: got[1].extend(message.data for message in messages))
    pulls = [pull_of(context), pull_of(messages)]
    started = [pull.last_arrival for pull in pulls]
    for pull, first in zip(pulls, started, strict=True):
        eventually(lambda pull=pull, first=first: pull.last_arrival > first, 3.0, "a heartbeat came")
    server.pause()
    silent_since = [pull.last_arrival for pull in pulls]
    eventually(lambda: all(len(one.at) == 2 for one in alarms), 6.0, "two alarms each")
    for one, since in zip(alarms, silent_since, strict=True):
        assert 2.0 <= one.at[0] - since <= 2.5
        assert 1.9 <= one.at[1] - one.at[0] <= 2.5
        assert all(isinstance(error, MissedHeartbeatError) for error in one.errors)
    server.resume()
    js.publish("s.x", b"awake", timeout=5)
    eventually(lambda: got[0] == [b"awake"] and pulls[1].arrived == 1, 3.0)
    assert not context.closed
    assert not messages.closed
    context.stop()
    messages.stop()
    taker.result(3)


def test_no_alarm_while_disconnected(server: LocalServer, nc: Connection) -> None:
    """While the connection is down there is no alarm. After the reconnect consume() goes on."""
    assert_no_alarm_while_disconnected(server, nc, 2.0)


@pytest.mark.soak
def test_no_alarm_in_10_seconds_of_disconnection(server: LocalServer, nc: Connection) -> None:
    """The same over 10 s."""
    assert_no_alarm_while_disconnected(server, nc, 10.0)


def assert_no_alarm_while_disconnected(server: LocalServer, nc: Connection, seconds: float) -> None:
    js = nc.jetstream()
    consumer = stream_and_consumer(js)
    alarms = Alarms()
    got: list[bytes] = []
    with consumer.consume(
        lambda message: got.append(message.data), expires=1, idle_heartbeat=0.5, on_error=alarms
    ) as context:
        server.kill()
        eventually(lambda: not nc.is_connected)
        threading.Event().wait(seconds)
        assert alarms.errors == []
        server.start()
        eventually(lambda: nc.is_connected, 6.0)
        js.publish("s.x", b"back", msg_id="1", timeout=5)
        eventually(lambda: got == [b"back"])
        assert not context.closed
    assert alarms.errors == []


def test_started_while_disconnected_waits_without_alarm(server: LocalServer, nc: Connection) -> None:
    """messages() that begins while disconnected sends its first pull after the reconnect, and raises no alarm."""
    js = nc.jetstream()
    consumer = stream_and_consumer(js, 3)
    server.kill()
    eventually(lambda: not nc.is_connected)
    alarms = Alarms()
    with consumer.messages(expires=1, idle_heartbeat=0.5, on_error=alarms) as messages:
        threading.Event().wait(1.2)
        server.start()
        assert [messages.next(8).data for _ in range(3)] == [b"0", b"1", b"2"]
    assert alarms.errors == []


def test_lost_pull_is_replaced_after_the_alarm(server: LocalServer) -> None:
    """A pull that never reached the server gets no heartbeats: the alarm is raised and the pull is replaced."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url, ping_interval=60) as nc:
        js = jetstream_sync.connect(server.url)
        consumer_maker = js.jetstream()
        stream_and_consumer(consumer_maker, 1)
        consumer = nc.jetstream().get_consumer("S", "C")
        alarms = Alarms()
        own = consumer._target.pull_frame
        consumer._target.pull_frame = lambda body, inbox: own(body, b"_INBOX.nowhere")  # type: ignore[method-assign]
        with consumer.messages(expires=2, idle_heartbeat=0.5, on_error=alarms) as messages:
            del consumer._target.pull_frame  # type: ignore[method-assign]
            assert messages.next(3).data == b"0"
        assert [type(error) for error in alarms.errors] == [MissedHeartbeatError]
        js.close()


def test_full_max_ack_pending_raises_no_alarm(server: LocalServer, nc: Connection) -> None:
    """A consumer that delivers nothing because of max_ack_pending still sends heartbeats."""
    consumer = stream_and_consumer(nc.jetstream(), 5, max_ack_pending=2)
    alarms = Alarms()
    held = []
    with Observer(server.url) as observer:
        with consumer.messages(expires=1, idle_heartbeat=0.5, on_error=alarms) as messages:
            held = [messages.next(2), messages.next(2)]
            threading.Event().wait(1.4)
            for message in held:
                message.ack()
            assert messages.next(3).data == b"2"
        assert len(observer.pulls) <= 8
        assert alarms.errors == []


def test_alarm_after_the_only_pull_expired_unseen(server: LocalServer, nc: Connection) -> None:
    """A server frozen for longer than the pull's expiry: alarms, and one live pull at a time afterwards."""
    consumer = stream_and_consumer(nc.jetstream())
    alarms = Alarms()
    with consumer.consume(print, expires=1, idle_heartbeat=0.5, on_error=alarms) as context:
        server.pause()
        eventually(lambda: len(alarms.errors) >= 2, 5.0)
        server.resume()
        pull = pull_of(context)
        frozen = pull.last_arrival
        eventually(lambda: pull.last_arrival > frozen, 3.0)
        # The pulls sent while the server was frozen expire first. After that there is one, or two that overlap.
        end = time.monotonic() + 1.5
        eventually(lambda: time.monotonic() > end, 3.0)
        assert waiting_pulls(consumer) <= 2
        assert not context.closed
