"""Replies of Direct Get: a message of a stream, with headers that the server adds behind its own. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from ..protocol.headers import VERSION_LINE, header_value

# The first of the headers that the server adds.
_ADDED = b"\r\nNats-Stream: "


class DirectReply(NamedTuple):
    """A message as Direct Get returns it, without its payload."""

    subject: bytes
    seq: int
    time: str | None
    own: bytes | None
    """The message's own header block."""
    previous: int | None
    """The sequence of the message before it in the same batch, 0 for the first; None outside of a batch."""


def direct_reply(block: bytes | None) -> DirectReply | None:
    """Decode the headers of a reply; None when the reply is a status.

    The headers that the server added come last, and only they count. The message's own headers may have the same
    names, as those of a republished message do, and its version line may look like a status.
    """
    if block is None:
        return None
    start = block.rfind(_ADDED)
    added = block[start:]
    subject, sequence = header_value(added, b"Nats-Subject"), header_value(added, b"Nats-Sequence")
    if start < 0 or subject is None or sequence is None or not sequence.isdigit():
        return None
    time, previous = header_value(added, b"Nats-Time-Stamp"), header_value(added, b"Nats-Last-Sequence")
    own = block[:start] + b"\r\n"
    return DirectReply(
        subject=subject,
        seq=int(sequence),
        time=None if time is None else time.decode("ascii", "replace"),
        own=None if own == VERSION_LINE else own + b"\r\n",
        previous=int(previous) if previous is not None and previous.isdigit() else None,
    )
