"""Every field of a config is sent to a real server and read back equal; unknown fields are kept.

The tests run on any version of the server. A field whose `since` is newer than the server must be rejected or
ignored by it, which proves the version in the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync import Connection, connect
from jetstream_sync.api.config import (
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
    differences,
)
from jetstream_sync.api.fields import Config, described, fields_of, wire
from jetstream_sync.api.info import AccountInfo, ConsumerInfo, ConsumerPause, PubAck, RawStreamMsg, StreamInfo
from jetstream_sync.api.kinds import NAME, TEXT
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.plugin import await_removal

TIMEOUT = 10.0
START = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=timezone.utc)
FUTURE = datetime(2124, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
PUSH = {"deliver_subject": "deliver.here"}


class Requester:
    """Asks the JetStream API and reads its JSON."""

    def __init__(self, nc: Connection) -> None:
        self._nc = nc
        version = nc.server_info["version"].split("-")[0]
        self.version = tuple(int(part) for part in version.split("."))

    def publish(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            self._nc.request(subject, payload, headers=headers, timeout=TIMEOUT).data
        )
        return answer

    def api(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.publish(f"$JS.API.{subject}", b"" if request is None else json.dumps(request).encode())

    def ask(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self.api(subject, request)
        assert "error" not in answer, answer["error"]
        return answer


@pytest.fixture(scope="module")
def js(nats_server: LocalServer) -> Iterator[Requester]:
    with connect(nats_server.url) as nc:
        nc.flush()  # all its threads run by now: none of them is a test's
        yield Requester(nc)


@pytest.fixture(autouse=True)
def _clean(nats_server: LocalServer, js: Requester) -> Iterator[None]:
    js.ask("STREAM.CREATE.ORIGIN", {"name": "ORIGIN", "subjects": ["origin.>"], "allow_direct": True})
    js.ask("STREAM.CREATE.BASE", {"name": "BASE", "subjects": ["base.>"], "storage": "memory"})
    yield
    for name in js.ask("STREAM.NAMES", {})["streams"] or []:
        js.ask(f"STREAM.DELETE.{name}")
    await_removal(nats_server.store_dir)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) if text else ()


@dataclass
class Sample:
    """A value for one field, what else the server wants beside it, and since when it knows the value."""

    name: str
    value: Any
    beside: dict[str, Any] = field(default_factory=dict)
    since: str = ""
    update: bool = False
    """The server takes it in an update only."""

    def needs(self, cls: type[Config]) -> tuple[int, ...]:
        own = next(spec for spec in fields_of(cls) if spec.name == self.name)
        return max(version(own.since), version(self.since))

    def __str__(self) -> str:
        return self.name


STREAM_SAMPLES = [
    Sample("name", "OTHER"),
    Sample("description", 'ünï "quoted" \n text'),
    Sample("subjects", ["x.>", "y.*.z", "z"]),
    Sample("retention", RetentionPolicy.WORKQUEUE),
    Sample("retention", RetentionPolicy.INTEREST),
    Sample("max_consumers", 7),
    Sample("max_msgs", 1_000),
    Sample("max_bytes", 123_456_789),
    Sample("max_age", 0.1),
    Sample("max_age", 31_536_000.123456),
    Sample("max_msgs_per_subject", 3),
    Sample("max_msg_size", 1_234),
    Sample("discard", DiscardPolicy.NEW),
    Sample("storage", StorageType.MEMORY),
    Sample("storage", StorageType.FILE),
    Sample("num_replicas", 1),
    Sample("no_ack", True),
    Sample("duplicate_window", 12.345678901),
    Sample("placement", Placement(cluster="here", tags=["ssd", "eu"])),
    Sample("mirror", StreamSource("ORIGIN", opt_start_seq=5)),
    Sample("mirror", StreamSource("ORIGIN", opt_start_time=START, filter_subject="origin.a")),
    Sample("mirror", StreamSource("FAR", external=ExternalStream(api="$JS.far.API", deliver="far.deliver"))),
    Sample(
        "sources",
        [
            StreamSource("ORIGIN", subject_transforms=[SubjectTransform("origin.a.*", "b.{{wildcard(1)}}")]),
            StreamSource("FAR", opt_start_time=START, external=ExternalStream("$JS.far.API", "far.deliver")),
        ],
    ),
    Sample(
        "sources",
        [StreamSource("ORIGIN", consumer=StreamConsumerSource("through", deliver_subject="go.there"))],
        since="2.14",
    ),
    Sample("compression", StoreCompression.S2),
    Sample("first_seq", 2**53 + 1),
    Sample("subject_transform", SubjectTransform("x.*", "y.{{wildcard(1)}}"), {"subjects": ["x.*"]}),
    Sample("republish", Republish("x.>", "again.>", headers_only=True), {"subjects": ["x.>"]}),
    Sample("allow_direct", True),
    Sample("mirror_direct", True, {"mirror": StreamSource("ORIGIN")}),
    Sample("discard_new_per_subject", True, {"discard": "new", "max_msgs_per_subject": 1}),
    Sample("sealed", True, update=True),
    Sample("deny_delete", True),
    Sample("deny_purge", True),
    Sample("allow_rollup_hdrs", True),
    Sample("consumer_limits", StreamConsumerLimits(inactive_threshold=7.5, max_ack_pending=50)),
    Sample("allow_msg_ttl", True),
    Sample("subject_delete_marker_ttl", 61.5),
    Sample("allow_msg_counter", True),
    Sample("allow_atomic", True),
    Sample("allow_msg_schedules", True),
    Sample("persist_mode", PersistMode.ASYNC),
    Sample("allow_batched", True),
    Sample("metadata", {"owner": "me", "größe": "12 €"}),
]

CONSUMER_SAMPLES = [
    Sample("durable_name", "worker"),
    Sample("name", "worker"),
    Sample("description", "for ümlauts"),
    Sample("deliver_policy", DeliverPolicy.NEW),
    Sample("deliver_policy", DeliverPolicy.LAST),
    Sample("deliver_policy", DeliverPolicy.LAST_PER_SUBJECT, {"filter_subject": "base.>"}),
    Sample("opt_start_seq", 2**53 + 1, {"deliver_policy": "by_start_sequence"}),
    Sample("opt_start_time", START, {"deliver_policy": "by_start_time"}),
    Sample("ack_policy", AckPolicy.EXPLICIT),
    Sample("ack_policy", AckPolicy.ALL),
    Sample("ack_policy", AckPolicy.NONE),
    Sample("ack_policy", AckPolicy.FLOW_CONTROL, {**PUSH, "max_ack_pending": 10}, since="2.14"),
    Sample("ack_wait", 12.5),
    Sample("max_deliver", 7),
    Sample("backoff", [0.1, 1.0, 2.25], {"max_deliver": 5}),
    Sample("filter_subject", "base.a.*"),
    Sample("filter_subjects", ["base.a", "base.b.>"]),
    Sample("replay_policy", ReplayPolicy.ORIGINAL),
    Sample("rate_limit_bps", 10_000_000, PUSH),
    Sample("sample_freq", "30%"),
    Sample("max_waiting", 99),
    Sample("max_ack_pending", 77),
    Sample("flow_control", True, {**PUSH, "idle_heartbeat": 1}),
    Sample("headers_only", True),
    Sample("max_batch", 11),
    Sample("max_expires", 4.75),
    Sample("max_bytes", 4_096),
    Sample("deliver_subject", "some.where"),
    Sample("deliver_group", "workers", PUSH),
    Sample("idle_heartbeat", 0.5, PUSH),
    Sample("inactive_threshold", 123.456),
    Sample("num_replicas", 1),
    Sample("mem_storage", True),
    Sample("direct", True, PUSH),
    Sample("sourcing", True, {**PUSH, "ack_policy": "flow_control", "max_ack_pending": 10}),
    Sample("metadata", {"owner": "me", "größe": "12 €"}),
    Sample("pause_until", FUTURE),
    Sample("priority_groups", ["jobs"], {"priority_policy": "overflow"}),
    Sample("priority_policy", PriorityPolicy.OVERFLOW, {"priority_groups": ["jobs"]}),
    Sample("priority_policy", PriorityPolicy.PINNED_CLIENT, {"priority_groups": ["jobs"]}),
    Sample("priority_policy", PriorityPolicy.PRIORITIZED, {"priority_groups": ["jobs"]}, since="2.12"),
    Sample("priority_timeout", 33.5, {"priority_policy": "pinned_client", "priority_groups": ["jobs"]}),
]


def own(value: Any) -> Any:
    """`value` without the notes that servers since 2.11 add to metadata."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if not key.startswith("_nats.")}
    return value


