"""The automatic window against its rule, restated here, over random handlers, pauses, disconnects and statuses.

The machine drives a PullState as Refill does and keeps its own books: what is pending, and the window, by the text
of the rule. Both must agree after every step.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetstream_sync.consumers.pull_options import ConsumeOptions
from jetstream_sync.consumers.pull_state import PullState, Window
from jetstream_sync.consumers.status import Pending, classify
from jetstream_sync.protocol.headers import Status

EXPIRES = 30.0
SECONDS = st.sampled_from([0.0, 1e-6, 0.000413, 0.00107, 0.0213, 0.0613, 0.0987, 0.347, 0.971, 1.53, 40.7])


class Rule:
    """The window as the rule says it: numbers only, no pulls."""

    def __init__(self, workers: int, ack_wait: float, max_ack_pending: int, acks: bool) -> None:
        self.n = workers
        self.span = ack_wait / 6 if ack_wait < 6 else 1.0
        self.ceiling = 500
        if 0 < max_ack_pending < 500:
            self.ceiling = max_ack_pending
        self.ceiling = max(self.ceiling, workers)
        self.acks = acks
        self.w = workers if acks else self.ceiling
        self.hold: float | None = None
        self.batch: list[float] = []  # of messages that no report has covered yet
        self.fresh = False

    @property
    def threshold(self) -> int:
        return min(self.n + (self.w - self.n) // 2, self.w - 1)

    def handled(self, seconds: float) -> None:
        """One message; a report covers 32 of them, or fewer when a pull is due."""
        if self.acks:
            self.batch.append(seconds)
            if len(self.batch) == 32:
                self.report()

    def report(self) -> None:
        if self.batch:
            sample = math.fsum(self.batch) / len(self.batch)
            if self.hold is None:
                self.hold = sample
            else:
                self.hold += (sample - self.hold) * (1 - float(Fraction(7, 8) ** len(self.batch)))
            self.batch = []
            self.fresh = True

    def pull_is_due(self) -> None:
        self.report()
        if self.hold is None or not self.fresh:
            return
        self.fresh = False
        fits = self.ceiling if self.hold == 0 else self.n + math.floor(min(self.span * self.n / self.hold, 1e9))
        self.w = max(self.n, min(2 * self.w, fits, self.ceiling))


@dataclass
class WaitingPull:
    left: int
    expires_at: float


class Consuming(RuleBasedStateMachine):
    """A consume with an automatic window, on a server that delivers, ends and refuses pulls."""

    @initialize(
        workers=st.sampled_from([1, 1, 2, 4, 8, 700]),
        ack_wait=st.sampled_from([0.3, 1.0, 2.0, 30.0, 300.0]),
        max_ack_pending=st.sampled_from([-1, 0, 1, 3, 37, 499, 500, 1000]),
        acks=st.sampled_from([True, True, True, False]),
    )
    def begin(self, workers: int, ack_wait: float, max_ack_pending: int, acks: bool) -> None:
        self.model = Rule(workers, ack_wait, max_ack_pending, acks)
        self.window = Window(workers, ack_wait, max_ack_pending, acks=acks)
        self.state = PullState(ConsumeOptions.make(expires=EXPIRES), self.window)
        self.connected = True
        self.now = 0.0
        self.waiting: deque[WaitingPull] = deque()  # what the server has
        self.unread = self.held = 0
        self.pull()

    @property
    def pending(self) -> int:
        return sum(pull.left for pull in self.waiting) + self.unread + self.held

    # --- what the consume does ------------------------------------------------------------------

    def pull(self) -> None:
        """As Refill does: after whatever may have made a pull due."""
        if not self.connected:
            return
        self.now += 0.001
        was_due = self.pending <= self.model.threshold
        assert self.state.due == was_due
        if was_due:
            self.model.pull_is_due()
        units = self.state.take_pull(self.now)
        if was_due and self.model.hold is not None:
            assert self.window.hold is not None
            assert math.isclose(self.window.hold, self.model.hold, rel_tol=1e-9, abs_tol=1e-12)
        if was_due and self.pending <= self.model.threshold:
            assert units == self.model.w - self.pending
            self.waiting.append(WaitingPull(units, self.now + EXPIRES))
        else:
            assert units is None
        assert not self.state.due  # nothing is left to do before something happens

    def take(self, count: int) -> None:
        """Until so many are held. Before a status all are taken, because it is behind them in the mailbox."""
        taken = max(0, min(count - self.held, self.unread))
        self.unread -= taken
        self.held += taken
        self.state.received(taken)

    def tell(self, status: Status, left: int | None) -> None:
        self.take(self.unread + self.held)
        self.now += 0.001
        self.state.status(classify(status), Pending(left, None if left is None else 0), self.now)
        self.pull()

    @rule(seconds=SECONDS, count=st.integers(1, 40))
    def handle(self, seconds: float, count: int) -> None:
        """Messages are taken, held, and done with, one after the other."""
        for _ in range(count):
            self.take(1)
            if not self.held:
                break
            self.pass_time(seconds)
            self.held -= 1
            due = self.pending <= self.model.threshold
            self.model.handled(seconds)
            assert self.state.processed(1, seconds if self.state.measured else None) == due
            if due:
                self.pull()

    @rule(seconds=SECONDS)
    def handle_with_all_workers(self, seconds: float) -> None:
        """All workers take a message before the first is done with its own."""
        self.take(self.model.n)
        self.pass_time(seconds)
        for _ in range(min(self.model.n, self.held)):
            self.held -= 1
            due = self.pending <= self.model.threshold
            self.model.handled(seconds)
            assert self.state.processed(1, seconds if self.state.measured else None) == due
        self.pull()

    @precondition(lambda self: self.connected)
    @rule(seconds=SECONDS, pulls=st.integers(1, 30))
    def run_steadily(self, seconds: float, pulls: int) -> None:
        """There is always a message: each pull is filled."""
        for _ in range(pulls):
            self.deliver(1000)
            self.handle(seconds, max(1, self.pending - self.model.threshold))

    @precondition(lambda self: self.unread and not self.held)
    @rule()
    def lose_a_message_to_a_signal_handler(self) -> None:
        """It is done with, and how long it was held is not known."""
        self.unread -= 1
        self.state.processed(1)
        self.state.received(1)
        self.pull()

    # --- what the server does -------------------------------------------------------------------

    @precondition(lambda self: self.connected)
    @rule(count=st.sampled_from([1, 3, 20, 1000]))
    def deliver(self, count: int) -> None:
        while count and self.waiting:
            sent = min(count, self.waiting[0].left)
            self.unread += sent
            count -= sent
            self.waiting[0].left -= sent
            if not self.waiting[0].left:
                self.waiting.popleft()

    @rule(seconds=st.sampled_from([0.5, 29.0, 100.0]))
    def pause(self, seconds: float) -> None:
        """A paused consumer, or no messages: time passes, and the pulls expire."""
        self.pass_time(seconds)
        self.pull()

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.connected and self.waiting and self.waiting[0].expires_at <= until:
            self.now = max(self.now, self.waiting[0].expires_at)
            self.end_a_pull(Status(408, "Request Timeout"))
        self.now = max(self.now, until)

    @precondition(lambda self: self.connected and self.waiting)
    @rule(status=st.sampled_from([Status(409, "Server Shutdown"), Status(409, "Batch Completed")]))
    def end_a_pull(self, status: Status) -> None:
        self.tell(status, self.waiting.popleft().left)

    @precondition(lambda self: self.connected and self.waiting)
    @rule()
    def change_leader(self) -> None:
        self.waiting.clear()
        self.tell(Status(409, "Leadership Change"), None)

    @precondition(lambda self: self.connected and self.waiting)
    @rule()
    def heartbeat(self) -> None:
        self.tell(Status(100, "Idle Heartbeat"), None)

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        """The pulls are lost; the books say so when the connection is back."""
        self.connected = False

    @precondition(lambda self: not self.connected)
    @rule()
    def reconnect(self) -> None:
        self.connected = True
        self.waiting.clear()
        self.state.reset(self.unread)
        self.pull()

    @precondition(lambda self: self.connected)
    @rule()
    def miss_heartbeats(self) -> None:
        self.waiting.clear()
        self.state.reset(self.unread)
        self.pull()

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def window_follows_the_rule(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.window.size == self.model.w
        assert self.window.threshold == self.model.threshold

    @invariant()
    def never_above_the_ceiling(self) -> None:
        if hasattr(self, "model"):
            assert self.model.n <= self.window.size <= self.window.ceiling == self.model.ceiling

    @invariant()
    def never_stuck(self) -> None:
        """If no message is to come, then because as many as the threshold says are still here."""
        if hasattr(self, "model") and self.connected and not self.waiting:
            assert self.unread + self.held > self.model.threshold

    def teardown(self) -> None:
        """A fast consumer is at the ceiling within 20 pulls, whatever has been before."""
        if not hasattr(self, "model"):
            return
        if not self.connected:
            self.reconnect()
        for _ in range(200):  # until the slow ones of before are forgotten
            self.deliver(1000)
            self.handle(1e-6, 40)
        before = self.window.size
        pulls = 0
        while self.window.size < self.window.ceiling:
            self.run_steadily(1e-6, 1)
            pulls += 1
            assert pulls <= 20, before


Consuming.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWindow = Consuming.TestCase
