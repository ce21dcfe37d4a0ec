"""Configurations of streams and consumers. Fields have the server's JSON names; None means unset and is not sent.

Durations are seconds; a timedelta is accepted and converted. Times are aware datetimes. Policies are enums; the
string of a policy is accepted as well. "Since 2.12" means that the field needs a server of that version or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from .fields import Config, FieldSpec, described, fields_of, wire, wire_object
from .kinds import INT32, INT64, LITERAL_SUBJECT, NAME, NONEMPTY_SUBJECT, QUEUE, SUBJECT, UINT64, WireEnum


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
    """On disk. The default."""
    MEMORY = "memory"
    """In memory: lost when the server ends."""


class DiscardPolicy(WireEnum):
    """What a stream discards when it is full."""

    OLD = "old"
    """The oldest messages. The default."""
    NEW = "new"
    """The message being published: it is rejected."""


class StoreCompression(WireEnum):
    """How stored messages are compressed."""

    NONE = "none"
    """Not at all. The default."""
    S2 = "s2"
    """With the S2 algorithm."""


class PersistMode(WireEnum):
    """When a publish is acknowledged. Since 2.12."""

    DEFAULT = "default"
    """After the message is written to disk."""
    ASYNC = "async"
    """Possibly before it is written: faster, but messages are lost when the server is killed before the write."""


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
    """Each message individually. The default of this library."""
    ALL = "all"
    """A message and all messages before it."""
    NONE = "none"
    """Not at all: a message is done when it is delivered."""
    FLOW_CONTROL = "flow_control"
    """By replies to flow control requests, for push consumers that feed a stream. Since 2.14."""


class ReplayPolicy(WireEnum):
    """How fast stored messages are delivered."""

    INSTANT = "instant"
    """As fast as possible. The default."""
    ORIGINAL = "original"
    """At the pace at which they were stored."""


class PriorityPolicy(WireEnum):
    """How a consumer chooses among the clients that pull from it. Since 2.11."""

    NONE = "none"
    """In turn. The default."""
    OVERFLOW = "overflow"
    """Only clients whose `min_pending` or `min_ack_pending` is reached."""
    PINNED_CLIENT = "pinned_client"
    """One client gets all messages until it stops pulling; the others are on standby."""
    PRIORITIZED = "prioritized"
    """The client with the lowest priority number first. Since 2.12."""


@wire_object
class Placement(Config):
    """Where in the cluster a stream is stored."""

    cluster: str | None = wire(str)
    """The cluster's name."""
    tags: list[str] | None = wire([str])
    """Only servers that have all of these tags."""
    preferred: str | None = wire(str, since="2.11")
    """The server that should lead; for step-down requests only, streams refuse it. Since 2.11."""


@wire_object
class SubjectTransform(Config):
    """A mapping of subjects."""

    src: str | None = wire(SUBJECT)
    """The subjects it applies to, wildcards allowed; unset means all."""
    dest: str | None = wire(str)
    """The new subject, which may use mapping functions such as `{{wildcard(1)}}`."""


@wire_object
class Republish(Config):
    """How stored messages are published again on another subject."""

    src: str | None = wire(SUBJECT)
    """The subjects to republish, wildcards allowed; unset means all."""
    dest: str | None = wire(str)
    """The subject to publish to, which may use mapping functions such as `{{wildcard(1)}}`."""
    headers_only: bool | None = wire(bool)
    """Send the size of the payload in a header instead of the payload. Default false."""


@wire_object
class ExternalStream(Config):
    """How to reach a stream of another account or domain."""

    api: str | None = wire(LITERAL_SUBJECT)
    """The prefix of the other JetStream's API, as imported here, for example `$JS.hub.API`."""
    deliver: str | None = wire(LITERAL_SUBJECT)
    """The prefix of the subjects that the other stream delivers to."""


@wire_object
class StreamConsumerSource(Config):
    """An existing durable consumer that messages are copied through. Since 2.14."""

    name: str | None = wire(NAME)
    """The consumer's name."""
    deliver_subject: str | None = wire(LITERAL_SUBJECT)
    """The subject it delivers to."""


