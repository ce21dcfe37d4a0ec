"""One stream and consumer on the running server, and ways to provoke it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jetstream_sync import Connection, Consumer, JetStream
from jetstream_sync.protocol import commands
from jetstream_sync.testing import LocalServer
from tests.support.observer import server_version, stream_and_consumer


class Bench:
    """One stream and consumer on the running server, and ways to provoke it."""

    def __init__(self, server: LocalServer, nc: Connection, js: JetStream) -> None:
        self.server = server
        self.nc = nc
        self.js = js
        self.version = server_version(nc)

    def consumer(self, count: int = 0, **config: Any) -> Consumer:
        return stream_and_consumer(self.js, count, **config)

    def recreate_as_push(self, consumer: Consumer) -> None:
        consumer.delete()
        self.js.create_consumer("S", durable_name="C", deliver_subject="deliver.here")

    @contextmanager
    def pulls_as(
        self, consumer: Consumer, body: bytes | None = None, header: bytes | None = None
    ) -> Iterator[None]:
        """Replace what the consumer's pulls say, to get an answer that our own pulls never get."""
        target = consumer._target

        def frame(own: bytes, inbox: bytes) -> bytes:
            return commands.publish(target.next_subject, own if body is None else body, inbox, header)

        target.pull_frame = frame  # type: ignore[method-assign]
        try:
            yield
        finally:
            del target.pull_frame  # type: ignore[method-assign]
