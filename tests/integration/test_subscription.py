"""Subscriptions against a real server: taking, queue groups, limits, draining, slow consumers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from jetstream_sync import Connection, Message, connect
from jetstream_sync.errors import (
    BadSubjectError,
    ConnectionClosedError,
    DrainTimeoutError,
    NatsError,
    SlowConsumerError,
    SubscriptionClosedError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.net.subscription import Inbound
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread, under_watchdog


def publish_numbers(nc: Connection, subject: str, numbers: range) -> None:
    for number in numbers:
        nc.publish(subject, b"%d" % number)
    nc.flush()


# --- taking messages ------------------------------------------------------------------------------------


def test_next_msg_times_out_when_none_comes(nc: Connection) -> None:
    """next_msg raises TimeoutError, the builtin one too, at its deadline."""
    sub = nc.subscribe("quiet")
    waiting = InThread(sub.next_msg, 0.1)
    assert isinstance(waiting.error(), TimeoutError)
    assert 0.09 < waiting.seconds < 2
    waiting = InThread(sub.next_msg, 0)
    assert isinstance(waiting.error(), TimeoutError)


def test_iteration_yields_and_ends_with_unsubscribe(nc: Connection) -> None:
    """`for msg in sub` yields each message and ends when the subscription does."""
    sub = nc.subscribe("it.>")
    seen: list[Message] = []

    def loop() -> None:
        for msg in sub:
            seen.append(msg)

    looping = InThread(loop)
    publish_numbers(nc, "it.a", range(10))
    eventually(lambda: len(seen) == 10)
    sub.unsubscribe()
    looping.result()
    assert [int(msg.data) for msg in seen] == list(range(10))
    assert {msg.subject for msg in seen} == {"it.a"}


def test_iteration_of_a_drained_subscription_ends_even_if_the_connection_failed(proxy: FaultProxy) -> None:
    """What was drained ends quietly, whatever happens to the connection afterwards."""
    nc = connect(proxy.url, allow_reconnect=False)
    drained, other = nc.subscribe("a"), nc.subscribe("b")
    publish_numbers(nc, "a", range(3))
    drained.drain()
    proxy.cut()
    eventually(lambda: nc.is_closed)
    assert len(under_watchdog(list, drained)) == 3
    with pytest.raises(ConnectionClosedError):
        under_watchdog(list, other)


def test_subscription_facts(nc: Connection) -> None:
    """subject, queue, pending and delivered counters say what happened."""
    sub = nc.subscribe("facts.*", queue="workers")
    assert (sub.subject, sub.queue) == ("facts.*", "workers")
    for number in range(4):
        nc.publish(f"facts.{number}", b"12345", headers={"A": "b"} if number == 3 else None)
    nc.flush()
    assert sub.pending_msgs == 4
    assert sub.pending_bytes == 4 * 5 + len(b"NATS/1.0\r\nA: b\r\n\r\n")
    sub.next_msg()
    assert (sub.pending_msgs, sub.delivered, sub.dropped) == (3, 1, 0)
    assert "facts" in repr(sub)
    sub.unsubscribe()
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (0, 0, 1)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nb", "a..b", ".a", "a.>.b", "a\0", 5])
def test_subscribe_to_a_bad_subject_is_refused(nc: Connection, subject: Any) -> None:
    """Subjects and queue names that cannot go on the wire are refused, and nothing is registered."""
    with pytest.raises((BadSubjectError, TypeError)):
        nc.subscribe(subject)
    with pytest.raises((BadSubjectError, TypeError)):
        nc.subscribe("good", queue=f"{subject} x")
    with pytest.raises(TypeError, match="cb"):
        nc.subscribe("good", cb=5)  # type: ignore[arg-type]


def test_context_manager_unsubscribes(nats_server: LocalServer, nc: Connection) -> None:
    """Leaving the `with` block of a subscription removes its interest on the server."""
    with nc.subscribe("ctx") as sub:
        publish_numbers(nc, "ctx", range(1))
        assert sub.next_msg().data == b"0"
    nc.flush()
    assert nats_server.monitor(f"/connz?cid={nc.client_id}")["connections"][0]["subscriptions"] == 0
    with pytest.raises(SubscriptionClosedError):
        sub.next_msg()
    sub.unsubscribe()


# --- callbacks ----------------------------------------------------------------------------------------------


def test_callback_gets_every_message_in_order_on_a_library_thread(nc: Connection) -> None:
    """A callback sees the messages one by one, in order, on a thread of the library."""
    seen: list[int] = []
    threads: set[str] = set()

    def callback(msg: Message) -> None:
        threads.add(threading.current_thread().name)
        seen.append(int(msg.data))

    sub = nc.subscribe("cb", cb=callback)
    publish_numbers(nc, "cb", range(1000))
    eventually(lambda: len(seen) == 1000)
    assert seen == list(range(1000))
    assert len(threads) == 1
    assert threads.pop().startswith("js-")
    with pytest.raises(NatsError, match="callback"):
        sub.next_msg()


def test_callback_may_raise_anything(nats_server: LocalServer) -> None:
    """A callback's exception goes to error_cb and the subscription goes on; so it does after sys.exit()."""
    errors: list[Exception] = []
    seen: list[bytes] = []

    def callback(msg: Message) -> None:
        seen.append(msg.data)
        if msg.data == b"1":
            raise SystemExit
        raise ValueError(msg.data)

    with connect(nats_server.url, error_cb=errors.append) as nc:
        nc.subscribe("r", cb=callback)
        publish_numbers(nc, "r", range(3))
        eventually(lambda: len(seen) == 3 and len(errors) == 2)
        assert [error.args[0] for error in errors] == [b"0", b"2"]