@wire_object
class StreamSource(Config):
    """Another stream whose messages are copied into this one: the origin of a mirror, or a source."""

    name: str = field(metadata=described(NAME))
    """The other stream's name."""
    opt_start_seq: int | None = wire(UINT64)
    """The sequence of the other stream to start at. Default: the first."""
    opt_start_time: datetime | None = wire(datetime)
    """Start at the first message stored at this time or later."""
    filter_subject: str | None = wire(SUBJECT)
    """Copy only these subjects, wildcards allowed; exclusive with `subject_transforms`."""
    subject_transforms: list[SubjectTransform] | None = wire([SubjectTransform])
    """Copy only the subjects that these mappings match, and map them."""
    external: ExternalStream | None = wire(ExternalStream)
    """Where the other stream is, if in another account or domain."""
    consumer: StreamConsumerSource | None = wire(StreamConsumerSource, since="2.14")
    """The durable consumer to copy through, instead of one that the server creates. Since 2.14."""


@wire_object
class StreamConsumerLimits(Config):
    """Defaults and upper bounds for the consumers of a stream."""

    inactive_threshold: float | None = wire(float)
    """The longest `inactive_threshold` of a consumer, in seconds."""
    max_ack_pending: int | None = wire(INT64)
    """The highest `max_ack_pending` of a consumer."""


@wire_object
class StreamConfig(Config):
    """The configuration of a stream."""

    name: str = field(metadata=described(NAME))
    """The stream's name: no blanks, dots, wildcards, path separators or control characters."""
    description: str | None = wire(str)
    """Free text, up to 4 KiB."""
    subjects: list[str] | None = wire([NONEMPTY_SUBJECT])
    """The subjects it stores, wildcards allowed. Default: the stream's name; a mirror has none."""
    retention: RetentionPolicy | str | None = wire(RetentionPolicy)
    """When messages are removed. Default limits."""
    max_consumers: int | None = wire(INT64)
    """How many consumers it may have. Default -1: no limit of its own."""
    max_msgs: int | None = wire(INT64)
    """How many messages it holds at most. Default -1: unlimited."""
    max_bytes: int | None = wire(INT64)
    """How many bytes it holds at most. Default -1: unlimited."""
    max_age: float | None = wire(float)
    """How long messages are kept, in seconds, at least 0.1. Default 0: for ever."""
    max_msgs_per_subject: int | None = wire(INT64)
    """How many messages of one subject it holds at most. Default -1: unlimited."""
    max_msg_size: int | None = wire(INT32)
    """The largest message accepted, headers included, in bytes. Default -1: the server's max_payload."""
    discard: DiscardPolicy | str | None = wire(DiscardPolicy)
    """Which messages are discarded when a limit is reached. Default old."""
    storage: StorageType | str | None = wire(StorageType)
    """Where messages are kept; cannot be changed later. Default file."""
    num_replicas: int | None = wire(INT64)
    """On how many servers of the cluster it is stored, 1 to 5. Default 1."""
    no_ack: bool | None = wire(bool)
    """Do not acknowledge publishes: `JetStream.publish` then times out. Default false."""
    duplicate_window: float | None = wire(float)
    """How long message ids are remembered, in seconds. Default 120, or `max_age` if that is shorter."""
    placement: Placement | None = wire(Placement)
    """Where in the cluster it is stored."""
    mirror: StreamSource | None = wire(StreamSource)
    """The stream that it copies, with the same sequences. A mirror accepts no publishes."""
    sources: list[StreamSource] | None = wire([StreamSource])
    """Streams whose messages are copied into it, in addition to those published to it."""
    compression: StoreCompression | str | None = wire(StoreCompression)
    """How its files are compressed. Default none."""
    first_seq: int | None = wire(UINT64)
    """The sequence of the first message; on creation only. Default 1."""
    subject_transform: SubjectTransform | None = wire(SubjectTransform)
    """A mapping that is applied to the subjects of incoming messages."""
    republish: Republish | None = wire(Republish)
    """Where stored messages are published again."""
    allow_direct: bool | None = wire(bool)
    """Let any replica serve reads of single messages (Direct Get). Default false."""
    mirror_direct: bool | None = wire(bool)
    """Let a mirror serve such reads for its origin. Default: the origin's `allow_direct`, if it is known."""
    discard_new_per_subject: bool | None = wire(bool)
    """With discard new: apply it to `max_msgs_per_subject`, too, which must be set. Default false."""
    sealed: bool | None = wire(bool)
    """Make the stream read-only; can only be set by an update, and not be unset. Default false."""
    deny_delete: bool | None = wire(bool)
    """Reject the deletion of single messages; cannot be unset. Default false."""
    deny_purge: bool | None = wire(bool)
    """Reject purges; cannot be unset. Default false."""
    allow_rollup_hdrs: bool | None = wire(bool)
    """Honour the `Nats-Rollup` header: such a message replaces all messages before it. Default false."""
    consumer_limits: StreamConsumerLimits | None = wire(StreamConsumerLimits)
    """Defaults and upper bounds for its consumers."""
    allow_msg_ttl: bool | None = wire(bool, since="2.11")
    """Honour the `Nats-TTL` header; cannot be unset. Default false. Since 2.11."""
    subject_delete_marker_ttl: float | None = wire(float, since="2.11")
    """When a limit or a purge removes the last message of a subject, store a marker for this many seconds.

    At least 1. Default 0: no markers. Since 2.11."""
    allow_msg_counter: bool | None = wire(bool, since="2.12")
    """Make every subject a counter, incremented by the `Nats-Incr` header; on creation only. Since 2.12."""
    allow_atomic: bool | None = wire(bool, since="2.12")
    """Accept atomic batches: all messages of a batch are stored, or none. Default false. Since 2.12."""
    allow_msg_schedules: bool | None = wire(bool, since="2.12")
    """Honour the headers that schedule a message for later; cannot be unset. Default false. Since 2.12."""
    persist_mode: PersistMode | str | None = wire(PersistMode, since="2.12")
    """Whether a publish may be acknowledged before it is written to disk; on creation only. Since 2.12."""
    allow_batched: bool | None = wire(bool, since="2.14")
    """Accept fast batches, whose messages are acknowledged together. Default false. Since 2.14."""
    metadata: dict[str, str] | None = wire({str: str})
    """Notes of the application, up to 128 KiB. Keys that begin with `_nats.` are the server's."""


