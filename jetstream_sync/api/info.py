"""What the server tells about streams, consumers, the account and stored messages.

Names are the server's JSON names. Durations are seconds, times are aware datetimes (None where the server has
none to tell), lists and dicts are empty when the server leaves them out. Where a version is named the field
comes from that server or a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ..errors import APIError
from ..protocol.headers import Headers
from .config import (
    ConsumerConfig,
    ExternalStream,
    Placement,
    RetentionPolicy,
    StreamConfig,
    SubjectTransform,
)
from .fields import Info, described, wire, wire_object
from .kinds import (
    AGE,
    BASE64,
    DURATION,
    FLAG,
    HEADER_BLOCK,
    INT64,
    SERVER_ERROR,
    TEXT,
    TIMESTAMP,
    UINT64,
    Choice,
    ListOf,
    MapOf,
    Nested,
)

__all__ = [
    "APIStats",
    "AccountInfo",
    "AccountLimits",
    "ClusterInfo",
    "ConsumerInfo",
    "ConsumerPause",
    "DesiredCluster",
    "DesiredClusterOrigin",
    "DesiredClusterStatus",
    "LostStreamData",
    "PeerInfo",
    "PriorityGroupState",
    "PubAck",
    "RawStreamMsg",
    "SequenceInfo",
    "StreamAlternate",
    "StreamInfo",
    "StreamSourceInfo",
    "StreamState",
    "Tier",
]


# --- publishing and stored messages ---------------------------------------------------------------


@dataclass(slots=True, repr=False)  # with a generated constructor: one is made for every publish
class PubAck(Info):
    """The server's confirmation that a message is stored."""

    stream: str = field(metadata=described(TEXT))
    """The stream that stored it."""
    seq: int = field(metadata=described(UINT64))
    """Its sequence there; the earlier one's if it is a duplicate."""
    duplicate: bool = wire(FLAG, False)
    """A message with this id had been stored already: this one was not."""
    domain: str = wire(TEXT, "")
    """The stream's JetStream domain, empty if it has none."""
    val: str = wire(TEXT, "", since="2.12")
    """The counter's new value, as a decimal string, on a stream of counters. Since 2.12."""
    batch: str = wire(TEXT, "", since="2.12")
    """The id of the batch this ack ends. Since 2.12."""
    count: int = wire(UINT64, 0, since="2.12")
    """How many messages that batch had. Since 2.12."""


@wire_object
class RawStreamMsg(Info):
    """A message read from a stream by sequence or subject, outside of any consumer."""

    subject: str = field(metadata=described(TEXT))
    """The subject it was stored under."""
    seq: int = field(metadata=described(UINT64))
    """Its sequence in the stream."""
    data: bytes = wire(BASE64, b"")
    """The payload."""
    headers: Headers | None = wire(HEADER_BLOCK, key="hdrs")
    """The headers; None if it has none."""
    time: datetime | None = wire(TIMESTAMP)
    """When it was stored."""


# --- clusters -------------------------------------------------------------------------------------


@wire_object
class PeerInfo(Info):
    """A server that holds a replica."""

    name: str = wire(TEXT, "")
    """The server's name."""
    current: bool = wire(FLAG, False)
    """It was seen recently and has everything."""
    offline: bool = wire(FLAG, False)
    """It was not seen recently."""
    active: float | None = wire(AGE)
    """Seconds since it was last seen."""
    lag: int = wire(UINT64, 0)
    """How many operations it is behind."""
    peer: str = wire(TEXT, "")
    """Its id within the cluster."""
    pending: bool = wire(FLAG, False, since="2.15")
    """It is assigned but not yet a member of the group. Since 2.15."""


@wire_object
class DesiredClusterOrigin(Info):
    """What a stream or consumer that is being moved was before. Since 2.15."""

    replicas: int = wire(INT64, 0)
    """Its number of replicas."""
    placement: Placement | None = wire(Nested(Placement))
    """Its placement."""
    retention: RetentionPolicy | str | None = wire(Choice(RetentionPolicy))
    """Its retention policy, in force until the move is done."""


@wire_object
class DesiredClusterStatus(Info):
    """How far a move has come. Since 2.15."""

    description: str = wire(TEXT, "")
    """What the leader is doing or waiting for."""
    type: str = wire(TEXT, "")
    """The same as a word: meta, membership, snapshot, catchup, quorum, blocked, unavailable."""
    err: str = wire(TEXT, "")
    """The failure behind it, if it persists."""


@wire_object
class DesiredCluster(Info):
    """Where a stream or consumer is being moved to. Since 2.15."""

    name: str = wire(TEXT, "")
    """The cluster's name."""
    replicas: list[PeerInfo] = wire(ListOf(Nested(PeerInfo)), list)
    """The servers that will hold it."""
    origin: DesiredClusterOrigin | None = wire(Nested(DesiredClusterOrigin))
    """What it was before."""
    status: DesiredClusterStatus | None = wire(Nested(DesiredClusterStatus))
    """How far the move has come."""


