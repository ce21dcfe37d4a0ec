"""What pulls are sent to: one consumer, its subject, and the pin ids learnt from it."""

from __future__ import annotations

from ..api.client import ApiClient
from ..api.config import AckPolicy
from ..api.info import ConsumerInfo
from ..api.message import SingleSource
from ..net.outbox import Ephemeral
from ..protocol import commands
from .pull_options import Priority


class PullTarget:
    """A consumer as pulls see it. Thread-safe: the pins are a dict whose single operations are atomic."""

    def __init__(self, client: ApiClient, info: ConsumerInfo) -> None:
        self.nc = client.nc
        self.stream_name = info.stream_name
        self.name = info.name
        self.acks = info.config.ack_policy != AckPolicy.NONE
        # The shortest time in which the server may lose patience: backoff replaces ack_wait.
        self.ack_wait = min(info.config.backoff or [info.config.ack_wait or 30.0])
        self.next_subject = client.subject("CONSUMER", "MSG", "NEXT", info.stream_name, info.name).encode()
        self.alone = SingleSource(self.acks)  # the source of messages that come one at a time
        self._pins: dict[str, str] = {}

    def pull_frame(self, body: bytes, inbox: bytes) -> Ephemeral:
        """The pull request as it goes out; it means nothing on another connection."""
        return Ephemeral(commands.publish(self.next_subject, body, inbox))

    # --- pinned clients (priority groups) -----------------------------------------------------------

    def pin_id(self, priority: Priority) -> str | None:
        return None if priority.group is None else self._pins.get(priority.group)

    def learn_pin(self, priority: Priority, pin: bytes | None) -> None:
        """A message carried `Nats-Pin-Id`: this client is the pinned one."""
        if pin and priority.group is not None:
            self._pins[priority.group] = pin.decode("ascii", "replace")

    def drop_pin(self, priority: Priority) -> None:
        """423: another client is pinned now."""
        if priority.group is not None:
            self._pins.pop(priority.group, None)