@wire_object
class ConsumerConfig(Config):
    """The configuration of a consumer. With a `deliver_subject` it is a push consumer, else a pull consumer."""

    durable_name: str | None = wire(NAME)
    """The name of a durable consumer, which stays when no client uses it. Equal to `name` when both are given."""
    name: str | None = wire(NAME)
    """The name; the rules for names of streams apply. Default: a generated one."""
    description: str | None = wire(str)
    """Free text, up to 4 KiB."""
    deliver_policy: DeliverPolicy | str | None = wire(DeliverPolicy)
    """Where in the stream it starts; cannot be changed later. Default all."""
    opt_start_seq: int | None = wire(UINT64)
    """The sequence to start at, with the policy by_start_sequence."""
    opt_start_time: datetime | None = wire(datetime)
    """The time to start at, with the policy by_start_time."""
    ack_policy: AckPolicy | str = wire(AckPolicy, AckPolicy.EXPLICIT)
    """How messages are acknowledged; cannot be changed later. Default explicit."""
    ack_wait: float | None = wire(float, zero_is_default=True)
    """How long the server waits for an ack before it delivers the message again, in seconds. Default 30."""
    max_deliver: int | None = wire(INT64, zero_is_default=True)
    """How often a message is delivered at most. Default -1: until it is acknowledged."""
    backoff: list[float] | None = wire([float])
    """Replaces `ack_wait`: a wait in seconds per delivery, the last one repeated; at most `max_deliver`."""
    filter_subject: str | None = wire(SUBJECT)
    """Deliver only these subjects, wildcards allowed; exclusive with `filter_subjects`. Default: all."""
    filter_subjects: list[str] | None = wire([NONEMPTY_SUBJECT])
    """Deliver only these subjects, wildcards allowed. They must not overlap."""
    replay_policy: ReplayPolicy | str | None = wire(ReplayPolicy)
    """How fast stored messages are delivered; cannot be changed later. Default instant."""
    rate_limit_bps: int | None = wire(UINT64)
    """Push only: bits per second at most. Default 0: no limit."""
    sample_freq: str | None = wire(str)
    """The percentage of acks that the server reports as samples: `"30"` or `"30%"`. Default: none."""
    max_waiting: int | None = wire(INT64, zero_is_default=True)
    """Pull only: how many pull requests may wait at once; cannot be changed later. Default 512."""
    max_ack_pending: int | None = wire(INT64, zero_is_default=True)
    """How many messages may be unacknowledged before delivery stops; -1 is unlimited. Default 1000."""
    flow_control: bool | None = wire(bool)
    """Push only: pause delivery until the client replies; needs `idle_heartbeat`. Default false."""
    headers_only: bool | None = wire(bool)
    """Deliver the headers and, in a header, the size of the payload instead of the payload. Default false."""
    max_batch: int | None = wire(INT64, zero_is_default=True)
    """Pull only: how many messages a pull request may ask for. Default 0: no limit."""
    max_expires: float | None = wire(float)
    """Pull only: how long a pull request may wait, in seconds. Default 0: no limit."""
    max_bytes: int | None = wire(INT64)
    """Pull only: how many bytes a pull request may ask for. Default 0: no limit."""
    deliver_subject: str | None = wire(LITERAL_SUBJECT)
    """Push only: the subject that messages are sent to. Unset: a pull consumer."""
    deliver_group: str | None = wire(QUEUE)
    """Push only: the queue group that shares the messages."""
    idle_heartbeat: float | None = wire(float)
    """Push only: send a heartbeat after this many seconds without a message, at least 0.1. Default 0: none."""
    inactive_threshold: float | None = wire(float, zero_is_default=True)
    """Delete the consumer after this many seconds without a client. Default 5, for a durable one never."""
    num_replicas: int | None = wire(INT64, zero_is_default=True)
    """On how many servers its state is stored. Default 0: as many as the stream."""
    mem_storage: bool | None = wire(bool)
    """Keep its state in memory even if the stream is stored in files. Default false."""
    direct: bool | None = wire(bool)
    """Used between servers for mirrors and sources; not for applications."""
    sourcing: bool | None = wire(bool, since="2.14")
    """Used between servers for mirrors and sources; not for applications. Since 2.14."""
    metadata: dict[str, str] | None = wire({str: str})
    """Notes of the application, up to 128 KiB. Keys that begin with `_nats.` are the server's."""
    pause_until: datetime | None = wire(datetime, since="2.11")
    """Deliver nothing until this time. Since 2.11."""
    priority_groups: list[str] | None = wire([str], since="2.11")
    """Pull only: the groups that a pull may name, 1 to 16 characters each; needs `priority_policy`. Since 2.11."""
    priority_policy: PriorityPolicy | str | None = wire(PriorityPolicy, since="2.11")
    """Pull only: how to choose among the clients of a group. Default none. Since 2.11."""
    priority_timeout: float | None = wire(float, since="2.11", zero_is_default=True)
    """After how many seconds without a pull a pinned client is unpinned. Default 120. Since 2.11."""


