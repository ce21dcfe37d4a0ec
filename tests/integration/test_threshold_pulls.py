"""Which thread sends the pull at the threshold, and what happens when that thread is interrupted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import TimeoutError
from jetstream_sync.net import outbox
from jetstream_sync.net.connection import link_of
from tests.support.consuming import buffered
from tests.support.eventually import eventually
from tests.support.observer import stream_and_consumer
from tests.support.signals import Interrupted


@pytest.fixture
def pulled_by(nc: Connection, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that send pulls, in order."""
    names: list[str] = []
    publish = link_of(nc).outbox.publish

    def watched(frame: bytes, size: int, **options: Any) -> None:
        if b".CONSUMER.MSG.NEXT." in frame[:64]:
            names.append(threading.current_thread().name)
        publish(frame, size, **options)

    monkeypatch.setattr(link_of(nc).outbox, "publish", watched)
    return names


def test_messages_loop_sends_the_pulls_at_the_threshold_itself(js: JetStream, pulled_by: list[str]) -> None:
    """The consuming thread sends the pull: another one would wait for the interpreter while the loop is busy."""
    consumer = stream_and_consumer(js, 1000)
    with consumer.messages(max_messages=100) as stream:
        for count, _message in enumerate(stream, start=1):
            if count == 1000:
                break
    assert len(pulled_by) >= 18  # one of 100, then each time 50 are processed
    assert set(pulled_by) == {threading.current_thread().name}


def test_consume_sends_the_pulls_at_the_threshold_from_its_worker(js: JetStream, pulled_by: list[str]) -> None:
    """With a callback, its thread sends the pulls; the first one is sent by consume() itself."""
    consumer = stream_and_consumer(js, 1000)
    seen: list[int] = []
    with consumer.consume(lambda message: seen.append(message.metadata.sequence.stream), max_messages=100):
        eventually(lambda: len(seen) == 1000)
    assert seen == list(range(1, 1001))
    assert {name.rpartition("-")[0] for name in pulled_by[1:]} == {"js-consume"}


def test_acks_of_a_burst_leave_with_the_pull(
    js: JetStream, nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst often ends where the next pull is due. Its last ack waits for that: one write, not two."""
    monkeypatch.setattr(outbox, "COALESCE_SECONDS", 0.3)  # the writer thread does not come first
    consumer = stream_and_consumer(js, 10)
    with consumer.messages(max_messages=20) as stream:
        eventually(lambda: buffered(stream) == 10)
        writes: list[bytes] = []
        transport = link_of(nc).session.transport  # type: ignore[union-attr]
        flush_now = transport.flush_now

        def recorded() -> bool:
            writes.extend([transport.outgoing] if transport.outgoing else [])
            return flush_now()

        monkeypatch.setattr(transport, "flush_now", recorded)
        for _ in range(10):
            stream.next(5).ack()
        assert writes == []
        with pytest.raises(TimeoutError):
            stream.next(0.01)
        (write,) = writes
        assert write.count(b"+ACK") == 10
        assert write.count(b".CONSUMER.MSG.NEXT.") == 1


def test_pull_whose_sender_is_interrupted_is_sent_again(
    js: JetStream, nc: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a signal handler raises in the sending thread, no pull is lost: the refill thread sends one."""
    consumer = stream_and_consumer(js, 300)
    stream = consumer.messages(max_messages=100)
    publish, interruptions = link_of(nc).outbox.publish, 0

    def interrupted(frame: bytes, size: int, **options: Any) -> None:
        nonlocal interruptions
        if b".CONSUMER.MSG.NEXT." in frame[:64] and threading.current_thread() is threading.main_thread():
            interruptions += 1
            raise Interrupted
        publish(frame, size, **options)

    with stream:
        monkeypatch.setattr(link_of(nc).outbox, "publish", interrupted)
        seen: set[int] = set()
        while len(seen) + interruptions < 300:  # what was in hand when a signal came is delivered again, later
            try:
                seen.add(stream.next(10).metadata.sequence.stream)
            except Interrupted:
                continue
    assert interruptions >= 1
