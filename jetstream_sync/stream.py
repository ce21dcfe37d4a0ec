"""A stream and its consumers (ADR-37)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .api.client import ApiClient
from .api.config import ConsumerConfig, ConsumerConfigLike
from .api.consumer_api import ConsumerApi
from .api.fields import merged
from .api.info import ConsumerInfo, ConsumerPause, RawStreamMsg, StreamInfo
from .api.stream_api import StreamApi
from .consumers.consumer import Consumer
from .consumers.ordered import OrderedConsumer
from .errors import JetStreamError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .api.field_types import ConsumerFields, OrderedFields


class ConsumerManager:
    """The consumer operations that a stream and the JetStream context share. Thread-safe."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._api = ConsumerApi(client)

    def create(self, stream: str, config: ConsumerConfigLike, fields: Mapping[str, Any]) -> Consumer:
        return self._consumer(self._api.create(stream, merged(ConsumerConfig, config, fields)))

    def update(self, stream: str, config: ConsumerConfigLike, fields: Mapping[str, Any]) -> Consumer:
        return self._consumer(self._api.update(stream, merged(ConsumerConfig, config, fields)))

    def create_or_update(self, stream: str, config: ConsumerConfigLike, fields: Mapping[str, Any]) -> Consumer:
        return self._consumer(self._api.create_or_update(stream, merged(ConsumerConfig, config, fields)))

    def get(self, stream: str, name: str) -> Consumer:
        return self._consumer(self._api.info(stream, name))

    def ordered(
        self,
        stream: str,
        *,
        name_prefix: str | None = None,
        max_reset_attempts: int | None = None,
        **fields: Any,
    ) -> OrderedConsumer:
        return OrderedConsumer(
            self._client, stream, fields, name_prefix=name_prefix, max_reset_attempts=max_reset_attempts
        )

    def _consumer(self, info: ConsumerInfo) -> Consumer:
        return Consumer(self._client, info)


