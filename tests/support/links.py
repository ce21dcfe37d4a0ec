"""A link without a connection: it remembers what is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from jetstream_sync._deadline import Deadline
from jetstream_sync._log import Logs
from jetstream_sync.consumers.pull import PullTarget
from jetstream_sync.errors import ConnectionClosedError, ForkError, NotConnectedError, TimeoutError
from jetstream_sync.net.link import Link
from jetstream_sync.net.receiver import Receiver
from jetstream_sync.protocol import commands


class FakeOutbox:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.withdrawn: list[bytes] = []
        self.flushed = 0

    def publish(self, frame: bytes, size: int, *, keep: bool = True, coalesce: bool = False) -> None:
        assert not keep, "a pull request is for one session"
        self.sent.append(frame)

    def withdraw(self, *frames: bytes) -> bool:
        """As if none had left."""
        self.withdrawn += frames
        return True

    def send_all(self, items: list[Any], encode: Callable[[list[Any]], list[bytes]]) -> None:
        self.sent += encode(items)
        items.clear()

    def flush(self) -> None:
        self.flushed += 1


class FakeLink:
    """Everything happens at once, in the calling thread. `wire` is what would have been sent for receivers."""

    def __init__(self) -> None:
        self.outbox = FakeOutbox()
        self.receivers: dict[bytes, Receiver] = {}
        self.wire: list[bytes] = []
        self.connected = True
        self.closed = False
        self.forked = False
        self.logs = Logs("fake")
        self._inboxes = 0

    @property
    def link(self) -> Link:
        return cast(Link, self)

    def next_inbox(self) -> bytes:
        self._inboxes += 1
        return b"_INBOX.%d" % self._inboxes

    def check_process(self) -> None:
        if self.forked:
            raise ForkError()

    def open(self, receiver: Receiver) -> None:
        self.check_process()
        if self.closed:
            raise ConnectionClosedError()
        if self.receivers.get(receiver.sid) is receiver:
            return
        receiver.sid = b"%d" % (len(self.receivers) + 1)
        self.receivers[receiver.sid] = receiver
        self.wire.append(commands.subscribe(receiver.wire_subject, receiver.sid))
        left = receiver.remaining()
        if left:
            self.wire.append(commands.unsubscribe(receiver.sid, left))

    def close(self, receiver: Receiver) -> None:
        if self.receivers.get(receiver.sid) is receiver:
            del self.receivers[receiver.sid]
            if not receiver.completed:
                self.wire.append(commands.unsubscribe(receiver.sid))

    def leave(self, receiver: Receiver) -> None:
        self.close(receiver)

    def limit(self, receiver: Receiver, count: int) -> bool:
        if not receiver.set_limit(count):
            self.close(receiver)
            return False
        self.wire.append(commands.unsubscribe(receiver.sid, count))
        return True

    def not_connected(self, outcome: str) -> NotConnectedError:
        return NotConnectedError(f"not connected: {outcome}")

    def no_message(self) -> TimeoutError:
        return TimeoutError() if self.connected else self.not_connected("no message came in time")

    def drain(self, receivers: list[Receiver], deadline: Deadline) -> None:
        self.wire += [commands.unsubscribe(receiver.sid) for receiver in receivers]

    def soon(self, job: Callable[[], None]) -> None:
        job()


class FakeTarget(PullTarget):
    """A consumer on a FakeLink."""

    def __init__(self, fake: FakeLink, *, acks: bool = True) -> None:
        class Client:
            link = fake.link

            def subject(self, *tokens: str) -> str:
                return ".".join(("$JS.API", *tokens))

        super().__init__(cast(Any, Client()), cast(Any, _info(acks)))


def _info(acks: bool) -> Any:
    class Info:
        stream_name, name = "S", "C"

        class config:
            ack_policy = "explicit" if acks else "none"
            backoff: list[float] | None = None
            ack_wait = 30.0
            max_ack_pending = 1000

    return Info()
