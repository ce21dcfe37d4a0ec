"""What makes a write repeatable: message ids for rows. No I/O. (Markers: markers.py.)

The id of a row is made of the write, the partition and a fingerprint of the row. A task that runs again may have
its rows in another order, or other rows if the query was changed meanwhile. The stream recognises the rows that it
has, and stores the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

_NOT_IN_A_TOKEN = re.compile(r"[^A-Za-z0-9_=-]")


@dataclass(frozen=True)
class TaskIdentity:
    """A partition of a write: `write` is the id of the streaming query, the name that the user gave to a batch
    write, or one generated for it."""

    write: str
    epoch: int | None
    partition: int
    named: bool = False
    """The user has named the write and its epoch (the option writeId)."""

    @property
    def id_prefix(self) -> str:
        """The prefix of the message ids of this task's rows."""
        if self.epoch is None:
            return f"{self.write}/{self.partition}/"
        return f"{self.write}/{self.epoch}/{self.partition}/"

    def marker_subject(self, prefix: str) -> str:
        """The subject of the markers of this partition."""
        token = _NOT_IN_A_TOKEN.sub("_", self.write)
        if token != self.write:  # two names must not become one
            token += f"-{blake2b(self.write.encode(), digest_size=8).hexdigest()}"
        return f"{prefix}.{token}.{self.partition}"


@dataclass
class Written:
    """How many rows a task has stored, and how many of them an earlier attempt had stored (`duplicates`)."""

    rows: int = 0
    duplicates: int = 0
