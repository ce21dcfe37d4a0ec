"""Helpers for tests of ordered consumers: publish, take, and list what is on the server."""

from __future__ import annotations

from typing import Any

from jetstream_sync import (
    JetStream,
    MessageStream,
)


def publish(js: JetStream, first: int, last: int, subject: str = "s.x") -> None:
    for number in range(first, last + 1):
        js.publish(subject, b"%d" % number)


def sequences(messages: Any) -> list[int]:
    return [message.metadata.sequence.stream for message in messages]


def take(stream: MessageStream, count: int) -> list[int]:
    return sequences(stream.next(timeout=5) for _ in range(count))


def upto(last: int, first: int = 1) -> list[int]:
    return list(range(first, last + 1))
