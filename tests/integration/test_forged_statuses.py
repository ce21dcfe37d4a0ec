"""Messages that publishers made look like statuses, and headers that are none.

All are user messages: delivered by every way of consuming, readable as bytes, acknowledged; the connection stays.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from jetstream_sync import Connection, Consumer, JetStream, JetStreamMessage
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import server_version, stream_and_consumer

STATUS_LINES = [
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 10\r\nNats-Pending-Bytes: 0\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\n\r\n",
]
STATUS_HEADERS = [
    b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
    b"NATS/1.0\r\nStatus: 404\r\n\r\n",
    b"NATS/1.0\r\nstatus: 100\r\nNats-Consumer-Stalled: $JS.FC.x\r\n\r\n",
    b"NATS/1.0\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: -1\r\n\r\n",
]
MALFORMED = {
    "no version line": b"Name: value\r\n\r\n",
    "other version": b"NATS/9.9\r\nName: value\r\n\r\n",
    "no colon": b"NATS/1.0\r\nno colon here\r\n\r\n",
    "non-UTF-8 name": b"NATS/1.0\r\n\xff\xfe: value\r\n\r\n",
    "non-UTF-8 value": b"NATS/1.0\r\nName: \xff\xfe\xfd\r\n\r\n",
    "NUL": b"NATS/1.0\r\nNa\0me: va\0lue\r\n\r\n",
    "folded line": b"NATS/1.0\r\nName: one\r\n two\r\n\r\n",
    "60 KB": b"NATS/1.0\r\nName: " + b"x" * 60_000 + b"\r\n\r\n",
    "empty name": b"NATS/1.0\r\n: value\r\n\r\n",
    "only the version line": b"NATS/1.0\r\n\r\n",
    "bare line feeds": b"NATS/1.0\nName: value\n\n",
    "no final line": b"NATS/1.0\r\nName: value",
}


def publish_raw(server: LocalServer, blocks: list[bytes], subject: bytes = b"s.x") -> None:
    """Store messages with these header blocks as they are: no client would send them."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        for block in blocks:
            sock.sendall(b"HPUB %b %d %d\r\n%b\r\n" % (subject, len(block), len(block), block))
        sock.sendall(b"PING\r\n")
        answer = b""
        while b"PONG" not in answer:
            data = sock.recv(4096)
            assert data, answer
            answer += data


def stored(js: JetStream) -> int:
    return js.get_stream("S").info.state.messages


def by_fetch(consumer: Consumer, count: int) -> list[JetStreamMessage]:
    return list(consumer.fetch(count, expires=3))


def by_next(consumer: Consumer, count: int) -> list[JetStreamMessage]:
    got = [consumer.next(3) for _ in range(count)]
    return [message for message in got if message is not None]


def by_messages(consumer: Consumer, count: int) -> list[JetStreamMessage]:
    with consumer.messages(max_messages=2) as messages:
        return [messages.next(3) for _ in range(count)]


def by_loop(consumer: Consumer, count: int) -> list[JetStreamMessage]:
    got: list[JetStreamMessage] = []
    with consumer.messages(max_bytes=100_000) as messages:
        for message in messages:
            got.append(message)
            if len(got) == count:
                break
    return got


def by_consume(consumer: Consumer, count: int) -> list[JetStreamMessage]:
    got: list[JetStreamMessage] = []
    with consumer.consume(got.append):
        eventually(lambda: len(got) == count)
    return got


WAYS = [by_fetch, by_next, by_messages, by_loop, by_consume]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [STATUS_LINES, STATUS_HEADERS, list(MALFORMED.values())])
def test_forged_or_malformed_headers_are_user_messages(
    js: JetStream,
    nc: Connection,
    nats_server: LocalServer,
    way: Callable[[Consumer, int], list[JetStreamMessage]],
    blocks: list[bytes],
) -> None:
    """Whatever the server stored comes as a message, with its bytes, can be read and acked; nothing drops."""
    consumer = stream_and_consumer(js)
    publish_raw(nats_server, blocks)
    count = len(blocks)
    eventually(lambda: stored(js) == count)
    got = way(consumer, count)
    assert len(got) == count
    forged_lines_survive = server_version(nc) < (2, 11, 15) or (2, 12) <= server_version(nc) < (2, 12, 6)
    for message, block in zip(got, blocks, strict=True):
        assert message.data == b""
        if blocks is not STATUS_LINES or forged_lines_survive:
            assert message.raw_headers == block
        assert message.metadata.stream == "S"
        str(message.headers)
        repr(message)
        message.ack_sync(3)
    assert consumer.get_info().num_ack_pending == 0
    assert nc.stats.reconnects == 0
    assert nc.is_connected


@pytest.mark.parametrize("way", WAYS)
def test_non_utf8_subject_is_delivered_and_acked(
    js: JetStream, nc: Connection, nats_server: LocalServer, way: Callable[[Consumer, int], list[JetStreamMessage]]
) -> None:
    """A subject of bytes that are no text does not stop anything."""
    consumer = stream_and_consumer(js)
    publish_raw(nats_server, [b"NATS/1.0\r\n\r\n"], b"s.\xff\xfe")
    (message,) = way(consumer, 1)
    assert message.subject.encode("utf-8", "surrogateescape") == b"s.\xff\xfe"
    message.ack_sync(3)
    assert nc.stats.reconnects == 0


def test_forged_status_does_not_count_as_heartbeat_or_end(js: JetStream, nats_server: LocalServer) -> None:
    """A batch with forged ends in it is filled by them as by any message."""
    consumer = stream_and_consumer(js)
    publish_raw(nats_server, STATUS_HEADERS * 5)
    js.publish("s.x", b"real")
    got = list(consumer.fetch(21, expires=3))
    assert len(got) == 21
    assert got[-1].data == b"real"
