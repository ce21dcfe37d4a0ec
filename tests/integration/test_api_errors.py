"""Answers of the API that are errors, and answers that no JetStream server would give."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import (
    APIError,
    Connection,
    ConnectionLostError,
    JetStream,
    JetStreamError,
    JetStreamNotEnabledError,
    NoStreamResponseError,
    PermissionsError,
    StreamNotFoundError,
    connect,
)
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.peer import PeerConnection, ScriptedPeer


def api_calls(js: JetStream) -> list[Callable[[], Any]]:
    return [
        js.account_info,
        lambda: js.create_stream(name="S"),
        lambda: js.get_stream("S"),
        lambda: list(js.list_streams()),
        lambda: list(js.stream_names()),
        lambda: js.create_consumer("S", durable_name="c"),
    ]


# --- JetStream is not there ---------------------------------------------------------------------------------


def test_server_without_jetstream_is_told_apart_from_no_responders() -> None:
    """Every API call raises JetStreamNotEnabledError at once; a publish raises NoStreamResponseError."""
    with LocalServer(jetstream=False) as server, connect(server.url) as nc:
        js = nc.jetstream()
        started = time.monotonic()
        for call in api_calls(js):
            with pytest.raises(JetStreamNotEnabledError) as caught:
                call()
            assert (caught.value.code, caught.value.err_code) == (503, 10076)
        assert time.monotonic() - started < 2
        with pytest.raises(NoStreamResponseError):
            js.publish("s", retry_attempts=0)
        with pytest.raises(NoStreamResponseError):
            js.publish_async("s", retry_attempts=0).result(5)


def test_account_without_jetstream_is_told_by_the_server() -> None:
    """On a server with JetStream an account without it gets the server's own answer."""
    config = """accounts {
        WITH { jetstream: enabled, users: [ { user: with, password: p } ] }
        WITHOUT { users: [ { user: without, password: p } ] }
    }"""
    with LocalServer(config=config) as server:
        with connect(server.url, user="without", password="p") as nc:
            for call in api_calls(nc.jetstream()):
                with pytest.raises(JetStreamNotEnabledError) as caught:
                    call()
                assert (caught.value.code, caught.value.err_code) == (503, 10039)
                assert "account" in caught.value.description
        with connect(server.url, user="with", password="p") as nc:
            assert nc.jetstream().account_info().streams == 0


def test_denied_api_fails_at_once_and_names_the_subject() -> None:
    """A user who may not use the API learns it within a second."""
    user = '{ user: u, password: p, permissions: { publish: { deny: "$JS.API.STREAM.INFO.>" } } }'
    with LocalServer(config=f"authorization {{ users: [ {user} ] }}") as server:
        with connect(server.url, user="u", password="p", error_cb=lambda error: None) as nc:
            js = nc.jetstream(timeout=10)
            started = time.monotonic()
            with pytest.raises(PermissionsError, match=r"\$JS\.API\.STREAM\.INFO\.S"):
                js.get_stream("S")
            assert time.monotonic() - started < 1
            assert js.account_info().streams == 0


def test_error_keeps_the_servers_facts(js: JetStream) -> None:
    """Code, err_code and description are attributes, and in the text."""
    with pytest.raises(StreamNotFoundError) as caught:
        js.get_stream("NONE")
    error = caught.value
    assert (error.code, error.err_code, error.description) == (404, 10059, "stream not found")
    assert "stream not found" in str(error)
    assert "10059" in str(error)
    assert isinstance(error, APIError)


# --- answers of a scripted server ----------------------------------------------------------------------------


def answering(*bodies: bytes) -> Callable[[PeerConnection], None]:
    """A server that answers the first requests with `bodies`, the last one again and again."""

    def script(peer: PeerConnection) -> None:
        peer.handshake()
        remaining = list(bodies)
        sid = b"1"
        while True:
            line = peer.expect_line()
            if line.startswith(b"SUB "):
                sid = line.split()[-1]
            elif line == b"PING":
                peer.send(b"PONG\r\n")
            elif match := re.fullmatch(rb"H?PUB (\S+) (\S+) (?:\d+ )?(\d+)", line):
                peer.read_exactly(int(match[3]) + 2)
                body = remaining.pop(0) if len(remaining) > 1 else remaining[0]
                peer.send(b"MSG %b %b %d\r\n%b\r\n" % (match[2], sid, len(body), body))

    return script


