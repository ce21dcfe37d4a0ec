"""Messages of a consumer: their acknowledgements as an observer sees them on the wire, and their metadata."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    Consumer,
    JetStream,
    JetStreamMessage,
    NoRespondersError,
    Stream,
    TimeoutError,
    connect,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.forks import in_child, raised_by
from tests.support.observer import fill
from tests.support.platforms import needs_fork_hooks


@pytest.fixture
def consumer(stream: Stream) -> Consumer:
    return stream.create_consumer(durable_name="c", ack_wait=30)


class Acks:
    """What is published to `$JS.ACK.>`, seen by a connection of its own."""

    def __init__(self, server: LocalServer) -> None:
        self.nc = connect(server.url)
        self._sub = self.nc.subscribe("$JS.ACK.>")
        self.nc.flush()
        self.subjects: list[str] = []
        self._bodies: list[bytes] = []

    def seen(self, sender: Connection) -> list[bytes]:
        """All bodies so far. Both connections are flushed: what was sent before the call has come."""
        sender.flush()
        self.nc.flush()
        return self.arrived()

    def arrived(self) -> list[bytes]:
        """All bodies that have come by themselves."""
        while True:
            try:
                msg = self._sub.next_msg(timeout=0)
            except TimeoutError:
                return list(self._bodies)
            self.subjects.append(msg.subject)
            self._bodies.append(msg.data)


@pytest.fixture
def acks(nats_server: LocalServer) -> Iterator[Acks]:
    observer = Acks(nats_server)
    yield observer
    observer.nc.close()


def one(js: JetStream, consumer: Consumer) -> JetStreamMessage:
    js.publish("s.a", b"x")
    message = consumer.next(expires=5)
    assert message is not None
    return message


# --- on the wire ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "bodies"),
    [
        (lambda m: (m.ack(),), [b"+ACK"]),
        (lambda m: (m.nak(),), [b"-NAK"]),
        (lambda m: (m.nak(delay=1),), [b'-NAK {"delay":1000000000}']),
        (lambda m: (m.nak(delay=0.25),), [b'-NAK {"delay":250000000}']),
        (lambda m: (m.nak(timedelta(minutes=1)),), [b'-NAK {"delay":60000000000}']),
        (lambda m: (m.term(),), [b"+TERM"]),
        (lambda m: (m.term("bad order"),), [b"+TERM bad order"]),
        (lambda m: (m.in_progress(),), [b"+WPI"]),
        (lambda m: (m.ack(), m.ack()), [b"+ACK"]),
        (lambda m: (m.ack(), m.nak()), [b"+ACK"]),
        (lambda m: (m.ack(), m.term("late")), [b"+ACK"]),
        (lambda m: (m.ack(), m.in_progress()), [b"+ACK"]),
        (lambda m: (m.nak(), m.ack()), [b"-NAK"]),
        (lambda m: (m.nak(delay=60), m.nak()), [b'-NAK {"delay":60000000000}']),
        (lambda m: (m.term(), m.ack()), [b"+TERM"]),
        (lambda m: (m.ack(), m.ack_sync()), [b"+ACK"]),
        (lambda m: (m.ack_sync(), m.ack()), [b"+ACK"]),
        (lambda m: (m.nak_sync(),), [b"-NAK"]),
        (lambda m: (m.nak_sync(delay=60), m.nak_sync()), [b'-NAK {"delay":60000000000}']),
        (lambda m: (m.term_sync("bad order"), m.nak_sync()), [b"+TERM bad order"]),
        (lambda m: (m.term_sync(), m.ack_sync()), [b"+TERM"]),
        (lambda m: (m.in_progress(), m.in_progress(), m.in_progress(), m.ack()), [b"+WPI"] * 3 + [b"+ACK"]),
    ],
    ids=["ack", "nak", "nak 1 s", "nak 250 ms", "nak 1 min", "term", "term with reason", "progress", "ack twice",
         "ack nak", "ack term", "ack progress", "nak ack", "nak twice", "term ack", "ack ack_sync", "ack_sync ack",
         "nak_sync", "nak_sync twice", "term_sync nak_sync", "term_sync ack_sync", "progress x3 ack"],
)  # fmt: skip
def test_acks_on_the_wire(
    nc: Connection,
    js: JetStream,
    consumer: Consumer,
    acks: Acks,
    calls: Callable[[JetStreamMessage], object],
    bodies: list[bytes],
) -> None:
    """Each ack is published once to the reply subject, unchanged; after a terminal one nothing more is."""
    message = one(js, consumer)
    calls(message)
    assert acks.seen(nc) == bodies
    assert set(acks.subjects) == {message.reply}
    assert message.is_acked == (bodies[-1] != b"+WPI")


def test_ack_policy_none_sends_nothing(nc: Connection, js: JetStream, stream: Stream, acks: Acks) -> None:
    """With ack policy none, ack() sends nothing and raises nothing."""
    consumer = stream.create_consumer(name="n", ack_policy="none")
    for call in ("ack", "nak", "term", "in_progress", "ack_sync", "nak_sync", "term_sync"):
        getattr(one(js, consumer), call)()
    assert acks.seen(nc) == []


def test_ack_that_cannot_be_sent_raises_and_is_not_marked(
    js: JetStream, nc: Connection, consumer: Consumer
) -> None:
    """On a closed connection the ack raises and the message is not acked."""
    message = one(js, consumer)
    nc.close()
    confirmed = (message.ack_sync, message.nak_sync, message.term_sync)
    for call in (message.ack, message.nak, message.term, message.in_progress, *confirmed):
        with pytest.raises(ConnectionClosedError):
            call()
    assert not message.is_acked


# --- what the server makes of it --------------------------------------------------------------------------


def test_acked_message_is_not_delivered_again(js: JetStream, consumer: Consumer) -> None:
    """ack() and ack_sync() settle a message."""
    one(js, consumer).ack()
    one(js, consumer).ack_sync()
    eventually(lambda: consumer.get_info().num_ack_pending == 0)
    assert consumer.get_info().ack_floor.stream_seq == 2


def test_nak_delivers_again_after_its_delay(js: JetStream, consumer: Consumer) -> None:
    """Without delay at once, with one not before it is over; the delivery count grows."""
    message = one(js, consumer)
    message.nak()
    again = consumer.next(expires=5)
    assert again is not None
    assert again.metadata.num_delivered == 2
    again.nak(delay=0.4)
    started = time.monotonic()
    third = consumer.next(expires=5)
    assert third is not None
    assert time.monotonic() - started > 0.3
    assert third.metadata.num_delivered == 3


def test_fetch_right_behind_a_nak_sync_sees_the_message(js: JetStream, consumer: Consumer) -> None:
    """The server has confirmed it: the message is there, a hundred times in a row."""
    message = one(js, consumer)
    for number in range(2, 102):
        message.nak_sync()
        assert message.is_acked
        (message,) = consumer.fetch_nowait(1)
        assert message.metadata.num_delivered == number
        assert not message.is_acked


def test_nak_sync_with_a_delay(js: JetStream, consumer: Consumer) -> None:
    """Confirmed at once, delivered after the delay."""
    message = one(js, consumer)
    started = time.monotonic()
    message.nak_sync(0.4)
    assert list(consumer.fetch_nowait(1)) == []
    again = consumer.next(expires=5)
    assert again is not None
    assert time.monotonic() - started >= 0.35


def test_term_sync_has_ended_delivery_when_it_returns(js: JetStream, consumer: Consumer) -> None:
    """No wait is needed: the consumer has nothing pending any more."""
    one(js, consumer).term_sync("cannot be read")
    assert consumer.get_info().num_ack_pending == 0
    assert list(consumer.fetch_nowait(1)) == []


@pytest.mark.parametrize("kind", ["push", "pull_subscribe", "messages"])
def test_confirmed_acks_of_every_kind_of_message(js: JetStream, stream: Stream, kind: str) -> None:
    """Whatever it was taken from: a message can be handed back, and ended, with confirmation."""
    js.publish("s.a", b"x")
    if kind == "push":
        subscription = js.subscribe("s.a", manual_ack=True)
        take = lambda: subscription.next_msg(5)  # noqa: E731
    elif kind == "pull_subscribe":
        pulled = js.pull_subscribe("s.a", durable="P")
        take = lambda: pulled.fetch(1, timeout=5)[0]  # noqa: E731
    else:
        messages = stream.create_consumer(durable_name="M").messages()
        take = lambda: messages.next(5)  # noqa: E731
    take().nak_sync()
    again = take()
    assert again.metadata.num_delivered == 2
    again.term_sync("done with it", timeout=5)
    assert again.is_acked


def test_term_ends_delivery_and_tells_why(nc: Connection, js: JetStream, consumer: Consumer) -> None:
    """A terminated message never comes again; its reason is in the server's advisory."""
    advisories = nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    one(js, consumer).term("cannot be read")
    assert b"cannot be read" in advisories.next_msg(timeout=5).data
    assert consumer.get_info().num_ack_pending == 0
    assert list(consumer.fetch_nowait(1)) == []


