"""Pull requests (ADR-37): their options, checked before anything is sent, and their one encoding.

Pure: no socket, threading or time. Durations come in as seconds and leave as integer nanoseconds: the server
refuses a heartbeat of more than half of `expires`, to the nanosecond.
"""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from .._deadline import seconds
from ..protocol.parser import RawMessage

Duration = float | timedelta

MOST_PREFETCHED = 500  # the ceiling of the automatic window
BATCH_FOR_BYTES = 1_000_000  # ADR-37: what `batch` is when only max_bytes limits a pull

_SECOND = 1_000_000_000
_INT64_MAX = 2**63 - 1  # the server's integers
_MIN_CONSUME_HEARTBEAT = _SECOND // 2
_MAX_HEARTBEAT = 30 * _SECOND
_FETCH_HEARTBEAT_FROM = 30 * _SECOND  # a fetch longer than this has heartbeats unless told otherwise


def client_grace(expires: float) -> float:
    """How many seconds beyond `expires` the client waits before it gives up by itself."""
    return max(1.0, expires * 0.1)


def message_size(raw: RawMessage) -> int:
    """A message's size as the server counts it: subject, reply subject, headers and payload."""
    subject, reply, block, payload = raw
    size = len(subject) + len(payload)
    if reply is not None:
        size += len(reply)
    if block is not None:
        size += len(block)
    return size


def total_size(messages: list[RawMessage]) -> int:
    """The sum of message_size(), faster: None and empty parts are left out in C."""
    return sum(map(len, filter(None, chain.from_iterable(messages))))


class Priority(NamedTuple):
    """How a pull stands to others of its consumer's priority group (server 2.11 and later)."""

    group: str | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None

    def checked(self) -> Priority:
        """Itself. ValueError or TypeError names the option that is wrong."""
        if self == _NO_PRIORITY:
            return self
        if self.group is not None and not isinstance(self.group, str):
            raise TypeError(f"group must be a str, not {type(self.group).__name__}")
        if self.group == "":
            raise ValueError("group must not be empty")
        check_integer(self.min_pending, "min_pending", 1)
        check_integer(self.min_ack_pending, "min_ack_pending", 1)
        check_integer(self.priority, "priority", 0, 9)
        if self.group is None:
            raise ValueError("min_pending, min_ack_pending and priority need a priority group: give group")
        return self


_NO_PRIORITY = Priority()


@lru_cache(maxsize=64)  # most pulls of a program say the same, and hashing takes a third of the time
def pull_body(
    batch: int,
    expires_ns: int = 0,
    max_bytes: int = 0,
    heartbeat_ns: int = 0,
    no_wait: bool = False,
    priority: Priority = _NO_PRIORITY,
    pin_id: str | None = None,
) -> bytes:
    """The JSON body of a pull request; what is unset is not sent."""
    # Text put together: an encoder would take longer than all the rest of a pull.
    body = f'{{"batch":{batch}'
    if expires_ns:
        body += f',"expires":{expires_ns}'
    if max_bytes:
        body += f',"max_bytes":{max_bytes}'
    if heartbeat_ns:
        body += f',"idle_heartbeat":{heartbeat_ns}'
    if no_wait:
        body += ',"no_wait":true'
    if priority.group:
        body += f',"group":{json.dumps(priority.group)}'
    if priority.min_pending:
        body += f',"min_pending":{priority.min_pending}'
    if priority.min_ack_pending:
        body += f',"min_ack_pending":{priority.min_ack_pending}'
    if pin_id:
        body += f',"id":{json.dumps(pin_id)}'
    if priority.priority is not None:
        body += f',"priority":{priority.priority}'
    return f"{body}}}".encode()


class FetchOptions(NamedTuple):
    """One fetch, fetch_nowait or next. Made by `make`, which checks every bound."""

    batch: int
    max_bytes: int | None
    expires_ns: int
    heartbeat_ns: int
    no_wait: bool = False
    priority: Priority = _NO_PRIORITY

    @classmethod
    def make(
        cls,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = 5.0,
        idle_heartbeat: Duration | None = None,
        no_wait: bool = False,
        priority: Priority = _NO_PRIORITY,
    ) -> FetchOptions:
        """Checked options; ValueError or TypeError names the one that is wrong.

        At least one of max_messages and max_bytes is needed. A `no_wait` pull has neither expires nor
        heartbeat. By default only a pull of more than 30 s has a heartbeat: half of expires, at most 30 s; 0
        means none.
        """
        check_integer(max_messages, "max_messages", 1)
        check_integer(max_bytes, "max_bytes", 1)
        if max_messages is None and max_bytes is None:
            raise ValueError("a fetch needs max_messages or max_bytes")
        batch = BATCH_FOR_BYTES if max_messages is None else max_messages
        if no_wait:
            return cls(batch, max_bytes, 0, 0, True, priority)
        expires_ns = _nanoseconds(expires, "expires")
        if expires_ns < 1:
            raise ValueError("expires must be more than 0 s; use fetch_nowait to take only what is there")
        return cls(batch, max_bytes, expires_ns, _heartbeat(idle_heartbeat, expires_ns), False, priority)

    @property
    def expires(self) -> float:
        """Seconds that the server is told."""
        return self.expires_ns / _SECOND

    @property
    def heartbeat(self) -> float | None:
        """Seconds between heartbeats; None when none were asked for."""
        return self.heartbeat_ns / _SECOND if self.heartbeat_ns else None

    def body(self, pin_id: str | None = None) -> bytes:
        """The request's JSON."""
        batch, max_bytes, expires_ns, heartbeat_ns, no_wait, priority = self
        return pull_body(batch, expires_ns, max_bytes or 0, heartbeat_ns, no_wait, priority, pin_id)


