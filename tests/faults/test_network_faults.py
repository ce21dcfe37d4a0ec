"""A network that cuts, resets, swallows and delays connections."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest

from jetstream_sync import JetStream, connect
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    NatsError,
    NoRespondersError,
    OutboundBufferLimitError,
    StaleConnectionError,
    SubscriptionClosedError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.net.outbox import Outbox
from jetstream_sync.net.transport import PlainTransport
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.peers import QUICK, CountingListener, drop
from tests.support.watchdog import InThread, under_watchdog

# --- cut and reset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_broken_connection_comes_back_by_itself(proxy: FaultProxy, how: str) -> None:
    """After a FIN or a RST the client reconnects, and subscriptions and callbacks go on."""
    errors: list[Exception] = []
    with connect(proxy.url, error_cb=errors.append, **QUICK) as nc:
        sub = nc.subscribe("b")
        handled: list[bytes] = []
        nc.subscribe("b", cb=lambda msg: handled.append(msg.data))
        for turn in range(5):
            nc.flush()
            getattr(proxy, how)()
            eventually(lambda turn=turn: nc.stats.reconnects == turn + 1)
            nc.publish("b", b"%d" % turn)
            assert sub.next_msg(timeout=5).data == b"%d" % turn
        eventually(lambda: len(handled) == 5)
        assert len(errors) == 5
        assert all(isinstance(error, ConnectionLostError) for error in errors)


@pytest.mark.usefixtures("eager_switching")
def test_pings_and_flushes_stay_matched_over_reconnects(proxy: FaultProxy) -> None:
    """Flushes that race with the loss of the connection never take the PONG of a later flush."""
    stop = threading.Event()
    try:
        with connect(proxy.url, ping_interval=0.005, max_outstanding_pings=1000, **QUICK) as nc:

            def flush_on() -> int:
                done = 0
                while not stop.is_set():
                    try:
                        nc.flush(5)
                        done += 1
                    except ConnectionLostError:
                        pass
                return done

            flushing = [InThread(flush_on) for _ in range(8)]
            for turn in range(25):
                proxy.cut()
                eventually(lambda turn=turn: nc.stats.reconnects > turn, timeout=10)
            stop.set()
            assert all(one.result(10) for one in flushing)
            for _ in range(10):
                nc.flush(3)
            eventually(lambda: not [slot for slot in link_of(nc).pings.waiters if slot is not None])
    finally:
        stop.set()


def test_flush_at_the_very_moment_of_the_loss_does_not_shift_later_ones(proxy: FaultProxy) -> None:
    """A flush() that begins while the reader handles the loss does not take the PONG of a later one."""
    with connect(proxy.url, **QUICK) as nc:
        detach = link_of(nc).outbox.detach
        flushing: list[InThread[None]] = []

        def detach_late() -> Any:
            flushing.append(InThread(nc.flush, 5))
            threading.Event().wait(0.1)  # long enough for the flush to reach its wait
            return detach()

        link_of(nc).outbox.detach = detach_late  # type: ignore[method-assign]
        proxy.cut()
        eventually(lambda: nc.stats.reconnects == 1)
        link_of(nc).outbox.detach = detach  # type: ignore[method-assign]
        for _ in range(3):
            nc.flush(2)
        assert isinstance(flushing[0].error(), (ConnectionLostError, type(None)))


def test_publishing_on_through_cuts_keeps_order_and_never_repeats(
    nats_server: LocalServer, proxy: FaultProxy
) -> None:
    """A thread publishes while the connection is cut: messages arrive in order and none twice."""
    with connect(nats_server.url) as observer, connect(proxy.url, **QUICK) as nc:
        seen = observer.subscribe("run")
        observer.flush()
        stop = threading.Event()

        def publish() -> int:
            for number in itertools.count():
                if stop.is_set():
                    return number
                nc.publish("run", b"%d" % number)
                time.sleep(0)
            return 0

        publishing = InThread(publish)
        for turn in range(8):
            eventually(lambda before=seen.pending_msgs: seen.pending_msgs > before + 20)
            proxy.cut() if turn % 2 else proxy.reset()
            eventually(lambda turn=turn: nc.stats.reconnects == turn + 1)
        stop.set()
        count = publishing.result()
        nc.flush()
        observer.flush()
        numbers = [int(seen.next_msg().data) for _ in range(seen.pending_msgs)]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == count - 1


@pytest.mark.usefixtures("eager_switching")
def test_requests_through_cuts_get_their_own_answer_or_a_typed_error(
    nats_server: LocalServer, proxy: FaultProxy
) -> None:
    """Many threads send requests while the connection is cut: each gets its own reply or ConnectionLostError."""
    stop = threading.Event()
    try:
        with connect(nats_server.url) as responder, connect(proxy.url, **QUICK) as nc:
            responder.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
            responder.flush()

            def ask(thread: int) -> int:
                answered = 0
                for number in itertools.count():
                    if stop.is_set():
                        return answered
                    try:
                        question = b"%d/%d" % (thread, number)
                        assert nc.request("echo", question, timeout=10).data == question
                        answered += 1
                    except ConnectionLostError:
                        pass
                return answered

            asking = [InThread(ask, thread) for thread in range(16)]
            for turn in range(10):
                proxy.cut()
                eventually(lambda turn=turn: nc.stats.reconnects == turn + 1, timeout=10)
                nc.flush()
            stop.set()
            assert all(one.result(20) for one in asking)
            assert len(link_of(nc).requests.pending) == 0
    finally:
        stop.set()


@pytest.mark.usefixtures("eager_switching")
def test_everything_at_once_through_cuts_ends_in_order(proxy: FaultProxy) -> None:
    """All calls in many threads, with cuts and a close() or drain(): only typed errors, and callbacks in order."""
    rng = random.Random(7)
    for _ in range(12):
        end_in_the_middle(proxy, rng)


def end_in_the_middle(proxy: FaultProxy, rng: random.Random) -> None:
    events: list[str] = []
    nc = connect(
        proxy.url,
        ping_interval=rng.choice([0.002, 60.0]),
        max_outstanding_pings=1000,
        error_cb=lambda _: None,
        disconnected_cb=lambda _: events.append("lost"),
        reconnected_cb=lambda _: events.append("back"),
        closed_cb=lambda _: events.append("closed"),
        **QUICK,
    )
    sub = nc.subscribe("all")
    nc.subscribe("all", cb=lambda msg: None)

    def repeat(call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except (ConnectionLostError, NoRespondersError, OutboundBufferLimitError):
                pass
            except (ConnectionClosedError, SubscriptionClosedError):
                return

    calls: list[Callable[[], object]] = [
        lambda: nc.publish("all", b"x" * 3000),
        lambda: nc.flush(10),
        lambda: nc.request("unanswered", timeout=10),
        lambda: nc.subscribe("more").unsubscribe(2),
        lambda: nc.subscribe("more", cb=lambda msg: None).unsubscribe(),
        lambda: sub.next_msg(10),
    ]
    threads = [InThread(repeat, call) for call in calls]
    for _ in range(rng.randint(0, 4)):
        rng.choice([proxy.cut, proxy.reset, nc.force_reconnect])()
        threading.Event().wait(rng.choice([0, 0.001, 0.01, 0.03]))
    ending = InThread(rng.choice([nc.close, nc.drain]))
    if rng.random() < 0.3:
        proxy.cut()
    ending.result(10)
    assert ending.seconds < 3
    for thread in threads:
        thread.result(10)
    eventually(lambda: events and events[-1] == "closed")
    assert " ".join(events) == " ".join(["lost", "back"] * events.count("back") + ["lost", "closed"])


@pytest.mark.parametrize("then", ["close", "attach"])
def test_sender_that_finds_the_socket_full_as_it_is_lost_closes_it(then: str) -> None:
    """The connection is lost after a sender found the socket full and before the writer takes over.

    The descriptor is closed nevertheless.
    """
    ours, theirs = socket.socketpair()
    next_ours, next_theirs = socket.socketpair()
    pipe = PlainTransport(ours)
    outbox = Outbox(0)
    outbox.attach(pipe, b"")

    def full_then_lost() -> bool:
        detached = outbox.detach()
        detached.abort()
        if then == "close":
            outbox.close()
            assert outbox.serve(0) is False  # the writer thread's last turn
        else:
            outbox.attach(PlainTransport(next_ours), b"")
        detached.close()
        return False

    pipe.flush_now = full_then_lost  # type: ignore[method-assign]
    outbox.publish(b"PUB x 0\r\n\r\n", 0)
    with theirs, next_ours, next_theirs:
        assert ours.fileno() == -1


# --- black holes and delay -------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["both", "to_server", "to_client"])
def test_black_hole_is_found_stale_by_ping(
    proxy: FaultProxy, direction: Literal["both", "to_server", "to_client"]
) -> None:
    """Pings without a PONG reveal a black hole in either direction; after healing everything works again."""
    errors: list[Exception] = []
    with connect(proxy.url, ping_interval=0.1, error_cb=errors.append, **QUICK) as nc:
        sub = nc.subscribe("hole")
        nc.flush()
        proxy.black_hole(direction)
        began = time.monotonic()
        eventually(lambda: not nc.is_connected)
        assert 0.15 < time.monotonic() - began < 2
        eventually(lambda: errors)  # the callback runs in another thread
        assert isinstance(errors[0], StaleConnectionError)
        proxy.heal()
        eventually(lambda: nc.is_connected)
        nc.publish("hole", b"out")
        assert sub.next_msg(timeout=5).data == b"out"


def test_black_hole_shorter_than_the_pings_changes_nothing(proxy: FaultProxy) -> None:
    """During a short silence nothing is lost and the session stays."""
    with connect(proxy.url, ping_interval=30) as nc:
        sub = nc.subscribe("short")
        nc.flush()
        proxy.black_hole()
        nc.publish("short", b"late")
        with pytest.raises(TimeoutError):
            sub.next_msg(timeout=0.2)
        proxy.heal()
        assert sub.next_msg(timeout=5).data == b"late"
        assert nc.stats.reconnects == 0


def test_close_in_a_black_hole_returns(proxy: FaultProxy) -> None:
    """close() does not wait for a network that swallows everything."""
    nc = connect(proxy.url)
    nc.subscribe("x", cb=lambda msg: None)
    nc.flush()
    proxy.black_hole()
    closing = InThread(nc.close)
    closing.result(5)
    assert closing.seconds < 3


def test_delay_slows_and_breaks_nothing(proxy: FaultProxy) -> None:
    """A slow network shows in rtt() and nowhere else."""
    with connect(proxy.url, ping_interval=0.2) as nc:
        sub = nc.subscribe("slow.net")
        proxy.delay(0.1)
        assert under_watchdog(nc.rtt) >= 0.1
        for number in range(20):
            nc.publish("slow.net", b"%d" % number)
        assert [int(sub.next_msg(timeout=5).data) for _ in range(20)] == list(range(20))
        assert nc.stats.reconnects == 0


# --- storms ------------------------------------------------------------------------------------------------


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def greet_and_drop(client: socket.socket) -> None:
    """Do the whole handshake and return, so that the listener closes the connection at once."""
    client.settimeout(2)
    client.sendall(b'INFO {"max_payload":1000,"headers":true}\r\n')
    received = b""
    while not received.endswith(b"PING\r\n"):
        data = client.recv(4096)
        if not data:
            return
        received += data
    client.sendall(b"PONG\r\n")


@pytest.mark.parametrize("treat", [drop, reset, greet_and_drop], ids=lambda treat: treat.__name__)
def test_accept_then_close_storm_backs_off(treat: Callable[[socket.socket], None]) -> None:
    """A server that accepts and closes: the waits between attempts grow, with jitter, up to the limit."""
    server = LocalServer(jetstream=False)
    server.start()
    port = server.port
    failures: list[float] = []
    nc = connect(
        server.url,
        reconnect_time_wait=0.04,
        reconnect_time_wait_max=0.4,
        reconnect_jitter=0.2,
        error_cb=lambda _: failures.append(time.monotonic()),
    )
    try:
        server.kill()
        storm = CountingListener(port, treat)
        eventually(lambda: len(storm.times) >= 1)
        threading.Event().wait(2.5)
        storm.close()
    finally:
        nc.close()
        server.close()
    gaps = [after - before for before, after in itertools.pairwise(storm.times)]
    # The wait doubles from 0.04 s to 0.33 s (0.4 s less the jitter): about 4 growing waits, then 3 per second.
    assert 5 <= len(storm.times) <= 15
    assert max(gaps) < 0.4 + 0.25
    # Attempts are refused until the listener is there: the waits grow from the first of those on.
    assert gaps[-2] > 2 * min(after - before for before, after in itertools.pairwise(failures[:4]))
    assert len({round(gap, 4) for gap in gaps[-3:]}) == 3


def test_reconnect_after_a_storm_is_quick_again(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """After a session that lasted the waits start over: the first attempt after the next loss comes at once."""
    options = {"reconnect_time_wait": 0.05, "reconnect_time_wait_max": 0.2, "connect_timeout": 1.0}
    with connect(proxy.url, error_cb=lambda _: None, **options) as nc:
        proxy.refuse("close")
        proxy.cut()
        eventually(lambda: nc.is_reconnecting)
        threading.Event().wait(0.5)
        proxy.heal()
        eventually(lambda: nc.is_connected)
        threading.Event().wait(0.3)
        began = time.monotonic()
        proxy.cut()
        eventually(lambda: nc.stats.reconnects == 2)
        assert time.monotonic() - began < 0.15


# --- the buffer ---------------------------------------------------------------------------------------------


def test_publishers_in_many_threads_while_disconnected_keep_their_order(
    nats_server: LocalServer, proxy: FaultProxy
) -> None:
    """Eight threads publish while the connection is lost and comes back: each thread's order is kept."""
    with connect(nats_server.url) as observer, connect(proxy.url, **QUICK) as nc:
        seen = observer.subscribe("many.*")
        observer.flush()
        proxy.refuse()
        proxy.cut()
        eventually(lambda: nc.is_reconnecting)

        def publish(thread: int) -> None:
            for number in range(100):
                nc.publish(f"many.{thread}", b"%d" % number)

        publishing = [InThread(publish, thread) for thread in range(8)]
        proxy.heal()
        for one in publishing:
            one.result()
        nc.flush()
        observer.flush()
        by_thread: dict[str, list[int]] = {}
        for _ in range(seen.pending_msgs):
            msg = seen.next_msg()
            by_thread.setdefault(msg.subject, []).append(int(msg.data))
        assert by_thread == {f"many.{thread}": list(range(100)) for thread in range(8)}


