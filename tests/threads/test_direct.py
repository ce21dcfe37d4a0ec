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

Answer = Callable[[PeerConnection, bytes], None]


class Responder:
    """A scripted server: answers each request with its payload, or once as the test says."""

    def __init__(self) -> None:
        self.sid = b""
        self.pongs = 0
        self.specials: list[Answer] = []
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
    """A connection to the scripted server, whose reader stands aside."""
    with ScriptedPeer(responder.serve) as peer:
        nc = jetstream_sync.connect(peer.url, reconnect_time_wait=0.01, error_cb=lambda error: None)
        wait_for_phase(nc)
        yield nc
        nc.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the test does has the reader come back: the machine may be slow."""
    monkeypatch.setattr(direct, "IDLE_SECONDS", 60.0)
    monkeypatch.setattr(direct, "CALLER_SECONDS", 60.0)
    monkeypatch.setattr(direct, "STUCK_SECONDS", 60.0)


def ask(nc: Connection, payload: bytes = b"lone") -> None:
    assert nc.request("echo", payload, timeout=5).data == payload


def wait_for_phase(nc: Connection) -> None:
    def asked_in_phase() -> bool:
        direct_of(nc).streak = direct.FIRST_STREAK  # it grows when the reader is called back all the time
        ask(nc)
        # Not in_phase(): a reader that finds a thread waiting at the last moment ends the phase at once.
        return DirectReceive._sleep.__code__ in codes_of(reader_of(nc))

    eventually(asked_in_phase, message="the reader offers a phase")


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def codes_of(thread: int | None) -> list[CodeType]:
    """What a thread executes, the innermost first."""
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


def test_publishes_in_a_loop_are_answered_without_the_reader(nc: Connection, js: JetStream) -> None:
    """Nearly every ack of a lone loop is received by the caller; the statistics count it like any other."""
    js.create_stream(name="S", subjects=["s.>"])
    before, messages = direct_of(nc).replies, nc.stats.in_msgs
    assert [js.publish("s.a", b"x").seq for _ in range(1000)] == list(range(1, 1001))
    assert direct_of(nc).replies - before > 500
    assert nc.stats.in_msgs - messages == 1000
    assert nc.stats.in_bytes > 1000 * len(b'{"stream":"S", "seq":1}')


@pytest.mark.usefixtures("patient")
def test_reader_comes_back_for_a_subscription(asker: Connection, responder: Responder) -> None:
    """What a new subscription receives does not wait for the next request."""
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
    """A PONG is no answer to a request."""
    flushing = InThread(asker.flush, 10)
    assert flushing.error() is None
    assert flushing.seconds < 5


def test_reader_comes_back_when_no_request_follows(asker: Connection, responder: Responder) -> None:
    """A server's PING is answered soon, although no request follows."""
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"lone") + b"PING\r\n"))
    ask(asker)
    eventually(lambda: responder.pongs == 1)
    wait_for_phase(asker)
    eventually(lambda: not in_phase(asker), message="the reader is back")


def test_streak_grows_while_standing_aside_does_not_pay(nc: Connection) -> None:
    """A loop of ten requests and a flush would have the reader go and come all the time; it soon stays."""
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


# --- whatever else may come -----------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("place", ["before", "behind", "apart"])
@pytest.mark.parametrize(
    "other", [b"PING\r\n", b'INFO {"max_payload":4096}\r\n', b"+OK\r\n", b"MSG gone 99 1\r\nx\r\n"]
)
def test_what_comes_with_an_answer_is_handled(
    other: bytes, place: str, asker: Connection, responder: Responder
) -> None:
    """The answer reaches its caller, and the rest the reader, in whichever order and pieces they come."""

    def answer(conn: PeerConnection, reply: bytes) -> None:
        message = responder.message(reply, b"lone")
        if place == "apart":
            conn.send(other)
            eventually(lambda: not in_phase(asker))
            conn.send(message)
        else:
            conn.send(other + message if place == "before" else message + other)

    responder.specials.append(answer)
    ask(asker)
    if other.startswith(b"PING"):
        eventually(lambda: responder.pongs == 1)
    if other.startswith(b"INFO"):
        eventually(lambda: asker.max_payload == 4096)
    ask(asker)
    assert asker.stats.reconnects == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("cut", [1, 4, 12, -3, -2, -1])
