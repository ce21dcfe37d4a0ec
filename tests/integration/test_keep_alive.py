"""Buffered messages are kept alive, and with auto_progress so is what handlers hold."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream, JetStreamMessage
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.consuming import buffered, record_writes, refill_of
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer
from tests.support.threads import library_threads

ACK_WAIT = 0.6


class Handled:
    """Counts deliveries by number; each takes as long as `seconds` says."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self.deliveries: Counter[int] = Counter()

    def __call__(self, message: JetStreamMessage) -> None:
        number = int(message.data)
        self.deliveries[number] += 1
        time.sleep(self._seconds(number))
        message.ack()


@contextmanager
def consuming(
    consumer: Consumer, how: str, handle: Callable[[JetStreamMessage], None], **options: Any
) -> Iterator[Any]:
    """`handle` is called for each message, by consume() or in a loop over messages()."""
    if how == "consume":
        with consumer.consume(handle, **options) as context:
            yield context
        return
    stream = consumer.messages(**options)

    def work() -> None:
        for message in stream:
            handle(message)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield stream
    stream.stop()
    thread.join(10)


def progress(observer: Observer) -> int:
    return sum(1 for seen in list(observer.acks) if seen.data == b"+WPI")


def none_pending(consumer: Consumer) -> Callable[[], bool]:
    def check() -> bool:
        info = consumer.get_info()
        return not info.num_ack_pending and not info.num_pending

    return check


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("consume", {"max_messages": 100}),
        ("messages", {"max_messages": 100}),
        ("messages", {"max_bytes": 100_000}),
    ],
)
def test_buffered_messages_are_kept_alive(js: JetStream, how: str, options: dict[str, Any]) -> None:
    """Five messages of 0.25 s each take more than twice ack_wait, and none is delivered twice."""
    consumer = stream_and_consumer(js, 5, ack_wait=ACK_WAIT)
    handled = Handled(lambda _: 0.25)
    with consuming(consumer, how, handled, **options):
        eventually(none_pending(consumer), 10)
        assert consumer.get_info().num_redelivered == 0
    assert handled.deliveries == Counter(range(5))


def jump(js: JetStream, fast: int, slow: int, seconds: float, ack_wait: float, **options: Any) -> Counter[int]:
    consumer = stream_and_consumer(js, fast + slow, ack_wait=ack_wait)
    handled = Handled(lambda number: 0.001 if number < fast else seconds)
    with consumer.consume(handled, **options):
        eventually(none_pending(consumer), 2 * (fast * 0.001 + slow * seconds) + 10)
    return handled.deliveries


def test_handler_that_becomes_slow_handles_nothing_twice(js: JetStream) -> None:
    """No window can foresee it: 1 ms, then ten times the span, with a full buffer behind."""
    assert jump(js, 200, 8, 0.2, ACK_WAIT, max_messages=500) == Counter(range(208))


@pytest.mark.soak
@pytest.mark.parametrize("options", [{}, {"max_messages": 500}])
def test_handler_that_becomes_slow_in_full(js: JetStream, options: dict[str, Any]) -> None:
    """1 ms × 600, then 0.3 s × 60, ack_wait 2 s: 660 handled for 660."""
    assert jump(js, 600, 60, 0.3, 2.0, **options) == Counter(range(660))


