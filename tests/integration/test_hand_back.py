"""What is buffered and was not handed out goes back to the server, and other clients get it at once.

ack_wait is 60 s where not said otherwise: what comes within seconds was handed back.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import (
    Connection,
    Consumer,
    JetStream,
    JetStreamMessage,
    MessageBatch,
    MessageStream,
    SubscriptionClosedError,
)
from jetstream_sync._threads import Mailbox
from jetstream_sync.consumers import pull, refill
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.consuming import awaited, buffered, pull_of, receivers, record_writes
from tests.support.eventually import eventually
from tests.support.interrupts import everywhere
from tests.support.observer import Observer, fill, stream_and_consumer
from tests.support.watchdog import InThread

ACK_WAIT = 60.0


def numbers(messages: list[JetStreamMessage]) -> list[int]:
    return [int(message.data) for message in messages]


def take_all(consumer: Consumer, count: int, expires: float = 5.0) -> list[int]:
    """The numbers of `count` messages that another client gets now; acknowledged."""
    got = list(consumer.fetch(count, expires=expires))
    for message in got:
        message.ack()
    return sorted(numbers(got))


def opened(consumer: Consumer, count: int, **options: Any) -> tuple[MessageStream, JetStreamMessage]:
    """A stream that has all of the consumer's `count` messages: one in hand, the others buffered."""
    stream = consumer.messages(max_messages=1000, **options)
    message = stream.next(5)
    eventually(lambda: buffered(stream) == count - 1)
    return stream, message


# --- messages() ----------------------------------------------------------------------------------------


def left_with(stream: MessageStream) -> None:
    with stream:
        pass


ENDS: dict[str, Callable[[MessageStream], object]] = {
    "stop": lambda stream: stream.stop(),
    "stopped twice": lambda stream: (stream.stop(), stream.stop()),
    "with": left_with,
    "drain": lambda stream: stream.drain(buffered="nak"),
    "drained first": lambda stream: (stream.drain(), stream.stop()),
}


@pytest.mark.parametrize("end", ENDS)
def test_buffered_messages_go_back_and_the_one_in_hand_does_not(
    js: JetStream, nc: Connection, other_js: JetStream, observer: Observer, end: str
) -> None:
    """Another client has them at once; each is nak'ed once, and the message in hand can be acknowledged."""
    consumer = stream_and_consumer(js, 200, ack_wait=ACK_WAIT)
    stream, message = opened(consumer, 200)
    ENDS[end](stream)
    started = time.monotonic()
    assert take_all(other_js.get_consumer("S", "C"), 199) == list(range(1, 200))
    assert time.monotonic() - started < 2.0
    message.ack()
    observer.settle(nc)
    naks = Counter(seen.subject for seen in observer.acks if seen.data == b"-NAK")
    assert (len(naks), set(naks.values())) == (199, {1})
    assert message.reply not in naks
    with pytest.raises(SubscriptionClosedError):
        stream.next(1)


