"""consume() and messages() through server crashes, lost connections and consumers deleted meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Consumer, JetStream, JetStreamMessage
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConsumerIsPushError,
    ConsumerNotFoundError,
    MissedHeartbeatError,
    NatsError,
    StreamNotFoundError,
    TimeoutError,
)
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.consuming import buffered, refill_of
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer, waiting_pulls


class Publisher:
    """Publishes numbered messages at a rate, over a connection of its own, until it is closed."""

    def __init__(self, urls: str | list[str], rate: float) -> None:
        self.acked: set[int] = set()
        self.last_ack = (-1, 0.0)  # the newest number that was acked, and when
        self.attempted: set[int] = set()
        self._nc = jetstream_sync.connect(urls, name="publisher")
        self._js = self._nc.jetstream()
        self._pause = 1 / rate
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        next_at = time.monotonic()
        while not self._end.wait(max(0.0, next_at - time.monotonic())):
            next_at = max(next_at + self._pause, time.monotonic() - 0.5)
            self.attempted.add(number)
            try:
                # With a msg_id publish() retries, so that few messages are attempted and not acked.
                self._js.publish("s.x", b"%d" % number, msg_id=f"m{number}", timeout=10)
                self.acked.add(number)
                self.last_ack = (number, time.monotonic())
            except NatsError:
                pass
            number += 1

    def close(self) -> None:
        """Idempotent; blocks until the last publish has returned or raised."""
        self._end.set()
        self._thread.join(15)
        assert not self._thread.is_alive()
        self._nc.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reader:
    """A callback that acks and notes numbers and times."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.newest = -1
        self.count = 0

    def __call__(self, message: JetStreamMessage) -> None:
        number = int(message.data)
        self.numbers.add(number)
        self.newest = max(self.newest, number)
        self.count += 1
        message.ack()


def assert_nothing_lost(publisher: Publisher, reader: Reader, timeout: float = 20.0) -> None:
    """Every message that was acked is read, and no message is read that was never attempted."""
    eventually(lambda: publisher.acked <= reader.numbers, timeout, "everything acked was read")
    assert reader.numbers <= publisher.attempted


def test_consume_through_five_kills_loses_nothing(server: LocalServer) -> None:
    """kill -9 and restart five times at 200 messages/s: nothing lost, one resubscribe and one new pull each."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), ack_wait=2)
        errors: list[Exception] = []
        reader = Reader()
        with Publisher(server.url, 200) as publisher, consumer.consume(reader, on_error=errors.append):
            for _ in range(5):
                before = reader.count
                eventually(lambda before=before: reader.count > before + 40, 10.0)
                reconnects = nc.stats.reconnects
                server.kill()
                server.start()
                eventually(lambda reconnects=reconnects: nc.stats.reconnects == reconnects + 1, 10.0)
            before = reader.count
            eventually(lambda: reader.count > before + 40, 10.0)
            publisher.close()
            assert_nothing_lost(publisher, reader)
        assert not [error for error in errors if isinstance(error, MissedHeartbeatError)]
        established = [one for one in proxy.captured if b"CONNECT" in one.to_server]
        for one in established[1:]:
            sent = one.to_server
            inbox = sent[sent.index(b"MSG.NEXT") :].split()[1]
            assert sent.count(b"SUB " + inbox + b" ") == 1
            first_pull = sent.index(b"MSG.NEXT")
            assert sent.index(b"SUB " + inbox) < first_pull
            assert sent[first_pull:].count(b'"batch":500') <= 1


def test_consume_after_a_reconnect_sends_one_pull(server: LocalServer) -> None:
    """After each reconnect an idle consume() sends one SUB and one pull, and raises no alarm."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        errors: list[Exception] = []
        got: list[bytes] = []
        options: dict[str, Any] = {"max_messages": 500, "on_error": errors.append}
        with consumer.consume(lambda message: got.append(message.data), **options):
            for round_ in range(3):
                eventually(lambda round_=round_: proxy.captured[round_].to_server.count(b"MSG.NEXT") == 1)
                proxy.cut()
                eventually(lambda round_=round_: nc.stats.reconnects == round_ + 1, 10.0)
            nc.jetstream().publish("s.x", b"through")
            eventually(lambda: got == [b"through"])
            nc.flush()
        assert len(proxy.captured) == 4
        for one in proxy.captured[1:]:
            (pull,) = [line for line in one.to_server.split(b"\r\n") if b"MSG.NEXT" in line]
            inbox = pull.split()[2]
            assert one.to_server.count(b"SUB " + inbox) == 1
    assert errors == []


