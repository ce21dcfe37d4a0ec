"""Exceptions of signal handlers at every place of fetch, next, messages, consume and pull subscriptions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from jetstream_sync import Connection, Consumer, JetStream
from jetstream_sync.consumers import (
    consume,
    consumer,
    fetch,
    messages,
    pull,
    pull_state,
    pull_subscription,
    refill,
    take,
)
from tests.support.consuming import receivers, refill_of
from tests.support.eventually import eventually
from tests.support.interrupts import everywhere
from tests.support.observer import fill, stream_and_consumer
from tests.support.threads import library_threads
from tests.support.watchdog import InThread

KINDS = ("js-refill", "js-consume", "js-progress", "js-drain", "js-check")
MODULES = (consume, consumer, fetch, messages, pull, pull_subscription, refill, take)


@pytest.fixture
def nothing_left(nc: Connection) -> Iterator[Callable[[str], None]]:
    """Checks that no receiver and no thread is left of what was interrupted at a place."""
    nc.flush()
    before = set(receivers(nc))

    def check(where: str) -> None:
        if not set(receivers(nc)) <= before:
            gc.collect()  # the frames of the exception may still hold it
        eventually(lambda: set(receivers(nc)) <= before, 3.0, f"no receiver after {where}")
        eventually(lambda: not library_threads(*KINDS), 3.0, f"no thread after {where}")

    return check


@pytest.fixture
def full(js: JetStream, nc: Connection) -> Consumer:
    consumer = stream_and_consumer(js, 2000, ack_policy="none")
    consumer.next(5)  # opens the inbox of requests
    return consumer


def leave(loop: Any) -> None:
    """Take one message and close the loop. Dropping it would close it in a finalizer, which loses exceptions."""
    next(loop)
    loop.close()


WORK: dict[str, Callable[[Consumer], object]] = {
    "fetch": lambda consumer: list(consumer.fetch(3, expires=5)),
    "fetch by bytes": lambda consumer: list(consumer.fetch(max_bytes=200, expires=5)),
    "fetch left": lambda consumer: leave(iter(consumer.fetch(3, expires=5))),
    "fetch closed": lambda consumer: consumer.fetch(3, expires=5).close(),
    "next": lambda consumer: consumer.next(5),
    "next with heartbeats": lambda consumer: consumer.next(5, idle_heartbeat=1),
}


@pytest.mark.parametrize("work", WORK)
def test_pull_interrupted_anywhere_leaves_nothing(
    full: Consumer, nothing_left: Callable[[str], None], work: str
) -> None:
    """Wherever a signal handler raises, the inbox is gone, and the next pull works."""

    def check(where: str) -> None:
        nothing_left(where)
        assert full.next(2) is not None, where

    assert everywhere(lambda: lambda: WORK[work](full), check, *MODULES) > 10


@pytest.mark.parametrize("batch", [1, 3])
def test_pull_subscription_interrupted_anywhere_leaves_the_turn_to_others(
    js: JetStream, nc: Connection, batch: int
) -> None:
    """Wherever a signal handler raises in fetch(), another thread's fetch gets a message, and nothing is left."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 1000)
    sub = js.pull_subscribe("s.>", config={"max_ack_pending": -1})
    sub.fetch(1, 5)

    def check(where: str) -> None:
        assert InThread(sub.fetch, 1, 2.0).error(5) is None, where
        assert len(receivers(nc)) == before, where

    before = len(receivers(nc))
    assert everywhere(lambda: lambda: sub.fetch(batch, 2.0), check, *MODULES) > 15
    sub.unsubscribe()
    assert len(receivers(nc)) == before - 1


