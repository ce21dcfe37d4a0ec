"""PubAckFuture: a standard future that creates its lock and decodes its reply only when needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import ConnectionLostError, JetStreamError, WrongLastSequenceError
from jetstream_sync.api import pub_ack_future
from jetstream_sync.api.pub_ack_future import PubAckFuture
from tests.support.eventually import eventually
from tests.support.forks import in_child
from tests.support.platforms import needs_fork_hooks
from tests.support.watchdog import InThread

ACK = (b"_INBOX.x.1", None, None, b'{"stream":"S","seq":7}')
REFUSAL = (
    b"_INBOX.x.1",
    None,
    None,
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}',
)


class Publisher:
    """The part of a publisher that a future uses: flush(), and a thread for callbacks."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1

    def submit(self, callback: Callable[[], Any]) -> None:
        thread = threading.Thread(target=callback, name="callbacks")
        thread.start()
        thread.join()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def future(publisher: Publisher) -> PubAckFuture:
    return PubAckFuture(publisher, b"orders", b"PUB orders 0\r\n\r\n", 0, 0.0)  # type: ignore[arg-type]


def test_standard_future_has_the_private_names_that_are_replaced() -> None:
    """A Python version that adds, renames or drops a private name of Future fails this test with that name."""
    fields = {name for name in vars(concurrent.futures.Future()) if name.startswith("_")}
    assert fields == set(pub_ack_future.REPLACED_FIELDS)
    methods = {name for name in vars(concurrent.futures.Future) if re.match("_(?!_)", name)}
    # __get_result is called by Future.result() alone, which PubAckFuture overrides.
    assert methods - {"_Future__get_result"} == set(pub_ack_future.USED_METHODS)
    states = (concurrent.futures._base.PENDING, concurrent.futures._base.FINISHED)
    assert states == (pub_ack_future._PENDING, pub_ack_future._FINISHED)


def test_every_private_name_of_the_standard_future_is_replaced() -> None:
    """No field of Future's own is left in use: Future.__init__ is not called, so it would be missing."""
    own = {name for name in pub_ack_future.REPLACED_FIELDS if name in vars(PubAckFuture)}
    assert own == set(pub_ack_future.REPLACED_FIELDS)
    inherited = {name for name in pub_ack_future.USED_METHODS if name not in vars(PubAckFuture)}
    assert inherited == set(pub_ack_future.USED_METHODS)


def test_nothing_is_created_until_a_thread_waits(future: PubAckFuture) -> None:
    """A future that no thread waits for has no lock, and its reply is not decoded."""
    future.complete(ACK, None)
    assert future._lazy_lock is None
    assert future._body is ACK[3]
    assert future.frame == b""  # it does not keep its message, either
    assert future.result().seq == 7
    assert future._body is None


def test_waiting_flushes_first(future: PubAckFuture, publisher: Publisher) -> None:
    """result() sends coalesced publishes before it waits; it does not when the reply is there already."""
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    assert publisher.flushes == 1
    future.complete(ACK, None)
    future.result()
    assert publisher.flushes == 1


def test_reply_wakes_every_waiter(future: PubAckFuture) -> None:
    """Several threads may wait for one reply."""
    waiting = [InThread(future.result, 5) for _ in range(8)]
    future.complete(ACK, None)
    assert {call.result(5).seq for call in waiting} == {7}


def test_state_does_not_change_while_its_lock_is_held(future: PubAckFuture) -> None:
    """concurrent.futures.wait() holds the lock while it counts the pending futures that will notify it."""
    with future._condition:
        completing = InThread(future.complete, ACK, None)
        eventually(lambda: future._body is ACK[3])
        assert not future.done()
    completing.result(5)
    assert future.done()


@needs_fork_hooks
def test_forked_child_waits_on_futures_though_the_parent_was_completing_one(publisher: Publisher) -> None:
    """The child does not inherit the lock as held, although the parent's reader was completing a future."""

    def wait_in_child() -> int:
        future = PubAckFuture(publisher, b"orders", b"", 0, 0.0)  # type: ignore[arg-type]
        future.complete(ACK, None)
        return future.result(5).seq

    with pub_ack_future._making_lock:
        assert in_child(wait_in_child) == 7


@pytest.mark.parametrize(
    ("raw", "error", "expected"),
    [(REFUSAL, None, WrongLastSequenceError), (None, ConnectionLostError(), ConnectionLostError),
     ((b"r", None, None, b"[" * 100_000), None, JetStreamError)],
    ids=["refused", "lost", "nonsense"],
)  # fmt: skip
def test_failure_is_raised_and_returned(
    future: PubAckFuture, raw: Any, error: Exception | None, expected: type[Exception]
) -> None:
    """result() raises the error at each call, with a traceback that does not grow; exception() returns it."""
    future.complete(raw, error)
    lengths = []
    for _ in range(3):
        with pytest.raises(expected) as caught:
            future.result()
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1
    assert isinstance(future.exception(), expected)


def test_callbacks_see_the_result_on_the_publishers_thread(future: PubAckFuture) -> None:
    """Each callback is called once, in order, with the future."""
    calls: list[tuple[str, int]] = []
    for name in ("first", "second"):
        future.add_done_callback(
            lambda f, name=name: calls.append((f"{name} {threading.current_thread().name}", f.result().seq))
        )
    future.complete(ACK, None)
    assert calls == [("first callbacks", 7), ("second callbacks", 7)]


def test_completion_races_with_everything_that_waits(publisher: Publisher) -> None:
    """Waiting, adding callbacks and completing at the same moment: nothing is lost, nothing called twice."""
    for _ in range(300):
        future = PubAckFuture(publisher, b"orders", b"PUB orders 0\r\n\r\n", 0, 0.0)  # type: ignore[arg-type]
        start = threading.Barrier(4)
        called: list[int] = []

        def wait(start: Any = start, future: Any = future) -> int:
            start.wait()
            return int(future.result(5).seq)

        def add(start: Any = start, future: Any = future, called: Any = called) -> None:
            start.wait()
            future.add_done_callback(lambda f: called.append(f.result(0).seq))

        def collect(start: Any = start, future: Any = future) -> int:
            start.wait()
            return len(concurrent.futures.wait([future], timeout=5).done)

        calls = [InThread(wait), InThread(add), InThread(collect)]
        start.wait()
        future.complete(ACK, None)
        assert [call.result(5) for call in calls] == [7, None, 1]
        assert called == [7]


def test_asyncio_can_await_it(future: PubAckFuture) -> None:
    """asyncio.wrap_future works: programs with a loop may bridge to it."""

    async def main() -> int:
        asyncio.get_running_loop().call_later(0.01, future.complete, ACK, None)
        return (await asyncio.wrap_future(future)).seq

    assert asyncio.run(main()) == 7
