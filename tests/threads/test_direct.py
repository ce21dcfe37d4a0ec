"""Direct receive: callers receive the replies to their own requests while the reader thread sleeps."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    JetStream,
    PermissionsError,
    _threads,
)
from jetstream_sync.net import direct, requests, transport
from jetstream_sync.net.connection import link_of
from jetstream_sync.net.direct import DirectReceive
from jetstream_sync.testing import LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.forks import in_child
from tests.support.interrupts import Code, InterruptAt
from tests.support.platforms import needs_fork_hooks
from tests.support.signals import handler_of
from tests.support.watchdog import InThread

Script = Callable[[PeerConnection, bytes], None]


class Responder:
    """A scripted server. It echoes the payload of each request, unless `specials` holds another reply."""

    def __init__(self) -> None:
        self.sid = b""
        self.pongs = 0
        self.specials: list[Script] = []
        self.asked = threading.Event()

    def serve(self, conn: PeerConnection) -> None:
        conn.handshake()
        while True:
            verb, *fields = conn.expect_line(timeout=60).split(b" ")
            if verb == b"SUB":
                self.sid = self.sid or fields[-1]
            elif verb == b"PING":
                conn.send(b"PONG\r\n")
            elif verb == b"PONG":
                self.pongs += 1
            elif verb == b"PUB":
                payload = conn.read_exactly(int(fields[-1]) + 2)[:-2]
                self.asked.set()
                if self.specials:
                    self.specials.pop(0)(conn, fields[1])
                else:
                    conn.send(self.message(fields[1], payload))

    def message(self, subject: bytes, payload: bytes) -> bytes:
        return b"MSG %b %b %d\r\n%b\r\n" % (subject, self.sid, len(payload), payload)


@pytest.fixture
def responder() -> Responder:
    return Responder()


@pytest.fixture
def asker(responder: Responder) -> Iterator[Connection]:
    """A connection to the scripted server, in a direct-receive phase: its reader thread sleeps."""
    with ScriptedPeer(responder.serve) as peer:
        nc = jetstream_sync.connect(peer.url, reconnect_time_wait=0.01, error_cb=lambda error: None)
        wait_for_phase(nc)
        yield nc
        nc.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timeout ends a direct-receive phase, however slow the machine is: only what the test does."""
    monkeypatch.setattr(direct, "IDLE_SECONDS", 60.0)
    monkeypatch.setattr(direct, "CALLER_SECONDS", 60.0)
    monkeypatch.setattr(direct, "STUCK_SECONDS", 60.0)


def ask(nc: Connection, payload: bytes = b"echo") -> None:
    assert nc.request("echo", payload, timeout=5).data == payload


def wait_for_phase(nc: Connection) -> None:
    def asked_in_phase() -> bool:
        direct_of(nc).streak = direct.FIRST_STREAK  # it grows when phases end early
        ask(nc)
        # Not in_phase(): the reader ends a new phase at once when another thread waits for it.
        return DirectReceive._sleep.__code__ in codes_of(reader_of(nc))

    eventually(asked_in_phase, message="the reader offers a phase")


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def codes_of(thread: int | None) -> list[CodeType]:
    """The code that a thread executes, the innermost function first."""
    return [frame.f_code for frame in frames_of(sys._current_frames()[thread or 0])]


def direct_of(nc: Connection) -> DirectReceive:
    receive = link_of(nc).direct_receive
    assert isinstance(receive, DirectReceive)
    return receive


def reader_of(nc: Connection) -> int:
    """The identity of the connection's reader thread."""
    readers = [
        ident
        for ident, frame in sys._current_frames().items()
        if any(outer.f_locals.get("self") is link_of(nc).reader for outer in frames_of(frame))
    ]
    assert len(readers) == 1
    return readers[0]


def in_phase(nc: Connection) -> bool:
    return direct_of(nc).phase is not None


# --- the usual case -------------------------------------------------------------------------------------


def test_publishes_in_a_loop_get_their_acks_without_the_reader(nc: Connection, js: JetStream) -> None:
    """One thread publishes in a loop: it receives most acks itself, and the statistics count them as usual."""
    js.create_stream(name="S", subjects=["s.>"])
    before, messages = direct_of(nc).replies, nc.stats.in_msgs
    assert [js.publish("s.a", b"x").seq for _ in range(1000)] == list(range(1, 1001))
    assert direct_of(nc).replies - before > 500
    assert nc.stats.in_msgs - messages == 1000
    assert nc.stats.in_bytes > 1000 * len(b'{"stream":"S", "seq":1}')