def ask(body: bytes, call: Callable[[JetStream], Any]) -> Any:
    with ScriptedPeer(answering(body)) as peer:
        nc = connect(peer.url)
        try:
            return call(nc.jetstream(timeout=2))
        finally:
            nc.close()


def test_account_info_with_integers_above_2_to_the_63() -> None:
    """Unlimited and underflowed figures of real servers are read as they are."""
    top = 2**64 - 1
    tier = {"memory": top, "storage": 2**63, "streams": 1, "consumers": 2,
            "limits": {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1}}  # fmt: skip
    body = {"type": "io.nats.jetstream.api.v1.account_info_response", **tier, "reserved_memory": top,
            "reserved_storage": 2**63 + 5, "api": {"total": top, "errors": 0}, "tiers": {"R1": tier}}  # fmt: skip
    info = ask(json.dumps(body).encode(), lambda js: js.account_info())
    assert (info.memory, info.storage) == (top, 2**63)
    assert (info.reserved_memory, info.reserved_storage) == (top, 2**63 + 5)
    assert info.api.total == top
    assert info.limits.max_memory == -1
    assert info.tiers["R1"].memory == top


def test_account_info_of_a_real_server(js: JetStream) -> None:
    """Use and limits of the account, streams and consumers counted."""
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    stream.create_consumer(durable_name="c")
    js.publish("s", b"x" * 1000)
    info = js.account_info()
    assert (info.streams, info.consumers, info.domain) == (1, 1, "")
    assert info.memory > 1000
    assert info.limits.max_streams == -1
    assert info.api.total > 0


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[]", b"null", b'"text"', b"{}", b"\xff\xff", b'{"config":5}', b'{"config":{"name":5}}',
     b'{"error":"text"}', b'{"error":5}', b"[" * 50_000, b'{"config":{"name":"S"},"created":"never"}'],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_answer_that_makes_no_sense_is_a_typed_error(body: bytes) -> None:
    """Whatever answers, the caller sees a JetStreamError, and the connection lives on."""
    with pytest.raises(JetStreamError):
        ask(body, lambda js: js.get_stream("S"))


@pytest.mark.parametrize("body", [b"{}", b'{"message":null}', b'{"message":5}', b'{"message":{"seq":1}}'])
def test_message_that_makes_no_sense_is_a_typed_error(body: bytes) -> None:
    """A get without a readable message is a JetStreamError too."""
    info = b'{"config":{"name":"S"},"created":"2024-01-01T00:00:00Z","state":{}}'
    with ScriptedPeer(answering(info, body)) as peer:
        nc = connect(peer.url)
        try:
            stream = nc.jetstream(timeout=2).get_stream("S")
            with pytest.raises(JetStreamError):
                stream.get_message(1)
        finally:
            nc.close()


def test_list_of_a_server_that_counts_wrongly_ends() -> None:
    """A total that is never reached does not make the list ask for ever."""
    page = b'{"total":1000,"offset":0,"limit":256,"streams":["A"]}'
    empty = b'{"total":1000,"offset":0,"limit":256,"streams":[]}'
    with ScriptedPeer(answering(page, page, empty)) as peer:
        nc = connect(peer.url)
        try:
            assert list(nc.jetstream(timeout=2).stream_names()) == ["A", "A"]
        finally:
            nc.close()


def test_lost_connection_ends_a_request_at_once(nats_server: LocalServer) -> None:
    """A request under way when the connection breaks raises ConnectionLostError, not a timeout."""

    def script(peer: PeerConnection) -> None:
        peer.handshake()
        peer.read_until(b"STREAM.INFO.S")
        peer.close()

    with ScriptedPeer(script) as peer:
        nc: Connection = connect(peer.url, allow_reconnect=False)
        started = time.monotonic()
        with pytest.raises(ConnectionLostError):
            nc.jetstream(timeout=30).get_stream("S")
        assert time.monotonic() - started < 5
        nc.close()
