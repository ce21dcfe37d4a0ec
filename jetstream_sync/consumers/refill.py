"""Refill: the pulls behind one consume() or messages() (ADR-37).

Who does what:

  consuming thread  takes from the mailbox, judges statuses in their order, accounts for what it took and what was
                    processed. At the threshold it sends the next pull itself, because another thread would have to
                    wait for the interpreter while the buffer runs dry.
  js-refill         started by start(). Watches the heartbeat and sends all other pulls: after a reconnect, a
                    status, an alarm, a back-off. Asks the server for more time for what is buffered and what
                    handlers hold (KeepAlive, Progress). Takes no message. Sleeps on its Wakeup, at most until the
                    next heartbeat alarm, the end of a back-off or the next look of the keep-alive. Ends when
                    `ended` is set, which a wake-up always follows: it then does once more what end() does, in case
                    a signal handler raised there. What a drain has left in the buffer, or a handler holds, makes
                    it go on until the consuming thread has come to the end, or hangs.
  reader            tells of disconnects and reconnects; sets fields and wakes js-refill.
  js-check          started by js-refill after a reconnect, and while pulls stay unanswered: looks the consumer up,
                    beside the pulls (see look_up.py).

`_lock` guards the pull state, the clock, the back-off, `_connected` and `_epoch`; nothing blocks under it.

Whether the server owes a heartbeat is known without looking into the mailbox: the pull counts what arrives, the
consuming thread says what it took, and the difference is unread, or taken and not yet accounted for.
"""

from __future__ import annotations

import itertools
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from time import monotonic

