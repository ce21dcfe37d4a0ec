"""publish(): acknowledgements, expectations, deduplication, TTL, retries, and the errors that end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import (
    APIError,
    BadHeaderError,
    BadRequestError,
    BadSubjectError,
    Connection,
    ConnectionLostError,
    JetStream,
    MaxPayloadError,
    NoStreamResponseError,
    PermissionsError,
    PubAck,
    Stream,
    StreamFullError,
    TimeoutError,
    WrongLastSequenceError,
    connect,
)
from jetstream_sync.api.publish_retry import MIN_TRY_SECONDS
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import server_version
from tests.support.scripted_stream import ScriptedStream
from tests.support.watchdog import InThread

# --- the plain case -----------------------------------------------------------------------------------


def test_publish_returns_the_ack_and_the_message_is_stored(js: JetStream, stream: Stream) -> None:
    """The ack tells stream and sequence; payload and headers are stored as given."""
    ack = js.publish("s.a", b"one", headers={"X": "1"})
    assert isinstance(ack, PubAck)
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == ("S", 1, False, "")
    assert js.publish("s.b").seq == 2
    stored = stream.get_message(1)
    assert (stored.subject, stored.data) == ("s.a", b"one")
    assert stored.headers is not None
    assert stored.headers["x"] == "1"
    empty = stream.get_message(2)
    assert (empty.data, empty.headers) == (b"", None)


@pytest.mark.parametrize("payload", [bytearray(b"xyz"), memoryview(b"xyz")])
def test_publish_takes_any_bytes(js: JetStream, stream: Stream, payload: Any) -> None:
    """Payloads are bytes-like."""
    js.publish("s.a", payload)
    assert stream.get_message(1).data == b"xyz"


# --- message ids and expectations -----------------------------------------------------------------------


def test_message_id_is_stored_once(js: JetStream, stream: Stream) -> None:
    """The second publish of an id is acknowledged as a duplicate with the first one's sequence."""
    first = js.publish("s.a", b"1", msg_id="id-1")
    js.publish("s.a", b"2", msg_id="id-2")
    again = js.publish("s.a", b"1", msg_id="id-1")
    by_header = js.publish("s.a", b"1", headers={"Nats-Msg-Id": "id-1"})
    assert (first.duplicate, again.duplicate, by_header.duplicate) == (False, True, True)
    assert again.seq == by_header.seq == first.seq == 1
    assert stream.get_info().state.messages == 2


@pytest.mark.parametrize(
    ("good", "bad", "error"),
    [
        ({"expected_stream": "S"}, {"expected_stream": "T"}, BadRequestError),
        ({"expected_last_seq": 3}, {"expected_last_seq": 2}, WrongLastSequenceError),
        ({"expected_last_subject_seq": 2}, {"expected_last_subject_seq": 3}, WrongLastSequenceError),
        ({"expected_last_msg_id": "third"}, {"expected_last_msg_id": "first"}, BadRequestError),
    ],
    ids=["stream", "last_seq", "last_subject_seq", "last_msg_id"],
)
def test_expectation_is_checked_by_the_server(
    js: JetStream, stream: Stream, good: dict[str, Any], bad: dict[str, Any], error: type[APIError]
) -> None:
    """With an expectation that does not hold nothing is stored; with one that does, it is."""
    for subject, msg_id in (("s.a", "first"), ("s.b", "second"), ("s.a", "third")):
        js.publish(subject, msg_id=msg_id)
    with pytest.raises(error):
        js.publish("s.b", **bad)
    assert stream.get_info().state.messages == 3
    assert js.publish("s.b", **good).seq == 4


def test_expected_sequence_zero_means_the_first(js: JetStream, stream: Stream) -> None:
    """An expected sequence of zero is sent: only the first publish to the stream or the subject succeeds."""
    js.publish("s.a", expected_last_seq=0)
    js.publish("s.b", expected_last_subject_seq=0)
    with pytest.raises(WrongLastSequenceError) as caught:
        js.publish("s.b", expected_last_subject_seq=0)
    assert caught.value.err_code in (10071, 10164)
    with pytest.raises(WrongLastSequenceError):
        js.publish("s.c", expected_last_seq=0)
    assert stream.get_info().state.messages == 2


def test_expected_sequence_of_another_subject(nc: Connection, js: JetStream, stream: Stream) -> None:
    """The last sequence may be that of a filter; servers before 2.11 ignore this and check the own subject."""
    js.publish("s.x.1")
    js.publish("s.y.1")
    options: dict[str, Any] = {"expected_last_subject_seq": 1, "expected_last_subject_seq_subject": "s.x.*"}
    if server_version(nc) >= (2, 11):
        assert js.publish("s.x.2", **options).seq == 3
    with pytest.raises(WrongLastSequenceError):
        js.publish("s.x.3", **options)


