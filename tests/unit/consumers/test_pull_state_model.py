"""The pull state against a simulated server: after any sequence of events the counters are right."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetstream_sync.consumers.pull_options import ConsumeOptions
from jetstream_sync.consumers.pull_state import PullState
from jetstream_sync.consumers.status import Pending, classify
from jetstream_sync.protocol.headers import Status

EXPIRES = 10.0
NOTHING = Pending(None, None)
ENDS_WITH_HEADERS = [
    Status(408, "Interest Expired"),
    Status(409, "Server Shutdown"),
    Status(409, "Batch Completed"),
    Status(423, "Nats-Wrong-Pin-Id"),
    Status(499, "Something New"),
]
REFUSALS = [
    Status(400, "Bad Request - heartbeat value too large"),
    Status(408, "Requests Pending"),
    Status(409, "Exceeded MaxRequestBatch of 1"),
    Status(409, "Exceeded MaxWaiting"),
    Status(409, "Something New"),
    Status(423, "Nats-Pin-Id mismatch"),
    Status(499, ""),
]


@dataclass
class WaitingPull:
    """A pull in the server's queue: what is left of it, in the unit that counts."""

    left: int
    expires_at: float


class Server:
    """Serves waiting pulls in turn, as nats-server does; the mailbox holds what it sent, with the time."""

    def __init__(self, by_bytes: bool) -> None:
        self.by_bytes = by_bytes
        self.waiting: deque[WaitingPull] = deque()
        self.mailbox: deque[tuple[float, int | tuple[Status, Pending]]] = deque()
        self.answers: deque[Status] = deque()  # what the next pulls are refused with

    def pull(self, units: int, now: float) -> None:
        if self.answers:
            self.answer(self.answers.popleft(), now)
        else:
            self.waiting.append(WaitingPull(units, now + EXPIRES))

    def answer(self, status: Status, now: float, left: int | None = None) -> None:
        pending = NOTHING
        if left is not None:
            pending = Pending(999_999, left) if self.by_bytes else Pending(left, 0)
        self.mailbox.append((now, (status, pending)))

    def deliver(self, size: int, now: float) -> bool:
        """Send a message to the pull whose turn it is; those too small for it end."""
        cost = size if self.by_bytes else 1
        while self.waiting:
            pull = self.waiting.popleft()
            if cost > pull.left:
                self.answer(Status(409, "Message Size Exceeds MaxBytes"), now, pull.left)
                continue
            pull.left -= cost
            if pull.left:
                self.waiting.append(pull)
            self.mailbox.append((now, size))
            return True
        return False

    def expire(self, now: float) -> None:
        for pull in [pull for pull in self.waiting if pull.expires_at <= now]:
            self.waiting.remove(pull)
            self.answer(Status(408, "Request Timeout"), now, pull.left)


