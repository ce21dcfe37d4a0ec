"""Looking a consumer up beside its pulls, when it may be gone.

After a reconnect, and while the server does not answer pulls, js-refill has the consumer looked up:

  js-refill         starts js-check when a look-up is wanted and none is under way.
  js-check-<n>      one at a time. Asks the server until it says definitely that the consumer is there or gone.
                    Blocks in one request at a time and in a growing wait, which stop() cuts short. Ends with a
                    definite reply, stop(), a lost connection or a denial.
  other threads     say what they saw, under the owner's lock, and wake js-refill.

No lock of its own: only js-refill sets `_busy`, and only js-check clears it, before it wakes js-refill. What is
wanted meanwhile stays wanted.

No reply, "no responders" and "temporarily unavailable" say nothing about the consumer: they are what elections and
restarts look like.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .._log import Log
from .._threads import Wakeup, spawn
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerNotFoundError,
    NatsError,
    PermissionsError,
    StreamNotFoundError,
)

# Sends a request for the consumer's info and raises what the server says; None: never look it up.
Ask = Callable[[], Any]

# The server's definite word that the consumer is gone. Everything else is no answer.
GONE: tuple[type[NatsError], ...] = (ConsumerNotFoundError, StreamNotFoundError)

# Between two tries while there is no definite reply; doubled each time.
FIRST_WAIT, LONGEST_WAIT = 0.25, 2.0
# A consumer that was found is not looked up again for so long because of unanswered pulls.
PAUSE_AFTER_REPLY = 2.0
# So many signs in a row make a doubt: one alone is what a change of leader looks like.
SIGNS_OF_DOUBT = 2


class LookUp:
    """See the module's text."""

    def __init__(
        self, ask: Ask | None, gone: Callable[[NatsError], None], wake: Callable[[], None], log: Log
    ) -> None:
        """`gone` is told the error on js-check; `wake` wakes js-refill."""
        self._ask, self._gone, self._wake, self._log = ask, gone, wake, log
        self._wanted = self._busy = self._denied = self._stopped = False
        self._next = float("-inf")  # from when on a doubt counts again
        self._waiting = Wakeup()  # for js-check
        self._signs = self._received = 0

    # --- under the owner's lock -----------------------------------------------------------------------

    def doubt(self, received: int) -> None:
        """A 503 or a missed heartbeat: with the second in a row the consumer is looked up.

        `received`: what was taken so far, counted in messages or bytes. A message, or trust(), ends a row.
        """
        self._signs = self._signs + 1 if received == self._received else 1
        self._received = received
        if self._signs >= SIGNS_OF_DOUBT and not self._denied and time.monotonic() >= self._next:
            self.want()

    def trust(self) -> None:
        """A status that only a consumer that is there can have."""
        self._signs = 0

    def want(self, *, reconnected: bool = False) -> None:
        """Have the consumer looked up; the caller wakes js-refill. After a reconnect permissions may be others."""
        if reconnected:
            self._denied = False
        self._wanted = self._ask is not None

    # --- any thread -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Never blocks; may be repeated."""
        self._stopped = True
        self._waiting.set()

    # --- js-refill ------------------------------------------------------------------------------------

    def start_if_wanted(self, number: int) -> None:
        if self._wanted and not self._busy and not self._stopped:
            self._wanted, self._busy = False, True  # `wanted` first: what is wanted from now on is another look-up
            spawn(f"check-{number}", self._run)

    # --- js-check -------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = FIRST_WAIT
        try:
            while not self._stopped and not self._settled():
                self._waiting.wait(wait)
                wait = min(2 * wait, LONGEST_WAIT)
        finally:
            self._next = time.monotonic() + PAUSE_AFTER_REPLY
            self._busy = False
            self._wake()

    def _settled(self) -> bool:
        """Ask once; whether there is nothing more to ask."""
        assert self._ask is not None
        try:
            self._ask()
        except GONE as error:
            self._gone(error)
        except (ConnectionLostError, ConnectionClosedError):
            return True  # the next reconnect has it looked up again
        except PermissionsError:
            self._denied = True  # asking again would be denied again
        except NatsError as error:
            self._log.debug("the consumer could not be looked up: %s", error)
            return False
        return True
