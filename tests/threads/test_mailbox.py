"""Mailbox under many threads: every item exactly once, in order, and no wake-up is lost."""

from __future__ import annotations

import ctypes
import random
import signal
import threading
import time

import pytest

from jetstream_sync._threads import Mailbox
from jetstream_sync.errors import ConnectionClosedError, TimeoutError
from tests.support.eventually import eventually
from tests.support.signals import Interrupted

pytestmark = pytest.mark.usefixtures("eager_switching")


class Stop(Exception):
    """Ends a thread that takes items."""


class Taker(threading.Thread):
    """A thread that takes items, with random timeouts, until the mailbox is closed."""

    def __init__(self, mailbox: Mailbox[tuple[int, int]], seed: int) -> None:
        super().__init__(daemon=True)
        self._mailbox = mailbox
        self._rng = random.Random(seed)
        self.taken: list[tuple[int, int]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        while True:
            try:
                self.taken.append(self._mailbox.get(self._rng.choice((None, 1.0, 0.001, 0.00001, 0))))
            except TimeoutError:
                continue
            except ConnectionClosedError:
                return
            except BaseException as error:  # noqa: BLE001 - seen by the test
                self.failure = error
                return


def produce(mailbox: Mailbox[tuple[int, int]], producer: int, count: int) -> None:
    rng = random.Random(producer)
    number = 0
    while number < count:
        size = min(rng.choice((1, 1, 2, 10)), count - number)
        assert mailbox.put_run([(producer, number + offset) for offset in range(size)])
        number += size
        if rng.random() < 0.1:
            time.sleep(rng.random() * 0.0005)


def start_producers(mailbox: Mailbox[tuple[int, int]], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=produce, args=(mailbox, n, count), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    return threads


def assert_in_order(taken: list[tuple[int, int]]) -> None:
    """The items of each producer were taken in the order in which they were put."""
    for producer in range(4):
        numbers = [number for who, number in taken if who == producer]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("takers", [1, 2, 8])
def test_every_item_taken_exactly_once(takers: int) -> None:
    """Four producers and several takers at once: each item is taken once and in its producer's order."""
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    threads = [Taker(mailbox, seed) for seed in range(takers)]
    for thread in threads:
        thread.start()
    for producer in start_producers(mailbox, 1500):
        producer.join(20)
    mailbox.close(ConnectionClosedError())
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
        assert thread.failure is None
        assert_in_order(thread.taken)
    everything = sorted(item for thread in threads for item in thread.taken)
    assert everything == sorted((producer, number) for producer in range(4) for number in range(1500))


def test_lone_item_wakes_a_waiting_taker() -> None:
    """A single item that is put while four takers wait is taken by one of them, a thousand times in a row."""
    mailbox: Mailbox[int] = Mailbox()
    got: list[int] = []

    def take() -> None:
        try:
            while True:
                got.append(mailbox.get(None))
        except ConnectionClosedError:
            pass

    threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        mailbox.put(number)
        eventually(lambda n=number: len(got) == n + 1, 5, f"item {number}")
    mailbox.close(ConnectionClosedError())
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert sorted(got) == list(range(1000))


def test_close_wakes_all() -> None:
    """close() ends every wait with the given error, after the items put before it are handed out."""
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    threads = [Taker(mailbox, seed) for seed in range(16)]
    for thread in threads:
        thread.start()
    mailbox.put((0, 0))
    assert mailbox.close(ConnectionClosedError())
    assert not mailbox.close(ConnectionClosedError())
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert [item for thread in threads for item in thread.taken] == [(0, 0)]
    assert not mailbox.put((0, 1))


def test_close_with_discard_hands_out_nothing() -> None:
    """A mailbox closed with `discard=True` hands out nothing more: get() raises the given error at once."""
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.close(ConnectionClosedError(), discard=True)
    with pytest.raises(ConnectionClosedError) as caught:
        mailbox.get()
    assert caught.value.__context__ is None


def test_timeout_is_kept_and_has_no_context() -> None:
    """get() raises TimeoutError after its timeout; the error has no cause or context."""
    mailbox: Mailbox[int] = Mailbox()
    start = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        mailbox.get(0.05)
    assert 0.05 <= time.monotonic() - start < 1.0
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


def test_taker_killed_at_any_moment_passes_its_wake_up_on() -> None:
    """A taker that is killed while it waits leaves its wake-up to the others: the next item is always taken."""
    mailbox: Mailbox[int] = Mailbox()
    got: list[int] = []
    rng = random.Random(7)

    def take(timeout: float | None, started: threading.Event) -> None:
        try:
            started.set()  # an exception before this would end the thread outside the `try`
            while True:
                try:
                    got.append(mailbox.get(timeout))
                except TimeoutError:
                    pass
        except (Stop, ConnectionClosedError):
            pass

    survivor = threading.Thread(target=take, args=(None, threading.Event()), daemon=True)
    survivor.start()
    for number in range(400):
        started = threading.Event()
        victim = threading.Thread(target=take, args=(0.0005, started), daemon=True)
        victim.start()
        assert started.wait(5)
        time.sleep(rng.random() * 0.0008)
        raise_in(victim, Stop)
        victim.join(5)
        assert not victim.is_alive()
        before = len(got)
        mailbox.put(number)
        eventually(lambda n=before: len(got) > n, 5, f"item {number}")
    mailbox.close(ConnectionClosedError())
    survivor.join(5)
    assert not mailbox._waiters


def test_signals_leave_no_dead_waiter_behind() -> None:
    """A get() that a signal handler interrupts leaves no waiter in the mailbox."""
    mailbox: Mailbox[int] = Mailbox()
    rng = random.Random(3)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3e-4))
                while True:
                    try:
                        mailbox.get(0.00005)
                    except TimeoutError:
                        pass
            except Interrupted:
                pass
            assert not mailbox._waiters
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_before_wait_runs_only_when_about_to_block() -> None:
    """`before_wait` is called only when get() finds the mailbox empty."""
    calls: list[int] = []
    mailbox: Mailbox[int] = Mailbox(before_wait=lambda: calls.append(1))
    mailbox.put_run([1, 2])
    assert [mailbox.get(), mailbox.get()] == [1, 2]
    assert calls == []
    with pytest.raises(TimeoutError):
        mailbox.get(0)
    assert calls == [1]


@pytest.mark.parametrize("seed", range(10))
def test_what_close_moves_into_a_list_no_thread_takes(seed: int) -> None:
    """Each item is either moved or taken, whatever the threads do; nothing is accepted afterwards."""
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    takers = [Taker(mailbox, seed * 10 + number) for number in range(3)]
    for taker in takers:
        taker.start()
    put: list[tuple[int, int]] = []

    def fill_until_closed() -> None:
        for number in range(100_000):
            if not mailbox.put_run([(0, 2 * number), (0, 2 * number + 1)]):
                return
            put.extend([(0, 2 * number), (0, 2 * number + 1)])

    producer = threading.Thread(target=fill_until_closed, daemon=True)
    producer.start()
    time.sleep(0.002 * seed)
    moved: list[tuple[int, int]] = []
    closers = [
        threading.Thread(target=mailbox.close, args=(ConnectionClosedError(),), kwargs={"into": moved})
        for _ in range(2)
    ]
    for thread in closers:
        thread.start()
    for thread in (*closers, producer, *takers):
        thread.join(5)
        assert not thread.is_alive()
    taken = [item for taker in takers for item in taker.taken]
    assert sorted(taken + moved) == put
    assert len(mailbox) == 0
