"""NATS JetStream for Python without asyncio: a blocking, thread-based client on the standard library alone."""

from . import errors
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
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)
from .api.info import (
    AccountInfo,
    AccountLimits,
    APIStats,
    ClusterInfo,
    ConsumerInfo,
    ConsumerPause,
    DesiredCluster,
    DesiredClusterOrigin,
    DesiredClusterStatus,
    LostStreamData,
    PeerInfo,
    PriorityGroupState,
    PubAck,
    RawStreamMsg,
    SequenceInfo,
    StreamAlternate,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
    Tier,
)
from .api.message import JetStreamMessage, Metadata, SequencePair
from .api.publish_many import PublishSummary
from .consumers.consume import ConsumeContext
from .consumers.consumer import Consumer
from .consumers.fetch import MessageBatch
from .consumers.messages import MessageStream
from .consumers.ordered import OrderedConsumer
from .consumers.pull_subscription import PullSubscription
from .consumers.push import PushSubscription
from .errors import *  # noqa: F403
from .jetstream import JetStream
from .net.auth import RawCredentials
from .net.connect import connect
from .net.connection import Connection, Stats, Status
from .net.health import Health
from .net.message import Message
from .net.servers import PoolServer
from .net.subscription import Subscription
from .protocol.headers import Headers
from .stream import Stream

__all__ = [
    "APIStats",
    "AccountInfo",
    "AccountLimits",
    "AckPolicy",
    "BatchMessage",
    "ClusterInfo",
    "Connection",
    "ConsumeContext",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerPause",
    "DeliverPolicy",
    "DesiredCluster",
    "DesiredClusterOrigin",
    "DesiredClusterStatus",
    "DiscardPolicy",
    "ExternalStream",
    "Headers",
    "Health",
    "JetStream",
    "JetStreamMessage",
    "LostStreamData",
    "Message",
    "MessageBatch",
    "MessageStream",
    "Metadata",
    "OrderedConsumer",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PoolServer",
    "PriorityGroupState",
    "PriorityPolicy",
    "PubAck",
    "PublishBatch",
    "PublishSummary",
    "PullSubscription",
    "PushSubscription",
    "RawCredentials",
    "RawStreamMsg",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "SequenceInfo",
    "SequencePair",
    "Stats",
    "Status",
    "StorageType",
    "StoreCompression",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "Subscription",
    "Tier",
    "__version__",
    "connect",
]
__all__ += errors.__all__
