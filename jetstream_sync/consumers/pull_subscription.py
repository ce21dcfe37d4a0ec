"""Pull subscriptions (ADR-13): fetch() asks for what is there, and only then waits for more.

No thread. Each fetch of several messages has an inbox of its own; single fetches share one wildcard inbox for
their first, no-wait try. Messages come back under their own subjects, so on a shared inbox nobody could tell whose
they are: only one try at a time is under way there (`_single_turn`), and one that is given up takes the inbox with
it.
"""

from __future__ import annotations

from _thread import allocate_lock
from datetime import timedelta
from types import TracebackType

from .._deadline import Deadline, seconds
from ..api.client import ApiClient
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage
from ..errors import ConnectionLostError, NatsError, SubscriptionClosedError, TimeoutError
from ..net.connection import Connection
from ..net.outbox import Ephemeral
from ..protocol.headers import Status
from ..protocol.subjects import next_nuid
from .binding import Found, SubscribeRequest, find_or_create
from .fetch import PullGuard
from .inlet import PullInlet, StampedStatus
from .pull_request import pull_body
from .status import FetchVerdict, Kind, classify, to_error
from .target import PullTarget

# ADR-13: the server's expiry lies this far before the client's timeout, or a tenth of it for short ones.
MARGIN = 0.1
SHORT_TIMEOUT = 1.0

# What a no-wait pull is answered with when there is nothing, or not yet.
_NOTHING_NOW = (Kind.NO_MESSAGES, Kind.REQUEST_TIMEOUT, Kind.REQUESTS_PENDING)


class PullSubscription:
    """What `js.pull_subscribe()` returns. Thread-safe: several threads may fetch at once.

    As a context manager it unsubscribes when the block is left.
    """

    items = ()  # acks of fetched messages leave at once

    def __init__(self, client: ApiClient, found: Found) -> None:
        self._nc = client.nc
        self._api = ConsumerApi(client)
        self._target = PullTarget(client, found.info)
        self.acks = self._target.acks
        self._created = found.created
        self._closed = False
        self._single_turn = allocate_lock()  # held during the no-wait try of a single fetch; guards _single
        self._single = _SingleInlet(self._nc)
        self._nc._open_inlet(self._single.with_sid)

    @property
    def stream_name(self) -> str:
        return self._target.stream_name

    @property
    def consumer_name(self) -> str:
        return self._target.name

    def fetch(self, batch: int = 1, timeout: float | timedelta = 5.0) -> list[JetStreamMessage]:
        """Up to `batch` messages: what is there at once, or else what comes within `timeout` seconds.

        Never returns an empty list. Raises TimeoutError when no message came; PullError or one of its kinds,
        NoRespondersError, PermissionsError, ConnectionLostError when the pull failed and nothing had come before.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ValueError(f"batch must be an int of at least 1: {batch!r}")
        limit = seconds(timeout)
        if not limit:
            raise ValueError(f"timeout must be more than 0 s: {timeout!r}")
        self._nc._check_usable()
        if self._closed:
            raise SubscriptionClosedError("the pull subscription was unsubscribed")
        deadline = Deadline(limit)
        if batch == 1:
            message = self._try_single(deadline)
            if message is not None:
                return [message]
        return _Fetch(self, batch, limit, deadline).run(no_wait_first=batch > 1)

    def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when there is none."""
        return self._api.info(self.stream_name, self.consumer_name)

    def unsubscribe(self) -> None:
        """End it, and delete the consumer if this subscription created it; raises when that fails. Idempotent."""
        self._nc._check_process()
        self._closed = True
        with self._single_turn:
            self._nc._close_inlet(self._single)
        mine, self._created = self._created, False
        if mine:
            try:
                self._api.delete(self.stream_name, self.consumer_name)
            except BaseException:
                self._created = True
                raise

    def __enter__(self) -> PullSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nc._forked:
            return
        try:
            self.unsubscribe()
        except NatsError as failed:
            if error is None and not self._nc.is_closed:
                raise
            self._nc._report(failed)

    def __repr__(self) -> str:
        return f"<PullSubscription of consumer {self.consumer_name!r}, stream {self.stream_name!r}>"

    # --- single fetches -----------------------------------------------------------------------------

    def _try_single(self, deadline: Deadline) -> JetStreamMessage | None:
        """The next message if there is one now. ADR-13: over the wildcard inbox, without a SUB of its own."""
        if not self._single_turn.acquire(timeout=deadline.wait_time()):
            raise TimeoutError("no message came in time: other single fetches were under way")
        try:
            if self._single.mailbox.closed:
                self._renew_single()
            return self._exchange_single(self._single, deadline)
        except BaseException:
            # Given up without an answer, or with an unusual one: what still comes must not be taken for another's.
            self._renew_single()
            raise
        finally:
            self._single_turn.release()

    def _exchange_single(self, inlet: _SingleInlet, deadline: Deadline) -> JetStreamMessage | None:
        pull = _Pull(self, inlet)
        try:
            pull.send(pull_body(batch=1, no_wait=True), inlet.new_reply())
            answer = pull.wait(deadline)
        finally:
            pull.end()
        if isinstance(answer, JetStreamMessage):
            return answer
        if classify(answer).kind in _NOTHING_NOW:
            return None
        raise to_error(answer, self._target.next_subject.decode())

    def _renew_single(self) -> None:
        # Requires holding _single_turn.
        if not self._nc.is_closed:
            self._nc._close_inlet(self._single)
            if not self._closed:
                self._single = _SingleInlet(self._nc)
                self._nc._open_inlet(self._single.with_sid)


