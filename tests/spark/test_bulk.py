"""The sink's publisher, without Spark: everything is stored once, or an error says why not."""

from __future__ import annotations

import threading

import pytest

from jetstream_sync import Connection, JetStream, connect
from jetstream_sync.errors import APIError, MaxPayloadError, NoStreamResponseError, PermissionsError, TimeoutError
from jetstream_sync.spark.bulk import BulkPublisher
from jetstream_sync.spark.outgoing import with_id
from jetstream_sync.testing import LocalServer


def block(number: int) -> bytes:
    return with_id(b"NATS/1.0\r\n", f"id{number}")


def publish(
    nc: Connection,
    count: int,
    *,
    subject: bytes = b"s.a",
    size: int = 10,
    timeout: float = 20.0,
    cut_every: int = 0,
) -> BulkPublisher:
    publisher = BulkPublisher(nc, timeout, window=500)
    try:
        for number in range(count):
            publisher.publish(b"s.a", b"x" * size, block(number))
            if cut_every and number % cut_every == cut_every - 1:
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


def test_connection_that_breaks_again_and_again(nc: Connection, js: JetStream) -> None:
    """What was on its way is sent again, and stored once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(nc, 10_000, cut_every=1500)
    assert js.get_stream("S").info.state.messages == 10_000


def test_large_messages_are_bounded_by_bytes(nc: Connection, js: JetStream) -> None:
    """A window of 500 messages would be half a gigabyte: the bytes bound it."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(nc, 100, size=900_000)
    assert js.get_stream("S").info.state.messages == 100


def test_no_stream_is_an_error_that_names_the_subject(nc: Connection) -> None:
    """Nobody takes it: tried again until the timeout, then said."""
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


def test_message_over_max_payload(nc: Connection) -> None:
    """Too large for the server: refused before it is sent."""
    with pytest.raises(MaxPayloadError):
        publish(nc, 1, size=nc.max_payload + 1)


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
