"""A consumer: fetch, next, messages, consume (ADR-37)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..api.client import ApiClient
from ..api.consumer_api import ConsumerApi
from ..api.info import ConsumerInfo
from ..api.message import JetStreamMessage
from .consume import Callback, ConsumeContext, start_consume
from .fetch import MessageBatch, fetch, next_message
from .messages import MessageStream, start_messages
from .pull import PullTarget
from .pull_options import DEFAULT_MAX_MESSAGES, ConsumeOptions, FetchOptions, Priority
from .refill import Refill

Duration = float | timedelta
ErrorCallback = Callable[[Exception], Any]


class Consumer:
    """A pull consumer of a stream. Thread-safe: several threads may fetch from one consumer.

    The options `group`, `min_pending`, `min_ack_pending` and `priority` are for consumers with priority groups
    (server 2.11 and later); a pinned client's id is kept by this object.
    """

    def __init__(self, client: ApiClient, info: ConsumerInfo) -> None:
        self._api = ConsumerApi(client)
        self._info = info
        self._target = PullTarget(client, info)

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def stream_name(self) -> str:
        return self._info.stream_name

    @property
    def info(self) -> ConsumerInfo:
        """What the server last told this object; get_info() asks again."""
        return self._info

    def get_info(self) -> ConsumerInfo:
        """Ask the server for the consumer's state. Raises ConsumerNotFoundError when it is gone."""
        self._info = self._api.info(self.stream_name, self.name)
        return self._info

    def delete(self) -> None:
        """Delete the consumer on the server."""
        self._api.delete(self.stream_name, self.name)

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
        """Ask for up to `max_messages` or `max_bytes`; the server waits up to `expires` for them.

        Returns at once; iterating the batch blocks, never much longer than `expires`, and raises PullError,
        ConsumerDeletedError, ConnectionLostError and others after the messages that came before.
        """
        options = FetchOptions.make(
            max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            priority=Priority.make(group, min_pending, min_ack_pending, priority),
        )
        return fetch(self._target, options)

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
        """Like fetch(), but only what is there now."""
        chosen = Priority.make(group, min_pending, min_ack_pending, priority)
        options = FetchOptions.make(max_messages, max_bytes=max_bytes, no_wait=True, priority=chosen)
        return fetch(self._target, options)

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
        """One message, or None when none came within `expires`. Raises like fetch()."""
        chosen = Priority.make(group, min_pending, min_ack_pending, priority)
        options = FetchOptions.make(1, expires=expires, idle_heartbeat=idle_heartbeat, priority=chosen)
        return next_message(self._target, options)

    def messages(
        self,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_bytes: int | None = None,
        expires: Duration = 30.0,
        idle_heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        check_on_reconnect: bool = True,
        on_error: ErrorCallback | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageStream:
        """An endless iterator over the consumer's messages, pulled ahead up to `max_messages` or `max_bytes`.

        It rides out reconnects, elections and missed heartbeats; `on_error` is told of them (else the log).
        """
        options = ConsumeOptions.make(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            priority=Priority.make(group, min_pending, min_ack_pending, priority),
        )
        return start_messages(self._refill(options, check_on_reconnect, on_error))

    def consume(
        self,
        callback: Callback,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
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

        A callback that raises leaves its message unacknowledged (it comes again) and is reported to `on_error`.
        `max_workers` callbacks run at once, order not kept. With `auto_progress` the server is told, while a
        callback runs, that it is still at work, so long work is not delivered again.
        """
        if not callable(callback):
            raise TypeError("callback must be callable")
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
            raise ValueError(f"max_workers must be an int of at least 1: {max_workers!r}")
        options = ConsumeOptions.make(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            priority=Priority.make(group, min_pending, min_ack_pending, priority),
        )
        refill = self._refill(options, check_on_reconnect, on_error)
        return start_consume(refill, callback, max_workers=max_workers, auto_progress=auto_progress)

    def _refill(self, options: ConsumeOptions, check_on_reconnect: bool, on_error: ErrorCallback | None) -> Refill:
        if on_error is not None and not callable(on_error):
            raise TypeError("on_error must be callable")
        check = self.get_info if check_on_reconnect else None
        return Refill(self._target, options, check=check, on_error=on_error)

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of stream {self.stream_name!r}>"
