"""What makes a write repeatable: message ids for rows, and markers of finished chunks. No I/O.

A task that runs again writes the same rows in the same order. So the id of a row is made of the write, the
partition and the number of the row in it. The stream recognises the id and stores the row once.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

# An atomic batch holds 1000 messages (ADR-50); the last one is the marker.
ROWS_PER_CHUNK = 999

_NOT_IN_A_TOKEN = re.compile(r"[^A-Za-z0-9_=-]")


@dataclass(frozen=True)
class TaskIdentity:
    """A partition of a write: `write` is the id of the streaming query, or one generated for a batch write."""

    write: str
    epoch: int | None
    partition: int

    @property
    def id_prefix(self) -> str:
        """The prefix of the message ids of this task's rows."""
        if self.epoch is None:
            return f"{self.write}/{self.partition}/"
        return f"{self.write}/{self.epoch}/{self.partition}/"

    def marker_subject(self, prefix: str) -> str:
        """The subject of the markers of this partition."""
        return f"{prefix}.{_NOT_IN_A_TOKEN.sub('_', self.write)}.{self.partition}"


@dataclass
class Written:
    """How many rows a task has stored, and how many of them an earlier attempt had stored (`duplicates`)."""

    rows: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class Marker:
    """The last message of a chunk, which records the progress of the partition.

    `rows` counts the rows of the epoch that are stored; `task` is the id of the attempt that wrote the chunk.
    """

    epoch: int
    rows: int
    task: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        """Decode a marker. Raises ValueError for any other message."""
        try:
            wire = json.loads(data)
            return cls(int(wire["epoch"]), int(wire["rows"]), str(wire["task"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"not a marker of this sink: {data[:64]!r}") from None


def rows_already_written(last: Marker | None, epoch: int) -> int | None:
    """How many rows of the epoch are stored; None when all are, because a later epoch has begun."""
    if last is None or last.epoch < epoch:
        return 0
    return last.rows if last.epoch == epoch else None