def test_naks_leave_in_one_write(js: JetStream, nc: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """UNSUB goes before them: else the server would deliver them to the pull that is given up."""
    consumer = stream_and_consumer(js, 200, ack_wait=ACK_WAIT)
    stream, _ = opened(consumer, 200)
    writes = record_writes(nc, monkeypatch)
    stream.stop()
    with_naks = [data for data in writes if b"-NAK" in data]
    assert len(with_naks) == 1
    assert with_naks[0].count(b"-NAK") == 199
    assert with_naks[0].index(b"UNSUB") < with_naks[0].index(b"PING") < with_naks[0].index(b"-NAK")


def test_dropped_stream_hands_back(js: JetStream, other_js: JetStream) -> None:
    """`break` out of a loop over a stream that nothing else holds."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    for message in consumer.messages(max_messages=1000):
        eventually(lambda: consumer.get_info().num_ack_pending == 100)
        message.ack()
        break
    gc.collect()
    assert take_all(other_js.get_consumer("S", "C"), 99) == list(range(1, 100))


def test_dropped_stream_that_was_drained_hands_back(js: JetStream, other_js: JetStream) -> None:
    """What a drain has left in a stream that nothing can take from any more."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    streams = [opened(consumer, 100)[0]]
    streams[0].drain()
    eventually(lambda: streams[0].closed)
    streams.clear()
    gc.collect()
    assert take_all(other_js.get_consumer("S", "C"), 99) == list(range(1, 100))


def test_drain_processes_what_is_buffered(js: JetStream, nc: Connection, observer: Observer) -> None:
    """The default, and the same as `buffered="process"`."""
    consumer = stream_and_consumer(js, 50, ack_wait=ACK_WAIT)
    stream, message = opened(consumer, 50)
    message.ack()
    stream.drain(buffered="process")
    rest = list(stream)
    for each in rest:
        each.ack()
    assert numbers(rest) == list(range(1, 50))
    observer.settle(nc)
    assert not [seen for seen in observer.acks if seen.data == b"-NAK"]


@pytest.mark.parametrize("wrong", ["Nak", "", None, True])
def test_drain_refuses_other_words(js: JetStream, wrong: Any) -> None:
    consumer = stream_and_consumer(js, 1)
    with consumer.messages() as stream, pytest.raises(ValueError, match="buffered must be 'process' or 'nak'"):
        stream.drain(buffered=wrong)
    context = consumer.consume(lambda message: message.ack())
    with context, pytest.raises(ValueError, match="buffered must be 'process' or 'nak'"):
        context.drain(buffered=wrong)


def test_nothing_is_sent_without_acks(js: JetStream, nc: Connection, observer: Observer) -> None:
    """Ack policy none: what is buffered is dropped."""
    consumer = stream_and_consumer(js, 50, ack_policy="none")
    stream, _ = opened(consumer, 50)
    stream.stop()
    with consumer.fetch(10, expires=1) as batch:
        assert batch
    observer.settle(nc)
    assert observer.acks == []


def test_what_is_on_its_way_goes_back_too(
    nats_server: LocalServer, proxy: FaultProxy, js: JetStream, observer: Observer
) -> None:
    """stop() while the server's messages are held up on the wire: they come after it, and are nak'ed."""
    stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    with jetstream_sync.connect(proxy.url) as slow:
        consumer = slow.jetstream().get_consumer("S", "C")
        proxy.black_hole("to_client")
        stream = consumer.messages(max_messages=1000)
        eventually(lambda: js.get_consumer("S", "C").get_info().num_ack_pending == 100)
        stream.stop()
        assert buffered(stream) == 0
        sid = pull_of(stream).sid
        assert sid in receivers(slow)
        proxy.heal()
        assert take_all(js.get_consumer("S", "C"), 100) == list(range(100))
        eventually(lambda: sid not in receivers(slow), message="forgotten with the PONG")
    assert max(observer.acked_once().values()) <= 2  # a nak of the first delivery, an ack of the second


def test_stop_while_disconnected_forgets(server: LocalServer) -> None:
    """Naks are for the session on which the messages came: later they could hit another client's delivery."""
    with jetstream_sync.connect(server.url, reconnect_time_wait=0.05) as nc:
        js = nc.jetstream()
        consumer = stream_and_consumer(js, 20, ack_wait=ACK_WAIT)
        stream, _ = opened(consumer, 20)
        server.kill()
        eventually(lambda: not nc.is_connected)
        stream.stop()
        assert buffered(stream) == 0
        server.start()
        eventually(lambda: nc.is_connected, 10)
        with Observer(server.url) as observer:
            nc.flush()
            observer.settle(nc)
            assert observer.acks == []
        assert not [each for each in receivers(nc).values() if each is pull_of(stream)]


@pytest.mark.parametrize("how", ["messages", "fetch"])
def test_what_other_clients_have_meanwhile_is_not_handed_back(
    js: JetStream, other_js: JetStream, nc: Connection, observer: Observer, how: str
) -> None:
    """A worker that hangs loses its buffer to others. A nak at its stop would take it from them."""
    consumer = stream_and_consumer(js, 20, ack_wait=0.3)
    owner = consumer.messages(max_messages=20) if how == "messages" else consumer.fetch(20)
    loop = iter(owner)
    next(loop)
    eventually(lambda: buffered(owner) == 19)
    taken: set[int] = set()

    def taken_by_another() -> bool:
        taken.update(numbers(list(other_js.get_consumer("S", "C").fetch(20, expires=0.5))))
        return taken == set(range(20))

    eventually(taken_by_another)
    owner.stop() if isinstance(owner, MessageStream) else owner.close()
    assert buffered(owner) == 0
    observer.settle(nc)
    assert not [seen for seen in observer.acks if seen.data == b"-NAK"]


# --- consume() -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("end", ["stop", "with", "drain"])
def test_consume_hands_back_and_finishes_what_callbacks_hold(
    js: JetStream, other_js: JetStream, workers: int, end: str
) -> None:
    """Callbacks in progress go on and acknowledge; what was given to none is delivered to another client."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    begun, go_on = threading.Semaphore(0), threading.Event()
    handled: list[int] = []

    def work(message: JetStreamMessage) -> None:
        begun.release()
        assert go_on.wait(10)
        handled.append(int(message.data))
        message.ack_sync()

    context = consumer.consume(work, max_messages=1000, max_workers=workers)
    for _ in range(workers):
        assert begun.acquire(timeout=5)
    eventually(lambda: buffered(context) == 100 - workers)
    if end == "with":
        leaving = InThread(context.__exit__, None, None, None)
    else:
        leaving = InThread(context.stop if end == "stop" else lambda: context.drain(buffered="nak"))
        leaving.result(2)
    others = take_all(other_js.get_consumer("S", "C"), 100 - workers)
    assert not handled
    go_on.set()
    leaving.result(8)
    assert context.wait(5)
    assert sorted(handled + others) == list(range(100))
    eventually(lambda: consumer.get_info().num_ack_pending == 0)


# --- the connection ------------------------------------------------------------------------------------


def test_close_of_the_connection_hands_back(nats_server: LocalServer, js: JetStream) -> None:
    """nc.close() with a stream and a consume in progress."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    nc = jetstream_sync.connect(nats_server.url)
    stream, message = opened(nc.jetstream().get_consumer("S", "C"), 100)
    message.ack()
    nc.close()
    assert stream.closed
    assert take_all(consumer, 99) == list(range(1, 100))


def test_close_of_the_connection_hands_back_though_a_signal_handler_raises(
    nats_server: LocalServer, js: JetStream
) -> None:
    consumer = stream_and_consumer(js, 10, ack_wait=ACK_WAIT)

    def prepare() -> Callable[[], None]:
        nc = jetstream_sync.connect(nats_server.url)
        stream = nc.jetstream().get_consumer("S", "C").messages(max_messages=10)
        eventually(lambda: buffered(stream) == 10)
        return nc.close

    def check(where: str) -> None:
        got = list(consumer.fetch(10, expires=2))
        for message in got:
            message.nak()
        assert len(got) == 10, where

    assert everywhere(prepare, check, pull, refill) > 10


@pytest.mark.parametrize("how", ["close", "stop and close", "drain"])
def test_end_of_the_connection_hands_back_what_is_on_its_way(proxy: FaultProxy, js: JetStream, how: str) -> None:
    """The server's messages are held up on the wire when the connection ends."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    nc = jetstream_sync.connect(proxy.url)
    ours = nc.jetstream().get_consumer("S", "C")
    proxy.black_hole("to_client")
    stream = ours.messages(max_messages=1000)
    eventually(lambda: consumer.get_info().num_ack_pending == 100)
    if how == "stop and close":
        stream.stop()
    ending = InThread(nc.drain if how == "drain" else nc.close)
    time.sleep(0.1)  # so that the end waits for what is held up
    proxy.heal()
    ending.result(10)
    assert take_all(consumer, 100) == list(range(100))


def test_drain_of_the_connection_processes_what_is_buffered(nats_server: LocalServer, js: JetStream) -> None:
    """nc.drain() hands nothing back."""
    consumer = stream_and_consumer(js, 100, ack_wait=ACK_WAIT)
    handled: list[int] = []
    go_on = threading.Event()

    def work(message: JetStreamMessage) -> None:
        go_on.wait(5)
        handled.append(int(message.data))
        message.ack()

    nc = jetstream_sync.connect(nats_server.url)
    context = nc.jetstream().get_consumer("S", "C").consume(work, max_messages=1000)
    eventually(lambda: buffered(context) == 99)
    draining = InThread(nc.drain)
    go_on.set()
    draining.result(10)
    assert handled == list(range(100))
    assert consumer.get_info().num_redelivered == 0


# --- fetch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("heartbeat", [None, 0.5])
def test_close_of_a_batch_ends_the_iteration_in_another_thread(
    js: JetStream, batch: int, heartbeat: float | None
) -> None:
    """At once, not after `expires`. A second close() does nothing."""
    messages = stream_and_consumer(js).fetch(batch, expires=30, idle_heartbeat=heartbeat)
    iterating = InThread(lambda: list(messages))
    eventually(lambda: awaited(messages))
    messages.close()
    assert iterating.result(1) == []
    messages.close()


def test_close_of_an_ordered_batch_ends_the_iteration_in_another_thread(js: JetStream) -> None:
    stream_and_consumer(js)
    batch = js.get_stream("S").ordered_consumer().fetch(10, expires=30)
    iterating = InThread(lambda: list(batch))
    eventually(lambda: awaited(batch))
    batch.close()
    assert iterating.result(1) == []


def closed_in_thread(batch: Any) -> None:
    InThread(batch.close).result(2)


def left_batch(batch: Any) -> None:
    with batch:
        pass


@pytest.mark.parametrize("leave", [closed_in_thread, left_batch, lambda batch: batch.close()])
@pytest.mark.parametrize("count", [1, 50])
def test_close_of_a_batch_hands_back(
    js: JetStream, other_js: JetStream, leave: Callable[[Any], None], count: int
) -> None:
    """What was not handed out, also when all has come; nothing of what was."""
    consumer = stream_and_consumer(js, count, ack_wait=ACK_WAIT)
    batch = consumer.fetch(count, expires=5)
    eventually(lambda: buffered(batch) == count)
    loop = iter(batch)
    taken = [int(next(loop).data) for _ in range(count // 2)]
    leave(batch)
    leave(batch)
    others = take_all(other_js.get_consumer("S", "C"), count - len(taken))
    assert taken + others == list(range(count))
    assert list(loop) == []
    eventually(lambda: consumer.get_info().num_ack_pending == len(taken))


def test_loop_over_a_batch_that_is_left_hands_back(js: JetStream, other_js: JetStream) -> None:
    consumer = stream_and_consumer(js, 30, ack_wait=ACK_WAIT)
    batch = consumer.fetch(30, expires=5)
    eventually(lambda: buffered(batch) == 30)
    for message in batch:
        message.ack()
        break
    gc.collect()
    assert take_all(other_js.get_consumer("S", "C"), 29) == list(range(1, 30))
    assert list(batch) == []


def test_batch_that_ran_its_course_sends_nothing_at_its_close(js: JetStream, nc: Connection) -> None:
    """No UNSUB, no PING, no nak: the usual end of `with consumer.fetch(…)`."""
    consumer = stream_and_consumer(js, 10)
    with consumer.fetch(10, expires=5) as batch:
        for message in batch:
            message.ack()
        nc.flush()
        sent = link_of(nc).outbox.out_bytes
        waiting = len(link_of(nc).pings.waiters)
    assert (link_of(nc).outbox.out_bytes, len(link_of(nc).pings.waiters)) == (sent, waiting)
    fill(js, 1)
    assert consumer.next(5) is not None


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_end_at_the_moment_of_an_arrival_hands_it_back(
    js: JetStream, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A thread ends the pull when messages are in the box and the reader has not counted them yet."""
    consumer = stream_and_consumer(js, 0, ack_wait=ACK_WAIT)
    taking = consumer.fetch(10, expires=5) if how == "batch" else consumer.messages(max_messages=10)
    box = pull_of(taking).box
    end = taking.close if isinstance(taking, MessageBatch) else taking.stop
    put_run, ended = Mailbox.put_run, threading.Event()

    def put_run_and_end(self: Mailbox[Any], items: list[Any]) -> bool:
        done = put_run(self, items)
        if self is box and done:
            end()
            ended.set()
        return done

    monkeypatch.setattr(Mailbox, "put_run", put_run_and_end)
    fill(js, 1)
    assert ended.wait(5)
    monkeypatch.undo()
    assert take_all(consumer, 1) == [0]