# What may be given as a whole configuration: None when all is given by keywords.
StreamConfigLike = StreamConfig | Mapping[str, Any] | None
ConsumerConfigLike = ConsumerConfig | Mapping[str, Any] | None


def differences(asked: ConsumerConfig, actual: ConsumerConfig) -> list[str]:
    """The names of the fields that `asked` sets and `actual` has with another value, in the order of the table.

    A field that `asked` leaves unset is not compared, nor is a zero that means the server's default. `ack_policy`
    is never unset, so it is always compared. One filter subject equals a list of that subject.
    """
    return [spec.name for spec in fields_of(ConsumerConfig) if _differs(spec, asked, actual)]


def _differs(spec: FieldSpec, asked: ConsumerConfig, actual: ConsumerConfig) -> bool:
    wanted, found = getattr(asked, spec.name), getattr(actual, spec.name)
    if wanted is None or (not wanted and (spec.zero_is_default or not found)):
        return False
    if spec.name == "ack_wait" and asked.backoff:
        return False  # the server sets ack_wait to the first backoff
    if spec.name in ("filter_subject", "filter_subjects") and _filters(asked) == _filters(actual):
        return False
    if spec.name == "metadata":
        wanted, found = _own_metadata(wanted), _own_metadata(found or {})
    if found is None:
        return True
    return bool(spec.kind.encode(wanted) != spec.kind.encode(found))


def _filters(config: ConsumerConfig) -> set[str]:
    return set(config.filter_subjects or ()) | ({config.filter_subject} if config.filter_subject else set())


def _own_metadata(metadata: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
