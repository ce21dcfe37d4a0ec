"""Races that last a few instructions: another thread, or a signal handler that raises, comes in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    JetStream,
    MissedHeartbeatError,
    PermissionsError,
    TimeoutError,
)
from jetstream_sync._threads import Mailbox, acquire, spawn
from jetstream_sync.api import publish_async
from jetstream_sync.net import handshake
from jetstream_sync.net import link as link_module
from jetstream_sync.net.connection import link_of
from jetstream_sync.net.link import Link
from jetstream_sync.net.receiver import Receiver
from jetstream_sync.net.requests import ReplyWaiter
from jetstream_sync.net.server_errors import server_error
from jetstream_sync.testing import LocalServer
from tests.support.consuming import refill_of
from tests.support.eventually import eventually
from tests.support.interrupts import Code, InterruptAt
from tests.support.observer import Observer, fill, stream_and_consumer
from tests.support.signals import Interrupted
from tests.support.threads import library_threads
from tests.support.watchdog import InThread

# --- consuming ----------------------------------------------------------------------------------------


def test_heartbeat_read_late_does_not_end_the_watch(nats_server: LocalServer, js: JetStream) -> None:
    """A heartbeat that is taken after the clock was paused does not stop the watch over later pulls."""
    consumer = stream_and_consumer(js)
    errors: list[Any] = []
    stream = consumer.messages(
        max_messages=10, threshold_messages=5, expires=20, idle_heartbeat=0.5, on_error=errors.append
    )
    with stream:
        refill = refill_of(stream)
        fill(js, 1)
        stream.next(5)
        eventually(lambda: refill.pull.delivered >= 2, message="a heartbeat is unread")
        fill(js, 9)
        eventually(lambda: refill._clock.paused, message="nothing more is to come")
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
    """The reader counts a message after it has put it; a consuming thread that is faster sends no extra pull."""
    consumer = stream_and_consumer(js)
    put_run = Mailbox.put_run
    judged = threading.Event()

    def put_and_be_overtaken(self: Mailbox[Any], items: Sequence[Any]) -> bool:
        done = put_run(self, items)
        if self is box:
            judged.wait(0.3)
        return done

    with Observer(nats_server.url) as observer, consumer.messages(max_messages=10, expires=1.0) as stream:
        refill = refill_of(stream)
        box = refill.box
        on_status = refill.on_status
        monkeypatch.setattr(Mailbox, "put_run", put_and_be_overtaken)
        resets: list[None] = []
        reset = refill._reset_to_unread
        monkeypatch.setattr(refill, "_reset_to_unread", lambda: (resets.append(None), reset()))
        answers_read: list[int] = []
        monkeypatch.setattr(
            refill,
            "on_status",
            lambda raw: (on_status(raw), answers_read.append(refill._answers_read)),
        )
        with pytest.raises(TimeoutError):
            stream.next(2.5)  # two pulls time out meanwhile
        judged.set()
        assert answers_read
        assert not resets
        assert len(observer.pulls) <= 4


def test_pull_sent_before_the_stream_knows_of_a_loss_does_not_outlive_it(
    nats_server: LocalServer, js: JetStream
) -> None:
    """A pull sent between the loss and `disconnected()` is not sent on the next connection.

    Together with the first pull there it would ask for more than max_messages.
    """
    nc = jetstream_sync.connect(nats_server.url, reconnect_time_wait=0.01, error_cb=lambda error: None)
    lost, go_on = threading.Event(), threading.Event()

    class Busy(Receiver):
        """A receiver that gets `disconnected()` before the stream, and holds it up."""

        wire_subject = b"busy"

        def disconnected(self) -> None:
            lost.set()
            go_on.wait(5)

    stream_and_consumer(js, 6)
    with nc, Observer(nats_server.url) as observer:
        link_of(nc).open(Busy())
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
            stream._feed.account(0, 0)  # at the threshold: the consuming thread pulls
            go_on.set()
            eventually(lambda: nc.is_connected)
            observer.wait_for_pulls(before + 1)
            observer.settle(nc)
            assert [seen.body["batch"] for seen in observer.pulls[before:]] == [10]


# --- publishing ---------------------------------------------------------------------------------------


def test_publish_interrupted_in_the_window_leaves_no_place_behind(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted publish_async() leaves no pending future: publish_async_wait() would never return."""
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
    """If the inbox is denied before the publisher thread runs, every publish raises and waits for no ack."""
    publisher = js._async_publisher

    def denied_meanwhile(*args: Any) -> threading.Thread:
        publisher.denied(server_error('Permissions Violation for Subscription to "_INBOX.x.*"'))
        return spawn(*args)

    monkeypatch.setattr(publish_async, "spawn", denied_meanwhile)
    for _ in range(2):
        with pytest.raises(PermissionsError):
            js.publish_async("s.x", b"")


