"""Signals in tests: a handler is installed for one block only, and no timer outlives it.

A SIGALRM without its handler would end the whole test process silently.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """What the signal handlers of tests raise."""


@contextmanager
def handler_of(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """Install `handler` for this block, at whose end timers (`signal.setitimer`) are cancelled."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)


@contextmanager
def interrupted_after(delay: float, error: type[BaseException]) -> Iterator[None]:
    """Have a signal handler raise `error` in this thread `delay` seconds from now, in the block or on entering it.

    Put `pytest.raises` around it. KeyboardInterrupt is raised by SIGINT, any other error by SIGALRM.
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
