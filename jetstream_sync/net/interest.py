"""Whom a connection delivers to: subscriptions, and the inboxes of the library's own (inlets)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from .._deadline import Deadline, seconds
from ..protocol import commands
from .contracts import Inlet, SingleUse
from .lifecycle import Lifecycle


class Interest(Lifecycle):
    """Adding, moving and removing interest. The map of sids is guarded by the connection's lock."""

    def _open_inlet(self, make: Callable[[bytes], Inlet]) -> None:
        """Subscribe something of the library's own: `make` gets the sid."""
        self._check_usable()
        with self._lock:
            self._add_inlet(make(self._new_sid()))

    def _close_inlet(self, inlet: Inlet) -> None:
        """Remove the interest of something of the library's own. Idempotent, never blocks."""
        with self._lock:
            if self._subs.get(inlet.sid) is not inlet:
                return
            # UNSUB first: interrupted by a signal handler between the two, a second call repeats both.
            self._outbox.control(commands.unsubscribe(inlet.sid))
            del self._subs[inlet.sid]
        self._outbox.flush()

    def _open_pull(self, pull: SingleUse) -> None:
        """Subscribe and watch the connection for a pull, in one step."""
        with self._lock:
            pull.sid = self._new_sid()
            self._listeners.append(pull)
            self._add_inlet(pull)

    def _close_pull(self, pull: SingleUse) -> None:
        """Undo it, wherever it stands. Idempotent, never blocks."""
        with self._lock:
            if pull in self._listeners:
                self._listeners.remove(pull)
            if self._subs.get(pull.sid) is pull:
                if not pull.spent:
                    self._outbox.control(commands.unsubscribe(pull.sid))
                del self._subs[pull.sid]
        if not pull.spent:
            self._outbox.flush()

    def _limit_inlet(self, inlet: Inlet, limit: int) -> None:
        """Have the server end the interest after `limit` messages in all. Leaves with the next thing published."""
        with self._lock:
            if self._subs.get(inlet.sid) is inlet:
                self._outbox.control(commands.unsubscribe(inlet.sid, limit))

    def _drain_inlet(self, inlet: Inlet, timeout: float) -> None:
        """Remove the interest and wait until all that the server sent before has arrived."""
        with self._lock:
            if self._session is None or self._subs.get(inlet.sid) is not inlet:
                return
            self._outbox.control(commands.unsubscribe(inlet.sid))
        self._ping_pong(Deadline(timeout))

    def _add_inlet(self, inlet: Inlet) -> None:
        # Requires holding _lock.
        self._subs[inlet.sid] = inlet
        frame = commands.subscribe(inlet.wire_subject, inlet.sid)
        limit = inlet.remaining()
        self._outbox.control(frame + commands.unsubscribe(inlet.sid, limit) if limit else frame)
        self._receiving.call_back()

    def _new_sid(self) -> bytes:
        # Requires holding _lock: close() takes the subscriptions it ends under it, so none may come after.
        self._check_usable()
        self._last_sid += 1
        return b"%d" % self._last_sid

    def _forget(self, inlet: Inlet) -> None:
        """Take nothing more for this subscription: the server has ended it, or is told to."""
        with self._lock:
            self._subs.pop(inlet.sid, None)

    def _drain_timeout(self, timeout: float | timedelta | None) -> float:
        chosen = seconds(timeout)
        return self._options.drain_timeout if chosen is None else chosen
