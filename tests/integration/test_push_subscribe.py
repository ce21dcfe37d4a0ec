"""js.subscribe() against a real server: the workflow of ADR-15, its two forms, and what it leaves behind."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

import jetstream_sync
from jetstream_sync import Connection, ConsumerConfig, JetStream, JetStreamMessage
from jetstream_sync.errors import (
    NatsError,
    NotJSMessageError,
    SubscriptionClosedError,
    TimeoutError,
)
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, consumers, fill
from tests.support.push import Collector, take
from tests.support.watchdog import InThread

pytestmark = pytest.mark.usefixtures("stream")


# --- taking messages ----------------------------------------------------------------------------------


def test_next_msg_gives_messages_in_order_then_times_out(js: JetStream) -> None:
    """The synchronous form hands out what there is, one by one, and raises TimeoutError when there is no more."""
    fill(js, 10)
    sub = js.subscribe("s.>")
    assert take(sub, 10) == list(range(10))
    with pytest.raises(TimeoutError):
        sub.next_msg(0.05)
    assert sub.delivered == 10
    sub.unsubscribe()


def test_iteration_ends_after_unsubscribe_from_another_thread(js: JetStream) -> None:
    """A loop over the subscription ends when it is unsubscribed, without an error."""
    fill(js, 3)
    sub = js.subscribe("s.>")
    loop = InThread(lambda: [message.ack() for message in sub])
    eventually(lambda: sub.delivered == 3)
    sub.unsubscribe()
    assert len(loop.result()) == 3
    with pytest.raises(SubscriptionClosedError):
        sub.next_msg(0.1)


def test_explicit_acks_reach_the_consumer(js: JetStream) -> None:
    """Messages are acknowledged like those of any consumer; the ack policy is explicit unless another is given."""
    fill(js, 5)
    with js.subscribe("s.>", durable="d") as sub:
        for message in [sub.next_msg() for _ in range(5)]:
            message.ack_sync()
        info = sub.consumer_info()
        assert info.config.ack_policy == "explicit"
        assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 5)


def test_acks_are_not_sent_with_ack_policy_none(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """With ack policy none acks are ignored: by the user, and by the library behind a callback."""
    fill(js, 3)
    with Observer(nats_server.url) as observer:
        handled = Collector()
        with js.subscribe("s.>", cb=handled, config={"ack_policy": "none"}):
            handled.wait(3)
            handled.messages[0].ack()
        observer.settle(nc)
        assert observer.acks == []


def test_several_threads_share_a_subscription_without_false_gaps(
    reported: tuple[Connection, list[Exception]], js: JetStream
) -> None:
    """Threads that take from one subscription get every message once; their order makes no gap."""
    nc, errors = reported
    fill(js, 400)
    sub = nc.jetstream().subscribe("s.>", config={"ack_policy": "none"})
    seen: list[int] = []

    def work() -> None:
        for message in sub:
            seen.append(int(message.data))

    workers = [InThread(work) for _ in range(6)]
    eventually(lambda: len(seen) == 400)
    sub.unsubscribe()
    for worker in workers:
        worker.result()
    assert sorted(seen) == list(range(400))
    assert errors == []


def test_next_msg_times_out_while_another_thread_waits(js: JetStream) -> None:
    """A timeout holds though another thread has been waiting for longer, and for ever."""
    sub = js.subscribe("s.>")
    other = InThread(sub.next_msg, None)
    assert isinstance(InThread(sub.next_msg, 0.2).error(2.0), TimeoutError)
    sub.unsubscribe()
    assert isinstance(other.error(), SubscriptionClosedError)


def test_message_with_a_status_header_is_the_users(js: JetStream) -> None:
    """A stored message that looks like a status to a careless reader reaches the user."""
    js.publish("s.x", b"", headers={"Status": "409", "Description": "Consumer Deleted"})
    with js.subscribe("s.>") as sub:
        message = sub.next_msg()
        assert message.headers is not None
        assert message.headers["Status"] == "409"
        message.ack_sync()


def test_message_published_to_the_deliver_subject_by_another_client(nc: Connection, js: JetStream) -> None:
    """What did not come from the consumer is handed out, but it has no metadata and cannot be acknowledged."""
    with js.subscribe("s.>", config={"deliver_subject": "deliver.here"}) as sub:
        nc.publish("deliver.here", b"hello")
        message = sub.next_msg()
        assert message.data == b"hello"
        with pytest.raises(NotJSMessageError):
            message.ack()


# --- callbacks ----------------------------------------------------------------------------------------


def test_callback_acks_after_it_returns(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """Each message is acked once, and not before its callback has returned."""
    fill(js, 3)
    entered, may_return = threading.Event(), threading.Event()

    def handle(message: JetStreamMessage) -> None:
        entered.set()
        may_return.wait(5)

    with Observer(nats_server.url) as observer:
        sub = js.subscribe("s.>", durable="d", cb=handle)
        assert entered.wait(5)
        observer.settle(nc)
        assert observer.acks == []
        may_return.set()
        eventually(lambda: sub.consumer_info().ack_floor.stream_seq == 3)
        observer.settle(nc)
        assert [seen.data for seen in observer.acks] == [b"+ACK"] * 3
        sub.unsubscribe()


def test_callback_that_raises_naks_and_reports(
    reported: tuple[Connection, list[Exception]], js: JetStream
) -> None:
    """A callback's error is reported and its message nak'ed, so it comes again after 1 s; the others go on."""
    nc, errors = reported
    fill(js, 3)
    deliveries: list[tuple[int, int]] = []

    def handle(message: JetStreamMessage) -> None:
        deliveries.append((int(message.data), message.metadata.num_delivered))
        if deliveries[-1] == (1, 1):
            raise RuntimeError("not this time")

    sub = nc.jetstream().subscribe("s.>", durable="d", cb=handle)
    eventually(lambda: sub.consumer_info().ack_floor.stream_seq == 3)
    assert sorted(deliveries) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert [str(error) for error in errors] == ["not this time"]
    sub.unsubscribe()


def test_callback_that_always_raises_is_no_hot_loop(js: JetStream) -> None:
    """One message, a callback that always raises: 2 calls in 2 s (without a delay there were 10 931)."""
    fill(js, 1)
    calls: list[float] = []

    def handle(message: JetStreamMessage) -> None:
        calls.append(time.monotonic())
        raise RuntimeError("never")

    sub = js.subscribe("s.>", durable="d", cb=handle)
    threading.Event().wait(2.0)
    sub.unsubscribe()
    assert len(calls) == 2
    assert 0.9 <= calls[1] - calls[0] < 1.9


def fail(message: JetStreamMessage) -> None:
    raise RuntimeError("never")


def test_backoff_of_the_consumer_is_the_delay(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """A consumer with `backoff`: its value for the delivery that failed."""
    with Observer(nats_server.url) as observer:
        fill(js, 1)
        sub = js.subscribe("s.>", durable="d", cb=fail, config={"backoff": [0.1, 0.2, 0.4], "max_deliver": 5})
        eventually(lambda: len(observer.acks) == 5)
        sub.unsubscribe()
    delays = [json.loads(seen.data.removeprefix(b"-NAK "))["delay"] / 1e9 for seen in observer.acks]
    assert delays == [0.1, 0.2, 0.4, 0.4, 0.4]


def test_manual_ack_leaves_acknowledging_to_the_callback(js: JetStream) -> None:
    """With manual_ack nothing is acked or nak'ed but by the user."""
    fill(js, 4)
    handled = Collector()
    sub = js.subscribe("s.>", durable="d", cb=handled, manual_ack=True)
    handled.wait(4)
    assert sub.consumer_info().num_ack_pending == 4
    for message in handled.messages:
        message.ack_sync()
    assert sub.consumer_info().num_ack_pending == 0
    sub.unsubscribe()


