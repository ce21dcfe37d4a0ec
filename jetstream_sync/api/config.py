"""Configs of streams and consumers. Names are the server's JSON names; None means unset and is not sent.

Durations are seconds (float, or timedelta when given), times are aware datetimes, policies are enums that
equal their string. Where a version is named the field needs that server or a later one.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime

from .fields import Config, FieldSpec, described, fields_of, wire, wire_object
from .kinds import (
    DURATION,
    FLAG,
    INT32,
    INT64,
    LITERAL_SUBJECT,
    NAME,
    NONEMPTY_SUBJECT,
    QUEUE,
    SUBJECT,
    TEXT,
    TIMESTAMP,
    UINT64,
    Choice,
    ListOf,
    MapOf,
    Nested,
    WireEnum,
)

__all__ = [
    "AckPolicy",
    "ConsumerConfig",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "PersistMode",
    "Placement",
    "PriorityPolicy",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "StorageType",
    "StoreCompression",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamSource",
    "SubjectTransform",
    "differences",
]


# --- policies -------------------------------------------------------------------------------------


class RetentionPolicy(WireEnum):
    """When a stream removes messages."""

    LIMITS = "limits"
    """When a limit is reached. The default."""
    INTEREST = "interest"
    """When every consumer has acknowledged them, or there is none."""
    WORKQUEUE = "workqueue"
    """When one consumer has acknowledged them."""


class StorageType(WireEnum):
    """Where messages are kept."""

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(WireEnum):
    """What gives way when a stream is full."""

    OLD = "old"
    """The oldest messages. The default."""
    NEW = "new"
    """The message being published: it is refused."""


class StoreCompression(WireEnum):
    """How stored messages are compressed."""

    NONE = "none"
    S2 = "s2"


class PersistMode(WireEnum):
    """When a publish is acknowledged relative to its being written. Since 2.12."""

    DEFAULT = "default"
    """After the write."""
    ASYNC = "async"
    """Perhaps before it: faster, and what was not yet written is lost when the server is killed."""


class DeliverPolicy(WireEnum):
    """Where in the stream a consumer begins."""

    ALL = "all"
    """At the first message. The default."""
    LAST = "last"
    """At the last message."""
    NEW = "new"
    """At the first message stored after the consumer was created."""
    BY_START_SEQUENCE = "by_start_sequence"
    """At `opt_start_seq`."""
    BY_START_TIME = "by_start_time"
    """At the first message stored at `opt_start_time` or later."""
    LAST_PER_SUBJECT = "last_per_subject"
    """At the last message of each subject that passes the filter."""


class AckPolicy(WireEnum):
    """How messages are acknowledged."""

    EXPLICIT = "explicit"
    """Each message by itself. The default of this library."""
    ALL = "all"
    """A message together with all before it."""
    NONE = "none"
    """Not at all: delivered is done."""
    FLOW_CONTROL = "flow_control"
    """By the answers to flow control, for push consumers that feed a stream. Since 2.14."""


class ReplayPolicy(WireEnum):
    """How fast stored messages are delivered."""

    INSTANT = "instant"
    """As fast as possible. The default."""
    ORIGINAL = "original"
    """At the pace at which they were stored."""


class PriorityPolicy(WireEnum):
    """How a consumer chooses among clients that pull from it. Since 2.11."""

    NONE = "none"
    """In turn. The default."""
    OVERFLOW = "overflow"
    """Only those whose `min_pending` or `min_ack_pending` is reached."""
    PINNED_CLIENT = "pinned_client"
    """One client gets everything until it is gone; the others stand by."""
    PRIORITIZED = "prioritized"
    """The client with the lowest priority number first. Since 2.12."""


# --- parts of a stream's config -------------------------------------------------------------------


@wire_object
class Placement(Config):
    """Where in the cluster a stream lives."""

    cluster: str | None = wire(TEXT)
    """The cluster's name."""
    tags: list[str] | None = wire(ListOf(TEXT))
    """Only servers that carry all of these tags."""
    preferred: str | None = wire(TEXT, since="2.11")
    """The server that should lead; for step-down requests only, streams refuse it. Since 2.11."""


@wire_object
class SubjectTransform(Config):
    """A mapping of subjects."""

    src: str | None = wire(SUBJECT)
    """The subjects it applies to, wildcards allowed; unset means all."""
    dest: str | None = wire(TEXT)
    """The new subject, which may use mapping functions such as `{{wildcard(1)}}`."""


@wire_object
class Republish(Config):
    """Publishing of messages again, on another subject, once they are stored."""

    src: str | None = wire(SUBJECT)
    """The subjects it applies to, wildcards allowed; unset means all."""
    dest: str | None = wire(TEXT)
    """The subject to publish on, which may use mapping functions such as `{{wildcard(1)}}`."""
    headers_only: bool | None = wire(FLAG)
    """Leave the payload out and send its size in a header. Default false."""