def test_in_progress_keeps_the_message_from_coming_again(js: JetStream, stream: Stream) -> None:
    """Work that takes longer than ack_wait is not delivered again while it says so."""
    consumer = stream.create_consumer(durable_name="slow", ack_wait=0.5)
    message = one(js, consumer)
    ended = time.monotonic() + 1.2
    while time.monotonic() < ended:
        message.in_progress()
        assert list(consumer.fetch(1, expires=0.2)) == []
    message.ack_sync()
    assert consumer.get_info().num_redelivered == 0


def test_ack_sync_without_a_consumer_raises(js: JetStream, consumer: Consumer) -> None:
    """The confirmation cannot come when the consumer is gone: an error, and the message is not acked."""
    message = one(js, consumer)
    consumer.delete()
    for call in (message.ack_sync, message.nak_sync, message.term_sync):
        with pytest.raises(NoRespondersError):
            call()
    assert not message.is_acked


def test_ack_sync_without_an_answer_times_out(js: JetStream, consumer: Consumer, acks: Acks) -> None:
    """The ack subject has a subscriber that does not confirm: TimeoutError after the caller's timeout."""
    message = one(js, consumer)
    consumer.delete()
    for call in (message.ack_sync, message.nak_sync, message.term_sync):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            call(timeout=0.2)
        assert 0.2 <= time.monotonic() - started < 1.5
    assert not message.is_acked


