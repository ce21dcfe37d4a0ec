"""Signal handlers that raise in publish_many(): the handler's exception comes out, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

from jetstream_sync import Connection, JetStream, Stream
from jetstream_sync.api import bulk, publish_many
from jetstream_sync.net import link as link_module
from jetstream_sync.net.connection import link_of
from tests.support.eventually import eventually
from tests.support.interrupts import everywhere


def test_interrupted_publish_many_leaves_nothing_behind(nc: Connection, js: JetStream, stream: Stream) -> None:
    """At every place: no subscription of its inbox stays, and the next call stores all of its messages."""
    js.publish("s.a")  # opens the inbox for requests
    router = link_of(nc).router
    before = len(router)
    messages = [("s.a", b"x"), ("s.a", b"y", {"A": "1"}), ("s.b", b"z", None, None)]

    def prepare() -> Callable[[], object]:
        return lambda: js.publish_many(messages, timeout=20, progress=lambda _: None)

    def check(where: str) -> None:
        eventually(lambda: len(router) == before, message=f"interrupted at {where}: the inbox is closed")
        assert js.publish_many(messages, timeout=20).published == 3, where

    assert everywhere(prepare, check, publish_many, bulk, link_module) >= 40
