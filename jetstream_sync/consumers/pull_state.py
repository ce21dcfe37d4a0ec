"""How much a consume asks the server for, and when (ADR-37). Pure: no socket, threading or time.

A consume limits what is *pending*: asked of the server or received, and not yet processed. One unit counts,
messages or (with max_bytes) bytes; `batch` is then a formality. Four running totals, never wound back by more
than a refused pull, say everything:

    asked       units asked of the server
    settled     of those, received or given back: they will not come any more
    given back  of those, never received: a status said that they will not come
    processed   received and done with

    outstanding = asked - settled                   still to come from the server
    held        = settled - given back - processed  received, waiting for the user
    pending     = outstanding + held                what max_messages / max_bytes limits

Invariants, after any sequence of calls:

- outstanding >= 0, and a pull never makes pending more than the limit;
- when pending is at the threshold or below, `take_pull` asks for all that is free: no state is stuck;
- what is received but not processed stays pending, however its pull ended;
- an error of the count does not last: more received than asked lifts `asked`; what a pull certainly over
  still has outstanding is given back; a timed-out pull gives back nothing that was asked for after it.

All pulls share one reply subject, so a status does not name its pull, and the server serves waiting pulls in
turn, not in order. The sum is exact all the same as long as statuses carry pending headers. Without them the
pull is inferred (`status.Ends`) from a queue of pulls in order of publication, in which what came is booked
on the oldest. One thing cannot be known: a pull that reached the new leader before the old one's farewell reached
us is taken for lost with the others, and the next pull then asks for more than is free, once.

Threads: `processed` may be called without a lock by one thread (with several workers: under the owner's
lock); it alone writes the processed total. Everything else requires the owner's lock. No wake-up is lost:
`processed` writes its total before it reads the mark at which a pull is due, and the refilling thread, which
moves that mark in `take_pull`, asks `take_pull` again before it sleeps. Messages and statuses are reported in
the order of the mailbox. Until `received` says so, a message in the mailbox counts as outstanding: just as
pending as when it is held.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .pull_options import BATCH_FOR_BYTES, ConsumeOptions, client_grace
from .status import Ends, Kind, Pending, Rule

__all__ = ["Backoff", "PullAmount", "PullState"]


class PullAmount(NamedTuple):
    """What the next pull request asks for; max_bytes 0 means no limit."""

    batch: int
    max_bytes: int


class _Asked(NamedTuple):
    """A published pull: its range of the asked total, its time, and what was outstanding before it."""

    start: int
    end: int
    at: float
    before: int


class PullState:
    """The pending count of one consume, and the next pull or none. Who may call what: see the module."""

    __slots__ = (
        "_asked",
        "_base",
        "_by_bytes",
        "_due_at",
        "_expires",
        "_given_back",
        "_grace",
        "_limit",
        "_processed",
        "_pulls",
        "_settled",
        "_threshold",
        "_too_small",
    )

    def __init__(self, options: ConsumeOptions) -> None:
        self._by_bytes = options.max_bytes is not None
        limit = options.max_bytes if self._by_bytes else options.max_messages
        threshold = options.threshold_bytes if self._by_bytes else options.threshold_messages
        assert limit is not None  # ConsumeOptions.make sees to both
        assert threshold is not None
        self._limit = limit
        self._threshold = min(threshold, limit - 1)  # at the limit there is nothing to ask for
        self._expires = options.expires
        self._grace = client_grace(options.expires)
        self._pulls: deque[_Asked] = deque()
        self._asked = self._settled = self._given_back = self._processed = 0
        self._base = 0  # what was asked below this mark is not of a known pull: unread at the last reset
        self._too_small = 0
        self._due_at = 0
        self._set_due()

    # --- what is known ------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Units asked for or received, and not processed."""
        return max(0, self._asked - self._given_back - self._processed)

    @property
    def outstanding(self) -> int:
        """Units asked for that `received` has not seen. With no pull at the server no heartbeat comes."""
        return self._asked - self._settled

    @property
    def received_units(self) -> int:
        """Units that `received` has seen."""
        return self._settled - self._given_back

    @property
    def due(self) -> bool:
        """Whether `take_pull` would return a pull."""
        return self._processed >= self._due_at

    @property
    def until_due(self) -> int:
        """How many units may be processed before a pull is due; not above zero when one is due."""
        return self._due_at - self._processed

    # --- what happens -------------------------------------------------------------------------------

    def take_pull(self, at: float) -> PullAmount | None:
        """The pull to publish now, already counted as asked for; None when enough is pending.

        `at` is the time before it is sent, on the clock by which statuses arrive. A pull that could not be
        sent is forgotten by `reset`, which a reconnect brings.
        """
        if self._processed < self._due_at:
            return None
        room = self._limit - self.pending
        before = self._asked - self._floor()
        self._pulls.append(_Asked(self._asked, self._asked + room, at, before))
        self._asked += room
        self._set_due()
        return PullAmount(BATCH_FOR_BYTES, room) if self._by_bytes else PullAmount(room, 0)

    def received(self, count: int, size: int) -> None:
        """`count` messages came out of the mailbox, `size` bytes in all (it matters with max_bytes only)."""
        self._settled += size if self._by_bytes else count
        if self._settled > self._asked:  # more than was known to be coming: held all the same
            self._asked = self._settled
            self._set_due()
        if self._too_small:
            self._too_small = 0
            self._set_due()
        self._forget_settled()

    def processed(self, count: int, size: int) -> bool:
        """The user is done with `count` messages of `size` bytes. True when a pull is now due."""
        self._processed += size if self._by_bytes else count
        return self._processed >= self._due_at

    def status(self, rule: Rule, pending: Pending, at: float) -> None:
        """A status, heartbeats included, that arrived at `at`."""
        self._end_overdue(at)  # first: what this status gives back must not be booked on a pull long lost
        left = pending.bytes if self._by_bytes else pending.messages
        if left is not None:
            # ADR-37: pending headers are subtracted whatever the status.
            self._give_back(min(left, self._most_left(at, timed_out=rule.kind is Kind.REQUEST_TIMEOUT)))
        elif rule.ends is Ends.NEWEST:
            self._refuse_newest(at)
        elif rule.ends is Ends.OLDEST:
            self._end_oldest(at)
        elif rule.ends is Ends.ALL:
            self._end_all(at)
        if rule.kind is Kind.SIZE_EXCEEDS and self._by_bytes and left is not None:
            self._too_small = left
        self._set_due()

    def reset(self, unread_count: int = 0, unread_size: int = 0) -> None:
        """After a reconnect or missed heartbeats: nothing is to come but what is unread in the mailbox."""
        unread = unread_size if self._by_bytes else unread_count
        self._give_back(self.outstanding - unread)
        self._asked = self._base = self._settled + unread
        self._pulls.clear()
        self._too_small = 0
        self._set_due()

    # --- arithmetic ---------------------------------------------------------------------------------

    def _set_due(self) -> None:
        threshold = self._threshold
        if self._too_small:
            # The next message is larger than what was left of a pull. Asking for no more than that again
            # would be refused again, at once: wait until more is free. An empty buffer always asks.
            threshold = max(0, min(threshold, self._limit - self._too_small - 1))
        self._due_at = self._asked - self._given_back - threshold

    def _floor(self) -> int:
        """The mark above which everything asked for is still to come, of pulls that are known."""
        return max(self._settled, self._base)

    def _give_back(self, units: int) -> None:
        """Of what is outstanding, `units` will not come; below zero counts as none."""
        if units > 0:
            self._settled += units
            self._given_back += units
            self._forget_settled()

    def _forget_settled(self) -> None:
        pulls = self._pulls
        while pulls and pulls[0].end <= self._settled:
            pulls.popleft()

    def _most_left(self, at: float, timed_out: bool) -> int:
        """The most that a pull which ended at `at` can have had left.

        Nothing of what was asked for after `at`. And a pull that timed out is older than `expires`: it cannot have
        more left than was outstanding when one followed that is younger. So a status of a pull from before a
        `reset`, read after it or sent after it, gives back nothing of what was asked for since.
        """
        floor = self._floor()
        most = self._asked - floor
        for pull in self._pulls:
            if pull.at > at:
                return max(0, min(most, pull.start - floor))
            if timed_out and pull.at + self._expires > at:
                most = min(most, pull.before)
        return most

    def _refuse_newest(self, at: float) -> None:
        """A pull was refused on arrival: the newest one that was published when the status came."""
        later: list[_Asked] = []
        while self._pulls and self._pulls[-1].at > at:
            later.append(self._pulls.pop())
        if self._pulls:
            refused = self._pulls.pop()
            share = refused.end - max(refused.start, self._settled)
            later = [
                pull._replace(start=pull.start - share, end=pull.end - share, before=max(0, pull.before - share))
                for pull in later
            ]
            self._asked -= share
        self._pulls.extend(reversed(later))

    def _end_oldest(self, at: float) -> None:
        if self._pulls and self._pulls[0].at <= at:
            self._give_back(self._pulls[0].end - self._settled)

    def _end_all(self, at: float) -> None:
        """Every pull published before `at` is over; those published since have had nothing delivered yet."""
        since = sum(pull.end - pull.start for pull in self._pulls if pull.at > at)
        self._give_back(self._asked - self._floor() - since)

    def _end_overdue(self, at: float) -> None:
        """A pull that should have timed out long ago is over, though no status said so (a killed leader)."""
        while self._pulls and self._pulls[0].at + self._expires + self._grace <= at:
            self._give_back(self._pulls[0].end - self._settled)