class Stream:
    """A stream on the server. Thread-safe.

    Every method sends a request and blocks for its reply, up to the timeout of the JetStream context. All raise
    TimeoutError, ConnectionLostError, and APIError or a subclass when the server replies with an error.
    """

    __slots__ = ("__weakref__", "_api", "_client", "_consumer_api", "_consumers", "_info", "_name")

    def __init__(self, client: ApiClient, info: StreamInfo) -> None:
        self._client = client
        self._api = StreamApi(client)
        self._consumer_api = ConsumerApi(client)
        self._consumers = ConsumerManager(client)
        self._info = info
        self._name = info.config.name

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._name

    @property
    def info(self) -> StreamInfo:
        """The configuration and state as last received; get_info() asks the server again."""
        return self._info

    def get_info(self, *, deleted_details: bool = False, subjects_filter: str | None = None) -> StreamInfo:
        """Ask the server for the stream's configuration and state.

        `deleted_details` adds the sequences of deleted messages, `subjects_filter` the number of messages of each
        subject that matches it. Raises StreamNotFoundError when the stream was deleted.
        """
        self._info = self._api.info(self.name, deleted_details=deleted_details, subjects_filter=subjects_filter)
        return self._info

    def delete(self) -> None:
        """Delete the stream with its messages and consumers. Raises StreamNotFoundError if it is gone."""
        self._api.delete(self.name)

    # --- messages -----------------------------------------------------------------------------------

    def purge(self, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None) -> int:
        """Delete messages and return how many.

        By default all messages are deleted. `subject` (wildcards allowed) limits this to messages of that subject,
        `sequence` to messages before that sequence; `keep` keeps the last so many. Raises ValueError when
        `sequence` and `keep` are both given.
        """
        return self._api.purge(self.name, subject=subject, sequence=sequence, keep=keep)

    def get_message(
        self, seq: int | None = None, *, last_by_subject: str | None = None, next_by_subject: str | None = None
    ) -> RawStreamMsg:
        """Read a stored message, without a consumer.

        Pass `seq` for the message with that sequence, `last_by_subject` for the last message of a subject, or
        `next_by_subject` for the first message of a subject at or after `seq` (default: the first in the stream).
        Uses Direct Get if the stream allows it. Raises MessageNotFoundError when there is no such message.
        """
        return self._api.get_message(
            self.name,
            direct=bool(self._info.config.allow_direct),
            seq=seq,
            last_by_subject=last_by_subject,
            next_by_subject=next_by_subject,
        )

    def tail(self, n: int = 10, *, subject: str | None = None) -> list[RawStreamMsg]:
        """The last `n` messages of the stream, the oldest of them first; fewer where it has fewer.

        `subject` (wildcards allowed) counts only messages of that subject. No consumer is made, so this works with
        every stream and changes nothing. It sends a request per message, and some more where many of the newest
        sequences are deleted or of other subjects: for looking at a stream, not for reading it.
        """
        return self._api.tail(self.name, n, subject)

    def delete_message(self, seq: int) -> None:
        """Delete the message with the sequence `seq`. Its bytes may stay on disk until they are overwritten."""
        self._api.delete_message(self.name, seq, erase=False)

    def secure_delete_message(self, seq: int) -> None:
        """Delete the message with the sequence `seq` and overwrite its bytes."""
        self._api.delete_message(self.name, seq, erase=True)

    # --- consumers ----------------------------------------------------------------------------------

    def create_consumer(self, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]) -> Consumer:
        """Create a consumer from `config` (a ConsumerConfig or a dict of its fields), keywords `fields`, or both.

        For example `create_consumer(durable_name="billing", ack_wait=60)`. A consumer that exists with the same
        configuration is returned. Raises ConsumerExistsError when it exists with another one.
        """
        return self._consumers.create(self.name, config, fields)

    def update_consumer(self, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]) -> Consumer:
        """Change the configuration of a consumer, given as for create_consumer().

        Raises ConsumerNotFoundError when there is none of that name.
        """
        return self._consumers.update(self.name, config, fields)

    def create_or_update_consumer(
        self, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer, or change its configuration if it exists. Parameters: see create_consumer()."""
        return self._consumers.create_or_update(self.name, config, fields)

    def get_consumer(self, name: str) -> Consumer:
        """The consumer called `name`. Raises ConsumerNotFoundError when there is none."""
        return self._consumers.get(self.name, name)

    def delete_consumer(self, name: str) -> None:
        """Delete the consumer `name`. Raises ConsumerNotFoundError when there is none."""
        self._consumer_api.delete(self.name, name)

    def ordered_consumer(self, **fields: Unpack[OrderedFields]) -> OrderedConsumer:
        """A consumer that delivers every message once and in order. `fields`: see JetStream.ordered_consumer()."""
        return self._consumers.ordered(self.name, **fields)

    def list_consumers(self) -> Iterator[ConsumerInfo]:
        """Iterate over the consumers of the stream. The iterator requests page after page."""
        return self._consumer_api.list(self.name)

    def consumer_names(self) -> Iterator[str]:
        """Iterate over the names of the stream's consumers. The iterator requests page after page."""
        return self._consumer_api.names(self.name)

    def pause_consumer(self, name: str, until: datetime) -> ConsumerPause:
        """Have the consumer `name` deliver nothing until `until`, an aware datetime. Needs server 2.11."""
        return self._consumer_api.pause(self.name, name, until)

    def resume_consumer(self, name: str) -> ConsumerPause:
        """End the pause of the consumer `name`. Needs server 2.11 or later."""
        return self._consumer_api.pause(self.name, name, None)

    def unpin_consumer(self, name: str, group: str) -> None:
        """Unpin the client that is pinned in the priority group `group` of the consumer `name`.

        The server pins another. Needs server 2.11 or later.
        """
        self._consumer_api.unpin(self.name, name, group)

    def __repr__(self) -> str:
        try:
            state = self._info.state
        except JetStreamError:  # what the server sent cannot be read
            return f"<Stream {self.name!r}>"
        return (
            f"<Stream {self.name!r} messages={state.messages} bytes={state.bytes} last_seq={state.last_seq} "
            f"consumers={state.consumer_count}>"
        )
