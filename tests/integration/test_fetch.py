"""fetch and fetch_nowait against a real server."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerDeletedError,
    MissedHeartbeatError,
    NotConnectedError,
    PermissionsError,
    PullError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.protocol.subjects import new_inbox
from jetstream_sync.testing import LocalServer
from tests.support.consuming import buffered
from tests.support.eventually import eventually
from tests.support.observer import Observer, await_pending, fill, stream_and_consumer, waiting_pulls
from tests.support.signals import Interrupted, interrupted_after
from tests.support.watchdog import InThread


def interest(server: LocalServer) -> int:
    """How many inboxes of pulls the server knows (the request inbox has a wildcard)."""
    connections = server.monitor("/connz?subs=1")["connections"]
    subjects = [subject for one in connections for subject in one.get("subscriptions_list") or ()]
    return sum(subject.startswith("_INBOX.") and "*" not in subject for subject in subjects)


# --- what is asked ------------------------------------------------------------------------------------


def test_fetch_request_has_batch_and_expires_only(js: JetStream, nats_server: LocalServer) -> None:
    """A short fetch asks for its batch and expiry and for no heartbeat."""
    consumer = stream_and_consumer(js, 1)
    with Observer(nats_server.url) as observer:
        list(consumer.fetch(1, expires=2))
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body == {"batch": 1, "expires": 2_000_000_000}
        assert pull.subject == "$JS.API.CONSUMER.MSG.NEXT.S.C"


def test_fetch_over_30_seconds_asks_for_heartbeats(js: JetStream, nats_server: LocalServer) -> None:
    """A fetch of more than 30 s asks for heartbeats by itself, at most every 30 s."""
    consumer = stream_and_consumer(js, 2)
    with Observer(nats_server.url) as observer:
        list(consumer.fetch(1, expires=31))
        list(consumer.fetch(1, expires=100))
        first, second = observer.wait_for_pulls(2)
        assert first.body["idle_heartbeat"] == 15_500_000_000
        assert second.body["idle_heartbeat"] == 30_000_000_000


def test_fetch_by_bytes_asks_for_a_million_messages(js: JetStream, nats_server: LocalServer) -> None:
    """With max_bytes alone `batch` is 1 000 000."""
    consumer = stream_and_consumer(js)
    with Observer(nats_server.url) as observer:
        list(consumer.fetch_nowait(max_bytes=1000))
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body == {"batch": 1_000_000, "max_bytes": 1000, "no_wait": True}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ValueError),
        ({"max_messages": 0}, ValueError),
        ({"max_messages": -1}, ValueError),
        ({"max_messages": 1.5}, TypeError),
        ({"max_bytes": 0}, ValueError),
        ({"max_messages": 1, "expires": 0}, ValueError),
        ({"max_messages": 1, "expires": -1}, ValueError),
        ({"max_messages": 1, "expires": float("nan")}, ValueError),
        ({"max_messages": 1, "expires": None}, TypeError),
        ({"max_messages": 1, "expires": 1, "idle_heartbeat": 0.6}, ValueError),
        ({"max_messages": 1, "group": ""}, ValueError),
        ({"max_messages": 1, "min_pending": 1}, ValueError),
        ({"max_messages": 1, "group": "g", "priority": 10}, ValueError),
    ],
)
def test_fetch_refuses_bad_options_before_sending(
    js: JetStream, nc: Connection, nats_server: LocalServer, options: dict[str, Any], error: type[Exception]
) -> None:
    """A bad option is refused at the call, and not a byte is sent."""
    consumer = stream_and_consumer(js)
    with Observer(nats_server.url) as observer:
        with pytest.raises(error):
            consumer.fetch(**options)
        observer.settle(nc)
        assert observer.pulls == []


# --- how it ends --------------------------------------------------------------------------------------


def test_fetch_with_fewer_messages_waits_out_its_expiry(js: JetStream) -> None:
    """fetch(10, expires=2) with 3 messages: 3 messages, then a normal end between 1.9 and 3.5 s."""
    consumer = stream_and_consumer(js, 3)
    start = time.monotonic()
    assert [msg.data for msg in consumer.fetch(10, expires=2)] == [b"0", b"1", b"2"]
    assert 1.9 <= time.monotonic() - start <= 3.5


def test_fetch_yields_messages_as_they_arrive(js: JetStream) -> None:
    """A message is handed out when it comes, not when the batch is over."""
    consumer = stream_and_consumer(js)
    batch = iter(consumer.fetch(2, expires=5))
    js.publish("s.x", b"first")
    start = time.monotonic()
    assert next(batch).data == b"first"
    assert time.monotonic() - start < 1
    js.publish("s.x", b"second")
    assert next(batch).data == b"second"
    assert list(batch) == []


def test_fetch_filled_ends_at_once(js: JetStream) -> None:
    """A filled batch does not wait for anything more."""
    consumer = stream_and_consumer(js, 10)
    start = time.monotonic()
    assert len(list(consumer.fetch(10, expires=10))) == 10
    assert time.monotonic() - start < 2


def test_fetch_nowait_takes_only_what_is_there(js: JetStream) -> None:
    """fetch_nowait ends at once: with nothing, with a part, with all."""
    consumer = stream_and_consumer(js)
    start = time.monotonic()
    assert list(consumer.fetch_nowait(10)) == []
    fill(js, 3)
    await_pending(consumer, 3)
    assert len(list(consumer.fetch_nowait(10))) == 3
    fill(js, 5)
    await_pending(consumer, 5)
    assert len(list(consumer.fetch_nowait(5))) == 5
    assert time.monotonic() - start < 2


def test_fetch_by_bytes_with_exact_fit_ends_at_once(js: JetStream) -> None:
    """Messages that use up max_bytes to the byte end the fetch though the server says nothing."""
    consumer = stream_and_consumer(js, 4)
    await_pending(consumer, 4)
    sizes = [len(msg.subject) + len(msg.reply or "") + len(msg.data) for msg in consumer.fetch_nowait(4)]
    js.delete_consumer("S", "C")
    consumer = js.create_consumer("S", durable_name="C")
    start = time.monotonic()
    assert len(list(consumer.fetch(max_bytes=sum(sizes), expires=10))) == 4
    assert time.monotonic() - start < 2


def test_fetch_by_bytes_ends_before_a_message_that_does_not_fit(js: JetStream) -> None:
    """What fits is delivered, the rest is left for the next fetch."""
    consumer = stream_and_consumer(js)
    fill(js, 5, size=100)
    start = time.monotonic()
    first = list(consumer.fetch(max_bytes=400, expires=10))
    assert 1 <= len(first) < 5
    assert time.monotonic() - start < 2
    assert next(iter(consumer.fetch(1))).data.startswith(b"%d." % len(first))


def test_fetch_by_bytes_with_too_large_a_message_says_why(js: JetStream) -> None:
    """When the next message can never fit, the fetch raises what the server says, and at once."""
    consumer = stream_and_consumer(js)
    fill(js, 1, size=1000)
    start = time.monotonic()
    with pytest.raises(PullError, match="Message Size Exceeds MaxBytes") as caught:
        list(consumer.fetch(max_bytes=100, expires=10))
    assert caught.value.code == 409
    assert time.monotonic() - start < 2


def test_fetch_consumer_deleted_after_two_of_ten(js: JetStream) -> None:
    """The two messages come first, then ConsumerDeletedError, within 1.5 s of the deletion."""
    consumer = stream_and_consumer(js, 2)
    batch = iter(consumer.fetch(10, expires=20))
    got = [next(batch), next(batch)]
    threading.Timer(0.2, js.delete_consumer, ("S", "C")).start()
    start = time.monotonic()
    with pytest.raises(ConsumerDeletedError):
        next(batch)
    assert time.monotonic() - start < 1.5
    assert [msg.data for msg in got] == [b"0", b"1"]


def test_fetch_unread_messages_come_before_the_error(js: JetStream) -> None:
    """Messages received before the deletion are handed out even if they were not read until after it."""
    consumer = stream_and_consumer(js, 2)
    batch = consumer.fetch(10, expires=20)
    eventually(lambda: buffered(batch) == 2)
    js.delete_consumer("S", "C")
    got = []
    with pytest.raises(ConsumerDeletedError):
        for msg in batch:
            got.append(msg.data)
    assert got == [b"0", b"1"]
    assert list(batch) == []


def test_fetch_stream_deleted_ends_typed_within_a_second(js: JetStream) -> None:
    """A stream that is deleted takes its consumers with it."""
    consumer = stream_and_consumer(js)
    batch = consumer.fetch(10, expires=20)
    waiting = InThread(list, batch)
    eventually(lambda: waiting_pulls(consumer) == 1)
    start = time.monotonic()
    js.delete_stream("S")
    assert isinstance(waiting.error(5), ConsumerDeletedError)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("config", "fetch", "text"),
    [
        ({"max_batch": 5}, {"max_messages": 6}, "MaxRequestBatch of 5"),
        ({"max_expires": 2}, {"max_messages": 1, "expires": 3}, "MaxRequestExpires of 2s"),
        ({"max_bytes": 100}, {"max_bytes": 101}, "MaxRequestMaxBytes of 100"),
    ],
)
def test_fetch_over_a_limit_raises_the_servers_text(
    js: JetStream, config: dict[str, Any], fetch: dict[str, Any], text: str
) -> None:
    """A limit of the consumer's is told in the server's own words, at once."""
    consumer = stream_and_consumer(js, **config)
    start = time.monotonic()
    with pytest.raises(PullError, match=text):
        list(consumer.fetch(**fetch))
    assert time.monotonic() - start < 1


def test_fetch_on_a_full_consumer_raises_max_waiting(js: JetStream) -> None:
    """One pull more than max_waiting allows is refused."""
    consumer = stream_and_consumer(js, max_waiting=1)
    with consumer.fetch(1, expires=5):
        eventually(lambda: waiting_pulls(consumer) == 1)
        with pytest.raises(PullError, match="Exceeded MaxWaiting"):
            list(consumer.fetch(1, expires=2))


# --- how it is left -----------------------------------------------------------------------------------


def test_fetch_left_early_removes_interest_at_once(js: JetStream, nats_server: LocalServer) -> None:
    """break, close(), `with`, and dropping the batch each tell the server at once."""
    consumer = stream_and_consumer(js, 1)

    def leave_by_break() -> None:
        for _ in consumer.fetch(10, expires=20):
            break

    def leave_by_close() -> None:
        batch = consumer.fetch(10, expires=20)
        batch.close()
        assert list(batch) == []

    def leave_by_with() -> None:
        with consumer.fetch(10, expires=20):
            pass

    def leave_by_dropping() -> None:
        consumer.fetch(10, expires=20)

    for leave in (leave_by_break, leave_by_close, leave_by_with, leave_by_dropping):
        leave()
        eventually(lambda: interest(nats_server) == 0, 1.0, leave.__name__)


def test_fetch_in_a_reference_cycle_is_freed_by_the_collector(js: JetStream, nats_server: LocalServer) -> None:
    """A batch and its half-used iterator that only the garbage collector finds remove their interest, too."""
    consumer = stream_and_consumer(js, 1)
    batch = consumer.fetch(10, expires=20)
    iterator = iter(batch)
    next(iterator)
    cycle: list[Any] = [batch, iterator]
    cycle.append(cycle)
    del batch, iterator, cycle
    gc.collect()
    eventually(lambda: interest(nats_server) == 0, 1.0)


def test_fetch_freed_while_the_connection_lock_is_held_does_not_deadlock(
    js: JetStream, nc: Connection, nats_server: LocalServer
) -> None:
    """The collector may free a batch in any thread at any moment, also inside of the library."""
    consumer = stream_and_consumer(js)

    def free_under_lock() -> None:
        batch = consumer.fetch(10, expires=20)
        with link_of(nc)._lock:
            del batch

    InThread(free_under_lock).result(3)
    eventually(lambda: interest(nats_server) == 0, 1.0)


def test_fetch_abandoned_takes_no_message(js: JetStream) -> None:
    """After an abandoned fetch the next message goes to the next fetch, delivered for the first time."""
    consumer = stream_and_consumer(js)
    for _ in range(10):
        consumer.fetch(10, expires=20).close()
        js.publish("s.x")
        (message,) = consumer.fetch(1, expires=2)
        assert message.metadata.num_delivered == 1
        message.ack()


def test_fetch_left_by_a_signal_handlers_exception_loses_nothing(js: JetStream) -> None:
    """In 20 of 20 rounds the next fetch gets the next message at once, with delivery count 1."""
    consumer = stream_and_consumer(js)
    for _ in range(20):
        with pytest.raises(Interrupted), interrupted_after(0.02, Interrupted):
            list(consumer.fetch(10, expires=20))
        js.publish("s.x")
        start = time.monotonic()
        (message,) = consumer.fetch(1, expires=2)
        assert time.monotonic() - start < 1
        assert message.metadata.num_delivered == 1
        message.ack()


def test_fetch_interrupted_by_ctrl_c_ends_within_a_second(js: JetStream, nats_server: LocalServer) -> None:
    """KeyboardInterrupt gets out of a waiting fetch, and the interest is gone."""
    consumer = stream_and_consumer(js)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.2, KeyboardInterrupt):
        list(consumer.fetch(10, expires=20))
    assert time.monotonic() - start < 1.2
    eventually(lambda: interest(nats_server) == 0, 1.0)


def test_fetch_messages_not_handed_out_come_again(js: JetStream) -> None:
    """Messages that were received but not handed out are never acked silently."""
    consumer = stream_and_consumer(js, 5, ack_wait=1)
    batch = consumer.fetch(5, expires=5)
    eventually(lambda: buffered(batch) == 5)
    batch.close()
    again = list(consumer.fetch(5, expires=5))
    assert sorted(msg.data for msg in again) == [b"0", b"1", b"2", b"3", b"4"]
    assert {msg.metadata.num_delivered for msg in again} == {2}


# --- heartbeats, connection, permissions ---------------------------------------------------------------


def test_fetch_idle_with_heartbeats_ends_normally(js: JetStream) -> None:
    """Heartbeats are no messages, and keep the fetch alive until it expires."""
    consumer = stream_and_consumer(js)
    start = time.monotonic()
    assert list(consumer.fetch(1, expires=2, idle_heartbeat=0.3)) == []
    assert 1.9 < time.monotonic() - start < 3.5


def test_fetch_slow_reader_is_no_missed_heartbeat(js: JetStream) -> None:
    """Heartbeats are judged by arrival: a loop body longer than two of them is no alarm."""
    consumer = stream_and_consumer(js, 2)
    got = []
    for msg in consumer.fetch(3, expires=2, idle_heartbeat=0.2):
        got.append(msg.data)
        if len(got) == 1:
            threading.Event().wait(1.0)
    assert got == [b"0", b"1"]


def test_fetch_by_a_silent_server_ends_by_missed_heartbeats() -> None:
    """A stopped server: MissedHeartbeatError after two intervals; without heartbeats the client's deadline."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        try:
            batch = consumer.fetch(1, expires=10, idle_heartbeat=0.5)
            plain = consumer.fetch(1, expires=1)
            nc.flush()
            server.pause()
            start = time.monotonic()
            with pytest.raises(MissedHeartbeatError):
                list(batch)
            assert time.monotonic() - start < 1.5
            assert list(plain) == []
            assert time.monotonic() - start < 3
        finally:
            server.resume()


