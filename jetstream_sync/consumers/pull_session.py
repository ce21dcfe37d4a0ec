"""The pulls behind one consume or messages(): one inbox, a refill thread, heartbeats (ADR-37).

Who does what:

  taker      takes from the mailbox, judges statuses in their order, counts what was received and processed; at the
             threshold it sends the next pull itself, because another thread would have to wait for its turn at the
             interpreter while the buffer runs dry
  js-refill  started with the session; watches the heartbeat and sends all other pulls: after a reconnect, a
             status, an alarm, a back-off; never touches a message. Blocks on its kick, at most until the next
             heartbeat alarm or the end of a back-off. Ends when `_ended` is set, which a kick always follows.
  reader     tells of disconnects and reconnects; only sets fields and kicks
  js-check   after a reconnect: looks the consumer up, beside the pull. Blocks in one request at a time. Ends with
             a definite answer, the end of the session, or the next disconnect.

`_lock` guards the pull state, the clock, the back-off, `_connected` and `_epoch`; nothing blocks under it.

Whether the server owes a heartbeat is known without looking into the mailbox: the inlet counts what arrives, the
taker's reports say what was read, and the difference is unread, or taken and not yet reported.
"""

from __future__ import annotations

import itertools
import logging
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from .._deadline import FOREVER
from .._threads import join_quietly, locked, run_detached, spawn
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerNotFoundError,
    MissedHeartbeatError,
    NatsError,
    PermissionsError,
    StreamNotFoundError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..protocol.headers import header_value
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .inlet import PullInlet, StampedStatus
from .pull_options import ConsumeOptions, message_size
from .pull_state import Backoff, PullState
from .session import Session
from .status import ConsumeAction, Kind, classify, pending_of, to_error
from .target import PullTarget

log = logging.getLogger("jetstream_sync")

_numbers = itertools.count(1)

# Between two tries of the check after a reconnect, while there is no definite answer.
CHECK_WAITS = (0.25, 0.5, 1.0, 2.0)
# Messages taken before they are reported: a lock for each would cost more than the rest of a message's way.
MOST_UNREPORTED = 32


