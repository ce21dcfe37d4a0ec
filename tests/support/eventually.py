"""Waiting in tests: for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 5.0, message: str = "") -> T:
    """Call `predicate` until it returns a truthy value, and return that; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    interval = 0.001
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{message or 'condition'}: not true within {timeout} s; last value {value!r}")
        time.sleep(interval)
        interval = min(interval * 1.5, 0.02)