def create_stream(js: Requester, sample: Sample) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": "SAMPLE", **sample.beside}
    config = StreamConfig(**{**fields, sample.name: sample.value})
    if sample.update:
        js.ask(f"STREAM.CREATE.{config.name}", StreamConfig(**fields).to_wire())
        return js.api(f"STREAM.UPDATE.{config.name}", config.to_wire())
    return js.api(f"STREAM.CREATE.{config.name}", config.to_wire())


def create_consumer(js: Requester, sample: Sample) -> dict[str, Any]:
    config = ConsumerConfig(**{"name": "worker", **sample.beside, sample.name: sample.value})
    if sample.name == "durable_name":
        config.name = None
    return js.api("CONSUMER.CREATE.BASE.worker", {"stream_name": "BASE", "config": config.to_wire()})


@pytest.mark.parametrize("sample", STREAM_SAMPLES, ids=str)
def test_stream_field_is_read_back_equal(js: Requester, sample: Sample) -> None:
    """A stream's field comes back from the server as it was sent, and nothing comes back unknown."""
    answer = create_stream(js, sample)
    if sample.needs(StreamConfig) > js.version:
        # Older servers refuse or ignore it: the version in the table is right.
        assert "error" in answer or getattr(StreamInfo.from_wire(answer).config, sample.name) != sample.value
        return
    assert "error" not in answer, answer
    info = StreamInfo.from_wire(js.ask(f"STREAM.INFO.{answer['config']['name']}"))
    assert own(getattr(info.config, sample.name)) == sample.value
    assert info.config.unknown_fields == {}
    assert info.unknown_fields == {}
    assert info.state.unknown_fields == {}


