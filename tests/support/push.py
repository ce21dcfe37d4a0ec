"""Helpers for tests of push subscriptions."""

from __future__ import annotations

from jetstream_sync import JetStreamMessage, PushSubscription
from tests.support.eventually import eventually


def take(sub: PushSubscription, count: int) -> list[int]:
    return [int(sub.next_msg(5.0).data) for _ in range(count)]


class Collector:
    """A callback that keeps the messages and lets a test wait for them."""

    def __init__(self) -> None:
        self.messages: list[JetStreamMessage] = []

    def __call__(self, message: JetStreamMessage) -> None:
        self.messages.append(message)

    def wait(self, count: int, timeout: float = 5.0) -> list[int]:
        eventually(lambda: len(self.messages) >= count, timeout, f"{count} messages handled")
        return [int(message.data) for message in self.messages]
