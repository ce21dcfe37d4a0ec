"""Ordered push subscriptions (ADR-17): every message once and in order, over a chain of ephemeral consumers.

Each generation has a name and a deliver subject of its own, both chosen here before it is created (see
chain.py). So nothing of an old one can be taken for the present one's, and one mailbox serves them all: what
carries another name is dropped.

  consuming thread  compares sequences (see push.py). When one is missing it notes the loss and wakes js-push.
  js-push-<n>       notes the loss after too long a silence. Whichever thread noted it, this one begins the next
                    generation: it leaves the old subject, chooses names and asks the server, again and again with
                    a growing wait if that fails, for the same generation as long as it may have been created
                    unseen. When it is there, and its stream the right one, it moves the subscription, and
                    messages come. Blocks in one API request at a time and in the wait, which the subscription's
                    end cuts short.
  js-reader         notes the loss after a reconnect: the consumer lived in the memory of a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..api.client import ApiClient
from ..api.config import AckPolicy, ConsumerConfig
from ..api.fields import fields_of, merged
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerConfigError,
    ConsumerNotFoundError,
    ForkError,
    NatsError,
    NotConnectedError,
    NotJSMessageError,
    PermissionsError,
    SequenceMismatchError,
    StreamNotFoundError,
)
from ..protocol.parser import RawMessage
from .chain import Chain
from .ordered import ordered_config
from .push import PendingLimits, PushInbound

# ADR-17: the heartbeat unless another is asked for, and an ack_wait that is never used.
DEFAULT_HEARTBEAT = 5.0
ACK_WAIT = 22 * 3600.0

# Creating the consumer again would get the same reply.
DEFINITE = (StreamNotFoundError, PermissionsError, ConnectionClosedError, ForkError)


class OrderedPushInbound(PushInbound):
    """The receiver and feed of an ordered push subscription: see the module's text."""

    last_arrival: float

    def __init__(self, client: ApiClient, stream: str, template: ConsumerConfig, limits: PendingLimits) -> None:
        super().__init__(client, client.link.new_inbox(), None, limits)
        self.stream_name = stream
        self.inspect: Callable[[RawMessage], bool] | None = self._is_next
        self._chain = Chain(client, stream, template, definite=DEFINITE, created_is_recovered=True)
        self._lease = self._chain.lease(self)  # for life
        self._next_inbox = ""  # of the generation that is being created; the subscription is moved to it then

    @property
    def in_use(self) -> bool:
        return not self.mailbox.closed

    @property
    def consumer_name(self) -> str:
        return self._chain.name

    def create_first(self) -> None:
        """Create the first consumer. Blocks for the server's reply and raises what it says."""
        self._chain.begin()
        self._created = True  # should the reply get lost, there is something to delete
        self.attach(self._chain.create_once(deliver_subject=self.subject), created=True)

    def delete_created(self) -> None:
        try:
            super().delete_created()
        except ConsumerNotFoundError:
            pass  # it was being replaced

    def finish(self, reason: NatsError, *, discard: bool = False) -> None:
        super().finish(reason, discard=discard)
        self._chain.release(self._lease, clean=True)  # a generation that comes later is deleted

    # --- consuming thread ---------------------------------------------------------------------------

    def _is_next(self, raw: RawMessage) -> bool:
        """Whether the message is the next one of the present consumer."""
        try:
            if self._chain.advance(self._lease, raw, mixed=True):
                return True
        except NotJSMessageError:
            pass  # a status of an old consumer
        except SequenceMismatchError:
            self._wakeup.set()
        self._not_messages += 1
        return False

    def _on_heartbeat(self, block: bytes) -> None:
        if self._chain.gap_before(block) or self._chain.lost:
            self._wakeup.set()

    # --- reader thread and js-push ------------------------------------------------------------------

    def reconnected(self) -> None:
        if self._name:
            self._chain.lost = True
        self._wakeup.set()

    def _on_silence(self, window: float) -> None:
        self._chain.lost = True

    def _on_wake(self) -> None:
        chain = self._chain
        while (chain.lost or self._next_inbox) and self.link.connected and self.in_use:
            wait = chain.pause_left
            if wait:
                self._wakeup.wait(wait)
                continue
            if chain.lost:
                # To a subject that is never used: nothing more is to come from the generation before.
                self.link.move(self, self.link.new_inbox().encode())
                self._next_inbox = self.link.new_inbox()
                chain.begin()
                chain.delete_dropped()
            self._create()

    def _create(self) -> None:
        """Try once to create the present generation, and move to it."""
        chain = self._chain
        chain.record_failure()  # should this fail, or the generation be lost at once, too
        try:
            chain.create_once(deliver_subject=self._next_inbox)
            self.link.move(self, self._next_inbox.encode())  # or the subscription has ended
            self.last_arrival = time.monotonic()  # from now on heartbeats are owed
            self._next_inbox = ""
        except NatsError as error:
            if chain.is_definite(error):
                self.conclude(error)
                return
            if not chain.may_be_created(error):
                chain.lost = True  # by another name, then
            if not isinstance(error, (ConnectionLostError, NotConnectedError)):  # which have been reported
                self.link.report(error)
        chain.delete_dropped()


def ordered_template(
    subject: str | None, config: ConsumerConfig | Mapping[str, Any] | None, fields: Mapping[str, Any]
) -> ConsumerConfig:
    """The configuration that ADR-17 prescribes, with what the user may choose. Raises ConsumerConfigError.

    The `ack_policy` explicit of a ConsumerConfig object is its default, and counts as not given.
    """
    if isinstance(config, ConsumerConfig):
        config = {spec.name: getattr(config, spec.name) for spec in fields_of(ConsumerConfig)}
        if config["ack_policy"] == AckPolicy.EXPLICIT:
            del config["ack_policy"]
    given = {**(config or {}), **fields}
    if given.pop("flow_control", None) is False:
        raise ConsumerConfigError("an ordered consumer has flow control: leave it out", field="flow_control")
    given.pop("ack_wait", None)  # ADR-17: set without an error
    heartbeat = given.pop("idle_heartbeat", None)
    if subject is not None and not given.get("filter_subjects") and not given.get("filter_subject"):
        given["filter_subject"] = subject
    own = {"idle_heartbeat": heartbeat or DEFAULT_HEARTBEAT, "flow_control": True, "ack_wait": ACK_WAIT}
    return merged(ConsumerConfig, ordered_config(given), own)
