"""Temporary: names of the pull branch, until it is merged."""

from __future__ import annotations

from typing import Any

from .._deadline import Deadline
from ..api.message import JetStreamMessage
from .inlet import StampedStatus as ArrivedStatus
from .status import PushVerdict as PushAction
from .target import PullTarget

__all__ = ["ArrivedStatus", "PullTarget", "PushAction", "take_one"]


def take_one(feed: Any, deadline: Deadline) -> JetStreamMessage:
    inspect = feed.inspect
    while True:
        try:
            raw = feed.items.popleft()
        except IndexError:
            raw = None
        if raw is None:
            raw = feed.wait(deadline.remaining())
        if type(raw) is ArrivedStatus:
            feed.on_status(raw)
            continue
        if inspect is not None and not inspect(raw):
            continue
        feed.account(1, 0, True)
        return JetStreamMessage(raw, feed.link, feed.source)