@pytest.mark.parametrize("sample", CONSUMER_SAMPLES, ids=str)
def test_consumer_field_is_read_back_equal(js: Requester, sample: Sample) -> None:
    """A consumer's field comes back from the server as it was sent, and nothing comes back unknown."""
    answer = create_consumer(js, sample)
    if sample.needs(ConsumerConfig) > js.version:
        assert "error" in answer or getattr(ConsumerInfo.from_wire(answer).config, sample.name) != sample.value
        return
    assert "error" not in answer, answer
    info = ConsumerInfo.from_wire(js.ask("CONSUMER.INFO.BASE.worker"))
    assert own(getattr(info.config, sample.name)) == sample.value
    assert info.config.unknown_fields == {}
    assert info.unknown_fields == {}


@pytest.mark.parametrize(("cls", "samples"), [(StreamConfig, STREAM_SAMPLES), (ConsumerConfig, CONSUMER_SAMPLES)])
def test_samples_cover_the_field_table(cls: type[Config], samples: list[Sample]) -> None:
    """No field of the table is without a sample."""
    assert {spec.name for spec in fields_of(cls)} == {sample.name for sample in samples}


# --- read, modify, update -------------------------------------------------------------------------


@dataclass(slots=True, repr=False)
class OldStreamConfig(Config):
    """A stream's config as a version of this library would see it that knows two fields."""

    name: str = field(metadata=described(NAME))
    description: str | None = wire(TEXT)


@dataclass(slots=True, repr=False)
class OldConsumerConfig(Config):
    """A consumer's config as a version of this library would see it that knows one field."""

    description: str | None = wire(TEXT)


@pytest.mark.parametrize("cls", [StreamConfig, OldStreamConfig])
@pytest.mark.parametrize("sample", STREAM_SAMPLES, ids=str)
def test_stream_update_after_read_loses_nothing(js: Requester, cls: type[Any], sample: Sample) -> None:
    """Changing one field of a stream's config leaves all others alone, known to the reader or not."""
    created = create_stream(js, sample)
    if sample.needs(StreamConfig) > js.version:
        return  # refused, or the same as the other samples without this field
    before = created["config"]
    changed = replace(cls.from_wire(before), description="changed")
    js.ask(f"STREAM.UPDATE.{before['name']}", changed.to_wire())
    after = js.ask(f"STREAM.INFO.{before['name']}")["config"]
    assert after == {**before, "description": "changed"}


@pytest.mark.parametrize("cls", [ConsumerConfig, OldConsumerConfig])
@pytest.mark.parametrize("sample", CONSUMER_SAMPLES, ids=str)
def test_consumer_update_after_read_loses_nothing(js: Requester, cls: type[Any], sample: Sample) -> None:
    """Changing one field of a consumer's config leaves all others alone, known to the reader or not."""
    created = create_consumer(js, sample)
    if sample.needs(ConsumerConfig) > js.version:
        return  # refused, or the same as the other samples without this field
    before = created["config"]
    changed = replace(cls.from_wire(before), description="changed")
    request = {"stream_name": "BASE", "config": changed.to_wire(), "action": "update"}
    js.ask("CONSUMER.CREATE.BASE.worker", request)
    after = js.ask("CONSUMER.INFO.BASE.worker")["config"]
    assert after == {**before, "description": "changed"}


def test_update_after_read_keeps_a_start_time_in_nanoseconds(js: Requester) -> None:
    """A start time that is more precise than a datetime, and may not be changed, survives an update."""
    exact = "2024-02-29T12:30:15.123456789Z"
    created = js.ask(
        "CONSUMER.CREATE.BASE.worker",
        {
            "stream_name": "BASE",
            "config": {"name": "worker", "deliver_policy": "by_start_time", "opt_start_time": exact},
        },
    )
    config = ConsumerInfo.from_wire(created).config
    assert config.opt_start_time == START
    config.description = "changed"
    js.ask("CONSUMER.CREATE.BASE.worker", {"stream_name": "BASE", "config": config.to_wire()})
    after = js.ask("CONSUMER.INFO.BASE.worker")["config"]
    assert (after["opt_start_time"], after["description"]) == (exact, "changed")