def test_keep_alive_is_one_write_per_look(js: JetStream, nc: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = stream_and_consumer(js, 300, ack_wait=ACK_WAIT)
    writes = record_writes(nc, monkeypatch)
    with consumer.messages(max_messages=1000) as stream:
        stream.next(5).ack()
        eventually(lambda: any(data.count(b"+WPI") == 299 for data in writes))


def test_hung_handler_lets_its_buffer_go(js: JetStream, other_js: JetStream) -> None:
    """Nothing is handed out for ack_wait: what waits behind goes to another client after another ack_wait."""
    consumer = stream_and_consumer(js, 5, ack_wait=0.4)
    go_on = threading.Event()
    with consumer.consume(lambda _: bool(go_on.wait(10)), max_messages=10) as context:
        eventually(lambda: buffered(context) == 4)
        other = other_js.get_consumer("S", "C")
        got: set[int] = set()
        started = time.monotonic()
        while len(got) < 5:
            message = other.next(5)
            assert message is not None
            message.ack()
            got.add(int(message.data))
        assert time.monotonic() - started > 0.4  # the buffer was kept at first
        go_on.set()


def test_auto_progress_keeps_what_a_loop_holds_and_what_waits_behind(js: JetStream) -> None:
    """Each takes twice ack_wait, and is delivered once. (test_consume.py has the same for callbacks.)"""
    consumer = stream_and_consumer(js, 2, ack_wait=0.4)
    handled = Handled(lambda _: 0.9)
    with consuming(consumer, "messages", handled, auto_progress=True, max_messages=10):
        eventually(none_pending(consumer), 10)
    assert handled.deliveries == Counter(range(2))


def test_auto_progress_of_next(js: JetStream) -> None:
    """The message handed out last is held until the next one is asked for, or the stream is left."""
    consumer = stream_and_consumer(js, 2, ack_wait=0.3)
    with consumer.messages(auto_progress=True, max_messages=2) as stream:
        first = stream.next(5)
        time.sleep(0.7)
        second = stream.next(5)
        assert (first.data, second.data) == (b"0", b"1")
        assert second.metadata.num_delivered == 1
        second.ack()
        again = stream.next(5)  # the first was released when the second was asked for
        assert (again.data, again.metadata.num_delivered) == (b"0", 2)
        again.ack()


@pytest.mark.parametrize("how", ["consume", "messages"])
def test_one_message_can_be_taken_out_of_auto_progress(js: JetStream, other_js: JetStream, how: str) -> None:
    """stop_progress(): the message is delivered again while its handler still runs."""
    consumer = stream_and_consumer(js, 1, ack_wait=0.3)
    held: list[JetStreamMessage] = []
    go_on = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        held.append(message)
        go_on.wait(10)

    with consuming(consumer, how, handle, auto_progress=True, max_messages=1) as context:
        eventually(lambda: held)
        other = other_js.get_consumer("S", "C")
        assert other.next(0.6) is None
        context.stop_progress(held[0])
        context.stop_progress(held[0])
        again = other.next(5)
        assert again is not None
        assert again.metadata.num_delivered >= 2
        again.ack()
        go_on.set()


def test_stop_progress_without_auto_progress_does_nothing(js: JetStream) -> None:
    consumer = stream_and_consumer(js, 1)
    with consumer.messages() as stream:
        stream.stop_progress(stream.next(5))
    with consumer.consume(lambda _: None) as context:
        context.stop_progress(JetStreamMessage((b"s.x", None, None, b"")))


def test_drained_buffer_is_kept_alive_until_it_is_empty(js: JetStream) -> None:
    """drain() ends the pulls, not the keep-alive; afterwards the feed's thread ends."""
    consumer = stream_and_consumer(js, 5, ack_wait=ACK_WAIT)
    handled = Handled(lambda _: 0.25)
    context = consumer.consume(handled, max_messages=100)
    eventually(lambda: buffered(context) == 4)
    context.drain()
    assert context.wait(10)
    assert handled.deliveries == Counter(range(5))
    assert consumer.get_info().num_redelivered == 0
    eventually(lambda: not library_threads("js-refill"), 1.0)


@pytest.mark.parametrize("how", ["consume", "messages"])
def test_auto_progress_goes_on_after_stop(js: JetStream, how: str) -> None:
    """What a handler holds when the consume is stopped is delivered once, however long it takes."""
    consumer = stream_and_consumer(js, 1, ack_wait=0.3)
    handled = Handled(lambda _: 1.0)
    with consuming(consumer, how, handled, auto_progress=True) as context:
        eventually(lambda: handled.deliveries)
        context.stop()
        eventually(none_pending(consumer), 5)
        assert consumer.get_info().num_redelivered == 0
    eventually(lambda: not library_threads("js-refill"), 1.0)


def test_nothing_is_kept_alive_without_acks(js: JetStream, nc: Connection, observer: Observer) -> None:
    """Ack policy none, and ordered consumers."""
    consumer = stream_and_consumer(js, 10, ack_policy="none")
    ordered = js.get_stream("S").ordered_consumer()
    with consumer.messages(auto_progress=True) as stream, ordered.messages(auto_progress=True) as in_order:
        stream.next(5)
        in_order.next(5)
        assert refill_of(stream)._keep_alive is None
    observer.settle(nc)
    assert observer.acks == []


# --- what it costs ---------------------------------------------------------------------------------------


@contextmanager
def counted_looks(context: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The times at which js-refill looked."""
    feed = refill_of(context)
    looks: list[float] = []
    look = feed.look

    def counted() -> float:
        looks.append(time.monotonic())
        return look()

    monkeypatch.setattr(feed, "look", counted)
    feed._wakeup.set()
    eventually(lambda: looks)
    looks.clear()
    yield looks


def test_idle_consume_sleeps(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer while the buffer is empty, however short ack_wait is."""
    consumer = stream_and_consumer(js, 1, ack_wait=0.3)
    with consumer.consume(lambda message: message.ack()) as context:
        eventually(none_pending(consumer))
        with counted_looks(context, monkeypatch) as looks:
            time.sleep(0.5)
            assert len(looks) <= 1


def test_messages_that_are_taken_at_once_wake_no_other_thread(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message at a time, a waiting consumer: js-refill sleeps on."""
    consumer = stream_and_consumer(js, 1, ack_wait=0.3)
    got: list[bytes] = []

    def handle(message: JetStreamMessage) -> None:
        got.append(message.data)
        message.ack()

    with consumer.consume(handle, max_messages=1000) as context:
        eventually(lambda: refill_of(context)._keep_alive.asleep)  # type: ignore[union-attr]
        with counted_looks(context, monkeypatch) as looks:
            for number in range(50):
                fill(js, 1)
                eventually(lambda n=number: len(got) == n + 2 and refill_of(context).box.awaited)  # type: ignore[misc]
            assert len(looks) <= 2


def test_busy_consume_is_looked_at_once_per_period(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often messages come and are taken."""
    consumer = stream_and_consumer(js, 0, ack_wait=1.2)
    with consumer.consume(lambda message: message.ack(), max_messages=100_000) as context:
        with counted_looks(context, monkeypatch) as looks:
            started = time.monotonic()
            while time.monotonic() - started < 0.5:
                fill(js, 20)
            assert len(looks) <= 2 * 0.5 / 0.2 + 3


def test_keep_alive_rides_out_a_reconnect(server: LocalServer) -> None:
    """What is buffered when the connection is lost for a moment is kept alive on the next session."""
    with jetstream_sync.connect(server.url, reconnect_time_wait=0.02) as nc:
        js = nc.jetstream()
        consumer = stream_and_consumer(js, 5, ack_wait=0.8)
        handled = Handled(lambda _: 0.35)
        with consumer.consume(handled, max_messages=100):
            eventually(lambda: len(handled.deliveries) == 1)
            link_of(nc).session.transport.abort()  # type: ignore[union-attr]
            eventually(lambda: nc.is_connected and len(handled.deliveries) == 5, 10)
            eventually(none_pending(consumer), 10)
        assert handled.deliveries == Counter(range(5))
