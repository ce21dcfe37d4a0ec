"""js.publish_many(): all messages of an iterable, every ack checked, an error that says how far it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import BatchMessage, Connection, Headers, JetStream, PublishSummary, connect
from jetstream_sync.api import publish_many as module
from jetstream_sync.api.publish_many import _Encoder
from jetstream_sync.errors import (
    APIError,
    BadHeaderError,
    BadSubjectError,
    ConnectionClosedError,
    MaxPayloadError,
    NatsError,
    NoStreamResponseError,
    PermissionsError,
    PublishManyError,
    StreamFullError,
    TimeoutError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.protocol.commands import publish as frame_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.scripted_stream import ACK, ScriptedStream


@pytest.fixture(autouse=True)
def _stream(js: JetStream) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory")


def numbered(count: int) -> Iterator[tuple[str, bytes]]:
    return (("s.a", b"%d" % number) for number in range(count))


def stored(js: JetStream) -> list[bytes]:
    count = js.get_stream("S").info.state.messages
    consumer = js.create_consumer("S", ack_policy="none")
    return [message.data for message in consumer.fetch(count, expires=20)] if count else []


def subscriptions(nc: Connection) -> int:
    """How many subscriptions the connection has."""
    return len(link_of(nc).router)


# --- what is stored -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_all_messages_are_stored_in_order(js: JetStream, nc: Connection, count: int) -> None:
    """When it returns, the stream has every message; nothing of the call is left on the connection."""
    before = subscriptions(nc)
    summary = js.publish_many(numbered(count))
    assert (summary.published, summary.sent, summary.duplicates) == (count, count, 0)
    assert summary.streams == (("S",) if count else ())
    assert summary.seconds > 0
    assert stored(js) == [b"%d" % number for number in range(count)]
    assert subscriptions(nc) == before


def test_parts_of_a_message(js: JetStream) -> None:
    """Subject, payload, headers and id, in tuples of any length that has a subject and a payload, and lists."""
    summary = js.publish_many(
        [
            ("s.a", b"1"),
            ("s.b", bytearray(b"2"), {"A": "x", "B": ["y", "z"]}),
            ["s.c", memoryview(b"3"), Headers({"C": " c "}), "mine"],
            ("s.d", b"4", None, None),
            ("s.e", b"5", {"nats-msg-id": "header"}),
            BatchMessage("s.f", b"6"),
            ("s.g", b"7", {"A": "ü"}, "a b"),
        ]
    )
    messages = [js.get_stream("S").get_message(seq) for seq in range(1, 8)]
    assert [(message.subject, message.data) for message in messages] == [
        (f"s.{letter}", b"%d" % number) for number, letter in enumerate("abcdefg", 1)
    ]
    headers: list[Any] = [message.headers for message in messages]
    assert (headers[1]["A"], headers[1].get_all("B"), headers[2]["C"]) == ("x", ["y", "z"], "c")
    ids = [header["Nats-Msg-Id"] for header in headers]
    assert (ids[2], ids[4], ids[6], headers[6]["A"]) == ("mine", "header", "a b", "ü")
    assert len(set(ids)) == 7
    assert summary.bytes == sum(len(header.raw) + 1 for header in headers)


def test_ids_make_it_repeatable(js: JetStream) -> None:
    """With ids of one's own a second call stores nothing; generated ids are of one call."""
    named = [("s.a", b"%d" % number, None, f"id-{number}") for number in range(1000)]
    assert js.publish_many(named).duplicates == 0
    again = js.publish_many([*named, ("s.a", b"new")])
    assert (again.published, again.duplicates) == (1001, 1000)
    assert js.publish_many(numbered(500)).duplicates == 0
    assert js.publish_many(numbered(500)).duplicates == 0
    assert js.get_stream("S").info.state.messages == 2001


def test_several_streams(js: JetStream) -> None:
    """Messages may go to any streams; the summary names them."""
    js.create_stream(name="T", subjects=["t.>"], storage="memory")
    mixed = [(f"{'st'[number % 2]}.a", b"x") for number in range(3000)]
    summary = js.publish_many(mixed)
    assert sorted(summary.streams) == ["S", "T"]
    assert [js.get_stream(name).info.state.messages for name in "ST"] == [1500, 1500]


def test_expected_stream(js: JetStream) -> None:
    """A message that another stream takes is refused by it."""
    assert js.publish_many(numbered(10), expected_stream="S").published == 10
    with pytest.raises(PublishManyError, match=r"message 0 \(subject 's.a'\)") as caught:
        js.publish_many(numbered(1), expected_stream="T")
    assert isinstance(caught.value.__cause__, APIError)
    assert js.get_stream("S").info.state.messages == 10


def test_window_is_bounded(js: JetStream, nats_server: LocalServer) -> None:
    """The iterable is read no further than the window of unacknowledged messages allows."""
    with ScriptedStream(nats_server, "w.a") as slow:
        taken = 0

        def messages() -> Iterator[tuple[str, bytes]]:
            nonlocal taken
            for _ in range(1000):
                taken += 1
                yield "w.a", b"x" * 2000

        with pytest.raises(TimeoutError) as caught:
            js.publish_many(messages(), max_pending=10, timeout=0.6)
        assert caught.value.sent
        assert caught.value.summary.published == 0
        assert len(set(slow.ids)) <= 10
        assert taken < 1000


