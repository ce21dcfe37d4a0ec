"""Markers of the mode exactlyOnce: what they record, and what one means for a task that starts. Pure: no I/O.

A marker is the last message of an atomic batch, so it is stored if and only if the rows of that batch are. It says
how far a partition has come: the epoch, how many of its rows are stored, and a fingerprint of all these rows. Only
the last marker of a partition counts. A task that starts reads it:

| the last marker of the partition          | what the task does                                                 |
|-------------------------------------------|--------------------------------------------------------------------|
| none                                      | store all rows, unless markers were lost (`lost_markers`)          |
| of an earlier epoch                       | store all rows                                                     |
| of this epoch                             | pass over `rows` rows, compare their fingerprint, store the others |
| of this epoch, without fingerprint        | pass over `rows` rows, store the others (written by version 0.1.0) |
| of a later epoch, in a write with a name  | pass over all rows: the write is done                              |
| of a later epoch, in a streaming query    | MISMATCH: the checkpoint is older than what the stream holds       |

A fingerprint that differs is a mismatch, too: the batch was begun with other rows, so the number of rows that are
stored says nothing about the rows of now. So is a partition that had ended and has further rows now: with fewer
partitions than before, they are rows that another partition has stored. The option onReplayMismatch decides what
happens then.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any

from ..api.config import DiscardPolicy, RetentionPolicy

if TYPE_CHECKING:
    from ..api.config import StreamConfig

# An atomic batch holds 1000 messages (ADR-50); the last one is the marker.
ROWS_PER_CHUNK = 999

_FINGERPRINT_DIGITS = 32
_TAG_BYTES = 8

Buffer = Any  # bytes, a memoryview or an Arrow buffer


class Fingerprint:
    """A running hash of rows. It depends on the rows and their order alone, not on how they were divided.

    Each column has two hashes: of the lengths of its values, as 32-bit numbers, and of the values. The form must
    never change: fingerprints are stored in streams.
    """

    def __init__(self, columns: int) -> None:
        self._hashes = [(sha256(), sha256()) for _ in range(columns)]

    def add(self, column: int, lengths: Buffer, values: Buffer) -> None:
        """Add values of one column, one behind the other."""
        of_lengths, of_values = self._hashes[column]
        of_lengths.update(lengths)
        of_values.update(values)

    @property
    def value(self) -> str:
        digests = [one.digest() for pair in self._hashes for one in pair]
        return sha256(b"".join(digests)).hexdigest()[:_FINGERPRINT_DIGITS]


@dataclass(frozen=True)
class Marker:
    """The last message of a chunk, which records the progress of the partition."""

    epoch: int
    rows: int
    """How many rows of the epoch are stored."""
    task: str
    """The id of the attempt that stored them."""
    fingerprint: str | None = None
    """The fingerprint of these rows; None in markers of version 0.1.0."""
    ended: bool = False
    """Whether these were all rows that the partition had in the epoch."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        """Decode a marker. Raises ValueError for any other message."""
        try:
            wire = json.loads(data)
            fingerprint = wire.get("fingerprint")
            return cls(
                int(wire["epoch"]),
                int(wire["rows"]),
                str(wire["task"]),
                None if fingerprint is None else str(fingerprint),
                bool(wire.get("ended")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"not a marker of this sink: {data[:64]!r}") from None


class Start(Enum):
    """What a task does with its rows, as the last marker of its partition says."""

    STORE = "store all rows"
    COMPARE = "pass over the rows that the marker covers, if they are the same"
    PASS_OVER = "pass over the rows that the marker covers"
    DONE = "pass over all rows"
    MISMATCH = "the epoch is older than the marker's"


def start_of(last: Marker | None, epoch: int, *, named: bool) -> Start:
    """What a task of `epoch` does first. `named`: it belongs to a write that the user has named."""
    if last is None or last.epoch < epoch:
        return Start.STORE
    if last.epoch > epoch:
        return Start.DONE if named else Start.MISMATCH
    return Start.PASS_OVER if last.fingerprint is None else Start.COMPARE


def lost_markers(*, any_marker: bool, epoch: int, named: bool, last_row_is_ours: bool) -> bool:
    """Whether markers of the write have been removed, when the partition of a task has none.

    Partition 0 of a streaming query leaves a marker in every epoch that finds none, also without rows. So a query
    that is past its first epoch has one. And a chunk is stored together with its marker: where a row of this write
    is (`last_row_is_ours`), there must be a marker.
    """
    return not any_marker and (last_row_is_ours or (epoch > 0 and not named))


def limits_that_remove_markers(config: StreamConfig) -> list[str]:
    """The settings of a stream that can remove markers while they are needed, as `name=value`."""
    found = []
    if config.max_age:
        found.append(f"max_age={config.max_age:g}")
    if config.discard != DiscardPolicy.NEW:
        for name in ("max_msgs", "max_bytes"):
            limit = getattr(config, name)
            if limit is not None and limit > 0:
                found.append(f"{name}={limit}")
    per_subject = config.max_msgs_per_subject
    if per_subject is not None and per_subject > 0:
        found.append(f"max_msgs_per_subject={per_subject}")
    if config.retention in (RetentionPolicy.INTEREST, RetentionPolicy.WORKQUEUE):
        found.append(f"retention={RetentionPolicy(config.retention).value}")
    return found


def can_roll_up(config: StreamConfig) -> bool:
    """Whether a marker can remove the markers before it."""
    return bool(config.allow_rollup_hdrs) and not config.deny_purge


def takes_markers(version: str) -> bool:
    """Whether a server accepts a marker behind other messages of its batch. 2.12.0 calls its sequence wrong."""
    numbers = version.partition("-")[0].split(".")
    return not all(map(str.isdecimal, numbers)) or tuple(map(int, numbers)) >= (2, 12, 1)


def batch_tag(write: str) -> str:
    """The start of the ids of all atomic batches of a write. The stream keeps the id with each row."""
    return _text(blake2b(write.encode(), digest_size=_TAG_BYTES).digest())


def new_batch_id(tag: str) -> str:
    """An id for one atomic batch. The length is the same for all."""
    return tag + _text(os.urandom(_TAG_BYTES))


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")