def test_fetch_connection_lost_ends_at_once_after_its_messages() -> None:
    """What was received comes first, then ConnectionLostError: the expiry is not sat out."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 2)
        batch = consumer.fetch(10, expires=20)
        eventually(lambda: buffered(batch) == 2)
        server.kill()
        start = time.monotonic()
        got = []
        with pytest.raises(ConnectionLostError):
            for msg in batch:
                got.append(msg.data)
        assert time.monotonic() - start < 1
        assert got == [b"0", b"1"]
        nc.close()


def test_fetch_while_disconnected_waits_for_the_connection() -> None:
    """A fetch made while disconnected goes out when the connection is back, heartbeats or not."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 4)
        server.kill()
        eventually(lambda: not nc.is_connected)
        fetches = [
            InThread(list, consumer.fetch(1, expires=15)),
            InThread(list, consumer.fetch(1, expires=15, idle_heartbeat=0.5)),
            InThread(list, consumer.fetch_nowait(1)),
            InThread(consumer.next, 15),
        ]
        threading.Event().wait(1.1)  # longer than two heartbeats
        server.start()
        assert [len(fetch.result(15)) for fetch in fetches[:3]] == [1, 1, 1]
        assert fetches[3].result(15) is not None


def test_fetch_while_disconnected_for_too_long_says_so() -> None:
    """When no connection comes the fetch ends by its deadline, and says that it is the connection."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        server.kill()
        eventually(lambda: not nc.is_connected)
        start = time.monotonic()
        fetches = [
            InThread(list, consumer.fetch(1, expires=0.5)),
            InThread(list, consumer.fetch(1, expires=0.5, idle_heartbeat=0.2)),
        ]
        assert [type(fetch.error(5)) for fetch in fetches] == [NotConnectedError] * 2
        assert 1 < time.monotonic() - start < 3
        nc.close()
        with pytest.raises(ConnectionClosedError):
            consumer.fetch(1)


def test_fetch_denied_by_permissions_fails_within_a_second() -> None:
    """A pull that the server denies fails at once, naming the subject; the connection stays."""
    config = """
    authorization { users: [
        { user: a, password: a }
        { user: b, password: b, permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } }
    ] }
    """
    with LocalServer(config=config) as server:
        with jetstream_sync.connect(server.url, user="a", password="a") as nc:
            stream_and_consumer(nc.jetstream(), 1)
        with jetstream_sync.connect(server.url, user="b", password="b", error_cb=lambda _: None) as nc:
            consumer = nc.jetstream().get_consumer("S", "C")
            calls = (
                lambda: list(consumer.fetch(1, expires=10)),
                lambda: list(consumer.fetch_nowait(1)),
                lambda: consumer.next(10),
                lambda: consumer.messages().next(10),
                lambda: consumer.consume(print).wait(10),
            )
            for call in calls:
                start = time.monotonic()
                with pytest.raises(PermissionsError, match=r"CONSUMER\.MSG\.NEXT\.S\.C"):
                    call()
                assert time.monotonic() - start < 1
            assert nc.is_connected
            assert nc.stats.reconnects == 0


def test_fetch_with_a_denied_inbox_fails_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that may not subscribe to its inbox is told so by every way of consuming."""
    config = """
    authorization { users: [
        { user: a, password: a }
        { user: b, password: b, permissions: { subscribe: { deny: "_INBOX.>", allow: "_OK.>" } } }
    ] }
    """
    with LocalServer(config=config) as server:
        with jetstream_sync.connect(server.url, user="a", password="a") as nc:
            stream_and_consumer(nc.jetstream(), 1)
        with jetstream_sync.connect(
            server.url, user="b", password="b", error_cb=lambda _: None, inbox_prefix="_OK"
        ) as nc:
            consumer = nc.jetstream().get_consumer("S", "C")
            # Requests have their allowed inbox already; those of the pulls are denied.
            monkeypatch.setattr(link_of(nc), "next_inbox", lambda: new_inbox("_INBOX").encode())
            calls = (
                lambda: list(consumer.fetch(1, expires=10)),
                lambda: consumer.next(10),
                lambda: consumer.messages().next(10),
                lambda: consumer.consume(print).wait(10),
            )
            for call in calls:
                start = time.monotonic()
                with pytest.raises(PermissionsError):
                    call()
                assert time.monotonic() - start < 1