@pytest.mark.usefixtures("patient")
def test_reader_comes_back_for_a_subscription(asker: Connection, responder: Responder) -> None:
    """A new subscription wakes the reader: its messages do not wait for the next request."""
    assert in_phase(asker)
    sub = asker.subscribe("news")
    eventually(lambda: not in_phase(asker))
    responder.specials.append(lambda conn, reply: conn.send(b"MSG news %b 2\r\nhi\r\n" % sub._inbound.sid))
    asker.publish("to.the.script", b"")
    assert sub.next_msg(timeout=5).data == b"hi"
    for _ in range(10):
        ask(asker)
    assert not in_phase(asker), "there is a subscription"


@pytest.mark.usefixtures("patient")
def test_reader_comes_back_for_a_flush(asker: Connection) -> None:
    """flush() wakes the reader, because a PONG is not a reply to a request."""
    flushing = InThread(asker.flush, 10)
    assert flushing.error() is None
    assert flushing.seconds < 5


def test_reader_comes_back_when_no_request_follows(asker: Connection, responder: Responder) -> None:
    """The reader wakes up after a while and replies to the server's PING, although no request follows."""
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"echo") + b"PING\r\n"))
    ask(asker)
    eventually(lambda: responder.pongs == 1)
    wait_for_phase(asker)
    eventually(lambda: not in_phase(asker), message="the reader is back")


def test_streak_grows_while_phases_end_early(nc: Connection) -> None:
    """Ten requests and a flush, repeated, end each phase early: the reader offers phases less and less often."""
    with jetstream_sync.connect(nc.connected_url) as other:
        other.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        other.flush()
        for _ in range(60):
            for _ in range(10):
                ask(nc)
            nc.flush()
        assert direct_of(nc).streak > 10
        assert direct_of(nc).replies < 20
        for _ in range(2 * direct_of(nc).streak + 50):
            ask(nc)
        nc.flush()
        eventually(lambda: direct_of(nc).streak == direct.FIRST_STREAK, message="a long loop pays")


# --- what else may arrive -----------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("place", ["before", "behind", "apart"])
@pytest.mark.parametrize(
    "other", [b"PING\r\n", b'INFO {"max_payload":4096}\r\n', b"+OK\r\n", b"MSG gone 99 1\r\nx\r\n"]
)
def test_what_comes_with_a_reply_is_handled(
    other: bytes, place: str, asker: Connection, responder: Responder
) -> None:
    """The reply reaches its caller and the other frame reaches the reader, in any order and any pieces."""

    def respond(conn: PeerConnection, reply: bytes) -> None:
        message = responder.message(reply, b"echo")
        if place == "apart":
            conn.send(other)
            eventually(lambda: not in_phase(asker))
            conn.send(message)
        else:
            conn.send(other + message if place == "before" else message + other)

    responder.specials.append(respond)
    ask(asker)
    if other.startswith(b"PING"):
        eventually(lambda: responder.pongs == 1)
    if other.startswith(b"INFO"):
        eventually(lambda: asker.max_payload == 4096)
    ask(asker)
    assert asker.stats.reconnects == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("cut", [1, 4, 12, -3, -2, -1])
def test_reply_in_two_pieces(cut: int, asker: Connection, responder: Responder) -> None:
    """When half a reply arrives the reader takes over and receives the other half."""

    def respond(conn: PeerConnection, reply: bytes) -> None:
        message = responder.message(reply, b"echo")
        conn.send(message[:cut])
        eventually(lambda: not in_phase(asker))
        conn.send(message[cut:])

    responder.specials.append(respond)
    ask(asker)
    ask(asker)


@pytest.mark.usefixtures("patient")
def test_reply_of_many_bytes(asker: Connection, responder: Responder) -> None:
    """A reply may be longer than what a caller receives at a time."""
    for size in (transport.REPLY_SIZE - 100, transport.REPLY_SIZE, 500_000):
        wait_for_phase(asker)
        ask(asker, b"z" * size)


