"""consume(callback): pulls, ends, callbacks that raise, several workers, auto_progress."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest

from jetstream_sync import Connection, JetStream, JetStreamMessage, connect
from jetstream_sync.errors import ConnectionClosedError, ConsumerDeletedError, MissedHeartbeatError, NatsError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.consuming import buffered, refill_of
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer, waiting_pulls
from tests.support.signals import handler_of, interrupted_after
from tests.support.watchdog import InThread


class Collector:
    """A callback that acks and keeps what it got."""

    def __init__(self, *, ack: bool = True) -> None:
        self.messages: list[JetStreamMessage] = []
        self._ack = ack

    def __call__(self, message: JetStreamMessage) -> None:
        self.messages.append(message)
        if self._ack:
            message.ack()

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages]

    def wait_for(self, count: int, timeout: float = 5.0) -> list[bytes]:
        eventually(lambda: len(self.messages) >= count, timeout, f"{count} messages")
        return self.data


# --- pulls --------------------------------------------------------------------------------------------


def test_consume_calls_back_in_order_with_one_inbox(js: JetStream, nc: Connection, observer: Observer) -> None:
    """All messages, once, in order, acked once; one reply inbox; the first pull has the defaults."""
    consumer = stream_and_consumer(js, 2000)
    collect = Collector()
    with consumer.consume(collect):
        assert collect.wait_for(2000) == [b"%d" % number for number in range(2000)]
    observer.settle(nc)
    assert len({pull.reply for pull in observer.pulls}) == 1
    assert observer.pulls[0].body == {
        "batch": 1,
        "expires": 30_000_000_000,
        "idle_heartbeat": 15_000_000_000,
    }
    assert len(observer.acked_once()) == 2000
    assert set(observer.acked_once().values()) == {1}


def test_consume_second_pull_comes_when_callbacks_reach_the_threshold(
    js: JetStream, nc: Connection, observer: Observer
) -> None:
    """What counts is that the callback is done: the second pull waits for the fifth callback of ten."""
    consumer = stream_and_consumer(js, 10)
    gate = threading.Semaphore(0)
    done = Collector()

    def callback(message: JetStreamMessage) -> None:
        gate.acquire()
        done(message)

    with consumer.consume(callback, max_messages=10) as context:
        for _ in range(4):
            gate.release()
        done.wait_for(4)
        observer.settle(nc)
        assert [pull.body["batch"] for pull in observer.pulls] == [10]
        gate.release()
        observer.wait_for_pulls(2)
        assert [pull.body["batch"] for pull in observer.pulls] == [10, 5]
        context.stop()
        for _ in range(10):
            gate.release()


def test_consume_with_a_buffer_of_one_is_never_stuck(js: JetStream) -> None:
    """max_messages=1 and an expiry of 1 s: messages and expired pulls in turn, and it still pulls."""
    consumer = stream_and_consumer(js, 100)
    collect = Collector()
    with consumer.consume(collect, max_messages=1, expires=1):
        collect.wait_for(100)
        threading.Event().wait(1.3)
        fill(js, 3, first=100)
        assert collect.wait_for(103) == [b"%d" % number for number in range(103)]


def test_consume_over_a_limit_warns_backs_off_and_recovers(
    js: JetStream, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """Without on_error the warnings go to the log; at most 5 pulls a second; it goes on when allowed."""
    consumer = stream_and_consumer(js, 1, max_batch=5)
    collect = Collector()
    with caplog.at_level(logging.WARNING, "jetstream_sync"):
        with consumer.consume(collect, max_messages=10):
            threading.Event().wait(1.2)
            times = [pull.at for pull in observer.pulls]
            assert 2 <= len(times) <= 8
            js.update_consumer("S", durable_name="C", max_batch=10)
            assert collect.wait_for(1, 3.0) == [b"0"]
    assert "Exceeded MaxRequestBatch of 5" in caplog.text


# --- callbacks that raise or take long ------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
def test_consume_callback_that_raises_is_reported_and_redelivered(js: JetStream, error: BaseException) -> None:
    """on_error gets what the callback raised, the message comes again, and the consume goes on."""
    consumer = stream_and_consumer(js, 3, ack_wait=0.5)
    got: list[tuple[bytes, int]] = []
    errors: list[BaseException] = []

    def callback(message: JetStreamMessage) -> None:
        delivered = message.metadata.num_delivered
        got.append((message.data, delivered))
        if message.data == b"1" and delivered == 1:
            raise error
        message.ack()

    with consumer.consume(callback, on_error=errors.append):
        eventually(lambda: (b"1", 2) in got)
    assert sorted(got) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]
    assert errors == [error]


def test_consume_on_error_that_raises_does_no_harm(js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    """An error callback's own error is logged."""
    consumer = stream_and_consumer(js, 2)
    collect = Collector(ack=True)

    def callback(message: JetStreamMessage) -> None:
        collect(message)
        raise ValueError("callback")

    def on_error(_: Exception) -> None:
        raise ValueError("on_error")

    with consumer.consume(callback, on_error=on_error):
        collect.wait_for(2)
        js.publish("s.x", b"more")
        collect.wait_for(3)
    eventually(lambda: "on_error raised ValueError" in caplog.text, message="logged")