@pytest.mark.parametrize("pending_size", [0, -1])
def test_without_a_buffer_every_publish_is_refused_while_disconnected(
    proxy: FaultProxy, pending_size: int
) -> None:
    """With pending_size=0, or -1 as in nats-py, publish() and request() raise while disconnected."""
    with connect(proxy.url, pending_size=pending_size, **QUICK) as nc:
        proxy.refuse()
        proxy.cut()
        eventually(lambda: nc.is_reconnecting)
        with pytest.raises(OutboundBufferLimitError):
            nc.publish("x", b"")
        assert nc.pending_data_size == 0
        with pytest.raises(NatsError):
            nc.request("x", b"", timeout=1)
        proxy.heal()
        eventually(lambda: nc.is_connected)
        nc.publish("x", b"")
        nc.flush()


def test_pending_data_size_counts_what_waits(proxy: FaultProxy) -> None:
    """What is published while disconnected waits, frame by frame; connected again, nothing does."""
    with connect(proxy.url, **QUICK) as nc:
        assert nc.pending_data_size == 0
        proxy.refuse()
        proxy.cut()
        eventually(lambda: nc.is_reconnecting)
        for _ in range(3):
            nc.publish("x", b"12345")
        assert nc.pending_data_size == 3 * len(b"PUB x 5\r\n12345\r\n")
        proxy.heal()
        eventually(lambda: nc.is_connected)
        nc.flush()
        assert nc.pending_data_size == 0


def test_consume_survives_a_reconnect_without_a_buffer(proxy: FaultProxy, js: JetStream) -> None:
    """pending_size=-1 concerns what the user publishes: a consume pulls again on the next session."""
    js.create_stream(name="NOBUFFER", subjects=["nobuffer"])
    js.create_consumer("NOBUFFER", durable_name="D")
    with connect(proxy.url, pending_size=-1, **QUICK) as nc:
        with nc.jetstream().get_consumer("NOBUFFER", "D").messages() as messages:
            for number in range(3):
                js.publish("nobuffer", b"%d" % number)
                msg = messages.next(timeout=10)
                assert int(msg.data) == number
                msg.ack_sync()
                proxy.refuse()
                proxy.cut()
                eventually(lambda: nc.is_reconnecting)
                proxy.heal()
                eventually(lambda: nc.is_connected)
    js.delete_stream("NOBUFFER")
