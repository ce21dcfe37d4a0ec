"""loop, take_one and runs: how messages are taken from a feed, and what the feed is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from jetstream_sync._deadline import Deadline
from jetstream_sync.api.message import JetStreamMessage, SingleSource
from jetstream_sync.consumers.fetch import BatchFeed, MessageBatch
from jetstream_sync.consumers.pull import ArrivedStatus
from jetstream_sync.consumers.pull_options import FetchOptions, message_size
from jetstream_sync.consumers.take import loop, runs, take_one, take_raw
from jetstream_sync.errors import NatsError, PullError, SubscriptionClosedError, TimeoutError
from jetstream_sync.protocol.headers import Status
from jetstream_sync.protocol.parser import RawMessage
from tests.support.links import FakeLink, FakeTarget

CLOSED = SubscriptionClosedError("ended in order")
GONE = PullError(409, "Consumer Deleted", "gone")


def message(number: int) -> RawMessage:
    return (b"s.x", b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number), None, b"%d" % number)


def status(code: int, text: str = "") -> ArrivedStatus:
    return ArrivedStatus((b"_INBOX.1", None, b"NATS/1.0 %d\r\n\r\n" % code, b""), Status(code, text), 0.0)


class Scripted:
    """A feed that hands over one list after another, each when it is waited for, and then an error."""

    def __init__(self, *parts: list[RawMessage], end: NatsError = CLOSED, quantum: int = 3) -> None:
        self.link = FakeLink().link
        self.source = SingleSource()
        self.sized = False
        self.inspect: Callable[[RawMessage], bool] | None = None
        self.items: deque[RawMessage] = deque()
        self.quantum = quantum
        self.told: list[object] = []
        self._parts = deque(parts)
        self._end = end

    def wait(self, timeout: float | None) -> RawMessage:
        self.told.append("wait" if timeout is None else ("wait", timeout))
        if timeout == 0:
            raise TimeoutError("no message came in time")
        if not self._parts:
            raise self._end
        self.items = deque(self._parts.popleft())  # another deque: takers must look again
        return self.items.popleft()

    def on_status(self, status: ArrivedStatus) -> None:
        self.told.append(status.status.code)
        if status.status.code == 409:
            raise GONE

    def account(self, count: int, size: int, processed: bool = True) -> int:
        self.told.append((count, size) if processed else (count, size, "received"))
        return self.quantum

    def left(self, count: int, size: int) -> None:
        self.told.append(("left", count, size))


def data(messages: Iterator[JetStreamMessage]) -> list[bytes]:
    return [each.data for each in messages]


def test_loop_accounts_at_the_quantum_before_it_hands_out() -> None:
    feed = Scripted([message(n) for n in range(4)])
    taken = loop(feed)
    assert next(taken).data == b"0"
    assert feed.told == [(0, 0), "wait"]
    next(taken)
    next(taken)
    assert feed.told[2:] == [(3, 0)]
    assert data(taken) == [b"3"]
    assert feed.told[3:] == [(1, 0), "wait", ("left", 0, 0)]


def test_loop_when_done_accounts_when_the_next_is_asked_for() -> None:
    feed = Scripted([message(n) for n in range(4)], quantum=1)
    taken = loop(feed, when_done=True)
    next(taken)
    assert feed.told == [(0, 0), "wait"]
    next(taken)
    assert feed.told[2:] == [(1, 0)]
    taken.close()  # type: ignore[attr-defined]
    assert feed.told[3:] == [("left", 1, 0)]  # handed out, and so taken


def test_loop_accounts_before_each_status_and_each_wait() -> None:
    feed = Scripted([message(0), status(408), message(1)], [status(100), message(2)], quantum=100)
    assert data(loop(feed)) == [b"0", b"1", b"2"]
    assert feed.told == [
        (0, 0),
        "wait",
        (1, 0),
        408,
        (1, 0),
        "wait",
        100,
        (1, 0),
        "wait",
        ("left", 0, 0),
    ]


def test_loop_does_nothing_when_the_feed_is_over() -> None:
    feed = Scripted([message(0)], quantum=0)
    assert data(loop(feed)) == []
    assert feed.told == [(0, 0), ("left", 0, 0)]


def test_loop_ends_when_account_says_that_it_was_the_last() -> None:
    feed = Scripted([message(0), message(1)], quantum=1)
    taken = loop(feed)
    feed.quantum = 1
    next(taken)
    feed.quantum = 0
    assert data(taken) == [b"1"]


@pytest.mark.parametrize("take", [lambda feed: data(loop(feed)), lambda feed: list(runs(feed, 10))])
@pytest.mark.parametrize("how", ["wait", "status"])
def test_error_follows_the_messages_without_a_context(take: Callable[[Scripted], object], how: str) -> None:
    """What ends the feed is raised as it is, not "during handling" of an empty queue."""
    feed = Scripted([message(0)], end=GONE) if how == "wait" else Scripted([message(0), status(409)])
    with pytest.raises(PullError) as caught:
        take(feed)
    assert caught.value.__context__ is None
    assert feed.told[-1] == ("left", 0, 0)


@pytest.mark.parametrize("when_done", [False, True])
def test_loop_shows_messages_to_inspect_and_counts_what_passes(when_done: bool) -> None:
    feed = Scripted([message(n) for n in range(6)], quantum=100)
    feed.inspect = lambda raw: int(raw[3]) % 2 == 0
    assert data(loop(feed, when_done=when_done)) == [b"0", b"2", b"4"]
    assert (3, 0) in feed.told


def test_loop_counts_sizes_where_they_count() -> None:
    feed = Scripted([message(0), message(1)], quantum=100)
    feed.sized = True
    assert len(data(loop(feed))) == 2
    assert (2, message_size(message(0)) + message_size(message(1))) in feed.told


def test_messages_remember_the_source_and_not_the_feed() -> None:
    feed = Scripted([message(0), message(1)])
    first = next(iter(loop(feed)))
    second = take_one(feed, Deadline(None))
    assert first._source is second._source is feed.source


def test_take_one_judges_statuses_on_the_way() -> None:
    feed = Scripted([status(100), message(0), message(1)])
    assert take_one(feed, Deadline(None)).data == b"0"
    assert feed.told == ["wait", 100, (1, 0)]
    assert take_raw(feed, Deadline(None), processed=False) == message(1)
    assert feed.told[3:] == [(1, 0, "received")]
    with pytest.raises(SubscriptionClosedError):
        take_one(feed, Deadline(None))


def test_take_one_times_out() -> None:
    feed = Scripted()
    with pytest.raises(TimeoutError):
        take_one(feed, Deadline(0.0))
    assert feed.told == [("wait", 0.0)]


def test_runs_hand_out_what_has_come() -> None:
    """Lists of at most `most`, none of them waited for, and the quantum is kept."""
    feed = Scripted([message(n) for n in range(5)], [message(5), status(100), message(6)], quantum=100)
    assert [[int(raw[3]) for raw in run] for run in runs(feed, 3)] == [[0, 1, 2], [3, 4], [5], [6]]
    assert feed.told == [
        (0, 0), "wait", (3, 0), (2, 0), "wait", (1, 0), 100, (1, 0), "wait", ("left", 0, 0),
    ]  # fmt: skip
    feed = Scripted([message(n) for n in range(5)], quantum=2)
    assert [len(run) for run in runs(feed, 3)] == [2, 2, 1]


def test_runs_of_a_sized_feed_are_not_cut_to_single_messages() -> None:
    feed = Scripted([message(n) for n in range(5)], quantum=1)
    feed.sized = True
    assert [len(run) for run in runs(feed, 3)] == [3, 2]
    assert (3, 3 * message_size(message(0))) in feed.told


# --- the feed of a fetch --------------------------------------------------------------------------------


def fetching(**options: int) -> tuple[FakeLink, BatchFeed]:
    fake = FakeLink()
    feed = BatchFeed(FakeTarget(fake), FetchOptions.make(**options))  # type: ignore[arg-type]
    feed.start()
    return fake, feed


def test_batch_ends_its_pull_when_the_message_behind_the_last_is_asked_for() -> None:
    fake, feed = fetching(max_messages=2)
    feed.pull.deliver([message(0), message(1), message(2)], 3)
    taken = iter(MessageBatch(feed))
    assert [next(taken).data, next(taken).data] == [b"0", b"1"]
    assert fake.wire == [b"SUB _INBOX.1 1\r\n"]
    assert data(taken) == []
    assert fake.wire == [b"SUB _INBOX.1 1\r\n", b"UNSUB 1\r\n"]
    assert data(iter(MessageBatch(feed))) == []


def test_batch_by_bytes_ends_when_they_are_used_up() -> None:
    """No status follows then."""
    size = message_size(message(0))
    fake, feed = fetching(max_bytes=2 * size)
    feed.pull.deliver([message(0), message(1)], 3)
    assert data(iter(MessageBatch(feed))) == [b"0", b"1"]
    assert feed.filled
    assert fake.receivers == {}


def test_batch_closed_inside_its_loop_hands_nothing_more_out() -> None:
    _, feed = fetching(max_messages=5)
    feed.pull.deliver([message(n) for n in range(4)], 3)
    batch = MessageBatch(feed)
    got = []
    for each in batch:
        got.append(each.data)
        batch.close()
    assert got == [b"0"]


def test_batch_left_or_dropped_ends_its_pull() -> None:
    fake, feed = fetching(max_messages=5)
    feed.pull.deliver([message(0)], 3)
    for _ in MessageBatch(feed):
        break
    assert fake.receivers == {}
    fake, feed = fetching(max_messages=5)
    del feed
    assert fake.receivers == {}


def test_kept_message_does_not_keep_a_batch() -> None:
    fake, feed = fetching(max_messages=5)
    feed.pull.deliver([message(0)], 3)
    kept = next(iter(MessageBatch(feed)))
    del feed
    assert kept.data == b"0"
    assert fake.receivers == {}


def test_objects_that_users_hold_show_what_is_documented() -> None:
    """Nothing of their feeds and receivers."""
    from jetstream_sync import ConsumeContext, MessageStream, PullSubscription

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(MessageBatch) == {"close"}
    assert public(MessageStream) == {"next", "stop", "stop_progress", "drain", "closed"}
    assert public(ConsumeContext) == {"stop", "stop_progress", "drain", "wait", "closed", "error"}
    assert public(PullSubscription) == {"fetch", "consumer_info", "unsubscribe", "stream_name", "consumer_name"}
