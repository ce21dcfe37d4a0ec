"""Signal handlers that raise in publish_async() and its futures: the handler's exception comes out, no other."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable

import pytest

from jetstream_sync import JetStream, Stream, _threads
from jetstream_sync.api import pub_ack_future, publish_async
from jetstream_sync.api.pub_ack_future import PubAckFuture
from tests.support.interrupts import everywhere
from tests.support.scripted_stream import ACK
from tests.support.signals import Interrupted

RAW = (b"_INBOX.x.1", None, None, ACK)


class Publisher:
    """What a future needs of its publisher."""

    def flush(self) -> None: ...

    def submit(self, callback: Callable[[], None]) -> None:
        callback()


@pytest.mark.parametrize("call", ["result", "exception", "add_done_callback"])
def test_interrupted_future_can_still_be_completed_and_waited_for(call: str) -> None:
    """At every place: the handler's exception comes out, no lock is left taken, the next call has the result."""
    futures: list[PubAckFuture] = []

    def prepare() -> Callable[[], object]:
        future = PubAckFuture(Publisher(), b"s", b"frame", 0, 0.0)  # type: ignore[arg-type]
        futures.append(future)
        completing = threading.Timer(0.005, future.complete, (RAW, None))
        completing.daemon = True
        completing.start()
        if call == "add_done_callback":
            return lambda: (future.add_done_callback(lambda _: None), future.result(5))
        return lambda: getattr(future, call)(5)

    def check(where: str) -> None:
        assert futures[-1].result(5).seq == 1, where
        assert futures[-1]._condition.acquire(blocking=False), where
        futures[-1]._condition.release()

    assert everywhere(prepare, check, pub_ack_future, _threads, threading) >= 5


def test_interrupted_wait_of_the_standard_library(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """concurrent.futures.wait() that is interrupted while it takes locks leaves them taken: js-reader goes on."""
    monkeypatch.setattr(pub_ack_future, "LEFT_TAKEN_SECONDS", 0.1)
    futures: list[PubAckFuture] = []

    def prepare() -> Callable[[], object]:
        futures[:] = [js.publish_async("s.a") for _ in range(3)]
        return lambda: concurrent.futures.wait(futures, 5)

    def check(where: str) -> None:
        assert js.publish("s.a", timeout=5).stream == "S", where
        js.publish_async_wait(5)
        assert not concurrent.futures.wait(futures, 5).not_done, where

    assert everywhere(prepare, check, pub_ack_future, concurrent.futures._base) >= 10


def test_interrupted_publish_async_leaves_no_place_taken(js: JetStream, stream: Stream) -> None:
    """At every place of publish_async(): the window is empty afterwards, and the next publish is stored."""
    js.publish_async("s.a").result(5)

    def check(where: str) -> None:
        js.publish_async_wait(5)
        assert js.publish_async("s.a").result(5).stream == "S", where

    assert everywhere(
        lambda: lambda: js.publish_async("s.a", msg_id=str(time.monotonic_ns())), check, publish_async
    )


def test_real_signals_in_result(js: JetStream, stream: Stream) -> None:
    """Signals at random moments of result(): Interrupted or the ack, nothing else."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    try:
        for number in range(300):
            future = js.publish_async("s.a")
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 * (number % 40 + 1))
                future.result(5)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    js.publish_async_wait(5)
    assert js.publish_async("s.a").result(5).seq <= 301
