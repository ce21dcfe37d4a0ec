"""Threads and the queue between them. The only place in the library that creates threads.

`Mailbox` is the one hand-over of the library: the reader thread puts runs of messages, callers take them.
It is a deque with a lock and bare-lock waiters, because `queue.Queue` and `Condition` cost several times
more per message in CPython:

- putting a run takes the lock once and wakes only threads that wait;
- taking a message that is there takes no lock at all (`deque.popleft` is atomic);
- a closed mailbox hands out what it holds, then raises the reason it was closed with.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ._deadline import FOREVER
from .errors import ForkError, TimeoutError

T = TypeVar("T")


def spawn(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Start a daemon thread named `js-<name>`.

    Daemon, so that a script that ends without close() ends at once; the caller argues in a comment why
    the thread ends and joins it with a timeout on close.
    """
    thread = threading.Thread(target=target, args=args, name=f"js-{name}", daemon=True)
    thread.start()
    return thread


def run_detached(target: Callable[..., None], *args: Any) -> None:
    """Run a short, bounded `target` on a thread of its own.

    Usable in a signal handler and a finalizer: starting it takes no lock of Python's, as Thread.start() would.
    """
    try:
        start_new_thread(target, args)
    except RuntimeError:
        pass  # the interpreter is shutting down


def join_quietly(thread: threading.Thread | None, timeout: float) -> None:
    """Join `thread` unless it is the calling one (a callback that closes its own connection)."""
    if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
        thread.join(timeout)


def locked() -> LockType:
    """A bare lock, already taken: waiting is acquire(), waking is release()."""
    lock = allocate_lock()
    lock.acquire()
    return lock


class Mailbox(Generic[T]):
    """A closable first-in-first-out queue: any number of producers and takers."""

    __slots__ = ("__weakref__", "_before_wait", "_end", "_items", "_lock", "_waiters", "discarded")

    def __init__(self, before_wait: Callable[[], None] | None = None) -> None:
        """`before_wait` runs in a taker's thread each time it is about to block (to flush gathered acks)."""
        self._items: deque[T] = deque()
        self._lock = allocate_lock()  # guards _waiters and _end; held for a few instructions only
        self._waiters: deque[LockType] = deque()
        self._end: BaseException | None = None
        self._before_wait = before_wait
        self.discarded = 0  # items that close() threw away
        _mailboxes.add(self)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        return self._end is not None

    def snapshot(self) -> list[T]:
        """What is in the mailbox at this moment."""
        with self._lock:  # producers are held off; a taker may still pop, which copy() survives
            return list(self._items.copy())

    @property
    def items(self) -> deque[T]:
        """The queue itself, for takers that pop in a loop; whoever finds it empty calls get()."""
        return self._items

    def put(self, item: T) -> bool:
        return self.put_run((item,))

    def put_run(self, items: Sequence[T]) -> bool:
        """Add `items` and wake as many waiting takers. False, and nothing added, once closed."""
        with self._lock:
            if self._end is not None:
                return False
            self._items.extend(items)
            if self._waiters:
                self._wake(len(items))
        return True

    def close(self, reason: BaseException, *, discard: bool = False) -> bool:
        """Take nothing more in; takers get what is left (unless `discard`), then `reason`. The first call wins."""
        with self._lock:
            if discard:
                self.discarded += len(self._items)
                self._items.clear()
            first = self._end is None
            if first:
                self._end = reason
            self._wake(len(self._waiters))
        return first

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
                woken = not self._enlist(waiter) or waiter.acquire(timeout=max(0.0, ends_at - time.monotonic()))
            finally:
                # One call into C, with none before it: a signal handler cannot raise in between, so that no
                # dead waiter stays in front of a living one and swallows its wake-up.
                try:
                    waiters.remove(waiter)
                except ValueError:
                    self._pass_on()
            try:
                return self._items.popleft()
            except IndexError:
                # Woken and found nothing: another taker was faster, or the mailbox closed. Look again.
                if not woken and self._end is None:
                    raise TimeoutError("no message came in time") from None

    def _enlist(self, waiter: LockType) -> bool:
        """Have `waiter` released when something comes. False when there is something already."""
        with self._lock:
            if self._items:
                return False
            if self._end is not None:
                raise self._end.with_traceback(None)
            self._waiters.append(waiter)
            return True

    def _pass_on(self) -> None:
        """A taker was woken; should it not take (a signal handler raised in it), another one must."""
        with self._lock:
            if self._items:
                self._wake(1)

    def _wake(self, count: int) -> None:
        # Requires holding _lock.
        waiters = self._waiters
        for _ in range(min(count, len(waiters))):
            try:
                waiter = waiters.popleft()
            except IndexError:
                return  # takers that leave remove themselves without the lock
            waiter.release()

    def _abandon(self) -> None:
        """In a forked child: nobody fills this mailbox here, and its lock may be held by no living thread."""
        self._lock = allocate_lock()
        self._waiters = deque()
        self._before_wait = None
        self._items.clear()
        self._end = ForkError()


_mailboxes: weakref.WeakSet[Mailbox[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for mailbox in list(_mailboxes):
        mailbox._abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
