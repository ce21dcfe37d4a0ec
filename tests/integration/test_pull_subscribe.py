"""js.pull_subscribe() against a real server: ADR-13 on the wire, and what fetch() returns and raises."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, PullSubscription
from jetstream_sync.consumers import pull_subscription
from jetstream_sync.errors import (
    ConnectionLostError,
    ConsumerDeletedError,
    NatsError,
    NoRespondersError,
    PermissionsError,
    PullError,
    SubscriptionClosedError,
    TimeoutError,
)
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, server_version
from tests.support.signals import Interrupted, interrupted_after
from tests.support.watchdog import InThread, under_watchdog

pytestmark = pytest.mark.usefixtures("stream")


@pytest.fixture
def proxied(nats_server: LocalServer) -> Iterator[tuple[FaultProxy, Connection]]:
    with FaultProxy(nats_server) as proxy:
        nc = jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05)
        yield proxy, nc
        nc.close()


def subscriptions(server: LocalServer, nc: Connection) -> int:
    """How many subscriptions of this connection the server has."""
    nc.flush()
    [connection] = server.monitor(f"/connz?cid={nc.client_id}&subs=1")["connections"]
    return int(connection["subscriptions"])


def numbers(messages: list[Any]) -> list[int]:
    return [int(message.data) for message in messages]


# --- what fetch returns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_fetch_returns_at_once_what_is_there(js: JetStream, batch: int) -> None:
    """With messages in the stream a fetch returns up to `batch` of them without waiting for more."""
    fill(js, 7)
    with js.pull_subscribe("s.x", "d") as sub:
        started = time.monotonic()
        seen: list[int] = []
        while len(seen) < 7:
            messages = sub.fetch(batch, timeout=5.0)
            assert len(messages) == min(batch, 7 - len(seen))
            seen += numbers(messages)
            for message in messages:
                message.ack_sync()
        assert time.monotonic() - started < 2.0
        assert seen == list(range(7))
        assert sub.consumer_info().num_ack_pending == 0


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_waits_for_the_first_message(js: JetStream, batch: int) -> None:
    """On an empty stream a fetch waits, and returns when a message comes; none is lost with the pull's end."""
    with js.pull_subscribe("s.x", "d") as sub:
        fetch = InThread(sub.fetch, batch, timeout=5.0)
        eventually(lambda: sub.consumer_info().num_waiting == 1)
        fill(js, batch)
        seen = numbers(fetch.result())
        assert seen
        assert fetch.seconds < 4.0
        while len(seen) < batch:
            seen += numbers(sub.fetch(batch))
        assert seen == list(range(batch))


def test_fetch_returns_as_soon_as_a_first_message_has_come(js: JetStream) -> None:
    """A large batch and a long timeout: a single message is not held back for the others (it was, until 2.9 s)."""
    with js.pull_subscribe("s.x", "d") as sub:
        for number in range(3):
            fetch = InThread(sub.fetch, 100, timeout=20.0)
            eventually(lambda: sub.consumer_info().num_waiting == 1)
            fill(js, 1, first=number)
            [message] = fetch.result()
            assert (int(message.data), fetch.seconds < 10) == (number, True)
            message.ack_sync()
            assert sub.consumer_info().num_waiting == 0


