"""Blocking calls in tests, with a time limit: a call that exceeds it fails with the stacks of all threads."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InThread(Generic[T]):
    """Runs a call on a new thread at once; `result()` waits for it."""

    def __init__(self, call: Callable[..., T], *args: Any, **options: Any) -> None:
        self._call = call
        self._args = args
        self._options = options
        self._value: T | None = None
        self._error: BaseException | None = None
        self._started = time.monotonic()
        self._ended = self._started
        self._thread = threading.Thread(target=self._run, name=f"test-{_name(call)}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call(*self._args, **self._options)
        except BaseException as error:  # noqa: BLE001 - result() raises it
            self._error = error
        self._ended = time.monotonic()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def seconds(self) -> float:
        """How long the call took, once it has ended."""
        return self._ended - self._started

    def result(self, limit: float = 10.0) -> T:
        """Return or raise what the call did. Fails, with the stacks of all threads, after `limit` seconds."""
        self._thread.join(limit)
        if self._thread.is_alive():
            raise AssertionError(f"{_name(self._call)} did not end within {limit} s\n{all_stacks()}")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def error(self, limit: float = 10.0) -> BaseException | None:
        """The error that the call raised, or None."""
        try:
            self.result(limit)
        except AssertionError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the result
            return error
        return None


def under_watchdog(call: Callable[..., T], *args: Any, limit: float = 10.0, **options: Any) -> T:
    """`call(*args, **options)`, which must end within `limit` seconds."""
    return InThread(call, *args, **options).result(limit)


def all_stacks() -> str:
    """The stacks of all threads, for the text of a failure."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"--- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def _name(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", repr(call))
