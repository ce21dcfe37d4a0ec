"""Offsets of a streaming query. No I/O.

The offset of a query in a stream is a sequence: `next` is the first sequence that is not read yet. `base` is where
the query first started in that stream. `created`, the time of the stream's creation, tells it from another stream
of the same name.

A query of one stream writes version 1 into its checkpoint: the fields of its offset. A query of several streams
writes version 2: an offset for each stream by its name. Both versions are read, whatever the query reads by now,
because streams may be added to a query and removed from it between two runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .positions import is_sequence
from .ranges import shares

VERSION = 1
VERSION_OF_SEVERAL = 2

# The name of a stream in version 1, which contains none.
UNNAMED = ""


@dataclass(frozen=True)
class Offset:
    """The position of a query in a stream. `base` is None when it is no longer known."""

    next: int
    created: str
    base: int | None = None

    def to_json(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"next": self.next, "created": self.created}
        return wire if self.base is None else {**wire, "base": self.base}

    @classmethod
    def from_json(cls, wire: Any) -> Offset:
        """Decode the offset in a stream. Raises ValueError when it is malformed."""
        if not isinstance(wire, Mapping):
            raise ValueError(f"the checkpoint's offset cannot be read: {wire!r}")
        following, created, base = wire.get("next"), wire.get("created"), wire.get("base")
        numbers = (following,) if base is None else (following, base)
        if not isinstance(created, str) or not all(is_sequence(number) for number in numbers):
            raise ValueError(f"the checkpoint's offset cannot be read: {dict(wire)!r}")
        return cls(int(following), created, base)  # type: ignore[arg-type]  # checked above


class Offsets(Mapping[str, Offset]):
    """The position of a query in each of its streams, by name. Does not change."""

    __slots__ = ("_by_stream",)

    def __init__(self, by_stream: Mapping[str, Offset]) -> None:
        # In the order of the names: Spark compares the text, and the order of the option may change.
        self._by_stream = {name: by_stream[name] for name in sorted(by_stream)}

    def __getitem__(self, stream: str) -> Offset:
        return self._by_stream[stream]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_stream)

    def __len__(self) -> int:
        return len(self._by_stream)

    def __repr__(self) -> str:
        return f"Offsets({self._by_stream!r})"

    def to_json(self) -> dict[str, Any]:
        """Version 1 for one stream, version 2 for several."""
        if len(self) == 1:
            (offset,) = self.values()
            wire = offset.to_json()
            # The order of the fields is part of the format, too: Spark takes other text for another offset.
            return {"next": wire.pop("next"), "created": wire.pop("created"), "v": VERSION, **wire}
        return self.to_named_json()

    def to_named_json(self) -> dict[str, Any]:
        """Version 2, which names the streams, whatever their number."""
        streams = {stream: offset.to_json() for stream, offset in self.items()}
        return {"streams": streams, "v": VERSION_OF_SEVERAL}

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> Offsets:
        """Decode the offsets of a checkpoint. Raises ValueError when they are malformed or of another version.

        Version 1 does not name its stream: the offset has the name UNNAMED, and named() gives it its own.
        """
        if wire.get("v") == VERSION:
            return cls({UNNAMED: Offset.from_json(wire)})
        if wire.get("v") != VERSION_OF_SEVERAL:
            known = f"version {VERSION} or {VERSION_OF_SEVERAL} of this source"
            raise ValueError(f"the checkpoint's offset is not of {known}: {dict(wire)!r}")
        streams = wire.get("streams")
        if not isinstance(streams, Mapping) or not streams or UNNAMED in streams:
            raise ValueError(f"the checkpoint's offset cannot be read: {dict(wire)!r}")
        return cls({stream: Offset.from_json(offset) for stream, offset in streams.items()})

    def named(self, stream: str) -> Offsets:
        """The same, where an offset without a name is that of `stream`."""
        return Offsets({name or stream: offset for name, offset in self.items()})


def owner_of(offset: Offset, created: Mapping[str, str]) -> str:
    """Which of the streams an offset without a name belongs to. `created` are their times of creation, in order.

    If none was created at the offset's time, it is the first one: that stream was created anew.
    """
    return next((stream for stream, time in created.items() if time == offset.created), next(iter(created)))


def first_to_read(start: Offset | None, end: Offset) -> int | None:
    """The first sequence of a batch from `start` to `end` in a stream; None when it is not known.

    The base of the end tells it where the start cannot. A stream that was added to the query, or created anew,
    has no start, and neither has one that lost its end. And after a crash in batch 0, the checkpoint has no start:
    Spark asks for the initial offset again. With `latest` that is further on by then, while the end comes from the
    checkpoint. In all other batches, start and end have the same base.
    """
    if start is None or start.created != end.created:
        return end.base
    if start.base is not None and end.base is not None and start.base != end.base:
        return end.base
    return start.next


def batch_end(begin: Offsets, available: Mapping[str, int], limit: int | None) -> Offsets:
    """The end of a batch: what is available in each stream, at most `limit` sequences in all.

    No stream ends before its beginning. The limit is shared in proportion to what each stream has.
    """
    sizes = sizes_of(begin, available)
    taken = sizes if limit is None else shares(sizes, limit)
    ends = zip(begin.items(), taken, strict=True)
    return Offsets({stream: replace(offset, next=offset.next + count) for (stream, offset), count in ends})


def sizes_of(begin: Offsets, available: Mapping[str, int]) -> Sequence[int]:
    """How many sequences each stream has from its beginning on, in the order of `begin`."""
    return [max(0, available[stream] - offset.next) for stream, offset in begin.items()]