class ConsumeOptions(NamedTuple):
    """One consume or messages. Made by `make`, which checks every bound."""

    limit: int  # max_messages, or max_bytes
    threshold: int
    by_bytes: bool
    expires_ns: int
    heartbeat_ns: int
    priority: Priority = _NO_PRIORITY
    automatic: bool = False  # limit and threshold are not given: pull_state.Window sets them

    @classmethod
    def make(
        cls,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        priority: Priority = _NO_PRIORITY,
    ) -> ConsumeOptions:
        """Checked options; ValueError or TypeError names the one that is wrong."""
        check_integer(max_messages, "max_messages", 1)
        check_integer(max_bytes, "max_bytes", 1)
        by_bytes = max_bytes is not None
        if by_bytes and max_messages is not None:
            raise ValueError("max_messages and max_bytes exclude each other: give one of them")
        limit = max_bytes or max_messages or MOST_PREFETCHED
        expires_ns = _nanoseconds(expires, "expires")
        if expires_ns < _SECOND:
            raise ValueError(f"expires must be at least 1 s: {expires}")
        for_messages = _threshold(threshold_messages, "messages", 0 if by_bytes else limit)
        threshold = _threshold(threshold_bytes, "bytes", max_bytes or 0) or for_messages
        heartbeat_ns = _heartbeat(idle_heartbeat, expires_ns, of_consume=True)
        automatic = max_messages is None and threshold_messages is None and not by_bytes
        return cls(limit, threshold, by_bytes, expires_ns, heartbeat_ns, priority, automatic)

    @property
    def expires(self) -> float:
        """Seconds that the server is told."""
        return self.expires_ns / _SECOND

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats; a consume always has them."""
        return self.heartbeat_ns / _SECOND

    def body(self, units: int, pin_id: str | None = None) -> bytes:
        """The JSON of one of its pulls, for so many messages or bytes."""
        batch, max_bytes = (BATCH_FOR_BYTES, units) if self.by_bytes else (units, 0)
        return pull_body(batch, self.expires_ns, max_bytes, self.heartbeat_ns, False, self.priority, pin_id)


def check_integer(value: int | None, name: str, low: int, high: int = _INT64_MAX) -> None:
    """Raises TypeError or ValueError that names the option; None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        bound = f"at least {low}" if value < low else f"at most {high}"
        raise ValueError(f"{name} must be {bound}: {value}")


def _nanoseconds(value: Duration, name: str) -> int:
    duration = seconds(value, name)
    if duration is None:
        raise TypeError(f"{name} must be seconds (float) or a timedelta, not None")
    if duration * _SECOND > _INT64_MAX:
        raise ValueError(f"{name} is too long: {duration} s")
    return round(duration * _SECOND)


def _heartbeat(heartbeat: Duration | None, expires_ns: int, *, of_consume: bool = False) -> int:
    if heartbeat is None:
        return min(expires_ns // 2, _MAX_HEARTBEAT) if of_consume or expires_ns > _FETCH_HEARTBEAT_FROM else 0
    heartbeat_ns = _nanoseconds(heartbeat, "idle_heartbeat")
    if of_consume and not _MIN_CONSUME_HEARTBEAT <= heartbeat_ns <= _MAX_HEARTBEAT:
        raise ValueError(f"idle_heartbeat must be from 0.5 s to 30 s: {heartbeat}")
    if 2 * heartbeat_ns > expires_ns:
        asked, most = heartbeat_ns / _SECOND, expires_ns / 2 / _SECOND
        raise ValueError(f"idle_heartbeat must be at most half of expires ({most} s): {asked} s")
    return heartbeat_ns


def _threshold(threshold: int | None, unit: str, limit: int) -> int:
    name = f"threshold_{unit}"
    if threshold is None:
        return min(limit, max(1, limit // 2))
    if not limit:
        raise ValueError(f"{name} goes with max_{unit}, which is not set")
    check_integer(threshold, name, 1)
    if threshold > limit:
        raise ValueError(f"{name} must be at most max_{unit}: {threshold} of {limit}")
    return threshold
