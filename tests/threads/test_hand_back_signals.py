"""Signal handlers that raise or stop at every place of what hands back: each message nak'ed once, none in hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from jetstream_sync import (
    Connection,
    JetStream,
    JetStreamMessage,
    MessageBatch,
    MessageStream,
    SubscriptionClosedError,
    _threads,
)
from jetstream_sync.consumers import fetch, messages, pull, refill, take
from jetstream_sync.net import link, outbox
from tests.support.consuming import buffered
from tests.support.eventually import eventually
from tests.support.interrupts import Code, InterruptAt, everywhere
from tests.support.observer import Observer, fill, stream_and_consumer

ENDING = (fetch, messages, pull, refill, take, link, outbox, _threads)
TAKING = (messages, take, refill, pull)
COUNT = 5


class Ledger:
    """Makes streams and batches that have COUNT messages, and checks what was nak'ed of them."""

    def __init__(self, js: JetStream, nc: Connection, observer: Observer) -> None:
        self._js, self._nc, self._observer = js, nc, observer
        self._consumer = stream_and_consumer(js, COUNT, ack_wait=60)
        self._mark = 0
        self.in_hand: list[JetStreamMessage] = []

    def _begin(self) -> None:
        self._observer.settle(self._nc)
        self._mark = len(self._observer.acks)
        self.in_hand = []

    def stream(self) -> MessageStream:
        """One message in hand, the others buffered."""
        self._begin()
        stream = self._consumer.messages(max_messages=100)
        self.in_hand.append(stream.next(5))
        eventually(lambda: buffered(stream) == COUNT - 1)
        return stream

    def batch(self) -> MessageBatch:
        """All buffered, and the pull is not over."""
        self._begin()
        batch = self._consumer.fetch(COUNT + 3, expires=30)
        eventually(lambda: buffered(batch) == COUNT)
        return batch

    def _naks(self) -> Counter[str]:
        return Counter(seen.subject for seen in self._observer.acks[self._mark :] if seen.data == b"-NAK")

    def check(self, where: str, left_to_the_server: int = 0) -> None:
        """All that is not in hand was nak'ed once, and nothing else; then COUNT messages are there again."""
        expected = COUNT - len(self.in_hand) - left_to_the_server
        eventually(lambda: len(self._naks()) == expected, 3.0, f"{expected} naks after {where}")
        self._observer.settle(self._nc)
        naks = self._naks()
        assert (len(naks), sum(naks.values())) == (expected, expected), where
        for message in self.in_hand:
            assert message.reply not in naks, where
            message.ack()
        fill(self._js, len(self.in_hand) + left_to_the_server)


@pytest.fixture
def ledger(js: JetStream, nc: Connection, observer: Observer) -> Ledger:
    return Ledger(js, nc, observer)


@pytest.mark.parametrize("how", ["stop", "with"])
def test_stop_interrupted_anywhere_hands_back_once(ledger: Ledger, how: str) -> None:
    """A second stop() finishes what the first began, and nothing is nak'ed twice."""
    streams: list[MessageStream] = []

    def prepare() -> Callable[[], object]:
        streams[:] = [ledger.stream()]
        stream = streams[0]
        return stream.stop if how == "stop" else lambda: stream.__exit__(None, None, None)

    def check(where: str) -> None:
        streams[0].stop()
        ledger.check(where)

    assert everywhere(prepare, check, *ENDING) > 40
    ledger.check("no interruption")


def test_close_of_a_batch_interrupted_anywhere_hands_back_once(ledger: Ledger) -> None:
    """close() finishes by itself, or a second one does."""
    batches: list[MessageBatch] = []

    def prepare() -> Callable[[], object]:
        batches[:] = [ledger.batch()]
        return batches[0].close

    def check(where: str) -> None:
        batches[0].close()
        ledger.check(where)

    assert everywhere(prepare, check, *ENDING) > 30
    ledger.check("no interruption")


def interrupted_next(ledger: Ledger, stream: MessageStream, interrupt: InterruptAt) -> int:
    """next() with an interruption: how many messages it had taken and could not return."""

    def work() -> None:
        try:
            ledger.in_hand.append(stream.next(5))
        except SubscriptionClosedError:
            pass

    before, held = buffered(stream), len(ledger.in_hand)
    interrupt.call(work)
    taken = before - buffered(stream)
    return taken - (len(ledger.in_hand) - held) if taken <= 1 else 0  # more: a handler has stopped the stream


def test_stop_in_a_handler_wherever_next_is(ledger: Ledger) -> None:
    """What next() returns is not nak'ed; all the rest is."""
    code, place = Code(*TAKING, _threads), 0
    while True:
        stream = ledger.stream()
        interrupt = InterruptAt(code, place, stream.stop)
        interrupted_next(ledger, stream, interrupt)
        stream.stop()
        ledger.check(interrupt.where)
        if not interrupt.done:
            break
        place += 1
    assert place > 5


def test_handler_that_raises_wherever_next_is(ledger: Ledger) -> None:
    """A message that next() had taken and did not return comes again after ack_wait; it is not nak'ed, for the
    library does not know whether the user has it."""
    code, place = Code(*TAKING), 0
    while True:
        stream = ledger.stream()
        interrupt = InterruptAt(code, place)
        lost = interrupted_next(ledger, stream, interrupt)
        stream.stop()
        ledger.check(interrupt.where, lost)
        if not interrupt.done:
            break
        place += 1
    assert place > 5
