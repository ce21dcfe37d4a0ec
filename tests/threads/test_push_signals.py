"""Exceptions of signal handlers in push subscriptions: no thread hangs."""

from __future__ import annotations

import pytest

from jetstream_sync import JetStream
from jetstream_sync.consumers import push, take
from jetstream_sync.net import subscription
from tests.support.interrupts import everywhere
from tests.support.observer import fill
from tests.support.watchdog import InThread

pytestmark = pytest.mark.usefixtures("stream")


def test_next_msg_interrupted_anywhere_leaves_the_turn_to_others(js: JetStream) -> None:
    """Wherever a signal handler raises in next_msg(), another thread gets the next message."""
    fill(js, 1000)
    sub = js.subscribe("s.>", config={"ack_policy": "none"})

    def check(where: str) -> None:
        assert InThread(sub.next_msg, 1.0).error() is None, where

    assert everywhere(lambda: lambda: sub.next_msg(1.0), check, push, subscription, take) > 3
    sub.unsubscribe()