@wire_object
class ExternalStream(Config):
    """How to reach a stream of another account or domain."""

    api: str | None = wire(LITERAL_SUBJECT)
    """The prefix of the other side's API as imported here, for example `$JS.hub.API`."""
    deliver: str | None = wire(LITERAL_SUBJECT)
    """The prefix of the subjects on which it delivers."""


@wire_object
class StreamConsumerSource(Config):
    """An existing durable consumer to source through. Since 2.14."""

    name: str | None = wire(NAME)
    """The consumer's name."""
    deliver_subject: str | None = wire(LITERAL_SUBJECT)
    """The subject it delivers to."""


@wire_object
class StreamSource(Config):
    """Another stream whose messages are copied into this one: a mirror's origin or one of several sources."""

    name: str = field(metadata=described(NAME))
    """The other stream's name."""
    opt_start_seq: int | None = wire(UINT64)
    """The sequence of the other stream to begin at. Default: the first."""
    opt_start_time: datetime | None = wire(TIMESTAMP)
    """Begin at messages stored at this time or later."""
    filter_subject: str | None = wire(SUBJECT)
    """Copy only these subjects, wildcards allowed; exclusive with `subject_transforms`."""
    subject_transforms: list[SubjectTransform] | None = wire(ListOf(Nested(SubjectTransform)))
    """Copy only the subjects of these mappings, and map them."""
    external: ExternalStream | None = wire(Nested(ExternalStream))
    """Where the other stream is, if in another account or domain."""
    consumer: StreamConsumerSource | None = wire(Nested(StreamConsumerSource), since="2.14")
    """The durable consumer to source through, instead of one the server makes. Since 2.14."""


@wire_object
class StreamConsumerLimits(Config):
    """Defaults for, and bounds of, the consumers of a stream."""

    inactive_threshold: float | None = wire(DURATION)
    """The longest `inactive_threshold` of a consumer, in seconds."""
    max_ack_pending: int | None = wire(INT64)
    """The highest `max_ack_pending` of a consumer."""


# --- streams --------------------------------------------------------------------------------------


