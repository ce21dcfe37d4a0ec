"""Exceptions of signal handlers: SIGINT, SIGTERM and SIGALRM in every blocking call, and storms of them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import jetstream_sync
from jetstream_sync import Connection, Subscription
from jetstream_sync.errors import TimeoutError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.signals import Interrupted
from tests.support.storm import DOUBLES, Storm, Verifier, publish_under_storm, request_under_storm

# The signal comes this long after the call began, when it is blocked.
SIGNAL_AFTER = 0.15
RAISED_WITHIN = 1.0


@pytest.fixture
def server(nats_server: LocalServer) -> Iterator[LocalServer]:
    """The server of the module, resumed after a test that paused it."""
    yield nats_server
    nats_server.resume()


def is_waiting(thread: int) -> bool:
    """Whether a thread is blocked: the innermost function waits for a lock, a socket or the clock."""
    frame = sys._current_frames()[thread]
    return frame.f_code.co_name in ("acquire", "wait", "sleep", "join", "_wait_for_tstate_lock", "wait_writable")


@contextmanager
def signal_soon(number: signal.Signals) -> Iterator[list[BaseException]]:
    """Have a handler raise in the block shortly; check that the exception leaves the block within a second."""

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt if number is signal.SIGINT else Interrupted

    def send_it() -> None:
        # On a slow machine the call may not be blocked yet: the signal is to find it waiting.
        eventually(lambda: is_waiting(main), message="the main thread waits")
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    main = threading.get_ident()
    sent: list[float] = []
    before = signal.signal(number, raise_it)
    sender = threading.Timer(SIGNAL_AFTER, send_it)
    try:
        raised: list[BaseException] = []
        sender.start()
        with pytest.raises((KeyboardInterrupt, Interrupted)) as caught:
            yield raised
        raised.append(caught.value)
        assert time.monotonic() - sent[0] < RAISED_WITHIN
    finally:
        sender.join()
        signal.signal(number, before)


def assert_usable(nc: Connection) -> None:
    """Messages and replies arrive, and the connection has not reconnected."""
    with nc.subscribe("usable.*") as sub:
        nc.publish("usable.1", b"one")
        assert sub.next_msg(timeout=5).data == b"one"
    nc.flush(5)
    with nc.subscribe("usable.ask", cb=lambda msg: msg.respond(msg.data)):
        assert nc.request("usable.ask", b"two", timeout=5).data == b"two"
    assert nc.stats.reconnects == 0
    assert nc.last_error is None


def publish_until_blocked(nc: Connection) -> None:
    payload = bytes(256 * 1024)
    while True:
        nc.publish("blocked", payload)


def wait_in_next_msg(nc: Connection) -> None:
    nc.subscribe("silent").next_msg(timeout=30)


def wait_in_iteration(nc: Connection) -> None:
    for _ in nc.subscribe("silent"):
        pass


def wait_in_request(nc: Connection) -> None:
    with nc.subscribe("unanswered"):
        nc.request("unanswered", timeout=30)


INTERRUPTIBLE: dict[str, tuple[bool, Callable[[Connection], object]]] = {
    # name: whether the server is stopped meanwhile, what to do
    "next_msg": (False, wait_in_next_msg),
    "iteration": (False, wait_in_iteration),
    "request": (False, wait_in_request),
    "flush": (True, lambda nc: nc.flush(30)),
    "rtt": (True, lambda nc: nc.rtt(30)),
    "publish": (True, publish_until_blocked),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", INTERRUPTIBLE)
def test_blocking_call_is_interrupted_by_signal(call: str, number: signal.Signals, server: LocalServer) -> None:
    """An exception of a signal handler ends a blocking call within a second; the connection goes on."""
    stopped, block = INTERRUPTIBLE[call]
    nc = jetstream_sync.connect(server.url)
    if stopped:
        server.pause()
    with signal_soon(number):
        block(nc)
    server.resume()
    assert_usable(nc)
    nc.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_connect_is_interrupted_by_signal(number: signal.Signals, server: LocalServer) -> None:
    """A signal ends connect() to a stopped server within a second, and the socket is closed."""
    server.pause()
    descriptors = len(os.listdir("/proc/self/fd"))
    with signal_soon(number):
        jetstream_sync.connect(server.url, connect_timeout=30)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("end", [Connection.close, Connection.drain])
def test_close_and_drain_are_interrupted_by_signal(end: Callable[[Connection], None], server: LocalServer) -> None:
    """A signal ends close() or drain() at a stopped server at once; the connection is closed nevertheless."""
    nc = jetstream_sync.connect(server.url)
    taker = threading.Thread(target=swallow, args=(nc.subscribe("silent"),), daemon=True)
    taker.start()
    server.pause()
    with signal_soon(signal.SIGINT):
        end(nc)
    assert nc.is_closed
    taker.join(3)
    assert not taker.is_alive()
    nc.close()
    server.resume()


def swallow(sub: Subscription) -> None:
    for _ in sub:
        pass


@pytest.mark.parametrize("leave", ["unsubscribe", "drain"])
def test_interrupted_end_of_subscription_can_be_repeated(leave: str, server: LocalServer) -> None:
    """A signal interrupts unsubscribe() or drain() of a subscription: a second call ends it."""
    nc = jetstream_sync.connect(server.url)
    release = threading.Event()
    sub = nc.subscribe("slow", cb=lambda _: release.wait(10))
    nc.publish("slow")
    eventually(lambda: sub.delivered == 1)
    with signal_soon(signal.SIGALRM):
        getattr(sub, leave)()
    release.set()
    sub.unsubscribe()
    nc.flush()
    assert_usable(nc)
    nc.close()


# --- storms ---------------------------------------------------------------------------------------


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def stormy(nats_server: LocalServer, errors: list[Exception]) -> Iterator[Connection]:
    """A connection with a small send buffer, so that sends are partial. `errors` gets its errors."""
    nc = jetstream_sync.connect(nats_server.url, error_cb=errors.append)
    link_of(nc).session.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    yield nc
    nc.close()


def assert_unharmed(nc: Connection, errors: list[Exception]) -> None:
    assert_usable(nc)
    assert errors == []


def test_publish_under_storm_of_signals(
    nats_server: LocalServer, stormy: Connection, errors: list[Exception]
) -> None:
    """Thousands of exceptions in publish() break no frame and cost no reconnect; what returned is delivered."""
    verifier = Verifier(nats_server.url)
    publish_under_storm(stormy, verifier)
    assert_unharmed(stormy, errors)
    verifier.nc.close()


def test_next_msg_under_storm_of_signals(stormy: Connection, errors: list[Exception]) -> None:
    """After thousands of interrupted next_msg() calls, each further message wakes the waiting thread."""
    sub = stormy.subscribe("ticks")
    stop = threading.Event()
    ticker = threading.Thread(target=tick, args=(stormy, stop), daemon=True)
    ticker.start()
    with Storm(seed=2) as storm:
        while storm.raised < 2000:
            storm.interrupt(lambda: sub.next_msg(timeout=5))
    stop.set()
    ticker.join(5)
    drain_mailbox(stormy, sub)
    for number in range(200):
        # next_msg() waits before the message is sent: a waiter left by an interrupted call would take the wake-up.
        late = threading.Timer(0.001, stormy.publish, ("ticks", b"%d" % number))
        late.start()
        assert sub.next_msg(timeout=5).data == b"%d" % number
        late.join()
    sub.unsubscribe()
    assert_unharmed(stormy, errors)


def tick(nc: Connection, stop: threading.Event) -> None:
    while not stop.wait(0.0003):
        nc.publish("ticks", b"tick")


def drain_mailbox(nc: Connection, sub: Subscription) -> None:
    nc.flush()
    while sub.pending_msgs:
        sub.next_msg()
    with pytest.raises(TimeoutError):
        sub.next_msg(timeout=0.1)


@pytest.mark.parametrize("doubles", [0, DOUBLES])
def test_request_under_storm_of_signals(
    doubles: float, nats_server: LocalServer, stormy: Connection, errors: list[Exception]
) -> None:
    """Interrupted requests leave nothing behind, and never receive the reply to another one."""
    with jetstream_sync.connect(nats_server.url) as responder:
        request_under_storm(stormy, responder, Storm(seed=3, longest=0.002, doubles=doubles), 800)
        # A second signal may interrupt the clean-up after the first one, which leaves one pending slot.
        assert len(link_of(stormy).requests.pending) <= 40 * doubles
        assert_unharmed(stormy, errors)


def test_flush_under_storm_of_signals(stormy: Connection, errors: list[Exception]) -> None:
    """Interrupted flushes do not shift the order of PONGs: each later flush gets its own."""
    with Storm(seed=4) as storm:
        while storm.raised < 2000:
            storm.interrupt(lambda: stormy.flush(5))
    stormy.flush(5)
    eventually(lambda: not link_of(stormy).pings.waiters, 5, "no PONG is owed")
    assert_unharmed(stormy, errors)


def test_subscribe_under_storm_of_signals(
    nats_server: LocalServer, stormy: Connection, errors: list[Exception]
) -> None:
    """An interrupted subscribe() or unsubscribe() leaves no interest on the server."""
    held: list[Subscription] = []

    def come_and_go() -> None:
        held.append(stormy.subscribe("fleeting"))
        held[-1].unsubscribe()

    with Storm(seed=5, doubles=0) as storm:  # a second signal may interrupt the clean-up after the first one
        while storm.raised < 1500:
            storm.interrupt(come_and_go)
    for sub in held:
        sub.unsubscribe()
    stormy.flush(5)
    assert link_of(stormy).router.receivers == {}
    connections = nats_server.monitor(f"/connz?cid={stormy.client_id}&subs=1")["connections"]
    assert connections[0]["subscriptions"] == 0
    assert_unharmed(stormy, errors)


def test_interrupt_carries_no_other_error(stormy: Connection) -> None:
    """An interrupted call raises the exception of the handler itself, without another one as its context."""
    with signal_soon(signal.SIGALRM) as caught:
        stormy.subscribe("silent").next_msg(timeout=5)
    assert caught[0].__context__ is None
