"""The names of nats-py, for programs that come from there: methods of JetStream and subscriptions, and errors.

Each name here is an alias of something that has another name in this library; docs/from-nats-py.md has the table.
`from jetstream_sync import nats_py as errors` stands in for both `nats.errors` and `nats.js.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .errors import *  # noqa: F403
from .errors import (
    APIError,
    ConnectionClosedError,
    ConnectionLostError,
    JetStreamUnavailableError,
    NatsError,
    NoServersError,
    ProtocolError,
    SequenceMismatchError,
    SubscriptionClosedError,
    TimeoutError,
)
from .errors import __all__ as _errors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .api.config import ConsumerConfig, ConsumerConfigLike, StreamConfigLike
    from .api.field_types import ConsumerFields, StreamFields
    from .api.info import ConsumerInfo, RawStreamMsg, StreamInfo
    from .api.stream_api import StreamApi
    from .consumers.pull_subscription import PullSubscription
    from .consumers.push import PushSubscription

# --- errors -----------------------------------------------------------------------------------------------------

Error = NatsError
BadSubscriptionError = SubscriptionClosedError
BadTimeoutError = ValueError
ConnectionDrainingError = ConnectionClosedError
ConnectionReconnectingError = ConnectionLostError
ConsumerSequenceMismatchError = SequenceMismatchError
FetchTimeoutError = TimeoutError
FlushTimeoutError = TimeoutError
InvalidCallbackTypeError = TypeError
InvalidUserCredentialsError = ValueError
JsonParseError = ProtocolError
SecureConnFailedError = NoServersError
SecureConnRequiredError = NoServersError
SecureConnWantedError = NoServersError
ServerError = APIError
ServiceUnavailableError = JetStreamUnavailableError
UnexpectedEOF = ConnectionLostError


class MsgAlreadyAckdError(NatsError):
    """Never raised: a second acknowledgement of a message is ignored."""


ERRORS = (
    "BadSubscriptionError",
    "BadTimeoutError",
    "ConnectionDrainingError",
    "ConnectionReconnectingError",
    "ConsumerSequenceMismatchError",
    "Error",
    "FetchTimeoutError",
    "FlushTimeoutError",
    "InvalidCallbackTypeError",
    "InvalidUserCredentialsError",
    "JsonParseError",
    "MsgAlreadyAckdError",
    "SecureConnFailedError",
    "SecureConnRequiredError",
    "SecureConnWantedError",
    "ServerError",
    "ServiceUnavailableError",
    "UnexpectedEOF",
)

__all__ = [*ERRORS, *_errors]


# --- methods ----------------------------------------------------------------------------------------------------


class SubscriptionNames:
    """Names of nats-py on subscriptions."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Any]: ...

    @property
    def messages(self) -> Iterator[Any]:
        """nats-py's name for iterating over the subscription itself."""
        return iter(self)


class JetStreamNames:
    """Names of nats-py on the JetStream context. What they return is what nats-py's return."""

    __slots__ = ()

    if TYPE_CHECKING:
        _streams: StreamApi
        create_stream: Callable[..., Any]
        create_or_update_consumer: Callable[..., Any]
        get_consumer: Callable[..., Any]
        subscribe: Callable[..., PushSubscription]
        pull_subscribe: Callable[..., PullSubscription]

    def add_stream(self, config: StreamConfigLike = None, /, **fields: Unpack[StreamFields]) -> StreamInfo:
        """nats-py's create_stream(): takes the same `config` and `fields`, and returns the stream's info."""
        info: StreamInfo = self.create_stream(config, **fields).info
        return info

    def stream_info(self, name: str, subjects_filter: str | None = None) -> StreamInfo:
        """nats-py's get_stream(`name`).info; `subjects_filter` adds the number of messages of each subject."""
        return self._streams.info(name, subjects_filter=subjects_filter)

    def purge_stream(
        self, name: str, seq: int | None = None, subject: str | None = None, keep: int | None = None
    ) -> bool:
        """nats-py's Stream.purge() of the stream `name`. Returns True.

        It deletes messages before `seq`, those of `subject`, all but the last `keep`.
        """
        self._streams.purge(name, subject=subject, sequence=seq, keep=keep)
        return True

    def get_msg(
        self,
        stream_name: str,
        seq: int | None = None,
        subject: str | None = None,
        direct: bool = False,
        next: bool = False,
    ) -> RawStreamMsg:
        """nats-py's Stream.get_message() of `stream_name`: by `seq`, or the last of `subject`.

        With `next` the first of `subject` that is at `seq` or behind it. `direct` asks any replica of a stream
        that allows Direct Get.
        """
        if subject is None or next:
            return self._streams.get_message(
                stream_name, direct=direct, seq=seq, last_by_subject=None, next_by_subject=subject
            )
        return self.get_last_msg(stream_name, subject, direct)

    def get_last_msg(self, stream_name: str, subject: str, direct: bool = False) -> RawStreamMsg:
        """nats-py's Stream.get_message(last_by_subject=`subject`) of `stream_name`; `direct` as for get_msg()."""
        return self._streams.get_message(
            stream_name, direct=direct, seq=None, last_by_subject=subject, next_by_subject=None
        )

    def delete_msg(self, stream_name: str, seq: int) -> bool:
        """nats-py's Stream.delete_message(`seq`) of `stream_name`. Returns True."""
        self._streams.delete_message(stream_name, seq, erase=False)
        return True

    def add_consumer(
        self, stream: str, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]
    ) -> ConsumerInfo:
        """nats-py's create_or_update_consumer(): takes the same, and returns the consumer's info.

        `config` and `fields` are the consumer's, as in Stream.create_consumer(); `stream` is its stream.
        """
        info: ConsumerInfo = self.create_or_update_consumer(stream, config, **fields).info
        return info

    def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        """nats-py's get_consumer(`stream`, `consumer`).info."""
        info: ConsumerInfo = self.get_consumer(stream, consumer).info
        return info

    def subscribe_bind(
        self,
        stream: str,
        config: ConsumerConfig | None,
        consumer: str,
        cb: Callable[[Any], Any] | None = None,
        manual_ack: bool = False,
        **limits: int,
    ) -> PushSubscription:
        """nats-py's subscribe(`stream`, `consumer`): to a push consumer that is there.

        Of `config` the deliver group is used: it is the queue. `cb` and `manual_ack` are those of subscribe();
        `limits` are pending_msgs_limit and pending_bytes_limit.
        """
        queue = None if config is None else config.deliver_group
        return self.subscribe(
            stream=stream, consumer=consumer, queue=queue, cb=cb, manual_ack=manual_ack, **limits
        )

    def pull_subscribe_bind(
        self,
        consumer: str | None = None,
        stream: str | None = None,
        *,
        durable: str | None = None,
        name: str | None = None,
    ) -> PullSubscription:
        """nats-py's pull_subscribe(`stream`, `consumer`). `durable` and `name` are other names of `consumer`."""
        bind = consumer or durable or name
        if bind is None or stream is None:
            raise ValueError("pull_subscribe_bind needs a stream and the name of a consumer")
        return self.pull_subscribe(stream=stream, consumer=bind)
