"""What MessageStream and ConsumeContext take messages from: a PullSession or an OrderedSession."""

from __future__ import annotations

import threading
from _thread import LockType
from abc import ABC, abstractmethod
from typing import Protocol

from .._threads import locked, run_detached
from ..errors import NatsError
from ..net.connection import Connection
from ..protocol.parser import RawMessage
from .inlet import PullInlet
from .target import PullTarget

# How long stop() on the main thread waits for the thread that does it.
STOP_SECONDS = 0.1


class Backlog(Protocol):
    """Messages and statuses that may be taken without wait()."""

    def __len__(self) -> int: ...

    def popleft(self) -> RawMessage:
        """The next one; IndexError when it takes wait() to get it."""


class Session(ABC):
    """The side of a session that faces the taker; PullSession says what each method does."""

    nc: Connection
    acks: bool
    number: int
    target: PullTarget
    inlet: PullInlet
    items: Backlog

    @property
    @abstractmethod
    def ended(self) -> NatsError | None:
        """Why the session is over; SubscriptionClosedError after stop() or drain(). None while it runs."""

    @property
    @abstractmethod
    def by_bytes(self) -> bool:
        """Whether sizes count; otherwise they need not be computed."""

    @property
    @abstractmethod
    def has_group(self) -> bool:
        """Whether messages carry a pin id that `is_status` must see."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> RawMessage: ...

    @abstractmethod
    def is_status(self, raw: RawMessage) -> bool: ...

    @abstractmethod
    def taken(self, count: int, size: int) -> int: ...

    @abstractmethod
    def received(self, count: int, size: int) -> None: ...

    @abstractmethod
    def processed(self, count: int, size: int) -> None: ...

    @abstractmethod
    def size_of(self, raw: RawMessage) -> int: ...

    @abstractmethod
    def report(self, error: BaseException) -> None: ...

    @abstractmethod
    def end(self, reason: NatsError, *, discard: bool = False) -> None: ...

    @abstractmethod
    def drain(self, reason: NatsError) -> None: ...

    @abstractmethod
    def take_in(self, reason: NatsError, timeout: float) -> None: ...

    @abstractmethod
    def join(self, timeout: float) -> None: ...

    def stop(self, reason: NatsError) -> None:
        """End at once, from anywhere, what is buffered being dropped. Raises ForkError in a forked child.

        On the main thread we may be in a signal handler, which interrupted this very thread while it held a lock
        that ending needs: another thread can wait for that lock, the handler cannot. It waits for that thread
        a moment, so that outside of handlers stop() has taken effect when it returns.
        """
        self.nc._check_process()
        if threading.get_ident() != threading.main_thread().ident:
            self.end(reason, discard=True)
            return
        done = locked()
        run_detached(self._end_and_tell, reason, done)
        done.acquire(timeout=STOP_SECONDS)

    def _end_and_tell(self, reason: NatsError, done: LockType) -> None:
        self.end(reason, discard=True)
        done.release()
