"""ADR-15: every rejection and every check of an existing consumer, each against a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jetstream_sync import Connection, ConsumerConfig, JetStream, Stream
from jetstream_sync.api.consumer_api import ConsumerApi
from jetstream_sync.errors import (
    BadSubjectError,
    ConsumerConfigError,
    ConsumerNotFoundError,
    JetStreamError,
    NatsError,
    StreamNotFoundError,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually


def footprint(server: LocalServer, js: JetStream) -> tuple[int, list[str]]:
    """How many subscriptions the server has, and the consumers of the stream."""
    return server.monitor("/subsz")["num_subscriptions"], sorted(js.get_stream("S").consumer_names())


@pytest.fixture(autouse=True)
def streams(js: JetStream, stream: Stream) -> None:
    """S with one message, and two streams for the subjects `t.*`."""
    js.create_stream(name="T1", subjects=["t.one"])
    js.create_stream(name="T2", subjects=["t.two"])
    js.publish("s.a", b"1")


# --- rejected before anything is sent -----------------------------------------------------------------


@dataclass
class Rejection:
    """A call that is refused, the field that its error names, and words of its text."""

    name: str
    arguments: dict[str, Any]
    named: str
    words: str
    pull: bool = False
    kind: type[NatsError] = ConsumerConfigError


ORDERED: dict[str, Any] = {"subject": "s.a", "ordered_consumer": True}
PULL: dict[str, Any] = {"subject": "s.a", "durable": "d"}

REJECTIONS = [
    Rejection("nothing given", {}, "subject", "subject or a stream"),
    Rejection("consumer without subject or stream", {"consumer": "c"}, "subject", "subject or a stream"),
    Rejection(
        "queue with heartbeat", {"subject": "s.a", "queue": "q", "idle_heartbeat": 1.0}, "idle_heartbeat", "queue"
    ),
    Rejection(
        "queue with flow control", {"subject": "s.a", "queue": "q", "flow_control": True}, "flow_control", "queue"
    ),
    Rejection(
        "deliver group with heartbeat",
        {"subject": "s.a", "config": {"deliver_group": "q", "idle_heartbeat": 1.0}},
        "idle_heartbeat",
        "queue",
    ),
    Rejection(
        "queue and another deliver group",
        {"subject": "s.a", "queue": "q", "config": {"deliver_group": "r"}},
        "deliver_group",
        "'q'",
    ),
    Rejection(
        "durable and another durable_name",
        {"subject": "s.a", "durable": "d", "config": ConsumerConfig(durable_name="e")},
        "durable_name",
        "'e'",
    ),
    Rejection(
        "consumer and another durable", {"subject": "s.a", "consumer": "c", "durable": "d"}, "durable_name", "'c'"
    ),
    Rejection(
        "subject and another filter",
        {"subject": "s.a", "config": {"filter_subject": "s.b"}},
        "filter_subject",
        "s.b",
    ),
    Rejection(
        "subject and other filters",
        {"subject": "s.a", "config": {"filter_subjects": ["s.b", "s.c"]}},
        "filter_subjects",
        "s.c",
    ),
    Rejection("subject with a blank", {"subject": "s. a"}, "", "subject", kind=BadSubjectError),
    Rejection("stream name with a dot", {"stream": "a.b"}, "", "stream", kind=BadSubjectError),
    Rejection(
        "consumer name with a wildcard", {"stream": "S", "consumer": "*"}, "", "consumer", kind=BadSubjectError
    ),
    Rejection(
        "durable name with a line break",
        {"subject": "s.a", "durable": "d\r\n"},
        "",
        "durable",
        kind=BadSubjectError,
    ),
    Rejection(
        "queue that cannot be a durable", {"subject": "s.a", "queue": "a.b"}, "", "queue", kind=BadSubjectError
    ),
    Rejection(
        "pull with ack none", {**PULL, "config": {"ack_policy": "none"}}, "ack_policy", "explicit", pull=True
    ),
    Rejection("pull with ack all", {**PULL, "config": {"ack_policy": "all"}}, "ack_policy", "explicit", pull=True),
    Rejection(
        "pull with a deliver subject",
        {**PULL, "config": {"deliver_subject": "x"}},
        "deliver_subject",
        "push",
        pull=True,
    ),
    Rejection("pull without subject or stream", {}, "subject", "subject or a stream", pull=True),
    Rejection("ordered and durable", {**ORDERED, "durable": "d"}, "durable_name", "ordered"),
    Rejection("ordered and durable_name", {**ORDERED, "config": {"durable_name": "d"}}, "durable_name", "ordered"),
    Rejection("ordered and queue", {**ORDERED, "queue": "q"}, "queue", "ordered"),
    Rejection("ordered and bound", {**ORDERED, "consumer": "c"}, "consumer", "ordered"),
    Rejection(
        "ordered and deliver subject",
        {**ORDERED, "config": {"deliver_subject": "x"}},
        "deliver_subject",
        "ordered",
    ),
    Rejection(
        "ordered and deliver group", {**ORDERED, "config": {"deliver_group": "q"}}, "deliver_group", "ordered"
    ),
    Rejection("ordered and acks", {**ORDERED, "config": {"ack_policy": "explicit"}}, "ack_policy", "ordered"),
    Rejection(
        "ordered and ack all", {**ORDERED, "config": ConsumerConfig(ack_policy="all")}, "ack_policy", "ordered"
    ),
    Rejection("ordered and max_deliver", {**ORDERED, "config": {"max_deliver": 2}}, "max_deliver", "ordered"),
    Rejection(
        "ordered without flow control", {**ORDERED, "config": {"flow_control": False}}, "flow_control", "ordered"
    ),
    Rejection("ordered and on disk", {**ORDERED, "config": {"mem_storage": False}}, "mem_storage", "ordered"),
    Rejection("ordered and replicated", {**ORDERED, "config": {"num_replicas": 3}}, "num_replicas", "ordered"),
]


@pytest.mark.parametrize("row", REJECTIONS, ids=lambda row: row.name.replace(" ", "_"))
def test_rejection_before_anything_is_sent(
    row: Rejection, nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """What cannot work is refused with an error that names it, and not one message is sent for it."""
    before = footprint(nats_server, js)
    sent = nc.stats.out_msgs
    with pytest.raises(row.kind, match=row.words) as caught:
        (js.pull_subscribe if row.pull else js.subscribe)(**row.arguments)
    assert getattr(caught.value, "field", "") == row.named
    assert nc.stats.out_msgs == sent
    assert footprint(nats_server, js) == before


# --- streams and consumers that are not there -----------------------------------------------------------

MISSING = [
    ("no stream on the subject", {"subject": "nowhere"}, StreamNotFoundError, "no stream"),
    ("several streams on the subject", {"subject": "t.*"}, StreamNotFoundError, "several streams: T1, T2"),
    ("no such stream", {"stream": "NONE"}, StreamNotFoundError, ""),
    ("no such stream to bind in", {"stream": "NONE", "consumer": "c"}, StreamNotFoundError, ""),
    ("no such consumer to bind to", {"stream": "S", "consumer": "c"}, ConsumerNotFoundError, ""),
    ("no such consumer, by subject", {"subject": "s.a", "consumer": "c"}, ConsumerNotFoundError, ""),
    ("config that the server refuses", {"subject": "s.a", "config": {"max_waiting": 5}}, JetStreamError, ""),
    ("ordered, no stream", {"subject": "nowhere", "ordered_consumer": True}, StreamNotFoundError, "no stream"),
    ("ordered, no such stream", {"stream": "NONE", "ordered_consumer": True}, StreamNotFoundError, ""),
]


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words"), MISSING, ids=lambda value: str(value).replace(" ", "_")
)
def test_subscribe_to_what_is_not_there(
    name: str,
    arguments: dict[str, Any],
    kind: type[NatsError],
    words: str,
    nats_server: LocalServer,
    js: JetStream,
) -> None:
    """A look-up or creation that fails is an error, and leaves neither a consumer nor a subscription behind."""
    before = footprint(nats_server, js)
    with pytest.raises(kind, match=words or None):
        js.subscribe(**arguments)
    eventually(lambda: footprint(nats_server, js) == before, message="nothing is left behind")


def test_pull_subscribe_to_a_consumer_that_cannot_be_found(js: JetStream) -> None:
    """For a pull subscription a failed look-up of the consumer to bind to is no error; the fetch fails then."""
    with js.pull_subscribe(stream="S", consumer="nowhere") as sub:
        with pytest.raises(NatsError):
            sub.fetch(1, timeout=0.5)
    assert list(js.get_stream("S").consumer_names()) == []


# --- an existing consumer ------------------------------------------------------------------------------


@dataclass
class Check:
    """An existing consumer C, a call that does not fit it, the field its error names, and words of its text."""

    name: str
    consumer: dict[str, Any]
    arguments: dict[str, Any]
    named: str
    words: str
    pull: bool = False
    bound: bool = False


PUSH = {"deliver_subject": "deliver.c"}
GROUP = {**PUSH, "deliver_group": "q"}
BIND: dict[str, Any] = {"stream": "S", "consumer": "C"}
DURABLE: dict[str, Any] = {"subject": "s.a", "durable": "C"}

CHECKS = [
    Check("bound already", PUSH, BIND, "push_bound", "duplicate subscription", bound=True),
    Check("bound already, by durable", PUSH, DURABLE, "push_bound", "duplicate subscription", bound=True),
    Check("group and no queue", GROUP, BIND, "deliver_group", "belongs to the queue group 'q'"),
    Check("group and no queue, bound", GROUP, BIND, "deliver_group", "belongs to the queue group 'q'", bound=True),
    Check(
        "group and another queue",
        GROUP,
        {**BIND, "queue": "r"},
        "deliver_group",
        "different queue group: 'q', not 'r'",
    ),
    Check("queue and no group", PUSH, {**BIND, "queue": "q"}, "deliver_group", "no deliver group"),
    Check(
        "queue and no group, bound", PUSH, {**BIND, "queue": "q"}, "deliver_group", "no deliver group", bound=True
    ),
    Check(
        "another filter",
        {**PUSH, "filter_subject": "s.b"},
        {**BIND, "subject": "s.a"},
        "filter_subject",
        "s.b.*'s.a'",
    ),
    Check(
        "several filters",
        {**PUSH, "filter_subjects": ["s.a", "s.b"]},
        {**BIND, "subject": "s.a"},
        "filter_subject",
        "s.a, s.b",
    ),
    Check("another filter, by durable", {**PUSH, "filter_subject": "s.b"}, DURABLE, "filter_subject", "s.b"),
    Check("pull of a push consumer", PUSH, BIND, "deliver_subject", "cannot pull", pull=True),
    Check("pull of a push consumer, by durable", PUSH, DURABLE, "deliver_subject", "cannot pull", pull=True),
    Check("pull of another filter", {"filter_subject": "s.b"}, DURABLE, "filter_subject", "s.b", pull=True),
    Check("push of a pull consumer", {}, BIND, "deliver_subject", "pull_subscribe"),
    Check("push of a pull consumer, by queue", {}, {**BIND, "queue": "q"}, "deliver_subject", "pull_subscribe"),
    Check(
        "another ack_wait",
        {**PUSH, "ack_wait": 5.0},
        {**BIND, "config": {"ack_wait": 7.0}},
        "ack_wait",
        "5.0, not 7.0",
    ),
    Check(
        "several fields",
        {**PUSH, "description": "a", "max_deliver": 3},
        {**BIND, "config": {"description": "b", "max_deliver": 4}},
        "description, max_deliver",
        "description is 'a', not 'b', max_deliver is 3, not 4",
    ),
    Check("another ack policy", PUSH, {**BIND, "config": {"ack_policy": "none"}}, "ack_policy", "explicit"),
    Check(
        "another ack policy, in an object",
        {**PUSH, "ack_policy": "none"},
        {**BIND, "config": ConsumerConfig()},
        "ack_policy",
        "none",
    ),
    Check(
        "another deliver subject", PUSH, {**BIND, "config": {"deliver_subject": "x.y"}}, "deliver_subject", "x.y"
    ),
    Check("no heartbeat", PUSH, {**BIND, "idle_heartbeat": 1.0}, "idle_heartbeat", "1.0"),
    Check(
        "another heartbeat",
        {**PUSH, "idle_heartbeat": 2.0},
        {**BIND, "idle_heartbeat": 1.0},
        "idle_heartbeat",
        "2.0, not 1.0",
    ),
    Check(
        "no flow control",
        {**PUSH, "idle_heartbeat": 2.0},
        {**BIND, "flow_control": True},
        "flow_control",
        "flow_control",
    ),
    Check(
        "queue and flow control",
        {**GROUP, "flow_control": True, "idle_heartbeat": 1.0},
        {**BIND, "queue": "q"},
        "flow_control",
        "not supported with a queue",
    ),
    Check(
        "queue and heartbeat",
        {**GROUP, "idle_heartbeat": 1.0},
        {**BIND, "queue": "q"},
        "idle_heartbeat",
        "not supported with",
    ),
]


@pytest.mark.parametrize("row", CHECKS, ids=lambda row: row.name.replace(" ", "_"))
def test_check_of_an_existing_consumer(
    row: Check, nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """A consumer that does not fit is refused with an error that names why; everything stays as it is."""
    js.create_consumer("S", durable_name="C", **row.consumer)
    if row.bound:
        nc.subscribe("deliver.c", queue=row.consumer.get("deliver_group"))
        eventually(lambda: js.get_consumer("S", "C").info.push_bound)
    before = footprint(nats_server, js)
    with pytest.raises(ConsumerConfigError, match=row.words) as caught:
        (js.pull_subscribe if row.pull else js.subscribe)(**row.arguments)
    assert caught.value.field == row.named
    assert footprint(nats_server, js) == before


# --- the race ------------------------------------------------------------------------------------------


@pytest.fixture
def after_look_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something done by another client between the look-up, which finds nothing, and the creation."""

    def arrange(meanwhile: Callable[[], None]) -> None:
        look_up = ConsumerApi.info

        def info(self: ConsumerApi, stream: str, name: str) -> Any:
            try:
                return look_up(self, stream, name)
            except ConsumerNotFoundError:
                monkeypatch.setattr(ConsumerApi, "info", look_up)
                meanwhile()
                raise

        monkeypatch.setattr(ConsumerApi, "info", info)

    return arrange