@pytest.mark.parametrize("leave", ["unsubscribe", "with"])
def test_unsubscribe_interrupted_anywhere_can_be_repeated(js: JetStream, nc: Connection, leave: str) -> None:
    """A second unsubscribe() closes the inbox and deletes the consumer."""
    js.create_stream(name="S", subjects=["s.>"])
    js.pull_subscribe("s.>").unsubscribe()
    before = len(receivers(nc))
    subs = []

    def prepare() -> Callable[[], object]:
        subs.append(js.pull_subscribe("s.>"))
        sub = subs[-1]
        return sub.unsubscribe if leave == "unsubscribe" else lambda: sub.__exit__(None, None, None)

    def check(where: str) -> None:
        subs[-1].unsubscribe()
        assert len(receivers(nc)) == before, where
        assert not list(js.get_stream("S").consumer_names()), where

    assert everywhere(prepare, check, *MODULES) > 3


def test_messages_interrupted_anywhere_leaves_nothing(full: Consumer, nothing_left: Callable[[str], None]) -> None:
    """Wherever a signal handler raises while a stream is opened, used and left, no inbox and no thread is left."""

    def work() -> None:
        with full.messages(max_messages=10) as stream:
            stream.next(5)
            loop = iter(stream)
            for _ in range(6):
                next(loop)
            loop.close()

    assert everywhere(lambda: work, nothing_left, *MODULES) > 40


def test_messages_interrupted_anywhere_goes_on(full: Consumer) -> None:
    """Wherever next() is interrupted, the next calls get messages and the stream goes on pulling."""
    stream = full.messages(max_messages=4)

    def check(where: str) -> None:
        for _ in range(5):
            assert InThread(stream.next, 2.0).error(5) is None, where

    assert everywhere(lambda: lambda: [stream.next(5) for _ in range(5)], check, *MODULES) > 20
    stream.stop()


@pytest.mark.parametrize("how", ["next", "loop"])
@pytest.mark.parametrize("ceiling", [1, 3])
def test_automatic_window_interrupted_anywhere_goes_on(js: JetStream, how: str, ceiling: int) -> None:
    """A report that is interrupted, and repeated or lost, never stops the pulls, even one message at a time."""
    consumer = stream_and_consumer(js, 2000, max_ack_pending=-1, ack_wait=60)
    stream = consumer.messages()
    window = refill_of(stream)._state._window
    assert window is not None
    window.ceiling = ceiling

    def work() -> None:
        if how == "next":
            for _ in range(3):
                stream.next(5).ack()
        else:
            loop = iter(stream)
            for message in islice(loop, 3):
                message.ack()
            loop.close()  # not left to the garbage collector, which would swallow what is raised in it

    def check(where: str) -> None:
        for _ in range(3):
            assert InThread(stream.next, 2.0).error(5) is None, where
        assert window.size <= ceiling

    assert everywhere(lambda: work, check, *MODULES, pull_state) > 20
    stream.stop()


@pytest.mark.parametrize("workers", [1, 3])
def test_consume_interrupted_anywhere_can_be_stopped(
    full: Consumer, nothing_left: Callable[[str], None], workers: int
) -> None:
    """An interrupted consume() leaves nothing; an interrupted end of its context is finished by stop()."""
    contexts = []

    def work() -> None:
        contexts.append(full.consume(lambda _: None, max_messages=10, max_workers=workers, auto_progress=True))
        with contexts[-1]:
            pass

    def check(where: str) -> None:
        for context in contexts:
            context.stop()
            context.wait(5)
        contexts.clear()
        nothing_left(where)

    assert everywhere(lambda: work, check, *MODULES) > 30


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_end_interrupted_anywhere_is_finished_by_a_second(
    full: Consumer, nothing_left: Callable[[str], None], how: str
) -> None:
    """Wherever stop() or drain() is interrupted, a second call ends the stream."""
    streams = []

    def prepare() -> Callable[[], object]:
        streams.append(full.messages(max_messages=10))
        return getattr(streams[-1], how)  # type: ignore[no-any-return]

    def check(where: str) -> None:
        getattr(streams[-1], how)()
        eventually(lambda: streams[-1].closed, message=where)
        nothing_left(where)

    assert everywhere(prepare, check, *MODULES) > 1
    streams[-1].stop()
