"""Outbox over a socket pair with tiny buffers: frames stay whole and in order, also when the transport fails."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from jetstream_sync._threads import join_quietly, spawn
from jetstream_sync.errors import ConnectionClosedError, OutboundBufferLimitError, TimeoutError
from jetstream_sync.net.outbox import COALESCE_BYTES, HIGH_WATER, Outbox
from jetstream_sync.net.transport import PlainTransport
from tests.support.eventually import eventually
from tests.support.pipes import Pipe
from tests.support.signals import Interrupted

pytestmark = pytest.mark.usefixtures("eager_switching")


class CountingTransport(PlainTransport):
    """Counts its closes, and records every use after the first one."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.closes = 0
        self.misuse: list[str] = []

    def flush_now(self) -> bool:
        if self.closes:
            self.misuse.append("flush_now")
        return super().flush_now()

    def wait_writable(self, timeout: float) -> bool:
        if self.closes:
            self.misuse.append("wait_writable")
        return super().wait_writable(timeout)

    def close(self) -> None:
        self.closes += 1
        super().close()


class InterruptedTransport(PlainTransport):
    """A signal handler raises in the first flush_now()."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._first = True

    def flush_now(self) -> bool:
        if self._first:
            self._first = False
            raise Interrupted
        return super().flush_now()


def pipe_of(kind: type[CountingTransport] = CountingTransport) -> Pipe:
    """A pipe with tiny buffers."""
    return Pipe(kind, size=2048)


def serve(outbox: Outbox) -> None:
    while outbox.serve(0.2):
        pass


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    """An outbox with its writer thread."""
    box = Outbox(pending_size=1 << 26)
    writer = spawn("writer", serve, box)
    yield box
    drop(box)
    box.close()
    join_quietly(writer, 5)
    assert not writer.is_alive()


def drop(outbox: Outbox) -> None:
    abandoned = outbox.detach()
    abandoned.abort()
    abandoned.close()


def frame(who: int, number: int, size: int) -> bytes:
    return b"<%d %d %b>" % (who, number, b"x" * size)


def frames_in(data: bytes) -> list[tuple[int, int]]:
    """(who, number) of every frame. Fails if `data` contains anything else."""
    assert data == b"" or (data[:1] == b"<" and data[-1:] == b">")
    result = []
    for part in data[1:-1].split(b"><") if data else []:
        who, number, filling = part.split(b" ")
        assert filling.strip(b"x") == b""
        result.append((int(who), int(number)))
    return result


def publish_many(outbox: Outbox, who: int, count: int) -> None:
    rng = random.Random(who)
    for number in range(count):
        size = rng.choice((0, 10, 300, 5000))
        outbox.publish(frame(who, number, size), size, coalesce=rng.random() < 0.3)
        if outbox.congested:
            outbox.wait_for_room(10)


def start_publishers(outbox: Outbox, threads: int, count: int) -> list[threading.Thread]:
    started = [threading.Thread(target=publish_many, args=(outbox, n, count), daemon=True) for n in range(threads)]
    for thread in started:
        thread.start()
    return started


@pytest.mark.parametrize("pause", [0.0, 0.001])
def test_frames_are_whole_and_in_order(outbox: Outbox, pause: float) -> None:
    """Frames of many threads through a tiny socket: none broken, none lost, each thread's order kept."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    reader = pipe.start_reading(pause)
    for thread in start_publishers(outbox, 6, 250):
        thread.join(30)
        assert not thread.is_alive()
    outbox.flush()
    eventually(lambda: outbox.idle, 10, "everything sent")
    drop(outbox)
    reader.join(10)
    pipe.peer.close()
    got = frames_in(bytes(pipe.received))
    for who in range(6):
        assert [number for other, number in got if other == who] == list(range(250))
    assert pipe.transport.closes == 1
    assert outbox.out_msgs == 1500


def test_detach_and_attach_in_the_middle(outbox: Outbox) -> None:
    """Transports are replaced while threads publish: no frame twice, order kept, every descriptor closed."""
    descriptors = len(os.listdir("/proc/self/fd"))
    pipes: list[Pipe] = []
    readers: list[threading.Thread] = []
    publishers: list[threading.Thread] = []
    rng = random.Random(5)
    while not publishers or any(thread.is_alive() for thread in publishers):
        pipes.append(pipe_of())
        readers.append(pipes[-1].start_reading())
        outbox.attach(pipes[-1].transport, b"")
        outbox.flush()
        publishers = publishers or start_publishers(outbox, 4, 400)
        time.sleep(rng.random() * 0.01)
        drop(outbox)
    eventually(lambda: all(pipe.transport.closes for pipe in pipes), 10, "all closed")
    for reader, pipe in zip(readers, pipes, strict=True):
        reader.join(5)
        pipe.peer.close()
    assert [pipe.transport.misuse for pipe in pipes if pipe.transport.misuse] == []
    assert all(pipe.transport.sock.fileno() == -1 for pipe in pipes)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    # The last frame on a transport may be cut off; the whole frames come once and in order.
    whole = [frames_in(bytes(pipe.received[: pipe.received.rfind(b">") + 1])) for pipe in pipes]
    for who in range(4):
        numbers = [number for frames in whole for other, number in frames if other == who]
        assert numbers == sorted(set(numbers))