def test_buffered_messages_survive_a_reconnect(server: LocalServer) -> None:
    """Messages received before the loss are still handed out, and the next pull asks only for the free room."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc, Observer(server.url) as observer:
        consumer = stream_and_consumer(nc.jetstream(), 6, ack_wait=60)
        with consumer.messages(max_messages=20, threshold_messages=19) as messages:
            eventually(lambda: buffered(messages) == 6)
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
            observer.wait_for_pulls(2)
            assert [pull.body["batch"] for pull in observer.pulls] == [20, 14]
            assert [messages.next(2).data for _ in range(6)] == [b"%d" % number for number in range(6)]
            fill(nc.jetstream(), 3, first=6)
            assert [messages.next(2).data for _ in range(3)] == [b"6", b"7", b"8"]


def test_consume_through_a_black_hole_recovers(server: LocalServer) -> None:
    """A black hole: missed heartbeats are reported, the stale connection is replaced, and reading goes on."""
    with FaultProxy(server) as proxy:
        nc = jetstream_sync.connect(proxy.url, ping_interval=0.4, max_outstanding_pings=3)
        js = nc.jetstream()
        consumer = stream_and_consumer(js)
        errors: list[Exception] = []
        with consumer.messages(expires=1, idle_heartbeat=0.5, on_error=errors.append) as messages:
            eventually(lambda: waiting_pulls(consumer) == 1)
            proxy.black_hole("to_client")
            eventually(lambda: errors, 4.0)
            eventually(lambda: not nc.is_connected, 4.0)
            proxy.heal()
            eventually(lambda: nc.is_connected, 6.0)
            js.publish("s.x", b"again", msg_id="1", timeout=5)
            assert messages.next(4).data == b"again"
        assert all(isinstance(error, MissedHeartbeatError) for error in errors)
        nc.close()


# --- the consumer is gone when the connection is back ------------------------------------------------------


def lose_consumer(js: JetStream) -> None:
    js.delete_consumer("S", "C")


def lose_stream(js: JetStream) -> None:
    js.delete_stream("S")


def make_push(js: JetStream) -> None:
    js.delete_consumer("S", "C")
    js.create_consumer("S", durable_name="C", deliver_subject="deliver.here")


@pytest.mark.parametrize("how", ["messages", "consume"])
@pytest.mark.parametrize(
    ("change", "error"),
    [(lose_consumer, ConsumerNotFoundError), (lose_stream, StreamNotFoundError), (make_push, ConsumerIsPushError)],
)
def test_changed_while_disconnected_concludes(
    server: LocalServer, how: str, change: Callable[[JetStream], None], error: type[NatsError]
) -> None:
    """The consumer is deleted or replaced while disconnected: the check after the reconnect reports it."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        owner: Any = consumer.messages() if how == "messages" else consumer.consume(print)
        eventually(lambda: waiting_pulls(consumer) == 1)
        with jetstream_sync.connect(server.url) as other:
            proxy.refuse()
            proxy.cut()
            eventually(lambda: not nc.is_connected)
            change(other.jetstream())
            proxy.heal()
        with pytest.raises(error):
            if how == "messages":
                owner.next(5)
            else:
                owner.wait(5)
        assert refill_of(owner).ended is not None


def test_deleted_while_disconnected_without_the_check_goes_on(server: LocalServer) -> None:
    """With check_on_reconnect=False messages() goes on pulling, and works again when the consumer is back."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        errors: list[Exception] = []
        with consumer.messages(
            check_on_reconnect=False, expires=2, idle_heartbeat=0.5, on_error=errors.append
        ) as messages:
            eventually(lambda: waiting_pulls(consumer) == 1)
            with jetstream_sync.connect(server.url) as other:
                proxy.refuse()
                proxy.cut()
                eventually(lambda: not nc.is_connected)
                other.jetstream().delete_consumer("S", "C")
                proxy.heal()
                eventually(lambda: nc.is_connected)
                with pytest.raises(TimeoutError):
                    messages.next(1.2)
                assert not messages.closed
                assert b"CONSUMER.INFO" not in proxy.captured[-1].to_server
                other.jetstream().create_consumer("S", durable_name="C")
                other.jetstream().publish("s.x", b"back")
                assert messages.next(4).data == b"back"
        assert errors


def test_check_never_delays_messages(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull is sent before the check; a check without a reply delays no message."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        js = nc.jetstream()
        consumer = stream_and_consumer(js)
        asked = threading.Event()
        release = threading.Event()

        def slow_info(_: Consumer) -> None:
            asked.set()
            release.wait(5)
            raise TimeoutError("no answer")

        monkeypatch.setattr(Consumer, "get_info", slow_info)
        with consumer.messages() as messages:
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
            assert asked.wait(5)
            with jetstream_sync.connect(server.url) as other:
                other.jetstream().publish("s.x", b"on time")
            start = time.monotonic()
            assert messages.next(3).data == b"on time"
            assert time.monotonic() - start < 1
            release.set()
            assert not messages.closed


def test_connection_given_up_ends_consume_and_messages(server: LocalServer) -> None:
    """No reconnect allowed: both end with ConnectionClosedError at once."""
    with jetstream_sync.connect(server.url, allow_reconnect=False) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        messages = consumer.messages()
        context = consumer.consume(print)
        server.kill()
        with pytest.raises(ConnectionClosedError):
            messages.next(5)
        with pytest.raises(ConnectionClosedError):
            context.wait(5)


def test_stop_and_drain_while_disconnected_return_at_once(server: LocalServer) -> None:
    """Without a connection stop() and drain() return at once, and drain() hands out the buffered messages."""
    with jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 3)
        stopped, drained = consumer.messages(max_messages=2), consumer.messages(max_messages=1)
        eventually(lambda: buffered(stopped) + buffered(drained) == 3)
        count = buffered(drained)
        server.kill()
        eventually(lambda: not nc.is_connected)
        start = time.monotonic()
        stopped.stop()
        drained.drain()
        assert list(stopped) == []
        assert len(list(drained)) == count
        assert time.monotonic() - start < 1
        nc.close()


def test_restarts_under_a_slow_reader_keep_the_buffer(server: LocalServer) -> None:
    """The connection is cut while messages are unread: the buffer stays bounded and no message is lost."""
    with FaultProxy(server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 200, ack_wait=1)
        seen: set[bytes] = set()
        with consumer.messages(max_messages=20) as messages:
            loop = iter(messages)
            for round_ in range(4):
                for _ in range(7):
                    message = next(loop)
                    seen.add(message.data)
                    message.ack()
                proxy.cut()
                eventually(lambda round_=round_: nc.stats.reconnects == round_ + 1, 10.0)
                # The server may still serve the pull of the lost session: the inbox is the same.
                assert buffered(messages) <= 45
            while len(seen) < 200:
                message = messages.next(5)
                seen.add(message.data)
                message.ack()
    assert seen == {b"%d" % number for number in range(200)}
