"""Callers that receive the answers to their own requests, and the reader that stands aside for them."""

from __future__ import annotations

import dis
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, ConnectionClosedError, ConnectionLostError, JetStream, PermissionsError
from jetstream_sync.net import connection, receiving, transport
from jetstream_sync.testing import LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.forks import in_child
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
        wait_aside(nc)
        yield nc
        nc.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the test does has the reader come back: the machine may be slow."""
    monkeypatch.setattr(receiving, "ASIDE_SECONDS", 60.0)
    monkeypatch.setattr(receiving, "OWN_SECONDS", 60.0)
    monkeypatch.setattr(receiving, "RECV_SECONDS", 60.0)


def ask(nc: Connection, payload: bytes = b"lone") -> None:
    assert nc.request("echo", payload, timeout=5).data == payload


def wait_aside(nc: Connection) -> None:
    def asked_and_aside() -> bool:
        nc._receiving.streak = receiving.FIRST_STREAK  # it grows when the reader is called back all the time
        ask(nc)
        # Not is_aside(): a reader that finds a waiting caller at the last moment comes back at once.
        assert nc._reader_thread is not None
        reader = sys._current_frames()[nc._reader_thread.ident or 0]
        return reader.f_code is receiving.Receiving._wait.__code__

    eventually(asked_and_aside, message="the reader stands aside")


def is_aside(nc: Connection) -> bool:
    return nc._receiving.aside


# --- the usual case -------------------------------------------------------------------------------------


def test_publishes_in_a_loop_are_answered_without_the_reader(nc: Connection, js: JetStream) -> None:
    """Nearly every ack of a lone loop is received by the caller; the statistics count it like any other."""
    js.create_stream(name="S", subjects=["s.>"])
    before, messages = nc._receiving.answers, nc.stats.in_msgs
    assert [js.publish("s.a", b"x").seq for _ in range(1000)] == list(range(1, 1001))
    assert nc._receiving.answers - before > 500
    assert nc.stats.in_msgs - messages == 1000
    assert nc.stats.in_bytes > 1000 * len(b'{"stream":"S", "seq":1}')


@pytest.mark.usefixtures("patient")
def test_reader_comes_back_for_a_subscription(asker: Connection, responder: Responder) -> None:
    """What a new subscription receives does not wait for the next request."""
    assert is_aside(asker)
    sub = asker.subscribe("news")
    eventually(lambda: not is_aside(asker))
    responder.specials.append(lambda conn, reply: conn.send(b"MSG news %b 2\r\nhi\r\n" % sub.sid))
    asker.publish("to.the.script", b"")
    assert sub.next_msg(timeout=5).data == b"hi"
    for _ in range(10):
        ask(asker)
    assert not is_aside(asker), "there is a subscription"


@pytest.mark.usefixtures("patient")
def test_reader_comes_back_for_a_flush(asker: Connection) -> None:
    """A PONG is no answer to a request."""
    flushing = InThread(asker.flush, 10)
    assert flushing.error() is None
    assert flushing.seconds < 5


def test_reader_comes_back_when_no_request_follows(asker: Connection, responder: Responder) -> None:
    """A PING of the server is answered soon, although no caller sends a request."""
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"lone") + b"PING\r\n"))
    ask(asker)
    eventually(lambda: responder.pongs == 1)
    wait_aside(asker)
    eventually(lambda: not is_aside(asker), message="the reader is back")


def test_streak_grows_while_standing_aside_does_not_pay(nc: Connection) -> None:
    """A loop of ten requests and a flush would have the reader go and come all the time; it soon stays."""
    with jetstream_sync.connect(nc.connected_url) as other:
        other.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        other.flush()
        for _ in range(60):
            for _ in range(10):
                ask(nc)
            nc.flush()
        assert nc._receiving.streak > 10
        assert nc._receiving.answers < 20
        for _ in range(2 * nc._receiving.streak + 50):
            ask(nc)
        nc.flush()
        eventually(lambda: nc._receiving.streak == receiving.FIRST_STREAK, message="a long loop pays")


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
            eventually(lambda: not is_aside(asker))
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
        eventually(lambda: not is_aside(asker))
        conn.send(message[cut:])

    responder.specials.append(answer)
    ask(asker)
    ask(asker)


@pytest.mark.usefixtures("patient")
def test_answer_of_many_bytes(asker: Connection, responder: Responder) -> None:
    """Longer than what a caller receives at a time."""
    for size in (transport.ANSWER_SIZE - 100, transport.ANSWER_SIZE, 500_000):
        wait_aside(asker)
        ask(asker, b"z" * size)


@pytest.mark.usefixtures("patient")
def test_answer_with_headers(asker: Connection, responder: Responder) -> None:
    """The caller takes a reply with headers like any other, and "no responders" as well."""
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    head = b"HMSG %b %b %d %d\r\n"
    responder.specials += [
        lambda conn, reply: conn.send(
            head % (reply, responder.sid, len(block), len(block) + 2) + block + b"hi\r\n"
        ),
        lambda conn, reply: conn.send(head % (reply, responder.sid, 16, 16) + b"NATS/1.0 503\r\n\r\n\r\n"),
    ]
    before = asker._receiving.answers
    message = asker.request("echo", b"", timeout=5)
    assert (message.data, message.headers) == (b"hi", {"A": "b"})
    with pytest.raises(jetstream_sync.NoRespondersError):
        asker.request("echo", b"", timeout=5)
    assert asker._receiving.answers == before + 2


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
        eventually(lambda: not is_aside(asker), message="the reader has taken over")
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
def test_force_reconnect_and_close_while_no_thread_receives(asker: Connection) -> None:
    """Both call the reader back."""
    asker.force_reconnect()
    eventually(lambda: asker.stats.reconnects == 1)
    wait_aside(asker)
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


def test_threads_that_come_and_go(nc: Connection, nats_server: LocalServer) -> None:
    """Loops of one thread, in which the reader stands aside, with others that want it back all the time."""
    interval = sys.getswitchinterval()
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
        sys.setswitchinterval(1e-6)
        try:
            disturbers = [InThread(disturb, number) for number in (1, 4, 9)]
            for number in range(3000):
                nc._receiving.streak = receiving.FIRST_STREAK  # it would grow, and the reader soon stay
                ask(nc, b"%d" % number)
        finally:
            stop.set()
            sys.setswitchinterval(interval)
        assert all(disturber.result() > 3 for disturber in disturbers)
    assert nc._receiving.answers > 100
    assert len(nc._mux or ()) == 0


# --- signals --------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What a signal handler of the user's raises."""


