"""A subscriber that answers publishes like a stream, with answers of the test's choice."""

from __future__ import annotations

import time
from typing import Any

from jetstream_sync import Message, connect
from jetstream_sync.testing import LocalServer

ACK = b'{"stream":"X","seq":1}'
DUPLICATE = b'{"stream":"X","seq":1,"duplicate":true}'


def error(err_code: int, code: int = 503) -> bytes:
    """The answer of a stream that refuses a message; fields in the server's order."""
    return b'{"error":{"code":%d,"err_code":%d,"description":"no"},"stream":"X","seq":0}' % (code, err_code)


class ScriptedStream:
    """Subscribes to a subject on a connection of its own and sends the given answers in order.

    None sends no answer. When the answers are used up, `then` is the answer to all that follows.
    """

    def __init__(
        self, server: LocalServer, subject: str, *answers: bytes | None, then: bytes | None = None
    ) -> None:
        self.nc = connect(server.url)
        self.received: list[dict[str, str]] = []
        self.payloads: list[bytes] = []
        self.replies: list[str | None] = []
        self.times: list[float] = []
        self._answers = list(answers)
        self._then = then
        self.nc.subscribe(subject, cb=self._on_message)
        self.nc.flush()

    def _on_message(self, msg: Message) -> None:
        headers: Any = msg.headers or {}
        self.received.append(dict(headers))
        self.payloads.append(msg.data)
        self.replies.append(msg.reply)
        self.times.append(time.monotonic())
        answer = self._answers.pop(0) if self._answers else self._then
        if answer is not None:
            msg.respond(answer)

    @property
    def ids(self) -> list[str | None]:
        """The message ids of what was received."""
        return [headers.get("Nats-Msg-Id") for headers in self.received]

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.nc.close()
