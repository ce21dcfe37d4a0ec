"""Turn: a lock with a timeout that survives signal handlers that raise."""

from __future__ import annotations

from _thread import allocate_lock

from .._deadline import Deadline
from .._threads import Waiters


class Turn:
    """Held by an object of the caller, who enters a `try` first and gives back in its `finally` what it may hold.

    A lock that is acquired before the `try` stays taken for ever when a signal handler raises in between.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()  # guards _holder; held for a few instructions
        self._holder: object | None = None
        self._waiting = Waiters()

    def take(self, holder: object, deadline: Deadline) -> bool:
        """Wait for the turn; False when it did not come before the deadline."""

        def claim() -> bool:
            with self._lock:
                if self._holder is None:
                    self._holder = holder
                return self._holder is holder

        return self._waiting.wait_until(claim, deadline)

    def is_held_by(self, holder: object) -> bool:
        return self._holder is holder

    def give_back(self, holder: object) -> None:
        """Idempotent; does nothing for an object that does not hold the turn."""
        with self._lock:
            if self._holder is holder:
                self._holder = None
        self._waiting.wake_all()
