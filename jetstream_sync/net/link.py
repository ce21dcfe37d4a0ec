"""Link over today's connection: the inner interface, for code above net/."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._deadline import Deadline
from .._threads import run_detached
from ..errors import ConnectionClosedError
from ..protocol import commands
from ..protocol.parser import RawMessage
from .contracts import Status
from .receiver import Receiver

if TYPE_CHECKING:
    from .connection import Connection


class Router:
    """The registry of receivers."""

    def __init__(self, nc: Connection) -> None:
        self._nc = nc

    @property
    def receivers(self) -> dict[bytes, Any]:
        return self._nc._subs


class Link:
    """What the code above net/ uses of a connection."""

    def __init__(self, nc: Connection) -> None:
        self.nc = nc
        self.outbox = nc._outbox
        self.options = nc._options
        self.router = Router(nc)
        self.forked = False

    # --- facts ---------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.nc._session is not None

    @property
    def closed(self) -> bool:
        return self.nc._status is Status.CLOSED

    @property
    def failed(self) -> bool:
        return self.nc._failed

    @property
    def max_payload(self) -> int:
        return self.nc._max_payload

    @property
    def reconnects(self) -> int:
        return self.nc._reconnects

    @property
    def server_info(self) -> dict[str, Any]:
        return self.nc._server_info

    def check_process(self) -> None:
        self.nc._check_process()

    def check_usable(self) -> None:
        self.nc._check_usable()

    # --- sending -------------------------------------------------------------------------------------

    def frame(self, subject: bytes, payload: bytes, reply: bytes | None, block: bytes | None) -> tuple[bytes, int]:
        return self.nc._frame(subject, payload, reply, block)

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes | None = None, block: bytes | None = None
    ) -> None:
        frame, size = self.nc._frame(subject, payload, reply, block)
        try:
            self.outbox.publish(frame, size)
        except ConnectionClosedError:
            self.check_usable()  # says what closed it
            raise

    def request(
        self, subject: bytes, payload: bytes, timeout: float | None, block: bytes | None = None
    ) -> RawMessage:
        return self.nc._request_raw(subject, payload, timeout, block)

    def round_trip(self, deadline: Deadline) -> None:
        self.nc._ping_pong(deadline)

    def new_inbox(self) -> str:
        return self.nc.new_inbox()

    def next_inbox(self) -> bytes:
        return self.nc._next_inbox().encode()

    # --- receivers -----------------------------------------------------------------------------------

    def open(self, receiver: Receiver) -> None:
        """Register and subscribe; all or nothing. No flush. Open already: nothing."""
        nc = self.nc
        nc._check_usable()
        with nc._lock:
            if nc._subs.get(receiver.sid) is receiver:
                return
            if receiver.drains and nc._status is Status.DRAINING:
                raise ConnectionClosedError("the connection is draining: no new subscriptions")
            sid = nc._new_sid()
            try:
                receiver.sid = sid
                nc._subs[sid] = receiver
                self._subscribe(receiver)
            except BaseException:
                nc._subs.pop(sid, None)
                self.outbox.control(commands.unsubscribe(sid))
                raise
        nc._receiving.call_back()

    def close(self, receiver: Receiver) -> None:
        """UNSUB and flush, unless completed. Idempotent, never blocks; in a forked child: nothing."""
        nc = self.nc
        if nc._forked:
            return
        with nc._lock:
            if nc._subs.get(receiver.sid) is not receiver:
                return
            if not receiver.completed:
                # UNSUB first: interrupted between the two by a signal handler, a second call repeats both.
                self.outbox.control(commands.unsubscribe(receiver.sid))
            del nc._subs[receiver.sid]
        if not receiver.completed:
            self.outbox.flush()

    def soon(self, job: Callable[[], None]) -> None:
        """Run `job` now, or detached while a lock of the connection is held. For finalizers."""
        nc = self.nc
        if nc._forked:
            return
        if nc._lock.locked() or nc._outbox._mu.locked():
            run_detached(job)
        else:
            job()

    def limit(self, receiver: Receiver, count: int) -> bool:
        """Have the server end the interest after `count` messages in all. No flush.

        False: that many have come, and it was closed instead.
        """
        nc = self.nc
        with nc._lock:
            if nc._subs.get(receiver.sid) is not receiver:
                return False
            if receiver.set_limit(count):
                self.outbox.control(commands.unsubscribe(receiver.sid, count))
                return True
        self.close(receiver)
        return False

    def move(self, receiver: Receiver, subject: bytes) -> bool:
        """Listen to another subject, under a new sid; False when the receiver has been closed meanwhile."""
        nc = self.nc
        with nc._lock:
            if nc._subs.get(receiver.sid) is not receiver or receiver.remaining() < 0:
                return False
            self.outbox.control(commands.unsubscribe(receiver.sid))
            del nc._subs[receiver.sid]
            receiver.sid, receiver.wire_subject = nc._new_sid(), subject
            nc._subs[receiver.sid] = receiver
            self._subscribe(receiver)
        nc._receiving.call_back()
        self.outbox.flush()
        return True

    def drain(self, receivers: list[Receiver], deadline: Deadline) -> None:
        """UNSUB, flush, round trip: everything the server sent before has then come. The caller closes them."""
        nc = self.nc
        with nc._lock:
            if nc._session is None:
                return
            for receiver in receivers:
                if nc._subs.get(receiver.sid) is receiver:
                    self.outbox.control(commands.unsubscribe(receiver.sid))
        nc._ping_pong(deadline)

    def _subscribe(self, receiver: Receiver) -> None:
        # Requires holding the connection's lock.
        left = receiver.remaining()
        if left < 0:
            return
        frame = commands.subscribe(receiver.wire_subject, receiver.sid, receiver.wire_queue)
        self.outbox.control(frame + commands.unsubscribe(receiver.sid, left) if left else frame)

    # --- drain steps, callbacks ------------------------------------------------------------------------

    def add_drain_step(self, step: Callable[[Deadline], None]) -> None:
        """Have drain() of the connection call `step` before it closes. Idempotent."""
        if step not in self.nc._before_drained:
            self.nc._before_drained.append(step)

    def remove_drain_step(self, step: Callable[[Deadline], None]) -> None:
        try:
            self.nc._before_drained.remove(step)
        except ValueError:
            pass

    def report(self, error: Exception) -> None:
        """Error callback, else log."""
        self.nc._report(error)

    def call(self, callback: Callable[[Any], Any] | None, argument: Any) -> None:
        """Run a user's callback on js-callbacks."""
        self.nc._callbacks.submit(callback, argument)

    def dropped(self, count: int) -> None:
        self.nc._count_dropped(count)
