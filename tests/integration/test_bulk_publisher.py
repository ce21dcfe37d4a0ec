"""The publisher under publish_many() and the Spark sink: everything is stored once, or an error says why not."""

from __future__ import annotations

import threading
from itertools import accumulate

import pytest

from jetstream_sync import Connection, JetStream, connect
from jetstream_sync.api.bulk import BulkPublisher, Frames
from jetstream_sync.errors import APIError, NoStreamResponseError, PermissionsError, TimeoutError
from jetstream_sync.net.connection import link_of
from jetstream_sync.protocol import commands
from jetstream_sync.testing import LocalServer
from tests.support.scripted_stream import ACK, ScriptedStream, error


def block(number: int) -> bytes:
    return b"NATS/1.0\r\nNats-Msg-Id: id%d\r\n\r\n" % number


def frames(publisher: BulkPublisher, first: int, count: int, size: int) -> Frames:
    """Messages with ids, as they go over the wire."""
    made = [
        commands.publish(b"s.a", b"x" * size, publisher.reply_prefix + b"%d" % number, block(number))
        for number in range(first, first + count)
    ]
    offsets = list(accumulate(map(len, made), initial=0))
    return Frames(first, memoryview(b"".join(made)), offsets)


def publish(
    nc: Connection, count: int, *, size: int = 10, timeout: float = 20.0, cut_every: int = 0, window: int = 500
) -> BulkPublisher:
    publisher = BulkPublisher(link_of(nc), timeout, window)
    publisher.open()
    step = cut_every or 100
    try:
        for first in range(0, count, step):
            publisher.publish(frames(publisher, first, min(step, count - first), size))
            if cut_every:
                nc.force_reconnect()
        publisher.finish()
    finally:
        publisher.close()
    return publisher


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_everything_is_stored(nc: Connection, js: JetStream, count: int) -> None:
    """When finish() returns, the stream has every message; a second time all are duplicates."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    assert publish(nc, count).duplicates == 0
    assert js.get_stream("S").info.state.messages == count
    assert publish(nc, count).duplicates == count
    assert js.get_stream("S").info.state.messages == count


def test_connection_that_breaks_again_and_again(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """What was on its way is sent again, and stored once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(nc, 10_000, cut_every=1500)
    with connect(nats_server.url) as another:  # the first one may be about to break once more
        assert another.jetstream().get_stream("S").info.state.messages == 10_000


def test_large_messages_are_bounded_by_bytes(nc: Connection, js: JetStream) -> None:
    """A window of 500 messages would be half a gigabyte: the bytes bound it."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(nc, 100, size=900_000)
    assert js.get_stream("S").info.state.messages == 100


def test_no_stream_is_an_error_that_names_the_subject(nc: Connection) -> None:
    """No stream stores it: it is sent again until the timeout, then NoStreamResponseError is raised."""
    with pytest.raises(NoStreamResponseError, match=r"s\.a"):
        publish(nc, 3, timeout=0.6)


def test_stream_that_comes_late(nc: Connection, js: JetStream) -> None:
    """A stream that is away for a moment gets everything when it is back."""
    timer = threading.Timer(0.5, lambda: js.create_stream(name="S", subjects=["s.>"]))
    timer.start()
    publish(nc, 100)
    timer.join()
    assert js.get_stream("S").info.state.messages == 100


def test_refused_message_is_an_error(nc: Connection, js: JetStream) -> None:
    """The stream's own refusal ends it, with the server's code."""
    js.create_stream(name="S", subjects=["s.>"], max_msg_size=100)
    with pytest.raises(APIError) as caught:
        publish(nc, 3, size=1000)
    assert caught.value.err_code == 10054


@pytest.mark.parametrize("window", [1, 2, 7])
def test_small_windows(nc: Connection, js: JetStream, window: int) -> None:
    """No more than the window is on its way, however small it is."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    most = 0
    publisher = BulkPublisher(link_of(nc), 20.0, window)
    publisher.open()
    send = publisher._send

    def counted(run: bytes | memoryview) -> None:
        nonlocal most
        most = max(most, len(publisher._pending))
        send(run)

    publisher._send = counted  # type: ignore[method-assign]
    publisher.publish(frames(publisher, 0, 300, 10))
    publisher.finish()
    publisher.close()
    assert js.get_stream("S").info.state.messages == 300
    assert 1 <= most <= window


def test_stream_with_a_misleading_name(nc: Connection, js: JetStream) -> None:
    """An ack of a stream that is called "error" is recognised as an ack."""
    js.create_stream(name="error", subjects=["s.>"], storage="memory")
    assert list(publish(nc, 1000, timeout=5).streams) == ["error"]
    assert js.get_stream("error").info.state.messages == 1000


def test_frames_are_split_at_their_bounds() -> None:
    """Runs hold whole frames, in order, at most as many messages and bytes as asked for."""
    whole = Frames(5, memoryview(b"aabbbc" + b"d" * 9 + b"e"), [0, 2, 5, 6, 15, 16])
    assert [(run.first, bytes(run.whole())) for run in whole.split(10, 5)] == [
        (5, b"aabbb"),
        (7, b"c"),
        (8, b"ddddddddd"),
        (9, b"e"),
    ]
    assert [len(run) for run in whole.split(2, 100)] == [2, 2, 1]
    assert [run.tokens for run in whole.split(3, 100)] == [[b"5", b"6", b"7"], [b"8", b"9"]]
    assert bytes(list(whole.split(2, 100))[1].frame(8)) == b"ddddddddd"


def test_server_that_does_not_answer(nats_server: LocalServer, js: JetStream) -> None:
    """A frozen server: TimeoutError after the time given, not for ever."""
    js.create_stream(name="S", subjects=["s.>"])
    with connect(nats_server.url) as nc:
        nats_server.pause()
        try:
            with pytest.raises(TimeoutError, match="3 messages"):
                publish(nc, 3, timeout=0.6)
        finally:
            nats_server.resume()


def test_denied_subject_fails_at_once() -> None:
    """The server denies the publish without an answer to it: the error says so within a second."""
    config = 'authorization { users = [{ user: "u", password: "p", permissions: { publish: { deny: "s.>" } } }] }'
    with LocalServer(config=config) as server, connect(server.url, user="u", password="p") as nc:
        with pytest.raises(PermissionsError):
            publish(nc, 3, timeout=20)


def test_ids_in_process_and_lost_answers_are_asked_for_again(nats_server: LocalServer, nc: Connection) -> None:
    """10158 is no refusal, and an answer that was lost without a disconnect is asked for within the timeout."""
    with ScriptedStream(nats_server, "s.a", error(10158, 409), error(10008), None, then=ACK) as stream:
        assert publish(nc, 3, timeout=3).not_yet is None  # what was refused for now is stored
        # The third one is sent again with the others, and if its answer had been the only one missing, after 1 s.
        assert stream.ids == ["id0", "id1", "id2"] * 2
    with ScriptedStream(nats_server, "s.a", ACK, None, ACK, then=ACK) as stream:
        publish(nc, 3, timeout=3)
        assert stream.ids == ["id0", "id1", "id2", "id1"]
