"""auto_progress: what handlers hold, so that the server can be asked for more time for it.

No lock: single operations of a dict, which are atomic. The threads that handle messages say what they hold;
js-refill asks what is due, at the looks of its keep-alive.
"""

from __future__ import annotations

from collections.abc import Callable

from ..api.message import JetStreamMessage


class Progress:
    """The messages that handlers hold."""

    def __init__(self, rouse: Callable[[], None]) -> None:
        """`rouse` has the keep-alive look again where it sleeps."""
        self._rouse = rouse
        self._held: dict[int, JetStreamMessage] = {}
        self._held_before: dict[int, JetStreamMessage] = {}  # at the last look

    def hold(self, message: JetStreamMessage) -> None:
        """A handler begins with `message`."""
        self._held[id(message)] = message
        self._rouse()

    def release(self, message: JetStreamMessage) -> None:
        """The handler is done, or no more time is to be asked for. Idempotent."""
        self._held.pop(id(message), None)

    def release_all(self) -> None:
        self._held.clear()

    @property
    def at_work(self) -> bool:
        """Whether a message is held that is not acknowledged yet."""
        return any(not message.is_acked for message in self._held.copy().values())

    def due(self) -> list[JetStreamMessage]:
        """What was held at the look before and still is; asked at each look, by one thread."""
        held, before = self._held.copy(), self._held_before
        self._held_before = held
        return [message for key, message in held.items() if before.get(key) is message and not message.is_acked]