@wire_object
class StreamConfig(Config):
    """The configuration of a stream."""

    name: str = field(metadata=described(NAME))
    """The stream's name: no blanks, dots, wildcards, path separators or control characters."""
    description: str | None = wire(TEXT)
    """Free text, up to 4 KiB."""
    subjects: list[str] | None = wire(ListOf(NONEMPTY_SUBJECT))
    """The subjects it stores, wildcards allowed. Default: the stream's name; a mirror has none."""
    retention: RetentionPolicy | str | None = wire(Choice(RetentionPolicy))
    """When messages are removed. Default limits."""
    max_consumers: int | None = wire(INT64)
    """How many consumers it may have. Default -1: no limit of its own."""
    max_msgs: int | None = wire(INT64)
    """How many messages it holds at most. Default -1: unlimited."""
    max_bytes: int | None = wire(INT64)
    """How many bytes it holds at most. Default -1: unlimited."""
    max_age: float | None = wire(DURATION)
    """How long messages are kept, in seconds, at least 0.1. Default 0: for ever."""
    max_msgs_per_subject: int | None = wire(INT64)
    """How many messages of one subject it holds at most. Default -1: unlimited."""
    max_msg_size: int | None = wire(INT32)
    """The largest message accepted, headers included, in bytes. Default -1: the server's max_payload."""
    discard: DiscardPolicy | str | None = wire(Choice(DiscardPolicy))
    """What gives way when a limit is reached. Default old."""
    storage: StorageType | str | None = wire(Choice(StorageType))
    """Where messages are kept; cannot be changed later. Default file."""
    num_replicas: int | None = wire(INT64)
    """On how many servers of the cluster it is kept, 1 to 5. Default 1."""
    no_ack: bool | None = wire(FLAG)
    """Do not answer publishes: `JetStream.publish` then times out. Default false."""
    duplicate_window: float | None = wire(DURATION)
    """How long message ids are remembered, in seconds. Default 120, or `max_age` if that is shorter."""
    placement: Placement | None = wire(Nested(Placement))
    """Where in the cluster it lives."""
    mirror: StreamSource | None = wire(Nested(StreamSource))
    """The stream it is a copy of, sequences included; then it takes no publishes."""
    sources: list[StreamSource] | None = wire(ListOf(Nested(StreamSource)))
    """Streams whose messages are copied into it, beside its own."""
    compression: StoreCompression | str | None = wire(Choice(StoreCompression))
    """How files are compressed. Default none."""
    first_seq: int | None = wire(UINT64)
    """The sequence of the first message; on creation only. Default 1."""
    subject_transform: SubjectTransform | None = wire(Nested(SubjectTransform))
    """A mapping applied to the subjects of incoming messages."""
    republish: Republish | None = wire(Nested(Republish))
    """Where stored messages are published again."""
    allow_direct: bool | None = wire(FLAG)
    """Let any replica answer reads of single messages. Default false."""
    mirror_direct: bool | None = wire(FLAG)
    """Let a mirror answer such reads for its origin. Default: the origin's `allow_direct`, if it is known."""
    discard_new_per_subject: bool | None = wire(FLAG)
    """Apply discard new to `max_msgs_per_subject` as well, which it needs. Default false."""
    sealed: bool | None = wire(FLAG)
    """Read-only for ever: set by an update, never unset. Default false."""
    deny_delete: bool | None = wire(FLAG)
    """Refuse deletion of single messages; cannot be unset. Default false."""
    deny_purge: bool | None = wire(FLAG)
    """Refuse purges; cannot be unset. Default false."""
    allow_rollup_hdrs: bool | None = wire(FLAG)
    """Honour the `Nats-Rollup` header, with which a message replaces all before it. Default false."""
    consumer_limits: StreamConsumerLimits | None = wire(Nested(StreamConsumerLimits))
    """Defaults for and bounds of its consumers."""
    allow_msg_ttl: bool | None = wire(FLAG, since="2.11")
    """Honour the `Nats-TTL` header; cannot be unset. Default false. Since 2.11."""
    subject_delete_marker_ttl: float | None = wire(DURATION, since="2.11")
    """Leave a marker when a limit or purge removes a subject's last message, for this many seconds.

    At least 1. Default 0: no markers. Since 2.11."""
    allow_msg_counter: bool | None = wire(FLAG, since="2.12")
    """Make every subject a counter, incremented by the `Nats-Incr` header; on creation only. Since 2.12."""
    allow_atomic: bool | None = wire(FLAG, since="2.12")
    """Accept batches of messages that are stored all or none. Default false. Since 2.12."""
    allow_msg_schedules: bool | None = wire(FLAG, since="2.12")
    """Honour the headers that schedule a message for later; cannot be unset. Default false. Since 2.12."""
    persist_mode: PersistMode | str | None = wire(Choice(PersistMode), since="2.12")
    """Whether a publish may be acknowledged before it is written; on creation only. Since 2.12."""
    allow_batched: bool | None = wire(FLAG, since="2.14")
    """Accept fast batches, acknowledged together. Default false. Since 2.14."""
    metadata: dict[str, str] | None = wire(MapOf(TEXT))
    """Notes of the application, up to 128 KiB. Keys that begin with `_nats.` are the server's."""


# --- consumers ------------------------------------------------------------------------------------


