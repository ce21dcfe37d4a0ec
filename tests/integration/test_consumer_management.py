"""Consumers: created, changed, listed, paused, deleted on a real server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync import (
    BadSubjectError,
    Connection,
    Consumer,
    ConsumerConfig,
    ConsumerExistsError,
    ConsumerInfo,
    ConsumerNotFoundError,
    JetStream,
    Stream,
    StreamNotFoundError,
    TimeoutError,
)
from tests.support.observer import await_pending, server_version

BAD_NAMES = ["", "a b", "a.b", "a*", ">", "a/b", "a\\b", "a\tb", "a\r\nb", "a\0b"]


def test_create_on_context_and_on_stream(js: JetStream, stream: Stream) -> None:
    """Fields, a dict and a ConsumerConfig, on the context and on the stream, create a pull consumer."""
    made = [
        js.create_consumer("S", durable_name="a"),
        js.create_consumer("S", {"durable_name": "b"}, ack_wait=7),
        stream.create_consumer(ConsumerConfig(durable_name="c")),
        stream.create_consumer(name="d", inactive_threshold=60),
    ]
    for consumer, name in zip(made, "abcd", strict=True):
        assert isinstance(consumer, Consumer)
        assert (consumer.name, consumer.stream_name) == (name, "S")
        assert consumer.info.config.ack_policy == "explicit"
    assert made[1].info.config.ack_wait == 7
    assert sorted(stream.consumer_names()) == ["a", "b", "c", "d"]


def test_create_without_a_name_makes_an_ephemeral_one(stream: Stream) -> None:
    """Each gets a name of its own, and the caller's config stays without one."""
    config = ConsumerConfig(inactive_threshold=60)
    first, second = stream.create_consumer(config), stream.create_consumer(config)
    assert first.name != second.name
    assert config.name is None
    assert first.info.config.durable_name in (None, "")
    assert first.get_info().name == first.name


@pytest.mark.parametrize("subject", ["s.one", "s.*", "s.>", "s.*.x", ">"])
def test_filter_subject_with_and_without_wildcards(stream: Stream, subject: str) -> None:
    """The filter is part of the request's subject, wildcards included."""
    consumer = stream.create_consumer(durable_name="c", filter_subject=subject)
    assert consumer.info.config.filter_subject == subject


def test_several_filter_subjects(js: JetStream, stream: Stream) -> None:
    """A list of filters delivers what matches any of them."""
    consumer = stream.create_consumer(durable_name="c", filter_subjects=["s.a", "s.b.*"])
    for subject in ("s.a", "s.x", "s.b.1"):
        js.publish(subject)
    await_pending(consumer, 2)
    assert [msg.subject for msg in consumer.fetch_nowait(10)] == ["s.a", "s.b.1"]


def test_create_again_with_the_same_config_returns_it(stream: Stream) -> None:
    """Creating twice the same is no error."""
    created = stream.create_consumer(durable_name="c", ack_wait=5).info.created
    assert stream.create_consumer(durable_name="c", ack_wait=5).info.created == created


def test_create_over_a_different_one_names_it(js: JetStream, stream: Stream) -> None:
    """The error says which consumer of which stream; the consumer is not touched."""
    stream.create_consumer(durable_name="worker", ack_wait=5)
    for call in (stream.create_consumer, lambda **fields: js.create_consumer("S", **fields)):
        with pytest.raises(ConsumerExistsError, match="'worker' on stream 'S'") as caught:
            call(durable_name="worker", ack_wait=6)
        assert caught.value.err_code == 10148
    assert stream.get_consumer("worker").info.config.ack_wait == 5


def test_update_changes_an_existing_one_only(js: JetStream, stream: Stream) -> None:
    """Update sends action "update": a consumer that is not there is ConsumerNotFoundError, not created."""
    consumer = stream.create_consumer(durable_name="c", ack_wait=5)
    config = consumer.info.config
    config.ack_wait = 6
    assert stream.update_consumer(config).info.config.ack_wait == 6
    assert js.update_consumer("S", config, description="d").info.config.description == "d"
    with pytest.raises(ConsumerNotFoundError, match="'none' on stream 'S'") as caught:
        stream.update_consumer(durable_name="none")
    assert caught.value.err_code == 10149
    with pytest.raises(ValueError, match="name"):
        stream.update_consumer(ack_wait=1)
    assert list(stream.consumer_names()) == ["c"]


def test_create_or_update_does_either(js: JetStream, stream: Stream) -> None:
    """The first call creates, later ones change."""
    assert stream.create_or_update_consumer(durable_name="c", ack_wait=5).info.config.ack_wait == 5
    assert js.create_or_update_consumer("S", durable_name="c", ack_wait=6).info.config.ack_wait == 6


def test_requests_carry_the_action(nc: Connection, js: JetStream, stream: Stream) -> None:
    """create and update say so in the request; create-or-update says nothing."""
    stream.create_consumer(durable_name="c")
    seen = nc.subscribe("$JS.API.CONSUMER.CREATE.S.c")
    stream.create_consumer(durable_name="c")
    stream.update_consumer(durable_name="c")
    stream.create_or_update_consumer(durable_name="c")
    bodies = [seen.next_msg(timeout=5).data for _ in range(3)]
    assert b'"action":"create"' in bodies[0]
    assert b'"action":"update"' in bodies[1]
    assert b'"action"' not in bodies[2]


