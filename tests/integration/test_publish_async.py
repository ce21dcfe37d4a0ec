"""publish_async(): the window, its futures, and how they end."""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future
from typing import Any

import pytest

from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    JetStream,
    NoStreamResponseError,
    PubAck,
    Stream,
    TimeoutError,
    TooManyStalledMsgsError,
    WrongLastSequenceError,
    connect,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually
from tests.support.forks import in_child, raised_by
from tests.support.platforms import needs_fork_hooks
from tests.support.threads import thread_names
from tests.support.watchdog import InThread

# --- futures -------------------------------------------------------------------------------------------


def test_future_has_the_ack(js: JetStream, stream: Stream) -> None:
    """It is a concurrent.futures.Future whose result is the PubAck."""
    future = js.publish_async("s.a", b"x", msg_id="1")
    assert isinstance(future, Future)
    ack = future.result(timeout=5)
    assert isinstance(ack, PubAck)
    assert (ack.stream, ack.seq, ack.duplicate) == ("S", 1, False)
    assert future.done()
    assert future.exception() is None
    assert not future.cancelled()
    assert not future.running()
    assert "returned PubAck" in repr(future)
    assert js.publish_async("s.a", b"x", msg_id="1").result(5).duplicate


def test_many_are_stored_in_order(js: JetStream, stream: Stream) -> None:
    """Sequences follow the order of the calls; nothing is pending afterwards."""
    futures = [js.publish_async(f"s.{number % 7}", b"%d" % number) for number in range(5000)]
    js.publish_async_wait(timeout=20)
    assert js.publish_async_pending == 0
    assert [future.result(0).seq for future in futures] == list(range(1, 5001))
    assert stream.get_info().state.messages == 5000
    assert stream.get_message(4321).data == b"4320"


def test_future_fails_as_publish_would_raise(js: JetStream, stream: Stream) -> None:
    """The stream's refusal is the future's exception; others are not touched."""
    good = js.publish_async("s.a", expected_last_seq=0)
    bad = js.publish_async("s.a", expected_last_seq=0)
    assert good.result(5).seq == 1
    assert isinstance(bad.exception(5), WrongLastSequenceError)
    with pytest.raises(WrongLastSequenceError):
        bad.result()
    assert "raised WrongLastSequenceError" in repr(bad)


def test_result_times_out_without_ending_the_publish(js: JetStream, mute: str) -> None:
    """When result(timeout) raises TimeoutError, the future stays pending."""
    future = js.publish_async(mute, timeout=30)
    started = time.monotonic()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0.1)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(timeout=0)
    assert time.monotonic() - started < 1
    assert not future.done()
    assert js.publish_async_pending == 1


def test_future_cannot_be_cancelled(js: JetStream, mute: str) -> None:
    """The message has been sent: cancel() returns False and changes nothing."""
    future = js.publish_async(mute, timeout=0.2)
    assert future.cancel() is False
    assert not future.cancelled()
    assert isinstance(future.exception(5), TimeoutError)
    assert future.cancel() is False


def test_failed_future_is_freed(js: JetStream, mute: str) -> None:
    """A future and its exception do not keep each other alive."""
    future = js.publish_async(mute, timeout=0.05)
    with pytest.raises(TimeoutError):
        future.result(5)
    gone = weakref.ref(future)
    gc.disable()
    try:
        del future
        eventually(lambda: gone() is None, timeout=2)
    finally:
        gc.enable()


def test_done_callbacks_run_on_a_thread_of_the_library(js: JetStream, stream: Stream) -> None:
    """Callbacks do not run on the reader thread: one may publish and wait for the ack."""
    names: list[str] = []
    seqs: list[int] = []
    done = threading.Event()

    def on_done(future: Future[PubAck]) -> None:
        names.append(threading.current_thread().name)
        seqs.append(future.result(0).seq)
        seqs.append(js.publish("s.b").seq)  # would deadlock on the reader thread
        done.set()

    js.publish_async("s.a").add_done_callback(on_done)
    assert done.wait(5)
    assert seqs == [1, 2]
    assert names in (["js-callbacks"], ["MainThread"])  # the latter if the ack was faster than the call


