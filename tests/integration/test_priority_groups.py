"""Priority groups: overflow, pinned client, prioritized (server 2.11 and later; prioritized 2.12)."""

from __future__ import annotations

import time
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream
from jetstream_sync.errors import BadRequestError, PullError, TimeoutError
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, server_version, stream_and_consumer, waiting_pulls
from tests.support.watchdog import InThread


def grouped(js: JetStream, policy: str, count: int = 0, **config: Any) -> Consumer:
    return stream_and_consumer(js, count, priority_groups=["A"], priority_policy=policy, **config)


def knows_groups(nc: Connection) -> bool:
    return server_version(nc) >= (2, 11)


def assert_unknown(consumer: Consumer) -> None:
    """A server before 2.11 takes no notice: the groups are dropped, pulls are served as any."""
    assert consumer.info.config.priority_groups is None
    assert consumer.next(2, group="A") is not None


# --- overflow -----------------------------------------------------------------------------------------


def test_overflow_by_min_pending_serves_only_above_it(js: JetStream, nc: Connection) -> None:
    """A pull with min_pending gets nothing until that many messages wait."""
    consumer = grouped(js, "overflow", 5)
    if not knows_groups(nc):
        assert_unknown(consumer)
        return
    assert list(consumer.fetch(1, expires=0.3, group="A", min_pending=10)) == []
    fill(js, 10, first=5)
    assert len(list(consumer.fetch(3, expires=2, group="A", min_pending=10))) == 3


def test_overflow_by_min_ack_pending_serves_only_above_it(js: JetStream, nc: Connection) -> None:
    """A pull with min_ack_pending gets nothing until that many messages are unacknowledged."""
    consumer = grouped(js, "overflow", 10)
    if not knows_groups(nc):
        assert_unknown(consumer)
        return
    assert consumer.next(0.3, group="A", min_ack_pending=2) is None
    assert len(list(consumer.fetch(2, expires=2, group="A"))) == 2
    assert consumer.next(2, group="A", min_ack_pending=2) is not None


@pytest.mark.parametrize("how", ["messages", "consume"])
def test_overflow_options_are_on_every_pull(
    js: JetStream, nc: Connection, nats_server: LocalServer, how: str
) -> None:
    """messages() and consume() repeat group, min_pending and min_ack_pending in each pull."""
    consumer = grouped(js, "overflow", 60)
    options: dict[str, Any] = {"group": "A", "min_pending": 1, "min_ack_pending": 1, "max_messages": 10}
    got = []
    # One stays unacknowledged and some stay in the stream: servers differ on whether one condition is enough.
    assert consumer.next(2, group="A") is not None
    with Observer(nats_server.url) as observer:
        if how == "messages":
            with consumer.messages(**options) as messages:
                got = [messages.next(5).data for _ in range(40)]
        else:
            with consumer.consume(lambda message: got.append(message.data), **options):
                eventually(lambda: len(got) >= 40)
        observer.settle(nc)
        assert len(observer.pulls) >= 4
        for pull in observer.pulls:
            assert {key: pull.body[key] for key in ("group", "min_pending", "min_ack_pending")} == {
                "group": "A",
                "min_pending": 1,
                "min_ack_pending": 1,
            }
    assert got[:40] == [b"%d" % number for number in range(1, 41)]


@pytest.mark.parametrize(
    ("policy", "options", "text"),
    [
        ("overflow", {}, "Priority Group missing"),
        ("overflow", {"group": "B"}, "Invalid Priority Group"),
        ("pinned_client", {"group": "A", "min_pending": 1}, "Not a Overflow Priority consumer"),
    ],
)
def test_group_refused_by_the_server_says_so(
    js: JetStream, nc: Connection, policy: str, options: dict[str, Any], text: str
) -> None:
    """400 carries the server's own words, for a fetch as an error, for a consume as a report."""
    consumer = grouped(js, policy, 1)
    if not knows_groups(nc):
        assert_unknown(consumer)
        return
    if not options and server_version(nc) < (2, 12):
        # These servers look at the group only when the pull has one.
        text = ""
    if text:
        with pytest.raises(PullError, match=text) as caught:
            consumer.next(2, **options)
        assert caught.value.code == 400
        errors: list[Exception] = []
        with consumer.messages(on_error=errors.append, **options) as messages:
            with pytest.raises(TimeoutError):
                messages.next(0.5)
            eventually(lambda: errors)
            assert text in str(errors[0])
            assert not messages.closed


# --- pinned client ------------------------------------------------------------------------------------


def pinned_pair(js: JetStream, nc: Connection) -> tuple[Consumer, Consumer]:
    """Two clients of one pinned consumer: each Consumer object keeps its own pin id."""
    return grouped(js, "pinned_client", priority_timeout=10), js.get_consumer("S", "C")