def test_confirmed_acks_refuse_bad_input(nc: Connection, js: JetStream, consumer: Consumer, acks: Acks) -> None:
    """Before anything is sent."""
    message = one(js, consumer)
    with pytest.raises(ValueError, match="delay"):
        message.nak_sync(-1)
    with pytest.raises(ValueError, match="reason"):
        message.term_sync("two\nlines")
    with pytest.raises(TypeError, match="timeout"):
        message.nak_sync(timeout="5")  # type: ignore[arg-type]
    assert acks.seen(nc) == []
    assert not message.is_acked


def test_messages_may_be_acked_by_other_threads(
    nc: Connection, js: JetStream, consumer: Consumer, acks: Acks
) -> None:
    """Eight threads ack what one thread fetched."""
    for _ in range(400):
        js.publish_async("s.a")
    js.publish_async_wait(10)
    messages = list(consumer.fetch(400))
    shares = [messages[start::8] for start in range(8)]
    threads = [threading.Thread(target=lambda share=share: [m.ack() for m in share]) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acks.seen(nc)) == 400
    eventually(lambda: consumer.get_info().ack_floor.stream_seq == 400)


# --- when gathered acks leave -----------------------------------------------------------------------------


def test_lone_ack_leaves_at_once(js: JetStream, consumer: Consumer, acks: Acks) -> None:
    """With nothing behind it an ack is sent by its caller."""
    message = one(js, consumer)
    message.ack()
    assert eventually(acks.arrived, timeout=1) == [b"+ACK"]