def test_already_exists_race_uses_the_consumer_that_was_faster(
    nats_server: LocalServer, js: JetStream, after_look_up: Callable[[Callable[[], None]], None]
) -> None:
    """A consumer created since the look-up is checked and used, on its deliver subject, and not deleted."""

    def create() -> None:
        js.create_consumer(
            "S", durable_name="q", filter_subject="s.a", deliver_subject="other.inbox", deliver_group="q"
        )

    before = footprint(nats_server, js)[0]
    after_look_up(create)
    sub = js.subscribe("s.a", queue="q")
    assert sub.subject == "other.inbox"
    assert sub.next_msg(2.0).data == b"1"
    subjects = [
        entry["subject"] for entry in nats_server.monitor("/subsz?subs=1&limit=4096")["subscriptions_list"]
    ]
    assert subjects.count("other.inbox") == 1
    sub.unsubscribe()
    assert list(js.get_stream("S").consumer_names()) == ["q"]
    js.delete_consumer("S", "q")
    eventually(lambda: footprint(nats_server, js)[0] == before, message="the first subscription is gone, too")


def test_already_exists_race_runs_the_same_checks(
    nats_server: LocalServer, js: JetStream, after_look_up: Callable[[Callable[[], None]], None]
) -> None:
    """A consumer created since the look-up that does not fit is refused, and no subscription is left behind."""

    def create() -> None:
        js.create_consumer("S", durable_name="d", filter_subject="s.b", deliver_subject="other.inbox")

    after_look_up(create)
    before = footprint(nats_server, js)[0]
    with pytest.raises(ConsumerConfigError) as caught:
        js.subscribe("s.a", durable="d")
    assert caught.value.field == "filter_subject"
    assert list(js.get_stream("S").consumer_names()) == ["d"]
    js.delete_consumer("S", "d")
    eventually(lambda: footprint(nats_server, js)[0] == before, message="no subscription is left behind")