def test_pinned_client_alone_is_served(js: JetStream, nc: Connection, nats_server: LocalServer) -> None:
    """The first client is pinned and sends the id it learnt with each pull; the second waits."""
    first, second = pinned_pair(js, nc)
    fill(js, 10)
    if not knows_groups(nc):
        assert_unknown(first)
        return
    with Observer(nats_server.url) as observer:
        assert len(list(first.fetch(2, expires=2, group="A"))) == 2
        assert second.next(0.3, group="A") is None
        assert len(list(first.fetch(2, expires=2, group="A"))) == 2
        observer.settle(nc)
        pins = [pull.body.get("id") for pull in observer.pulls]
        assert pins[0] is None
        assert pins[1] is None
        assert pins[2]
        assert pins[2] == js.get_consumer("S", "C").info.priority_groups[0].pinned_client_id


def test_pinned_client_unpinned_passes_to_the_waiting_one(js: JetStream, nc: Connection) -> None:
    """unpin_consumer lets the other client take over; the first one's old pin is dropped on 423."""
    first, second = pinned_pair(js, nc)
    stream = js.get_stream("S")
    fill(js, 10)
    if not knows_groups(nc):
        assert_unknown(first)
        with pytest.raises(TimeoutError):  # such a server does not answer what it does not know
            nc.jetstream(timeout=0.3).get_stream("S").unpin_consumer("C", "A")
        return
    assert first.next(2, group="A") is not None
    stream.unpin_consumer("C", "A")
    assert second.next(2, group="A") is not None
    start = time.monotonic()
    assert first.next(5, group="A") is None  # 423: the pin is dropped, and this pull is over
    assert time.monotonic() - start < 1
    assert first._target._pins == {}
    assert first.next(0.3, group="A") is None  # now it waits its turn
    assert second.next(2, group="A") is not None
    with pytest.raises(BadRequestError, match="priority group"):
        stream.unpin_consumer("C", "B")


def test_pinned_client_timeout_passes_to_the_waiting_one(js: JetStream, nc: Connection) -> None:
    """A pinned client that does not pull any more loses its place after priority_timeout."""
    first = grouped(js, "pinned_client", priority_timeout=1)
    second = js.get_consumer("S", "C")
    fill(js, 10)
    if not knows_groups(nc):
        assert_unknown(first)
        return
    assert first.next(2, group="A") is not None
    waiting = InThread(second.next, 5, group="A")
    assert waiting.result(4) is not None


def test_pinned_consume_takes_over_after_unpin(js: JetStream, nc: Connection) -> None:
    """Two endless consumers: one gets everything; after unpin a message still reaches exactly one of them."""
    first, second = pinned_pair(js, nc)
    if not knows_groups(nc):
        fill(js, 1)
        assert_unknown(first)
        return
    got: list[list[bytes]] = [[], []]
    errors: list[Exception] = []

    def collect(index: int) -> Any:
        def callback(message: jetstream_sync.JetStreamMessage) -> None:
            got[index].append(message.data)
            message.ack()

        return callback

    options: dict[str, Any] = {"group": "A", "expires": 2, "max_messages": 10, "on_error": errors.append}
    contexts = [first.consume(collect(0), **options)]
    fill(js, 5)
    eventually(lambda: len(got[0]) == 5)
    contexts.append(second.consume(collect(1), **options))
    eventually(lambda: waiting_pulls(first) >= 3)  # two of the first's, and the second's
    for round_ in range(3):
        js.get_stream("S").unpin_consumer("C", "A")
        fill(js, 5, first=5 + 5 * round_)
        eventually(lambda count=10 + 5 * round_: len(got[0]) + len(got[1]) >= count)
    for context in contexts:
        context.stop()
        assert context.wait(5)
    assert sorted(map(int, got[0] + got[1])) == list(range(20))
    assert errors == []


# --- prioritized --------------------------------------------------------------------------------------


def test_prioritized_serves_the_lower_number_first(js: JetStream, nc: Connection) -> None:
    """Of two waiting pulls the one of priority 0 is served, and priority 1 when that one is filled."""
    if server_version(nc) < (2, 11):
        assert_unknown(grouped(js, "prioritized", 1))
        return
    if server_version(nc) < (2, 12):
        with pytest.raises(BadRequestError, match="unknown priority policy"):
            grouped(js, "prioritized")
        return
    consumer = grouped(js, "prioritized")
    low = consumer.fetch(2, expires=3, group="A", priority=1)
    eventually(lambda: waiting_pulls(consumer) == 1)
    high = consumer.fetch(2, expires=3, group="A", priority=0)
    eventually(lambda: waiting_pulls(consumer) == 2)
    fill(js, 3)
    assert [message.data for message in high] == [b"0", b"1"]
    assert next(iter(low)).data == b"2"
