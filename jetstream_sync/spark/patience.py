"""Waiting for a server that is away: a call that fails for a passing reason is repeated, and the log says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .._log import Log

T = TypeVar("T")

PAUSE = 0.25


class Patience:
    """Repeats the calls of one piece of work, which `what` names in the log. For one thread.

    An outage may last `seconds`; it ends with the first call that succeeds.
    """

    def __init__(self, seconds: float, what: str, log: Log) -> None:
        self._seconds = seconds
        self._what = what
        self._log = log
        self._away_since: float | None = None

    def call(self, call: Callable[[], T], passing: tuple[type[Exception], ...]) -> T:
        """The result of `call`. Raises its error if that is none of `passing`, or at the end of the patience."""
        while True:
            try:
                result = call()
            except passing as error:
                self._wait(error)
            else:
                self._succeeded()
                return result

    def _wait(self, error: Exception) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._log.warning("%s: %s; waiting up to %g s", self._what, error, self._seconds)
        if now - self._away_since >= self._seconds:
            raise error
        time.sleep(PAUSE)

    def _succeeded(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            self._log.warning("%s: goes on after %.1f s", self._what, seconds)