@pytest.mark.usefixtures("patient")
def test_reply_with_headers(asker: Connection, responder: Responder) -> None:
    """A caller receives a reply with headers itself, and also the server's "no responders"."""
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    head = b"HMSG %b %b %d %d\r\n"
    responder.specials += [
        lambda conn, reply: conn.send(
            head % (reply, responder.sid, len(block), len(block) + 2) + block + b"hi\r\n"
        ),
        lambda conn, reply: conn.send(head % (reply, responder.sid, 16, 16) + b"NATS/1.0 503\r\n\r\n\r\n"),
    ]
    before = direct_of(asker).replies
    message = asker.request("echo", b"", timeout=5)
    assert (message.data, message.headers) == (b"hi", {"A": "b"})
    with pytest.raises(jetstream_sync.NoRespondersError):
        asker.request("echo", b"", timeout=5)
    assert direct_of(asker).replies == before + 2


@pytest.mark.usefixtures("patient")
def test_reply_to_an_earlier_request_is_discarded(asker: Connection, responder: Responder) -> None:
    """The reply to a request that timed out is discarded; the next request gets its own."""
    late: list[bytes] = []
    responder.specials += [
        lambda conn, reply: late.append(responder.message(reply, b"late")),
        lambda conn, reply: conn.send(late.pop() + responder.message(reply, b"echo")),
    ]
    asking = InThread(asker.request, "echo", b"", timeout=0.2)
    assert isinstance(asking.error(), TimeoutError)
    assert 0.19 < asking.seconds < 2
    ask(asker)
    ask(asker)


@pytest.mark.usefixtures("patient")
def test_denied_request_fails_at_once(asker: Connection, responder: Responder) -> None:
    """A permission error of the server fails the request that it concerns, at once."""
    denial = b"-ERR 'Permissions Violation for Publish to \"echo\"'\r\n"
    responder.specials.append(lambda conn, reply: conn.send(denial))
    with pytest.raises(PermissionsError):
        asker.request("echo", b"", timeout=10)
    ask(asker)


def test_slow_reply(asker: Connection, responder: Responder) -> None:
    """A caller whose reply is slow stops receiving and waits for the reader to deliver the reply."""

    def respond(conn: PeerConnection, reply: bytes) -> None:
        eventually(lambda: not in_phase(asker), message="the reader has taken over")
        conn.send(responder.message(reply, b"echo"))

    responder.specials.append(respond)
    ask(asker)


# --- ends -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", [PeerConnection.close, PeerConnection.reset])
def test_end_of_the_connection_during_a_direct_receive(
    end: Callable[[PeerConnection], None], asker: Connection, responder: Responder
) -> None:
    """The request fails at once, and the next one uses a new connection."""

    def leave(conn: PeerConnection, _: bytes) -> None:
        end(conn)
        raise EOFError  # there is nothing more to read on this connection

    responder.specials.append(leave)
    with pytest.raises(ConnectionLostError):
        asker.request("echo", b"", timeout=10)
    ask(asker)
    assert asker.stats.reconnects == 1


@pytest.mark.usefixtures("patient")
def test_close_by_another_thread_during_a_direct_receive(asker: Connection, responder: Responder) -> None:
    """The waiting caller gets its error at once, and close() does not wait for it."""
    responder.specials.append(lambda conn, reply: None)
    responder.asked.clear()
    asking = InThread(asker.request, "echo", b"", timeout=30)
    assert responder.asked.wait(5)
    closing = InThread(asker.close)
    assert closing.error() is None
    assert isinstance(asking.error(), (ConnectionClosedError, ConnectionLostError))
    assert closing.seconds < 2.5


@pytest.mark.usefixtures("patient")
def test_force_reconnect_and_close_while_the_reader_sleeps(asker: Connection) -> None:
    """force_reconnect() and close() wake the sleeping reader."""
    asker.force_reconnect()
    eventually(lambda: asker.stats.reconnects == 1)
    wait_for_phase(asker)
    started = time.monotonic()
    asker.close()
    assert time.monotonic() - started < 2


