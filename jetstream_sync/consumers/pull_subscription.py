"""Pull subscriptions (ADR-13): fetch() asks for what is there, and only then waits for more.

No thread. Each fetch of several messages has a pull of its own. Single fetches share one pull, subscribed to a
wildcard, for their first, no-wait try. Messages come back under their own subjects, so nothing on a shared inbox
says whose they are: one try at a time is under way there (`_turn`), and one that is given up takes the inbox with
it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .._deadline import Deadline, seconds
from .._threads import Slot, Waiters
from ..api.client import ApiClient
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.kinds import at_least
from ..api.message import JetStreamMessage
from ..errors import NatsError, OutboundBufferLimitError, SubscriptionClosedError, TimeoutError
from ..protocol.subjects import next_nuid
from .binding import Found, SubscribeRequest, find_or_create
from .fetch import BatchFeed
from .pull import ArrivedStatus, Pull, PullTarget
from .pull_options import FetchOptions, pull_body
from .status import FetchAction, Kind, classify, to_error
from .take import loop

# ADR-13: the server's expiry lies this far before the client's timeout, or a tenth of it for short ones.
MARGIN = 0.1

# How long each pull of a fetch without a timeout waits.
ENDLESS_SECONDS = 30.0

# What a no-wait pull is answered with when there is nothing, or not yet.
_NOTHING_NOW = (Kind.NO_MESSAGES, Kind.REQUEST_TIMEOUT, Kind.REQUESTS_PENDING)


class PullSubscription:
    """What `js.pull_subscribe()` returns. Thread-safe: several threads may fetch at once.

    As a context manager it unsubscribes when the block is left.
    """

    __slots__ = ("__weakref__", "_api", "_closed", "_created", "_link", "_single", "_target", "_turn", "_waiting")

    def __init__(self, client: ApiClient, found: Found, single: SinglePull) -> None:
        self._link = client.link
        self._api = ConsumerApi(client)
        self._target = single.target
        self._created = found.created
        self._closed = False
        self._turn: dict[str, object] = {}  # "holder": an object of the try that has the turn; atomic operations
        self._waiting = Waiters()
        self._single = single  # replaced by the thread that has the turn

    @property
    def stream_name(self) -> str:
        """The stream it reads."""
        return self._target.stream_name

    @property
    def consumer_name(self) -> str:
        """The consumer's name on the server."""
        return self._target.name

    def fetch(self, batch: int = 1, timeout: float | timedelta | None = 5.0) -> list[JetStreamMessage]:
        """Up to `batch` messages: what is there at once, or else the first to come and what is there with it.

        Waits up to `timeout` seconds for a first message; None waits without a limit. Never returns an empty list.
        Raises TimeoutError when no message came, NotConnectedError when there was no connection; PullError or one
        of its kinds, NoRespondersError, PermissionsError, ConnectionLostError when the pull failed and nothing had
        come before.
        """
        at_least("batch", batch, 1)
        if timeout is not None:
            limit = seconds(timeout)
            if not limit:
                raise ValueError(f"timeout must be more than 0 s: {timeout!r}")
            return self._fetch(batch, limit)
        while True:
            try:
                return self._fetch(batch, ENDLESS_SECONDS)
            except OutboundBufferLimitError:
                raise  # nothing may wait for a connection (pending_size=-1)
            except TimeoutError:
                pass  # pull anew: so a pull that a server has forgotten is found out

    def _fetch(self, batch: int, limit: float) -> list[JetStreamMessage]:
        self._link.check_usable()
        if self._closed:
            raise SubscriptionClosedError("the pull subscription was unsubscribed")
        deadline = Deadline(limit)
        message = self._try_single(deadline) if batch == 1 else None
        if message is not None:
            return [message]
        feed = _SubscriptionFeed(self._target, batch, limit, deadline)
        messages: list[JetStreamMessage] = []
        try:
            feed.start()
            messages.extend(loop(feed, when_done=True))
        except NatsError:
            if not messages:
                raise  # otherwise it is the next fetch's, if it lasts
        if not messages:
            raise TimeoutError("no message came in time")
        return messages

    def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when there is none."""
        return self._api.info(self.stream_name, self.consumer_name)

    def unsubscribe(self) -> None:
        """End it, and delete the consumer if this subscription created it; raises when that fails. Idempotent."""
        self._link.check_process()
        self._closed = True
        self._single.end()  # a try that begins meanwhile looks at _closed when it ends
        mine = self._created
        try:
            self._created = False
            if mine:
                self._api.delete(self.stream_name, self.consumer_name)
        except BaseException:
            self._created = mine
            raise

    def __enter__(self) -> PullSubscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._link.forked:
            return
        try:
            self.unsubscribe()
        except NatsError as failed:
            if error is None and not self._link.closed:
                raise
            self._link.report(failed)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<PullSubscription of consumer {self.consumer_name!r}, stream {self.stream_name!r}: {state}>"

    # --- single fetches -----------------------------------------------------------------------------

    def _try_single(self, deadline: Deadline) -> JetStreamMessage | None:
        """The next message if there is one now. ADR-13: over the wildcard inbox, without a SUB of its own."""
        me = object()
        try:  # the turn is taken inside: a signal handler may raise as soon as it is
            if not self._waiting.wait_until(lambda: self._turn.setdefault("holder", me) is me, deadline):
                raise TimeoutError("no message came in time: other single fetches were under way")
            if self._single.broken or self._single.ended:
                self._single = SinglePull(self._target)
            return self._single.exchange(deadline)
        finally:
            try:
                self._end_turn(me)
            except BaseException:  # a signal handler raised in the midst of it: begin anew
                self._end_turn(me)
                raise

    def _end_turn(self, me: object) -> None:
        if self._turn.get("holder") is me:
            # Given up without a reply, or with an unusual one: what still comes must not be taken for another's.
            # Or unsubscribed, perhaps before the pull was subscribed.
            if self._single.asked or self._closed:
                self._single.end()
            self._turn.clear()
        self._waiting.wake_all()


class SinglePull(Pull):
    """Subscribed to a wildcard; each try has a reply subject of its own below it."""

    def __init__(self, target: PullTarget) -> None:
        super().__init__(target, Slot())
        self._prefix = self.wire_subject
        self.wire_subject: bytes = self._prefix + b".*"

    def exchange(self, deadline: Deadline) -> JetStreamMessage | None:
        """Ask for one message that is there now; None when there is none."""
        self.ask(pull_body(1, no_wait=True), self._prefix + b"." + next_nuid().encode())
        raw = self.wait(deadline)
        if type(raw) is not ArrivedStatus:
            self.rest()
            return JetStreamMessage(raw, self.link, self.target.single)
        if classify(raw.status).kind not in _NOTHING_NOW:
            raise to_error(raw.status, self.target.next_subject.decode())
        self.rest()
        return None


class _SubscriptionFeed(BatchFeed):
    """A fetch over a pull of its own. For several messages it asks without waiting first."""

    def __init__(self, target: PullTarget, batch: int, timeout: float, deadline: Deadline) -> None:
        self._timeout = timeout
        self._deadline = deadline
        expires_ns = self._expires_ns() if batch == 1 else 0
        super().__init__(target, FetchOptions(batch, None, expires_ns, 0, no_wait=batch > 1), deadline)
        self._waits = batch == 1

    def on_status(self, status: ArrivedStatus) -> None:
        rule = classify(status.status)
        if rule.pull_subscription is FetchAction.IGNORE:
            return
        if not self._waits and not self.received and rule.kind in _NOTHING_NOW:
            self._waits = True
            # ADR-13: the status that answered the first pull counts, too: for a batch of 5 it is UNSUB … 6.
            self.link.limit(self.pull, self.pull.delivered + self.options.batch)
            # Both: the server waits for a first message, and ends the pull as soon as it has no other.
            self.pull.ask(pull_body(self.options.batch, expires_ns=self._expires_ns(), no_wait=True))
            return
        self.end()
        if self.received:
            raise SubscriptionClosedError("what came before a status is the result")
        error = to_error(status.status, self.pull.target.next_subject.decode())
        if rule.pull_subscription is FetchAction.ERROR or status.status.code == 409:
            raise error
        raise TimeoutError(f"no message came within {self._timeout} s") from error

    def _expires_ns(self) -> int:
        """ADR-13: shorter than the client's own timeout, or than what the first pull has left of it."""
        margin = min(MARGIN, self._timeout / 10)
        left = self._deadline.wait_time()
        base = self._timeout if self._timeout - left < margin / 2 else left
        return max(1, round((base - margin) * 1_000_000_000))


def subscribe_pull(client: ApiClient, request: SubscribeRequest) -> PullSubscription:
    """ADR-15's workflow for a pull subscription: look up, or create."""
    found = find_or_create(client, request)
    single = SinglePull(PullTarget(client, found.info))
    try:
        client.link.open(single)
        return PullSubscription(client, found, single)
    except BaseException:  # a signal handler raised: no caller gets to hold the subscription
        single.end()
        raise