# --- connecting ---------------------------------------------------------------------------------------


def test_alarm_while_the_reader_starts_ends_connect(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError of a signal handler ends connect(): no second reader starts for the next server."""
    started: list[str] = []

    def start_and_be_interrupted(name: str, *args: Any) -> threading.Thread:
        thread = spawn(name, *args)
        started.append(name)
        if started.count("reader") == 1 and name == "reader":
            raise TimeoutError("the alarm of a signal handler")
        return thread

    monkeypatch.setattr(link_module, "spawn", start_and_be_interrupted)
    with pytest.raises(TimeoutError, match="the alarm"):
        jetstream_sync.connect([nats_server.url, f"nats://localhost:{nats_server.port}"])
    assert started.count("reader") == 1


def test_failed_connect_leaves_no_writer_that_was_yet_to_start(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """connect() waits for the writer thread too, which the reader starts, however late."""
    writers: list[threading.Thread] = []

    def start_late(name: str, *args: Any) -> threading.Thread:
        if name != "writer":
            return spawn(name, *args)
        abandoned.wait(5)
        thread = spawn(name, lambda: (ended.wait(0.2), args[0]()))
        writers.append(thread)
        return thread

    abandoned, ended = threading.Event(), threading.Event()
    give_up = Link._give_up_opening

    def tell(link: Link) -> None:
        give_up(link)
        threading.Timer(0.05, abandoned.set).start()

    def interrupted(self: handshake._Handshake) -> None:
        raise Interrupted

    monkeypatch.setattr(link_module, "spawn", start_late)
    monkeypatch.setattr(Link, "_give_up_opening", tell)
    monkeypatch.setattr(handshake._Handshake, "run", interrupted)
    with pytest.raises(Interrupted):
        jetstream_sync.connect(nats_server.url)
    assert [thread.is_alive() for thread in writers] == [False]


def test_connection_without_a_writer_is_closed(nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the writer thread cannot be started the connection is closed, and calls raise with that reason."""

    def no_writer(name: str, *args: Any) -> threading.Thread:
        if name == "writer":
            raise RuntimeError("can't start new thread")
        return spawn(name, *args)

    monkeypatch.setattr(link_module, "spawn", no_writer)
    nc = jetstream_sync.connect(nats_server.url)
    eventually(lambda: nc.is_closed)
    began = time.monotonic()
    with pytest.raises(ConnectionClosedError, match="can't start new thread"):
        nc.flush(5)
    assert time.monotonic() - began < 1


def test_next_interrupted_while_it_cleans_up_leaves_nothing(
    nc: Connection, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises while next() closes its receiver: the receiver is removed nevertheless."""
    consumer = stream_and_consumer(js, 1)
    router = link_of(nc).router
    receivers, remove = len(router), router.remove
    interruptions = 0

    def interrupted_once(receiver: Receiver) -> None:
        nonlocal interruptions
        interruptions += 1
        if interruptions == 1:
            raise Interrupted
        remove(receiver)

    monkeypatch.setattr(router, "remove", interrupted_once)
    with pytest.raises(Interrupted):
        consumer.next(5)
    assert len(router) == receivers


def test_publisher_interrupted_while_it_opens_opens_once(
    nc: Connection, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next publish creates no second thread, inbox or drain step."""
    js.create_stream(name="S", subjects=["s.>"])
    link = link_of(nc)
    receivers = len(link.router)
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
    assert len(link.router) == receivers + 1
    assert len(link.drain_steps) == 1
    nc.close()
    eventually(lambda: not any(thread.is_alive() for thread in started))


def test_connect_interrupted_before_the_session_is_in_use_leaves_no_socket(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is established; a signal handler raises before the outbox has its transport."""
    clients = "/connz?state=open"

    def interrupted(self: Link, info: dict[str, Any]) -> None:
        raise Interrupted

    before = nats_server.monitor(clients)["num_connections"]
    monkeypatch.setattr(Link, "_use_info", interrupted)
    with pytest.raises(Interrupted) as raised:
        jetstream_sync.connect(nats_server.url)
    eventually(lambda: nats_server.monitor(clients)["num_connections"] == before)
    assert raised.tb is not None  # what holds the frames, and so the session


# --- opening a receiver -------------------------------------------------------------------------------


def test_subscribe_interrupted_before_it_has_a_sid_leaves_the_session_alone(
    nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to unsubscribe yet: an UNSUB without a sid would have the server close the connection."""
    router = link_of(nc).router

    def interrupted(receiver: Receiver) -> bytes:
        raise Interrupted

    monkeypatch.setattr(router, "add", interrupted)
    with pytest.raises(Interrupted):
        nc.subscribe("never")
    monkeypatch.undo()
    nc.flush()
    assert nc.last_error is None
    assert nc.stats.reconnects == 0


def test_first_request_interrupted_while_it_opens_the_inbox_leaves_requests_usable(
    nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inbox is open or not, never half: the next request opens it again."""
    nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
    outbox = link_of(nc).outbox

    def interrupted(frame: bytes) -> None:
        monkeypatch.undo()  # the UNSUB that undoes it is queued as usual
        raise Interrupted

    monkeypatch.setattr(outbox, "control", interrupted)
    with pytest.raises(Interrupted):
        nc.request("echo", b"1", timeout=5)
    assert nc.request("echo", b"2", timeout=5).data == b"2"


def test_request_beside_the_one_that_opens_the_inbox_follows_its_sub(
    nats_server: LocalServer, nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that left before the SUB would have its reply dropped by the server."""
    outbox = link_of(nc).outbox
    control = outbox.control
    opening, go_on = threading.Event(), threading.Event()

    def slowly(frame: bytes) -> None:
        opening.set()
        go_on.wait(0.5)
        control(frame)

    with jetstream_sync.connect(nats_server.url) as service:
        service.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        service.flush()
        monkeypatch.setattr(outbox, "control", slowly)
        first = InThread(nc.request, "echo", b"1", timeout=3)
        assert opening.wait(5)
        second = InThread(nc.request, "echo", b"2", timeout=3)
        assert first.result().data == b"1"
        assert second.result().data == b"2"


def test_request_beside_the_denial_of_the_inbox_is_told_of_it(
    nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds nothing denied yet and is not pending when the reader fails what is: it would wait for nothing."""
    nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
    assert nc.request("echo", b"1", timeout=5).data == b"1"
    link = link_of(nc)
    new_reply = link.requests.new_reply
    denial = server_error(f'Permissions Violation for Subscription to "{link.requests.wire_subject.decode()}"')
    assert isinstance(denial, PermissionsError)

    def denied_meanwhile() -> bytes:
        link.denied(denial)
        return new_reply()

    monkeypatch.setattr(link.requests, "new_reply", denied_meanwhile)
    with pytest.raises(PermissionsError):
        nc.request("echo", b"2", timeout=5)
    assert not link.requests.pending


def test_close_interrupted_anywhere_is_finished(nats_server: LocalServer) -> None:
    """Wherever a signal handler raises in close(), its threads end, its socket is closed and callers are told."""
    code = Code(Link.shut_down, Link._finish, Link._say_goodbye, Link._join_threads)
    place = 0
    while True:
        closed = threading.Event()
        nc = jetstream_sync.connect(nats_server.url, closed_cb=lambda _, closed=closed: closed.set())
        sub = nc.subscribe("x", cb=lambda _: None)
        transport = link_of(nc).session.transport  # type: ignore[union-attr]
        flushing = ReplyWaiter()
        link_of(nc).pings.waiters.append(flushing)  # as of a thread in flush()
        interrupt = InterruptAt(code, place)
        interrupt.call(nc.close)
        nc.close()
        assert closed.wait(5), interrupt.where
        assert acquire(flushing.lock, 5), interrupt.where
        assert isinstance(flushing.error, ConnectionClosedError)
        eventually(lambda: not library_threads(), message=interrupt.where)
        eventually(lambda transport=transport: transport.sock.fileno() == -1, message=interrupt.where)
        with pytest.raises(ConnectionClosedError):
            nc.publish("x", b"")
        assert sub.pending_msgs == 0
        if not interrupt.done:
            break
        place += 1
    assert place > 15