@pytest.mark.parametrize("action", ["unsubscribe", "drain", "subscribe", "request", "flush"])
def test_callback_may_call_any_method(nc: Connection, action: str) -> None:
    """A callback may unsubscribe or drain itself, subscribe, flush and make requests."""
    done = threading.Event()
    holder: list[Any] = []
    nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))

    def callback(msg: Message) -> None:
        if action == "subscribe":
            nc.subscribe("new").unsubscribe()
        elif action == "request":
            assert nc.request("echo", b"x").data == b"x"
        elif action == "flush":
            nc.flush()
        else:
            getattr(holder[0], action)()
        done.set()

    holder.append(nc.subscribe("act", cb=callback))
    nc.publish("act")
    assert done.wait(5)


def test_a_busy_callback_delays_no_other_subscription(nc: Connection) -> None:
    """Each subscription calls its callback on its own thread: one that blocks does not delay the others."""
    release = threading.Event()
    nc.subscribe("blocked", cb=lambda msg: release.wait(30))
    nc.publish("blocked")
    sub = nc.subscribe("free")
    nc.publish("free", b"x")
    assert sub.next_msg().data == b"x"
    release.set()


# --- queue groups --------------------------------------------------------------------------------------------


def test_queue_group_shares_messages(nats_server: LocalServer) -> None:
    """Members of a queue group on several connections get each message once between them."""
    with connect(nats_server.url) as one, connect(nats_server.url) as two, connect(nats_server.url) as pub:
        members = [one.subscribe("q", queue="g"), two.subscribe("q", queue="g"), two.subscribe("q", queue="g")]
        apart = one.subscribe("q", queue="other")
        one.flush()
        two.flush()
        publish_numbers(pub, "q", range(300))
        one.flush()
        two.flush()
        shares = [[int(sub.next_msg().data) for _ in range(sub.pending_msgs)] for sub in members]
        assert sorted(number for share in shares for number in share) == list(range(300))
        assert all(shares)
        assert apart.pending_msgs == 300