# Where CPython lets signal handlers run: behind a call, at a function's start, at a loop's jump back.
OPENINGS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
CODES: dict[CodeType, dict[int, str]] = {
    code.__code__: {at.offset: at.opname for at in dis.get_instructions(code)}
    for code in (
        connection.Connection._request_raw,
        receiving.Receiving.begin,
        receiving.Receiving.receive,
        receiving.Receiving.end,
        receiving.Receiving._wake,
        receiving.Aside.receive,
        receiving.Aside.take,
    )
}


def raise_interrupted() -> None:
    raise Interrupted


class InterruptAt:
    """Does what a signal handler might, at the n-th place where one could run within the code of a turn."""

    def __init__(self, place: int, handler: Callable[[], None] = raise_interrupted) -> None:
        self._left = place
        self._handler = handler
        self._thread = threading.get_ident()
        self._before: dict[CodeType, str] = {}
        self.done = False

    def call(self, work: Callable[[], None]) -> None:
        try:
            with self._observed():
                work()
        except Interrupted:
            pass

    def _step(self, code: CodeType, offset: int) -> None:
        """An instruction is about to be executed."""
        if self.done or threading.get_ident() != self._thread:
            return
        before = self._before.get(code, "")
        self._before[code] = CODES[code].get(offset, "")
        if before.startswith(OPENINGS):
            self._left -= 1
            if self._left < 0:
                self.done = True
                self._handler()

    @contextmanager
    def _observed(self) -> Iterator[None]:
        if sys.version_info < (3, 12):
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)
            return
        monitoring, tool = sys.monitoring, sys.monitoring.DEBUGGER_ID
        monitoring.use_tool_id(tool, "interrupts")
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, self._step)
        for code in CODES:
            monitoring.set_local_events(tool, code, monitoring.events.INSTRUCTION)
        try:
            yield
        finally:
            for code in CODES:
                monitoring.set_local_events(tool, code, 0)
            monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(tool)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in CODES:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            self._step(frame.f_code, frame.f_lasti)
        return self._trace


