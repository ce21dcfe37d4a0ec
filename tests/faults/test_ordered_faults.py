"""The ordered consumer under faults: every message comes once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

import jetstream_sync
from jetstream_sync import (
    Connection,
    JetStream,
    MessageStream,
    MissedHeartbeatError,
    NatsError,
    OrderedConsumer,
    TimeoutError,
)
from jetstream_sync.testing import LocalCluster, LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.clusters import leader_of, step_down
from tests.support.eventually import eventually
from tests.support.ordered import publish
from tests.support.threads import thread_names
from tests.support.watchdog import InThread, under_watchdog


@pytest.fixture
def through_proxy(proxy: FaultProxy) -> Iterator[Connection]:
    """A connection through the proxy. `js` is connected to the server directly."""
    connection = jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05)
    yield connection
    proxy.heal()
    connection.close()


class Publisher:
    """Publishes 1, 2, 3 … at a steady rate over a connection of its own, and retries through every fault."""

    def __init__(self, servers: list[str], total: int, rate: float, subject: str = "s.x") -> None:
        self.total = total
        self.published = 0
        self._servers = servers
        self._interval = 1 / rate
        self._subject = subject
        self._never = threading.Event()
        self.thread = InThread(self._run)

    def _run(self) -> None:
        with jetstream_sync.connect(self._servers, reconnect_time_wait=0.02) as nc:
            js = nc.jetstream()
            start = time.monotonic()
            for number in range(1, self.total + 1):
                self._never.wait(max(0.0, start + number * self._interval - time.monotonic()))
                js.publish(
                    self._subject,
                    b"%d" % number,
                    msg_id=str(number),
                    timeout=30,
                    retry_attempts=1000,
                    retry_wait=0.02,
                )
                self.published = number

    def reached(self, count: int) -> None:
        eventually(lambda: self.published >= count or not self.thread.running, timeout=30)


# One reader of `total` messages for each way to read. A fetch that fails is followed by the next one.


def read_messages(ordered: OrderedConsumer, seen: list[int], total: int) -> None:
    with ordered.messages(max_messages=64, on_error=lambda error: None) as messages:
        for message in messages:
            seen.append(int(message.data))
            if len(seen) >= total:
                break


def read_consume(ordered: OrderedConsumer, seen: list[int], total: int) -> None:
    done = threading.Event()

    def callback(message: jetstream_sync.JetStreamMessage) -> None:
        seen.append(int(message.data))
        if len(seen) >= total:
            done.set()

    with ordered.consume(callback, max_messages=64, on_error=lambda error: None) as context:
        eventually(lambda: done.is_set() or context.closed, timeout=60)


def read_fetch(ordered: OrderedConsumer, seen: list[int], total: int) -> None:
    while len(seen) < total:
        try:
            for message in ordered.fetch(25, expires=0.5):
                seen.append(int(message.data))
        except NatsError:
            pass


def read_next(ordered: OrderedConsumer, seen: list[int], total: int) -> None:
    while len(seen) < total:
        try:
            message = ordered.next(expires=0.5)
        except NatsError:
            continue
        if message is not None:
            seen.append(int(message.data))


READERS: list[Callable[[OrderedConsumer, list[int], int], None]] = [
    read_messages,
    read_consume,
    read_fetch,
    read_next,
]


def assert_ordered(seen: list[int], total: int, what: str = "") -> None:
    """`seen` is 1 … total: nothing lost, nothing twice, nothing out of order."""
    lost = sorted(set(range(1, total + 1)) - set(seen))
    assert not lost, f"{what}: lost {lost[:20]}"
    assert seen == list(range(1, total + 1)), f"{what}: not in order, or doubled"


def take(messages: MessageStream, count: int, timeout: float = 10) -> list[int]:
    return [int(messages.next(timeout=timeout).data) for _ in range(count)]


def delete_consumers(js: JetStream) -> None:
    for name in list(js.get_stream("S").consumer_names()):
        try:
            js.delete_consumer("S", name)
        except NatsError:
            pass  # the consumer was replaced meanwhile


def test_a_thousand_messages_over_a_killed_server_and_deleted_consumers() -> None:
    """300 messages/s, kill -9 and restart, then all consumers deleted: 1 … 1000 for each way to read."""
    total = 1000
    with LocalServer() as server, jetstream_sync.connect(server.url, reconnect_time_wait=0.02) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="file")
        connections = [jetstream_sync.connect(server.url, reconnect_time_wait=0.02) for _ in READERS]
        seen: list[list[int]] = [[] for _ in READERS]
        readers = [
            InThread(read, connection.jetstream().ordered_consumer("S"), numbers, total)
            for read, connection, numbers in zip(READERS, connections, seen, strict=True)
        ]
        publisher = Publisher([server.url], total, rate=300)
        publisher.reached(300)
        server.kill()
        server.start()
        publisher.reached(600)
        eventually(lambda: nc.is_connected)
        delete_consumers(js)
        publisher.thread.result(30)
        for read, reader, numbers in zip(READERS, readers, seen, strict=True):
            reader.result(30)
            assert_ordered(numbers, total, read.__name__)
        # fetch() and next() keep their consumers for the next call; messages() and consume() have deleted theirs.
        eventually(lambda: len(list(js.get_stream("S").consumer_names())) <= 2)
        for connection in connections:
            connection.close()


def test_missed_heartbeats_bring_a_new_consumer(
    js: JetStream, proxy: FaultProxy, through_proxy: Connection
) -> None:
    """Missed heartbeats are reported in time. Late messages of the old consumer are discarded."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    errors: list[tuple[float, Exception]] = []
    ordered = through_proxy.jetstream(timeout=1).ordered_consumer("S")
    publish(js, 1, 5)
    with ordered.messages(
        expires=1, idle_heartbeat=0.5, on_error=lambda error: errors.append((time.monotonic(), error))
    ) as messages:
        assert take(messages, 5) == [1, 2, 3, 4, 5]
        first = ordered.name
        proxy.black_hole("to_client")
        start = time.monotonic()
        publish(js, 6, 20)  # the proxy holds them back, on their way to the old inbox
        taker = InThread(take, messages, 15)
        eventually(lambda: errors)
        assert 0.4 <= errors[0][0] - start <= 1.6  # two heartbeats after the last message or heartbeat
        assert isinstance(errors[0][1], MissedHeartbeatError)
        proxy.heal()
        assert taker.result(15) == list(range(6, 21))
        publish(js, 21, 22)
        assert take(messages, 2) == [21, 22]
        assert ordered.name != first
        assert through_proxy.stats.reconnects == 0
        eventually(lambda: list(js.get_stream("S").consumer_names()) == [ordered.name])


