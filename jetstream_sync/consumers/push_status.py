"""What a push subscription watches beside its messages (ADR-9, ADR-15): sequences, flow control, heartbeats.

`Sequences` and `FlowControl` are pure and belong to the taker whose turn it is. `PushMonitor` is a thread.
"""

from __future__ import annotations

import itertools
import time
from _thread import allocate_lock
from collections.abc import Callable

from .._deadline import FOREVER
from .._threads import join_quietly, locked, spawn
from ..errors import SequenceMismatchError
from .heartbeat import PUSH_FACTOR, HeartbeatClock

_numbers = itertools.count(1)


def short_ack_tokens(reply: bytes | None) -> list[bytes]:
    """The tokens of a reply subject of the usual form, or []: reading all metadata costs five times as much.

    Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`.
    """
    tokens = [] if reply is None else reply.split(b".")
    return tokens if len(tokens) == 9 else []


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
        """Whether this is the next message, of a reply subject in the usual form; `message` judges all others."""
        if self._last is None:
            return False
        tokens = short_ack_tokens(reply)
        if not tokens or tokens[6] != b"%d" % (self._last + 1):
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


class FlowControl:
    """Which flow-control subject was answered last: each is answered once, however often the server repeats it."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered: bytes | None = None

    def is_new(self, subject: bytes) -> bool:
        return subject != self._answered

    def answered(self, subject: bytes) -> None:
        self._answered = subject

    def forget(self) -> None:
        """A new connection: the answer may have been lost with the old one."""
        self._answered = None


class PushMonitor:
    """js-push-<n>: raises the alarm when a push subscription is silent for too long, and does `work` when kicked.

    Started with the subscription, if that has heartbeats. Owns the heartbeat clock, whose lock is held for a few
    instructions. Blocks on its kick, until the next alarm at most, and in `on_silence` and `work`. Ends when
    stop() was called, which kicks it.
    """

    def __init__(
        self,
        interval: float,
        last_arrival: Callable[[], float],
        on_silence: Callable[[float], None],
        work: Callable[[], None] | None = None,
    ) -> None:
        self._lock = allocate_lock()  # guards _clock
        self._clock = HeartbeatClock(interval, PUSH_FACTOR, clock=time.monotonic)
        self._last_arrival = last_arrival
        self._on_silence = on_silence
        self._work = work
        self._kick = locked()
        self.stopped = False
        self._thread = spawn(f"push-{next(_numbers)}", self._run)

    def pause(self) -> None:
        """Disconnected: nothing can come."""
        with self._lock:
            self._clock.pause()

    def resume(self) -> None:
        with self._lock:
            self._clock.resume()
        self.kick()

    def kick(self) -> None:
        """Look again now. From any thread; never blocks."""
        try:
            self._kick.release()
        except RuntimeError:
            pass  # kicked already, and not yet awake

    def wait(self, timeout: float) -> None:
        """For `work`: wait for a kick, at most so long."""
        if not self.stopped:
            self._kick.acquire(timeout=min(timeout, FOREVER))

    def stop(self) -> None:
        self.stopped = True
        self.kick()

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    def _run(self) -> None:
        while True:
            self._kick.acquire(timeout=self._next_look())
            if self.stopped:
                return
            silence = self._silence()
            if silence is not None:
                self._on_silence(silence)
            if self._work is not None:
                self._work()

    def _next_look(self) -> float:
        with self._lock:
            self._clock.reset(self._last_arrival())
            wait = self._clock.remaining()
        return FOREVER if wait is None else min(wait, FOREVER)

    def _silence(self) -> float | None:
        """How long nothing has come, when that is too long. Judged by arrival: a slow callback is no silence."""
        with self._lock:
            self._clock.reset(self._last_arrival())
            return self._clock.silence if self._clock.due() else None
