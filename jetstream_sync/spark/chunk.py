"""A run of messages in columns, on its way from the wire to Arrow. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ..protocol.parser import RawMessage


@dataclass(slots=True)
class Chunk:
    """Messages in ascending order of their sequence; every list has the same length."""

    subjects: list[bytes]
    sequences: list[int]
    timestamps: list[int]
    """Nanoseconds since 1970."""
    blocks: list[bytes | None]
    """Header blocks as they came."""
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.sequences)

    def cut(self, end: int) -> bool:
        """Drop what is at or past `end`. True when there was such a message: the range is complete."""
        if not self.sequences or self.sequences[-1] < end:
            return False
        keep = bisect_left(self.sequences, end)
        for column in (self.subjects, self.sequences, self.timestamps, self.blocks, self.payloads):
            del column[keep:]
        return True


def chunk_of(messages: list[RawMessage], expected: int) -> Chunk | None:
    """Messages of one consumer, whose next consumer sequence is `expected`; None when one is missing.

    A reply's tokens are delivered, stream sequence, consumer sequence, timestamp, pending, behind a prefix that
    is the same for all messages of the consumer.
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
    """The length of `$JS.ACK.<stream>.<consumer>.` (v1) or the form with domain and account hash (v2)."""
    tokens = reply.split(b".")
    return len(b".".join(tokens[: 4 if len(tokens) == 9 else 6])) + 1