def test_callback_that_acknowledged_itself_is_not_acked_again(
    nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """What the callback decided stays: a term is not followed by an ack."""
    fill(js, 2)
    with Observer(nats_server.url) as observer:
        sub = js.subscribe("s.>", durable="d", cb=lambda message: message.term())
        eventually(lambda: sub.consumer_info().num_ack_pending == 0 and sub.delivered == 2)
        observer.settle(nc)
        assert [seen.data for seen in observer.acks] == [b"+TERM"] * 2
        sub.unsubscribe()


def test_subscription_with_callback_refuses_next_msg(js: JetStream) -> None:
    """Messages go to the callback: asking for one beside it is an error."""
    sub = js.subscribe("s.>", cb=print)
    with pytest.raises(NatsError, match="callback"):
        sub.next_msg()
    sub.unsubscribe()


def test_callback_must_be_callable(js: JetStream) -> None:
    """A cb that cannot be called is refused at once."""
    with pytest.raises(TypeError, match="cb"):
        js.subscribe("s.>", cb="handle")  # type: ignore[arg-type]


# --- which consumer -----------------------------------------------------------------------------------


def test_subscription_comes_before_the_creation(nats_server: LocalServer, js: JetStream) -> None:
    """ADR-15: SUB is sent before CONSUMER.CREATE, whose subject is the one of servers from 2.9."""
    with FaultProxy(nats_server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        sub = nc.jetstream().subscribe("s.x", durable="d")
        sent = proxy.captured[0].to_server
        subscribed = sent.index(b"SUB %b " % sub.subject.encode())
        created = sent.index(b"PUB $JS.API.CONSUMER.CREATE.S.d.s.x ")
        assert subscribed < created
        body = json.loads(sent[created:].split(b"\r\n")[1])
        assert body["stream_name"] == "S"
        assert body["config"] == {
            "durable_name": "d",
            "name": "d",
            "ack_policy": "explicit",
            "filter_subject": "s.x",
            "deliver_subject": sub.subject,
        }
        assert re.search(rb"DURABLE", sent) is None
        sub.unsubscribe()


def test_stream_is_found_by_subject(nats_server: LocalServer) -> None:
    """Without a stream the server is asked for the one on the subject; with one it is not."""
    with FaultProxy(nats_server) as proxy, jetstream_sync.connect(proxy.url) as nc:
        js = nc.jetstream()
        js.subscribe("s.x", stream="S").unsubscribe()
        assert b"STREAM.NAMES" not in proxy.captured[0].to_server
        with js.subscribe("s.x") as sub:
            assert sub.stream_name == "S"
        assert b'"subject":"s.x"' in proxy.captured[0].to_server.partition(b"STREAM.NAMES")[2]


def test_ephemeral_is_filtered_by_the_subject(js: JetStream) -> None:
    """Without durable or consumer an ephemeral consumer is created, for the subject alone."""
    js.publish("s.a", b"1")
    js.publish("s.b", b"2")
    with js.subscribe("s.b") as sub:
        assert take(sub, 1) == [2]
        config = sub.consumer_info().config
        assert (config.filter_subject, config.durable_name) == ("s.b", None)
        assert consumers(js) == [sub.consumer_name]
    assert consumers(js) == []


def test_stream_without_subject_delivers_everything(js: JetStream) -> None:
    """A stream alone is enough: the new consumer has no filter."""
    fill(js, 2, subject="s.a")
    fill(js, 2, subject="s.b", first=2)
    with js.subscribe(stream="S") as sub:
        assert take(sub, 4) == [0, 1, 2, 3]


def test_config_and_keywords_make_the_consumer(js: JetStream) -> None:
    """Whatever a consumer can have is set by a config, a dict or keywords."""
    fill(js, 5)
    config = ConsumerConfig(deliver_policy="by_start_sequence", opt_start_seq=3, description="from the third")
    with js.subscribe("s.>", config=config, ack_wait=7, idle_heartbeat=2, flow_control=True) as sub:
        assert take(sub, 3) == [2, 3, 4]
        actual = sub.consumer_info().config
        assert (actual.description, actual.ack_wait, actual.idle_heartbeat) == ("from the third", 7.0, 2.0)
        assert actual.flow_control is True
    assert config.idle_heartbeat is None  # the user's own object is left as it was


def test_several_filters_without_a_subject(js: JetStream) -> None:
    """Several filters are given by the config; the subject is then left out."""
    for number, subject in enumerate(("s.a", "s.b", "s.c")):
        js.publish(subject, b"%d" % number)
    with js.subscribe(stream="S", config={"filter_subjects": ["s.a", "s.c"]}) as sub:
        assert take(sub, 2) == [0, 2]


def test_durable_goes_on_where_the_last_subscription_stopped(nats_server: LocalServer, js: JetStream) -> None:
    """A durable outlives its connection; the next subscription to it uses its deliver subject and position."""
    fill(js, 6)
    nc = jetstream_sync.connect(nats_server.url)
    first = nc.jetstream().subscribe("s.>", durable="d")
    for message in [first.next_msg() for _ in range(3)]:
        message.ack_sync()
    deliver = first.subject
    nc.close()
    eventually(lambda: not js.get_consumer("S", "d").info.push_bound)
    # Those that were buffered in the lost connection come again only after ack_wait.
    second = js.subscribe("s.>", durable="d")
    assert second.subject == deliver
    fill(js, 2, first=6)
    assert take(second, 2) == [6, 7]
    second.unsubscribe()
    assert consumers(js) == ["d"]


def test_bind_uses_the_consumers_deliver_subject_and_group(
    nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """A bound consumer is used as it is: subject, group and ack policy are its own."""
    deliver = "deliver.grüße.>x"
    js.create_consumer("S", durable_name="C", deliver_subject=deliver, deliver_group="q", ack_policy="none")
    fill(js, 2)
    sub = js.subscribe(stream="S", consumer="C", queue="q")
    assert (sub.subject, sub.queue, sub.consumer_name) == (deliver, "q", "C")
    messages = [sub.next_msg(5.0) for _ in range(2)]
    assert [int(message.data) for message in messages] == [0, 1]
    with Observer(nats_server.url) as observer:
        messages[0].ack()
        observer.settle(nc)
        assert observer.acks == []
    sub.unsubscribe()
    assert consumers(js) == ["C"]


@pytest.mark.parametrize("ordered", [False, True])
def test_public_surface_is_what_the_documentation_says(js: JetStream, ordered: bool) -> None:
    """What is not for users begins with an underscore or lives elsewhere."""
    with js.subscribe("s.>", ordered_consumer=ordered) as sub:
        assert [name for name in dir(sub) if not name.startswith("_")] == [
            "consumer_info",
            "consumer_name",
            "delivered",
            "drain",
            "dropped",
            "messages",
            "next_msg",
            "pending_bytes",
            "pending_msgs",
            "queue",
            "stream_name",
            "subject",
            "unsubscribe",
        ]


def test_config_that_agrees_with_the_existing_consumer(js: JetStream) -> None:
    """Saying again what the consumer has is no difference, nor is what is left out."""
    js.create_consumer(
        "S", durable_name="C", filter_subject="s.a", deliver_subject="x.y", ack_wait=5.0, metadata={"team": "a"}
    )
    sub = js.subscribe(
        "s.a", durable="C", config={"ack_wait": 5.0, "ack_policy": "explicit", "metadata": {"team": "a"}}
    )
    sub.unsubscribe()
    assert consumers(js) == ["C"]


# --- queues -------------------------------------------------------------------------------------------


def test_queue_name_becomes_the_durable_name(js: JetStream) -> None:
    """Members without another name share the durable that is called like the queue."""
    first = js.subscribe("s.>", queue="workers")
    second = js.subscribe("s.>", queue="workers")
    config = second.consumer_info().config
    assert (config.durable_name, config.deliver_group) == ("workers", "workers")
    assert first.consumer_name == second.consumer_name == "workers"
    assert first.subject == second.subject
    second.unsubscribe()
    first.unsubscribe()


def test_queue_members_share_messages_and_drain_leaves_what_was_found(
    nats_server: LocalServer, js: JetStream
) -> None:
    """Two members of a queue share one durable; the first leaving by drain does not delete a consumer it found."""
    js.create_consumer("S", durable_name="shared", deliver_subject="deliver.shared", deliver_group="q")
    with jetstream_sync.connect(nats_server.url) as other:
        one, two = Collector(), Collector()
        first = js.subscribe("s.>", queue="q", durable="shared", cb=one)
        second = other.jetstream().subscribe("s.>", queue="q", durable="shared", cb=two)
        other.flush()  # what is published over another connection must find both subscribed
        fill(js, 200)
        eventually(lambda: len(one.messages) + len(two.messages) == 200)
        assert one.messages
        assert two.messages
        assert sorted(int(m.data) for m in one.messages + two.messages) == list(range(200))
        first.drain()
        assert consumers(js) == ["shared"]
        fill(js, 20, first=200)
        eventually(lambda: len(one.messages) + len(two.messages) == 220)
        assert {int(m.data) for m in two.messages} >= set(range(200, 220))
        second.unsubscribe()
    assert consumers(js) == ["shared"]


def test_queue_member_that_created_the_durable_deletes_it_on_drain(js: JetStream) -> None:
    """ADR-15's note: the member that created the consumer takes it away, though others use it."""
    first = js.subscribe("s.>", queue="q")
    second = js.subscribe("s.>", queue="q")
    second.drain()
    assert consumers(js) == ["q"]
    first.drain()
    assert consumers(js) == []