@wire_object
class ClusterInfo(Info):
    """The servers that hold a stream or consumer."""

    name: str = wire(TEXT, "")
    """The cluster's name."""
    raft_group: str = wire(TEXT, "")
    """The name of its Raft group."""
    leader: str = wire(TEXT, "")
    """The server that leads it; empty when none does."""
    leader_since: datetime | None = wire(TIMESTAMP, since="2.11.9")
    """Since when that server leads. Since 2.11.9."""
    system_account: bool = wire(FLAG, False, since="2.11.9")
    """Replication goes over the system account. Since 2.11.9."""
    traffic_account: str = wire(TEXT, "", since="2.11.9")
    """The account replication goes over. Since 2.11.9."""
    replicas: list[PeerInfo] = wire(ListOf(Nested(PeerInfo)), list)
    """The other servers that hold it."""
    desired: DesiredCluster | None = wire(Nested(DesiredCluster), since="2.15")
    """Where it is being moved to, while it is. Since 2.15."""


# --- streams --------------------------------------------------------------------------------------


@wire_object
class LostStreamData(Info):
    """Messages that could not be read from disk."""

    msgs: list[int] = wire(ListOf(UINT64), list)
    """Their sequences."""
    bytes: int = wire(UINT64, 0)
    """Their size."""


@wire_object
class StreamState(Info):
    """What a stream holds."""

    messages: int = wire(UINT64, 0)
    """How many messages it holds."""
    bytes: int = wire(UINT64, 0)
    """How many bytes it holds."""
    first_seq: int = wire(UINT64, 0)
    """The sequence of the first message."""
    first_ts: datetime | None = wire(TIMESTAMP)
    """When the first message was stored; None when there is none."""
    last_seq: int = wire(UINT64, 0)
    """The sequence of the last message stored, even if it is gone."""
    last_ts: datetime | None = wire(TIMESTAMP)
    """When the last message was stored; None when there was none."""
    num_subjects: int = wire(UINT64, 0)
    """How many subjects the messages have."""
    subjects: dict[str, int] = wire(MapOf(UINT64), dict)
    """Messages per subject; only when asked for with `subjects_filter`."""
    num_deleted: int = wire(UINT64, 0)
    """How many messages between the first and the last are gone."""
    deleted: list[int] = wire(ListOf(UINT64), list)
    """Their sequences; only when asked for with `deleted_details`."""
    lost: LostStreamData | None = wire(Nested(LostStreamData))
    """What could not be read from disk."""
    consumer_count: int = wire(INT64, 0)
    """How many consumers it has."""


@wire_object
class StreamSourceInfo(Info):
    """How a stream keeps up with its origin or with one of its sources."""

    name: str = wire(TEXT, "")
    """The other stream's name."""
    external: ExternalStream | None = wire(Nested(ExternalStream))
    """Where it is, if in another account or domain."""
    lag: int = wire(UINT64, 0)
    """How many messages are still to be copied."""
    active: float | None = wire(AGE)
    """Seconds since it was last heard from; None when it never was."""
    error: APIError | None = wire(SERVER_ERROR)
    """Why copying fails, if it does."""
    filter_subject: str = wire(TEXT, "")
    """The subjects that are copied; empty means all."""
    subject_transforms: list[SubjectTransform] = wire(ListOf(Nested(SubjectTransform)), list)
    """The mappings that are applied."""


@wire_object
class StreamAlternate(Info):
    """A stream or mirror with the same messages, nearest first."""

    name: str = wire(TEXT, "")
    """Its name."""
    domain: str = wire(TEXT, "")
    """Its domain."""
    cluster: str = wire(TEXT, "")
    """Its cluster."""


@wire_object
class StreamInfo(Info):
    """A stream: its configuration and what it holds."""

    config: StreamConfig = field(metadata=described(Nested(StreamConfig)))
    """Its configuration, defaults filled in by the server."""
    created: datetime | None = wire(TIMESTAMP)
    """When it was created."""
    state: StreamState = wire(Nested(StreamState), StreamState)
    """What it holds."""
    domain: str = wire(TEXT, "")
    """Its JetStream domain, empty if it has none."""
    cluster: ClusterInfo | None = wire(Nested(ClusterInfo))
    """The servers that hold it."""
    mirror: StreamSourceInfo | None = wire(Nested(StreamSourceInfo))
    """How it keeps up with its origin, if it is a mirror."""
    sources: list[StreamSourceInfo] = wire(ListOf(Nested(StreamSourceInfo)), list)
    """How it keeps up with its sources."""
    alternates: list[StreamAlternate] = wire(ListOf(Nested(StreamAlternate)), list)
    """Where else the same messages are."""
    ts: datetime | None = wire(TIMESTAMP)
    """When the server gathered this."""


# --- consumers ------------------------------------------------------------------------------------


@wire_object
class SequenceInfo(Info):
    """A place in a consumer's work."""

    consumer_seq: int = wire(UINT64, 0)
    """As the consumer counts deliveries."""
    stream_seq: int = wire(UINT64, 0)
    """As the stream counts messages."""
    last_active: datetime | None = wire(TIMESTAMP)
    """When it got there; None when it never moved."""