def test_answer_in_two_pieces(cut: int, asker: Connection, responder: Responder) -> None:
    """Half an answer is left to the reader, and with it the other half."""

    def answer(conn: PeerConnection, reply: bytes) -> None:
        message = responder.message(reply, b"lone")
        conn.send(message[:cut])
        eventually(lambda: not in_phase(asker))
        conn.send(message[cut:])

    responder.specials.append(answer)
    ask(asker)
    ask(asker)


@pytest.mark.usefixtures("patient")
def test_answer_of_many_bytes(asker: Connection, responder: Responder) -> None:
    """Longer than what a caller receives at a time."""
    for size in (transport.REPLY_SIZE - 100, transport.REPLY_SIZE, 500_000):
        wait_for_phase(asker)
        ask(asker, b"z" * size)


@pytest.mark.usefixtures("patient")
def test_answer_with_headers(asker: Connection, responder: Responder) -> None:
    """A caller receives it like any other, and so it does the server's "no responders"."""
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
def test_answer_to_an_earlier_request_is_dropped(asker: Connection, responder: Responder) -> None:
    """Too late is too late: the next request waits for its own."""
    late: list[bytes] = []
    responder.specials += [
        lambda conn, reply: late.append(responder.message(reply, b"late")),
        lambda conn, reply: conn.send(late.pop() + responder.message(reply, b"lone")),
    ]
    asking = InThread(asker.request, "echo", b"", timeout=0.2)
    assert isinstance(asking.error(), TimeoutError)
    assert 0.19 < asking.seconds < 2
    ask(asker)
    ask(asker)


@pytest.mark.usefixtures("patient")
def test_denied_request_fails_at_once(asker: Connection, responder: Responder) -> None:
    """The server's complaint reaches the call it concerns."""
    denial = b"-ERR 'Permissions Violation for Publish to \"echo\"'\r\n"
    responder.specials.append(lambda conn, reply: conn.send(denial))
    with pytest.raises(PermissionsError):
        asker.request("echo", b"", timeout=10)
    ask(asker)


def test_answer_that_takes_its_time(asker: Connection, responder: Responder) -> None:
    """A caller gives up receiving, not waiting."""

    def answer(conn: PeerConnection, reply: bytes) -> None:
        eventually(lambda: not in_phase(asker), message="the reader has taken over")
        conn.send(responder.message(reply, b"lone"))

    responder.specials.append(answer)
    ask(asker)


# --- ends -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", [PeerConnection.close, PeerConnection.reset])
def test_end_of_the_connection_during_a_turn(
    end: Callable[[PeerConnection], None], asker: Connection, responder: Responder
) -> None:
    """The request fails at once, and the next one has a new connection."""

    def leave(conn: PeerConnection, _: bytes) -> None:
        end(conn)
        raise EOFError  # nothing more to read there

    responder.specials.append(leave)
    with pytest.raises(ConnectionLostError):
        asker.request("echo", b"", timeout=10)
    ask(asker)
    assert asker.stats.reconnects == 1


@pytest.mark.usefixtures("patient")
def test_close_by_another_thread_during_a_turn(asker: Connection, responder: Responder) -> None:
    """The caller is told at once, and close() is not held up by it."""
    responder.specials.append(lambda conn, reply: None)
    responder.asked.clear()
    asking = InThread(asker.request, "echo", b"", timeout=30)
    assert responder.asked.wait(5)
    closing = InThread(asker.close)
    assert closing.error() is None
    assert isinstance(asking.error(), (ConnectionClosedError, ConnectionLostError))
    assert closing.seconds < 2.5


