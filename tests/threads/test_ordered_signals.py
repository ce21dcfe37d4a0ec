"""Exceptions of signal handlers in ordered reading: nothing hangs, and no message is skipped or comes twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetstream_sync import JetStream, OrderedConsumer, Stream
from jetstream_sync.consumers import chain, fetch, messages, ordered, ordered_feed, take
from tests.support.interrupts import everywhere
from tests.support.ordered import publish, upto
from tests.support.watchdog import InThread

MESSAGES = 600
CODE = (chain, fetch, messages, ordered, ordered_feed, take)


@pytest.fixture
def filled(js: JetStream, stream: Stream) -> Stream:
    publish(js, 1, MESSAGES)
    return stream


def by_next(ordered: OrderedConsumer) -> Callable[[list[int]], None]:
    def take_some(seen: list[int]) -> None:
        message = ordered.next(expires=2.0)
        assert message is not None
        seen.append(message.metadata.sequence.stream)

    return take_some


def by_fetch(ordered: OrderedConsumer) -> Callable[[list[int]], None]:
    def take_some(seen: list[int]) -> None:
        for message in ordered.fetch(3, expires=2.0):
            seen.append(message.metadata.sequence.stream)

    return take_some


@pytest.mark.parametrize("how", [by_next, by_fetch])
def test_fetch_interrupted_anywhere_goes_on_with_the_next_message(
    filled: Stream, how: Callable[[OrderedConsumer], Callable[[list[int]], None]]
) -> None:
    """Wherever a signal handler raises, the next call in any thread returns the next message."""
    reader = filled.ordered_consumer()
    take_some = how(reader)
    seen: list[int] = []
    elsewhere: list[int] = []

    def check(where: str) -> None:
        message = InThread(reader.next, 2.0).result()
        assert message is not None, where
        elsewhere.append(message.metadata.sequence.stream)
        assert sorted(seen + elsewhere) == upto(len(seen) + len(elsewhere)), where

    assert everywhere(lambda: lambda: take_some(seen), check, *CODE) > 20


@pytest.mark.parametrize("form", ["next", "loop"])
def test_messages_interrupted_anywhere_skip_nothing(filled: Stream, form: str) -> None:
    """Wherever next() or a loop over messages() is interrupted, no message is skipped and none comes twice."""
    seen: list[int] = []
    with filled.ordered_consumer().messages(max_messages=50) as reader:

        def take_some() -> None:
            if form == "next":
                seen.append(reader.next(timeout=5).metadata.sequence.stream)
            else:
                for message in reader:
                    seen.append(message.metadata.sequence.stream)
                    if len(seen) % 3 == 0:
                        break

        def check(where: str) -> None:
            assert seen == upto(len(seen)), where

        assert everywhere(lambda: take_some, check, *CODE) > 10
        while len(seen) < 100:
            seen.append(reader.next(timeout=5).metadata.sequence.stream)
        assert seen == upto(len(seen))