@wire_object
class ConsumerConfig(Config):
    """The configuration of a consumer. With `deliver_subject` it is a push consumer, else a pull consumer."""

    durable_name: str | None = wire(NAME)
    """The name of a consumer that outlives its clients; the same as `name` when both are given."""
    name: str | None = wire(NAME)
    """The name, with the rules of a stream's name. Default: one the server makes."""
    description: str | None = wire(TEXT)
    """Free text, up to 4 KiB."""
    deliver_policy: DeliverPolicy | str | None = wire(Choice(DeliverPolicy))
    """Where in the stream it begins; cannot be changed later. Default all."""
    opt_start_seq: int | None = wire(UINT64)
    """The sequence to begin at, with policy by_start_sequence."""
    opt_start_time: datetime | None = wire(TIMESTAMP)
    """The time to begin at, with policy by_start_time."""
    ack_policy: AckPolicy | str = wire(Choice(AckPolicy), AckPolicy.EXPLICIT)
    """How messages are acknowledged; cannot be changed later. Default explicit."""
    ack_wait: float | None = wire(DURATION, zero_is_default=True)
    """How long the server waits for an ack before it delivers again, in seconds. Default 30."""
    max_deliver: int | None = wire(INT64, zero_is_default=True)
    """How often a message is delivered at most. Default -1: until it is acknowledged."""
    backoff: list[float] | None = wire(ListOf(DURATION))
    """Waits in seconds, one per delivery, the last repeated; at most `max_deliver`. Replaces `ack_wait`."""
    filter_subject: str | None = wire(SUBJECT)
    """Deliver only these subjects, wildcards allowed; exclusive with `filter_subjects`. Default: all."""
    filter_subjects: list[str] | None = wire(ListOf(NONEMPTY_SUBJECT))
    """Deliver only these subjects, wildcards allowed, none covering another."""
    replay_policy: ReplayPolicy | str | None = wire(Choice(ReplayPolicy))
    """How fast stored messages are delivered; cannot be changed later. Default instant."""
    rate_limit_bps: int | None = wire(UINT64)
    """Push only: bits per second at most. Default 0: no limit."""
    sample_freq: str | None = wire(TEXT)
    """The share of acks to report on, in percent: `"30"` or `"30%"`. Default: none."""
    max_waiting: int | None = wire(INT64, zero_is_default=True)
    """Pull only: how many pull requests may wait; cannot be changed later. Default 512."""
    max_ack_pending: int | None = wire(INT64, zero_is_default=True)
    """How many messages may be unacknowledged before delivery stops; -1 is unlimited. Default 1000."""
    flow_control: bool | None = wire(FLAG)
    """Push only: pause delivery until the client confirms; needs `idle_heartbeat`. Default false."""
    headers_only: bool | None = wire(FLAG)
    """Deliver headers, and the payload's size in one of them, without the payload. Default false."""
    max_batch: int | None = wire(INT64, zero_is_default=True)
    """Pull only: how many messages one request may ask for. Default 0: no limit."""
    max_expires: float | None = wire(DURATION)
    """Pull only: how long one request may wait, in seconds. Default 0: no limit."""
    max_bytes: int | None = wire(INT64)
    """Pull only: how many bytes one request may ask for. Default 0: no limit."""
    deliver_subject: str | None = wire(LITERAL_SUBJECT)
    """Push only: the subject messages are sent to. Unset: a pull consumer."""
    deliver_group: str | None = wire(QUEUE)
    """Push only: the queue group that shares the messages."""
    idle_heartbeat: float | None = wire(DURATION)
    """Push only: after how many idle seconds the server sends a heartbeat, at least 0.1. Default 0: none."""
    inactive_threshold: float | None = wire(DURATION, zero_is_default=True)
    """After how many seconds without a client it is deleted. Default 5 when not durable, else never."""
    num_replicas: int | None = wire(INT64, zero_is_default=True)
    """On how many servers its state is kept. Default 0: as the stream."""
    mem_storage: bool | None = wire(FLAG)
    """Keep its state in memory even if the stream is on file. Default false."""
    direct: bool | None = wire(FLAG)
    """Used between servers for mirrors and sources; not for applications."""
    sourcing: bool | None = wire(FLAG, since="2.14")
    """Used between servers for mirrors and sources; not for applications. Since 2.14."""
    metadata: dict[str, str] | None = wire(MapOf(TEXT))
    """Notes of the application, up to 128 KiB. Keys that begin with `_nats.` are the server's."""
    pause_until: datetime | None = wire(TIMESTAMP, since="2.11")
    """Deliver nothing until this time. Since 2.11."""
    priority_groups: list[str] | None = wire(ListOf(TEXT), since="2.11")
    """Pull only: the groups that pull requests name, 1 to 16 characters each; needs a policy. Since 2.11."""
    priority_policy: PriorityPolicy | str | None = wire(Choice(PriorityPolicy), since="2.11")
    """Pull only: how to choose among the clients of a group. Default none. Since 2.11."""
    priority_timeout: float | None = wire(DURATION, since="2.11", zero_is_default=True)
    """After how many seconds without a pull a pinned client loses its place. Default 120. Since 2.11."""


# --- comparing ------------------------------------------------------------------------------------

_FILTERS = ("filter_subject", "filter_subjects")


def differences(asked: ConsumerConfig, actual: ConsumerConfig) -> list[str]:
    """The fields that `asked` sets and `actual` has otherwise, by name, in the table's order.

    What `asked` leaves unset is not compared, nor is a zero that means the server's default; `ack_policy`,
    which is never unset, always is. A filter is the same whether given as one subject or as a list of one.
    """
    named = [spec.name for spec in fields_of(ConsumerConfig) if _differs(spec, asked, actual)]
    if _filters(asked) == _filters(actual):
        named = [name for name in named if name not in _FILTERS]
    return named


def _differs(spec: FieldSpec, asked: ConsumerConfig, actual: ConsumerConfig) -> bool:
    wanted, found = getattr(asked, spec.name), getattr(actual, spec.name)
    if wanted is None or (not wanted and (spec.zero_is_default or not found)):
        return False
    if spec.name == "ack_wait" and asked.backoff:
        return False  # the server replaces it by the first backoff
    if spec.name == "metadata":
        wanted, found = _own_metadata(wanted), _own_metadata(found or {})
    if found is None:
        return True
    return bool(spec.kind.encode(wanted) != spec.kind.encode(found))


def _filters(config: ConsumerConfig) -> set[str]:
    return set(config.filter_subjects or ()) | ({config.filter_subject} if config.filter_subject else set())


def _own_metadata(metadata: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