def test_consume_slow_callback_is_no_missed_heartbeat(js: JetStream) -> None:
    """A callback of 3 s, three times the alarm's window, raises no alarm, and the consume goes on after it."""
    cases: dict[str, dict[str, Any]] = {
        "waiting": {"max_messages": 500},  # messages wait behind the callback
        "filled": {"max_messages": 2},  # the pull is filled: the server owes nothing
        "one": {"max_messages": 1},
        "expired": {"max_messages": 10, "expires": 1},  # a 408 waits unread
    }
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 2)
    errors: list[Exception] = []
    collectors: dict[str, Collector] = {}
    contexts = []
    for name, options in cases.items():
        collect = collectors[name] = Collector()

        def callback(message: JetStreamMessage, collect: Collector = collect) -> None:
            if not collect.messages:
                threading.Event().wait(3)
            collect(message)

        consumer = js.create_consumer("S", durable_name=name)
        options = {"expires": 2, "idle_heartbeat": 0.5, "on_error": errors.append, **options}
        contexts.append(consumer.consume(callback, **options))
    for collect in collectors.values():
        collect.wait_for(2, 6)
    js.publish("s.x", b"after")
    for collect in collectors.values():
        assert collect.wait_for(3) == [b"0", b"1", b"after"]
    for context in contexts:
        context.stop()
        assert context.wait(5)
    assert not [error for error in errors if isinstance(error, MissedHeartbeatError)]


def test_consume_auto_progress_keeps_long_work_from_being_redelivered(js: JetStream) -> None:
    """Callbacks of twice ack_wait are not delivered again, nor what waits behind them; without it they are."""
    consumer = stream_and_consumer(js, 3, ack_wait=0.4)
    counts: Counter[bytes] = Counter()

    def work(message: JetStreamMessage) -> None:
        counts[message.data] += 1
        threading.Event().wait(0.8)
        message.ack()

    with consumer.consume(work, max_messages=500, auto_progress=True):
        eventually(lambda: len(counts) == 3 and not consumer.get_info().num_ack_pending, 10.0)
        assert consumer.get_info().num_redelivered == 0
    assert set(counts.values()) == {1}
    fill(js, 1, first=9)
    with consumer.consume(work, max_messages=500):
        eventually(lambda: counts[b"9"] == 2, 5.0)


def test_consume_auto_progress_without_acks_sends_nothing(js: JetStream, observer: Observer) -> None:
    """With ack policy none there is nothing to prolong."""
    consumer = stream_and_consumer(js, 1, ack_policy="none")
    collect = Collector(ack=False)
    with consumer.consume(collect, auto_progress=True):
        collect.wait_for(1)
    assert observer.acks == []


# --- several workers -----------------------------------------------------------------------------------


def test_consume_with_workers_runs_callbacks_at_once_and_each_once(
    js: JetStream, nc: Connection, observer: Observer
) -> None:
    """Four callbacks run at the same time, each message once, and the buffer is never over-pulled."""
    consumer = stream_and_consumer(js, 400)
    together = threading.Barrier(4)
    lock = threading.Lock()
    got: list[bytes] = []
    names = set()

    def callback(message: JetStreamMessage) -> None:
        if message.data in (b"0", b"1", b"2", b"3"):
            together.wait(5)
        message.ack()
        with lock:
            got.append(message.data)
            names.add(threading.current_thread().name)

    with consumer.consume(callback, max_workers=4, max_messages=20):
        eventually(lambda: len(got) >= 400, 10.0)
        observer.settle(nc)
        asked = sum(pull.body["batch"] for pull in observer.pulls)
        assert 400 <= asked <= 420
    assert sorted(map(int, got)) == list(range(400))
    assert len(names) == 1  # all are called js-consume-<number>
    assert all(pull.body["batch"] <= 20 for pull in observer.pulls)


def test_consume_with_workers_holds_no_more_than_its_buffer(
    js: JetStream, nc: Connection, observer: Observer
) -> None:
    """Callbacks in progress count as unprocessed: with all workers busy nothing beyond the buffer is pulled."""
    consumer = stream_and_consumer(js, 50)
    release = threading.Event()
    started = Collector(ack=False)

    def callback(message: JetStreamMessage) -> None:
        started(message)
        release.wait(10)

    with consumer.consume(callback, max_workers=3, max_messages=6, threshold_messages=5):
        started.wait_for(3)
        observer.settle(nc)
        assert [pull.body["batch"] for pull in observer.pulls] == [6]
        assert consumer.get_info().num_ack_pending == 6
        release.set()
        started.wait_for(50)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None])