@wire_object
class PriorityGroupState(Info):
    """A priority group of a consumer. Since 2.11."""

    group: str = wire(TEXT, "")
    """Its name."""
    pinned_client_id: str = wire(TEXT, "")
    """The id of the pinned client, empty when none is."""
    pinned_ts: datetime | None = wire(TIMESTAMP)
    """Since when it is pinned."""


@wire_object
class ConsumerInfo(Info):
    """A consumer: its configuration and how far it has come."""

    stream_name: str = wire(TEXT, "")
    """The stream it reads."""
    name: str = wire(TEXT, "")
    """Its name."""
    created: datetime | None = wire(TIMESTAMP)
    """When it was created."""
    config: ConsumerConfig = wire(Nested(ConsumerConfig), ConsumerConfig)
    """Its configuration, defaults filled in by the server."""
    delivered: SequenceInfo = wire(Nested(SequenceInfo), SequenceInfo)
    """The last message delivered."""
    ack_floor: SequenceInfo = wire(Nested(SequenceInfo), SequenceInfo)
    """The message up to which everything is acknowledged."""
    num_ack_pending: int = wire(INT64, 0)
    """How many messages are delivered and not acknowledged."""
    num_redelivered: int = wire(INT64, 0)
    """How many of those were delivered more than once."""
    num_waiting: int = wire(INT64, 0)
    """How many pull requests wait."""
    num_pending: int = wire(UINT64, 0)
    """How many messages that pass its filter are still to be delivered."""
    cluster: ClusterInfo | None = wire(Nested(ClusterInfo))
    """The servers that hold its state."""
    push_bound: bool = wire(FLAG, False)
    """A client is subscribed to its deliver subject."""
    paused: bool = wire(FLAG, False, since="2.11")
    """It is paused. Since 2.11."""
    pause_remaining: float = wire(DURATION, 0.0, since="2.11")
    """For how many more seconds it is paused. Since 2.11."""
    ts: datetime | None = wire(TIMESTAMP)
    """When the server gathered this."""
    priority_groups: list[PriorityGroupState] = wire(ListOf(Nested(PriorityGroupState)), list, since="2.11")
    """Its priority groups. Since 2.11."""


@wire_object
class ConsumerPause(Info):
    """The answer to pausing or resuming a consumer. Since 2.11."""

    paused: bool = wire(FLAG, False)
    """It is paused now."""
    pause_until: datetime | None = wire(TIMESTAMP)
    """Until when."""
    pause_remaining: float = wire(DURATION, 0.0)
    """For how many more seconds."""


# --- the account ----------------------------------------------------------------------------------


@wire_object
class AccountLimits(Info):
    """What an account may use; -1 means unlimited."""

    max_memory: int = wire(INT64, 0)
    """Bytes in memory."""
    max_storage: int = wire(INT64, 0)
    """Bytes on disk."""
    max_streams: int = wire(INT64, 0)
    """Streams."""
    max_consumers: int = wire(INT64, 0)
    """Consumers."""
    max_ack_pending: int = wire(INT64, 0)
    """Unacknowledged messages of one consumer."""
    memory_max_stream_bytes: int = wire(INT64, 0)
    """Bytes of one stream in memory."""
    storage_max_stream_bytes: int = wire(INT64, 0)
    """Bytes of one stream on disk."""
    max_bytes_required: bool = wire(FLAG, False)
    """Streams must set `max_bytes`."""


@wire_object
class Tier(Info):
    """What is used and allowed, in total or with one number of replicas."""

    memory: int = wire(UINT64, 0)
    """Bytes used in memory."""
    storage: int = wire(UINT64, 0)
    """Bytes used on disk."""
    reserved_memory: int = wire(UINT64, 0)
    """Bytes in memory set aside by `max_bytes` of streams. May exceed 2**63."""
    reserved_storage: int = wire(UINT64, 0)
    """Bytes on disk set aside by `max_bytes` of streams. May exceed 2**63."""
    streams: int = wire(INT64, 0)
    """How many streams there are."""
    consumers: int = wire(INT64, 0)
    """How many consumers there are."""
    limits: AccountLimits = wire(Nested(AccountLimits), AccountLimits)
    """What is allowed."""


@wire_object
class APIStats(Info):
    """Use of the JetStream API by an account."""

    level: int = wire(INT64, 0, since="2.11")
    """The API level of the server. Since 2.11."""
    total: int = wire(UINT64, 0)
    """Requests since the server started."""
    errors: int = wire(UINT64, 0)
    """Requests that were answered with an error."""
    inflight: int = wire(UINT64, 0)
    """Requests being worked on."""


@wire_object
class AccountInfo(Tier):
    """JetStream's use by this account, and its limits. With tiers: totals here, the limits in the tiers."""

    domain: str = wire(TEXT, "")
    """The JetStream domain, empty if there is none."""
    api: APIStats = wire(Nested(APIStats), APIStats)
    """Use of the API."""
    tiers: dict[str, Tier] = wire(MapOf(Nested(Tier)), dict)
    """Use and limits by tier, for example `R1` and `R3`; empty when the account has no tiers."""