def test_only_kept_frames_survive_a_disconnect(outbox: Outbox) -> None:
    """Published messages wait for the next session; session-only frames (commands, requests) are discarded."""
    outbox.publish(b"<kept 1>", 1)
    outbox.publish(b"<request>", 1, keep=False)
    outbox.control(b"<dropped: there is no connection>")
    pipe = pipe_of()
    withdrawn = b"<withdrawn>"
    outbox.publish(withdrawn, 1, keep=False)
    assert outbox.withdraw(withdrawn)
    assert not outbox.withdraw(withdrawn)
    outbox.attach(pipe.transport, b"<first>")
    outbox.flush()
    assert pipe.peer.recv(1000) == b"<first><kept 1><request>"
    outbox.control(b"<command>")
    drop(outbox)
    outbox.publish(b"<kept 2>", 1)
    again = pipe_of()
    outbox.attach(again.transport, b"")
    outbox.flush()
    assert again.peer.recv(1000) == b"<kept 2>"
    pipe.peer.close()
    again.peer.close()


def test_frames_behind_a_stuck_socket_survive_its_loss(outbox: Outbox) -> None:
    """Frames queued behind a full socket are sent in the next session, except session-only ones."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    outbox.publish(b"<" + b"x" * 100_000 + b">", 1)  # the writer thread is stuck in this one
    outbox.publish(b"<behind>", 1)
    outbox.publish(b"<request>", 1, keep=False)
    drop(outbox)
    again = pipe_of()
    outbox.attach(again.transport, b"")
    outbox.flush()
    assert again.peer.recv(1000) == b"<behind>"
    eventually(lambda: pipe.transport.closes == 1, 5, "closed")
    pipe.peer.close()
    again.peer.close()


@pytest.mark.parametrize("how", ["detach", "close"])
def test_wait_for_room_ends_with_the_connection(outbox: Outbox, how: str) -> None:
    """detach() and close() wake every thread that waits for room; after close() they get ConnectionClosedError."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    while not outbox.congested:
        outbox.publish(bytes(100_000), 1)
    with pytest.raises(TimeoutError):
        outbox.wait_for_room(0.02)
    told: list[str] = []

    def wait() -> None:
        try:
            outbox.wait_for_room(20)
            told.append("detach")
        except ConnectionClosedError:
            told.append("close")

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    eventually(lambda: len(outbox._room) == 5)
    if how == "detach":
        drop(outbox)
    else:
        outbox.close()
    for waiter in waiters:
        waiter.join(2)
    assert told == [how] * 5
    drop(outbox)
    pipe.peer.close()


def test_wait_for_room_ends_when_the_peer_reads(outbox: Outbox) -> None:
    """wait_for_room() returns as soon as the peer reads."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    while not outbox.congested:
        outbox.publish(bytes(HIGH_WATER // 2), 1)
    drain = threading.Thread(target=lambda: [pipe.peer.recv(1 << 20) for _ in range(5000)], daemon=True)
    drain.start()
    outbox.wait_for_room(10)
    drop(outbox)
    drain.join(5)
    pipe.peer.close()


def test_coalesced_frames_leave_soon(outbox: Outbox) -> None:
    """A coalesced frame is sent after a moment, and at once when enough bytes are queued."""
    pipe = pipe_of()
    pipe.peer.settimeout(2)
    outbox.attach(pipe.transport, b"")
    for number in range(50):
        outbox.publish(b"<%02d>" % number, 1, coalesce=True)
        assert pipe.peer.recv(100) == b"<%02d>" % number
    reader = pipe.start_reading()
    sent = 0
    while sent < COALESCE_BYTES:
        outbox.publish(b"x" * 1000, 1, coalesce=True)
        sent += 1000
    eventually(lambda: len(pipe.received) == sent)
    drop(outbox)
    reader.join(5)
    pipe.peer.close()


def test_limits_while_disconnected() -> None:
    """Without a session frames are queued up to the limit and then refused; after close() all are refused."""
    box = Outbox(pending_size=100)
    box.publish(b"x" * 60, 1)
    with pytest.raises(OutboundBufferLimitError) as caught:
        box.publish(b"x" * 60, 1)
    assert (caught.value.pending, caught.value.limit) == (60, 100)
    box.publish(b"x" * 40, 1)
    box.close()
    with pytest.raises(ConnectionClosedError):
        box.publish(b"x", 1)


def test_broken_pipe_is_left_to_the_reader(outbox: Outbox) -> None:
    """A send that fails raises nothing in the publisher; its transport is closed once, by detach()."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    pipe.peer.close()
    for _ in range(3):
        outbox.publish(b"lost", 1)
    assert pipe.transport.closes == 0
    drop(outbox)
    eventually(lambda: pipe.transport.closes == 1)