class Consuming(RuleBasedStateMachine):
    """A consume on a server that does everything servers do."""

    @initialize(
        by_bytes=st.booleans(),
        limit=st.sampled_from([1, 2, 7, 20]),
        share=st.sampled_from([0.0, 0.5, 1.0]),
        leader_may_be_killed=st.booleans(),
    )
    def begin(self, by_bytes: bool, limit: int, share: float, leader_may_be_killed: bool) -> None:
        self.leader_may_be_killed = leader_may_be_killed
        threshold = max(1, int(limit * share))
        self.by_bytes, self.limit, self.threshold = by_bytes, limit, threshold
        if by_bytes:
            options = ConsumeOptions.make(max_bytes=limit, threshold_bytes=threshold, expires=EXPIRES)
        else:
            options = ConsumeOptions.make(max_messages=limit, threshold_messages=threshold, expires=EXPIRES)
        self.state = PullState(options)
        self.server = Server(by_bytes)
        self.now = 0.0
        self.connected = True
        self.held: deque[int] = deque()
        # What no client can know of: pulls lost without a word, and pulls still alive after a reset. The
        # count may then be off, until the next reset or until it has healed.
        self.lost = self.alive_after_reset = False
        # Pulls that were alive after a reset may have brought more than the limit. It stays until it is processed.
        self.surplus = 0
        self.killed_at = 0.0
        self.refill()

    @property
    def exact(self) -> bool:
        return not self.lost and not self.alive_after_reset

    # --- what the consume does ------------------------------------------------------------------

    def cost(self, size: int) -> int:
        return size if self.by_bytes else 1

    def tick(self) -> float:
        self.now += 0.001
        return self.now

    @rule()
    def refill(self) -> None:
        if not self.connected:
            return
        units = self.state.take_pull(self.tick())
        if units is None:
            return
        assert 1 <= units <= self.limit
        assert self.state.pending == self.limit
        if self.exact:
            assert units + self.really_pending() <= self.limit
        self.server.pull(units, self.tick())

    @rule(count=st.integers(1, 8))
    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.server.mailbox))):
            at, item = self.server.mailbox.popleft()
            if isinstance(item, int):
                self.state.received(self.cost(item))
                self.held.append(item)
            else:
                self.state.status(classify(item[0]), item[1], at)
                if (
                    item[0].code == 503 and at > self.killed_at
                ):  # tells that there was no leader, so that older pulls are lost
                    self.lost = False

    @rule(count=st.integers(1, 8))
    def process(self, count: int) -> None:
        for _ in range(min(count, len(self.held))):
            assert self.state.processed(self.cost(self.held.popleft())) == self.state.due

    @precondition(lambda self: self.connected and not self.server.waiting and not self.server.mailbox)
    @rule()
    def miss_heartbeats(self) -> None:
        self.reset()
        self.lost = self.alive_after_reset = False

    @rule(size=st.integers(1, 5), times=st.integers(1, 10))
    def flow(self, size: int, times: int) -> None:
        """The usual case: messages are sent, taken and processed, and the next pull is sent."""
        for _ in range(times):
            self.deliver(size, 1)
            self.read(1)
            self.process(1)
            self.refill()

    def reset(self) -> None:
        unread = [item for _, item in self.server.mailbox if isinstance(item, int)]
        self.state.reset(sum(map(self.cost, unread)))

    # --- what the server does -------------------------------------------------------------------

    @rule(size=st.integers(1, 22), times=st.integers(1, 6))
    def deliver(self, size: int, times: int) -> None:
        for _ in range(times):
            self.server.deliver(size, self.tick())

    @rule(seconds=st.sampled_from([0.5, 4.0, 12.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.server.expire(self.now)

    @precondition(lambda self: self.server.waiting)
    @rule(status=st.sampled_from(ENDS_WITH_HEADERS), index=st.integers(0, 5))
    def end_a_pull(self, status: Status, index: int) -> None:
        pull = self.server.waiting[index % len(self.server.waiting)]
        self.server.waiting.remove(pull)
        self.server.answer(status, self.tick(), pull.left)

    @precondition(lambda self: self.server.waiting)
    @rule()
    def heartbeat(self) -> None:
        self.server.answer(Status(100, "Idle Heartbeat"), self.tick())

    @precondition(lambda self: self.server.waiting)
    @rule()
    def change_leader(self) -> None:
        self.server.waiting.clear()
        self.server.answer(Status(409, "Leadership Change"), self.tick())

    @rule()
    def unpin_on_an_old_server(self) -> None:
        now = self.tick()
        for _ in range(len(self.server.waiting)):
            self.server.waiting.popleft()
            self.server.answer(Status(423, "Nats-Wrong-Pin-Id"), now)

    @rule(refusals=st.lists(st.sampled_from(REFUSALS), min_size=1, max_size=3))
    def refuse_the_next_pulls(self, refusals: list[Status]) -> None:
        self.server.answers.extend(refusals)

    @precondition(lambda self: self.leader_may_be_killed)
    @rule(election=st.integers(0, 3))
    def kill_leader(self, election: int) -> None:
        """Its pulls are lost without a status; until the next leader is elected, pulls get no responders."""
        self.lost = self.lost or bool(self.server.waiting)
        self.killed_at = self.tick()
        self.server.waiting.clear()
        self.server.answers.extend([Status(503, "")] * election)

    # --- what the connection does ---------------------------------------------------------------

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        self.connected = False

    @precondition(lambda self: not self.connected)
    @rule(quickly=st.sampled_from([False, False, True]))
    def reconnect(self, quickly: bool) -> None:
        self.connected = True
        # Quickly: the server still has the old pulls, and serves them to the same inbox.
        self.lost, self.alive_after_reset = False, quickly and bool(self.server.waiting)
        if not quickly:
            self.server.waiting.clear()
        self.surplus = self.really_pending()
        self.reset()
        self.refill()

    # --- what must hold -------------------------------------------------------------------------

    def really_pending(self) -> int:
        unread = sum(self.cost(item) for _, item in self.server.mailbox if isinstance(item, int))
        return sum(pull.left for pull in self.server.waiting) + unread + sum(map(self.cost, self.held))

    def blocked(self) -> bool:
        """Whether what is held leaves no reason to pull."""
        held = sum(map(self.cost, self.held))
        return held > min(self.threshold, self.limit - 1) or (self.by_bytes and held > 0)

    @invariant()
    def counters_make_sense(self) -> None:
        state = self.state
        assert state.outstanding >= 0
        assert state.pending >= sum(map(self.cost, self.held))
        assert state.pending == state.outstanding + sum(map(self.cost, self.held))
        assert state.due == (state.pending <= self.threshold and state.pending < self.limit) or self.by_bytes
        assert len(state._pulls) <= self.limit

    @invariant()
    def count_is_right_once_all_is_read(self) -> None:
        if self.exact and self.connected and not self.server.mailbox:
            assert self.state.outstanding == sum(pull.left for pull in self.server.waiting)

    @invariant()
    def consume_is_never_stuck(self) -> None:
        if self.exact and not self.server.mailbox and not self.server.waiting and not self.blocked():
            assert self.state.due

    @invariant()
    def buffer_is_not_exceeded(self) -> None:
        if self.exact:
            self.surplus = min(self.surplus, self.really_pending())
            assert self.really_pending() <= max(self.limit, self.surplus, sum(map(self.cost, self.held)))

    def teardown(self) -> None:
        """Left in peace, the count is right again, and what the server owes is more than the threshold."""
        if not hasattr(self, "server"):
            return
        if not self.connected:
            self.reconnect(quickly=True)
        self.server.answers.clear()
        peace = self.now + 4 * EXPIRES
        while self.now < peace:
            self.settle()
            if not self.server.waiting:  # silence: no pull, no heartbeat
                assert not self.exact
                self.reset()
                self.refill()
            assert self.server.waiting
            self.now = max(self.now, min(pull.expires_at for pull in self.server.waiting))
            self.server.expire(self.now)
            if self.server.waiting:
                self.heartbeat()
        self.settle()
        assert sum(pull.left for pull in self.server.waiting) == self.state.outstanding
        assert min(self.threshold, self.limit - 1) < self.state.outstanding <= self.limit

    def settle(self) -> None:
        self.read(len(self.server.mailbox))
        self.process(len(self.held))
        for _ in range(3):
            self.refill()
            self.read(len(self.server.mailbox))


Consuming.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestConsuming = Consuming.TestCase
