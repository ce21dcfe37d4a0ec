"""NATS JetStream for Python without asyncio: a blocking, thread-based client on the standard library alone."""

from ._version import __version__
from .api.batch import BatchMessage, PublishBatch
from .api.config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    Republish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConfig,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from .api.info import AccountInfo, ConsumerInfo, PubAck, RawStreamMsg, StreamInfo, StreamState
from .api.message import JetStreamMessage, Metadata
from .consumers.consume import ConsumeContext
from .consumers.consumer import Consumer
from .consumers.fetch import MessageBatch
from .consumers.messages import MessageStream
from .consumers.ordered import OrderedConsumer
from .consumers.pull_subscription import PullSubscription
from .consumers.push import PushSubscription
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .jetstream import JetStream
from .net.connect import connect
from .net.connection import Connection, Stats, Status
from .net.message import Message
from .net.subscription import Subscription
from .protocol.headers import Headers
from .stream import Stream

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "BatchMessage",
    "Connection",
    "ConsumeContext",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "Headers",
    "JetStream",
    "JetStreamMessage",
    "Message",
    "MessageBatch",
    "MessageStream",
    "Metadata",
    "OrderedConsumer",
    "PersistMode",
    "Placement",
    "PriorityPolicy",
    "PubAck",
    "PublishBatch",
    "PullSubscription",
    "PushSubscription",
    "RawStreamMsg",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "Stats",
    "Status",
    "StorageType",
    "StoreCompression",
    "Stream",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamInfo",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "Subscription",
    "__version__",
    "connect",
    *(name for name in _errors if name != "api_error"),
]