@pytest.mark.usefixtures("patient")
def test_force_reconnect_and_close_while_nobody_receives(asker: Connection) -> None:
    """Both call the reader back."""
    asker.force_reconnect()
    eventually(lambda: asker.stats.reconnects == 1)
    wait_for_phase(asker)
    started = time.monotonic()
    asker.close()
    assert time.monotonic() - started < 2


def test_server_killed_under_a_loop_of_publishes(nats_server: LocalServer) -> None:
    """The loop fails once or a few times, then goes on where the server is back."""
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
def test_second_request_during_a_turn(asker: Connection, responder: Responder) -> None:
    """Two threads ask at once: the reader takes over and each gets its own answer, in whichever order."""
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
    """Loops of one thread, in which the reader stands aside, with others that want it back all the time."""
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
                direct_of(nc).streak = direct.FIRST_STREAK  # it would grow, and the reader soon stay
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
def test_turn_interrupted_anywhere(
    behind: bytes, asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a signal handler raises in a turn, the connection goes on, and nothing that came is lost."""
    monkeypatch.setattr(direct, "STUCK_SECONDS", 60.0)  # the right to receive is not lost either
    place = pings = 0

    def answer(conn: PeerConnection, reply: bytes) -> None:
        nonlocal pings
        pings += len(behind) > 0
        conn.send(responder.message(reply, b"interrupted") + behind)

    while True:
        wait_for_phase(asker)
        turns = direct_of(asker).requests
        interrupt = InterruptAt(EXCHANGE, place)
        responder.specials = [answer]
        interrupt.call(lambda: ask(asker, b"interrupted"))
        responder.specials = []
        if not interrupt.done and direct_of(asker).requests == turns:
            continue  # the reader came back before the call: this was no turn
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
def test_signal_handler_that_ends_the_connection_anywhere_in_a_turn(
    handler: Callable[[Connection], None], responder: Responder
) -> None:
    """A worker that is told to stop closes in its handler, wherever that comes; nothing may wait for anything."""
    place = turns = 0
    with ScriptedPeer(responder.serve) as peer:
        while turns < 3:  # undisturbed ones, behind the last place
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
            turns += direct_of(nc).replies > before and not interrupt.done
    assert place > 20


@pytest.mark.usefixtures("patient")
def test_signal_handler_that_asks_during_a_turn(
    asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader takes the turn away, so that the handler's request is answered, and then the interrupted one."""
    monkeypatch.setattr(direct, "CALLER_SECONDS", 0.3)
    main = threading.main_thread().ident
    held: list[bytes] = []
    answers: list[bytes] = []

    def hold_and_interrupt(_: PeerConnection, reply: bytes) -> None:
        held.append(responder.message(reply, b"lone"))
        waiting = DirectReceive.receive.__code__
        eventually(lambda: waiting in codes_of(main), message="the caller is in its turn")
        os.kill(os.getpid(), signal.SIGALRM)

    def handle(*_: object) -> None:
        answers.append(asker.request("echo", b"", timeout=5).data)

    responder.specials.append(hold_and_interrupt)
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"handler") + held.pop()))
    with handler_of(signal.SIGALRM, handle):
        ask(asker)
    assert answers == [b"handler"]


def test_socket_closed_before_a_caller_waits(asker: Connection) -> None:
    """A caller that comes late to a socket that is no more does not touch what has its number now."""
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
    """A signal handler forks during a phase, and the child goes on in it: the reply is the parent's."""
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
    """The thread of a caller may have to wait for the interpreter right after its recv, for longer than a second.

    What it received is half of the stream: the reader waits for it and does not go on without it.
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
        lambda conn, reply: conn.send(responder.message(reply, b"lone") + b"PING\r\n")  # not for the caller alone
    )
    asking = InThread(ask, asker)
    assert held_up.wait(5)
    link_of(asker).direct.recall()
    assert asking.error() is None
    eventually(lambda: responder.pongs == 1)
    assert asker.stats.reconnects == 0
