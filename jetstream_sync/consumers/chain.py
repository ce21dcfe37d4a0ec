"""Where ordered reading stands in its stream, and which consumer on the server serves it (ADR-17).

Ordered reading goes over a chain of ephemeral consumers on the server, *generations*. Each has a name of its own
and a consumer sequence that must run 1, 2, 3 … without a gap. The position is the stream sequence of the last
message that was taken for the user: the next generation starts right behind it. Nothing else decides what the
user sees, so it does not matter what an old generation had sent, or to whom. Each generation but the first makes
sure that the stream is still the one that was read (continuity.py).

A server leaves the request to create a consumer unanswered during elections. So a try is given up after a second
and repeated under the same name: what was created after all is found, and not created twice. Then another name is
tried: the cluster may have given the consumer to a server that has just died, which will never answer for it.

The user of a chain takes a *lease* on it, one at a time, and releases it at its end. Pull: a fetch, messages() or
consume(); of its threads either the consuming one or js-ordered uses the chain, never both. Push: a subscription
has the lease for life; the consuming thread advances the position, js-push creates generations.

`_lock` guards the position, the lease and the present generation. Nothing blocks under it. To delete a
generation is to publish a request whose reply is not waited for. It is repeated if the session was lost; what that
misses, inactive_threshold removes.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Any, Protocol

from .._deadline import Deadline
from .._threads import detached
from ..api.client import ApiClient
from ..api.config import ConsumerConfig, DeliverPolicy
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import parse_metadata
from ..errors import (
    APIError,
    ConcurrencyError,
    ConsumerDeletedError,
    DataLossError,
    JetStreamNotEnabledError,
    NatsError,
    NoRespondersError,
    NotConnectedError,
    NotJSMessageError,
    SequenceMismatchError,
    SubscriptionClosedError,
)
from ..net.link import Link
from ..protocol.headers import header_value
from ..protocol.parser import RawMessage
from ..protocol.subjects import next_nuid
from .continuity import Continuity
from .pull import PullTarget
from .pull_state import Backoff

ErrorCallback = Callable[[Any], Any]

# The generation is gone or cannot be trusted any more: the next one takes over.
LOST = (ConsumerDeletedError, NoRespondersError, SequenceMismatchError, NotJSMessageError)
# "maximum consumers limit reached": the generation before may count still.
_MAX_CONSUMERS = 10026

# How long a try to create a generation may take. Each eighth one has the client's whole timeout: a server that is
# merely slow answers that one. No sooner: an election takes some seconds, and what is asked during it is lost.
TRY_SECONDS = 1.0
LONG_TRY = 8
TRIES_PER_NAME = 2

# How many of the last deletions are repeated after a lost session: one lasts long enough for the others.
MOST_REPEATED = 4

# A use does not rely on a generation that was left alone for this share of its inactive_threshold.
IDLE_SHARE = 0.8

_NEVER = Deadline(None)


class User(Protocol):
    """What takes messages from a chain. Held weakly: one that was dropped is not in use."""

    @property
    def in_use(self) -> bool: ...


Lease = weakref.ref[User]


def behind(template: ConsumerConfig, position: int) -> ConsumerConfig:
    """The resume rule of ordered reading: a later generation begins right behind the last message."""
    policy = DeliverPolicy.BY_START_SEQUENCE
    return dataclasses.replace(template, deliver_policy=policy, opt_start_seq=position + 1, opt_start_time=None)


class Chain:
    """The position of ordered reading, its lease, and its present generation. See the module's text."""

    def __init__(
        self,
        client: ApiClient,
        stream_name: str,
        template: ConsumerConfig,
        *,
        definite: tuple[type[NatsError], ...],
        created_is_recovered: bool = False,
        name_prefix: str | None = None,
        max_attempts: int | None = None,
        resume: Callable[[ConsumerConfig, int], ConsumerConfig] = behind,
    ) -> None:
        """`definite`: errors after which creating a generation again would get the same reply.

        `created_is_recovered`: a row of failures ends when a generation is created, not with its first message.
        """
        self.client: ApiClient = client
        self.link: Link = client.link
        self.stream_name = stream_name
        self.info: ConsumerInfo | None = None  # what the server said when it created the newest generation
        self.position: int | None = None  # the last message taken; None: the template says where to begin
        # The last message that the user got: another one only while a message is on its way to the user, or when a
        # signal handler raised meanwhile. Stored by the consuming thread, with no call before `return` or `yield`.
        self.handed_out: int | None = None
        self.consuming_thread: int = 0  # takes messages, where a signal handler may interrupt it
        self.name: str = ""  # of the generation that exists, or may exist
        self.lost: bool = False  # the present generation cannot be relied on: any thread may say so, lock or not
        self._wire_name = b""
        self._api = ConsumerApi(client)
        self._template = template
        self._definite = definite
        self._created_is_recovered = created_is_recovered
        self._name_prefix = name_prefix
        self._max_attempts = max_attempts
        self._resume = resume
        self._lock = allocate_lock()
        self._lease: Lease | None = None
        self._released = True  # the last user left nothing behind
        self._consumer_seq = 0  # of the last message taken from the present generation
        self._start: int | None = None  # the position at which the present generation begins
        self._chosen: int | None = None  # the position that the user chose, which may be beyond the stream's end
        self._tries = 0  # to create a generation, in a row and without an answer
        self._continuity = Continuity(client, stream_name)
        self._target: PullTarget | None = None  # of a generation that exists
        self._dropped: dict[str, None] = {}  # generations to be deleted
        self._requested: dict[str, int] = {}  # the last deletions that were requested, with the session of each
        self._backoff = Backoff()
        self._failing = False
        self._reconnects = 0  # of the connection, when the generation was created
        self._used = 0.0
        self._most_idle = (template.inactive_threshold or 0.0) * IDLE_SHARE

    @property
    def title(self) -> str:
        """What logs and repr() call it."""
        return f"ordered consumer of {self.stream_name}"

    # --- the lease ------------------------------------------------------------------------------------

    def lease(self, user: User) -> Lease:
        """Let `user` take messages from now on. Raises ConcurrencyError while another user does."""
        with self._lock:
            present = None if self._lease is None else self._lease()
            if present is not None and present.in_use:
                raise ConcurrencyError(
                    "this ordered consumer is in use: finish or close the other fetch, messages() or consume() "
                    "first, or make another ordered consumer"
                )
            self._lease = lease = weakref.ref(user)
            if not self._released:
                self._drop()
            if self.consuming_thread == get_ident():
                self._take_back()  # this thread is not about to hand it out any more
            self.handed_out, self.consuming_thread = self.position, 0
            self._released = False
        self.delete_dropped()
        return lease

    def release(self, lease: Lease | None, *, clean: bool) -> None:
        """The user is done. Unless `clean`, the generation may have sent what was not handed out."""
        with self._lock:
            if self._released or self._lease is not lease:
                return
            if not clean:
                self._drop()
            self._used = time.monotonic()
            self._released = True
        self.delete_dropped()

    def soon(self, job: Callable[[], None]) -> None:
        """For finalizers, which may run in the very thread that holds a lock: run `job` now, or detached."""
        if self._lock.locked() and not self.link.forked:
            detached(job)
        else:
            self.link.soon(job)

    # --- the position ---------------------------------------------------------------------------------

    def advance(self, lease: Lease | None, raw: RawMessage, *, mixed: bool = False) -> bool:
        """A message is about to be handed out: whether it is the next one in order.

        `mixed`: messages of several generations come one after another. Those of another one, and of a lost one,
        are not for the user. Raises SequenceMismatchError when a message is missing, NotJSMessageError.
        """
        tokens = (raw[1] or b"").split(b".")
        if len(tokens) == 9 and tokens[5].isdigit() and tokens[6].isdigit():  # the usual form
            name, stream_seq, consumer_seq = tokens[3], int(tokens[5]), int(tokens[6])
        else:
            name, stream_seq, consumer_seq = delivery_of(raw)
        with self._lock:
            if self._lease is not lease:
                raise SubscriptionClosedError("stopped; the ordered consumer is in use elsewhere")
            if mixed and (self.lost or name != self._wire_name):
                return False
            position = self.position
            if consumer_seq != self._consumer_seq + 1 or (position is not None and stream_seq <= position):
                self.lost = True
                raise self._gap(self._consumer_seq + 1, consumer_seq, stream_seq)
            self._consumer_seq = consumer_seq
            self.position = stream_seq
        if self._failing:
            self._failing = False
            self._backoff.delivered()
        return True

    def gap_before(self, heartbeat: bytes) -> SequenceMismatchError | None:
        """ADR-9: a heartbeat says what was delivered last. So a gap shows though no message follows it."""
        told = header_value(heartbeat, b"Nats-Last-Consumer") or b""
        with self._lock:
            last = self._consumer_seq
            if not told.isdigit() or int(told) <= last:
                return None
            self.lost = True
        return self._gap(last + 1, int(told) + 1)

    def _gap(self, expected: int, got: int, stream_seq: int = 0) -> SequenceMismatchError:
        return SequenceMismatchError(
            expected, got, stream_seq=stream_seq, stream=self.stream_name, consumer=self.name
        )

    def take_back(self, lease: Lease | None) -> None:
        """What was taken and not handed out is to come again: a signal handler raised in between."""
        with self._lock:
            if self._lease is lease:
                self._take_back()
        self.delete_dropped()

    def _take_back(self) -> None:
        if self.position != self.handed_out:
            self._drop()  # first: interrupted after it, the next call repeats both
            self.position = self.handed_out

    # --- generations ----------------------------------------------------------------------------------

    def current(self, pause: Callable[[float], None], deadline: Deadline, report: ErrorCallback) -> PullTarget:
        """The present generation, for pulls, or a new one when there is none to rely on.

        Creating it blocks for the server's reply, and in `pause` between two tries. Raises a definite error; at
        `deadline`, or after the last attempt, the last error. `report` is told of those before.
        """
        target, idle = self._target, time.monotonic() - self._used
        # Servers up to 2.10.25 do not answer a pull for a generation that is gone.
        known = self.link.connected and self._reconnects == self.link.reconnects and idle < self._most_idle
        if target is not None and known and not self.lost:
            return target
        self.discard()
        attempts = 0
        while True:
            pause(min(self.pause_left, deadline.wait_time()))
            began = time.monotonic()
            try:
                # The same name until it is there: should a reply get lost, the next try finds the one created.
                info = self.create_once(deadline=deadline)
                target = PullTarget(self.client, info)
                with self._lock:
                    if self.name == info.name:
                        self._target = target
                return target
            except NatsError as error:
                if not self._cut_short(error):
                    attempts += 1
                if self.is_definite(error) or attempts == self._max_attempts:
                    raise
                self.record_failure(began)
                if deadline.wait_time() <= self.pause_left:
                    raise
                if not self.may_be_created(error):
                    self.discard()  # by another name, then
                if not isinstance(error, NotConnectedError):  # the connection has reported that as what it is
                    report(error)

    def begin(self) -> None:
        """Give up the present generation and name the next one in one step: a later loss is the new one's."""
        with self._lock:
            self._drop()
            self._begin()

    def create_once(self, *, deadline: Deadline = _NEVER, deliver_subject: str | None = None) -> ConsumerInfo:
        """Try once to create the generation that begin() named, or a new one. Blocks for the server's replies.

        When this raises, the generation may exist. No message may be taken from it before this returns.
        delete_dropped() follows: the generation of a user that has ended meanwhile is given up.
        """
        with self._lock:
            if not self.name:
                self._begin()
            name, start, lease = self.name, self._start, self._lease
            self._tries += 1
        reconnects = self.link.reconnects
        # The same each time, though the position may have changed: so the server knows it again.
        config = self._template if start is None else self._resume(self._template, start)
        config = dataclasses.replace(config, name=name, deliver_subject=deliver_subject)
        info = self._api.create(self.stream_name, config, timeout=self._patience(deadline))
        self._tries = 0
        if self.info is None:
            self._continuity.began(info)
        else:
            self._check_continuity(None if start == self._chosen else start, deadline)
        with self._lock:
            if self._released or self._lease is not lease or self.name not in (name, ""):
                self._dropped[name] = None  # the user has ended meanwhile
                return info
            self.info, self.name = info, name  # discard() may have cleared the name
            self._reconnects, self._used = reconnects, time.monotonic()
            starts_late = info.config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT
            if self.position is None and not starts_late and not info.delivered.consumer_seq:
                # Where the server begins. Another generation must not begin later, as "new" would make it.
                self.position = self.handed_out = info.delivered.stream_seq
                if info.config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE:
                    self._chosen = self.position
        if self._created_is_recovered:
            self._backoff.delivered()
        return info

    def _check_continuity(self, position: int | None, deadline: Deadline) -> None:
        try:
            self._continuity.check(position, deadline)
        except DataLossError:
            self.discard()
            raise

    def _patience(self, deadline: Deadline = _NEVER) -> float:
        """How long the present try may wait for a reply. The first generation of all has one try."""
        whole = min(self.client.timeout, deadline.wait_time())
        if self.info is None or self._tries % LONG_TRY == 0:
            return whole
        # Before a deadline there may be no long try: a slow server is given half of the time.
        return min(whole, TRY_SECONDS if deadline.remaining() is None else max(TRY_SECONDS, whole / 2))

    def _cut_short(self, error: NatsError) -> bool:
        """Whether a try failed because it had less than the client's timeout."""
        return isinstance(error, TimeoutError) and (not self._tries or self._tries % LONG_TRY != 0)

    def may_be_created(self, error: NatsError) -> bool:
        """After a failed try: whether the next one is to ask for the same generation."""
        return isinstance(error, TimeoutError) and (not self._tries or self._tries % TRIES_PER_NAME != 0)

    def discard(self) -> None:
        """Give up the present generation and have it deleted. Any thread; never blocks."""
        with self._lock:
            self._drop()
        self.delete_dropped()

    def delete_dropped(self) -> None:
        """Have the generations deleted that were given up; their replies are not waited for.

        A session that was lost since may have swallowed its last requests, so these are repeated once.
        """
        session = self.link.reconnects + (not self.link.connected)  # the one that a request is sent in
        for name, sent_in in list(self._requested.items()):
            if sent_in != session:
                self._request_deletion(name)
                self._requested.pop(name, None)
        for name in list(self._dropped):
            self._request_deletion(name)
            self._requested[name] = session
            self._dropped.pop(name, None)  # last: interrupted by a signal handler, the next call repeats it
        for name in list(self._requested)[:-MOST_REPEATED]:
            self._requested.pop(name, None)

    def _request_deletion(self, name: str) -> None:
        subject = self.client.subject("CONSUMER", "DELETE", self.stream_name, name)
        try:
            self.link.publish(subject.encode(), b"")
        except NatsError:
            pass  # closed, or much is waiting to be sent: inactive_threshold removes it

    def record_failure(self, began: float | None = None) -> None:
        """A generation was lost or could not be created: happening again and again, the next try waits.

        `began`: when the try did, if it was one. Its own time counts as waiting.
        """
        self._failing = True
        self._backoff.refused(time.monotonic() if began is None else began)

    @property
    def pause_left(self) -> float:
        """Seconds until the next try."""
        return self._backoff.remaining(time.monotonic())

    def is_definite(self, error: NatsError) -> bool:
        """Whether creating a generation again would get the same reply."""
        if isinstance(error, APIError) and error.err_code == _MAX_CONSUMERS:
            return False
        if isinstance(error, JetStreamNotEnabledError):
            return self.info is None  # a server that has just been started may not be ready
        return isinstance(error, (DataLossError, *self._definite)) or self.link.closed

    def log_failed_try(self, error: Exception) -> None:
        self.link.logs.consumer.debug(
            "ordered consumer of stream %r could not be created: %s", self.stream_name, error
        )

    def _begin(self) -> None:
        assert self._lock.locked()
        self.name = f"{self._name_prefix}_{next_nuid()}" if self._name_prefix else next_nuid()
        self._wire_name = self.name.encode()
        self._start = self.position
        self._consumer_seq = 0
        self.lost = False

    def _drop(self) -> None:
        """Forget the present generation; it is deleted once the lock is released."""
        assert self._lock.locked()
        if self.name:
            self._dropped[self.name] = None
        self.name, self._target = "", None


def delivery_of(raw: RawMessage) -> tuple[bytes, int, int]:
    """The name of a message's consumer, its stream and its consumer sequence. Raises NotJSMessageError."""
    metadata = parse_metadata((raw[1] or b"").decode("utf-8", "replace"))
    return metadata.consumer.encode(), metadata.sequence.stream, metadata.sequence.consumer
