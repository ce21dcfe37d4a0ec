"""What makes writing repeatable: names for rows, and the markers of finished chunks. Pure.

A task that runs again writes the same rows in the same order, so a row is named by the write, the partition and
its number there. The stream recognises the name and stores the row once.
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
    """One partition of one write: `write` is the query's id, or one made for a batch write."""

    write: str
    epoch: int | None
    partition: int

    @property
    def id_prefix(self) -> str:
        """What the message ids of this task's rows begin with."""
        if self.epoch is None:
            return f"{self.write}/{self.partition}/"
        return f"{self.write}/{self.epoch}/{self.partition}/"

    def marker_subject(self, prefix: str) -> str:
        """The subject on which this partition's progress is kept."""
        return f"{prefix}.{_NOT_IN_A_TOKEN.sub('_', self.write)}.{self.partition}"


@dataclass
class Written:
    """What became of a partition's rows. `duplicates` were stored by an earlier run of it."""

    rows: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class Marker:
    """The last message of a chunk: how far the partition has come.

    `rows` counts from the epoch's first row; `task` names the attempt that wrote the chunk.
    """

    epoch: int
    rows: int
    task: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        """Raises ValueError for what is no marker."""
        try:
            wire = json.loads(data)
            return cls(int(wire["epoch"]), int(wire["rows"]), str(wire["task"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"not a marker of this sink: {data[:64]!r}") from None


def rows_already_written(last: Marker | None, epoch: int) -> int | None:
    """How many of the epoch's rows are stored; None when all are, for a later epoch has begun."""
    if last is None or last.epoch < epoch:
        return 0
    return last.rows if last.epoch == epoch else None
