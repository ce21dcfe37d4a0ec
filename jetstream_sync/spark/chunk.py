"""Messages by column, as an intermediate form between the wire and Arrow. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ..protocol.parser import RawMessage


@dataclass(slots=True)
class Chunk:
    """Messages in the order of their sequences; all lists have the same length."""

    subjects: list[bytes]
    sequences: list[int]
    timestamps: list[int]
    """Nanoseconds since 1970."""
    blocks: list[bytes | None]
    """Header blocks as received."""
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.sequences)

    def cut(self, end: int) -> bool:
        """Remove messages with a sequence of `end` or more. True when there was one: the range is complete."""
        if not self.sequences or self.sequences[-1] < end:
            return False
        keep = bisect_left(self.sequences, end)
        for column in (self.subjects, self.sequences, self.timestamps, self.blocks, self.payloads):
            del column[keep:]
        return True


def chunk_of(messages: list[RawMessage], expected: int) -> Chunk | None:
    """The messages as a chunk; None when one is missing. `expected` is the consumer sequence of the first.

    The reply subject ends in: times delivered, stream sequence, consumer sequence, timestamp, pending. All
    messages of a consumer have the same prefix before these tokens.
    """
    prefix_length = reply_prefix_length(messages[0][1] or b"")
    numbers = [raw[1][prefix_length:].split(b".", 4) for raw in messages]  # type: ignore[index]
    if int(numbers[0][2]) != expected or int(numbers[-1][2]) != expected + len(messages) - 1:
        return None
    return Chunk(
        [raw[0] for raw in messages],
        [int(fields[1]) for fields in numbers],
        [int(fields[3]) for fields in numbers],
        [raw[2] for raw in messages],
        [raw[3] for raw in messages],
    )


def reply_prefix_length(reply: bytes) -> int:
    """The length of the prefix `$JS.ACK.<stream>.<consumer>.` (v1), or with domain and account hash (v2)."""
    tokens = reply.split(b".")
    return len(b".".join(tokens[: 4 if len(tokens) == 9 else 6])) + 1