def test_server_killed_under_a_loop_of_publishes(nats_server: LocalServer) -> None:
    """Publishes fail while the server is away, and work again when it is back."""
    with jetstream_sync.connect(nats_server.url, reconnect_time_wait=0.01, error_cb=lambda error: None) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="file")
        for _ in range(3):
            for _ in range(50):
                js.publish("s.a", b"x")
            nats_server.kill()
            nats_server.start()
            eventually(lambda: answered(js), 10)
        assert nc.stats.reconnects == 3


def answered(js: JetStream) -> bool:
    try:
        js.publish("s.a", b"x", timeout=1)
    except jetstream_sync.NatsError:
        return False
    return True


# --- other threads --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_second_request_during_a_direct_receive(asker: Connection, responder: Responder) -> None:
    """A second thread sends a request meanwhile: the reader takes over and each thread gets its own reply."""
    held: list[bytes] = []
    responder.specials += [
        lambda conn, reply: held.append(responder.message(reply, b"first")),
        lambda conn, reply: conn.send(responder.message(reply, b"second") + held.pop()),
    ]
    responder.asked.clear()
    first = InThread(asker.request, "echo", b"", timeout=10)
    assert responder.asked.wait(5)
    second = InThread(asker.request, "echo", b"", timeout=10)
    assert (first.result().data, second.result().data) == (b"first", b"second")


@pytest.mark.usefixtures("eager_switching")
def test_threads_that_come_and_go(nc: Connection, nats_server: LocalServer) -> None:
    """One thread sends requests in a loop while three others keep ending the direct-receive phases."""
    stop = threading.Event()

    def disturb(number: int) -> int:
        rounds = 0
        while not stop.wait(0.003 * number):
            rounds += 1
            sub = nc.subscribe(f"news.{number}")
            nc.publish(f"news.{number}", b"hi")
            assert sub.next_msg(timeout=5).data == b"hi"
            sub.unsubscribe()
            nc.flush(5)
            ask(nc, b"disturbed by %d, %d" % (number, rounds))
        return rounds

    with jetstream_sync.connect(nats_server.url) as other:
        other.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        other.flush()
        try:
            disturbers = [InThread(disturb, number) for number in (1, 4, 9)]
            for number in range(3000):
                direct_of(nc).streak = direct.FIRST_STREAK  # it would grow, and phases would become rare
                ask(nc, b"%d" % number)
        finally:
            stop.set()
        assert all(disturber.result() > 3 for disturber in disturbers)
    assert direct_of(nc).replies > 100
    assert not link_of(nc).requests.pending


# --- signals --------------------------------------------------------------------------------------------


EXCHANGE = Code(
    requests.Requests.request,
    DirectReceive.exchange,
    DirectReceive.receive,
    DirectReceive._leave,
    _threads.Wakeup.set,
    direct.DirectPhase.receive,
    direct.DirectPhase.accept,
)


