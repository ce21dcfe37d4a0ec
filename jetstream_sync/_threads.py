"""Threads, waiting and waking, and the queue between threads: the only place that starts threads.

Waiting is acquire() on a lock that is taken, waking is release(): CPython has nothing cheaper.

- `Wakeup`   wakes one thread that sleeps until there is work.
- `Waiters`  wakes every thread that waits for a condition.
- `Mailbox`  hands messages from the reader thread to consuming threads. It is a deque with a lock and bare-lock
             waiters, because `queue.Queue` and `Condition` cost several times more per message:
             putting a run takes the lock once and wakes only threads that wait; taking a message that is there
             takes no lock (`deque.popleft` is atomic); a closed mailbox hands out what it holds, then raises the
             reason it was closed with.
- `Slot`     is a mailbox for one item and one consuming thread, without a lock.

A signal handler may run, and raise, between any two instructions of the main thread. So waking a thread needs no
lock that the interrupted code may hold, and `beside` moves work that needs locks to another thread.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from _thread import LockType, RLock, allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ._deadline import FOREVER, Deadline
from ._platform import WAIT_SLICE, on_fork, sliced
from .errors import ForkError, TimeoutError

if TYPE_CHECKING:
    from ._log import Log

T = TypeVar("T")

# How long a call in a signal handler waits for work that may have to wait for the code which it interrupted.
HANDLER_SECONDS = 0.5

_PACKAGE = f"{__package__}."

# --- threads ------------------------------------------------------------------------------------------


def spawn(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Start a daemon thread named `js-<name>`.

    Daemon, so that a script that ends without close() ends at once. The caller argues in a comment why the thread
    ends, and joins it with a timeout on close.
    """
    thread = threading.Thread(target=target, args=args, name=f"js-{name}", daemon=True)
    try:
        thread.start()
    except KeyError as error:
        # A signal handler raised when the thread had begun: start() fails as it tidies up after it.
        raise error if error.__context__ is None else error.__context__ from None
    return thread


def detached(job: Callable[..., None], *args: Any) -> bool:
    """Run a short, bounded `job` on a thread of its own. False when the interpreter is shutting down.

    Usable in a signal handler and a finalizer: starting it takes no lock of Python's, as Thread.start() would.
    """
    entry = object()
    _detached_jobs[entry] = getattr(job, "__qualname__", repr(job))
    try:
        start_new_thread(_run_detached, (entry, job, args))
        return True
    except RuntimeError:
        _detached_jobs.pop(entry, None)
        return False


def _run_detached(entry: object, job: Callable[..., None], args: tuple[Any, ...]) -> None:
    try:
        job(*args)
    finally:
        _detached_jobs.pop(entry, None)


def detached_jobs() -> list[str]:
    """The names of the detached jobs that are running."""
    return list(_detached_jobs.values())


_detached_jobs: dict[object, str] = {}


def beside(job: Callable[[], T], log: Log) -> T | None:
    """Run `job` where it may wait for locks; return what it returns and raise what it raises.

    A signal handler on the main thread may have interrupted this library while it held a lock which `job` needs.
    There the job runs detached, and the handler waits for it, HANDLER_SECONDS at most: None when it is not done by
    then. It goes on when the handler has returned; what it raises later goes to `log`. Everywhere else the calling
    thread runs the job.
    """
    if get_ident() != threading.main_thread().ident or not _interrupts_the_library():
        return job()
    outcome: _Outcome[T] = _Outcome(log)
    if not detached(outcome.run, job):
        return job()
    try:
        done = acquire(outcome.done, HANDLER_SECONDS)
    finally:
        outcome.awaited = False
    if not done:
        return None
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def _interrupts_the_library() -> bool:
    """Whether the calling code of the library was called by other code, which in turn runs inside the library.

    On the main thread that is a signal handler or a finalizer: callbacks run on other threads.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_PACKAGE)


class _Outcome(Generic[T]):
    """What became of a job that runs on another thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.done = locked()
        self.awaited = True
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, job: Callable[[], T]) -> None:
        try:
            self.result = job()
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting thread
            self.error = error
            if not self.awaited:
                self._log.warning("%s, after its caller stopped waiting: %s", type(error).__name__, error)
        finally:
            self.done.release()


def join_quietly(thread: threading.Thread | None, timeout: float) -> None:
    """Join `thread` unless it is the calling one (a callback that closes its own connection)."""
    if thread is not None and thread.ident is not None and thread.ident != get_ident():
        join(thread, timeout)