def test_next_keeps_its_time_while_the_server_is_silent(nats_server: LocalServer, js: JetStream) -> None:
    """SIGSTOP: next(timeout) raises in time while the consumer is being replaced."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(js, 1, 1)
    with jetstream_sync.connect(nats_server.url) as nc:
        errors: list[Exception] = []
        messages = (
            nc.jetstream().ordered_consumer("S").messages(expires=1, idle_heartbeat=0.5, on_error=errors.append)
        )
        assert take(messages, 1) == [1]
        nats_server.pause()
        try:
            while not errors:
                waiting = InThread(messages.next, 0.2)
                assert isinstance(waiting.error(), TimeoutError)
                assert 0.19 <= waiting.seconds < 0.5
            waiting = InThread(messages.next, 0.2)
            assert isinstance(waiting.error(), TimeoutError)
            assert 0.19 <= waiting.seconds < 0.5
        finally:
            nats_server.resume()
        publish(js, 2, 4)
        assert take(messages, 3) == [2, 3, 4]
        messages.stop()


@pytest.mark.parametrize("read", READERS)
def test_reconnects_that_leave_the_consumer_alive_lose_nothing(
    js: JetStream,
    nats_server: LocalServer,
    proxy: FaultProxy,
    through_proxy: Connection,
    read: Callable[..., None],
) -> None:
    """The connection is cut and reset while messages arrive: those in flight are delivered again, once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    total = 400
    seen: list[int] = []
    reader = InThread(read, through_proxy.jetstream().ordered_consumer("S"), seen, total)
    publisher = Publisher([nats_server.url], total, rate=400)
    for mark, fault in ((80, proxy.cut), (160, proxy.reset), (240, lambda: proxy.cut_after(700))):
        publisher.reached(mark)
        before = through_proxy.stats.reconnects
        fault()
        eventually(lambda before=before: through_proxy.stats.reconnects > before)  # type: ignore[misc]
    publisher.thread.result(30)
    reader.result(30)
    assert_ordered(seen, total, read.__name__)
    eventually(lambda: len(list(js.get_stream("S").consumer_names())) <= 1)


