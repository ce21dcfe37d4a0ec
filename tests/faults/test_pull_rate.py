"""A server that ends every pull at once is pulled from at most five times in a second (issue 12).

No real server does so: a scripted peer plays it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from jetstream_sync import JetStream
from jetstream_sync.errors import TimeoutError
from tests.support.eventually import eventually
from tests.support.scripted import Asked, scripted_jetstream
from tests.support.watchdog import InThread

SECONDS = 1.5
STATUSES = [
    "408 Request Timeout",
    "408 Interest Expired",
    "408 Requests Pending",
    "409 Batch Completed",
    "409 Message Size Exceeds MaxBytes",
    "409 Exceeded MaxWaiting",
    "404 No Messages",
    "400 Bad Request",
    "418 Teapot",
]


def assert_bounded(pulls: list[Asked]) -> None:
    assert len(pulls) >= 3, "the consume goes on"
    for first in pulls:
        assert sum(first.at <= pull.at < first.at + 0.999 for pull in pulls) <= 5, [pull.at for pull in pulls]


def start(js: JetStream, number: int) -> list[Any]:
    """Every way of endless reading at once, from consumers whose names end with the number."""
    ignore: Any = [].append
    return [
        js.get_consumer("S", f"messages_{number}").messages(on_error=ignore),
        js.get_consumer("S", f"bytes_{number}").messages(max_bytes=1000, on_error=ignore),
        js.get_consumer("S", f"consume_{number}").consume(print, max_workers=2, on_error=ignore),
        js.ordered_consumer("S", name_prefix=f"ordered_{number}").consume(print, on_error=ignore),
    ]


def test_pulls_that_end_at_once_and_deliver_nothing_are_bounded() -> None:
    """Whatever status ends a pull that delivered nothing: not more than 5 pulls in any second, and never stuck."""

    def status(asked: Asked) -> list[str]:
        return [STATUSES[int(asked.subject.split(".")[-1].split("_")[1])]]

    with scripted_jetstream() as (script, js, _):
        script.pulled = status
        owners = [owner for number in range(len(STATUSES)) for owner in start(js, number)]
        readers = [InThread(lambda each=owner: next(each, None)) for owner in owners if hasattr(owner, "next")]
        threading.Event().wait(SECONDS)
        for owner in owners:
            owner.stop()
        for reader in readers:
            reader.result(5)
    pulls: dict[str, list[Asked]] = defaultdict(list)
    for asked in script.requests("CONSUMER.MSG.NEXT"):
        pulls["_".join(asked.subject.split("_")[:2])].append(asked)
    assert len(pulls) == len(owners)
    for each in pulls.values():
        assert_bounded(each)


def test_pulls_that_deliver_are_not_delayed() -> None:
    """A pull that brought a message before its status is followed by the next at once."""
    with scripted_jetstream() as (script, js, _):
        consumer = js.get_consumer("S", "C")
        with consumer.messages(max_messages=1, threshold_messages=1, on_error=[].append) as messages:
            started = time.monotonic()
            for number in range(1, 31):
                eventually(lambda n=number: len(script.requests("CONSUMER.MSG.NEXT")) >= n)
                inbox = script.inboxes()[0]
                script.send("s.x", b"m", f"$JS.ACK.S.C.1.{number}.{number}.1.0", to=inbox)
                script.status(inbox, "409 Batch Completed")
                assert messages.next(5).data == b"m"
                with pytest.raises(TimeoutError):
                    messages.next(0.01)  # reads the status
            assert time.monotonic() - started < 5.0, "0.25 s after each other they would take 7.5 s"


def test_pulls_that_expired_in_order_are_not_delayed() -> None:
    """A pull that ended after it had waited is followed by the next at once."""
    with scripted_jetstream() as (script, js, _):
        consumer = js.get_consumer("S", "C")
        with consumer.messages(on_error=[].append) as messages:
            for turn in range(1, 3):
                eventually(lambda n=turn: len(script.requests("CONSUMER.MSG.NEXT")) == n)
                with pytest.raises(TimeoutError):
                    messages.next(0.3)
                script.status(script.inboxes()[0], "408 Request Timeout")
                ended = time.monotonic()
                with pytest.raises(TimeoutError):
                    messages.next(0.15)
                assert script.requests("CONSUMER.MSG.NEXT")[turn].at - ended < 0.14
