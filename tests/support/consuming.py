"""What is behind the objects that users hold: their feeds and pulls, and a connection's receivers."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync import Connection, ConsumeContext, MessageBatch, MessageStream
from jetstream_sync._threads import Mailbox
from jetstream_sync.consumers.fetch import BatchFeed
from jetstream_sync.consumers.pull import Pull
from jetstream_sync.consumers.refill import Refill
from jetstream_sync.net.connection import link_of


def refill_of(owner: MessageStream | ConsumeContext) -> Refill:
    """The feed behind messages() or consume() of a consumer."""
    feed = owner._endless if isinstance(owner, MessageStream) else owner._feed
    assert isinstance(feed, Refill)
    return feed


def batch_feed_of(batch: MessageBatch) -> BatchFeed:
    return batch._feed


def pull_of(owner: MessageBatch | MessageStream | ConsumeContext) -> Pull:
    return owner._feed.pull if isinstance(owner, MessageBatch) else refill_of(owner).pull


def buffered(owner: MessageBatch | MessageStream | ConsumeContext) -> int:
    """How many messages and statuses have come and are not taken."""
    return len(pull_of(owner).items)


def awaited(owner: MessageBatch | MessageStream | ConsumeContext) -> bool:
    """Whether a thread waits for a message."""
    box = pull_of(owner).box
    assert isinstance(box, Mailbox)
    return box.awaited


def record_writes(nc: Connection, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written to the socket from now on, write by write."""
    writes: list[bytes] = []
    session = link_of(nc).session
    assert session is not None
    transport = session.transport
    flush_now = transport.flush_now

    def recorded() -> bool:
        writes.append(transport.outgoing)
        return flush_now()

    monkeypatch.setattr(transport, "flush_now", recorded)
    return writes


def receivers(nc: Connection) -> dict[bytes, Any]:
    """By sid, everything that the connection delivers to."""
    return link_of(nc).router.receivers
