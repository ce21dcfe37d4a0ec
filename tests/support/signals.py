"""Signals in tests: a handler is there for one block only, and no timer outlives it.

A SIGALRM that comes when its handler is gone ends the whole test process, silently.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handler_of(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """`handler` for this block. Its timers (`signal.setitimer`) end with it."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)


@contextmanager
def interrupted_after(delay: float, error: type[BaseException]) -> Iterator[None]:
    """A signal whose handler raises `error` comes `delay` seconds from now, in the block or on the way into it.

    Around it goes the `pytest.raises`. KeyboardInterrupt comes by SIGINT, any other error by SIGALRM.
    """

    def raise_it(*_: object) -> None:
        raise error

    if error is not KeyboardInterrupt:
        with handler_of(signal.SIGALRM, raise_it):
            signal.setitimer(signal.ITIMER_REAL, delay)
            yield
        return
    sender = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    with handler_of(signal.SIGINT, raise_it):
        try:
            sender.start()
            yield
        finally:
            sender.join()