def test_gathered_acks_leave_though_the_caller_does_not_block(
    js: JetStream, consumer: Consumer, acks: Acks
) -> None:
    """With messages waiting acks gather, but not for long, even if the caller only computes."""
    fill(js, 10)
    with consumer.messages(max_messages=500) as messages:
        first = next(messages)
        eventually(lambda: len(first._source.items) > 0)
        first.ack()
        started = time.monotonic()
        while not acks.arrived():
            assert time.monotonic() - started < 1.0


def test_gathered_acks_leave_before_the_caller_blocks(js: JetStream, stream: Stream) -> None:
    """With max_ack_pending acks must go out before the wait for more, or nothing would ever come."""
    consumer = stream.create_consumer(durable_name="few", max_ack_pending=5)
    fill(js, 50)
    started = time.monotonic()
    with consumer.messages() as messages:
        for _ in range(50):
            messages.next(timeout=5).ack()
    assert time.monotonic() - started < 3
    eventually(lambda: consumer.get_info().ack_floor.stream_seq == 50)


@pytest.mark.parametrize("end", ["close", "drain"])
def test_gathered_acks_leave_with_close_and_drain(nats_server: LocalServer, js: JetStream, end: str) -> None:
    """What was acked before close() or drain() reaches the server."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill(js, 200)
    other = connect(nats_server.url)
    consumer = other.jetstream().create_consumer("S", durable_name="c")
    for message in consumer.fetch(200):
        message.ack()
    getattr(other, end)()
    eventually(lambda: js.get_consumer("S", "c").info.ack_floor.stream_seq == 200)


# --- metadata -----------------------------------------------------------------------------------------------


def test_metadata_tells_where_the_message_stands(js: JetStream, consumer: Consumer) -> None:
    """Sequences, counts, names and the time of storing are the server's."""
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    fill(js, 3)
    metadata = [message.metadata for message in consumer.fetch(3)]
    assert [item.sequence for item in metadata] == [(1, 1), (2, 2), (3, 3)]
    assert [item.num_pending for item in metadata] == [2, 1, 0]
    assert {item.num_delivered for item in metadata} == {1}
    assert {(item.stream, item.consumer, item.domain) for item in metadata} == {("S", "c", "")}
    assert all(before < item.timestamp < before + timedelta(minutes=1) for item in metadata)


@pytest.mark.parametrize("domain", ["", "hub"])
def test_second_form_of_reply_subjects_from_a_real_server(nc: Connection, domain: str) -> None:
    """With js_ack_fc_v2 (2.14+) domain and account stand in the subject: metadata is right, acks are taken.

    Older servers know no such flag and refuse to start with it.
    """
    block = f"jetstream {{ domain: {domain} }}\n" if domain else ""
    server = LocalServer(config=block + "feature_flags { js_ack_fc_v2: true }")
    if tuple(int(part) for part in nc.server_info["version"].split(".")[:2]) < (2, 14):
        with pytest.raises(RuntimeError, match='unknown field "feature_flags"'), server:
            pass
        return
    with server, connect(server.url) as own:
        js = own.jetstream()
        stream = js.create_stream(name="S", subjects=["s.>"])
        consumer = stream.create_consumer(durable_name="c", ack_wait=30)
        message = one(js, consumer)
        assert message.reply is not None
        assert len(message.reply.split(".")) >= 11
        metadata = message.metadata
        assert (metadata.stream, metadata.consumer, metadata.domain) == ("S", "c", domain)
        assert metadata.sequence == (1, 1)
        assert (metadata.num_delivered, metadata.num_pending) == (1, 0)
        message.ack_sync()
        assert consumer.get_info().ack_floor.stream_seq == 1
        second = one(js, consumer)
        second.ack()
        third = one(js, consumer)
        third.nak()
        eventually(lambda: consumer.get_info().ack_floor.stream_seq == 2)
        assert [again.metadata.num_delivered for again in consumer.fetch(1)] == [2]


@needs_fork_hooks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12+, in a process with threads
def test_message_of_a_forked_connection_cannot_be_acked(nc: Connection, js: JetStream, consumer: Consumer) -> None:
    """In a child the ack raises ForkError and the parent's connection goes on."""
    message = one(js, consumer)
    assert in_child(lambda: raised_by(message.ack)) == "ForkError"
    message.ack_sync()
