"""Waking threads: Wakeup, Waiters, Slot, Mailbox, detached(), and beside()."""

from __future__ import annotations

import signal
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable

import pytest

from jetstream_sync._deadline import Deadline
from jetstream_sync._log import Log
from jetstream_sync._threads import Mailbox, Slot, Waiters, Wakeup, beside, detached, detached_jobs, locked, spawn
from jetstream_sync.errors import NatsError, TimeoutError
from tests.support.eventually import eventually
from tests.support.signals import handler_of

LOG = Log("connection", None)


def test_wakeup_is_remembered_once() -> None:
    """A set() before the wait ends it. Two of them end one wait, not two."""
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert wakeup.wait(5)
    assert not wakeup.wait(0.01)


def test_wakeup_wakes_a_sleeping_thread() -> None:
    """set() from another thread ends a wait at once."""
    wakeup = Wakeup()
    timer = threading.Timer(0.05, wakeup.set)
    timer.start()
    begun = time.monotonic()
    assert wakeup.wait(None)
    assert time.monotonic() - begun < 5
    timer.join()


def test_waiters_see_what_became_true_before_they_wait() -> None:
    """wait_until() returns at once if the condition is already true."""
    assert Waiters().wait_until(lambda: True, Deadline(0))


def test_waiters_give_up_at_the_deadline() -> None:
    """If the condition stays false wait_until() returns False at the deadline and leaves no waiter."""
    waiters = Waiters()
    assert not waiters.wait_until(lambda: False, Deadline(0.01))
    assert len(waiters) == 0


def test_waiters_are_all_woken() -> None:
    """wake_all() wakes every thread that waits for the condition."""
    waiters, done, seen = Waiters(), [], []

    def wait() -> None:
        seen.append(waiters.wait_until(lambda: bool(done), Deadline(10)))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    done.append(True)
    waiters.wake_all()
    for thread in threads:
        thread.join(10)
    assert seen == [True] * 8


def test_slot_hands_out_its_item_before_its_error() -> None:
    """get() returns the item that was put before the close; the next get() raises."""
    slot: Slot[int] = Slot()
    slot.put_run([1, 2])
    slot.close(NatsError("over"))
    assert slot.get(5) == 1
    with pytest.raises(NatsError, match="over"):
        slot.get(5)


def test_slot_times_out() -> None:
    """get() raises TimeoutError; a later get() returns an item that came after it."""
    slot: Slot[int] = Slot()
    with pytest.raises(TimeoutError):
        slot.get(0.01)
    slot.put_run([7])
    assert slot.get(0) == 7


def test_slot_close_wakes_a_waiting_thread() -> None:
    """A close from another thread ends a get() that waits, also after an item was taken."""
    slot: Slot[int] = Slot()
    slot.put_run([1])
    assert slot.get(0) == 1
    timer = threading.Timer(0.05, slot.close, [NatsError("closed")])
    timer.start()
    with pytest.raises(NatsError, match="closed"):
        slot.get(10)
    timer.join()


def test_mailbox_take_all_empties_it() -> None:
    """take_all() returns what is there, in order, and leaves nothing."""
    box: Mailbox[int] = Mailbox()
    box.put_run([1, 2, 3])
    assert box.take_all() == [1, 2, 3]
    assert box.take_all() == []


def test_mailbox_wakes_an_enlisted_waiter() -> None:
    """Anything with release() can wait in a mailbox; once it leaves, its wake-up goes to the next waiter."""
    box: Mailbox[int] = Mailbox()
    first, second = locked(), locked()
    assert box.enlist(first)
    assert box.enlist(second)
    box.put(1)
    assert not first.locked()
    box.leave(first)
    assert not second.locked()
    box.leave(second)
    assert not box.enlist(locked())


def test_detached_jobs_are_listed_while_they_run() -> None:
    """The table of detached jobs shows a running one by name and forgets it when it ends."""
    gate = locked()
    detached(gate.acquire)
    assert len(detached_jobs()) == 1
    gate.release()
    eventually(lambda: not detached_jobs())


def in_handler(call: Callable[[], object]) -> list[object]:
    """What `call`, or what it raises, is in a signal handler that interrupts the library."""
    outcomes: list[object] = []

    def handle(_number: int, _frame: object) -> None:
        try:
            outcomes.append(call())
        except ValueError as error:
            outcomes.append(error)

    with handler_of(signal.SIGALRM, handle):
        inside_the_library(signal.raise_signal, signal.SIGALRM)
    return outcomes


def inside_the_library(call: Callable[..., object], *args: object) -> None:
    """Call it with a frame of the library on the stack."""
    Waiters().wait_until(lambda: bool([call(*args)]), Deadline(5))


class Raised(Exception):
    """What a signal handler raises."""


def test_spawn_interrupted_when_the_thread_has_begun_raises_what_the_handler_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thread.start() tidies up after an exception of a handler's, and fails with a KeyError of its own."""
    # What start() calls has another name since Python 3.13.
    name = next(one for one in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, one))
    begun, start = threading.Event(), getattr(threading, name)

    def start_and_be_interrupted(*args: object, **options: object) -> None:
        start(*args, **options)
        assert begun.wait(5)
        raise Raised

    monkeypatch.setattr(threading, name, start_and_be_interrupted)
    with pytest.raises(Raised):
        spawn("interrupted", begun.set)
    monkeypatch.undo()
    spawn("next", begun.set).join(5)


def test_beside_passes_on_results_and_errors() -> None:
    """In a handler that interrupts the library the job runs on another thread; its result and error come back."""
    (ident,) = in_handler(lambda: beside(threading.get_ident, LOG))
    assert ident not in (None, threading.get_ident())

    def fail() -> None:
        raise ValueError("no")

    (error,) = in_handler(lambda: beside(fail, LOG))
    assert isinstance(error, ValueError)


def test_beside_stays_in_a_thread_that_interrupts_nothing() -> None:
    """Outside of handlers the calling thread runs the job itself."""
    assert threading.current_thread() is threading.main_thread()
    assert beside(threading.get_ident, LOG) == threading.get_ident()


def test_beside_stays_on_other_threads() -> None:
    """Threads other than the main one are never inside a signal handler: they run the job themselves."""
    same = []
    thread = threading.Thread(
        target=lambda: same.append(beside(threading.get_ident, LOG) == threading.get_ident())
    )
    thread.start()
    thread.join(10)
    assert same == [True]


def test_beside_in_a_handler_does_not_wait_for_a_lock_that_the_interrupted_code_holds() -> None:
    """The handler returns after its bound, and the job ends when the interrupted code releases the lock."""
    lock = allocate_lock()
    ended = threading.Event()

    def job() -> None:
        with lock:
            ended.set()

    with lock:
        assert in_handler(lambda: beside(job, LOG)) == [None]
        assert not ended.is_set()
    assert ended.wait(5)