# --- infos ----------------------------------------------------------------------------------------


def test_pub_ack_of_a_duplicate_says_so(js: Requester) -> None:
    """The second message with one id is acknowledged as a duplicate with the first one's sequence."""
    headers = {"Nats-Msg-Id": "1"}
    first, second = (PubAck.from_wire(js.publish("base.a", b"data", headers)) for _ in range(2))
    assert first == PubAck("BASE", 1)
    assert second == PubAck("BASE", 1, duplicate=True)


def test_stored_message_is_read_with_headers_and_time(js: Requester) -> None:
    """A message read by its sequence has its payload, headers and an aware time."""
    js.publish("base.a", b"\x00\xff", {"Colour": "red"})
    message = RawStreamMsg.from_wire(js.ask("STREAM.MSG.GET.BASE", {"seq": 1})["message"])
    assert (message.subject, message.seq, message.data) == ("base.a", 1, b"\x00\xff")
    assert message.headers == {"Colour": "red"}
    assert message.time is not None
    assert abs(message.time - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert message.unknown_fields == {}


def test_stored_message_without_headers_has_none(js: Requester) -> None:
    """A message without headers or payload has None and empty bytes there."""
    js.publish("base.a")
    message = RawStreamMsg.from_wire(js.ask("STREAM.MSG.GET.BASE", {"seq": 1})["message"])
    assert (message.headers, message.data) == (None, b"")


def test_stream_state_has_subjects_and_deleted(js: Requester) -> None:
    """Counts per subject and deleted sequences are read when they were asked for."""
    for subject in ("base.a", "base.b", "base.a"):
        js.publish(subject)
    js.ask("STREAM.MSG.DELETE.BASE", {"seq": 2})
    info = StreamInfo.from_wire(js.ask("STREAM.INFO.BASE", {"deleted_details": True, "subjects_filter": ">"}))
    assert info.state.subjects == {"base.a": 2}
    assert (info.state.deleted, info.state.num_deleted) == ([2], 1)
    assert (info.state.first_seq, info.state.last_seq, info.state.messages) == (1, 3, 2)
    assert info.unknown_fields == {}


def test_source_that_was_never_heard_from_has_no_age(js: Requester) -> None:
    """The server's -1 for a mirror without an origin is None."""
    config = StreamConfig("SAMPLE", mirror=StreamSource("NOBODY"))
    js.ask("STREAM.CREATE.SAMPLE", config.to_wire())
    info = StreamInfo.from_wire(js.ask("STREAM.INFO.SAMPLE"))
    assert info.mirror is not None
    assert (info.mirror.name, info.mirror.active, info.mirror.unknown_fields) == ("NOBODY", None, {})


def test_account_info_counts_streams(js: Requester) -> None:
    """The account's info is read whole."""
    info = AccountInfo.from_wire(js.ask("INFO"))
    assert info.streams == 2
    assert info.api.total > 0
    assert info.limits.max_streams == -1
    unknown = [info.unknown_fields, info.api.unknown_fields, info.limits.unknown_fields]
    assert unknown == [{}, {}, {}]


def test_pause_is_told_in_answer_and_info(js: Requester) -> None:
    """A consumer paused until a time says so, with the time that remains."""
    js.ask("CONSUMER.CREATE.BASE.worker", {"stream_name": "BASE", "config": {"name": "worker"}})
    until = {"pause_until": "2124-01-02T03:04:05.678901Z"}
    answer = js.api("CONSUMER.PAUSE.BASE.worker", until) if js.version >= (2, 11) else {}
    pause = ConsumerPause.from_wire(answer)
    info = ConsumerInfo.from_wire(js.ask("CONSUMER.INFO.BASE.worker"))
    if js.version < (2, 11):
        assert (pause.paused, info.paused, info.pause_remaining) == (False, False, 0.0)
        return
    assert pause.paused
    assert pause.pause_until == FUTURE
    assert info.paused
    assert info.config.pause_until == FUTURE
    assert pause.pause_remaining > info.pause_remaining > 86_400 * 365


@pytest.mark.parametrize("sample", CONSUMER_SAMPLES, ids=str)
def test_consumer_does_not_differ_from_its_own_config(js: Requester, sample: Sample) -> None:
    """The defaults that the server adds do not make a consumer differ from the requested config."""
    created = create_consumer(js, sample)
    if sample.needs(ConsumerConfig) > js.version:
        return  # there is no such consumer
    asked = ConsumerConfig(**{"name": "worker", **sample.beside, sample.name: sample.value})
    assert differences(asked, ConsumerInfo.from_wire(created).config) == []
