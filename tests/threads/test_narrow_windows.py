"""Moments of a few instructions in which another thread, or a signal handler that raises, comes in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import ConnectionClosedError, JetStream, MissedHeartbeatError, PermissionsError, TimeoutError
from jetstream_sync._threads import Mailbox, spawn
from jetstream_sync.api import publish_async
from jetstream_sync.net import handshake, lifecycle
from jetstream_sync.net.server_errors import server_error
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer
from tests.support.watchdog import InThread


class Interrupted(Exception):
    """What a signal handler of the user's raises."""


# --- consuming ----------------------------------------------------------------------------------------


def test_heartbeat_read_late_does_not_end_the_watch(nats_server: LocalServer, js: JetStream) -> None:
    """Read behind a slow message, it finds the clock paused; the pulls after it are watched all the same."""
    consumer = stream_and_consumer(js)
    errors: list[Any] = []
    stream = consumer.messages(
        max_messages=10, threshold_messages=5, expires=20, idle_heartbeat=0.5, on_error=errors.append
    )
    with stream:
        session = stream._session
        fill(js, 1)
        stream.next(5)
        eventually(lambda: session.inlet.delivered >= 2, message="a heartbeat is unread")
        fill(js, 9)
        eventually(lambda: session._clock.paused, message="nothing more is to come")  # type: ignore[attr-defined]
        for _ in range(9):
            stream.next(5)
        nats_server.pause()
        try:
            with pytest.raises(TimeoutError):
                stream.next(2.5)
        finally:
            nats_server.resume()
    assert any(isinstance(error, MissedHeartbeatError) for error in errors)