def test_ttl_removes_the_message(nc: Connection, js: JetStream) -> None:
    """A message with a TTL goes, one that never expires outlives max_age. Servers before 2.11 ignore TTLs."""
    if server_version(nc) < (2, 11):
        stream = js.create_stream(name="T", subjects=["t"], storage="memory")
        js.publish("t", ttl=1)
        assert stream.get_info().state.messages == 1
        return
    stream = js.create_stream(name="T", subjects=["t"], storage="memory", allow_msg_ttl=True, max_age=1.5)
    js.publish("t", b"short", ttl=1)
    js.publish("t", b"until max_age")
    js.publish("t", b"kept", ttl="never")
    eventually(lambda: stream.get_info().state.first_seq == 2, timeout=6)
    eventually(lambda: stream.get_info().state.messages == 1, timeout=6)
    assert stream.get_message(3).data == b"kept"


def test_ttl_on_a_stream_without_it_is_refused(nc: Connection, js: JetStream, stream: Stream) -> None:
    """Since 2.11 the server says that the stream does not allow it."""
    if server_version(nc) < (2, 11):
        assert js.publish("s.a", ttl=5).seq == 1
    else:
        with pytest.raises(BadRequestError, match="TTL"):
            js.publish("s.a", ttl=5)


def test_full_stream_refuses_at_once(js: JetStream) -> None:
    """A stream that discards new messages answers with an error, which is not retried."""
    js.create_stream(name="F", subjects=["f"], max_msgs=1, discard="new")
    js.publish("f")
    started = time.monotonic()
    with pytest.raises(APIError, match="maximum messages exceeded") as caught:
        js.publish("f", retry_wait=2)
    assert type(caught.value) is StreamFullError
    assert time.monotonic() - started < 1


# --- retries ----------------------------------------------------------------------------------------------


def test_no_stream_is_told_after_the_retries(js: JetStream) -> None:
    """Without a stream: three attempts, 250 ms apart, then NoStreamResponseError, which names the subject."""
    started = time.monotonic()
    with pytest.raises(NoStreamResponseError, match=r"'unstored\.here'"):
        js.publish("unstored.here")
    assert 0.5 <= time.monotonic() - started < 1.5


def test_no_stream_with_retries_off_is_told_at_once(nc: Connection, js: JetStream) -> None:
    """retry_attempts=0 sends once."""
    before = nc.stats.out_msgs
    started = time.monotonic()
    with pytest.raises(NoStreamResponseError):
        js.publish("unstored.here", retry_attempts=0)
    assert time.monotonic() - started < 0.4
    assert nc.stats.out_msgs == before + 1


def test_retries_stay_inside_the_timeout(js: JetStream) -> None:
    """The timeout bounds all tries, however many were asked for."""
    started = time.monotonic()
    with pytest.raises(NoStreamResponseError):
        js.publish("unstored.here", timeout=0.6, retry_attempts=1000, retry_wait=0.1)
    assert 0.4 <= time.monotonic() - started <= 0.8


def test_stream_created_during_the_retries_takes_the_message(js: JetStream) -> None:
    """A stream that comes 300 ms late is in time for the third try."""
    publishing = InThread(js.publish, "late.a", b"x")
    timer = threading.Timer(0.3, js.create_stream, kwargs={"name": "LATE", "subjects": ["late.>"]})
    timer.start()
    ack = publishing.result(5)
    timer.join()
    assert (ack.stream, ack.seq) == ("LATE", 1)
    assert publishing.seconds >= 0.3


def test_timeout_without_message_id_sends_once(nats_server: LocalServer, js: JetStream) -> None:
    """It is not known whether the message was stored: the call waits for its whole timeout and raises."""
    with ScriptedStream(nats_server, "mute") as listener:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            js.publish("mute", timeout=0.5, retry_attempts=5, retry_wait=0.01)
        assert 0.5 <= time.monotonic() - started < 1
        eventually(lambda: listener.received)
        assert len(listener.received) == 1


def test_timeout_with_message_id_is_tried_again(nats_server: LocalServer, js: JetStream) -> None:
    """With an id the message is sent again, and the answer to a later try counts."""
    with ScriptedStream(nats_server, "mute", None, b'{"stream":"X","seq":9,"duplicate":true}') as listener:
        ack = js.publish("mute", msg_id="id", timeout=5, retry_attempts=4, retry_wait=0.05)
        assert (ack.stream, ack.seq, ack.duplicate) == ("X", 9, True)
        assert [headers["Nats-Msg-Id"] for headers in listener.received] == ["id", "id"]
        assert MIN_TRY_SECONDS <= listener.times[1] - listener.times[0] < 2


