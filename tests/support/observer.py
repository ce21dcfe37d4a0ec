"""A second connection that records every pull, ack and flow-control reply of the client.

It is a subscriber of these subjects: do not use it in a test that expects "no responders".
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream, Message
from jetstream_sync.errors import NatsError
from tests.support.eventually import eventually


class Seen(NamedTuple):
    """A recorded message."""

    at: float
    subject: str
    reply: str | None
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body of a pull request; an empty one means batch 1."""
        return json.loads(self.data) if self.data else {"batch": 1}


class Observer:
    """Records pulls, acks and flow-control replies until it is closed. It survives restarts of the server."""

    def __init__(self, url: str | list[str]) -> None:
        self.pulls: list[Seen] = []
        self.acks: list[Seen] = []
        self.flow: list[Seen] = []
        self._nc = jetstream_sync.connect(url, name="observer")
        self._subs = [
            self._nc.subscribe("$JS.API.CONSUMER.MSG.NEXT.>", cb=lambda msg: self._note(self.pulls, msg)),
            self._nc.subscribe("$JS.ACK.>", cb=lambda msg: self._note(self.acks, msg)),
            self._nc.subscribe("$JS.FC.>", cb=lambda msg: self._note(self.flow, msg)),
        ]
        self._nc.flush()

    def _note(self, where: list[Seen], message: Message) -> None:
        where.append(Seen(time.monotonic(), message.subject, message.reply, message.data))

    def settle(self, nc: Connection) -> None:
        """Wait until everything that `nc` has sent so far is recorded."""
        nc.flush()
        self._nc.flush()
        eventually(lambda: self._recorded() >= self._received(), message="everything received is recorded")

    def _received(self) -> int:
        return sum(sub.delivered + sub.pending_msgs for sub in self._subs)

    def _recorded(self) -> int:
        return len(self.pulls) + len(self.acks) + len(self.flow)

    def wait_for_pulls(self, count: int, timeout: float = 5.0) -> list[Seen]:
        eventually(lambda: len(self.pulls) >= count, timeout, f"{count} pulls seen")
        return self.pulls

    def acked_once(self) -> dict[str, int]:
        """How many terminal acks each message's reply subject got."""
        counts: dict[str, int] = defaultdict(int)
        for seen in list(self.acks):
            if not seen.data.startswith(b"+WPI"):
                counts[seen.subject] += 1
        return counts

    def wait_connected(self) -> None:
        def connected() -> bool:
            try:
                self._nc.flush(1.0)
                return True
            except NatsError:
                return False

        eventually(connected, 15.0, "the observer is connected")

    def close(self) -> None:
        self._nc.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fill(js: JetStream, count: int, *, subject: str = "s.x", size: int = 0, first: int = 0) -> None:
    """Publish messages numbered from `first`, each padded to `size` bytes."""
    payloads = (b"%d" % number for number in range(first, first + count))
    futures = [js.publish_async(subject, payload.ljust(size, b".")) for payload in payloads]
    for future in futures:
        future.result(10)


def stream_and_consumer(js: JetStream, count: int = 0, **config: Any) -> Consumer:
    """Stream S on `s.>`, durable consumer C with `config`, and `count` messages in it."""
    js.create_stream(name="S", subjects=["s.>"])
    consumer = js.create_consumer("S", durable_name="C", **config)
    if count:
        fill(js, count)
    return consumer


def await_pending(consumer: Consumer, count: int) -> None:
    """Wait until the server counts `count` messages as pending: it tells its consumers after the publisher."""
    eventually(lambda: consumer.get_info().num_pending == count)


def server_version(nc: Connection) -> tuple[int, ...]:
    """The version of the running server, to compare with tuples such as (2, 11, 5)."""
    return tuple(int(part) for part in nc.server_info["version"].split("-")[0].split("."))


def waiting_pulls(consumer: Consumer) -> int:
    """How many pulls are waiting at the server, as it reports."""
    return consumer.get_info().num_waiting or 0


def consumers(js: JetStream) -> list[str]:
    """The names of the consumers of stream S, sorted."""
    return sorted(js.get_stream("S").consumer_names())
