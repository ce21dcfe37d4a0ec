"""Which receiver gets the messages of which subscription id (sid), and the SUB and UNSUB lines for it.

Pure: no lock, no socket. Link calls it under its lock. The reader thread looks a sid up without the lock, so
`receivers` is one dict for life, never re-bound.
"""

from __future__ import annotations

from ..protocol import commands
from .receiver import Receiver


class Router:
    """The one registry of a connection's receivers."""

    def __init__(self) -> None:
        self.receivers: dict[bytes, Receiver] = {}
        self._last_sid = 0

    def __len__(self) -> int:
        return len(self.receivers)

    def holds(self, receiver: Receiver) -> bool:
        return self.receivers.get(receiver.sid) is receiver

    def add(self, receiver: Receiver) -> bytes:
        """Register `receiver` under a new sid. Returns its SUB, with UNSUB n where it has a limit."""
        self._last_sid += 1
        receiver.sid = b"%d" % self._last_sid
        self.receivers[receiver.sid] = receiver
        return _interest(receiver, max(0, receiver.remaining()))

    def remove(self, receiver: Receiver) -> None:
        """Forget `receiver`. What still comes for it is dropped."""
        if self.holds(receiver):
            del self.receivers[receiver.sid]

    def clear(self) -> list[Receiver]:
        """Forget all receivers and return them, in the order in which they were opened."""
        receivers = self.snapshot()
        self.receivers.clear()
        return receivers

    def snapshot(self) -> list[Receiver]:
        """All receivers, in the order in which they were opened. Any thread: making the list is atomic."""
        return list(self.receivers.values())

    def resubscriptions(self) -> bytes:
        """SUB and UNSUB for a new session. Forgets receivers that are not to be subscribed again."""
        frames: list[bytes] = []
        for receiver in self.snapshot():
            left = receiver.remaining()
            if left < 0:
                self.remove(receiver)
            else:
                frames.append(_interest(receiver, left))
        return b"".join(frames)


def _interest(receiver: Receiver, limit: int) -> bytes:
    frame = commands.subscribe(receiver.wire_subject, receiver.sid, receiver.wire_queue)
    return frame + commands.unsubscribe(receiver.sid, limit) if limit else frame
