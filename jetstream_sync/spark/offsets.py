"""Offsets of a streaming query, and the positions at which a user may start or end. No I/O.

The offset of a query is a stream sequence: `next` is the first sequence that is not read yet. `base` is where the
query first started. `created`, the time of the stream's creation, tells it from another stream of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The position of a query in a stream. `base` is None when it is no longer known."""

    next: int
    created: str
    base: int | None = None

    def to_json(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"next": self.next, "created": self.created, "v": VERSION}
        if self.base is not None:
            wire["base"] = self.base
        return wire

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> Offset:
        """Decode an offset of a checkpoint. Raises ValueError when it is malformed or of another version."""
        if wire.get("v") != VERSION:
            raise ValueError(f"the checkpoint's offset is not of version {VERSION} of this source: {dict(wire)!r}")
        following, created, base = wire.get("next"), wire.get("created"), wire.get("base")
        numbers = (following,) if base is None else (following, base)
        if not isinstance(created, str) or not all(_is_sequence(number) for number in numbers):
            raise ValueError(f"the checkpoint's offset cannot be read: {dict(wire)!r}")
        return cls(int(following), created, base)  # type: ignore[arg-type]  # checked above


def _is_sequence(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def first_to_read(start: Offset, end: Offset) -> int:
    """The first sequence of the batch from `start` to `end`.

    After a crash in batch 0, the checkpoint has no start and Spark asks for the initial offset again. With
    `latest` that is further on by then. The end comes from the checkpoint and contains the first start as its
    `base`.
    """
    if start.next == start.base and end.base is not None and start.created == end.created:
        return end.base
    return start.next


def capped(start: int, available: int, limit: int | None) -> int:
    """The end of a batch: everything available, at most `limit` sequences, and never before the start."""
    end = max(start, available)
    return end if limit is None else min(end, start + limit)


# --- positions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """A position in a stream as an option gives it: a keyword, a sequence, or a time."""

    keyword: str = ""
    seq: int | None = None
    time: datetime | None = None


EARLIEST = Position("earliest")
LATEST = Position("latest")


def parse_position(text: str) -> Position:
    """Parse `earliest`, `latest`, `{"seq": n}` or an ISO timestamp (UTC if it has no zone). Raises ValueError."""
    value = text.strip()
    for position in (EARLIEST, LATEST):
        if value.lower() == position.keyword:
            return position
    if value.startswith("{"):
        return Position(seq=_sequence_of(value))
    try:
        moment = datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith(("Z", "z")) else value)
    except ValueError:
        raise ValueError('must be earliest, latest, {"seq": n} or an ISO timestamp') from None
    return Position(time=moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc))


def _sequence_of(value: str) -> int:
    try:
        wire = json.loads(value)
    except ValueError:
        wire = None
    if not isinstance(wire, dict) or set(wire) != {"seq"} or not _is_sequence(wire["seq"]) or wire["seq"] < 1:
        raise ValueError('must be {"seq": n} with n of at least 1')
    return int(wire["seq"])
