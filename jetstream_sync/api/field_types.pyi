"""The keywords of create_stream() and its like, for type checkers alone. Made by `make reference`: do not edit.

Import it under `if TYPE_CHECKING`: there is no such module when the program runs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import Required, TypedDict

from .config import (
    AckPolicy,
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
    StreamConsumerLimits,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)

class ExternalStreamFields(TypedDict, total=False):
    """A dict in place of `ExternalStream`."""

    api: str | None
    deliver: str | None

class PlacementFields(TypedDict, total=False):
    """A dict in place of `Placement`."""

    cluster: str | None
    tags: list[str] | tuple[str, ...] | None
    preferred: str | None

class RepublishFields(TypedDict, total=False):
    """A dict in place of `Republish`."""

    src: str | None
    dest: str | None
    headers_only: bool | None

class StreamConsumerLimitsFields(TypedDict, total=False):
    """A dict in place of `StreamConsumerLimits`."""

    inactive_threshold: float | timedelta | None
    max_ack_pending: int | None

class StreamConsumerSourceFields(TypedDict, total=False):
    """A dict in place of `StreamConsumerSource`."""

    name: str | None
    deliver_subject: str | None

class StreamSourceFields(TypedDict, total=False):
    """A dict in place of `StreamSource`."""

    name: Required[str]
    opt_start_seq: int | None
    opt_start_time: datetime | None
    filter_subject: str | None
    subject_transforms: Sequence[SubjectTransform | SubjectTransformFields] | None
    external: ExternalStream | ExternalStreamFields | None
    consumer: StreamConsumerSource | StreamConsumerSourceFields | None

class SubjectTransformFields(TypedDict, total=False):
    """A dict in place of `SubjectTransform`."""

    src: str | None
    dest: str | None

class StreamFields(TypedDict, total=False):
    """The fields of a StreamConfig."""

    name: str
    description: str | None
    subjects: list[str] | tuple[str, ...] | None
    retention: RetentionPolicy | str | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: float | timedelta | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicy | str | None
    storage: StorageType | str | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: float | timedelta | None
    placement: Placement | PlacementFields | None
    mirror: StreamSource | StreamSourceFields | None
    sources: Sequence[StreamSource | StreamSourceFields] | None
    compression: StoreCompression | str | None
    first_seq: int | None
    subject_transform: SubjectTransform | SubjectTransformFields | None
    republish: Republish | RepublishFields | None
    allow_direct: bool | None
    mirror_direct: bool | None
    discard_new_per_subject: bool | None
    sealed: bool | None
    deny_delete: bool | None
    deny_purge: bool | None
    allow_rollup_hdrs: bool | None
    consumer_limits: StreamConsumerLimits | StreamConsumerLimitsFields | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: float | timedelta | None
    allow_msg_counter: bool | None
    allow_atomic: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistMode | str | None
    allow_batched: bool | None
    metadata: Mapping[str, str] | None
    unknown_fields: dict[str, Any]

class SubscribeFields(TypedDict, total=False):
    """The fields of a ConsumerConfig, but for what subscribe() has as parameters of its own."""

    durable_name: str | None
    name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: datetime | None
    ack_policy: AckPolicy | str | None
    ack_wait: float | timedelta | None
    max_deliver: int | None
    backoff: Sequence[float | timedelta] | None
    filter_subject: str | None
    filter_subjects: list[str] | tuple[str, ...] | None
    replay_policy: ReplayPolicy | str | None
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: float | timedelta | None
    max_bytes: int | None
    deliver_subject: str | None
    deliver_group: str | None
    inactive_threshold: float | timedelta | None
    num_replicas: int | None
    mem_storage: bool | None
    direct: bool | None
    sourcing: bool | None
    metadata: Mapping[str, str] | None
    pause_until: datetime | None
    priority_groups: list[str] | tuple[str, ...] | None
    priority_policy: PriorityPolicy | str | None
    priority_timeout: float | timedelta | None
    unknown_fields: dict[str, Any]

class ConsumerFields(SubscribeFields, total=False):
    """The fields of a ConsumerConfig."""

    flow_control: bool | None
    idle_heartbeat: float | timedelta | None

class OrderedFields(TypedDict, total=False):
    """What can be chosen for an ordered consumer."""

    description: str | None
    deliver_policy: DeliverPolicy | str | None
    opt_start_seq: int | None
    opt_start_time: datetime | None
    filter_subject: str | None
    filter_subjects: list[str] | tuple[str, ...] | None
    replay_policy: ReplayPolicy | str | None
    headers_only: bool | None
    inactive_threshold: float | timedelta | None
    metadata: Mapping[str, str] | None
    name_prefix: str | None
    max_reset_attempts: int | None
