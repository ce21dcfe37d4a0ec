"""Errors name what they are about: stream, consumer, subject, credentials, limits; and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import ConsumerConfig, JetStream, StreamConfig, connect
from jetstream_sync.errors import (
    APIError,
    AuthorizationError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    MessageNotFoundError,
    MissedHeartbeatError,
    PermissionsError,
    SequenceMismatchError,
    StreamFullError,
    StreamNotFoundError,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import stream_and_consumer, waiting_pulls


@pytest.mark.parametrize(
    ("call", "kind", "stream", "consumer"),
    [
        (lambda js: js.get_stream("NONE"), StreamNotFoundError, "NONE", ""),
        (lambda js: js.delete_stream("NONE"), StreamNotFoundError, "NONE", ""),
        (lambda js: js.get_consumer("S", "none"), ConsumerNotFoundError, "S", "none"),
        (lambda js: js.delete_consumer("S", "none"), ConsumerNotFoundError, "S", "none"),
        (lambda js: js.create_consumer("NONE", name="c"), StreamNotFoundError, "NONE", "c"),
        (lambda js: js.get_stream("S").get_message(77), MessageNotFoundError, "S", ""),
        (lambda js: js.get_stream("S").delete_message(77), APIError, "S", ""),
    ],
)
def test_api_error_names_stream_and_consumer(
    call: Callable[[JetStream], Any], kind: type[APIError], stream: str, consumer: str, js: JetStream
) -> None:
    stream_and_consumer(js, 1)
    with pytest.raises(kind) as caught:
        call(js)
    assert (caught.value.stream, caught.value.consumer) == (stream, consumer)
    assert repr(stream) in str(caught.value)
    assert not consumer or repr(consumer) in str(caught.value)


@pytest.mark.parametrize("limit", [{"max_msgs": 1}, {"max_bytes": 100}, {"max_msgs_per_subject": 1}])
def test_full_stream_has_a_class_of_its_own(js: JetStream, limit: dict[str, int]) -> None:
    """publish() and publish_async(); the names are the stream's and the subject's."""
    per_subject = "max_msgs_per_subject" in limit
    js.create_stream(name="S", subjects=["s.>"], discard="new", discard_new_per_subject=per_subject, **limit)
    js.publish("s.x", b"1")
    for publish in (js.publish, lambda *args: js.publish_async(*args).result(5)):
        with pytest.raises(StreamFullError, match=r"maximum .*: stream 'S', subject 's\.x'") as caught:
            publish("s.x", b"2" * 100)
        assert (caught.value.stream, caught.value.subject) == ("S", "s.x")


def test_deleted_consumer_is_named(js: JetStream) -> None:
    consumer = stream_and_consumer(js)
    batch = consumer.fetch(1, expires=5)
    eventually(lambda: waiting_pulls(consumer) == 1)
    js.delete_consumer("S", "C")
    with pytest.raises(ConsumerDeletedError, match="consumer 'C' on stream 'S'") as caught:
        list(batch)
    assert (caught.value.stream, caught.value.consumer) == ("S", "C")


LIMITED = """
accounts {
  A {
    jetstream { max_streams: 1, max_store: 1MB }
    users = [ { user: ann, password: pw } ]
  }
}
no_auth_user: ann
"""


def test_limits_come_with_their_present_use() -> None:
    with LocalServer(config=LIMITED) as server, connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        with pytest.raises(APIError, match="stream 'T', the account uses 1 of 1 streams") as caught:
            js.create_stream(name="T", subjects=["t.>"])
        assert "of 1048576 bytes of storage" in caught.value.use


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"user": "bob", "password": "the-secret"}, "user 'bob' and a password"),
        ({"user": "the-secret"}, "a user without a password"),
        ({"token": "the-secret"}, "a token"),
        ({}, "no credentials"),
    ],
)
def test_refused_credentials_are_named_without_secrets(given: dict[str, str], named: str) -> None:
    config = "authorization { user: ann, password: other }"
    with LocalServer(config=config) as server:
        with pytest.raises(AuthorizationError, match=f"tried: {named}") as caught:
            connect(server.url, **given)  # type: ignore[arg-type]
    assert caught.value.credentials == named
    assert "the-secret" not in str(caught.value)
    assert "the-secret" not in repr(caught.value.__dict__)


def test_denial_names_operation_and_subject() -> None:
    config = """authorization { users = [ { user: ann, password: pw, permissions: { publish: "ok" } } ] }"""
    with LocalServer(config=config) as server:
        with connect(server.url, user="ann", password="pw") as nc, pytest.raises(PermissionsError) as caught:
            nc.request("denied.subject", timeout=2)
    assert (caught.value.operation, caught.value.subject) == ("publish", "denied.subject")
    assert "denied.subject" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: StreamConfig(name="S", replicas=3), "'replicas': did you mean num_replicas?"),  # type: ignore[call-arg]
        (lambda: ConsumerConfig(durable="C"), "'durable': did you mean durable_name?"),  # type: ignore[call-arg]
        (lambda: connect(max_reconnects=3), "'max_reconnects': did you mean max_reconnect_attempts?"),  # type: ignore[call-arg]
        (lambda: connect(zzz=3), "'zzz'"),  # type: ignore[call-arg]
    ],
)
def test_did_you_mean(call: Callable[[], Any], hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).endswith(hint)


def test_did_you_mean_of_a_keyword(js: JetStream) -> None:
    with pytest.raises(TypeError, match=r"did you mean subjects\?"):
        js.create_stream(name="S", subjetcs=["s.>"])  # type: ignore[call-arg]


def test_silence_and_gaps_name_their_consumer() -> None:
    """An error_cb of several subscriptions can tell which of them it is about."""
    silence = MissedHeartbeatError(2.0, stream="S", consumer="C")
    gap = SequenceMismatchError(2, 5, stream_seq=9, stream="S", consumer="C")
    assert str(silence) == "no message and no heartbeat for 2.0 s: consumer 'C' on stream 'S'"
    assert str(gap) == "gap in consumer sequence: expected 2, got 5: consumer 'C' on stream 'S'"