from .._deadline import FOREVER, Deadline
from .._threads import Mailbox, Wakeup, join_quietly, spawn
from ..api.message import Source, progress_for, raws_of
from ..errors import (
    ForkError,
    MissedHeartbeatError,
    NatsError,
    PermissionsError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..net.link import Link
from ..protocol.parser import RawMessage
from .heartbeat import HeartbeatClock
from .keep_alive import KeepAlive
from .look_up import Ask, LookUp
from .pull import ArrivedStatus, Pull, PullTarget
from .pull_options import ConsumeOptions
from .pull_state import MOST_REPORTED, Backoff, PullState, Window
from .status import ConsumeAction, Kind, classify, pending_of, to_error
from .take import Endless, ErrorCallback

_numbers = itertools.count(1)

_NEVER = Deadline(None)
# After the end the connection tells this feed nothing any more, not even that it is closed: js-refill looks.
LOOK_AFTER_END = 0.5


class Refill(Endless):
    """See the module's text."""

    ended: NatsError | None = None
    draining: NatsError | None = None

    def __init__(
        self,
        target: PullTarget,
        options: ConsumeOptions,
        *,
        workers: int = 1,
        check: Ask | None,
        on_error: ErrorCallback | None,
    ) -> None:
        """Sends nothing: start() does. `check` looks the consumer up when it may be gone; None: it never is."""
        self.target = target
        self.link: Link = target.link
        self.title: str = target.title
        self.on_error = on_error
        self.ack_wait: float = target.ack_wait
        self.sized: bool = options.by_bytes
        self.inspect: Callable[[RawMessage], bool] | None = target.inspector(options.priority)
        self.number: int = next(_numbers)
        self.box: Mailbox[RawMessage] = Mailbox(before_wait=self.link.outbox.flush)
        self.items: deque[RawMessage] = self.box.items
        self.pull: Pull = Pull(target, self.box, self, sized=self.sized)
        self.source: Source = self.pull
        self._keep_alive = KeepAlive(target.ack_wait, time.monotonic()) if target.acks else None
        if self._keep_alive is not None:
            self.pull.keep_alive, self.pull.leases = self._keep_alive, self._keep_alive.leases
        self._options = options
        self._lock = allocate_lock()
        window = None
        if options.automatic:
            window = Window(workers, target.ack_wait, target.max_ack_pending, acks=target.acks)
        self._state = PullState(options, window)
        self.measured: bool = self._state.measured
        self._held_since = 0.0  # when the first message that is not yet accounted for was handed out
        self._backoff = Backoff()
        self._clock = HeartbeatClock(options.heartbeat, clock=time.monotonic)
        self._connected = self._delivered_since_oversize = self._discard = False
        self._epoch = 0  # how many sessions were lost
        self._answers_read = 0
        self._sent = 0.0  # when the newest pull was sent
        self._wakeup = Wakeup()
        self._look_up = LookUp(check, self.end, self._wakeup.set, self.link.logs.consumer)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        try:
            self.link.open(self.pull)  # the SUB leaves with the next thing that is sent
            with self._lock:
                # Under the lock and after open(): a change from now on is told, and told later.
                self._connected = self.link.connected
                if not self._connected:
                    self._clock.pause()
            self._pull_if_due()
            self._thread = spawn(f"refill-{self.number}", self._run)
        except BaseException:
            self.end(SubscriptionClosedError("the consume could not start"), discard=True)
            raise

    # --- consuming thread -----------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> RawMessage:
        pull = self.pull
        arrived, answers = pull.handed_over
        if not self.items:
            # More, not merely other: the reader says what it has handed over after it did, and we may be faster.
            if arrived > self._state.received_units or answers > self._answers_read:
                self._recover(arrived, answers)
            if self.ended is not None and not self.box.closed:
                self.end(self.ended)  # a signal handler raised in the call that was to do this
        try:
            raw = pull.wait(_NEVER if timeout is None else Deadline(timeout))
            self.begin_hold()
            return raw
        except TimeoutError:
            raise
        except NatsError as error:
            if self.ended is None:
                self.end(error)  # the server denied the inbox
            self._wakeup.set()  # js-refill may have gone on for what a drain had left
            raise

    def account(self, count: int, size: int, processed: bool = True) -> int:
        """The quantum that this returns makes sure that no pull is late."""
        if self.link.forked:
            raise ForkError()
        state, busy = self._state, None
        if self.measured and processed:
            began, now = self._held_since, monotonic()
            self._held_since = now  # the next message is handed out now, or wait() comes first
            busy = now - began
        if count:
            units = size if self.sized else count
            with self._lock:
                if processed:
                    # Not more than came: a signal handler may have raised after the last call, which is repeated.
                    units = min(units, self._unread())
                    # Before received(): interrupted in between, the count errs on the side that pulls.
                    state.processed(units, busy)
                state.received(units)
                self._backoff.delivered()
                self._delivered_since_oversize = True
            if not processed:
                return 1
            if state.due:
                self._refill()
        if self.sized:
            return 1
        until_due = state.until_due
        if until_due > 0:
            return min(MOST_REPORTED, until_due)
        # A pull is due and may not be sent yet: accounting for each message would gain nothing.
        return max(1, min(MOST_REPORTED, state.threshold // 8))

    def _refill(self) -> None:
        """A pull is due; js-refill sends it later when it cannot be sent now."""
        try:
            sent = self._pull_if_due()
        except BaseException:
            # A signal handler raised: whether the pull has left is not known, so none is relied on.
            with self._lock:
                self._reset_to_unread()
            self._wakeup.set()
            raise
        if not sent and self._state.due:
            self._wakeup.set()

    def processed(self, count: int, size: int, busy: float) -> None:
        """By one thread, or under a lock of the callers', under which nothing may be sent: js-refill pulls."""
        if self._state.processed(size if self.sized else count, busy if self.measured else None):
            self._wakeup.set()

    def begin_hold(self) -> None:
        if self.measured:
            self._held_since = monotonic()

    def _recover(self, arrived: int, answers: int) -> None:
        """All of what was handed over was taken, and less was accounted for: a signal handler raised in between.

        Messages lost like that will come again, because they are not acknowledged; here they are done with. What a
        status said is not known any more: no pull is relied on.
        """
        if answers > self._answers_read and self.pull.conclusion is not None:
            self.on_status(self.pull.conclusion)
        with self._lock:
            lost = arrived - self._state.received_units
            if lost > 0:
                self._state.processed(lost)
                self._state.received(lost)
            if answers > self._answers_read:
                self._answers_read = answers
                self._reset_to_unread()
        self._wakeup.set()

    def on_status(self, status: ArrivedStatus) -> None:
        rule, error = classify(status.status), to_error(status.status, self.target.next_subject.decode())
        if rule.consume is ConsumeAction.TERMINAL:
            self.end(error)
            raise error
        if rule.drops_pin:
            self.target.drop_pin(self._options.priority)
        report = rule.consume in (ConsumeAction.WARN, ConsumeAction.ERROR)
        with self._lock:
            self._state.status(rule, pending_of(status[2]), status.arrived)
            backs_off = rule.backs_off
            if rule.kind is Kind.SIZE_EXCEEDS:
                # Nothing fitted since the last one: this message can never fit.
                report = backs_off = not self._delivered_since_oversize
                self._delivered_since_oversize = False
            if rule.kind is Kind.NO_RESPONDERS:
                self._look_up.doubt(self._state.received_units)
            else:
                self._look_up.trust()
            if rule.consume is not ConsumeAction.IGNORE:
                if backs_off:
                    self._backoff.refused(status.arrived)
                else:
                    self._backoff.ended(self._sent)
                self._answers_read += 1
            if self._connected:
                self._resume_clock()  # paused while this was unread: another pull may still be served
        if report:
            self.report(error)
        if rule.consume is not ConsumeAction.IGNORE:
            self._wakeup.set()

    # --- ending ---------------------------------------------------------------------------------------

    def end(self, reason: NatsError, *, discard: bool = False) -> None:
        if self.link.forked:
            return  # a forked child does not speak for its parent
        try:
            with self._lock:
                if self.ended is None:
                    self.ended = reason
                self._discard = self._discard or discard
        finally:
            self._wakeup.set()  # in any case: js-refill finishes what a signal handler interrupts here
        self._finish()

    def _finish(self) -> None:
        assert self.ended is not None
        self._look_up.stop()
        if self._discard:
            self.pull.hand_back(self.ended)
        else:
            self.pull.end()
            self.box.close(self.ended)

    def drain_now(self, reason: NatsError, deadline: Deadline) -> None:
        self.draining = self.draining or reason
        try:
            self.pull.drain(deadline)
        except NatsError:
            pass  # the connection is gone, or silent: what has arrived is all there is
        self.end(reason)

    def join(self, timeout: float) -> None:
        join_quietly(self._thread, timeout)

    # --- reader thread --------------------------------------------------------------------------------

    def disconnected(self) -> None:
        with self._lock:
            self._connected = False
            self._epoch += 1
            self._clock.pause()

    def reconnected(self) -> None:
        with self._lock:
            if self._connected:
                return  # started on this very session, just before we were told of it
            self._connected = True
            self._reset_to_unread()
            self._backoff.reset()
            self._clock.resume()
            self._look_up.want(reconnected=True)
        self._wakeup.set()

    def closing(self, error: NatsError) -> None:
        if self.target.acks and self.draining is None:
            self.end(error, discard=True)

    def closed(self, error: NatsError) -> None:
        # What cannot be acknowledged any more comes again: no work is done for it here.
        self.end(error, discard=self.target.acks and self.draining is None)

    def publish_denied(self, error: PermissionsError) -> None:
        self.end(error)

    # --- js-refill ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.ended is None or self._goes_on():
            wait = self.look()
            self._wakeup.wait(wait if self.ended is None else min(wait, LOOK_AFTER_END))

    def _goes_on(self) -> bool:
        """It has ended: finish that, and say whether there is still something to be kept alive."""
        self._finish()
        keep_alive, progress = self._keep_alive, self.progress
        if keep_alive is None or self.link.closed:
            return False
        left = self.draining is not None and bool(self.items) and not keep_alive.hangs(time.monotonic())
        if left or (progress is not None and progress.at_work):
            keep_alive.rouse()
            return True
        return False

    def rouse(self) -> None:
        """Something has come that may have to be kept alive. Any thread; takes no lock."""
        if self._keep_alive is not None and self._keep_alive.asleep:
            self._keep_alive.rouse()
            self._wakeup.set()

    def _keep_alive_if_due(self) -> None:
        """Ask for more time for what handlers hold and what is buffered, where it was so at the last look."""
        keep_alive, progress, now = self._keep_alive, self.progress, time.monotonic()
        if keep_alive is None or keep_alive.remaining(now):
            return
        added = self.pull.added  # first: see KeepAlive.look()
        buffered = self.items.copy()  # one call into C: atomic
        at_work = progress is not None and progress.at_work
        due = [] if progress is None else raws_of(progress.due())
        old = keep_alive.look(now, added, len(buffered), at_work=at_work, connected=self.link.connected)
        due += itertools.islice(buffered, old)
        if due:
            self.link.outbox.send_all(due, progress_for)
            self.link.outbox.flush()
        if not buffered and not at_work:
            keep_alive.sleep()
            if self.items or (progress is not None and progress.at_work):
                keep_alive.rouse()

    def look(self) -> float:
        """Do what is due; returns after how many seconds to look again unless woken up before."""
        self.end_if_dropped()
        self._check_heartbeat()
        self._pull_if_due()
        self._keep_alive_if_due()
        self._look_up.start_if_wanted(self.number)
        return self._next_look()

    def _next_look(self) -> float:
        now = time.monotonic()
        kept = FOREVER if self._keep_alive is None else self._keep_alive.remaining(now)
        with self._lock:
            if not self._may_pull():
                return kept
            self._clock.reset(self.pull.last_arrival)
            silence = self._clock.remaining()
            back_off = self._backoff.remaining(now) if self._state.due else FOREVER
            return min(kept, back_off if silence is None else min(silence, back_off))

    def _may_pull(self) -> bool:
        assert self._lock.locked()
        # Concluded: the status that says so may be unread, behind messages.
        idle = self.ended is not None or self.draining is not None or self.pull.conclusion is not None
        return self._connected and not idle

    def _pull_if_due(self) -> bool:
        """Send the next pull if it is due and allowed; False when it is not."""
        with self._lock:
            now = time.monotonic()
            if not self._may_pull() or self._backoff.remaining(now):
                return False
            owed = self._expects_heartbeat()
            units = self._state.take_pull(now)
            if units is None:
                return False
            self._sent = now
            if not owed:
                self._clock.reset(now)  # until this pull there was nothing to hear
            self._resume_clock()
            epoch = self._epoch
        body = self._options.body(units, self.target.pin_id(self._options.priority))
        try:
            self.pull.ask(body)
        except NatsError:
            pass  # disconnected or closed at this moment: reconnected() or closed() follows
        if self._epoch != epoch or not self.link.connected:
            # Lost in between, or we are yet to be told so: the request would go out on the next session, beside
            # that one's first pull.
            self.pull.withdraw()
        return True

    def _resume_clock(self) -> None:
        assert self._lock.locked()
        if self._clock.paused:
            self._clock.resume()
            self._wakeup.set()  # js-refill sleeps without an end while the clock is paused

    def _check_heartbeat(self) -> None:
        """Report a silence that is too long, and reset the counters for a new pull."""
        with self._lock:
            self._clock.reset(self.pull.last_arrival)
            if not self._may_pull() or not self._clock.due():
                return
            if not self._expects_heartbeat():
                self._clock.pause()  # until a status is read or a pull is sent
                return
            silence = self._clock.silence
            self._reset_to_unread()
            self._look_up.doubt(self._state.received_units)
        target = self.pull.target
        self.report(MissedHeartbeatError(silence, stream=target.stream_name, consumer=target.name))

    def _expects_heartbeat(self) -> bool:
        """Whether the server has a pull of ours. An unread status may have ended it; what is unread was sent."""
        assert self._lock.locked()
        return self.pull.answers == self._answers_read and self._state.outstanding > self._unread()

    def _unread(self) -> int:
        """What has arrived and is not yet accounted for."""
        assert self._lock.locked()
        return self.pull.arrived - self._state.received_units

    def _reset_to_unread(self) -> None:
        self._state.reset(self._unread())
