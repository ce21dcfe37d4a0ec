"""What the server reports about streams, consumers, the account and stored messages.

Fields have the server's JSON names. Durations are seconds. Times are aware datetimes, None where the server
reports none. Lists and dicts are empty where the server omits them. "Since 2.12" means that only a server of that
version or later reports the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..errors import APIError
from ..net.message import decode_json, excerpt
from ..protocol.headers import Headers
from .config import ConsumerConfig, ExternalStream, Placement, RetentionPolicy, StreamConfig, SubjectTransform
from .fields import Info, described, wire, wire_object
from .kinds import AGE


@dataclass(slots=True, repr=False)  # with a generated constructor, which is faster: every publish returns one
class PubAck(Info):
    """The server's confirmation that a message is stored."""

    stream: str = field(metadata=described(str))
    """The stream that stored it."""
    seq: int = field(metadata=described(int))
    """The sequence of the message there; for a duplicate, the sequence of the message stored before."""
    duplicate: bool = wire(bool, False)
    """A message with the same message id was stored before, so this one was not stored."""
    domain: str = wire(str, "")
    """The stream's JetStream domain, empty if it has none."""
    val: str = wire(str, "", since="2.12")
    """The counter's new value, as a decimal string, on a stream of counters. Since 2.12."""
    batch: str = wire(str, "", since="2.12")
    """The id of the batch that this ack confirms. Since 2.12."""
    count: int = wire(int, 0, since="2.12")
    """How many messages that batch had. Since 2.12."""


@wire_object
class RawStreamMsg(Info):
    """A message read from a stream by sequence or subject, without a consumer."""

    subject: str = field(metadata=described(str))
    """The subject of the message."""
    seq: int = field(metadata=described(int))
    """Its sequence in the stream."""
    data: bytes = wire(bytes, b"")
    """The payload."""
    headers: Headers | None = wire(Headers, key="hdrs")
    """The headers; None if it has none."""
    time: datetime | None = wire(datetime)
    """When it was stored."""

    def json(self) -> Any:
        """The payload decoded as JSON. Raises ValueError that names subject and sequence when it is no JSON."""
        return decode_json(self.data, lambda: f"on {self.subject!r} (sequence {self.seq})")

    def __repr__(self) -> str:
        return f"<RawStreamMsg subject={self.subject!r} seq={self.seq} time={self.time} data={excerpt(self.data)}>"


@wire_object
class PeerInfo(Info):
    """A server that holds a replica."""

    name: str = wire(str, "")
    """The server's name."""
    current: bool = wire(bool, False)
    """It was seen recently and is up to date."""
    offline: bool = wire(bool, False)
    """It was not seen recently."""
    active: float | None = wire(AGE)
    """Seconds since it was last seen."""
    lag: int = wire(int, 0)
    """How many operations it is behind."""
    peer: str = wire(str, "")
    """Its id within the cluster."""
    pending: bool = wire(bool, False, since="2.15")
    """It is assigned but not yet a member of the group. Since 2.15."""


@wire_object
class DesiredClusterOrigin(Info):
    """The settings of a stream or consumer before the move that is in progress. Since 2.15."""

    replicas: int = wire(int, 0)
    """Its number of replicas."""
    placement: Placement | None = wire(Placement)
    """Its placement."""
    retention: RetentionPolicy | str | None = wire(RetentionPolicy)
    """Its retention policy, which applies until the move is done."""


@wire_object
class DesiredClusterStatus(Info):
    """The progress of a move. Since 2.15."""

    description: str = wire(str, "")
    """What the leader is doing or waiting for."""
    type: str = wire(str, "")
    """The kind of that: meta, membership, snapshot, catchup, quorum, blocked or unavailable."""
    err: str = wire(str, "")
    """The error that causes it, if it persists."""


@wire_object
class DesiredCluster(Info):
    """Where a stream or consumer is being moved to. Since 2.15."""

    name: str = wire(str, "")
    """The cluster's name."""
    replicas: list[PeerInfo] = wire([PeerInfo], list)
    """The servers that will hold it."""
    origin: DesiredClusterOrigin | None = wire(DesiredClusterOrigin)
    """Its settings before the move."""
    status: DesiredClusterStatus | None = wire(DesiredClusterStatus)
    """The progress of the move."""


