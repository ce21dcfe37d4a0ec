"""fetch and next: one pull, an inbox of its own, no thread (ADR-37)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from .._threads import run_detached
from ..api.message import JetStreamMessage
from ..errors import ConnectionLostError, MissedHeartbeatError, NatsError, PermissionsError, TimeoutError
from ..net.connection import Connection
from ..protocol.headers import Status, header_value
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .inlet import PullInlet, StampedStatus
from .pull_options import FetchOptions, client_grace, message_size
from .status import FetchAction, classify, to_error

if TYPE_CHECKING:
    from .target import PullTarget

# A no_wait pull is answered at once; a server that does not answer is given this long.
NO_WAIT_SECONDS = 5.0


class MessageBatch:
    """The messages of one fetch, handed out as they arrive: `for msg in batch`, or `list(batch)` for all.

    An error follows the messages that came before it, raised by the iteration. Leaving the loop early, close()
    and `with` end the pull and remove its interest at once; what was not handed out is delivered again.
    One thread at a time may iterate.
    """

    acks: bool

    def __init__(self, target: PullTarget, options: FetchOptions) -> None:
        """Sends the pull. Blocks for nothing."""
        self._ended = True  # nothing to close before this is False
        target.nc._check_usable()
        self._target = target
        self._options = options
        self._nc = target.nc
        self.acks = target.acks
        self._received = 0
        self._bytes = 0
        self._error: NatsError | None = None
        self._inlet = PullInlet(self._nc)
        self.items = self._inlet.mailbox.items
        self._guard = PullGuard(self._nc, self._inlet, target.next_subject)
        self._frame = target.pull_frame(options.body(target.pin_id(options.priority)), self._inlet.wire_subject)
        wait = options.expires + client_grace(options.expires) if options.expires_ns else NO_WAIT_SECONDS
        self._deadline = time.monotonic() + wait
        self._clock = HeartbeatClock(options.heartbeat, clock=time.monotonic) if options.heartbeat else None
        # A pull for one message without heartbeats is answered by one thing, message or status: the server is
        # told to end the interest after that, and no UNSUB has to follow.
        self._inlet.limit = 1 if options.batch == 1 and self._clock is None else 0
        self._ended = False
        try:
            self._nc._add_listener(self._guard)
            self._nc._open_inlet(self._inlet.with_sid)
            self._nc._outbox.publish(self._frame, 0)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[JetStreamMessage]:
        nc, items = self._nc, self.items
        raw: RawMessage | None
        try:
            while not self._ended:
                try:
                    raw = items.popleft()
                except IndexError:
                    raw = self._wait()
                    if raw is None:
                        break
                if type(raw) is StampedStatus:
                    self._on_status(raw.status)
                    continue
                self._count(raw)
                yield JetStreamMessage(raw, nc._link, self)
        except GeneratorExit:  # the loop was left early
            self._abandon()
            raise
        except BaseException:  # a signal handler raised while we waited
            self.close()
            raise
        self.close()
        self._raise_error()

    def take_one(self) -> JetStreamMessage | None:
        """The first message, or None when none comes; ends the pull. Blocks and raises as the iteration does."""
        message = None
        try:
            while not self._ended:
                raw = self._wait()
                if raw is None:
                    break
                if type(raw) is StampedStatus:
                    self._on_status(raw.status)
                    continue
                self._count(raw)
                message = JetStreamMessage(raw, self._nc._link, self)
                break
        finally:
            self.close()
        if message is None:
            self._raise_error()
        return message

    @property
    def error(self) -> NatsError | None:
        """What ended the pull, until the iteration has raised it."""
        return self._error

    def close(self) -> None:
        """End the pull and remove its interest at once. Idempotent, never blocks."""
        self._ended = True
        if not self._nc._forked:  # a forked child does not speak for its parent
            self._nc._remove_listener(self._guard)
            if self._inlet.spent:
                self._nc._forget(self._inlet)
            else:
                self._nc._outbox.withdraw(self._frame)
                self._nc._close_inlet(self._inlet)

    def __enter__(self) -> MessageBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A batch that was never iterated must not go on taking messages from the server.
        if not self._ended:
            self._abandon()

    def _abandon(self) -> None:
        """close(), where the garbage collector may have called us in a thread that holds one of the locks."""
        self._ended = True
        if self._nc._forked or self._nc.is_closed:
            return
        if self._nc._lock.locked() or self._nc._outbox._mu.locked():
            run_detached(self.close)
        else:
            self.close()

    # --- one step -----------------------------------------------------------------------------------

    def _count(self, raw: RawMessage) -> None:
        options = self._options
        self._received += 1
        if options.max_bytes is not None:
            self._bytes += message_size(raw)
            # When the bytes are used up exactly, no status follows.
            if self._bytes >= options.max_bytes:
                self._ended = True
        if self._received >= options.batch:
            self._ended = True
        if raw[2] is not None and options.priority.group is not None:
            self._target.learn_pin(options.priority, header_value(raw[2], b"Nats-Pin-Id"))

    def _wait(self) -> RawMessage | None:
        """The next thing in the mailbox; None when the pull is over, with or without an error."""
        while True:
            wait = self._deadline - time.monotonic()
            if self._clock is not None:
                self._clock.reset(self._inlet.last_arrival)
                wait = min(wait, self._clock.remaining() or 0.0)
            try:
                return self._inlet.mailbox.get(max(0.0, wait))
            except TimeoutError:
                if self._overdue():
                    return None
            except NatsError as error:
                self._error = error
                return None

    def _overdue(self) -> bool:
        connected = self._nc.is_connected
        if time.monotonic() >= self._deadline:
            if not connected:
                self._error = ConnectionLostError("not connected to a server: the pull could not be sent")
            return True
        if self._clock is not None:
            self._clock.reset(self._inlet.last_arrival)
            # Made while disconnected, the pull waits for the next connection, and so do the heartbeats.
            if self._clock.due() and connected:
                self._error = MissedHeartbeatError(self._clock.silence)
                return True
        return False

    def _on_status(self, status: Status) -> None:
        rule = classify(status)
        if rule.drops_pin:
            self._target.drop_pin(self._options.priority)
        if rule.fetch is FetchAction.IGNORE:
            return
        self._ended = True
        if rule.fetch is FetchAction.ERROR or (
            rule.fetch is FetchAction.END_ERROR_IF_EMPTY and not self._received
        ):
            self._error = to_error(status, self._target.next_subject.decode())

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error from error.__cause__  # not "while handling" that nothing was there


class PullGuard:
    """Ends a pull when its connection breaks. Apart from the batch, so that a forgotten batch can be freed."""

    def __init__(self, nc: Connection, inlet: PullInlet, next_subject: bytes) -> None:
        self._nc = nc
        self._inlet = inlet
        self._next_subject = next_subject

    def on_disconnect(self) -> None:
        self._nc._forget(self._inlet)
        self._inlet.mailbox.close(ConnectionLostError("the connection was lost during the pull"))

    def on_reconnect(self) -> None:
        """A pull made while disconnected goes out now: its heartbeats count from here."""
        self._inlet.last_arrival = time.monotonic()

    def on_closed(self, error: NatsError) -> None:
        self._inlet.mailbox.close(error)

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self._next_subject:
            self._inlet.mailbox.close(error)
