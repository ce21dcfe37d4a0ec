"""publish_many() while servers and connections die: every message is stored, none twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from jetstream_sync import Connection, JetStream, connect
from jetstream_sync.errors import TimeoutError
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually


def stored(server: LocalServer, count: int) -> Counter[int]:
    """The numbers in the stream, and how often; read by a connection of its own."""
    with connect(server.url) as nc:
        js = nc.jetstream(timeout=20)
        assert js.get_stream("S").info.state.messages == count
        consumer = js.create_consumer("S", ack_policy="none")
        return Counter(int(message.data) for message in consumer.fetch(count, expires=30))


@pytest.mark.parametrize("named", [False, True])
def test_server_is_killed_and_started_again(nats_server: LocalServer, js: JetStream, named: bool) -> None:
    """Two crashes in the midst: what was not acknowledged is sent again with its id, and the totals are exact."""
    js.create_stream(name="S", subjects=["s.>"])

    def messages() -> Iterator[tuple[object, ...]]:
        for number in range(30_000):
            if number in (10_000, 20_000):
                nats_server.kill()
                nats_server.start()
            yield ("s.a", b"%d" % number, None, f"id-{number}") if named else ("s.a", b"%d" % number)

    summary = js.publish_many(messages(), timeout=30)
    assert (summary.published, summary.sent, summary.streams) == (30_000, 30_000, ("S",))
    assert stored(nats_server, 30_000) == Counter(range(30_000))


def test_connection_that_breaks_again_and_again(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """What was on its way is sent again, and stored once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")

    def messages() -> Iterator[tuple[object, ...]]:
        for number in range(20_000):
            if number % 3000 == 2999:
                nc.force_reconnect()
            yield "s.a", b"%d" % number

    assert js.publish_many(messages(), timeout=30).published == 20_000
    assert stored(nats_server, 20_000) == Counter(range(20_000))


def test_server_that_stays_away(nats_server: LocalServer, js: JetStream) -> None:
    """After the timeout without an ack: TimeoutError with a summary of what is stored; nothing is sent later."""
    js.create_stream(name="S", subjects=["s.>"])

    def messages() -> Iterator[tuple[object, ...]]:
        for number in range(20_000):
            if number == 10_000:
                nats_server.kill()
            yield "s.a", b"%d" % number

    with pytest.raises(TimeoutError) as caught:
        js.publish_many(messages(), timeout=1)
    summary = caught.value.summary
    assert summary.published < summary.sent
    nats_server.start()
    with connect(nats_server.url) as nc:
        count = nc.jetstream(timeout=20).get_stream("S").info.state.messages
        assert summary.published <= count <= 10_000
    js.publish("s.a", b"-1", timeout=20)  # the connection is back: what it may have kept has left by now
    assert max(stored(nats_server, count + 1).values()) == 1


def test_slow_iterable_does_not_delay_what_was_lost(nats_server: LocalServer, js: JetStream) -> None:
    """What was on its way at a disconnect is sent again with the next message, not when the window is full.

    An hour later the stream would have forgotten the id: the message would be stored twice.
    """
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    with FaultProxy(nats_server) as proxy, connect(proxy.url) as nc:

        def copies() -> int:
            return sum(connection.to_server.count(b"first-of-all") for connection in proxy.captured)

        def messages() -> Iterator[tuple[object, ...]]:
            yield "s.a", b"0"
            eventually(lambda: js.get_stream("S").info.state.messages == 1)
            proxy.black_hole("to_client")
            yield "s.a", b"1", None, "first-of-all"
            eventually(lambda: js.get_stream("S").info.state.messages == 2)
            proxy.cut()
            proxy.heal()
            for number in range(2, 300):
                yield "s.a", b"%d" % number
                if copies() == 2:
                    return
                time.sleep(0.1)
            raise AssertionError("it waits for the end of the iterable")

        summary = nc.jetstream().publish_many(messages(), timeout=30)
    assert summary.published == summary.sent
    assert stored(nats_server, summary.sent) == Counter(range(summary.sent))


def test_server_that_takes_fewer_at_once() -> None:
    """More messages at once than the server queues for a stream: it refuses some, and they are sent again."""
    with LocalServer(config="jetstream { max_buffered_msgs: 300 }") as server, connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="memory")
        assert js.publish_many((("s.a", b"%d" % number) for number in range(5000)), timeout=30).published == 5000
        assert stored(server, 5000) == Counter(range(5000))
