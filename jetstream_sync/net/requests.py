"""Request and reply over one multiplexed inbox.

All requests of a connection share one wildcard subscription `<inbox>.*`; the last token of a reply's subject
says whose answer it is. A pending request is one slot with one bare lock: the reader thread fills the slot and
releases the lock, which is the cheapest way to wake a thread in CPython.

`pending` is a plain dict: setting, popping and listing it are atomic in CPython, each slot is popped once, and
whoever pops it completes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from .._threads import locked
from ..errors import NatsError
from ..protocol.parser import RawMessage


class PendingReply(Protocol):
    """Something that waits for one reply. Completed at most once, on the reader thread: must not block."""

    subject: bytes

    def answer(self, raw: RawMessage) -> None: ...

    def fail(self, error: NatsError) -> None: ...


class Slot:
    """A caller that blocks until its reply has come."""

    __slots__ = ("error", "lock", "reply", "subject")

    def __init__(self, subject: bytes) -> None:
        self.subject = subject
        self.lock = locked()
        self.reply: RawMessage | None = None
        self.error: NatsError | None = None

    def answer(self, raw: RawMessage) -> None:
        self.reply = raw
        self.lock.release()

    def fail(self, error: NatsError) -> None:
        self.error = error
        self.lock.release()


class RequestMux:
    """The pending requests of one connection. Acts as a subscription: the reader calls deliver()."""

    queue: str | None = None

    def __init__(self, inbox: str, sid: bytes) -> None:
        self.sid = sid
        self.subject = f"{inbox}.*"
        self.wire_subject = self.subject.encode()
        self.prefix = f"{inbox}.".encode()
        """A reply subject is this and a token of new_token()."""
        self.pending: dict[bytes, PendingReply] = {}
        """By token, what the reply to it is for. Whoever puts something in takes it out again."""
        self._tokens: Callable[[], int] = itertools.count(1).__next__
        self.denied: NatsError | None = None
        """Why the server refused the inbox itself; until the next connection no request can be answered."""

    def new_token(self) -> bytes:
        """The last token of a reply subject nobody else has."""
        return b"%x" % self._tokens()

    def __len__(self) -> int:
        return len(self.pending)

    # --- reader thread ----------------------------------------------------------------------------

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        start = len(self.prefix)
        pop = self.pending.pop
        for raw in messages:
            slot = pop(raw[0][start:], None)
            if slot is not None:
                slot.answer(raw)

    def fail(self, error: NatsError) -> None:
        """The inbox's subscription was denied: no reply can reach us."""
        self.denied = error
        self.fail_all(error)

    def waiting(self) -> list[bytes]:
        """The tokens of all that wait at this moment."""
        return list(self.pending)

    def fail_all(self, error: NatsError, tokens: list[bytes] | None = None) -> None:
        """Fail those that wait, or those of them whose tokens are given."""
        self._fail(self.waiting() if tokens is None else tokens, error)

    def fail_subject(self, subject: bytes, error: NatsError) -> None:
        """The server denied a publish to `subject`: nobody will answer these."""
        self._fail([token for token, slot in self.pending.copy().items() if slot.subject == subject], error)

    def _fail(self, tokens: list[bytes], error: NatsError) -> None:
        for token in tokens:
            slot = self.pending.pop(token, None)
            if slot is not None:
                slot.fail(error)

    # --- reconnect ----------------------------------------------------------------------------------

    def remaining(self) -> int:
        """Resubscribed without a limit."""
        self.denied = None
        return 0