def test_queue_group_membership_survives_a_reconnect(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """After a reconnect a member is in its queue group again, not a plain subscriber."""
    with connect(nats_server.url) as fixed, connect(proxy.url, reconnect_time_wait=0.01) as moved:
        members = [fixed.subscribe("qr", queue="g"), moved.subscribe("qr", queue="g")]
        fixed.flush()
        proxy.cut()
        eventually(lambda: moved.stats.reconnects == 1)
        moved.flush()
        publish_numbers(fixed, "qr", range(100))
        moved.flush()
        assert sum(sub.pending_msgs for sub in members) == 100


# --- auto-unsubscribe -------------------------------------------------------------------------------------


def test_auto_unsubscribe_delivers_exactly_the_limit(nats_server: LocalServer, nc: Connection) -> None:
    """After `limit` messages the subscription ends by itself: the loop stops, nothing is dropped or added."""
    sub = nc.subscribe("auto")
    sub.unsubscribe(5)
    publish_numbers(nc, "auto", range(10))
    assert [int(msg.data) for msg in under_watchdog(list, sub)] == list(range(5))
    assert sub.delivered == 5
    assert nats_server.monitor(f"/connz?cid={nc.client_id}")["connections"][0]["subscriptions"] == 0


def test_auto_unsubscribe_with_a_callback(nc: Connection) -> None:
    """A callback is called exactly `limit` times."""
    seen: list[int] = []
    sub = nc.subscribe("autocb", cb=lambda msg: seen.append(int(msg.data)))
    sub.unsubscribe(3)
    publish_numbers(nc, "autocb", range(10))
    eventually(lambda: len(seen) == 3)
    nc.flush()
    assert seen == [0, 1, 2]


def test_auto_unsubscribe_below_what_came_already_ends_at_once(nc: Connection) -> None:
    """A limit that is reached already ends the subscription; what is buffered can still be taken."""
    sub = nc.subscribe("late")
    publish_numbers(nc, "late", range(4))
    sub.unsubscribe(4)
    publish_numbers(nc, "late", range(4, 8))
    assert [int(msg.data) for msg in under_watchdog(list, sub)] == list(range(4))
    with pytest.raises(ValueError, match="limit"):
        sub.unsubscribe(-1)


def test_auto_unsubscribe_below_what_came_already_is_told_to_the_server(
    nats_server: LocalServer, nc: Connection
) -> None:
    """The UNSUB leaves at once, not with what is sent next."""
    with connect(nats_server.url) as publisher:
        sub = nc.subscribe("late")
        nc.flush()
        publish_numbers(publisher, "late", range(3))
        eventually(lambda: sub.pending_msgs == 3)
        sub.unsubscribe(2)
        assert link_of(nc).outbox.idle
        client = f"/connz?cid={nc.client_id}"
        eventually(lambda: nats_server.monitor(client)["connections"][0]["subscriptions"] == 0)


def test_run_that_arrives_beside_a_limit_below_what_came_is_dropped(nc: Connection) -> None:
    """The reader may have found the subscription just before it was removed."""
    inbound = Inbound(link_of(nc), b"late")
    raw = (b"late", None, None, b"")
    inbound.deliver([raw] * 5, 0)
    assert not inbound.set_limit(3)
    inbound.deliver([raw] * 4, 0)
    assert len(inbound.mailbox) == 5


def test_auto_unsubscribe_is_exact_over_reconnects(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """The count goes on over a reconnect: `limit` messages in all, and the server ends its side too."""
    with connect(nats_server.url) as pub, connect(proxy.url, reconnect_time_wait=0.01) as nc:
        sub = nc.subscribe("over")
        sub.unsubscribe(6)
        nc.flush()
        for turn in range(2):
            publish_numbers(pub, "over", range(turn * 2, turn * 2 + 2))
            eventually(lambda turn=turn: sub.pending_msgs == 2 * (turn + 1))
            proxy.cut()
            eventually(lambda turn=turn: nc.stats.reconnects == turn + 1)
            nc.flush()
        publish_numbers(pub, "over", range(4, 20))
        assert [int(msg.data) for msg in under_watchdog(list, sub)] == list(range(6))
        assert b"UNSUB 1 4\r\n" in proxy.captured[1].to_server
        assert b"UNSUB 1 2\r\n" in proxy.captured[2].to_server


# --- draining ---------------------------------------------------------------------------------------------


def test_drain_keeps_what_has_arrived(nats_server: LocalServer, nc: Connection) -> None:
    """drain() ends the interest and keeps what the server sent before; then the loop ends."""
    sub = nc.subscribe("dr")
    with connect(nats_server.url) as pub:
        publish_numbers(pub, "dr", range(500))
        under_watchdog(sub.drain)
        publish_numbers(pub, "dr", range(500, 600))
    nc.flush()
    assert [int(msg.data) for msg in under_watchdog(list, sub)] == list(range(500))
    sub.drain()


def test_drain_of_a_callback_subscription_waits_for_the_callback(nc: Connection) -> None:
    """drain() returns when the callback has handled everything that arrived."""
    seen: list[int] = []
    sub = nc.subscribe("drcb", cb=lambda msg: (time.sleep(0.001), seen.append(int(msg.data))))
    publish_numbers(nc, "drcb", range(100))
    under_watchdog(sub.drain)
    assert seen == list(range(100))


def test_drain_of_a_stuck_callback_raises(nc: Connection) -> None:
    """drain() raises DrainTimeoutError when the callback does not finish; the connection stays."""
    release = threading.Event()
    sub = nc.subscribe("drst", cb=lambda msg: release.wait(30))
    publish_numbers(nc, "drst", range(1))
    draining = InThread(sub.drain, 0.1)
    assert isinstance(draining.error(), DrainTimeoutError)
    release.set()
    nc.flush()


def test_drain_cut_off_leaves_no_interest_behind(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """After a drain during which the connection is lost, the reconnect does not subscribe again."""
    with connect(proxy.url, reconnect_time_wait=0.01) as nc:
        sub = nc.subscribe("gone", queue="g")
        nc.flush()
        proxy.black_hole("to_client")
        draining = InThread(sub.drain, 5)
        eventually(lambda: b"UNSUB" in proxy.captured[-1].to_server)
        proxy.cut()
        proxy.heal()
        draining.error()
        eventually(lambda: nc.stats.reconnects == 1)
        nc.flush()
        client = nats_server.monitor(f"/connz?cid={nc.client_id}")["connections"][0]
        assert client["subscriptions"] == 0


def test_public_surface_is_what_the_documentation_says(nc: Connection) -> None:
    """What is not for users begins with an underscore or lives elsewhere."""
    sub = nc.subscribe("surface")
    assert [name for name in dir(sub) if not name.startswith("_")] == [
        "delivered",
        "drain",
        "dropped",
        "messages",
        "next_msg",
        "pending_bytes",
        "pending_msgs",
        "queue",
        "subject",
        "unsubscribe",
    ]


# --- slow consumers ------------------------------------------------------------------------------------------


def test_slow_consumer_by_messages_drops_counts_and_reports_once(nats_server: LocalServer) -> None:
    """Over pending_msgs_limit messages are dropped and counted, with one error per episode."""
    errors: list[Exception] = []
    with connect(nats_server.url, error_cb=errors.append) as nc:
        slow, other = nc.subscribe("slow", pending_msgs_limit=10), nc.subscribe("slow")
        publish_numbers(nc, "slow", range(50))
        publish_numbers(nc, "slow", range(50, 100))
        assert (slow.pending_msgs, slow.dropped) == (10, 90)
        assert nc.stats.dropped == 90
        assert other.pending_msgs == 100
        eventually(lambda: len(errors) == 1)
        assert isinstance(errors[0], SlowConsumerError)
        assert errors[0].subject == "slow"
        assert [int(slow.next_msg().data) for _ in range(10)] == list(range(10))
        publish_numbers(nc, "slow", range(5))
        assert slow.pending_msgs == 5
        publish_numbers(nc, "slow", range(50))
        eventually(lambda: len(errors) == 2)
        nc.flush()
        assert len(errors) == 2
        assert nc.is_connected


def test_slow_consumer_by_bytes_drops_and_counts(nats_server: LocalServer) -> None:
    """Over pending_bytes_limit messages are dropped and counted; the limit itself still fits."""
    errors: list[Exception] = []
    with connect(nats_server.url, error_cb=errors.append) as nc:
        slow = nc.subscribe("fat", pending_msgs_limit=0, pending_bytes_limit=1000)
        for _ in range(10):
            nc.publish("fat", b"x" * 100)
        nc.flush()
        assert (slow.pending_bytes, slow.dropped) == (1000, 0)
        for _ in range(5):
            nc.publish("fat", b"y" * 100)
        nc.flush()
        assert (slow.pending_bytes, slow.dropped) == (1000, 5)
        eventually(lambda: len(errors) == 1)


def test_slow_consumer_by_bytes_counts_what_is_really_buffered(nc: Connection) -> None:
    """Bytes already taken make room, whatever the runs in which they arrived."""
    sub = nc.subscribe("exact", pending_bytes_limit=1000)
    link = link_of(nc)
    for _ in range(10):
        link.outbox.publish(*link.frame(b"exact", b"x" * 100, None, None), coalesce=True)  # arrive as one run
    nc.flush()
    assert sub.pending_msgs == 10
    for _ in range(9):
        sub.next_msg()
    for _ in range(9):
        link.outbox.publish(*link.frame(b"exact", b"y" * 100, None, None), coalesce=True)
    nc.flush()
    assert (sub.pending_msgs, sub.dropped) == (10, 0)


def test_slow_consumer_does_not_disturb_pings_and_other_subscriptions(nats_server: LocalServer) -> None:
    """While one callback is stuck and overflows, others are served and pings answered."""
    release = threading.Event()
    with connect(nats_server.url, error_cb=lambda _: None, ping_interval=0.05) as nc:
        nc.subscribe("flood", cb=lambda msg: release.wait(30), pending_msgs_limit=5)
        fine = nc.subscribe("flood")
        for burst in range(10):
            publish_numbers(nc, "flood", range(100))
            assert nc.rtt() < 5
            assert [fine.next_msg().data for _ in range(100)][-1] == b"99", burst
        assert nc.stats.reconnects == 0
        release.set()


# --- many threads ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager_switching")
def test_many_takers_get_every_message_once(nats_server: LocalServer, nc: Connection) -> None:
    """Eight threads on one subscription share its messages: each exactly once, none lost."""
    sub = nc.subscribe("shared")
    nc.flush()
    taken: list[list[int]] = [[] for _ in range(8)]

    def take(mine: list[int]) -> None:
        for msg in sub:
            mine.append(int(msg.data))

    takers = [InThread(take, mine) for mine in taken]
    with connect(nats_server.url) as pub:
        publish_numbers(pub, "shared", range(3000))
    eventually(lambda: sum(map(len, taken)) == 3000, timeout=20)
    sub.unsubscribe()
    for taker in takers:
        taker.result()
    assert sorted(number for mine in taken for number in mine) == list(range(3000))


@pytest.mark.usefixtures("eager_switching")
def test_many_publishers_mix_no_frames(nc: Connection) -> None:
    """32 threads publish on one connection: every message arrives whole, each thread's in order."""
    sub = nc.subscribe("mix.*")

    def publish(thread: int) -> None:
        for number in range(60):
            nc.publish(f"mix.{thread}", b"%d:%d:" % (thread, number) + b"z" * (number * 7))

    publishers = [InThread(publish, thread) for thread in range(32)]
    for publisher in publishers:
        publisher.result(30)
    nc.flush()
    last = dict.fromkeys(range(32), -1)
    for _ in range(32 * 60):
        msg = sub.next_msg(timeout=5)
        thread, number, rest = msg.data.split(b":")
        assert msg.subject == f"mix.{int(thread)}"
        assert rest == b"z" * (int(number) * 7)
        assert int(number) == last[int(thread)] + 1
        last[int(thread)] = int(number)
    assert nc.stats.reconnects == 0


@pytest.mark.usefixtures("eager_switching")
def test_subscribe_and_unsubscribe_from_many_threads(nats_server: LocalServer, nc: Connection) -> None:
    """Subscriptions that come and go in many threads leave nothing behind on the server."""

    def churn(thread: int) -> None:
        for number in range(20):
            with nc.subscribe(f"churn.{thread}") as sub:
                nc.publish(f"churn.{thread}", b"%d" % number)
                assert sub.next_msg(timeout=5).data == b"%d" % number

    for churner in [InThread(churn, thread) for thread in range(8)]:
        churner.result(30)
    nc.flush()
    assert nats_server.monitor(f"/connz?cid={nc.client_id}")["connections"][0]["subscriptions"] == 0
