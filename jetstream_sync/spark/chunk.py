"""Messages by column, as an intermediate form between the wire and Arrow. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

# Subject, sequence, nanoseconds since 1970, header block, payload.
Row = tuple[bytes, int, int, bytes | None, bytes]


@dataclass(slots=True)
class Chunk:
    """Messages in the order of their sequences; all columns have the same length.

    Numbers are memory that Arrow uses as it is. The other columns are decoded when they are asked for.
    """

    subjects: list[bytes]
    sequences: memoryview[int]
    timestamps: memoryview[int]
    """Nanoseconds since 1970."""
    blocks: list[bytes | None]
    """Header blocks as received."""
    payloads: list[bytes]

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> Chunk:
        """The same messages by column; `rows` must not be empty."""
        subjects, sequences, timestamps, blocks, payloads = zip(*rows, strict=True)
        return cls(list(subjects), numbers(sequences), numbers(timestamps), list(blocks), list(payloads))

    def __len__(self) -> int:
        return len(self.sequences)

    def cut(self, end: int) -> bool:
        """Remove messages with a sequence of `end` or more. True when there was one: the range is complete."""
        if not len(self) or self.sequences[-1] < end:
            return False
        keep = bisect_left(self.sequences, end)
        self.sequences = self.sequences[:keep]
        self.timestamps = self.timestamps[:keep]
        for column in (self.subjects, self.blocks, self.payloads):
            del column[keep:]
        return True


def numbers(values: Iterable[int]) -> memoryview[int]:
    """Numbers of 64 bits, one after the other in memory."""
    return memoryview(array("q", values))