def test_messages_lost_with_the_connection_come_though_nothing_follows(
    js: JetStream, proxy: FaultProxy, through_proxy: Connection
) -> None:
    """The last messages of the stream are lost with the connection and come after the reconnect.

    No later message reveals the gap.
    """
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    with through_proxy.jetstream().ordered_consumer("S").messages() as messages:
        proxy.cut_after(600)
        publish(js, 1, 40)
        assert take(messages, 40) == list(range(1, 41))
        assert through_proxy.stats.reconnects == 1


def test_stop_while_the_server_is_away_ends_at_once(js: JetStream, nats_server: LocalServer) -> None:
    """stop() ends the consuming thread, wait() and the recovery thread, although the server is away."""
    js.create_stream(name="S", subjects=["s.>"], storage="file")
    nc = jetstream_sync.connect(nats_server.url)
    messages = nc.jetstream().ordered_consumer("S").messages(on_error=lambda error: None)
    context = nc.jetstream().ordered_consumer("S").consume(lambda message: None, on_error=lambda error: None)
    taker = InThread(list, messages)
    nats_server.kill()
    eventually(lambda: thread_names("js-ordered"))
    messages.stop()
    context.stop()
    assert taker.result(1) == []
    assert under_watchdog(context.wait, 1) is True
    under_watchdog(nc.close, limit=3)
    nats_server.start()


def test_ordered_consumer_made_while_disconnected_works_after_the_reconnect(
    js: JetStream, proxy: FaultProxy, through_proxy: Connection
) -> None:
    """messages() waits for the reconnect for as long as an API request may take."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(js, 1, 3)
    proxy.refuse()
    proxy.cut()
    eventually(lambda: through_proxy.is_reconnecting)
    starting = InThread(through_proxy.jetstream().ordered_consumer("S").messages)
    impatient = InThread(through_proxy.jetstream().ordered_consumer("S").fetch, 1, expires=0.2)
    assert isinstance(impatient.error(), NatsError)
    assert impatient.seconds < 2
    proxy.heal()
    messages = starting.result(10)
    assert take(messages, 3) == [1, 2, 3]
    messages.stop()


def test_leader_changes_and_the_loss_of_a_node_in_a_cluster(nats_cluster: LocalCluster) -> None:
    """Three step-downs of the stream's leader, then the death of the node that has the consumer."""
    total = 600
    with jetstream_sync.connect(nats_cluster.urls, reconnect_time_wait=0.05) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s.>"], storage="file", num_replicas=3)
        ordered = js.ordered_consumer("S")
        seen: list[int] = []
        errors: list[Exception] = []
        with ordered.consume(
            lambda message: seen.append(int(message.data)),
            expires=2,
            idle_heartbeat=1,
            on_error=errors.append,
        ) as context:
            publisher = Publisher(nats_cluster.urls, total, rate=100)
            for mark in (50, 150, 250):
                publisher.reached(mark)
                leader = leader_of(nats_cluster, stream)
                step_down(nc, "S")
                eventually(lambda old=leader: leader_of(nats_cluster, stream) is not old, timeout=15)
            publisher.reached(350)
            home = ordered.get_info().cluster.leader  # type: ignore[union-attr]
            node = next(node for node in nats_cluster.nodes if node.name == home)
            node.kill()
            publisher.thread.result(60)
            eventually(lambda: len(seen) >= total or context.closed, timeout=30)
            assert context.error is None
        node.start()
    assert_ordered(seen, total)