@pytest.mark.parametrize("behind", [b"", b"PING\r\n"])
def test_direct_receive_interrupted_anywhere(
    behind: bytes, asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a signal handler raises in a direct receive, the connection goes on and loses no bytes."""
    monkeypatch.setattr(
        direct, "STUCK_SECONDS", 60.0
    )  # an interrupted caller must end its direct receive without this timeout
    place = pings = 0

    def respond(conn: PeerConnection, reply: bytes) -> None:
        nonlocal pings
        pings += len(behind) > 0
        conn.send(responder.message(reply, b"interrupted") + behind)

    while True:
        wait_for_phase(asker)
        before = direct_of(asker).requests
        interrupt = InterruptAt(EXCHANGE, place)
        responder.specials = [respond]
        interrupt.call(lambda: ask(asker, b"interrupted"))
        responder.specials = []
        if not interrupt.done and direct_of(asker).requests == before:
            continue  # the reader woke up before the call: it was no direct receive
        assert not link_of(asker).requests.pending
        asking = InThread(ask, asker, b"%d" % place)
        assert asking.error() is None
        assert asking.seconds < 2
        if not interrupt.done:
            break
        place += 1
    assert place > 20
    eventually(lambda: responder.pongs == pings, message="all that the server sent was read")
    assert asker.stats.reconnects == 0


@pytest.mark.parametrize("handler", [Connection.close, Connection.force_reconnect])
def test_signal_handler_that_ends_the_connection_anywhere_in_a_direct_receive(
    handler: Callable[[Connection], None], responder: Responder
) -> None:
    """The handler calls close() or force_reconnect(), at any place of a direct receive: no thread hangs."""
    place = passed = 0
    with ScriptedPeer(responder.serve) as peer:
        while passed < 3:  # that many calls passed all places without the handler
            nc = jetstream_sync.connect(peer.url, reconnect_time_wait=0.01, error_cb=lambda error: None)
            wait_for_phase(nc)
            before = direct_of(nc).replies
            interrupt = InterruptAt(EXCHANGE, place, lambda nc=nc: handler(nc))
            started = time.monotonic()
            try:
                interrupt.call(lambda nc=nc: ask(nc))
            except (ConnectionClosedError, ConnectionLostError):
                assert interrupt.done
            if handler is Connection.force_reconnect:
                eventually(lambda nc=nc, done=interrupt.done: nc.stats.reconnects == done)
                ask(nc)
            nc.close()
            assert time.monotonic() - started < 2
            place += interrupt.done
            passed += direct_of(nc).replies > before and not interrupt.done
    assert place > 20


@pytest.mark.usefixtures("patient")
def test_signal_handler_that_asks_during_a_direct_receive(
    asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler sends a request of its own: the reader takes over and delivers both replies."""
    monkeypatch.setattr(direct, "CALLER_SECONDS", 0.3)
    main = threading.main_thread().ident
    held: list[bytes] = []
    replies: list[bytes] = []

    def hold_and_interrupt(_: PeerConnection, reply: bytes) -> None:
        held.append(responder.message(reply, b"echo"))
        waiting = DirectReceive.receive.__code__
        eventually(lambda: waiting in codes_of(main), message="the caller is in its direct receive")
        os.kill(os.getpid(), signal.SIGALRM)

    def handle(*_: object) -> None:
        replies.append(asker.request("echo", b"", timeout=5).data)

    responder.specials.append(hold_and_interrupt)
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"handler") + held.pop()))
    with handler_of(signal.SIGALRM, handle):
        ask(asker)
    assert replies == [b"handler"]


def test_socket_closed_before_a_caller_waits(asker: Connection) -> None:
    """A caller that comes after the close does not read from another socket with the same file descriptor."""
    phase = eventually(lambda: direct_of(asker).phase or ask(asker))
    asker.close()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.send(b"not yours")
        assert direct_of(asker).receive(phase, b"x", b"1", 0.01) is None
        assert mine.recv(100) == b"not yours"


@needs_fork_hooks
@pytest.mark.usefixtures("patient")
def test_phase_is_not_inherited_by_a_forked_child(asker: Connection, responder: Responder) -> None:
    """A process forks during a phase: the child receives nothing, the parent gets its reply."""
    phase = direct_of(asker).phase
    assert phase is not None
    phase.callers.append(b"answer")
    responder.specials.append(lambda conn, reply: conn.send(responder.message(b"answer", b"for the parent")))
    link_of(asker).publish(b"echo", b"", b"anywhere")

    def receive() -> Any:
        return direct_of(asker).receive(phase, b"answer", responder.sid, 5)

    assert in_child(lambda: repr(receive())) == "None"
    assert receive() == (b"answer", None, None, b"for the parent")
    phase.callers.remove(b"answer")
    ask(asker)


def test_bytes_received_by_a_caller_that_is_held_up_are_not_lost(
    asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may wait for the interpreter lock right after its recv(), for longer than a second.

    The reader must not parse what follows without the bytes that the caller received: it waits for the caller.
    """
    held_up = threading.Event()
    phase = eventually(lambda: direct_of(asker).phase or ask(asker))
    receive = phase.transport.direct_recv

    def late(size: int, flags: int) -> bytes:
        data = receive(size, flags)
        held_up.set()
        time.sleep(2.0)
        return data

    monkeypatch.setattr(phase.transport, "direct_recv", late)
    responder.specials.append(
        lambda conn, reply: conn.send(
            responder.message(reply, b"echo") + b"PING\r\n"
        )  # the PING is for the reader
    )
    asking = InThread(ask, asker)
    assert held_up.wait(5)
    link_of(asker).direct.recall()
    assert asking.error() is None
    eventually(lambda: responder.pongs == 1)
    assert asker.stats.reconnects == 0
