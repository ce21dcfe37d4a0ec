"""Storms of signals whose handlers raise, and a sender and a receiver that notice every damaged frame."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import jetstream_sync
from jetstream_sync import Connection, Message
from tests.support.eventually import eventually
from tests.support.signals import Interrupted

# The share of interruptions that are followed by a second one. Python 3.10 may run a handler between an exception
# and the `with` statement that it leaves: if that handler raises, too, the lock of the `with` stays locked.
DOUBLES = 0.4 if sys.version_info >= (3, 11) else 0.0
LIBRARY = os.path.dirname(jetstream_sync.__file__)


class Storm:
    """Interrupts the main thread at random moments, with one signal or two in quick succession."""

    def __init__(self, seed: int, *, longest: float = 0.001, doubles: float = DOUBLES) -> None:
        self._rng = random.Random(seed)
        self._doubles = doubles
        self._longest = longest
        self._left = 0
        self.raised = 0

    def __enter__(self) -> Storm:
        gc.collect()  # finalizers of earlier garbage run now: in the storm they would lose exceptions
        self._before = signal.signal(signal.SIGALRM, self._strike)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _strike(self, _: int, frame: FrameType | None) -> None:
        if self._left <= 0:
            return
        if frame is None or not frame.f_code.co_filename.startswith(LIBRARY):
            # Only code of the library is interrupted. In callbacks of weak references the interpreter prints
            # exceptions and goes on.
            signal.setitimer(signal.ITIMER_REAL, 1e-5)
            return
        self.raised += 1
        self._left -= 1
        if self._left > 0:
            signal.setitimer(signal.ITIMER_REAL, self._rng.choice((1e-6, 1e-5, 3e-5, 1e-4)))
        raise Interrupted

    def interrupt(self, work: Callable[[], object]) -> None:
        """Repeat `work` until a signal interrupts it. Sometimes a second one interrupts its clean-up."""
        try:
            self._left = 2 if self._rng.random() < self._doubles else 1
            signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-5, self._longest))
            while self._left > 0:
                work()
        except Interrupted:
            self._left = 0


class Verifier:
    """Receives the frames of all senders, and records those that are damaged, repeated or out of order."""

    def __init__(self, url: str, **options: Any) -> None:
        self.nc = jetstream_sync.connect(url, **options)
        self.seen: dict[str, set[int]] = {}
        self.wrong: list[str] = []
        self._last: dict[str, int] = {}
        self.nc.subscribe("storm.*", cb=self._verify, pending_msgs_limit=0, pending_bytes_limit=0)
        self.nc.flush()

    def _verify(self, msg: Message) -> None:
        number, _, rest = msg.data.partition(b" ")
        checksum, _, filling = rest.partition(b" ")
        sequence = int(number)
        if int(checksum) != zlib.crc32(filling, sequence):
            self.wrong.append(f"{msg.subject} {sequence}: damaged")
        if sequence <= self._last.get(msg.subject, 0):
            self.wrong.append(f"{msg.subject} {sequence}: after {self._last[msg.subject]}")
        self._last[msg.subject] = sequence
        self.seen.setdefault(msg.subject, set()).add(sequence)


class Sender:
    """Publishes numbered frames with checksums, and records which calls returned."""

    def __init__(self, nc: Connection, name: str) -> None:
        self._nc = nc
        self.subject = f"storm.{name}"
        self._rng = random.Random(name)
        self._next = 0
        self.returned: list[int] = []

    def publish(self) -> None:
        self._next += 1
        sequence = self._next
        filling = self._rng.randbytes(self._rng.choice((1, 10, 100, 2000)))
        self._nc.publish(self.subject, b"%d %d %b" % (sequence, zlib.crc32(filling, sequence), filling))
        self.returned.append(sequence)

    def publish_all(self, count: int) -> None:
        for _ in range(count):
            self.publish()


def publish_under_storm(nc: Connection, verifier: Verifier) -> None:
    """Publish in the main thread, interrupted 1500 times, and in two other threads.

    Fails if a frame is damaged, comes twice or out of order, or is missing though its publish() returned.
    """
    main, others = Sender(nc, "main"), [Sender(nc, f"thread-{n}") for n in range(2)]
    threads = [threading.Thread(target=sender.publish_all, args=(1500,), daemon=True) for sender in others]
    for thread in threads:
        thread.start()
    with Storm(seed=1) as storm:
        while storm.raised < 1500:
            storm.interrupt(main.publish)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    nc.flush()
    verifier.nc.flush()
    for sender in (main, *others):
        eventually(lambda s=sender: set(s.returned) <= verifier.seen.get(s.subject, set()), 20, sender.subject)
    assert verifier.wrong == []
    assert [len(sender.returned) for sender in others] == [1500, 1500]


def request_under_storm(nc: Connection, responder: Connection, storm: Storm, count: int) -> None:
    """Send requests, of which the storm interrupts `count`, to `responder`. Each gets the reply to itself."""
    responder.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
    responder.flush()
    numbers = iter(range(10**9))

    def ask() -> None:
        payload = b"%d" % next(numbers)
        assert nc.request("echo", payload, timeout=5).data == payload

    with storm:
        while storm.raised < count:
            storm.interrupt(ask)
    ask()
