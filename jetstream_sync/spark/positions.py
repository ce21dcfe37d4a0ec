"""The positions at which a user may start or end a read, and how options spell them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FORMS = 'earliest, latest, {"seq": n} or an ISO timestamp'


@dataclass(frozen=True)
class Position:
    """A position in a stream as an option gives it: a keyword, a sequence, or a time."""

    keyword: str = ""
    seq: int | None = None
    time: datetime | None = None


EARLIEST = Position("earliest")
LATEST = Position("latest")


@dataclass(frozen=True)
class Positions:
    """The positions of an option: one for all streams, or one for each stream by its name."""

    everywhere: Position | None = None
    by_stream: tuple[tuple[str, Position], ...] = ()

    def of(self, stream: str) -> Position:
        """The position in `stream`, which check() has found to have one."""
        return self.everywhere or dict(self.by_stream)[stream]

    def check(self, streams: Collection[str]) -> None:
        """Raise ValueError unless each of `streams`, and no other stream, has a position."""
        if self.everywhere is not None:
            return
        named = [name for name, _ in self.by_stream]
        for name in named:
            if name not in streams:
                raise ValueError(f"names stream {name!r}, which option 'stream' does not list")
        for name in streams:
            if name not in named:
                raise ValueError(
                    f"names no position for stream {name!r}: name one for each stream, or one for all"
                )


def parse_positions(text: str) -> Positions:
    """Parse one position for all streams, or JSON with one for each: `{"A": {"seq": 7}, "B": "earliest"}`."""
    value = text.strip()
    if not value.startswith("{"):
        return Positions(parse_position(value))
    wire = _json_object(value)
    if set(wire) == {"seq"} and not isinstance(wire["seq"], str | dict):
        return Positions(Position(seq=_sequence_of(wire)))
    if not wire:
        raise ValueError(f"must be {_FORMS}, or a JSON object with one of these for each stream")
    return Positions(by_stream=tuple((name, _position_of(name, wire[name])) for name in wire))


def parse_position(text: str) -> Position:
    """Parse `earliest`, `latest`, or an ISO timestamp (UTC if it has no zone). Raises ValueError."""
    value = text.strip()
    for position in (EARLIEST, LATEST):
        if value.lower() == position.keyword:
            return position
    try:
        moment = datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith(("Z", "z")) else value)
    except ValueError:
        raise ValueError(f"must be {_FORMS}") from None
    return Position(time=moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc))


def parse_timestamp(text: str) -> Position:
    """Parse milliseconds since 1970. Raises ValueError."""
    value = text.strip()
    try:
        if not (value.isascii() and value.isdigit()):
            raise ValueError
        return Position(time=_EPOCH + timedelta(milliseconds=int(value)))
    except (ValueError, OverflowError):
        raise ValueError("must be a whole number of milliseconds since 1970") from None


def is_sequence(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _position_of(stream: str, value: Any) -> Position:
    try:
        if isinstance(value, str):
            return parse_position(value)
        return Position(seq=_sequence_of(value))
    except ValueError as error:
        raise ValueError(f"the position in stream {stream!r} {error}") from None


def _sequence_of(wire: Any) -> int:
    if not isinstance(wire, dict) or set(wire) != {"seq"} or not is_sequence(wire["seq"]) or wire["seq"] < 1:
        raise ValueError('must be {"seq": n} with n of at least 1')
    return int(wire["seq"])


def _json_object(text: str) -> dict[str, Any]:
    """A JSON object, which names no key twice. Raises ValueError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        return dict(json.loads(text, object_pairs_hook=unique))
    except (ValueError, TypeError):
        raise ValueError(f"must be {_FORMS}, or a JSON object with one of these for each stream") from None