def test_slow_iterable_is_sent_as_it_comes(js: JetStream) -> None:
    """A message leaves before the iterable is asked for the next one, when it took its time for this one."""

    def messages() -> Iterator[tuple[str, bytes]]:
        for number in range(3):
            time.sleep(2 * module.SLOW_SECONDS)
            yield "s.a", b"%d" % number
            eventually(lambda: js.get_stream("S").info.state.messages == number + 1)  # noqa: B023

    assert js.publish_many(messages()).published == 3


def test_several_threads_at_once(js: JetStream) -> None:
    """Each call has its own window, ids and acks."""
    summaries: list[PublishSummary] = []
    threads = [
        threading.Thread(target=lambda: summaries.append(js.publish_many(numbered(5000)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [summary.published for summary in summaries] == [5000] * 4
    assert js.get_stream("S").info.state.messages == 20_000


# --- progress -------------------------------------------------------------------------------------------------


def test_progress_is_told_in_the_calling_thread(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then and at the end, with a summary that only grows."""
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    told: list[tuple[int, PublishSummary]] = []
    summary = js.publish_many(numbered(20_000), progress=lambda now: told.append((threading.get_ident(), now)))
    assert {thread for thread, _ in told} == {threading.get_ident()}
    counts = [(now.published, now.sent, now.bytes) for _, now in told]
    assert counts == sorted(counts)
    assert len(counts) > 2
    assert counts[-1] == (summary.published, summary.sent, summary.bytes)


def test_progress_is_not_told_for_every_run(js: JetStream) -> None:
    """About once a second: a call that is over sooner tells the end only."""
    told: list[PublishSummary] = []
    summary = js.publish_many(numbered(100), progress=told.append)
    assert len(told) <= 2 + summary.seconds
    assert told[-1].published == 100


@pytest.mark.parametrize("error", [ValueError("enough"), TimeoutError("mine"), KeyboardInterrupt()])
def test_exception_of_progress_ends_the_call(
    js: JetStream, nc: Connection, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """It comes out as it is, and nothing is left behind."""
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    before = subscriptions(nc)

    def stop(summary: PublishSummary) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        js.publish_many(numbered(20_000), progress=stop)
    assert caught.value is error
    assert subscriptions(nc) == before
    assert js.publish("s.a").stream == "S"


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "cause", "subject"),
    [
        (("s a", b""), BadSubjectError, "s a"),
        (("s.*", b""), BadSubjectError, "s.*"),
        ((5, b""), TypeError, ""),
        (([], b""), TypeError, ""),
        (("s.a", "text"), TypeError, "s.a"),
        (("s.a", None), TypeError, "s.a"),
        (("s.a", b"", {"A:": "x"}), BadHeaderError, "s.a"),
        (("s.a", b"", {"A": "x\r\ny"}), BadHeaderError, "s.a"),
        (("s.a", b"", {"A": 5}), TypeError, "s.a"),
        (("s.a", b"", {5: "x"}), TypeError, "s.a"),
        (("s.a", b"", None, ""), ValueError, "s.a"),
        (("s.a", b"", None, " x"), ValueError, "s.a"),
        (("s.a", b"", None, 5), TypeError, "s.a"),
        (("s.a", b"x" * 2_000_000), MaxPayloadError, "s.a"),
        (("s.a",), TypeError, "s.a"),
        (("s.a", b"", None, None, None), TypeError, "s.a"),
        (None, TypeError, ""),
        ("s.a", TypeError, ""),
    ],
)
def test_bad_message_is_named_and_not_sent(js: JetStream, bad: Any, cause: type[Exception], subject: str) -> None:
    """What came before it is stored and counted; the error has the position, the reason is its cause."""
    with pytest.raises(PublishManyError, match=r"message 1500 .* was not sent") as caught:
        js.publish_many([*numbered(1500), bad, *numbered(10)])
    error = caught.value
    assert (error.position, error.subject) == (1500, subject)
    assert isinstance(error.__cause__, cause)
    assert (error.summary.published, error.summary.sent) == (1500, 1500)
    assert js.get_stream("S").info.state.messages == 1500


def test_exception_of_the_iterable(js: JetStream, nc: Connection) -> None:
    """It comes out as it is, even an error of this library; what the iterable gave before is stored."""
    before = subscriptions(nc)
    mine = NatsError("of my own")

    def messages() -> Iterator[tuple[str, bytes]]:
        yield from numbered(1234)
        raise mine

    with pytest.raises(NatsError) as caught:
        js.publish_many(messages())
    assert caught.value is mine
    assert js.get_stream("S").info.state.messages == 1234
    assert subscriptions(nc) == before


def test_refused_message(js: JetStream) -> None:
    """The stream takes no more: the first message it refused is named, and the summary counts the others."""
    js.update_stream(name="S", subjects=["s.>"], storage="memory", max_msgs=700, discard="new")
    with pytest.raises(PublishManyError, match=r"message 700 \(subject 's.a'\) was not stored") as caught:
        js.publish_many(numbered(1000))
    error = caught.value
    assert (error.position, error.subject) == (700, "s.a")
    assert isinstance(error.__cause__, StreamFullError)
    assert error.summary.published == 700
    assert error.summary.sent > 700


def test_one_refused_message_among_many(js: JetStream) -> None:
    """All others that were sent are stored."""
    js.update_stream(name="S", subjects=["s.>"], storage="memory", max_msg_size=100)
    messages = [*numbered(300), ("s.big", b"x" * 1000), *numbered(300)]
    with pytest.raises(PublishManyError) as caught:
        js.publish_many(messages)
    assert (caught.value.position, caught.value.subject) == (300, "s.big")
    summary = caught.value.summary
    assert summary.published == summary.sent - 1 == js.get_stream("S").info.state.messages


def test_no_stream_takes_the_subject(js: JetStream) -> None:
    """It is asked for until the timeout, as a stream may be without a leader; then the message is named."""
    with pytest.raises(PublishManyError, match=r"message 2 .*'unstored\.a'") as caught:
        js.publish_many([*numbered(2), ("unstored.a", b"")], timeout=0.6)
    assert isinstance(caught.value.__cause__, NoStreamResponseError)
    assert (caught.value.position, caught.value.summary.published) == (2, 2)


def test_denied_subject_is_named() -> None:
    """A publish that the server denies is named by its position; another thread's denial does not concern it."""
    config = 'authorization { users = [{ user: "u", password: "p", permissions: { publish: { deny: "no" } } }] }'
    with LocalServer(config=config) as server, connect(server.url, user="u", password="p") as nc:
        js = nc.jetstream(timeout=20)
        js.create_stream(name="S", subjects=["s.>", "no"], storage="memory")
        with pytest.raises(PublishManyError) as caught:
            js.publish_many([*numbered(2), ("no", b"")])
        assert (caught.value.position, caught.value.summary.published) == (2, 2)
        assert isinstance(caught.value.__cause__, PermissionsError)

        def messages() -> Iterator[tuple[str, bytes]]:
            for message in numbered(100):
                nc.publish("no", b"")
                yield message
            nc.flush()

        assert js.publish_many(messages()).published == 100


def test_connection_that_is_closed_meanwhile(nats_server: LocalServer, js: JetStream) -> None:
    """close() ends the call with ConnectionClosedError, which has the summary; a closed one is refused at once."""
    with connect(nats_server.url) as nc:
        mine = nc.jetstream()

        def messages() -> Iterator[tuple[str, bytes]]:
            yield from numbered(5000)
            eventually(lambda: js.get_stream("S").info.state.messages > 0)
            nc.close()
            yield from numbered(10)

        with pytest.raises(ConnectionClosedError) as caught:
            mine.publish_many(messages())
        assert 0 < caught.value.summary.sent <= 5010
        with pytest.raises(ConnectionClosedError) as caught:
            mine.publish_many(numbered(1))
        assert caught.value.summary.sent == 0


def test_options_are_checked_before_anything_is_taken(js: JetStream) -> None:
    """A bad option is an error that names it."""
    taken = numbered(1)
    for options in ({"max_pending": 0}, {"timeout": -1}, {"timeout": "soon"}, {"expected_stream": "a.b"}):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            js.publish_many(taken, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        js.publish_many(5)  # type: ignore[arg-type]
    assert js.publish_many(taken).published == 1


# --- the wire ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [None, "S"])
def test_usual_messages_are_encoded_as_unusual_ones(nc: Connection, expected: str | None) -> None:
    """The short way for dicts of plain text gives the bytes that the careful way gives."""
    encoder = _Encoder(link_of(nc), b"_INBOX.x.", expected)
    for headers in ({}, {"A": "1"}, {"A": "1", "b-C": "", "Ü"[1:] + "D": "ü x"}):
        for msg_id in (None, "a-b/c:1"):
            usual = encoder._usual_block(headers, msg_id, 7)
            block = encoder._block(headers, msg_id, 7)
            assert usual is not None
            assert sorted(usual.split(b"\r\n")) == sorted(block.split(b"\r\n"))
            made = encoder.frame(7, ("s.a", b"data", headers, msg_id))
            assert made == frame_of(b"s.a", b"data", b"_INBOX.x.7", usual)


def test_lost_answers_are_asked_for_again(nats_server: LocalServer, js: JetStream) -> None:
    """The same id is sent again: the stream can tell the copy."""
    with ScriptedStream(nats_server, "w.a", ACK, None, ACK, then=ACK) as stream:
        summary = js.publish_many([("w.a", b"%d" % number) for number in range(3)], timeout=3)
        assert summary.published == 3
        assert len(stream.ids) == 4
        assert len(set(stream.ids)) == 3
        assert stream.ids[3] == stream.ids[1]
