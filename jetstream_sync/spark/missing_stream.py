"""Ends a write to a subject that no stream stores, long before publishTimeout.

A publish that gets no answer may mean three things. Only one is worth no wait:

  a server restarts, a leader is elected   the API of JetStream does not answer, or names the stream
  a stream is deleted and created again    the API says for a moment that no stream stores the subject
  no stream stores the subject             the API says so all the time

So the subject is looked up while publishes to it get no answer, and the answer "none" must last.
"""

from __future__ import annotations

import time

from ..errors import NatsError, StreamNotFoundError
from ..jetstream import JetStream, client_of

# How long a stream may be missing while it is created again.
NO_STREAM_SECONDS = 3.0
# Between two look-ups, and how long one may take: it holds up the task.
LOOK_UP_PAUSE = 0.5
LOOK_UP_TIMEOUT = 2.0


class MissingStream:
    """Looks up the subject of publishes that get no answer. For one thread."""

    def __init__(self, js: JetStream) -> None:
        self._client = client_of(js)
        self._subject = ""
        self._next_look = 0.0
        self._none_since: float | None = None

    def unanswered(self, subject: str) -> None:
        """A publish to `subject` got no answer. Call it for each of them, and again while it is repeated.

        Blocks for a look-up, if the last one is half a second ago. Raises StreamNotFoundError when no stream has
        stored the subject for NO_STREAM_SECONDS.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_UP_PAUSE
        if subject != self._subject:
            self._subject, self._none_since = subject, None
        if not self._none_stores(subject):
            self._none_since = None
        elif self._none_since is None:
            self._none_since = now
            self._client.link.logs.spark.warning(
                "no stream stores the subject %r; waiting up to %g s", subject, NO_STREAM_SECONDS
            )
        elif now - self._none_since >= NO_STREAM_SECONDS:
            raise StreamNotFoundError(
                404, 10059, f"no stream stores the subject {subject!r}: create one, or correct the subject"
            )

    def _none_stores(self, subject: str) -> bool:
        """Whether the server says that no stream stores `subject`."""
        try:
            answer = self._client.request("STREAM", "NAMES", body={"subject": subject}, timeout=LOOK_UP_TIMEOUT)
        except NatsError:
            return False  # JetStream is away, or the account may not ask
        return not answer.get("streams")