def join(thread: threading.Thread, timeout: float) -> bool:
    """Wait up to `timeout` seconds for the end of `thread`: whether it has ended. Every join goes through here."""

    def wait(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    return sliced(wait, timeout)


# --- waiting and waking ---------------------------------------------------------------------------------


class Waiter(Protocol):
    """What a mailbox wakes: a bare lock, or anything else with release()."""

    def release(self) -> Any: ...


def locked() -> LockType:
    """A bare lock, already taken: waiting is acquire(), waking is release()."""
    lock = allocate_lock()
    lock.acquire()
    return lock


def acquire(lock: LockType | RLock, timeout: float) -> bool:
    """Wait up to `timeout` seconds for `lock`. Every wait on a lock with a bound goes through here."""
    if timeout <= WAIT_SLICE:
        return lock.acquire(timeout=timeout)
    return sliced(lambda seconds: lock.acquire(timeout=seconds), timeout)


class Wakeup:
    """Wakes one thread that sleeps until there is work. A wake-up that comes early is remembered, once."""

    __slots__ = ("_lock", "release")

    def __init__(self) -> None:
        self._lock = locked()
        self.release: Callable[[], object] = self._lock.release
        """What set() does, as one call into C. Raises RuntimeError when it is set already."""

    def set(self) -> None:
        """Wake the thread, or have its next wait() return at once. Takes no lock: usable anywhere."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is set already

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until set() or for `timeout` seconds. True when it was set; it is clear afterwards."""
        return acquire(self._lock, FOREVER if timeout is None else min(max(0.0, timeout), FOREVER))


class Waiters:
    """Threads that wait for a condition which other threads make true."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[LockType] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait_until(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        """Block until `condition()` is true; False at the deadline. Once true it is not called again.

        The thread registers first and looks second. A thread that makes the condition true does so first and calls
        wake_all() second. So one of the two notices the other.
        """
        while True:
            waiter = locked()
            try:
                self._waiting.append(waiter)
                if condition():
                    return True
                if not acquire(waiter, deadline.wait_time()):
                    return condition()
            finally:
                try:
                    self._waiting.remove(waiter)
                except ValueError:
                    pass  # woken: wake_all() has removed it

    def wake_all(self) -> None:
        """Have every waiting thread look again. Takes no lock, never blocks."""
        waiting = self._waiting
        while waiting:
            try:
                waiter = waiting.popleft()
            except IndexError:
                return  # the last one has left meanwhile
            waiter.release()


# --- handing over -----------------------------------------------------------------------------------------


class Slot(Generic[T]):
    """A mailbox for one item, for one consuming thread.

    The first item wins over any error. After it was taken, a close() still wakes the next get().
    """

    __slots__ = ("_end", "_item", "_lock")

    def __init__(self) -> None:
        self._item: T | None = None
        self._end: BaseException | None = None
        self._lock = locked()  # what Wakeup does, without a call for each step: next() is measured by these

    def put_run(self, items: Sequence[T]) -> bool:
        """Hand over the first of `items`; the others are dropped."""
        self._item = items[0]
        try:
            self._lock.release()
        except RuntimeError:
            pass  # set already
        return True

    def close(self, reason: BaseException, *, discard: bool = False) -> bool:
        """Have get() raise `reason` when there is no item. The first call wins. `discard` drops the item."""
        if discard:
            self._item = None
        first = self._end is None
        if first:
            self._end = reason
        try:
            self._lock.release()
        except RuntimeError:
            pass  # set already
        return first

    def get(self, timeout: float | None = None) -> T:
        """The item. Blocks up to `timeout` seconds; raises TimeoutError, or the closing reason."""
        wait = FOREVER if timeout is None else min(timeout, FOREVER)
        woken = self._item is not None or self._end is not None or acquire(self._lock, wait)
        while woken:
            item, self._item = self._item, None
            if item is not None:
                return item
            if self._end is not None:
                raise self._end.with_traceback(None)
            woken = acquire(self._lock, wait)  # set for an item that was taken without waiting
        raise TimeoutError("no message came in time")


class Mailbox(Generic[T]):
    """A closable first-in-first-out queue for any number of producers and consuming threads."""

    __slots__ = ("__weakref__", "_before_wait", "_end", "_items", "_lock", "_waiters", "discarded")

    def __init__(self, before_wait: Callable[[], None] | None = None) -> None:
        """`before_wait` runs in a consuming thread each time it is about to block (to send coalesced acks)."""
        self._items: deque[T] = deque()
        self._lock = allocate_lock()  # guards _waiters and _end; held for a few instructions only
        self._waiters: deque[Waiter] = deque()
        self._end: BaseException | None = None
        self._before_wait = before_wait
        self.discarded: int = 0  # items that close() dropped
        _mailboxes.add(self)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        return self._end is not None

    def snapshot(self) -> list[T]:
        """What is in the mailbox at this moment."""
        with self._lock:  # producers are held off; a consuming thread may still pop, which copy() survives
            return list(self._items.copy())

    @property
    def awaited(self) -> bool:
        """Whether a thread waits for an item at this moment."""
        return bool(self._waiters)

    @property
    def items(self) -> deque[T]:
        """The queue itself, for threads that pop in a loop and call get() when it is empty."""
        return self._items

    def put(self, item: T) -> bool:
        return self.put_run((item,))

    def put_run(self, items: Sequence[T]) -> bool:
        """Add `items` and wake as many waiting threads. False, and nothing added, once closed."""
        with self._lock:
            if self._end is not None:
                return False
            self._items.extend(items)
            if self._waiters:
                self._wake(len(items))
        return True

    def close(self, reason: BaseException, *, discard: bool = False, into: list[T] | None = None) -> bool:
        """Accept nothing more; get() returns what is left, then raises `reason`. The first call wins.

        `discard`: what is left is dropped. `into`: it is moved to this list. Each item is either moved, or taken
        by a consuming thread, never both.
        """
        with self._lock:
            if into is not None:
                try:
                    # One call into C, which a signal handler cannot divide; what came before the error is kept.
                    into.extend(map(deque.popleft, itertools.repeat(self._items)))
                except IndexError:
                    pass  # it is empty
            if discard:
                self.discarded += len(self._items)
                self._items.clear()
            first = self._end is None
            if first:
                self._end = reason
            self._wake(len(self._waiters))
        return first

    def take_all(self) -> list[T]:
        """Take everything that is in the mailbox. Never blocks."""
        taken: list[T] = []
        try:
            while True:
                taken.append(self._items.popleft())
        except IndexError:
            return taken

    def get(self, timeout: float | None = None) -> T:
        """The next item. Blocks up to `timeout` seconds; raises TimeoutError, or the closing reason."""
        try:
            return self._items.popleft()
        except IndexError:
            pass  # and not from here: what _wait() raises would carry this error as its context
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> T:
        if self._before_wait is not None:
            self._before_wait()
        ends_at = time.monotonic() + (FOREVER if timeout is None else min(timeout, FOREVER))
        waiters = self._waiters
        while True:
            waiter = locked()
            try:
                woken = not self.enlist(waiter) or acquire(waiter, max(0.0, ends_at - time.monotonic()))
            finally:
                # What leave() does, as one call into C with none before it: a signal handler cannot raise in
                # between and leave a dead waiter in front of a living one, whose wake-up it would swallow.
                try:
                    waiters.remove(waiter)
                except ValueError:
                    self._pass_on()
            try:
                return self._items.popleft()
            except IndexError:
                # Woken and found nothing: another thread was faster, or the mailbox closed. Look again.
                if not woken and self._end is None:
                    raise TimeoutError("no message came in time") from None

    def enlist(self, waiter: Waiter) -> bool:
        """Have `waiter` released when something comes. False when there is something already.

        Raises the closing reason. The thread that enlists a waiter calls leave() when it stops waiting.
        """
        with self._lock:
            if self._items:
                return False
            if self._end is not None:
                raise self._end.with_traceback(None)
            self._waiters.append(waiter)
            return True

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting. A wake-up that has already been spent on `waiter` goes to the next waiting thread."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            self._pass_on()

    def _pass_on(self) -> None:
        """A thread was woken; should it not take (a signal handler raised in it), another one must."""
        with self._lock:
            if self._items:
                self._wake(1)

    def _wake(self, count: int) -> None:
        assert self._lock.locked()
        waiters = self._waiters
        for _ in range(min(count, len(waiters))):
            try:
                waiter = waiters.popleft()
            except IndexError:
                return  # threads that stop waiting remove themselves without the lock
            waiter.release()

    def orphan(self) -> None:
        """In a forked child: no thread fills this mailbox here, and its lock may be held for ever."""
        self._lock = allocate_lock()
        self._waiters = deque()
        self._before_wait = None
        self._items.clear()
        self._end = ForkError()


_mailboxes: weakref.WeakSet[Mailbox[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    _detached_jobs.clear()
    for mailbox in list(_mailboxes):
        mailbox.orphan()


on_fork(_after_fork_in_child)
