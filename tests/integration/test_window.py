"""The automatic window on a real server: what is handled twice, what is prefetched, what a restart costs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMessage, MessageStream
from jetstream_sync.errors import TimeoutError
from jetstream_sync.testing import FaultProxy
from tests.support.consuming import buffered, refill_of
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill, stream_and_consumer


class Experiment(NamedTuple):
    """So many messages, handled for so long each; all options but these are the defaults."""

    count: int
    seconds: Callable[[int], float]
    ack_wait: float = 2.0
    workers: int = 0  # 0: a loop over messages()
    auto_progress: bool = False

    def deliveries(self, js: JetStream, name: str) -> Counter[int]:
        """How often each message was handled."""
        js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")
        fill(js, self.count, subject=f"{name}.x")
        consumer = js.create_consumer(name, durable_name="C", ack_wait=self.ack_wait)
        seen: Counter[int] = Counter()

        def handle(message: JetStreamMessage) -> None:
            number = int(message.data)
            seen[number] += 1
            time.sleep(self.seconds(number))
            message.ack()

        def finished() -> bool:
            info = consumer.get_info()
            return not info.num_pending and not info.num_ack_pending

        patience = 5 * sum(map(self.seconds, range(self.count))) / max(1, self.workers) + 10
        if self.workers:
            with consumer.consume(handle, max_workers=self.workers, auto_progress=self.auto_progress):
                eventually(finished, patience)
        else:
            with consumer.messages(auto_progress=self.auto_progress) as stream:
                worker = threading.Thread(target=lambda: list(map(handle, stream)), daemon=True)
                worker.start()
                eventually(finished, patience)
                stream.stop()
                worker.join(10)
        return seen


def steady(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


EXPERIMENTS = {
    "ms1": Experiment(1000, steady(0.001)),
    "ms20": Experiment(300, steady(0.02)),
    "ms200": Experiment(25, steady(0.2)),
    "ms60x4": Experiment(200, steady(0.06), workers=4),
    "s1x8": Experiment(40, steady(1.0), workers=8),
    "s1": Experiment(5, steady(1.0), auto_progress=True),
    "jump": Experiment(1005, lambda number: 0.001 if number < 1000 else 1.0, workers=1, auto_progress=True),
}


def test_nothing_is_handled_twice_at_the_defaults(js: JetStream) -> None:
    """ack_wait is 2 s. With 500 messages ahead 551 were handled for the 300 of 20 ms, 80 for the 40 of 1 s."""
    with ThreadPoolExecutor(len(EXPERIMENTS)) as pool:
        runs = {name: pool.submit(kind.deliveries, js, name) for name, kind in EXPERIMENTS.items()}
    found = {name: run.result() for name, run in runs.items()}
    assert found == {name: Counter(range(kind.count)) for name, kind in EXPERIMENTS.items()}


@pytest.mark.soak
def test_600_messages_of_a_tenth_of_a_second(js: JetStream) -> None:
    """The default ack_wait of 30 s: with 500 messages ahead 804 were handled."""
    assert Experiment(600, steady(0.1), ack_wait=30).deliveries(js, "long") == Counter(range(600))


def test_four_deploys_lose_no_message_to_max_deliver(js: JetStream) -> None:
    """Three workers are stopped after 5 messages each. With 500 ahead 85 of 100 were never handled."""
    consumer = stream_and_consumer(js, 100, ack_wait=1, max_deliver=3)
    handled: Counter[int] = Counter()
    for count in (5, 5, 5, 85):
        with consumer.messages() as messages:
            for message in islice(messages, count):
                assert message.metadata.num_delivered <= 3
                handled[int(message.data)] += 1
                message.ack_sync()
    assert handled == Counter(range(100))


def sizes(observer: Observer) -> list[int]:
    return [pull.body["batch"] for pull in observer.pulls]


def test_fast_consumer_gets_to_the_ceiling(js: JetStream, nc: Connection, observer: Observer) -> None:
    """Twice as much with each pull, then half of 500 at a time."""
    consumer = stream_and_consumer(js, 5000)
    with consumer.messages() as messages:
        for message in islice(messages, 5000):
            message.ack()
        assert refill_of(messages)._state.limit == 500
    observer.settle(nc)
    assert sizes(observer)[:4] == [1, 2, 3, 6]  # of windows of 1, 2, 4 and 8
    assert max(sizes(observer)) <= 500
    assert 250 in sizes(observer)


@pytest.mark.parametrize(
    ("config", "options", "first"),
    [
        ({}, {}, 1),
        ({}, {"max_messages": 500}, 500),
        ({}, {"max_messages": 7}, 7),
        ({}, {"threshold_messages": 100}, 500),
        ({"ack_policy": "none"}, {}, 500),
        ({"max_ack_pending": 20}, {}, 1),
    ],
)
def test_first_pull(
    js: JetStream, observer: Observer, config: dict[str, Any], options: dict[str, Any], first: int
) -> None:
    """An int is taken as it is, a threshold means 500, and without acks nothing can come again."""
    consumer = stream_and_consumer(js, **config)
    with consumer.messages(**options):
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body["batch"] == first


def test_first_pull_of_several_workers(js: JetStream, observer: Observer) -> None:
    """One message for each."""
    consumer = stream_and_consumer(js)
    with consumer.consume(print, max_workers=6):
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body["batch"] == 6


def test_ordered_consumer_prefetches_500(js: JetStream, observer: Observer) -> None:
    """It has no acks."""
    stream_and_consumer(js)
    with js.ordered_consumer("S").messages():
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body["batch"] == 500


@pytest.mark.parametrize(("max_ack_pending", "most"), [(20, 20), (1, 1)])
def test_max_ack_pending_is_the_ceiling(
    js: JetStream, nc: Connection, observer: Observer, max_ack_pending: int, most: int
) -> None:
    """More the server would not send."""
    consumer = stream_and_consumer(js, 200, max_ack_pending=max_ack_pending)
    with consumer.messages() as messages:
        for message in islice(messages, 200):
            message.ack()
        assert refill_of(messages)._state.limit == most
    observer.settle(nc)
    assert max(sizes(observer)) <= most


def test_changed_configuration_counts_after_get_info(js: JetStream) -> None:
    """What the consumer object knows of ack_wait and max_ack_pending is what it was told last."""
    consumer = stream_and_consumer(js)
    js.update_consumer("S", durable_name="C", max_ack_pending=3, ack_wait=0.6)
    consumer.get_info()
    with consumer.messages() as messages:
        window = refill_of(messages)._state._window
        assert window is not None
        assert (window.ceiling, window.span) == (3, pytest.approx(0.1))


@pytest.mark.parametrize("how", ["loop", "next"])
def test_slow_handler_has_nothing_behind_the_message_in_hand(js: JetStream, how: str) -> None:
    """Slower than a sixth of ack_wait: other workers get the next message."""
    consumer = stream_and_consumer(js, 5, ack_wait=0.6)
    with consumer.messages() as messages:
        take = iter(messages).__next__ if how == "loop" else messages.next
        for _ in range(3):
            message = take()
            time.sleep(0.15)
            assert buffered(messages) == 0
            info = consumer.get_info()
            assert (info.num_ack_pending, info.num_waiting) == (1, 0)
            message.ack()


def test_time_without_a_message_is_not_held_against_the_handler(js: JetStream) -> None:
    """Waiting, a timeout, and what the user does between a timeout and the next call."""
    consumer = stream_and_consumer(js)
    with consumer.messages() as messages:
        for number in range(3):
            fill(js, 1, first=number)
            messages.next(5).ack()
            with pytest.raises(TimeoutError):
                messages.next(0.3)
            time.sleep(0.2)
        window = refill_of(messages)._state._window
        assert window is not None
        assert window.hold is not None
        assert window.hold < 0.15


def take_one_and(rest: str, messages: MessageStream, seen: list[int]) -> None:
    """In the body of a loop: take the next one, too, in the way `rest` says."""
    if rest == "next":
        seen.append(int(messages.next(5).data))
    elif rest == "loop":
        seen.extend(int(message.data) for message in islice(messages, 1))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("rest", ["next", "loop"])
@pytest.mark.parametrize("options", [{}, {"max_messages": 1}, {"max_messages": 3}])
def test_loops_and_next_may_be_mixed(js: JetStream, options: dict[str, Any], rest: str, ordered: bool) -> None:
    """What a loop has handed out is done with when another call asks for the next one, even one at a time."""
    consumer: Any = stream_and_consumer(js, 20)
    if ordered:
        consumer = js.ordered_consumer("S")
    seen: list[int] = []
    with consumer.messages(**options) as messages:
        for message in messages:
            seen.append(int(message.data))
            take_one_and(rest, messages, seen)
            if len(seen) == 20:
                break
        assert seen == list(range(20))
        with pytest.raises(TimeoutError):
            messages.next(0.05)


def test_loop_that_is_left_and_begun_again(js: JetStream) -> None:
    """Each loop takes one message, and next() between them."""
    consumer = stream_and_consumer(js, 30)
    seen: list[int] = []
    with consumer.messages() as messages:
        for _ in range(15):
            for message in messages:
                seen.append(int(message.data))
                break
            seen.append(int(messages.next(5).data))
    assert seen == list(range(30))


def test_window_outlives_a_reconnect(proxy: FaultProxy, observer: Observer) -> None:
    """Nothing is learned anew."""
    with jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05) as nc:
        consumer = stream_and_consumer(nc.jetstream(), 300)
        with consumer.messages() as messages:
            for message in islice(messages, 300):
                message.ack()
            with pytest.raises(TimeoutError):  # asked for the next one, the loop's messages are done with
                messages.next(0.05)
            size = refill_of(messages)._state.limit
            assert size > 100
            proxy.cut()
            eventually(lambda: sizes(observer)[-1] == size)