@wire_object
class ClusterInfo(Info):
    """The servers that hold a stream or consumer."""

    name: str = wire(str, "")
    """The cluster's name."""
    raft_group: str = wire(str, "")
    """The name of its Raft group."""
    leader: str = wire(str, "")
    """The server that is its leader; empty when there is none."""
    leader_since: datetime | None = wire(datetime, since="2.11.9")
    """When that server became the leader. Since 2.11.9."""
    system_account: bool = wire(bool, False, since="2.11.9")
    """Replication uses the system account. Since 2.11.9."""
    traffic_account: str = wire(str, "", since="2.11.9")
    """The account that replication uses. Since 2.11.9."""
    replicas: list[PeerInfo] = wire([PeerInfo], list)
    """The other servers that hold it."""
    desired: DesiredCluster | None = wire(DesiredCluster, since="2.15")
    """Where it is being moved to; None when it is not. Since 2.15."""


@wire_object
class LostStreamData(Info):
    """Messages that could not be read from disk."""

    msgs: list[int] = wire([int], list)
    """Their sequences."""
    bytes: int = wire(int, 0)
    """Their size."""


@wire_object
class StreamState(Info):
    """What a stream holds."""

    messages: int = wire(int, 0)
    """How many messages it holds."""
    bytes: int = wire(int, 0)
    """How many bytes it holds."""
    first_seq: int = wire(int, 0)
    """The sequence of the first message."""
    first_ts: datetime | None = wire(datetime)
    """When the first message was stored; None when there is none."""
    last_seq: int = wire(int, 0)
    """The sequence of the last message stored, even if it was deleted."""
    last_ts: datetime | None = wire(datetime)
    """When the last message was stored; None when there was none."""
    num_subjects: int = wire(int, 0)
    """How many different subjects the messages have."""
    subjects: dict[str, int] = wire({str: int}, dict)
    """Messages per subject; only when requested with `subjects_filter`."""
    num_deleted: int = wire(int, 0)
    """How many messages between the first and the last are deleted."""
    deleted: list[int] = wire([int], list)
    """Their sequences; only when requested with `deleted_details`."""
    lost: LostStreamData | None = wire(LostStreamData)
    """Messages that could not be read from disk."""
    consumer_count: int = wire(int, 0)
    """How many consumers it has."""


@wire_object
class StreamSourceInfo(Info):
    """The state of copying from the origin of a mirror, or from a source."""

    name: str = wire(str, "")
    """The other stream's name."""
    external: ExternalStream | None = wire(ExternalStream)
    """Where the other stream is, if in another account or domain."""
    lag: int = wire(int, 0)
    """How many messages are still to be copied."""
    active: float | None = wire(AGE)
    """Seconds since the last contact with it; None when there was none."""
    error: APIError | None = wire(APIError)
    """Why copying fails; None when it does not."""
    filter_subject: str = wire(str, "")
    """The subjects that are copied; empty means all."""
    subject_transforms: list[SubjectTransform] = wire([SubjectTransform], list)
    """The mappings that are applied to the subjects."""


@wire_object
class StreamAlternate(Info):
    """A stream or mirror with the same messages."""

    name: str = wire(str, "")
    """Its name."""
    domain: str = wire(str, "")
    """Its domain."""
    cluster: str = wire(str, "")
    """Its cluster."""


@wire_object
class StreamInfo(Info):
    """A stream: its configuration and its state."""

    config: StreamConfig = field(metadata=described(StreamConfig))
    """Its configuration, with the server's defaults."""
    created: datetime | None = wire(datetime)
    """When it was created."""
    state: StreamState = wire(StreamState, StreamState)
    """What it holds."""
    domain: str = wire(str, "")
    """Its JetStream domain, empty if it has none."""
    cluster: ClusterInfo | None = wire(ClusterInfo)
    """The servers that hold it."""
    mirror: StreamSourceInfo | None = wire(StreamSourceInfo)
    """The state of copying from its origin, if it is a mirror."""
    sources: list[StreamSourceInfo] = wire([StreamSourceInfo], list)
    """The state of copying from each of its sources."""
    alternates: list[StreamAlternate] = wire([StreamAlternate], list)
    """Other streams and mirrors with the same messages, the nearest first."""
    ts: datetime | None = wire(datetime)
    """When the server created this report."""


@wire_object
class SequenceInfo(Info):
    """A position of a consumer."""

    consumer_seq: int = wire(int, 0)
    """The consumer sequence, which counts deliveries."""
    stream_seq: int = wire(int, 0)
    """The stream sequence of the message."""
    last_active: datetime | None = wire(datetime)
    """When the consumer reached this position; None when nothing was delivered yet."""