def test_fetch_with_a_filter_returns_as_soon_as_a_first_message_has_come(js: JetStream) -> None:
    """Messages of other subjects, which the consumer skips, do not keep a fetch waiting."""
    with js.pull_subscribe("s.x", "d") as sub:
        fetch = InThread(sub.fetch, 100, timeout=20.0)
        eventually(lambda: sub.consumer_info().num_waiting == 1)
        fill(js, 20, subject="s.other")
        fill(js, 1, first=7)
        fill(js, 20, subject="s.other")
        assert numbers(fetch.result()) == [7]
        assert fetch.seconds < 10


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_without_a_limit_waits_over_pulls_that_expire(
    js: JetStream, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """timeout=None: a pull that expires is followed by the next, until a message comes."""
    monkeypatch.setattr(pull_subscription, "ENDLESS_SECONDS", 0.2)
    with js.pull_subscribe("s.x", "d") as sub:
        fetch = InThread(sub.fetch, batch, timeout=None)
        time.sleep(0.7)
        fill(js, 1, first=3)
        assert numbers(fetch.result()) == [3]
        assert fetch.seconds > 0.6


def test_fetch_without_a_limit_raises_what_waiting_does_not_mend(js: JetStream) -> None:
    """A consumer that was deleted ends a fetch that has no timeout."""
    sub = js.pull_subscribe("s.x", "d")
    fetch = InThread(sub.fetch, 5, timeout=None)
    eventually(lambda: sub.consumer_info().num_waiting == 1)
    js.delete_consumer("S", "d")
    assert isinstance(fetch.error(), ConsumerDeletedError)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("timeout", [0.3, 1.0])
def test_fetch_without_messages_raises_timeout(js: JetStream, batch: int, timeout: float) -> None:
    """A fetch that gets nothing raises TimeoutError at its timeout, or when the server said 408 just before."""
    with js.pull_subscribe("s.x", "d") as sub:
        started = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            sub.fetch(batch, timeout=timeout)
        elapsed = time.monotonic() - started
        assert timeout * 0.6 < elapsed < timeout + 0.2
        if elapsed < timeout:
            assert isinstance(caught.value.__cause__, PullError)
            assert caught.value.__cause__.code == 408
        assert sub.consumer_info().num_waiting == 0


def test_rounds_of_fetch_count_no_status_and_leave_nothing(
    nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """100 rounds of fetch(5) with 3 and with 0 messages: exactly the messages, and no subscription too many."""
    fill(js, 1, subject="s.other")  # publishing has a subscription of its own from here on
    sub = js.pull_subscribe("s.x", "d")
    before = subscriptions(nats_server, nc)
    expected = 0
    for round_number in range(100):
        if round_number % 2:
            fill(js, 3, first=expected)
            messages = sub.fetch(5, timeout=2.0)
            assert numbers(messages) == list(range(expected, expected + 3))
            for message in messages:
                message.ack()
            expected += 3
        else:
            with pytest.raises(TimeoutError):
                sub.fetch(5, timeout=0.03)
        assert subscriptions(nats_server, nc) == before
    eventually(lambda: sub.consumer_info().ack_floor.consumer_seq == 150)
    assert sub.consumer_info().num_redelivered == 0
    sub.unsubscribe()
    assert subscriptions(nats_server, nc) == before - 1


def test_rounds_of_single_fetches_share_one_subscription(
    nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """Single fetches use one wildcard inbox: the number of subscriptions stays the same."""
    fill(js, 30)
    sub = js.pull_subscribe("s.x", "d")
    before = subscriptions(nats_server, nc)
    for number in range(30):
        assert numbers(sub.fetch(1)) == [number]
    with pytest.raises(TimeoutError):
        sub.fetch(1, timeout=0.05)
    assert subscriptions(nats_server, nc) == before
    sub.unsubscribe()


def test_threads_share_a_pull_subscription(js: JetStream) -> None:
    """Several threads may fetch at once, single messages and batches: each message goes to one of them."""
    fill(js, 200)
    sub = js.pull_subscribe("s.x", "d")
    seen: list[int] = []

    def work(batch: int) -> None:
        while len(seen) < 200:
            try:
                messages = sub.fetch(batch, timeout=0.3)
            except TimeoutError:
                continue
            for message in messages:
                message.ack_sync()
                seen.append(int(message.data))

    workers = [InThread(work, batch) for batch in (1, 1, 1, 7)]
    for worker in workers:
        worker.result(20.0)
    assert sorted(seen) == list(range(200))
    assert sub.consumer_info().num_redelivered == 0
    sub.unsubscribe()


# --- on the wire -------------------------------------------------------------------------------------------


def wire_of(proxy: FaultProxy, nc: Connection, start: int) -> bytes:
    """What the client has sent since `start`, without its pings, and with its inboxes and sids numbered."""
    nc.flush()
    sent = proxy.captured[0].to_server[start:].replace(b"PING\r\n", b"")
    inboxes = list(dict.fromkeys(re.findall(rb"_INBOX\.[\w.]+", sent)))
    sent = re.sub(rb"_INBOX\.[\w.]+", lambda found: b"<inbox %d>" % inboxes.index(found[0]), sent)
    sids = list(dict.fromkeys(re.findall(rb"(?m)^(?:SUB <.*>|UNSUB) (\d+)", sent)))
    return re.sub(
        rb"(?m)^(SUB <.*>|UNSUB) (\d+)", lambda found: found[1] + b" <sid %d>" % sids.index(found[2]), sent
    )


def test_wire_of_a_fetch_on_an_empty_stream(proxied: tuple[FaultProxy, Connection]) -> None:
    """ADR-13: SUB, no-wait pull; on 404 UNSUB after batch + 1, a long pull 100 ms short of the timeout, UNSUB."""
    proxy, nc = proxied
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    nc.flush()
    start = len(proxy.captured[0].to_server)
    with pytest.raises(TimeoutError):
        sub.fetch(5, timeout=1.0)
    assert wire_of(proxy, nc, start) == (
        b"SUB <inbox 0> <sid 0>\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 26\r\n"
        b'{"batch":5,"no_wait":true}\r\n'
        b"UNSUB <sid 0> 6\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 46\r\n"
        b'{"batch":5,"expires":900000000,"no_wait":true}\r\n'
        b"UNSUB <sid 0>\r\n"
    )
    sub.unsubscribe()


def test_wire_of_a_fetch_that_the_long_pull_ends(proxied: tuple[FaultProxy, Connection], js: JetStream) -> None:
    """A message comes while the long pull waits: the server ends the pull, the client the interest."""
    proxy, nc = proxied
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    nc.flush()
    start = len(proxy.captured[0].to_server)
    fetch = InThread(sub.fetch, 5, timeout=5.0)
    eventually(lambda: js.get_consumer("S", "d").info.num_waiting == 1)
    fill(js, 1)
    assert numbers(fetch.result()) == [0]
    assert wire_of(proxy, nc, start) == (
        b"SUB <inbox 0> <sid 0>\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 26\r\n"
        b'{"batch":5,"no_wait":true}\r\n'
        b"UNSUB <sid 0> 6\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 47\r\n"
        b'{"batch":5,"expires":4900000000,"no_wait":true}\r\n'
        b"UNSUB <sid 0>\r\n"
    )
    sub.unsubscribe()


@pytest.mark.parametrize("stored", [5, 3])
def test_wire_of_a_fetch_on_a_filled_stream(
    proxied: tuple[FaultProxy, Connection], js: JetStream, stored: int
) -> None:
    """What is there comes by the no-wait pull alone, be it the whole batch or less."""
    proxy, nc = proxied
    fill(js, stored)
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    nc.flush()
    start = len(proxy.captured[0].to_server)
    assert len(sub.fetch(5)) == stored
    assert wire_of(proxy, nc, start) == (
        b"SUB <inbox 0> <sid 0>\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 26\r\n"
        b'{"batch":5,"no_wait":true}\r\n'
        b"UNSUB <sid 0>\r\n"
    )
    sub.unsubscribe()


def test_wire_of_single_fetches(proxied: tuple[FaultProxy, Connection], js: JetStream) -> None:
    """A single fetch: a no-wait pull over the wildcard inbox; only if that finds nothing an inbox of its own."""
    proxy, nc = proxied
    fill(js, 2)
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    nc.flush()
    inbox = re.findall(rb"SUB (_INBOX\S+)\.\* \d+\r\n", proxy.captured[0].to_server)[-1]
    start = len(proxy.captured[0].to_server)
    assert numbers(sub.fetch() + sub.fetch()) == [0, 1]
    fetch = InThread(sub.fetch)
    eventually(lambda: js.get_consumer("S", "d").info.num_waiting == 1)
    fill(js, 1, first=2)
    assert numbers(fetch.result()) == [2]
    assert proxy.captured[0].to_server[start:].count(inbox + b".") == 3
    assert wire_of(proxy, nc, start) == (
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 0> 26\r\n"
        b'{"batch":1,"no_wait":true}\r\n'
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 1> 26\r\n"
        b'{"batch":1,"no_wait":true}\r\n'
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 2> 26\r\n"
        b'{"batch":1,"no_wait":true}\r\n'
        b"SUB <inbox 3> <sid 0>\r\n"
        b"UNSUB <sid 0> 1\r\n"
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d <inbox 3> 32\r\n"
        b'{"batch":1,"expires":4900000000}\r\n'
    )
    sub.unsubscribe()


@pytest.mark.parametrize(("timeout", "expires"), [(5.0, 4_900_000_000), (1.0, 900_000_000), (0.5, 450_000_000)])
def test_expires_lies_before_the_timeout(
    nats_server: LocalServer, nc: Connection, js: JetStream, timeout: float, expires: int
) -> None:
    """100 ms before it, or a tenth of it when it is shorter than a second."""
    with Observer(nats_server.url) as observer, js.pull_subscribe("s.x", "d") as sub:
        started = time.monotonic()
        fetch = InThread(sub.fetch, 2, timeout=timeout)
        pulls = observer.wait_for_pulls(2)
        fill(js, 2)
        fetch.error()
        # What a first pull that is answered late has used up is taken off: on a busy machine at most this.
        margin = timeout - expires / 1e9
        used = pulls[1].at - started
        least = expires if used < margin / 2 else expires - round(used * 1e9)
        assert pulls[1].body["batch"] == 2
        assert least <= pulls[1].body["expires"] <= expires


# --- what fetch raises -------------------------------------------------------------------------------------


def test_fetch_over_the_limit_of_the_consumer_raises(js: JetStream) -> None:
    """A refusal of the server's is raised with its text."""
    with js.pull_subscribe("s.x", "d", config={"max_batch": 3}) as sub:
        with pytest.raises(PullError, match="MaxRequestBatch") as caught:
            sub.fetch(5)
        assert caught.value.code == 409
        with pytest.raises(TimeoutError):
            sub.fetch(3, timeout=0.2)


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_from_a_consumer_deleted_meanwhile(js: JetStream, batch: int) -> None:
    """A fetch under way ends at once when its consumer is deleted."""
    sub = js.pull_subscribe("s.x", "d")
    fetch = InThread(sub.fetch, batch, timeout=10.0)
    eventually(lambda: js.get_consumer("S", "d").info.num_waiting == 1)
    js.delete_consumer("S", "d")
    assert isinstance(fetch.error(2.0), ConsumerDeletedError)


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_from_a_consumer_that_does_not_exist(nc: Connection, js: JetStream, batch: int) -> None:
    """No such consumer: 503 from server 2.10.26 on, silence before."""
    kind = NoRespondersError if server_version(nc) >= (2, 10, 26) else TimeoutError
    sub = js.pull_subscribe(stream="S", consumer="nowhere")
    with pytest.raises(kind):
        sub.fetch(batch, timeout=0.5)
    sub.unsubscribe()


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_ends_when_the_connection_is_lost(
    proxied: tuple[FaultProxy, Connection], js: JetStream, batch: int
) -> None:
    """A fetch does not sit out its timeout when the connection breaks, and the next one works."""
    proxy, nc = proxied
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    fetch = InThread(sub.fetch, batch, timeout=10.0)
    eventually(lambda: js.get_consumer("S", "d").info.num_waiting == 1)
    proxy.cut()
    assert isinstance(fetch.error(2.0), ConnectionLostError)
    # Until the server has noticed the end of the old connection, it serves the pull that was sent there.
    eventually(lambda: js.get_consumer("S", "d").info.num_waiting == 0)
    fill(js, batch)
    eventually(lambda: nc.is_connected)
    assert numbers(sub.fetch(batch)) == list(range(batch))
    sub.unsubscribe()


@pytest.mark.parametrize("batch", [1, 5])
def test_fetch_of_a_silent_server_ends_at_its_timeout(
    proxied: tuple[FaultProxy, Connection], nats_server: LocalServer, js: JetStream, batch: int
) -> None:
    """Whatever the server does, a fetch ends; what it asked for is not delivered to a later one by mistake."""
    proxy, nc = proxied
    sub = nc.jetstream().pull_subscribe("s.x", "d", config={"ack_wait": 0.5})
    fill(js, batch)
    proxy.black_hole("to_client")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        under_watchdog(sub.fetch, batch, timeout=0.5)
    assert time.monotonic() - started < 1.0
    proxy.heal()
    seen: list[int] = []
    while len(seen) < batch:  # they come again after ack_wait
        seen += numbers(sub.fetch(batch, timeout=3.0))
    assert sorted(seen) == list(range(batch))
    sub.unsubscribe()


def test_late_reply_to_a_single_fetch_is_discarded(proxied: tuple[FaultProxy, Connection], js: JetStream) -> None:
    """The 404 of a single fetch that was given up comes too late, and is not taken for the next one's answer."""
    proxy, nc = proxied
    sub = nc.jetstream().pull_subscribe("s.x", "d")
    proxy.black_hole("to_client")
    with pytest.raises(TimeoutError):
        sub.fetch(1, timeout=0.2)
    proxy.heal()
    nc.flush()
    fill(js, 1)
    assert numbers(sub.fetch(1)) == [0]
    sub.unsubscribe()


@pytest.mark.parametrize("batch", [1, 5])
def test_denied_pull_fails_at_once(batch: int) -> None:
    """A pull that the server does not permit fails within a second, naming the subject."""
    config = """
        accounts: { A: { jetstream: enabled, users: [
            { user: admin, password: x },
            { user: app, password: x, permissions: { publish: { deny: ["$JS.API.CONSUMER.>"] } } } ] } }
    """
    with LocalServer(config=config) as server:
        with jetstream_sync.connect(server.url, user="admin", password="x") as admin:
            admin.jetstream().create_stream(name="S", subjects=["s.>"])
            admin.jetstream().create_consumer("S", durable_name="d")
        with jetstream_sync.connect(server.url, user="app", password="x", error_cb=lambda error: None) as nc:
            # The look-up is denied as well: for a pull subscription that is no error.
            sub = nc.jetstream().pull_subscribe(stream="S", consumer="d")
            error = InThread(sub.fetch, batch, timeout=10.0).error(1.0)
            assert isinstance(error, PermissionsError)
            assert "CONSUMER.MSG.NEXT.S.d" in str(error)


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "5"])
def test_fetch_of_a_bad_batch(js: JetStream, batch: Any) -> None:
    """A batch must be a positive int."""
    with js.pull_subscribe("s.x", "d") as sub:
        with pytest.raises(ValueError, match="batch"):
            sub.fetch(batch)


def test_fetch_with_a_timeout_of_zero_is_refused(js: JetStream) -> None:
    """A timeout of zero is no timeout: None says that there is none."""
    with js.pull_subscribe("s.x", "d") as sub:
        with pytest.raises(ValueError, match="timeout"):
            sub.fetch(1, timeout=0)


@pytest.mark.parametrize("batch", [1, 5])
def test_signal_in_a_fetch_removes_its_interest(
    nats_server: LocalServer, nc: Connection, js: JetStream, batch: int
) -> None:
    """An exception of a signal handler's leaves no subscription behind, and the next fetch works."""
    sub = js.pull_subscribe("s.x", "d")
    before = subscriptions(nats_server, nc)
    with pytest.raises(Interrupted), interrupted_after(0.2, Interrupted):
        sub.fetch(batch, timeout=5.0)
    assert subscriptions(nats_server, nc) == before
    fill(js, batch)
    assert numbers(sub.fetch(batch)) == list(range(batch))
    sub.unsubscribe()


# --- life --------------------------------------------------------------------------------------------------


def test_unsubscribe_deletes_only_what_it_created(js: JetStream) -> None:
    """A consumer it created goes with the subscription, one it found stays; a fetch after that is an error."""
    created = js.pull_subscribe("s.x", "made")
    found = js.pull_subscribe("s.x", "made")
    js.create_consumer("S", durable_name="there")
    bound = js.pull_subscribe(stream="S", consumer="there")
    found.unsubscribe()
    bound.unsubscribe()
    assert sorted(js.get_stream("S").consumer_names()) == ["made", "there"]
    created.unsubscribe()
    created.unsubscribe()
    assert sorted(js.get_stream("S").consumer_names()) == ["there"]
    with pytest.raises(SubscriptionClosedError):
        created.fetch()


def test_ephemeral_pull_subscription(js: JetStream) -> None:
    """Without a durable an ephemeral consumer is created, and deleted in the end."""
    fill(js, 1)
    with js.pull_subscribe("s.x") as sub:
        assert numbers(sub.fetch()) == [0]
        assert sub.consumer_info().config.durable_name is None
    assert list(js.get_stream("S").consumer_names()) == []


def test_unsubscribe_raises_when_the_deletion_fails(js: JetStream) -> None:
    """A deletion that fails is raised."""
    sub = js.pull_subscribe("s.x", "d")
    js.delete_consumer("S", "d")
    with pytest.raises(NatsError, match="not found"):
        sub.unsubscribe()


def test_created_consumer_has_no_deliver_subject(proxied: tuple[FaultProxy, Connection]) -> None:
    """The creation of a pull consumer: filter and ack policy, on the subject of servers from 2.9."""
    proxy, nc = proxied
    sub: PullSubscription = nc.jetstream().pull_subscribe("s.x", "d", config={"max_waiting": 5})
    body = proxy.captured[0].to_server.partition(b"PUB $JS.API.CONSUMER.CREATE.S.d.s.x ")[2].split(b"\r\n")[1]
    assert json.loads(body)["config"] == {
        "durable_name": "d",
        "name": "d",
        "ack_policy": "explicit",
        "filter_subject": "s.x",
        "max_waiting": 5,
    }
    sub.unsubscribe()


def test_fetch_starts_no_thread(js: JetStream) -> None:
    """A pull subscription works in its caller's thread alone."""
    fill(js, 5)
    before = set(threading.enumerate())
    with js.pull_subscribe("s.x", "d") as sub:
        sub.fetch(2)
        sub.fetch(1)
        assert set(threading.enumerate()) <= before