def test_consume_refuses_bad_workers(js: JetStream, workers: Any) -> None:
    """max_workers is an int of at least 1, the callback is callable."""
    consumer = stream_and_consumer(js)
    with pytest.raises(ValueError, match="max_workers"):
        consumer.consume(print, max_workers=workers)
    with pytest.raises(TypeError, match="callback"):
        consumer.consume(None)  # type: ignore[arg-type]


# --- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_consume_ends_typed_when_deleted(js: JetStream, nc: Connection, observer: Observer, what: str) -> None:
    """What was received before is still called back; wait() raises within 1 s; no further pull is sent."""
    consumer = stream_and_consumer(js, 8)
    gate = threading.Event()
    collect = Collector()

    def callback(message: JetStreamMessage) -> None:
        gate.wait(5)
        collect(message)

    context = consumer.consume(callback, max_messages=10, threshold_messages=5)
    eventually(lambda: buffered(context) == 7)
    if what == "consumer":
        js.delete_consumer("S", "C")
    else:
        js.delete_stream("S")
    eventually(lambda: buffered(context) == 8)
    start = time.monotonic()
    gate.set()
    with pytest.raises(ConsumerDeletedError):
        context.wait(5)
    assert time.monotonic() - start < 1
    assert len(collect.messages) == 8
    assert context.closed
    assert isinstance(context.error, ConsumerDeletedError)
    observer.settle(nc)
    assert len(observer.pulls) == 1


def test_consume_idle_ends_typed_when_deleted(js: JetStream) -> None:
    """An idle consume notices the deletion within 1 s."""
    consumer = stream_and_consumer(js)
    context = consumer.consume(print)
    eventually(lambda: waiting_pulls(consumer) == 1)
    start = time.monotonic()
    js.delete_consumer("S", "C")
    with pytest.raises(ConsumerDeletedError):
        context.wait(5)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("where", ["callback", "thread", "main"])
@pytest.mark.parametrize("end", ["stop", "drain"])
@pytest.mark.parametrize("workers", [1, 3])
def test_consume_stop_and_drain_from_anywhere(js: JetStream, where: str, end: str, workers: int) -> None:
    """From the callback, another thread, the main thread: no deadlock, idempotent, and wait() returns True."""
    consumer = stream_and_consumer(js, 30)
    ready = threading.Event()
    collect = Collector()

    def end_it() -> None:
        getattr(context, end)()
        getattr(context, end)()

    def callback(message: JetStreamMessage) -> None:
        ready.wait(5)
        collect(message)
        if where == "callback" and len(collect.messages) >= 5:
            end_it()

    context = consumer.consume(callback, max_messages=20, max_workers=workers)
    eventually(lambda: buffered(context) == 20 - workers)
    if where == "thread":
        InThread(end_it).result(3)
    elif where == "main":
        end_it()
    if where != "callback" and end == "drain":
        eventually(lambda: refill_of(context).ended is not None)
    ready.set()
    assert context.wait(5)
    assert context.closed
    assert context.error is None
    if end == "drain":
        assert len(collect.messages) >= 20
    elif where == "callback":
        assert 5 <= len(collect.messages) < 5 + workers
    else:
        assert len(collect.messages) == workers
    assert waiting_pulls(consumer) == 0


def test_consume_stopped_in_a_signal_handler(js: JetStream) -> None:
    """A handler that stops the consume while the main thread waits for it."""
    consumer = stream_and_consumer(js)
    context = consumer.consume(print)
    with handler_of(signal.SIGALRM, lambda *_: context.stop()):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.monotonic()
        assert context.wait(10)
        assert time.monotonic() - start < 2


def test_consume_wait_is_interrupted_by_ctrl_c(js: JetStream) -> None:
    """KeyboardInterrupt gets out of wait() within a second; the consume goes on until it is stopped."""
    consumer = stream_and_consumer(js)
    collect = Collector()
    with consumer.consume(collect) as context:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2, KeyboardInterrupt):
            context.wait()
        assert time.monotonic() - start < 1.2
        js.publish("s.x")
        collect.wait_for(1)


def test_consume_wait_times_out_with_false(js: JetStream) -> None:
    """wait(timeout) says False while it runs; in the callback it is refused."""
    consumer = stream_and_consumer(js, 1)
    errors: list[Exception] = []
    started = threading.Event()

    def callback(_: JetStreamMessage) -> None:
        started.wait(5)
        context.wait()

    with consumer.consume(callback, on_error=errors.append) as context:
        started.set()
        assert context.wait(0.1) is False
        assert not context.closed
        eventually(lambda: errors)
    assert isinstance(errors[0], NatsError)
    assert "wait for itself" in str(errors[0])