def test_timeout_with_message_id_is_bounded_by_the_timeout(nats_server: LocalServer, js: JetStream) -> None:
    """All tries together take no longer than the timeout, and use all of it."""
    with ScriptedStream(nats_server, "mute") as listener:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            js.publish("mute", msg_id="id", timeout=1.5, retry_attempts=1, retry_wait=0.1)
        assert 1.4 <= time.monotonic() - started < 2
        eventually(lambda: len(listener.received) == 2)


def test_answer_that_asks_to_wait_is_tried_again(nats_server: LocalServer, js: JetStream) -> None:
    """ "Temporarily unavailable" stored nothing: also a publish without id is sent again."""
    busy = b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
    with ScriptedStream(nats_server, "busy", busy, b'{"stream":"X","seq":1}') as listener:
        assert js.publish("busy", retry_wait=0.05).seq == 1
        assert len(listener.received) == 2


def test_lost_connection_without_message_id_raises_at_once() -> None:
    """The server dies before it answers: ConnectionLostError, not the timeout."""
    with LocalServer() as server, connect(server.url) as nc:
        with ScriptedStream(server, "mute") as listener:
            publishing = InThread(nc.jetstream().publish, "mute", timeout=30)
            eventually(lambda: listener.received)
            server.kill()
            assert isinstance(publishing.error(3), ConnectionLostError)
        server.start()


def test_lost_connection_with_message_id_is_ridden_out() -> None:
    """The server dies under a publish and comes back: the publish returns its ack, the message is there once."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"])
        server.pause()
        publishing = InThread(js.publish, "s", b"x", msg_id="id", timeout=20, retry_attempts=50)
        eventually(lambda: nc.stats.out_msgs >= 2)
        server.kill()
        server.start()
        assert publishing.result(20).seq == 1
        assert stream.get_info().state.messages == 1


def test_publish_while_disconnected_waits_for_the_connection() -> None:
    """A publish made in an outage is sent when the connection is back, inside its timeout."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s"])
        server.stop()
        eventually(lambda: not nc.is_connected)
        with pytest.raises(TimeoutError):
            js.publish("s", b"too late", timeout=0.2)
        publishing = InThread(js.publish, "s", b"in time", timeout=10)
        server.start()
        assert publishing.result(10).seq == 1
        assert js.get_stream("S").get_message(1).data == b"in time"


# --- bad input and permissions -----------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"subject": "a b"}, BadSubjectError),
        ({"subject": "a.*"}, BadSubjectError),
        ({"subject": "a.>"}, BadSubjectError),
        ({"subject": ""}, BadSubjectError),
        ({"subject": "a\r\nPUB b 0"}, BadSubjectError),
        ({"payload": "text"}, TypeError),
        ({"payload": 5}, TypeError),
        ({"payload": b"x" * (1024 * 1024 + 1)}, MaxPayloadError),
        ({"payload": b"x" * (1024 * 1024 - 5), "msg_id": "id"}, MaxPayloadError),
        ({"headers": {"A": "x\r\ny"}}, BadHeaderError),
        ({"msg_id": "a\r\nb"}, BadHeaderError),
        ({"expected_stream": "a.b"}, BadSubjectError),
        ({"retry_attempts": -1}, ValueError),
        ({"retry_attempts": 1.5}, ValueError),
        ({"retry_wait": -1}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"timeout": "5"}, TypeError),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    nc: Connection, js: JetStream, stream: Stream, asynchronous: bool, arguments: dict[str, Any], error: type
) -> None:
    """Subjects, payloads, headers and options are checked by both calls; nothing stays pending."""
    before = nc.stats.out_msgs
    with pytest.raises(error):
        (js.publish_async if asynchronous else js.publish)(**{"subject": "s.a", **arguments})
    assert nc.stats.out_msgs == before
    assert js.publish_async_pending == 0
    assert js.publish("s.a").seq == 1


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalServer]:
    """A server that denies publishing to `secret.>`."""
    user = '{ user: u, password: p, permissions: { publish: { deny: "secret.>" } } }'
    with LocalServer(config=f"authorization {{ users: [ {user} ] }}") as server:
        yield server


@pytest.mark.parametrize("asynchronous", [False, True])
def test_denied_publish_fails_within_a_second(guarded: LocalServer, asynchronous: bool) -> None:
    """The server answers a denied publish with -ERR only; the call fails, naming the subject, and others go on."""
    with connect(guarded.url, user="u", password="p", error_cb=lambda error: None) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="G", subjects=["secret.>", "open"])
        publishing = js.publish_async("secret.x", timeout=10).result if asynchronous else js.publish
        arguments: list[Any] = [] if asynchronous else ["secret.x"]
        started = time.monotonic()
        with pytest.raises(PermissionsError, match=r"secret\.x"):
            publishing(*arguments, timeout=10)
        assert time.monotonic() - started < 1
        assert js.publish("open").stream == "G"
        assert js.publish_async("open").result(5).stream == "G"