class Backoff:
    """Keeps the recovery from refused pulls from being a hot loop; requires the owner's lock.

    The first recovery is immediate. Refused again, the next pull waits 0.25 s, then 0.5 s, then 1 s each
    time: never more than 5 pulls in a second. A delivered message starts over, but recoveries stay 0.25 s
    apart even so.
    """

    __slots__ = ("_last", "_next", "_refusals")

    FIRST = 0.25
    MOST = 1.0  # a leader is found within seconds: waiting longer would only add to the outage

    def __init__(self) -> None:
        self._refusals = 0
        self._last = float("-inf")
        self._next = float("-inf")

    @property
    def refusals(self) -> int:
        """Refusals since the last delivered message."""
        return self._refusals

    def refused(self, at: float) -> None:
        """A pull was refused at `at`: sets when the next one may go out."""
        delay = min(self.MOST, self.FIRST * 2 ** min(self._refusals - 1, 8)) if self._refusals else 0.0
        self._refusals += 1
        self._next = max(self._next, at + delay, self._last + self.FIRST)
        self._last = self._next

    def delivered(self) -> None:
        """A message arrived: pulls are served again."""
        self._refusals = 0

    def reset(self) -> None:
        """A new connection: the next pull goes out at once."""
        self._refusals = 0
        self._next = float("-inf")

    def remaining(self, at: float) -> float:
        """Seconds until the next pull may go out; 0.0 when it may now."""
        return max(0.0, self._next - at)