def test_frames_published_behind_a_broken_pipe_wait_for_the_next_connection(outbox: Outbox) -> None:
    """After a failed send later frames are kept for the next session, also before the reader notices the loss."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    pipe.peer.close()
    outbox.publish(b"<lost>", 1)
    outbox.publish(b"<kept 1>", 1)
    outbox.publish(b"<kept 2>", 1)
    drop(outbox)
    again = pipe_of()
    outbox.attach(again.transport, b"")
    outbox.flush()
    assert again.peer.recv(1000) == b"<kept 1><kept 2>"
    again.peer.close()


def test_timeout_of_a_signal_handler_reaches_the_publisher(outbox: Outbox) -> None:
    """A TimeoutError of a signal handler during a send is passed on, not taken for an error of the socket."""

    class AlarmingTransport(CountingTransport):
        def flush_now(self) -> bool:
            if self.outgoing == b"<frame>" and threading.current_thread() is threading.main_thread():
                raise TimeoutError("the user's own alarm")
            return super().flush_now()

    pipe = pipe_of(AlarmingTransport)
    outbox.attach(pipe.transport, b"")
    with pytest.raises(TimeoutError, match="own alarm"):
        outbox.publish(b"<frame>", 1)
    assert pipe.peer.recv(100) == b"<frame>"  # the writer thread sends what the publisher could not
    pipe.peer.close()


def test_detach_for_good_refuses_at_once() -> None:
    """After detach(for_good=True) publish() raises ConnectionClosedError, not the error of a full buffer."""
    box = Outbox(pending_size=100)
    box.detach(for_good=True)
    with pytest.raises(ConnectionClosedError):
        box.publish(b"x" * 200, 1)
    box.close()


def test_list_is_sent_once_by_many_threads(outbox: Outbox) -> None:
    """send_all() empties the list in the same step: what threads add and send at the same time leaves once."""
    pipe = pipe_of()
    outbox.attach(pipe.transport, b"")
    reader = pipe.start_reading()
    items: list[int] = []

    def encode(some: list[int]) -> list[bytes]:
        return [b"%d\n" % number for number in some]

    def add_and_send(first: int) -> None:
        for number in range(first, first + 200):
            items.append(number)
            outbox.send_all(items, encode)
            outbox.flush()

    threads = [threading.Thread(target=add_and_send, args=(1000 * n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    expected = sorted(1000 * n + number for n in range(4) for number in range(200))
    eventually(lambda: len(pipe.received.splitlines()) == 800)
    assert sorted(map(int, pipe.received.splitlines())) == expected
    assert items == []
    assert outbox.out_msgs == 800
    drop(outbox)
    reader.join(5)
    pipe.close()


def test_list_is_dropped_without_a_session() -> None:
    """What means something on one session only does not wait for the next one."""
    outbox, items = Outbox(1000), [1, 2]
    outbox.send_all(items, lambda some: [b"%d" % number for number in some])
    assert (items, outbox.idle, outbox.out_msgs) == ([], True, 0)


@pytest.mark.parametrize("call", ["publish", "flush"])
def test_writer_thread_goes_on_though_second_signal_interrupts_the_handing_over(call: str) -> None:
    """The frame leaves without a further call, which other threads may wait for; the writer thread slept."""
    box, pipe = Outbox(pending_size=1 << 20), Pipe(InterruptedTransport)
    box.attach(pipe.transport, b"")
    if call == "flush":
        box.control(b"PING\r\n")
    woken = threading.Event()

    def serve_once() -> None:
        box.serve(30)
        woken.set()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is Outbox._leave.__code__:
            raise Interrupted

    writer = spawn("writer", serve_once)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(Interrupted):
            box.publish(b"PING\r\n", 0) if call == "publish" else box.flush()
    finally:
        sys.settrace(before)
    assert woken.wait(5)
    pipe.peer.settimeout(5)
    assert pipe.peer.recv(100) == b"PING\r\n"
    join_quietly(writer, 5)
    assert box.idle
    drop(box)
    pipe.close()