def test_status_read_before_the_reader_has_noted_it_costs_no_extra_pull(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader says what it has handed over after it did; a taker that is faster has lost nothing."""
    consumer = stream_and_consumer(js)
    put_run = Mailbox.put_run
    judged = threading.Event()

    def put_and_be_overtaken(self: Mailbox[Any], items: Sequence[Any]) -> bool:
        done = put_run(self, items)
        if self is box:
            judged.wait(0.3)
        return done

    with Observer(nats_server.url) as observer, consumer.messages(max_messages=10, expires=1.0) as stream:
        session = stream._session
        box = session.inlet.mailbox
        on_status = session._on_status  # type: ignore[attr-defined]
        monkeypatch.setattr(Mailbox, "put_run", put_and_be_overtaken)
        resets: list[None] = []
        reset = session._reset_to_unread  # type: ignore[attr-defined]
        monkeypatch.setattr(session, "_reset_to_unread", lambda: (resets.append(None), reset()))
        answers_read: list[int] = []
        monkeypatch.setattr(
            session,
            "_on_status",
            lambda raw: (on_status(raw), answers_read.append(session._answers_read)),  # type: ignore[attr-defined]
        )
        with pytest.raises(TimeoutError):
            stream.next(2.5)  # two pulls time out meanwhile
        judged.set()
        assert answers_read
        assert not resets
        assert len(observer.pulls) <= 4


def test_pull_sent_before_the_session_knows_of_a_loss_does_not_outlive_it(
    nats_server: LocalServer, js: JetStream
) -> None:
    """It would go out on the next connection, beside that one's first pull: more than max_messages in all."""
    nc = jetstream_sync.connect(nats_server.url, reconnect_time_wait=0.01, error_cb=lambda error: None)
    lost, go_on = threading.Event(), threading.Event()

    class Busy:
        """Is told of the loss before the session is, and takes its time."""

        def on_disconnect(self) -> None:
            lost.set()
            go_on.wait(5)

        def on_reconnect(self) -> None: ...

        def on_closed(self, error: Exception) -> None: ...

        def on_publish_denied(self, subject: bytes, error: Exception) -> None: ...

    stream_and_consumer(js, 6)
    with nc, Observer(nats_server.url) as observer:
        nc._add_listener(Busy())
        consumer = nc.jetstream().get_consumer("S", "C")
        with consumer.messages(max_messages=10, threshold_messages=5) as stream:
            for _ in range(4):
                stream.next(5)
            observer.settle(nc)
            before = len(observer.pulls)
            nc.force_reconnect()
            assert lost.wait(5)
            for _ in range(2):
                stream.next(5)
            stream._report()  # at the threshold: the taker pulls
            go_on.set()
            eventually(lambda: nc.is_connected)
            observer.wait_for_pulls(before + 1)
            observer.settle(nc)
            assert [seen.body["batch"] for seen in observer.pulls[before:]] == [10]


# --- publishing ---------------------------------------------------------------------------------------


def test_publish_interrupted_in_the_window_leaves_no_place_behind(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller never gets such a future, and no timeout would end it: waiting for all would never return."""
    js.create_stream(name="S", subjects=["s.>"])
    publisher = js._async_publisher
    add = publisher._add

    def add_and_be_interrupted(token: bytes, future: Any) -> bool:
        add(token, future)
        raise Interrupted

    monkeypatch.setattr(publisher, "_add", add_and_be_interrupted)
    with pytest.raises(Interrupted):
        js.publish_async("s.x", b"", timeout=0.1)
    assert js.publish_async_pending == 0
    InThread(js.publish_async_wait).result(2)


def test_inbox_denied_while_the_publisher_opens_is_told_to_every_publish(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The denial may come before the publisher's thread runs; no publish may wait for an ack after that."""
    publisher = js._async_publisher

    def denied_meanwhile(*args: Any) -> threading.Thread:
        publisher.fail(server_error('Permissions Violation for Subscription to "_INBOX.x.*"'))
        return spawn(*args)

    monkeypatch.setattr(publish_async, "spawn", denied_meanwhile)
    for _ in range(2):
        with pytest.raises(PermissionsError):
            js.publish_async("s.x", b"")


# --- connecting ---------------------------------------------------------------------------------------


def test_alarm_while_the_reader_starts_ends_connect(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's TimeoutError is not a server's fault: the next one would be given a second reader."""
    started: list[str] = []

    def start_and_be_interrupted(name: str, *args: Any) -> threading.Thread:
        thread = spawn(name, *args)
        started.append(name)
        if started.count("reader") == 1 and name == "reader":
            raise TimeoutError("the alarm of a signal handler")
        return thread

    monkeypatch.setattr(lifecycle, "spawn", start_and_be_interrupted)
    with pytest.raises(TimeoutError, match="the alarm"):
        jetstream_sync.connect([nats_server.url, f"nats://localhost:{nats_server.port}"])
    assert started.count("reader") == 1


def test_failed_connect_leaves_no_writer_that_was_yet_to_start(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader starts it, however late; connect() waits for both."""
    writers: list[threading.Thread] = []

    def start_late(name: str, *args: Any) -> threading.Thread:
        if name != "writer":
            return spawn(name, *args)
        abandoned.wait(5)
        thread = spawn(name, lambda: (ended.wait(0.2), args[0]()))
        writers.append(thread)
        return thread

    abandoned, ended = threading.Event(), threading.Event()
    abandon = lifecycle.Lifecycle._abandon_opening

    def tell(nc: lifecycle.Lifecycle) -> None:
        abandon(nc)
        threading.Timer(0.05, abandoned.set).start()

    def interrupted(self: handshake._Handshake) -> None:
        raise Interrupted

    monkeypatch.setattr(lifecycle, "spawn", start_late)
    monkeypatch.setattr(lifecycle.Lifecycle, "_abandon_opening", tell)
    monkeypatch.setattr(handshake._Handshake, "run", interrupted)
    with pytest.raises(Interrupted):
        jetstream_sync.connect(nats_server.url)
    assert [thread.is_alive() for thread in writers] == [False]


def test_connection_without_a_writer_is_closed(nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no thread is to be had, calls say so; they do not wait for a reader that has died."""

    def no_writer(name: str, *args: Any) -> threading.Thread:
        if name == "writer":
            raise RuntimeError("can't start new thread")
        return spawn(name, *args)

    monkeypatch.setattr(lifecycle, "spawn", no_writer)
    nc = jetstream_sync.connect(nats_server.url)
    eventually(lambda: nc.is_closed)
    began = time.monotonic()
    with pytest.raises(ConnectionClosedError, match="can't start new thread"):
        nc.flush(5)
    assert time.monotonic() - began < 1


def test_next_interrupted_while_it_cleans_up_leaves_nothing(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is there and a signal handler raises in the last moment: neither inbox nor listener stays."""
    consumer = stream_and_consumer(js, 1)
    nc = consumer._target.nc
    subs, listeners = len(nc._subs), len(nc._listeners)
    interruptions = 0

    class InterruptedOnce(list):  # type: ignore[type-arg]
        def remove(self, item: Any) -> None:
            nonlocal interruptions
            super().remove(item)
            interruptions += 1
            if interruptions == 1:
                raise Interrupted

    monkeypatch.setattr(nc, "_listeners", InterruptedOnce(nc._listeners))
    with pytest.raises(Interrupted):
        consumer.next(5)
    assert (len(nc._subs), len(nc._listeners)) == (subs, listeners)


def test_publisher_interrupted_while_it_opens_opens_once(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread, inbox and place among the listeners are not made a second time by the next publish."""
    js.create_stream(name="S", subjects=["s.>"])
    nc = js._async_publisher._nc
    subs, listeners = len(nc._subs), len(nc._listeners)
    started: list[threading.Thread] = []

    def start_and_be_interrupted(*args: Any) -> threading.Thread:
        started.append(spawn(*args))
        if len(started) == 1:
            raise Interrupted
        return started[-1]

    monkeypatch.setattr(publish_async, "spawn", start_and_be_interrupted)
    with pytest.raises(Interrupted):
        js.publish_async("s.x", b"")
    assert js.publish_async("s.x", b"").result(5).seq == 1
    assert (len(nc._subs), len(nc._listeners)) == (subs + 1, listeners + 1)
    assert len(nc._before_drained) == 1
    nc.close()
    eventually(lambda: not any(thread.is_alive() for thread in started))
