"""A consumer: fetch, next, messages, consume (ADR-37)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..api.client import ApiClient
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.kinds import at_least
from ..api.message import JetStreamMessage
from .consume import Callback, ConsumeContext, start_consume
from .fetch import MessageBatch, fetch, next_message
from .messages import MessageStream
from .pull import PullTarget
from .pull_options import ConsumeOptions, Duration, FetchOptions, Priority
from .refill import Refill
from .take import Endless, ErrorCallback


class PullConsumer(ABC):
    """The ways to get messages that Consumer and OrderedConsumer share: they check options, and the hooks pull."""

    __slots__ = ("__weakref__",)

    _stream: type[MessageStream] = MessageStream

    @abstractmethod
    def _fetch(self, options: FetchOptions) -> MessageBatch: ...

    @abstractmethod
    def _next(self, options: FetchOptions) -> JetStreamMessage | None: ...

    @abstractmethod
    def _endless(
        self, options: ConsumeOptions, check: bool, on_error: ErrorCallback | None, workers: int = 0
    ) -> Endless:
        """A feed that is not started, for so many threads of the library; 0: for a thread of the user's."""

    def _priority(self, *given: Any) -> Priority:
        return Priority(*given).checked()

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: Duration = 5.0,
        idle_heartbeat: Duration | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageBatch:
        """Ask for up to `max_messages` or `max_bytes`; the server waits up to `expires` seconds for them.

        With `idle_heartbeat` the server shows that it is there every so many seconds, and their absence is an
        error: by default half of `expires`, at most 30 s, if that is more than 30 s.

        Returns at once; iterating the batch blocks, never much longer than `expires`, and raises PullError,
        ConsumerDeletedError, ConnectionLostError and others after the messages that came before.
        """
        chosen = self._priority(group, min_pending, min_ack_pending, priority)
        return self._fetch(FetchOptions.make(max_messages, max_bytes, expires, idle_heartbeat, priority=chosen))

    def fetch_nowait(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageBatch:
        """Like fetch(), but only what is there now: up to `max_messages` or `max_bytes`."""
        chosen = self._priority(group, min_pending, min_ack_pending, priority)
        return self._fetch(FetchOptions.make(max_messages, max_bytes, no_wait=True, priority=chosen))

    def next(
        self,
        expires: Duration = 5.0,
        *,
        idle_heartbeat: Duration | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> JetStreamMessage | None:
        """One message, or None when none came within `expires` seconds. `idle_heartbeat`, errors: see fetch()."""
        chosen = self._priority(group, min_pending, min_ack_pending, priority)
        return self._next(FetchOptions.make(1, None, expires, idle_heartbeat, priority=chosen))

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        check_on_reconnect: bool = True,
        on_error: ErrorCallback | None = None,
        auto_progress: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageStream:
        """An endless iterator over the consumer's messages, pulled ahead up to `max_messages` or `max_bytes`.

        Without them as many are pulled ahead as the loop handles in a sixth of the consumer's ack_wait, in 1 s at
        most: one at first, up to 500, never more than max_ack_pending. With ack policy none 500. A message counts
        as handled when the next one is asked for. `threshold_messages` or `threshold_bytes` pending: the next pull
        is sent, by default at half of the limit.

        It rides out reconnects, elections and missed heartbeats; `on_error` is told of them (else the log). When
        pulls stay unanswered, and after a reconnect, the consumer is looked up (unless `check_on_reconnect` is
        False); one that is gone ends the iteration with ConsumerNotFoundError or StreamNotFoundError.

        Each pull waits up to `expires` seconds on the server, which sends a heartbeat every `idle_heartbeat`
        seconds (0.5 to 30; by default half of `expires`). The next pull goes out when no more than
        `threshold_messages` or `threshold_bytes` are left of the last ones.

        What waits in the buffer is kept alive while messages are taken; with `auto_progress` so is the message
        handed out last, until the next one is asked for: long work is not delivered again.
        """
        if on_error is not None and not callable(on_error):
            raise TypeError("on_error must be callable")
        chosen = self._priority(group, min_pending, min_ack_pending, priority)
        options = ConsumeOptions.make(
            max_messages, max_bytes, expires, idle_heartbeat, threshold_messages, threshold_bytes, chosen
        )
        feed = self._endless(options, check_on_reconnect, on_error)
        # First the stream: interrupted after the start, it is dropped, which ends the feed.
        stream = self._stream(feed, auto_progress)
        feed.start()
        return stream

    def consume(
        self,
        callback: Callback,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        check_on_reconnect: bool = True,
        on_error: ErrorCallback | None = None,
        max_workers: int = 1,
        auto_progress: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> ConsumeContext:
        """Call `callback(msg)` for each message, on a thread of the library's own; returns at once.

        How messages are pulled is that of messages(), with the same parameters.

        A callback that raises leaves its message unacknowledged (it comes again) and is reported to `on_error`.
        `max_workers` callbacks run at once, order not kept. With `auto_progress` the server is told, while a
        callback runs, that it is still at work, so long work is not delivered again. messages() says how far
        ahead is pulled, and how what waits in the buffer is kept alive.
        """
        if not callable(callback):
            raise TypeError("callback must be callable")
        at_least("max_workers", max_workers, 1)
        if on_error is not None and not callable(on_error):
            raise TypeError("on_error must be callable")
        chosen = self._priority(group, min_pending, min_ack_pending, priority)
        options = ConsumeOptions.make(
            max_messages, max_bytes, expires, idle_heartbeat, threshold_messages, threshold_bytes, chosen
        )
        feed = self._endless(options, check_on_reconnect, on_error, max_workers)
        return start_consume(feed, callback, max_workers, auto_progress)


class Consumer(PullConsumer):
    """A pull consumer of a stream. Thread-safe: several threads may fetch from one consumer.

    The options `group`, `min_pending`, `min_ack_pending` and `priority` are for consumers with priority groups
    (server 2.11 and later); a pinned client's id is kept by this object.
    """

    __slots__ = ("_api", "_info", "_target")

    def __init__(self, client: ApiClient, info: ConsumerInfo) -> None:
        self._api = ConsumerApi(client)
        self._info = info
        self._target = PullTarget(client, info)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The stream it reads."""
        return self._info.stream_name

    @property
    def info(self) -> ConsumerInfo:
        """What the server last told this object; get_info() asks again."""
        return self._info

    def get_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when it is gone."""
        self._info = self._api.info(self.stream_name, self.name)
        self._target.learn(self._info)
        return self._info

    def delete(self) -> None:
        """Delete the consumer on the server."""
        self._api.delete(self.stream_name, self.name)

    def _fetch(self, options: FetchOptions) -> MessageBatch:
        return fetch(self._target, options)

    def _next(self, options: FetchOptions) -> JetStreamMessage | None:
        return next_message(self._target, options)

    def _endless(
        self, options: ConsumeOptions, check: bool, on_error: ErrorCallback | None, workers: int = 0
    ) -> Endless:
        check_now = self.get_info if check else None
        return Refill(self._target, options, workers=max(1, workers), check=check_now, on_error=on_error)

    def __repr__(self) -> str:
        info = self._info
        counts = f"pending={info.num_pending} ack_pending={info.num_ack_pending}"
        return f"<Consumer {self.name!r} of stream {self.stream_name!r} {counts}>"