class _SingleInlet(PullInlet):
    """The wildcard inbox; each try has a subject of its own below it."""

    def __init__(self, nc: Connection) -> None:
        super().__init__(nc)
        self._prefix = self.wire_subject
        self.subject += ".*"
        self.wire_subject = self._prefix + b".*"

    def new_reply(self) -> bytes:
        self.reply = self._prefix + b"." + next_nuid().encode()
        return self.reply


class _Pull:
    """A pull under way: its listener and its frame, which `end` takes back if it has not left."""

    def __init__(self, sub: PullSubscription, inlet: PullInlet) -> None:
        self._sub = sub
        self._nc = sub._nc
        self._inlet = inlet
        self._target = sub._target
        self._frame: Ephemeral | None = None
        self._guard = PullGuard(self._nc, inlet, self._target.next_subject)

    def send(self, body: bytes, reply: bytes) -> None:
        if self._frame is None:
            self._nc._add_listener(self._guard)
        self._frame = self._target.pull_frame(body, reply)
        self._nc._outbox.publish(self._frame, len(body))

    def wait(self, deadline: Deadline) -> JetStreamMessage | Status:
        """What comes next. Raises TimeoutError, ConnectionLostError, PermissionsError, ConnectionClosedError."""
        try:
            raw = self._inlet.mailbox.get(deadline.remaining())
        except TimeoutError:
            if not self._nc.is_connected:
                raise ConnectionLostError("not connected to a server: the pull could not be sent") from None
            raise TimeoutError("no message came in time") from None
        if isinstance(raw, StampedStatus):
            return raw.status
        return JetStreamMessage(raw, self._nc._link, self._sub)

    def end(self) -> None:
        self._nc._remove_listener(self._guard)
        if self._frame is not None:
            self._nc._outbox.withdraw(self._frame)


class _Fetch:
    """One fetch over an inbox of its own: a no-wait pull, and when that finds nothing a long one."""

    def __init__(self, sub: PullSubscription, batch: int, timeout: float, deadline: Deadline) -> None:
        self._nc = sub._nc
        self._target = sub._target
        self._batch = batch
        self._timeout = timeout
        self._deadline = deadline
        self._inlet = PullInlet(self._nc)
        self._pull = _Pull(sub, self._inlet)
        self._messages: list[JetStreamMessage] = []

    def run(self, *, no_wait_first: bool) -> list[JetStreamMessage]:
        try:
            self._nc._open_inlet(self._inlet.with_sid)
            if no_wait_first:
                self._pull.send(pull_body(batch=self._batch, no_wait=True), self._inlet.reply)
                if self._collect(no_wait=True):
                    return self._messages
            self._send_long()
            self._collect(no_wait=False)
            return self._messages
        except NatsError:
            if self._messages:
                return self._messages  # the error is the next fetch's, if it lasts
            raise
        finally:
            self._pull.end()
            if self._inlet.spent:
                self._nc._forget(self._inlet)
            else:
                self._nc._close_inlet(self._inlet)

    def _send_long(self) -> None:
        # ADR-13: the status that answered the first pull counts, too: for a batch of 5 it is UNSUB … 6.
        self._inlet.limit = self._inlet.delivered + self._batch
        self._nc._limit_inlet(self._inlet, self._inlet.limit)
        self._pull.send(pull_body(batch=self._batch, expires_ns=self._expires_ns()), self._inlet.reply)

    def _expires_ns(self) -> int:
        """ADR-13: shorter than the client's own timeout, or than what the first pull has left of it."""
        margin = MARGIN if self._timeout >= SHORT_TIMEOUT else self._timeout / 10
        left = self._deadline.wait_time()
        base = self._timeout if self._timeout - left < margin / 2 else left
        return max(1, round((base - margin) * 1_000_000_000))

    def _collect(self, *, no_wait: bool) -> bool:
        """Take what comes until the pull has ended. False when a no-wait pull found nothing."""
        while len(self._messages) < self._batch:
            answer = self._pull.wait(self._deadline)
            if isinstance(answer, JetStreamMessage):
                self._messages.append(answer)
            elif classify(answer).pull_subscription is FetchVerdict.IGNORE:
                continue
            elif self._messages:
                break  # what came before a status is the result
            elif no_wait and classify(answer).kind in _NOTHING_NOW:
                return False
            else:
                raise self._error(answer)
        return True

    def _error(self, status: Status) -> NatsError:
        error = to_error(status, self._target.next_subject.decode())
        if classify(status).pull_subscription is FetchVerdict.ERROR or status.code == 409:
            return error
        timeout = TimeoutError(f"no message came within {self._timeout} s")
        timeout.__cause__ = error
        return timeout


def subscribe_pull(client: ApiClient, request: SubscribeRequest) -> PullSubscription:
    """ADR-15's workflow for a pull subscription: look up, or create."""
    return PullSubscription(client, find_or_create(client, request))