@pytest.mark.parametrize("behind", [b"", b"PING\r\n"])
def test_turn_interrupted_anywhere(
    behind: bytes, asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a signal handler raises in a turn, the connection goes on, and nothing that came is lost."""
    monkeypatch.setattr(receiving, "RECV_SECONDS", 60.0)  # the right to receive is not lost either
    place = pings = 0

    def answer(conn: PeerConnection, reply: bytes) -> None:
        nonlocal pings
        pings += len(behind) > 0
        conn.send(responder.message(reply, b"interrupted") + behind)

    while True:
        wait_aside(asker)
        turns = asker._receiving._turns
        interrupt = InterruptAt(place)
        responder.specials = [answer]
        interrupt.call(lambda: ask(asker, b"interrupted"))
        responder.specials = []
        if not interrupt.done and asker._receiving._turns == turns:
            continue  # the reader came back before the call: this was no turn
        assert len(asker._mux or ()) == 0
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
            wait_aside(nc)
            before = nc._receiving.answers
            interrupt = InterruptAt(place, lambda nc=nc: handler(nc))
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
            turns += nc._receiving.answers > before and not interrupt.done
    assert place > 20


@pytest.mark.usefixtures("patient")
def test_signal_handler_that_asks_during_a_turn(
    asker: Connection, responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader takes the turn away, so that the handler's request is answered, and then the interrupted one."""
    monkeypatch.setattr(receiving, "OWN_SECONDS", 0.3)
    main = threading.main_thread().ident
    held: list[bytes] = []
    answers: list[bytes] = []

    def hold_and_interrupt(_: PeerConnection, reply: bytes) -> None:
        held.append(responder.message(reply, b"lone"))
        waiting = receiving.Receiving.receive.__code__
        eventually(lambda: sys._current_frames()[main].f_code is waiting, message="the caller is in its turn")
        os.kill(os.getpid(), signal.SIGALRM)

    def handle(*_: object) -> None:
        answers.append(asker.request("echo", b"", timeout=5).data)

    responder.specials.append(hold_and_interrupt)
    responder.specials.append(lambda conn, reply: conn.send(responder.message(reply, b"handler") + held.pop()))
    with handler_of(signal.SIGALRM, handle):
        ask(asker)
    assert answers == [b"handler"]


def test_socket_closed_before_a_turn_waits(asker: Connection) -> None:
    """A caller that comes late to a socket that is no more does not touch what has its number now."""
    aside = eventually(lambda: asker._receiving.begin() or ask(asker))
    asker.close()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.send(b"not yours")
        assert asker._receiving.receive(aside, b"x", b"1", 0.01) is None
        assert mine.recv(100) == b"not yours"


@pytest.mark.usefixtures("patient")
def test_turn_is_not_inherited_by_a_forked_child(asker: Connection, responder: Responder) -> None:
    """A signal handler forks during a turn, and the child goes on in it: the answer is the parent's."""
    aside = asker._receiving.begin()
    assert aside is not None
    responder.specials.append(lambda conn, reply: conn.send(responder.message(b"answer", b"for the parent")))
    asker.publish("echo", b"", reply="anywhere")

    def receive() -> Any:
        return asker._receiving.receive(aside, b"answer", responder.sid, 5)

    assert in_child(lambda: repr(receive())) == "None"
    assert receive() == (b"answer", None, None, b"for the parent")
    asker._receiving.end(aside, answered=True)
    ask(asker)
