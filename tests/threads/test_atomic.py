"""Each assumption of jetstream_sync/_atomic.py, tried by many threads that are switched as often as possible."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetstream_sync._atomic import ASSUMPTIONS

THREADS = 6
ROUNDS = 400
SECONDS = 0.15


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs on a thread each, begun at once; what they return, or the first error."""
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def run(number: int, job: Callable[[], Any]) -> None:
        try:
            barrier.wait(10)
            results[number] = job()
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    return results


def repeat(job: Callable[[], Any]) -> Callable[[], None]:
    """`job` again and again, for a while."""

    def run() -> None:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            job()

    return run


def try_deque_hand_over() -> None:
    queue: deque[tuple[int, int]] = deque()
    writing = [True]

    def put(number: int) -> None:
        for first in range(0, ROUNDS * 10, 4):
            queue.extend([(number, first), (number, first + 1), (number, first + 2)])
            queue.append((number, first + 3))

    def write() -> None:
        together(*(lambda number=number: put(number) for number in range(2)))  # type: ignore[misc]
        writing.clear()

    def take() -> list[tuple[int, int]]:
        taken = []
        while writing or queue:
            try:
                taken.append(queue.popleft())
            except IndexError:
                pass
        return taken

    _, *taken = together(write, *[take] * 3)
    assert sorted(itertools.chain(*taken)) == [(n, i) for n in range(2) for i in range(ROUNDS * 10)]
    for mine in taken:
        for number in range(2):
            own = [index for n, index in mine if n == number]
            assert own == sorted(own)


def try_deque_copy() -> None:
    queue = deque(range(1000))

    def turn() -> None:
        queue.append(queue.popleft())

    def look() -> None:
        assert 990 <= len(queue.copy()) <= 1000
        assert len(queue) <= 1000

    together(repeat(turn), repeat(turn), repeat(look), repeat(look))
    together(repeat(lambda: queue.extend(range(50))), repeat(queue.clear), repeat(queue.copy))


def try_deque_remove() -> None:
    queue: deque[object] = deque()
    gone = object()

    def come_and_go() -> int:
        left = 0
        for _ in range(ROUNDS * 5):
            waiter = allocate_lock()
            queue.append(waiter)
            try:
                queue.remove(waiter)
                left += 1
            except ValueError:
                pass
        return left

    def take() -> int:
        taken = 0
        for _ in range(ROUNDS * 5):
            try:
                taken += queue.popleft() is not gone
            except IndexError:
                pass
        return taken

    counts = together(come_and_go, come_and_go, take, take)
    assert sum(counts) + len(queue) == 2 * ROUNDS * 5


def try_dict_pop_once() -> None:
    keys = [b"_INBOX.%d" % number for number in range(ROUNDS * 5)]
    pending = dict.fromkeys(keys, "waiting")
    got = together(*[lambda: [key for key in keys if pending.pop(key, None) is not None]] * THREADS)
    assert sorted(itertools.chain(*got)) == sorted(keys)


def try_dict_setdefault_once() -> None:
    for _ in range(ROUNDS // 8):
        turn: dict[str, object] = {}
        holders = together(*[lambda turn=turn: turn.setdefault("holder", object())] * THREADS)  # type: ignore[misc]
        assert len(set(map(id, holders))) == 1


def try_dict_listing() -> None:
    table: dict[bytes, int] = {b"%d" % number: number for number in range(50)}
    stays = set(table)
    numbers = itertools.count(1000)

    def come_and_go() -> None:
        key = b"%d" % next(numbers)
        table[key] = 0
        table.pop(key)

    def look() -> None:
        assert stays.issubset(list(table))
        assert len(list(table.values())) >= 50
        assert set(table.copy()) >= stays

    together(repeat(come_and_go), repeat(come_and_go), repeat(come_and_go), repeat(look), repeat(look))


def try_list_pop_once() -> None:
    for _ in range(ROUNDS // 8):
        permit = [b"permit"]

        def take(permit: list[bytes] = permit) -> int:
            try:
                permit.pop()
                return 1
            except IndexError:
                return 0

        assert sum(together(*[take] * THREADS)) == 1


def try_list_extend_map() -> None:
    """A signal handler raises as often as it can: the count of what was made is that of what is in the list."""
    made = itertools.count()
    kept: list[int] = []

    class InHandlerError(Exception):
        pass

    def handler(*_: object) -> None:
        raise InHandlerError

    before = signal.signal(signal.SIGALRM, handler)
    ends = time.monotonic() + 2 * SECONDS
    try:
        while time.monotonic() < ends:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
                while True:
                    kept.extend(map(next, (made,)))
            except InHandlerError:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except InHandlerError:
        pass  # it came while the timer was stopped
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert kept == list(range(next(made)))


def try_count_next() -> None:
    number = itertools.count().__next__
    drawn = together(*[lambda: [number() for _ in range(ROUNDS * 5)]] * THREADS)
    assert sorted(itertools.chain(*drawn)) == list(range(THREADS * ROUNDS * 5))


def try_lock_release() -> None:
    lock = allocate_lock()

    def release() -> int:
        try:
            lock.release()
            return 1
        except RuntimeError:
            return 0

    for _ in range(ROUNDS // 8):
        assert lock.acquire(blocking=False)
        assert sum(together(*[release] * THREADS)) == 1


def try_attribute_store() -> None:
    class Holder:
        __slots__ = ("pair",)

    holder = Holder()
    holder.pair = (0, 0)

    def store(numbers: Iterator[int] = itertools.count()) -> None:  # noqa: B008 - shared on purpose
        number = next(numbers)
        holder.pair = (number, number)

    def load() -> None:
        left, right = holder.pair
        assert left == right

    together(repeat(store), repeat(store), repeat(load), repeat(load))


TRIES = {name.removeprefix("try_"): value for name, value in globals().items() if name.startswith("try_")}


def test_every_assumption_is_tried() -> None:
    """Each row has a function here, and each function a row."""
    assert set(TRIES) == set(ASSUMPTIONS)


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_assumption_holds(name: str) -> None:
    """Many threads, switched as often as possible, see what the row says."""
    TRIES[name]()
