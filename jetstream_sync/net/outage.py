"""The story of being without a session: since when, why, how the attempts to connect went. And its log.

Pure: the clock is passed in, nothing is waited for. Written by the thread that the dialer belongs to (the caller
of connect(), then js-reader), begin() and end() under Link's lock. Read by any thread: the story is one tuple,
which is replaced as a whole. What logs is called without a lock: a log handler is user code.

Failed attempts are logged at once while they are news (a server, a reason), else at growing intervals: a thousand
of them make some twenty records. An outage that lasts becomes a warning, so that it shows where only warnings do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from .._log import Log
from ..errors import ConnectionLostError, StaleConnectionError, describe

# Between two records of failed attempts: at first, then twice as long each time, up to the last.
FIRST_INTERVAL = 1.0
LONGEST_INTERVAL = 300.0
# From then on these records are warnings.
WARN_AFTER = 5.0
# So many different failures are news; a server that gives a new reason each time cannot flood the log.
MAX_NEWS = 16


class Story(NamedTuple):
    """An outage up to now."""

    since: float
    cause: str  # why the session ended; "" before the first one
    attempts: int = 0
    failure: str = ""  # the server tried last, and why that failed
    warned: bool = False


class Outage:
    """See the module's text."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._story: Story | None = None  # None while there is a session
        self._ended: Story | None = None  # the one before, for its length
        self._had_session = False
        self._news: set[str] = set()
        self._next_record = self._interval = 0.0

    # --- js-reader, or the caller of connect() ------------------------------------------------------------

    def begin(self, url: str = "", cause: Exception | None = None) -> None:
        """There is no session any more, or none yet. Under Link's lock."""
        text = "" if cause is None else describe(cause)
        self._news = set()
        self._next_record, self._interval = 0.0, FIRST_INTERVAL
        self._story = Story(self._clock(), text if url in text else f"{url}: {text}")

    def end(self) -> None:
        """There is a session. Under Link's lock."""
        self._ended, self._story = self._story, None

    def log_loss(self, url: str, error: Exception, *, reported: bool) -> None:
        """`reported`: error_cb is told of it, too."""
        # What the network does passes. What a server says (-ERR), or a defect, concerns a person.
        passing = isinstance(error, (ConnectionLostError, StaleConnectionError))
        level = logging.INFO if passing or reported else logging.WARNING
        text = describe(error)
        self._log.log(level, "disconnected: %s", text if url in text else f"{url}: {text}", extra={"server": url})

    def failed(self, url: str, error: BaseException) -> None:
        """An attempt to connect has failed: remember it, and log it where that is due."""
        story = self._story or Story(self._clock(), "")
        now, failure = self._clock(), f"{url}: {describe(error)}"
        story = story._replace(attempts=story.attempts + 1, failure=failure)
        news = failure not in self._news and len(self._news) < MAX_NEWS
        due = now >= self._next_record
        lasting = now - story.since >= WARN_AFTER
        if news:
            self._news.add(failure)
        if due:
            self._next_record = now + self._interval
            self._interval = min(2 * self._interval, LONGEST_INTERVAL)
        self._story = story._replace(warned=story.warned or (due and lasting))
        if news or due:
            level = logging.WARNING if due and lasting else logging.INFO
            text = "attempt %d failed: %s; not connected for %.1f s"
            extra = {"server": url, "attempt": story.attempts}
            self._log.log(level, text, story.attempts, failure, now - story.since, extra=extra)

    def log_session(self, url: str, info: dict[str, Any]) -> None:
        """A session is in use."""
        story, again, self._had_session = self._ended, self._had_session, True
        level = logging.INFO
        what, after = ("connected again to" if again else "connected to"), ""
        if story is not None and (again or story.attempts):
            attempts = story.attempts + 1
            after = f" after {self._clock() - story.since:.1f} s, at attempt {attempts}"
            if story.warned:
                level = logging.WARNING  # seen wherever the outage was
        server = f"nats-server {info.get('version')!s}, client id {info.get('client_id')!s}"
        if not server.isprintable():
            server = repr(server)
        self._log.log(level, "%s %s%s (%s)", what, url, after, server, extra={"server": url})

    # --- any thread ---------------------------------------------------------------------------------------

    def log_end(self, error: Exception | None, *, reported: bool) -> None:
        """The connection is closed for good: by `error`, or by the user (None)."""
        if error is None:
            self._log.info("closed")
        else:
            level = logging.INFO if reported else logging.ERROR
            self._log.log(level, "closed, and not connecting again: %s", describe(error))

    @property
    def seconds(self) -> float | None:
        """How long there has been no session; None while there is one."""
        story = self._story
        return None if story is None else self._clock() - story.since

    def __str__(self) -> str:
        """For error texts."""
        story = self._story
        if story is None:
            return "connected"
        attempt = f"; attempt {story.attempts}" if story.attempts else ""
        why = f"{story.failure or story.cause or 'connecting'}{attempt}"
        return f"not connected for {self._clock() - story.since:.1f} s ({why})"