def test_consume_with_block_stops_and_waits_for_the_callback(js: JetStream) -> None:
    """Leaving the block drops what is buffered and waits for the callback in progress."""
    consumer = stream_and_consumer(js, 10)
    started = threading.Event()
    collect = Collector()

    def callback(message: JetStreamMessage) -> None:
        started.set()
        threading.Event().wait(0.3)
        collect(message)

    with consumer.consume(callback) as context:
        started.wait(5)
    assert context.closed
    assert len(collect.messages) == 1


def test_consume_connection_closed_ends_with_that_error(js: JetStream, nc: Connection) -> None:
    """close() of the connection ends the consume: wait() raises ConnectionClosedError."""
    consumer = stream_and_consumer(js)
    context = consumer.consume(print)
    nc.close()
    with pytest.raises(ConnectionClosedError):
        context.wait(2)


def test_consume_handles_its_buffer_when_the_connection_drains(nats_server: LocalServer, js: JetStream) -> None:
    """drain() of the connection lets callbacks finish what is buffered, and their acks reach the server."""
    consumer = stream_and_consumer(js, 50)
    collect = Collector()

    def slowly(message: JetStreamMessage) -> None:
        time.sleep(0.005)
        collect(message)

    with connect(nats_server.url) as other:
        context = other.jetstream().get_consumer("S", consumer.name).consume(slowly, max_workers=2)
        collect.wait_for(1)
    assert context.wait(0)
    assert context.closed
    info = consumer.get_info()
    assert info.delivered.consumer_seq == len(collect.messages)
    assert info.num_ack_pending == 0
    assert link_of(other).drain_steps == {}


def test_consume_does_no_work_on_a_closed_connection(nats_server: LocalServer, js: JetStream) -> None:
    """close() discards buffered messages: they could not be acknowledged, and are delivered again."""
    consumer = stream_and_consumer(js, 20)
    calls: list[bytes] = []
    other = connect(nats_server.url)

    def close(message: JetStreamMessage) -> None:
        calls.append(message.data)
        other.close()

    context = other.jetstream().get_consumer("S", consumer.name).consume(close)
    with pytest.raises(ConnectionClosedError):
        context.wait(5)
    assert calls == [b"0"]


def test_consume_draining_the_connection_in_the_callback(js: JetStream, nc: Connection) -> None:
    """A callback may drain its connection: that waits for the others, not for itself."""
    consumer = stream_and_consumer(js, 1)
    context = consumer.consume(lambda _: nc.drain(5))
    assert context.wait(3)


def test_consume_closing_the_connection_in_the_callback(js: JetStream, nc: Connection) -> None:
    """The callback may close the connection it is called from."""
    consumer = stream_and_consumer(js, 1)
    context = consumer.consume(lambda _: nc.close())
    with pytest.raises(ConnectionClosedError):
        context.wait(5)


def test_consume_dropped_messages_of_a_stop_come_again(js: JetStream) -> None:
    """What stop() dropped was not acked, and is delivered to the next consume."""
    consumer = stream_and_consumer(js, 20, ack_wait=0.5)
    first = Collector()
    ready = threading.Event()

    def take_one(message: JetStreamMessage) -> None:
        ready.wait(5)
        first(message)
        context.stop()

    context = consumer.consume(take_one)
    ready.set()
    assert context.wait(5)
    assert len(first.messages) == 1
    second = Collector()
    with consumer.consume(second):
        eventually(lambda: len(set(first.data) | set(second.data)) == 20)
    assert not set(first.data) & set(second.data)


def test_consume_recreated_as_push_ends_with_that_error(js: JetStream) -> None:
    """A consumer that was made anew as push consumer concludes the consume: deleted first, which says so."""
    consumer = stream_and_consumer(js)
    context = consumer.consume(print)
    eventually(lambda: waiting_pulls(consumer) == 1)
    js.delete_consumer("S", "C")
    js.create_consumer("S", durable_name="C", deliver_subject="deliver.here")
    with pytest.raises(ConsumerDeletedError):
        context.wait(5)


@pytest.mark.usefixtures("eager_switching")
def test_consume_under_a_tiny_switch_interval_with_workers(js: JetStream, nc: Connection) -> None:
    """Threads that switch all the time: each message once, and it ends."""
    consumer = stream_and_consumer(js, 1500)
    lock = threading.Lock()
    counts: Counter[bytes] = Counter()

    def callback(message: JetStreamMessage) -> None:
        message.ack()
        with lock:
            counts[message.data] += 1

    with consumer.consume(callback, max_workers=4, max_messages=30):
        eventually(lambda: sum(counts.values()) >= 1500, 30.0)
    assert set(counts.values()) == {1}
    assert len(counts) == 1500
