"""How much a consume asks the server for, and when (ADR-37). No socket, thread or clock.

A consume limits what is *pending*: requested from the server or received, and not yet processed. It is counted in
units: messages or, with max_bytes, bytes. Four running totals describe the state. They only grow, except that a
refused pull is subtracted from `asked`:

    asked       units requested from the server
    settled     of those, received or given back: they will not come any more
    given back  of those, never received: a status said that they will not come
    processed   received, and the user is done with them

    outstanding = asked - settled                   still to come from the server
    held        = settled - given back - processed  received, waiting for the user
    pending     = outstanding + held                what max_messages / max_bytes limits

A message is processed when the user asks for the next one: the message in the user's hands is pending, too. How
much may be pending is given (max_messages, max_bytes) or automatic: then `Window` says it, anew with each pull.

Invariants: outstanding >= 0, and a pull never makes pending exceed the limit. At the threshold or below,
`take_pull` asks for all that is free: a consume never gets stuck. What is received but not processed stays
pending, however its pull ended. An error of the count does not last: if more is received than was asked for,
`asked` is raised; when a pull is certainly over, what it had outstanding is given back, and nothing else.

All pulls share one reply subject, so a status does not name its pull, and the server serves waiting pulls in turn,
not in order. The total is exact all the same as long as statuses carry pending headers. Without them the pull is
inferred (`status.Ends`) from a queue of pulls in the order of sending; what arrives is assigned to the oldest. One
case cannot be told apart: a pull may reach the new leader before the client receives the old leader's last status.
It is then counted as lost with the others, and the next pull asks for more than is free, once.

Threads: one thread may call `processed` without a lock (several workers call it under the owner's lock); only
`processed` writes that total. All other calls require the owner's lock. No wake-up is lost: `processed` writes its
total before it reads the mark at which a pull is due; js-refill, which moves that mark in `take_pull`, calls
`take_pull` again before it sleeps. A message in the mailbox counts as outstanding until `received` reports it.
How long messages were held is noted by `processed` and evaluated by `take_pull`: `processed` is a hot path.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .pull_options import MOST_PREFETCHED, ConsumeOptions, client_grace
from .status import Ends, Kind, Pending, Rule

# How many messages one measurement of their handling covers at most: a look at the clock for each would cost more.
MOST_REPORTED = 32

_LONG_AGO = float("-inf")


class Window:
    """How many messages may be pending where the user has not said it: what is in hand, buffered and asked for.

    As many as the workers are done with in `span`: a sixth of ack_wait, at most 1 s. So a message waits in the
    buffer for a small part of its ack_wait, and a slow worker does not keep messages from other processes. A
    handler slower than `span` has no prefetch at all.

    It starts with one message per worker and at most doubles with each pull. So a worker that is stopped soon has
    asked for about twice of what it has handled, and the rest loses one delivery of max_deliver.

    Time without a message tells nothing of the handler: waiting, a pause of the consumer, a reconnect and a status
    that ends a pull change nothing here. With ack policy none nothing comes again: the window is the ceiling.
    """

    def __init__(self, workers: int, ack_wait: float, max_ack_pending: int = 0, *, acks: bool = True) -> None:
        """`ack_wait`: the shortest time after which the server delivers again. `max_ack_pending`: more than that
        it does not send; 0 or less: no limit."""
        self.workers = workers
        self.span: float = min(ack_wait / 6, 1.0)
        most = min(MOST_PREFETCHED, max_ack_pending) if max_ack_pending > 0 else MOST_PREFETCHED
        self.ceiling: int = max(workers, most)
        self.size: int = workers if acks else self.ceiling
        self.measured = acks  # whether reports are wanted
        self.hold: float | None = None  # seconds for which a worker holds a message, on average; None: not known
        self._sampled = False  # since the last change

    @property
    def threshold(self) -> int:
        """A pull is due when no more than this is pending: at half of what is there beside one for each worker."""
        return min(self.workers + (self.size - self.workers) // 2, self.size - 1)

    def report(self, count: int, busy: float) -> None:
        """`count` messages, MOST_REPORTED at most, were held for `busy` seconds, all together."""
        sample, hold = busy / count, self.hold
        self.hold = sample if hold is None else hold + (sample - hold) * (1 - 0.875**count)
        self._sampled = True

    def resize(self) -> None:
        """A pull is due. Without a report since the last call the size stays."""
        hold = self.hold
        if hold is None or not self._sampled:
            return
        self._sampled = False
        handled = self.span * self.workers / hold if hold else self.ceiling  # in `span`, beside those in hand
        ahead = int(min(handled, self.ceiling))
        self.size = max(self.workers, min(2 * self.size, self.workers + ahead, self.ceiling))


class _Asked(NamedTuple):
    """A pull that was sent: its range of the total `asked`, its time, and what was outstanding before it."""

    start: int
    end: int
    at: float
    before: int


class PullState:
    """The pending count of a consume, and the pull to send next. The module says which thread may call what."""

    def __init__(self, options: ConsumeOptions, window: Window | None = None) -> None:
        """`window`: for automatic options, in place of their limit and threshold."""
        self._by_bytes = options.by_bytes
        self._window = window
        self.limit: int = options.limit
        self.threshold: int = min(options.threshold, options.limit - 1)  # at the limit nothing is free to ask for
        if window is not None:
            self.limit, self.threshold = window.size, window.threshold
        self._held: deque[tuple[int, float]] = deque()  # messages and for how long they were held, unreported
        self._expires = options.expires
        self._grace = client_grace(options.expires)
        self._pulls: deque[_Asked] = deque()
        self._asked = self._settled = self._given_back = self._processed = 0
        self._base = 0  # units below this mark belong to no known pull: they were unread at the last reset
        self._too_small = 0
        self._set_due()

    # --- state --------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Units requested or received, and not processed."""
        return max(0, self._asked - self._given_back - self._processed)

    @property
    def outstanding(self) -> int:
        """Units requested that `received` has not reported. At 0 the server has no pull and sends no heartbeat."""
        return self._asked - self._settled

    @property
    def received_units(self) -> int:
        """Units that `received` has reported."""
        return self._settled - self._given_back

    @property
    def measured(self) -> bool:
        """Whether `processed` is to be told how long messages were held."""
        return self._window is not None and self._window.measured

    @property
    def due(self) -> bool:
        """Whether `take_pull` has something to do: it returns a pull, or finds that the window has shrunk."""
        return self._processed >= self._due_at

    @property
    def until_due(self) -> int:
        """How many units may be processed before a pull is due; zero or less when one is due."""
        return self._due_at - self._processed

    # --- events -------------------------------------------------------------------------------------

    def take_pull(self, at: float) -> int | None:
        """How many units to ask for now, already counted as asked for; None when enough is pending.

        `at` is the time before it is sent, on the same clock as the arrival of statuses. If it cannot be sent, the
        connection is lost; the `reset` after the reconnect removes it.
        """
        if self._processed < self._due_at:
            return None
        if self._window is not None:
            self._report(self._window)
            self._window.resize()
            self.limit, self.threshold = self._window.size, self._window.threshold
            self._set_due()
            if self._processed < self._due_at:
                return None  # it has shrunk
        room = self.limit - self.pending
        before = self._asked - self._floor()
        self._pulls.append(_Asked(self._asked, self._asked + room, at, before))
        self._asked += room
        self._set_due()
        return room

    def received(self, units: int) -> None:
        """So much was taken from the mailbox."""
        self._settled += units
        if self._settled > self._asked:  # more than was asked for; it is held all the same
            self._asked = self._settled
            self._set_due()
        if self._too_small:
            self._too_small = 0
            self._set_due()
        self._forget_settled()

    def processed(self, units: int, busy: float | None = None) -> bool:
        """The user is done with so much. True when a pull is now due.

        `busy`: for how many seconds they were held; None where it is not `measured`, or not known.
        """
        if busy is not None and units:
            self._held.append((units, busy))  # before the total: a thread that sees the total finds this, too
        self._processed += units
        return self._processed >= self._due_at

    def status(self, rule: Rule, pending: Pending, at: float) -> None:
        """A status, which may be a heartbeat, arrived at `at`."""
        self._end_overdue(at)  # first: what this status gives back must not be assigned to a pull that was lost
        left = pending.bytes if self._by_bytes else pending.messages
        if left is not None:
            # ADR-37: pending headers are subtracted for every status.
            self._give_back(min(left, self._most_left(at, timed_out=rule.kind is Kind.REQUEST_TIMEOUT)))
        elif rule.ends is Ends.NEWEST:
            self._refuse_newest(at)
        elif rule.ends is Ends.OLDEST:
            if self._pulls and self._pulls[0].at <= at:
                self._give_back(self._pulls[0].end - self._settled)
        elif rule.ends is Ends.ALL:
            self._end_all(at)
        if rule.kind is Kind.SIZE_EXCEEDS and self._by_bytes and left is not None:
            self._too_small = left
        self._set_due()

    def reset(self, unread: int = 0) -> None:
        """After a reconnect or missed heartbeats: nothing will come except what is unread in the mailbox."""
        self._give_back(self.outstanding - unread)
        self._asked = self._base = self._settled + unread
        self._pulls.clear()
        self._too_small = 0
        self._set_due()

    # --- arithmetic ---------------------------------------------------------------------------------

    def _report(self, window: Window) -> None:
        """Tell the window what was measured, in reports of up to MOST_REPORTED messages."""
        count, busy = 0, 0.0
        while self._held:
            units, seconds = self._held.popleft()
            if count and count + units > MOST_REPORTED:
                window.report(count, busy)
                count, busy = 0, 0.0
            count += units
            busy += seconds
        if count:
            window.report(count, busy)

    def _set_due(self) -> None:
        threshold = self.threshold
        if self._too_small:
            # The next message is larger than what was left of a pull. A pull for no more than that would be
            # refused at once, so wait until more is free. An empty buffer always asks.
            threshold = max(0, min(threshold, self.limit - self._too_small - 1))
        self._due_at = self._asked - self._given_back - threshold

    def _floor(self) -> int:
        """The mark above which everything asked for is still to come and belongs to a known pull."""
        return max(self._settled, self._base)

    def _give_back(self, units: int) -> None:
        """Of what is outstanding, `units` will not come. A negative number counts as zero."""
        if units > 0:
            self._settled += units
            self._given_back += units
            self._forget_settled()

    def _forget_settled(self) -> None:
        pulls = self._pulls
        while pulls and pulls[0].end <= self._settled:
            pulls.popleft()

    def _most_left(self, at: float, timed_out: bool) -> int:
        """The most that a pull that ended at `at` can have had left.

        Nothing of what was asked for after `at`. And a pull that timed out was sent more than `expires` ago: it
        has at most left what was outstanding before the first younger pull was sent. So the status of a pull from
        before a `reset`, even if it comes after it, gives back nothing that was asked for since.
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
        """The server refused a pull on arrival: the newest one that had been sent when the status came."""
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

    def _end_all(self, at: float) -> None:
        """Every pull sent before `at` is over. Those sent since have not received anything yet."""
        since = sum(pull.end - pull.start for pull in self._pulls if pull.at > at)
        self._give_back(self._asked - self._floor() - since)

    def _end_overdue(self, at: float) -> None:
        """End pulls that must have timed out long ago without a status, for example when the leader was killed."""
        while self._pulls and self._pulls[0].at + self._expires + self._grace <= at:
            self._give_back(self._pulls[0].end - self._settled)


class Backoff:
    """The wait before the next pull after one that was of no use; the caller holds the owner's lock.

    After the first refusal the next pull is sent at once. If it is refused too, the next one waits 0.25 s, then
    0.5 s, then 1 s each time: never more than 5 pulls in a second. A delivered message resets this, but pulls
    after a refusal stay 0.25 s apart.

    A pull that ends in order, and delivered nothing, is followed by the next one no sooner than 0.25 s after it
    was sent. So a pull that waited for messages costs no delay, and a server that ends pulls at once gets 4 of
    them in a second.
    """

    FIRST = 0.25
    MOST = 1.0  # a cluster elects a leader within seconds: a longer wait would only prolong the outage

    def __init__(self) -> None:
        self.refusals: int = 0  # since the last delivered message
        self._last = self._next = self._paced = _LONG_AGO
        self._empty = True  # no message was delivered since a pull ended

    def refused(self, at: float) -> None:
        """A pull was refused at `at`: set when the next one may be sent."""
        delay = min(self.MOST, self.FIRST * 2 ** min(self.refusals - 1, 8)) if self.refusals else 0.0
        self.refusals += 1
        self._next = max(self._next, at + delay, self._last + self.FIRST)
        self._last = self._next

    def ended(self, sent: float) -> None:
        """A pull ended in order; the newest one was sent at `sent`."""
        if self._empty:
            self._paced = sent + self.FIRST
        self._empty = True

    def delivered(self) -> None:
        """A message arrived: pulls are served again."""
        self.refusals = 0
        self._paced = _LONG_AGO
        self._empty = False

    def reset(self) -> None:
        """After a reconnect: the next pull may be sent at once."""
        self.refusals = 0
        self._next = self._paced = _LONG_AGO

    def remaining(self, at: float) -> float:
        """Seconds until the next pull may be sent; 0.0 when it may be sent now."""
        return max(0.0, self._next - at, self._paced - at)