def test_field_this_version_does_not_know_survives_an_update(stream: Stream) -> None:
    """What was read and not understood is sent back as it was: here metadata, hidden from the reader."""
    stream.create_consumer(durable_name="c", metadata={"owner": "billing"})
    config = ConsumerConfig(durable_name="c", description="changed")
    config.unknown_fields["metadata"] = {"owner": "billing"}
    updated = stream.update_consumer(config).info.config
    assert updated.metadata is not None
    assert (updated.metadata["owner"], updated.description) == ("billing", "changed")


def test_get_and_delete(js: JetStream, stream: Stream) -> None:
    """All three delete calls remove it; then get, delete and info say that it is not there."""
    for delete in (
        lambda: stream.delete_consumer("c"),
        lambda: js.delete_consumer("S", "c"),
        lambda: stream.get_consumer("c").delete(),
    ):
        consumer = stream.create_consumer(durable_name="c")
        assert js.get_consumer("S", "c").name == "c"
        delete()
        for call in (lambda: js.get_consumer("S", "c"), lambda: stream.delete_consumer("c"), consumer.get_info):
            with pytest.raises(ConsumerNotFoundError) as caught:
                call()
            assert (caught.value.code, caught.value.err_code) == (404, 10014)


def test_consumer_of_a_missing_stream(js: JetStream) -> None:
    """Without the stream every call raises StreamNotFoundError."""
    calls: list[Callable[[], Any]] = [
        lambda: js.create_consumer("NONE", durable_name="c"),
        lambda: js.get_consumer("NONE", "c"),
        lambda: js.delete_consumer("NONE", "c"),
    ]
    for call in calls:
        with pytest.raises(StreamNotFoundError):
            call()


def test_lists_of_more_than_one_page_are_complete_and_lazy(nc: Connection, stream: Stream) -> None:
    """300 consumers are more than a page of 256: all are listed, the second page when it is needed."""
    expected = [f"c{number:03}" for number in range(300)]
    answers = nc.subscribe("answers")
    for name in expected:
        body = (
            b'{"stream_name":"S","config":{"name":"%b","ack_policy":"explicit","mem_storage":true,' % name.encode()
        )
        body += b'"inactive_threshold":300000000000}}'
        nc.publish(f"$JS.API.CONSUMER.CREATE.S.{name}", body, reply="answers")
    for _ in expected:
        assert b'"error"' not in answers.next_msg(timeout=30).data
    before = nc.stats.out_msgs
    infos = stream.list_consumers()
    assert nc.stats.out_msgs == before
    first = next(infos)
    assert isinstance(first, ConsumerInfo)
    assert nc.stats.out_msgs == before + 1
    assert sorted([first.name, *(info.name for info in infos)]) == expected
    assert nc.stats.out_msgs == before + 2
    assert sorted(stream.consumer_names()) == expected


def test_pause_and_resume(nc: Connection, stream: Stream) -> None:
    """A paused consumer says so and until when; resuming ends it. Servers before 2.11 do not answer."""
    consumer = stream.create_consumer(durable_name="c")
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    if server_version(nc) < (2, 11):
        with pytest.raises(TimeoutError):
            nc.jetstream(timeout=0.2).get_stream("S").pause_consumer("c", until)
        return
    paused = stream.pause_consumer("c", until)
    assert paused.paused
    assert paused.pause_until == until
    assert paused.pause_remaining is not None
    assert 3500 < paused.pause_remaining <= 3600
    assert consumer.get_info().paused
    assert not stream.resume_consumer("c").paused
    assert not consumer.get_info().paused


@pytest.mark.parametrize("until", [datetime(2100, 1, 1), "2100-01-01T00:00:00Z", 5])
def test_pause_until_something_else_is_refused(nc: Connection, stream: Stream, until: Any) -> None:
    """Only an aware datetime says when; nothing is sent otherwise."""
    before = nc.stats.out_msgs
    with pytest.raises((TypeError, ValueError)):
        stream.pause_consumer("c", until)
    assert nc.stats.out_msgs == before


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_name_is_refused_before_anything_is_sent(
    nc: Connection, js: JetStream, stream: Stream, name: str
) -> None:
    """Blanks, dots, wildcards, separators and control characters: BadSubjectError from every call."""
    before = nc.stats.out_msgs
    calls: list[Callable[[], Any]] = [
        lambda: stream.create_consumer(name=name),
        lambda: stream.create_consumer(durable_name=name),
        lambda: stream.update_consumer(name=name),
        lambda: js.create_or_update_consumer("S", durable_name=name),
        lambda: stream.get_consumer(name),
        lambda: js.get_consumer("S", name),
        lambda: stream.delete_consumer(name),
        lambda: stream.pause_consumer(name, datetime.now(timezone.utc)),
        lambda: stream.resume_consumer(name),
        lambda: stream.unpin_consumer(name, "g"),
    ]
    for call in calls:
        with pytest.raises(BadSubjectError):
            call()
    assert nc.stats.out_msgs == before


@pytest.mark.parametrize("subject", ["a b", "a..b", "a.", "a.>.b", "a*b", "a\r\nb"])
def test_bad_filter_is_refused_before_anything_is_sent(nc: Connection, stream: Stream, subject: str) -> None:
    """A filter goes into the request's subject and must not break it."""
    before = nc.stats.out_msgs
    for fields in ({"filter_subject": subject}, {"filter_subjects": ["ok", subject]}):
        with pytest.raises(BadSubjectError):
            stream.create_consumer(name="c", **fields)
    assert nc.stats.out_msgs == before