def test_done_callback_of_a_pending_future_runs_once_and_not_on_the_reader(
    nats_server: LocalServer, js: JetStream, stream: Stream
) -> None:
    """Added while the ack is held back, it runs on js-callbacks when the ack has come."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url) as nc:
        own = nc.jetstream()
        own.publish("s.a")
        proxy.black_hole("to_client")
        names: list[str] = []
        future = own.publish_async("s.a")
        future.add_done_callback(lambda _: names.append(threading.current_thread().name))
        assert not future.done()
        proxy.heal()
        assert future.result(5).seq == 2
        eventually(lambda: names == ["js-callbacks"])


def test_done_callback_added_late_runs_at_once(js: JetStream, stream: Stream) -> None:
    """A future that is done calls in the caller's own thread, as futures do."""
    future = js.publish_async("s.a")
    future.result(5)
    names: list[str] = []
    future.add_done_callback(lambda _: names.append(threading.current_thread().name))
    assert names == [threading.current_thread().name]


def test_done_callback_that_raises_is_logged(
    js: JetStream, mute: str, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Other callbacks still run, and publishing goes on."""
    ran = threading.Event()
    future = js.publish_async(mute, timeout=0.1)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: ran.set())
    with caplog.at_level(logging.ERROR):
        assert ran.wait(5)
    assert js.publish_async("s.a").result(5).seq == 1


def test_standard_wait_and_as_completed(js: JetStream, stream: Stream, mute: str) -> None:
    """The functions of concurrent.futures work with these futures, done and pending ones mixed."""
    futures: list[Future[PubAck]] = [js.publish_async("s.a") for _ in range(50)]
    slow = js.publish_async(mute, timeout=0.5)
    done, pending = concurrent.futures.wait([*futures, slow], timeout=5, return_when=FIRST_COMPLETED)
    assert done
    assert slow in pending
    done, pending = concurrent.futures.wait([*futures, slow], timeout=5, return_when=FIRST_EXCEPTION)
    assert slow in done
    done, pending = concurrent.futures.wait([*futures, slow], timeout=5)
    assert not pending
    finished = list(concurrent.futures.as_completed([*futures, slow], timeout=5))
    assert len(finished) == 51
    assert sorted(f.result().seq for f in finished if f is not slow) == list(range(1, 51))
    assert isinstance(slow.exception(), TimeoutError)


def test_as_completed_yields_while_acks_come(nats_server: LocalServer, js: JetStream, stream: Stream) -> None:
    """Waiters installed before the acks are woken by them."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url) as nc:
        own = nc.jetstream()
        own.publish("s.a")
        proxy.black_hole("to_client")
        futures = [own.publish_async("s.a") for _ in range(20)]
        collecting = InThread(lambda: [f.result().seq for f in concurrent.futures.as_completed(futures, 10)])
        eventually(lambda: all(future._waiters for future in futures))
        proxy.heal()
        assert sorted(collecting.result()) == list(range(2, 22))


# --- the window --------------------------------------------------------------------------------------------


def test_window_blocks_then_raises(nc: Connection, mute: str) -> None:
    """With publish_async_max_pending unanswered the next call waits its timeout and is not sent."""
    js = nc.jetstream(publish_async_max_pending=3)
    futures = [js.publish_async(mute, timeout=30) for _ in range(3)]
    assert js.publish_async_pending == 3
    before = nc.stats.out_msgs
    started = time.monotonic()
    with pytest.raises(TooManyStalledMsgsError, match="3 publishes are unanswered"):
        js.publish_async(mute, timeout=0.3)
    assert 0.3 <= time.monotonic() - started < 1
    assert nc.stats.out_msgs == before
    assert js.publish_async_pending == 3
    assert not any(future.done() for future in futures)


def test_window_of_a_paused_server_raises_and_recovers() -> None:
    """While the server stands still the window fills and callers raise; afterwards everything is stored."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream(publish_async_max_pending=100)
        stream = js.create_stream(name="S", subjects=["s"], storage="memory")
        js.publish("s")
        server.pause()
        futures = [js.publish_async("s", timeout=20) for _ in range(100)]
        with pytest.raises(TooManyStalledMsgsError):
            js.publish_async("s", timeout=0.2)
        waiting = InThread(js.publish_async, "s", timeout=20)
        eventually(lambda: len(js._async_publisher.window) == 1)
        server.resume()
        assert waiting.result(10).result(10).seq == 102
        assert [future.result(10).seq for future in futures] == list(range(2, 102))
        assert stream.get_info().state.messages == 102


def test_window_of_one_is_a_publish_at_a_time(nc: Connection, js: JetStream, stream: Stream) -> None:
    """The smallest window works, and never holds more."""
    own = nc.jetstream(publish_async_max_pending=1)
    for _ in range(200):
        future = own.publish_async("s.a")
        assert own.publish_async_pending <= 1
    assert future.result(5).seq == 200


def test_window_waiters_wake_when_an_overdue_publish_fails(nc: Connection, mute: str) -> None:
    """The place of a publish that timed out is given to the next caller."""
    js = nc.jetstream(publish_async_max_pending=1)
    first = js.publish_async(mute, timeout=0.3)
    started = time.monotonic()
    second = js.publish_async(mute, timeout=5)
    assert 0.2 <= time.monotonic() - started < 1.5
    assert isinstance(first.exception(0), TimeoutError)
    assert not second.done()


def test_window_waiters_wake_on_close(nats_server: LocalServer, mute: str) -> None:
    """Four callers wait for one place; close() wakes them all with ConnectionClosedError."""
    nc = connect(nats_server.url)
    js = nc.jetstream(publish_async_max_pending=1)
    pending = js.publish_async(mute, timeout=60)
    waiting = [InThread(js.publish_async, mute, timeout=60) for _ in range(4)]
    finishing = InThread(js.publish_async_wait)
    eventually(lambda: len(js._async_publisher.window) == 5)
    nc.close()
    for call in waiting:
        assert isinstance(call.error(2), ConnectionClosedError)
    finishing.result(2)
    assert isinstance(pending.exception(0), ConnectionClosedError)
    assert js.publish_async_pending == 0


def test_wait_raises_when_it_takes_too_long(js: JetStream, mute: str) -> None:
    """publish_async_wait(timeout) is bounded; without anything pending it returns at once."""
    js.publish_async_wait(timeout=0)
    js.publish_async(mute, timeout=0.4)
    with pytest.raises(TimeoutError, match="1 publishes are still unanswered"):
        js.publish_async_wait(timeout=0.1)
    js.publish_async_wait(timeout=5)


def test_lone_publish_leaves_at_once_and_gathered_ones_soon(js: JetStream, stream: Stream, nc: Connection) -> None:
    """No thread waits for the futures, and still every message is stored."""
    sub = nc.subscribe("s.>")
    nc.flush()
    for _ in range(10):
        js.publish_async("s.a")
    for _ in range(10):
        sub.next_msg(timeout=1)
    eventually(lambda: js.publish_async_pending == 0, timeout=1)


# --- how futures fail ----------------------------------------------------------------------------------------


def test_future_fails_at_its_own_timeout(js: JetStream, mute: str) -> None:
    """Each publish has a timeout of its own, the shorter ones first, whatever the order of the calls."""
    started = time.monotonic()
    slow, fast = js.publish_async(mute, timeout=0.6), js.publish_async(mute, timeout=0.2)
    assert isinstance(fast.exception(5), TimeoutError)
    assert 0.2 <= time.monotonic() - started < 0.55
    assert not slow.done()
    assert isinstance(slow.exception(5), TimeoutError)
    assert 0.6 <= time.monotonic() - started < 1.5


def test_no_stream_is_retried_then_told(nc: Connection, js: JetStream) -> None:
    """Without a stream: three attempts 250 ms apart, then NoStreamResponseError; without retries at once."""
    before = nc.stats.out_msgs
    started = time.monotonic()
    error = js.publish_async("unstored.here").exception(5)
    assert isinstance(error, NoStreamResponseError)
    assert error.subject == "unstored.here"
    assert 0.5 <= time.monotonic() - started < 1.5
    assert nc.stats.out_msgs - before == 3
    started = time.monotonic()
    assert isinstance(js.publish_async("unstored.here", retry_attempts=0).exception(5), NoStreamResponseError)
    assert time.monotonic() - started < 0.4


def test_retries_end_at_the_timeout(js: JetStream) -> None:
    """However many retries: one that would come after the timeout is not waited for."""
    started = time.monotonic()
    future = js.publish_async("unstored.here", timeout=0.55, retry_attempts=10_000, retry_wait=0.1)
    assert isinstance(future.exception(5), NoStreamResponseError)
    assert 0.4 <= time.monotonic() - started < 0.6


def test_stream_created_during_the_retries_takes_the_message(js: JetStream) -> None:
    """A stream that comes late is in time for a later try; publish_async_wait() waits for it."""
    futures = [js.publish_async("late.a", b"%d" % number) for number in range(20)]
    timer = threading.Timer(0.3, js.create_stream, kwargs={"name": "LATE", "subjects": ["late.>"]})
    timer.start()
    js.publish_async_wait(5)
    timer.join()
    assert sorted(future.result(0).seq for future in futures) == list(range(1, 21))


def test_futures_fail_when_the_connection_is_closed(nats_server: LocalServer, mute: str) -> None:
    """close() fails what is unanswered, callbacks included, and later calls raise."""
    nc = connect(nats_server.url)
    js = nc.jetstream()
    futures = [js.publish_async(mute, timeout=60, msg_id=str(number)) for number in range(10)]
    failed: list[Future[PubAck]] = []
    for future in futures:
        future.add_done_callback(failed.append)
    nc.close()
    assert all(isinstance(future.exception(0), ConnectionClosedError) for future in futures)
    eventually(lambda: failed == futures)
    with pytest.raises(ConnectionClosedError):
        js.publish_async(mute)


def test_futures_fail_when_the_connection_is_gone_for_good(mute: str) -> None:
    """Without reconnect a lost server ends every future, whether or not it has an id."""
    with LocalServer() as server:
        nc = connect(server.url, allow_reconnect=False)
        nc.subscribe("quiet")
        js = nc.jetstream()
        futures = [js.publish_async("quiet", timeout=60), js.publish_async("quiet", timeout=60, msg_id="id")]
        server.kill()
        assert isinstance(futures[0].exception(5), ConnectionLostError)
        assert isinstance(futures[1].exception(5), ConnectionClosedError)
        nc.close()


def test_reconnect_sends_those_with_an_id_again_and_fails_the_others(
    nats_server: LocalServer, js: JetStream, stream: Stream
) -> None:
    """The acks are cut off: the message with id is acknowledged as a duplicate, the other's fate is unknown."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url, error_cb=lambda error: None) as nc:
        own = nc.jetstream()
        own.publish("s.a", b"first")
        proxy.black_hole("to_client")
        known = [own.publish_async("s.a", b"k", msg_id=f"id-{number}", timeout=20) for number in range(10)]
        unknown = [own.publish_async("s.a", b"u", timeout=20) for number in range(10)]
        eventually(lambda: stream.get_info().state.messages == 21)
        proxy.heal()
        proxy.cut()
        for future in unknown:
            with pytest.raises(ConnectionLostError, match="may be stored"):
                future.result(5)
        acks = [future.result(10) for future in known]
        assert [ack.seq for ack in acks] == list(range(2, 12))
        assert all(ack.duplicate for ack in acks)
        assert stream.get_info().state.messages == 21
        assert own.publish_async_pending == 0


def test_publish_while_disconnected_is_sent_after_the_reconnect() -> None:
    """A publish during an outage has not been sent yet: it is stored once, with and without an id."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"])
        js.publish_async("s").result(5)
        server.stop()
        eventually(lambda: not nc.is_connected)
        futures = [js.publish_async("s", timeout=20), js.publish_async("s", timeout=20, msg_id="id")]
        gave_up = js.publish_async("s", b"too late", timeout=0.1)
        assert isinstance(gave_up.exception(5), TimeoutError)
        server.start()
        assert [future.result(10).seq for future in futures] == [2, 3]
        assert stream.get_info().state.messages == 3


def test_two_contexts_on_one_connection_do_not_mix(nc: Connection, js: JetStream, stream: Stream) -> None:
    """Each context has a window and an inbox of its own."""
    other = nc.jetstream(publish_async_max_pending=10)
    futures = [(js if number % 2 else other).publish_async("s.a") for number in range(200)]
    assert [future.result(5).seq for future in futures] == list(range(1, 201))
    assert js.publish_async_pending == other.publish_async_pending == 0


def test_dropped_context_leaves_nothing_behind(nc: Connection, js: JetStream, stream: Stream, mute: str) -> None:
    """The thread and the inbox of a context that is dropped end, but not before its futures are done."""
    js.publish("s.a")
    link = link_of(nc)
    before = len(link.router), len(link.drain_steps)
    futures = [nc.jetstream().publish_async("s.a", timeout=2) for _ in range(30)]
    futures.append(nc.jetstream().publish_async(mute, timeout=0.5))
    assert sorted(future.result(5).seq for future in futures[:-1]) == list(range(2, 32))
    assert isinstance(futures[-1].exception(5), TimeoutError)
    eventually(lambda: (len(link.router), len(link.drain_steps)) == before, timeout=5)
    eventually(lambda: not thread_names("js-publisher"))
    assert js.publish_async("s.a").result(5).seq == 32


def test_denied_inbox_fails_publishes_and_says_why() -> None:
    """A user who may not receive on the inbox learns it: from the futures, then from the calls."""
    user = '{ user: u, password: p, permissions: { subscribe: { deny: "_INBOX.>" } } }'
    with LocalServer(config=f"authorization {{ users: [ {user} ] }}") as server:
        with connect(server.url, user="u", password="p", error_cb=lambda error: None) as nc:
            js = nc.jetstream()
            started = time.monotonic()
            error: Any = js.publish_async("s", timeout=10).exception(5)
            assert time.monotonic() - started < 1
            assert type(error).__name__ == "PermissionsError"
            with pytest.raises(type(error)):
                js.publish_async("s")


@needs_fork_hooks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12+, in a process with threads
def test_future_in_a_forked_child_raises(js: JetStream, stream: Stream, mute: str) -> None:
    """A child has neither the connection nor its answers: waiting there raises ForkError and sends nothing."""
    future = js.publish_async(mute, timeout=30)
    js.publish_async("s.a")  # gathers: the child must not send it
    calls: list[Callable[[], object]] = [future.result, js.publish_async_wait, lambda: js.publish_async("s.a")]
    assert in_child(lambda: [raised_by(call) for call in calls]) == ["ForkError"] * 3
    assert js.publish_async("s.a").result(5).seq == 2


def test_drain_waits_for_the_acks_of_publishes(nats_server: LocalServer, js: JetStream) -> None:
    """Leaving the connection's block leaves no publish unanswered."""
    js.create_stream(name="DRAINED", subjects=["drained"])
    with connect(nats_server.url) as nc:
        context = nc.jetstream()
        futures = [context.publish_async("drained", b"%d" % number) for number in range(500)]
    assert [future.result(0).seq for future in futures] == list(range(1, 501))
