"""Request and reply against a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import Connection, Message, connect
from jetstream_sync.errors import ConnectionLostError, NatsError, NoRespondersError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread, under_watchdog


@pytest.fixture
def echo(nats_server: LocalServer) -> Iterator[Connection]:
    """Another connection that replies to `echo` with the payload, and does not reply to `silent`."""
    with connect(nats_server.url) as responder:
        responder.subscribe("echo", cb=lambda msg: msg.respond(msg.data, headers=msg.headers))
        responder.subscribe("silent", cb=lambda msg: None)
        responder.flush()
        yield responder


def test_request_gets_its_reply_with_headers(nc: Connection, echo: Connection) -> None:
    """A request returns the first reply, headers included."""
    reply = nc.request("echo", b"hello", headers={"X": "y"})
    assert reply.data == b"hello"
    assert reply.headers == {"X": "y"}
    assert nc.request("echo").data == b""


def test_request_without_responders_fails_at_once(nc: Connection) -> None:
    """Without a subscriber: NoRespondersError at once, which names the subject."""
    asking = InThread(nc.request, "unanswered.there", timeout=10)
    error = asking.error()
    assert isinstance(error, NoRespondersError)
    assert "unanswered.there" in str(error)
    assert asking.seconds < 3


def test_request_times_out_at_its_deadline(nc: Connection, echo: Connection) -> None:
    """A responder that stays silent: TimeoutError, the builtin one too, at the deadline."""
    asking = InThread(nc.request, "silent", timeout=0.2)
    error = asking.error()
    assert isinstance(error, TimeoutError)
    assert "silent" in str(error)
    assert 0.19 < asking.seconds < 2
    assert nc.request("echo", b"still fine").data == b"still fine"


def test_late_reply_is_not_taken_for_another_request(nats_server: LocalServer, nc: Connection) -> None:
    """A reply that comes after its request was given up never answers a later one."""
    waiting: list[Message] = []
    with connect(nats_server.url) as responder:
        responder.subscribe("lazy", cb=waiting.append)
        responder.flush()
        for number in range(3):
            with pytest.raises(TimeoutError):
                nc.request("lazy", b"%d" % number, timeout=0.05)
        asking = InThread(nc.request, "lazy", b"last")
        eventually(lambda: len(waiting) == 4)
        for msg in waiting:
            msg.respond(msg.data)
        assert asking.result().data == b"last"


def test_only_the_first_of_several_replies_counts(nats_server: LocalServer, nc: Connection) -> None:
    """Further replies to a request are ignored."""

    def answer_twice(msg: Message) -> None:
        msg.respond(b"first")
        msg.respond(b"second")

    with connect(nats_server.url) as responder:
        responder.subscribe("twice", cb=answer_twice)
        responder.flush()
        assert [nc.request("twice").data for _ in range(10)] == [b"first"] * 10


def test_respond_without_reply_subject_raises(nc: Connection) -> None:
    """Answering a message that was no request is an error that says so."""
    sub = nc.subscribe("plain")
    nc.publish("plain")
    with pytest.raises(NatsError, match="no reply subject"):
        sub.next_msg().respond(b"x")


@pytest.mark.parametrize("timeout", [-1, "5", float("nan")])
def test_request_with_a_bad_timeout_is_refused(nc: Connection, timeout: Any) -> None:
    """A timeout that makes no sense is refused before anything is sent."""
    with pytest.raises((ValueError, TypeError), match="timeout"):
        nc.request("echo", timeout=timeout)
    assert nc.stats.out_msgs == 0


@pytest.mark.usefixtures("eager_switching")
def test_requests_from_32_threads_each_get_their_own_answer(nc: Connection, echo: Connection) -> None:
    """Requests at once from many threads: each gets the answer to its own question."""

    def ask(thread: int) -> None:
        for number in range(40):
            question = b"%d/%d" % (thread, number)
            assert nc.request("echo", question, timeout=20).data == question

    for asking in [InThread(ask, thread) for thread in range(32)]:
        asking.result(60)


def test_request_in_flight_fails_at_once_on_disconnect(proxy: FaultProxy, echo: Connection) -> None:
    """The connection is lost: waiting requests and flushes fail at once with ConnectionLostError."""
    with connect(proxy.url, reconnect_time_wait=0.01) as nc:
        asking = [InThread(nc.request, "silent", timeout=30) for _ in range(4)]
        eventually(lambda: len(link_of(nc).requests.pending) == 4)
        nc.flush()
        proxy.cut()
        for one in asking:
            assert isinstance(one.error(2), ConnectionLostError)
        assert under_watchdog(nc.request, "echo", b"again").data == b"again"


def test_request_while_disconnected_is_sent_after_the_reconnect(proxy: FaultProxy, echo: Connection) -> None:
    """A request made while disconnected waits for the connection, within its timeout."""
    with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
        proxy.refuse()
        proxy.cut()
        eventually(lambda: nc.is_reconnecting)
        asking = InThread(nc.request, "echo", b"patience", timeout=10)
        eventually(lambda: len(link_of(nc).requests.pending) == 1)
        proxy.heal()
        assert asking.result().data == b"patience"


def test_request_made_while_the_loss_is_handled_waits_for_the_next_connection(
    proxy: FaultProxy, echo: Connection
) -> None:
    """Once the connection says that it is reconnecting, a new request waits instead of failing as lost."""
    with connect(proxy.url, reconnect_time_wait=0.01) as nc:
        nc.request("echo")
        requests = link_of(nc).requests
        fail = requests.fail
        asking: list[InThread[Message]] = []

        def fail_late(*args: Any) -> None:
            assert nc.is_reconnecting
            asking.append(InThread(nc.request, "echo", b"new", timeout=10))
            eventually(lambda: len(link_of(nc).requests.pending) == 1)
            fail(*args)

        requests.fail = fail_late  # type: ignore[method-assign]
        proxy.cut()
        eventually(lambda: nc.stats.reconnects == 1)
        requests.fail = fail  # type: ignore[method-assign]
        assert asking[0].result().data == b"new"


def test_request_given_up_while_disconnected_is_not_sent_later(
    nats_server: LocalServer, proxy: FaultProxy
) -> None:
    """A request whose caller was told of its timeout never reaches a responder."""
    heard: list[bytes] = []
    with connect(nats_server.url) as responder:
        responder.subscribe("heard", cb=lambda msg: (heard.append(msg.data), msg.respond(b"")))
        responder.flush()
        with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
            proxy.refuse()
            proxy.cut()
            eventually(lambda: nc.is_reconnecting)
            with pytest.raises(TimeoutError):
                nc.request("heard", b"given up", timeout=0.05)
            nc.publish("heard", b"kept")
            proxy.heal()
            nc.request("heard", b"later")
    assert heard == [b"kept", b"later"]


def test_request_deadline_holds_while_others_flood(nats_server: LocalServer) -> None:
    """A thread that also sends the frames of other threads still returns at its own deadline."""
    stop = threading.Event()
    with connect(nats_server.url) as nc:

        def flood() -> None:
            while not stop.is_set():
                nc.publish("flood", b"x" * 2000)

        nc.subscribe("mute")
        floods = [InThread(flood) for _ in range(6)]
        longest = 0.0
        try:
            for _ in range(15):
                start = time.monotonic()
                error = InThread(nc.request, "mute", timeout=0.05).error(20)
                longest = max(longest, time.monotonic() - start)
                assert isinstance(error, TimeoutError)
        finally:
            stop.set()
            for one in floods:
                one.result(20)
        assert longest < 1.5