class PullSession(Session):
    """See the module's text."""

    def __init__(
        self,
        target: PullTarget,
        options: ConsumeOptions,
        *,
        check: Callable[[], Any] | None,
        on_error: Callable[[Any], Any] | None,
    ) -> None:
        """Sends the first pull. `check` looks the consumer up after a reconnect."""
        target.nc._check_usable()
        self.target = target
        self.nc = target.nc
        self.acks = target.acks
        self._options = options
        self._check = check
        self._on_error = on_error
        self._by_bytes = options.max_bytes is not None
        self.inlet = PullInlet(self.nc, by_bytes=self._by_bytes)
        self.items = self.inlet.mailbox.items
        self._lock = allocate_lock()
        self._state = PullState(options)
        self._backoff = Backoff()
        self._clock = HeartbeatClock(options.heartbeat, clock=time.monotonic)
        self._connected = False
        self._epoch = 0  # how many connections were lost
        self._needs_check = False
        self._delivered_since_oversize = False
        self._answers_read = 0
        # While a pull is due and may not be sent yet, a report per message would gain nothing.
        threshold = options.threshold_messages or 0
        self._quantum_when_due = max(1, min(MOST_UNREPORTED, threshold // 8))
        self._ended: NatsError | None = None
        self._draining = False
        self._kick = locked()
        self._kicked = False
        self.number = next(_numbers)
        try:
            self.nc._add_listener(self)
            self.nc._open_inlet(self.inlet.with_sid)
            with self._lock:
                # Under the lock and after _add_listener: a change from now on is told, and told later.
                self._connected = self.nc.is_connected
                if not self._connected:
                    self._clock.pause()
            self._pull_if_due()
            self._thread = spawn(f"refill-{self.number}", self._run)
        except BaseException:
            self.end(SubscriptionClosedError("the consume could not start"))
            raise

    @property
    def ended(self) -> NatsError | None:
        """Why the session is over; SubscriptionClosedError after stop() or drain(). None while it runs."""
        return self._ended

    # --- taker ------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> RawMessage:
        """The next thing in the mailbox. Raises TimeoutError, or what ended the session.

        Whatever was taken before must have been reported.
        """
        arrived, answers = self.inlet.handed_over
        if not self.items:
            # More, not merely other: the reader says what it has handed over after it did, and we may be faster.
            if arrived > self._state.received_units or answers > self._answers_read:
                self._recover(arrived, answers)
            if self._ended is not None and not self.inlet.mailbox.closed:
                self.end(self._ended)  # a signal handler raised in the call that was to do this
        try:
            return self.inlet.mailbox.get(timeout)
        except TimeoutError:
            raise
        except NatsError as error:
            if self._ended is None:
                self.end(error)  # the server denied the inbox
            raise

    def is_status(self, raw: RawMessage) -> bool:
        """Judge a message with headers; True when it was a status, which has been dealt with.

        Raises the error of a status that ends the session. Whatever was taken before must have been reported.
        """
        if type(raw) is StampedStatus:
            self._on_status(raw)
            return True
        if self._options.priority.group is not None and raw[2] is not None:
            self.target.learn_pin(self._options.priority, header_value(raw[2], b"Nats-Pin-Id"))
        return False

    def taken(self, count: int, size: int) -> int:
        """The taker took `count` messages of `size` bytes and handed them to the user, who is done with them then.

        Returns how many may be taken before the next report, so that no pull is late.
        """
        with self._lock:
            state = self._state
            # Not more than came: a signal handler may have raised after the last report, which is then repeated.
            unread = self._unread()
            if self._by_bytes:
                size = min(size, unread)
            else:
                count = min(count, unread)
            # In this order: interrupted in between, the count errs on the side that pulls.
            state.processed(count, size)
            self._note_received(count, size)
        if state.due:
            self._refill()
        if self._by_bytes:
            return 1
        until_due = state.until_due
        return min(MOST_UNREPORTED, until_due) if until_due > 0 else self._quantum_when_due

    def _refill(self) -> None:
        """Taker: a pull is due; js-refill sends it later when it cannot be sent now."""
        try:
            sent = self._pull_if_due()
        except BaseException:
            # A signal handler raised: whether the pull has left is not known, so none is relied on.
            with self._lock:
                self._reset_to_unread()
            self._wake()
            raise
        if not sent:
            self._wake()

    def received(self, count: int, size: int) -> None:
        """The taker took `count` messages of `size` bytes out of the mailbox; `processed` follows."""
        with self._lock:
            self._note_received(count, size)

    def processed(self, count: int, size: int) -> None:
        """The user is done with them. By one thread, or under a lock of the callers'.

        Under which nothing may be sent: the pull that is due is js-refill's.
        """
        if self._state.processed(count, size):
            self._wake()

    def size_of(self, raw: RawMessage) -> int:
        return message_size(raw) if self._by_bytes else 0

    @property
    def by_bytes(self) -> bool:
        """Whether sizes count; otherwise they need not be computed."""
        return self._by_bytes

    @property
    def has_group(self) -> bool:
        """Whether messages carry a pin id that `is_status` must see."""
        return self._options.priority.group is not None

    def _recover(self, arrived: int, answers: int) -> None:
        """So much was handed over, all of it was taken, and less was reported: a signal handler raised in between.

        Messages lost like that will come again, for nobody acks them; here they are done with. What a status
        said is not known any more: no pull is relied on.
        """
        if answers > self._answers_read and self.inlet.conclusion is not None:
            self._on_status(self.inlet.conclusion)
        with self._lock:
            lost = arrived - self._state.received_units
            if lost > 0:
                self._state.processed(lost, lost)
                self._state.received(lost, lost)
            if answers > self._answers_read:
                self._answers_read = answers
                self._reset_to_unread()
        self._wake()

    def _note_received(self, count: int, size: int) -> None:
        # Requires holding _lock.
        self._state.received(count, size)
        self._backoff.delivered()
        self._delivered_since_oversize = True

    def _on_status(self, raw: StampedStatus) -> None:
        status = raw.status
        rule = classify(status)
        if rule.consume is ConsumeAction.TERMINAL:
            error = to_error(status, self.target.next_subject.decode())
            self.end(error)
            raise error
        if rule.drops_pin:
            self.target.drop_pin(self._options.priority)
        report = rule.consume in (ConsumeAction.WARN, ConsumeAction.ERROR)
        with self._lock:
            self._state.status(rule, pending_of(raw[2]), raw.arrived)
            backs_off = rule.backs_off
            if rule.kind is Kind.SIZE_EXCEEDS:
                # Nothing fitted since the last one: this message can never fit.
                report = backs_off = not self._delivered_since_oversize
                self._delivered_since_oversize = False
            if backs_off:
                self._backoff.refused(raw.arrived)
            if rule.consume is not ConsumeAction.IGNORE:
                self._answers_read += 1
            if self._connected:
                self._resume_clock()  # paused while this was unread: another pull may still be served
        if report:
            self.report(to_error(status, self.target.next_subject.decode()))
        if rule.consume is not ConsumeAction.IGNORE:
            self._wake()

    def report(self, error: BaseException) -> None:
        """Tell on_error, on the connection's callback thread, or the log."""
        if self._on_error is not None:
            self.nc._callbacks.submit(self._on_error, error)
        else:
            log.warning("consumer %s of %s: %s", self.target.name, self.target.stream_name, error)

    # --- ending -----------------------------------------------------------------------------------

    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        """No further pull, no further message but what is buffered (unless `discard`). The first call counts."""
        if self.nc._forked:
            return  # a forked child does not speak for its parent
        with self._lock:
            if self._ended is None:
                self._ended = reason
        self.nc._remove_listener(self)
        self.nc._close_inlet(self.inlet)
        self.inlet.mailbox.close(reason, discard=discard)
        self._wake()

    def drain(self, reason: NatsError) -> None:
        """No further pull from now on; what the server has sent already is taken in, then the session ends.

        Returns at once and works from anywhere: a short thread waits for the server, drain_timeout at most.
        """
        self.nc._check_process()
        self._draining = True
        run_detached(self.take_in, reason, self.nc._options.drain_timeout)

    def take_in(self, reason: NatsError, timeout: float) -> None:
        """drain(), in this thread: blocks until all that the server has sent has arrived, `timeout` at most."""
        self._draining = True
        try:
            self.nc._drain_inlet(self.inlet, timeout)
        except NatsError:
            pass  # the connection is gone, or silent: what has arrived is all there is
        self.end(reason)

    def join(self, timeout: float) -> None:
        join_quietly(getattr(self, "_thread", None), timeout)

    # --- reader thread ------------------------------------------------------------------------------

    def on_disconnect(self) -> None:
        with self._lock:
            self._connected = False
            self._epoch += 1
            self._clock.pause()

    def on_reconnect(self) -> None:
        with self._lock:
            if self._connected:
                return  # started on this very connection, just before we were told of it
            self._connected = True
            self._reset_to_unread()
            self._backoff.reset()
            self._clock.resume()
            self._needs_check = self._check is not None
        self._wake()

    def on_closed(self, error: NatsError) -> None:
        # What cannot be acknowledged any more comes again: no work is done for it here.
        self.end(error, discard=self.acks and not self._draining)

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self.target.next_subject:
            self.end(error)

    # --- js-refill ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._lock:
            self._kick_refill()

    def _kick_refill(self) -> None:
        # Requires holding _lock.
        if not self._kicked:
            self._kicked = True
            self._kick.release()

    def _run(self) -> None:
        while self._ended is None:
            self._kick.acquire(timeout=self._next_look())
            with self._lock:
                if self._kicked:
                    self._kick.acquire(blocking=False)  # a kick between the wait and here
                    self._kicked = False
            self._turn()

    def _turn(self) -> None:
        silence = self._missed_heartbeat()
        if silence is not None:
            self.report(MissedHeartbeatError(silence))
        self._pull_if_due()
        with self._lock:
            needs_check, self._needs_check = self._needs_check, False
        if needs_check and self._ended is None:
            spawn(f"check-{self.number}", self._run_check, self._epoch)

    def _next_look(self) -> float:
        """How long the refill thread may sleep if nobody kicks it."""
        with self._lock:
            if not self._may_pull():
                return FOREVER
            self._clock.reset(self.inlet.last_arrival)
            wait = self._clock.remaining()
            wait = FOREVER if wait is None else wait
            if self._state.due:
                wait = min(wait, self._backoff.remaining(time.monotonic()))
            return wait

    def _may_pull(self) -> bool:
        # Requires holding _lock. Concluded: the status that says so may be unread, behind messages.
        return self._connected and self._ended is None and not self._draining and self.inlet.conclusion is None

    def _pull_if_due(self) -> bool:
        """Send the next pull if it is due and allowed; False when it is not."""
        with self._lock:
            now = time.monotonic()
            if not self._may_pull() or self._backoff.remaining(now):
                return False
            owed = self._expects_heartbeat()
            pull = self._state.take_pull(now)
            if pull is None:
                return False
            if not owed:
                self._clock.reset(now)  # until this pull there was nothing to hear
            self._resume_clock()
            epoch = self._epoch
        body = self._options.body(pull.batch, pull.max_bytes, self.target.pin_id(self._options.priority))
        frame = self.target.pull_frame(body, self.inlet.wire_subject)
        try:
            self.nc._outbox.publish(frame, len(body))
        except NatsError:
            pass  # disconnected or closed at this moment: on_reconnect or on_closed follows
        if self._epoch != epoch or not self.nc.is_connected:
            # Lost in between, or we are yet to be told so: the frame would go out on the next connection, beside
            # that one's first pull.
            self.nc._outbox.withdraw(frame)
        return True

    def _resume_clock(self) -> None:
        # Requires holding _lock. Whoever resumes it kicks: js-refill sleeps without an end while it stands still.
        if self._clock.paused:
            self._clock.resume()
            self._kick_refill()

    def _missed_heartbeat(self) -> float | None:
        """The length of a silence that is too long; the counters are then reset for a new pull."""
        with self._lock:
            self._clock.reset(self.inlet.last_arrival)
            if not self._may_pull() or not self._clock.due():
                return None
            if not self._expects_heartbeat():
                self._clock.pause()  # until a status is read or a pull is sent
                return None
            silence = self._clock.silence
            self._reset_to_unread()
            return silence

    def _expects_heartbeat(self) -> bool:
        """Whether the server has a pull of ours. Requires holding _lock.

        What is unread has been sent already; and an unread status may have ended the pull.
        """
        if self.inlet.answers != self._answers_read:
            return False
        return self._state.outstanding > self._unread()

    def _unread(self) -> int:
        # Requires holding _lock. What has arrived and was not yet reported by the taker.
        return self.inlet.arrived - self._state.received_units

    def _reset_to_unread(self) -> None:
        # Requires holding _lock. The state looks at one of the two only.
        unread = self._unread()
        self._state.reset(unread, unread)

    # --- js-check -----------------------------------------------------------------------------------

    def _run_check(self, epoch: int) -> None:
        """Look the consumer up until the server says definitely that it is there or not."""
        assert self._check is not None
        for wait in itertools.chain(CHECK_WAITS, itertools.repeat(CHECK_WAITS[-1])):
            try:
                self._check()
                return
            except (ConsumerNotFoundError, StreamNotFoundError) as error:
                self.end(error)
                return
            except (ConnectionLostError, ConnectionClosedError):
                return  # the next reconnect checks again
            except PermissionsError:
                return  # who may pull need not be allowed to look: asking again would be denied again
            except NatsError as error:
                log.debug("consumer check after reconnect: %s", error)
            time.sleep(wait)
            if self._ended is not None or self._epoch != epoch:
                return
