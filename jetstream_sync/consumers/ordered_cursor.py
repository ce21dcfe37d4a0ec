"""Where an ordered consumer stands in its stream, and which consumer on the server serves it (ADR-17).

See ordered_session.py for what an incarnation is, and who does what.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .._deadline import Deadline
from ..api.client import ApiClient
from ..api.config import ConsumerConfig, DeliverPolicy
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import parse_metadata
from ..errors import (
    APIError,
    BadRequestError,
    ConcurrencyError,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ForkError,
    JetStreamNotEnabledError,
    NatsError,
    NoRespondersError,
    NotJSMessageError,
    PermissionsError,
    SequenceMismatchError,
    StreamNotFoundError,
    SubscriptionClosedError,
)
from ..protocol.headers import header_value
from ..protocol.parser import RawMessage
from ..protocol.subjects import next_nuid
from .pull_state import Backoff
from .target import PullTarget

log = logging.getLogger("jetstream_sync")

ErrorCallback = Callable[[Any], Any]

# The incarnation is gone or cannot be trusted any more: the next one takes over.
LOST = (ConsumerDeletedError, NoRespondersError, SequenceMismatchError, NotJSMessageError)
# Creating it again would get the same answer.
DEFINITE = (StreamNotFoundError, BadRequestError, PermissionsError, ConnectionClosedError, ForkError)
# "maximum consumers limit reached": the incarnation before may count still.
_MAX_CONSUMERS = 10026

# A use does not rely on an incarnation that was left alone for this share of its inactive_threshold.
IDLE_SHARE = 0.8
# A lock that is held for a few instructions is free within this time, unless held by the thread that asks.
SETTLE_SECONDS = 0.1


class User(Protocol):
    """A fetch or session that takes messages from an ordered consumer."""

    @property
    def in_use(self) -> bool: ...


class Position(NamedTuple):
    """Where to go on: behind `stream_seq`, unless that is not known yet."""

    located: bool
    stream_seq: int


class OrderedCursor:
    """Where an ordered consumer stands, and its present incarnation.

    One user at a time (`claim`), and of that one the taker or js-ordered, never both; abandon() from any thread.
    """

    def __init__(
        self,
        client: ApiClient,
        stream_name: str,
        template: ConsumerConfig,
        *,
        name_prefix: str | None,
        max_reset_attempts: int | None,
    ) -> None:
        self.client = client
        self.nc = client.nc
        self.stream_name = stream_name
        self.info: ConsumerInfo | None = None
        self._api = ConsumerApi(client)
        self._template = template
        self._name_prefix = name_prefix
        self._max_attempts = max_reset_attempts
        self._lock = allocate_lock()
        self._user: weakref.ref[User] | None = None
        self._claim = object()  # the user's
        self._settled = True  # whether the last user left nothing open
        self._located = False  # whether _stream_seq says where to go on
        self._stream_seq = 0  # the last message handed out
        self._consumer_seq = 0  # the same, of the present incarnation
        self._name: str | None = None  # of an incarnation that exists, or may exist
        self._target: PullTarget | None = None
        self._backoff = Backoff()
        self._reconnects = 0  # of the connection, when the incarnation was created
        self._used = 0.0

    # --- position -----------------------------------------------------------------------------------

    def claim(self, user: User) -> object:
        """Let `user` take messages from now on, with the claim returned.

        Raises ConcurrencyError while another one does.
        """
        with self._lock:
            present = None if self._user is None else self._user()
            if present is not None and present.in_use:
                raise ConcurrencyError(
                    "this ordered consumer is in use: finish or close the other fetch, messages() or consume() "
                    "first, or make another ordered consumer"
                )
            self._user = weakref.ref(user)
            self._claim = claim = object()
            name = None if self._settled else self._drop()
            self._settled = False
        self.delete(name)
        return claim

    def settle(self, claim: object, *, clean: bool) -> None:
        """The user is done. Unless `clean`, the incarnation may have sent what was not handed out."""
        # Finalizers call this, perhaps in the very thread that holds the lock: then the next claim sees to it.
        if not self._lock.acquire(timeout=SETTLE_SECONDS):
            return
        try:
            if self._settled or self._claim is not claim:
                return
            self._settled = True
            self._used = time.monotonic()
            name = None if clean else self._drop()
        finally:
            self._lock.release()
        self.delete(name)

    @property
    def position(self) -> Position:
        return Position(self._located, self._stream_seq)

    def rewind(self, claim: object, position: Position) -> None:
        """What came behind `position` was not handed out after all."""
        with self._lock:
            if self._claim is not claim:
                return
            self._located, self._stream_seq = position
            name = self._drop()
        self.delete(name)

    def advance(self, claim: object, raw: RawMessage) -> None:
        """`raw` is about to be handed out. Raises SequenceMismatchError when it is not the next one."""
        stream_seq, consumer_seq = sequences_of(raw)
        with self._lock:
            if self._claim is not claim:
                raise SubscriptionClosedError("stopped; the ordered consumer is in use elsewhere")
            if consumer_seq != self._consumer_seq + 1 or (self._located and stream_seq <= self._stream_seq):
                raise SequenceMismatchError(self._consumer_seq + 1, consumer_seq, stream_seq=stream_seq)
            self._consumer_seq = consumer_seq
            self._stream_seq = stream_seq
            self._located = True
        self._backoff.delivered()

    def check_heartbeat(self, block: bytes) -> None:
        """ADR-9: a heartbeat says what was delivered last. So a gap shows though no message follows it."""
        last = header_value(block, b"Nats-Last-Consumer")
        if last is not None and last.isdigit() and int(last) > self._consumer_seq:
            raise SequenceMismatchError(self._consumer_seq + 1, int(last) + 1)

    # --- incarnations -------------------------------------------------------------------------------

    def current(self, pause: Callable[[float], None], deadline: Deadline, report: ErrorCallback) -> PullTarget:
        """The present incarnation, or a new one when there is none to rely on. Blocks and raises as create()."""
        target = self._target
        if target is not None and self._is_fresh():
            return target
        self.abandon()
        return self.create(pause, deadline, report)

    def create(self, pause: Callable[[float], None], deadline: Deadline, report: ErrorCallback) -> PullTarget:
        """The next incarnation, right behind the last message.

        Blocks for the server's answer, and in `pause` between two tries. Raises an error that trying again would
        not change; at `deadline`, or after the last attempt, the last error. `report` is told of those before.
        """
        attempts = 0
        while True:
            pause(min(self._backoff.remaining(time.monotonic()), deadline.wait_time()))
            try:
                return self._create_once(min(self.client.timeout, deadline.wait_time()))
            except NatsError as error:
                attempts += 1
                if self._is_definite(error) or attempts == self._max_attempts:
                    raise
                self.troubled()
                if deadline.wait_time() <= self._backoff.remaining(time.monotonic()):
                    raise
                if isinstance(error, ConsumerExistsError):
                    self.abandon()  # by another name, then
                report(error)

    def troubled(self) -> None:
        """An incarnation was lost or could not be created: happening again and again, the next try waits."""
        self._backoff.refused(time.monotonic())

    def abandon(self) -> None:
        """Give up the present incarnation and have it deleted. Never blocks."""
        with self._lock:
            name = self._drop()
        self.delete(name)

    def delete(self, name: str | None) -> None:
        """Have an incarnation deleted, if there is one; nobody waits for the answer."""
        if name is None:
            return
        subject = self.client.subject("CONSUMER", "DELETE", self.stream_name, name)
        try:
            self.nc._publish_raw(subject.encode(), b"")
        except NatsError:
            pass  # closed, or much is waiting to be sent: inactive_threshold removes it

    def _drop(self) -> str | None:
        """Forget the present incarnation; returns its name, to be deleted. Requires holding _lock."""
        name, self._name, self._target = self._name, None, None
        return name

    def _is_fresh(self) -> bool:
        """Whether the incarnation is there as far as can be known.

        A pull would tell; but servers up to 2.10.25 do not answer a pull for a consumer that is gone.
        """
        nc = self.nc
        if not nc.is_connected or self._reconnects != nc.stats.reconnects:
            return False
        return time.monotonic() - self._used < (self._template.inactive_threshold or 0.0) * IDLE_SHARE

    def _create_once(self, timeout: float) -> PullTarget:
        with self._lock:
            # The same name until it is there: should an answer get lost, the next try finds the one created.
            name = self._name = self._name or self._new_name()
            config = self._next_config(name)
        reconnects = self.nc.stats.reconnects
        info = self._api.create(self.stream_name, config, timeout=timeout)
        target = PullTarget(self.client, info)
        with self._lock:
            self.info = info
            self._name, self._target = name, target  # abandon() may have cleared the name meanwhile
            self._consumer_seq = 0
            self._reconnects = reconnects
            self._used = time.monotonic()
            if not self._located and info.config.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT:
                # Where the server begins. Another incarnation must not begin later, as "new" would make it.
                self._stream_seq = info.delivered.stream_seq
                self._located = True
        return target

    def _new_name(self) -> str:
        return f"{self._name_prefix}_{next_nuid()}" if self._name_prefix else next_nuid()

    def _next_config(self, name: str) -> ConsumerConfig:
        # Requires holding _lock.
        if not self._located:
            return dataclasses.replace(self._template, name=name)
        return dataclasses.replace(
            self._template,
            name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._stream_seq + 1,
            opt_start_time=None,
        )

    def _is_definite(self, error: NatsError) -> bool:
        if isinstance(error, APIError) and error.err_code == _MAX_CONSUMERS:
            return False
        if isinstance(error, JetStreamNotEnabledError):
            return self.info is None  # a server that has just been started may not be ready
        return isinstance(error, DEFINITE) or self.nc.is_closed


def sequences_of(raw: RawMessage) -> tuple[int, int]:
    """A message's stream and consumer sequence. Raises NotJSMessageError."""
    reply = raw[1] or b""
    tokens = reply.split(b".")
    if len(tokens) == 9 and tokens[5].isdigit() and tokens[6].isdigit():  # the usual form, without a detour
        return int(tokens[5]), int(tokens[6])
    sequence = parse_metadata(reply.decode("utf-8", "replace")).sequence
    return sequence.stream, sequence.consumer


def log_failed_try(error: Exception) -> None:
    log.debug("ordered consumer could not be created: %s", error)
