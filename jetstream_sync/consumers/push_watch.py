"""What a push subscription watches beside its messages (ADR-9, ADR-15): sequences and heartbeats.

`Sequences` is pure and belongs to the consuming thread whose turn it is. `PushWatch` is a thread:

  js-push-<n>  started with a subscription that has heartbeats. It alone uses the heartbeat clock. Blocks until
               it is woken, at most until the next alarm, and in `on_silence` and `on_wake`. Ends after stop(),
               which wakes it.

The thread looks at the connection itself each time and is not told to pause and resume: two threads could tell
it in the wrong order. No lock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from .._deadline import FOREVER
from .._threads import Wakeup, join_quietly, spawn
from ..errors import SequenceMismatchError
from ..net.link import Link
from .heartbeat import PUSH_FACTOR, HeartbeatClock

_numbers = itertools.count(1)


class Sequences:
    """Whether consumer sequences follow on. A gap is told once: what comes after it is the new beginning."""

    __slots__ = ("_last",)

    def __init__(self, last: int | None = None) -> None:
        """`last` is the sequence delivered last: 0 for a new consumer, None when it is not known."""
        self._last = last

    def forget(self) -> None:
        """A new connection: what came on the old one may be lost, and is delivered again where it matters."""
        self._last = None

    def follows_on(self, reply: bytes | None) -> bool:
        """Whether this is the next message, by a reply subject of the usual form; `message` judges all others.

        Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>` one token is
        compared: reading all metadata costs five times as much.
        """
        if self._last is None or reply is None:
            return False
        tokens = reply.split(b".")
        if len(tokens) != 9 or tokens[6] != b"%d" % (self._last + 1):
            return False
        self._last += 1
        return True

    def message(self, consumer_seq: int, stream_seq: int, *, redelivered: bool) -> SequenceMismatchError | None:
        last, self._last = self._last, consumer_seq
        # A smaller number is a new leader's, or that of a consumer made anew: nothing is missing.
        if last is None or redelivered or consumer_seq <= last + 1:
            return None
        return SequenceMismatchError(last + 1, consumer_seq, stream_seq=stream_seq)

    def heartbeat(self, last_consumer: bytes | None, last_stream: bytes | None) -> SequenceMismatchError | None:
        """ADR-9: a heartbeat says which sequence was delivered last, so a loss shows though nothing follows it."""
        if last_consumer is None or not last_consumer.isdigit():
            return None
        told = int(last_consumer)
        last, self._last = self._last, told
        if last is None or told <= last:
            return None
        stream_seq = int(last_stream) if last_stream is not None and last_stream.isdigit() else 0
        return SequenceMismatchError(last, told, stream_seq=stream_seq)


class PushWatch:
    """js-push-<n>: raises the alarm when a push subscription is silent for too long. See the module's text."""

    def __init__(
        self,
        link: Link,
        interval: float,
        last_arrival: Callable[[], float],
        on_silence: Callable[[float], None],
        on_wake: Callable[[], None],
    ) -> None:
        """Starts no thread: the owner holds this object first, so that it can stop the thread in any case."""
        self._link = link
        self._clock = HeartbeatClock(interval, PUSH_FACTOR, clock=time.monotonic)
        self._last_arrival = last_arrival
        self._on_silence = on_silence
        self._on_wake = on_wake
        self._wakeup = Wakeup()
        self._losses = self._losses_seen = 0  # of the connection; the first is written by the reader thread alone
        self._thread: threading.Thread | None = None
        self.stopped = False

    def start(self) -> None:
        self._thread = spawn(f"push-{next(_numbers)}", self._run)

    def disconnected(self) -> None:
        """Reader thread, before another session can be in use."""
        self._losses += 1
        self._wakeup.set()

    def wake(self) -> None:
        """Look again now. From any thread; takes no lock."""
        self._wakeup.set()

    def wait(self, timeout: float) -> None:
        """For `on_wake`: wait to be woken, at most so long."""
        if not self.stopped:
            self._wakeup.wait(timeout)

    def stop(self) -> None:
        self.stopped = True
        self._wakeup.set()

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    # --- js-push --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.stopped:
            self._follow_connection()
            if self._clock.due():
                self._on_silence(self._clock.silence)
            self._on_wake()
            self._follow_connection()
            wait = self._clock.remaining()
            self._wakeup.wait(FOREVER if wait is None else wait)

    def _follow_connection(self) -> None:
        """Silence counts while there is a session, and from its beginning.

        It is judged by arrival: a slow callback is no silence.
        """
        connected = self._link.connected
        losses = self._losses  # read second: the loss of a session is counted before the next one is in use
        if not connected or losses != self._losses_seen:
            self._losses_seen = losses
            self._clock.pause()
        if connected:
            self._clock.resume()
            self._clock.reset(self._last_arrival())
