"""What a push subscription watches beside its messages (ADR-9, ADR-15): sequences and heartbeats.

`Sequences` is pure and belongs to the consuming thread whose turn it is. `PushWatch` is a thread:

  js-push-<n>  started with a subscription that has heartbeats. It alone uses the heartbeat clock. Blocks until
               it is woken, at most until the next alarm, and in the owner's on_silence() and on_wake(). Ends after
               stop(), which wakes it.

The thread looks at the connection itself each time and is not told to pause and resume: two threads could tell
it in the wrong order. No lock.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

from .._deadline import FOREVER
from .._threads import Wakeup, join_quietly, spawn
from ..api.message import parse_metadata
from ..errors import NotJSMessageError, SequenceMismatchError
from ..protocol.headers import header_value
from .heartbeat import PUSH_FACTOR, HeartbeatClock

if TYPE_CHECKING:
    from .push import PushInbound

_numbers = itertools.count(1)


class Sequences:
    """Finds gaps in consumer sequences. A gap is told once: what comes after it is the new beginning."""

    __slots__ = ("_last",)

    def __init__(self, last: int | None = None) -> None:
        """`last` is the sequence delivered last: 0 for a new consumer, None when it is not known."""
        self._last = last

    def message(self, reply: bytes | None) -> SequenceMismatchError | None:
        """The gap before a message, if there is one.

        Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`, the usual
        form of a reply subject, one token is compared: reading all metadata costs five times as much.
        """
        last = self._last
        if last is not None and reply is not None:
            tokens = reply.split(b".")
            if len(tokens) == 9 and tokens[6] == b"%d" % (last + 1):
                self._last = last + 1
                return None
        try:
            metadata = parse_metadata(None if reply is None else reply.decode("utf-8", "surrogateescape"))
        except NotJSMessageError:
            return None  # it was published to the deliver subject
        stream_seq, self._last = metadata.sequence
        # A smaller number is a new leader's, or that of a consumer made anew: nothing is missing.
        if last is None or metadata.num_delivered > 1 or self._last <= last + 1:
            return None
        return SequenceMismatchError(last + 1, self._last, stream_seq=stream_seq)

    def heartbeat(self, block: bytes) -> SequenceMismatchError | None:
        """ADR-9: a heartbeat says which sequence was delivered last, so a loss shows though nothing follows it."""
        told = header_value(block, b"Nats-Last-Consumer") or b""
        if not told.isdigit():
            return None
        last, self._last = self._last, int(told)
        if last is None or self._last <= last:
            return None
        last_stream = header_value(block, b"Nats-Last-Stream") or b""
        return SequenceMismatchError(last, self._last, stream_seq=int(last_stream) if last_stream.isdigit() else 0)


class PushWatch:
    """js-push-<n>: raises the alarm when a push subscription is silent for too long. See the module's text."""

    def __init__(self, owner: PushInbound) -> None:
        """Starts no thread: a subscription without heartbeats has none."""
        self._owner = owner
        self._wakeup = Wakeup()
        self._losses = self._losses_seen = 0  # of the connection; the first is written by the reader thread alone
        self._thread: threading.Thread | None = None
        self.stopped = False

    def start(self, interval: float) -> None:
        """Watch from now on. After stop() the thread ends at once."""
        clock = HeartbeatClock(interval, PUSH_FACTOR, clock=time.monotonic)
        self._thread = spawn(f"push-{next(_numbers)}", self._run, clock)

    def disconnected(self) -> None:
        """Reader thread, before another session can be in use."""
        self._losses += 1
        self._wakeup.set()

    def wake(self) -> None:
        """Look again now. From any thread; takes no lock."""
        self._wakeup.set()

    def wait(self, timeout: float) -> None:
        """For on_wake(): wait to be woken, at most so long."""
        if not self.stopped:
            self._wakeup.wait(timeout)

    def stop(self) -> None:
        self.stopped = True
        self._wakeup.set()

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    # --- js-push --------------------------------------------------------------------------------------

    def _run(self, clock: HeartbeatClock) -> None:
        while not self.stopped:
            self._follow_connection(clock)
            if clock.due():
                self._owner.on_silence(clock.silence)
            self._owner.on_wake()
            self._follow_connection(clock)
            wait = clock.remaining()
            self._wakeup.wait(FOREVER if wait is None else wait)

    def _follow_connection(self, clock: HeartbeatClock) -> None:
        """Silence counts while there is a session, and from its beginning.

        It is judged by arrival: a slow callback is no silence.
        """
        connected = self._owner.link.connected
        losses = self._losses  # read second: the loss of a session is counted before the next one is in use
        if not connected or losses != self._losses_seen:
            self._losses_seen = losses
            clock.pause()
        if connected:
            clock.resume()
            clock.reset(self._owner.last_arrival)