@wire_object
class PriorityGroupState(Info):
    """A priority group of a consumer. Since 2.11."""

    group: str = wire(str, "")
    """Its name."""
    pinned_client_id: str = wire(str, "")
    """The id of the pinned client, empty when none is."""
    pinned_ts: datetime | None = wire(datetime)
    """When that client was pinned."""


@wire_object
class ConsumerInfo(Info):
    """A consumer: its configuration and its state."""

    stream_name: str = wire(str, "")
    """The stream it reads."""
    name: str = wire(str, "")
    """Its name."""
    created: datetime | None = wire(datetime)
    """When it was created."""
    config: ConsumerConfig = wire(ConsumerConfig, ConsumerConfig)
    """Its configuration, with the server's defaults."""
    delivered: SequenceInfo = wire(SequenceInfo, SequenceInfo)
    """The last message delivered."""
    ack_floor: SequenceInfo = wire(SequenceInfo, SequenceInfo)
    """The message up to which all are acknowledged."""
    num_ack_pending: int = wire(int, 0)
    """How many messages are delivered but not acknowledged."""
    num_redelivered: int = wire(int, 0)
    """How many of those were delivered more than once."""
    num_waiting: int = wire(int, 0)
    """How many pull requests are waiting."""
    num_pending: int = wire(int, 0)
    """How many messages that match its filter are still to be delivered."""
    cluster: ClusterInfo | None = wire(ClusterInfo)
    """The servers that hold its state."""
    push_bound: bool = wire(bool, False)
    """A client is subscribed to its deliver subject."""
    paused: bool = wire(bool, False, since="2.11")
    """It is paused. Since 2.11."""
    pause_remaining: float = wire(float, 0.0, since="2.11")
    """For how many more seconds it is paused. Since 2.11."""
    ts: datetime | None = wire(datetime)
    """When the server created this report."""
    priority_groups: list[PriorityGroupState] = wire([PriorityGroupState], list, since="2.11")
    """Its priority groups. Since 2.11."""


@wire_object
class ConsumerPause(Info):
    """The state of a consumer that was paused or resumed. Since 2.11."""

    paused: bool = wire(bool, False)
    """It is paused now."""
    pause_until: datetime | None = wire(datetime)
    """Until when it is paused."""
    pause_remaining: float = wire(float, 0.0)
    """For how many more seconds it is paused."""


@wire_object
class AccountLimits(Info):
    """What an account may use; -1 means unlimited."""

    max_memory: int = wire(int, 0)
    """Bytes in memory."""
    max_storage: int = wire(int, 0)
    """Bytes on disk."""
    max_streams: int = wire(int, 0)
    """Streams."""
    max_consumers: int = wire(int, 0)
    """Consumers."""
    max_ack_pending: int = wire(int, 0)
    """Unacknowledged messages of one consumer."""
    memory_max_stream_bytes: int = wire(int, 0)
    """Bytes of one stream in memory."""
    storage_max_stream_bytes: int = wire(int, 0)
    """Bytes of one stream on disk."""
    max_bytes_required: bool = wire(bool, False)
    """Streams must set `max_bytes`."""


@wire_object
class Tier(Info):
    """What an account uses and may use: in total, or of streams with one number of replicas."""

    memory: int = wire(int, 0)
    """Bytes used in memory."""
    storage: int = wire(int, 0)
    """Bytes used on disk."""
    reserved_memory: int = wire(int, 0)
    """Bytes in memory that `max_bytes` of streams reserves. May exceed 2**63."""
    reserved_storage: int = wire(int, 0)
    """Bytes on disk that `max_bytes` of streams reserves. May exceed 2**63."""
    streams: int = wire(int, 0)
    """How many streams there are."""
    consumers: int = wire(int, 0)
    """How many consumers there are."""
    limits: AccountLimits = wire(AccountLimits, AccountLimits)
    """The limits."""


@wire_object
class APIStats(Info):
    """Use of the JetStream API by an account."""

    level: int = wire(int, 0, since="2.11")
    """The API level of the server. Since 2.11."""
    total: int = wire(int, 0)
    """Requests since the server started."""
    errors: int = wire(int, 0)
    """Requests that failed."""
    inflight: int = wire(int, 0)
    """Requests being processed."""


@wire_object
class AccountInfo(Tier):
    """What this account uses of JetStream, and its limits. With tiers, the limits are in the tiers."""

    domain: str = wire(str, "")
    """The JetStream domain, empty if there is none."""
    api: APIStats = wire(APIStats, APIStats)
    """Use of the API."""
    tiers: dict[str, Tier] = wire({str: Tier}, dict)
    """Use and limits of each tier, for example `R1` and `R3`; empty when the account has no tiers."""
