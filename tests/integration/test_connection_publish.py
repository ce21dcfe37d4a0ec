"""Publishing on a connection to a real server: payloads, subjects, headers, and the buffer while disconnected."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync import Connection, Headers, connect
from jetstream_sync.errors import (
    BadHeaderError,
    BadSubjectError,
    MaxPayloadError,
    OutboundBufferLimitError,
)
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually


def disconnect(proxy: FaultProxy, nc: Connection) -> None:
    """Cut `nc` off and let it not come back before `proxy.heal()`."""
    proxy.refuse()
    proxy.cut()
    eventually(lambda: nc.is_reconnecting)


# --- publishing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"bytes", bytearray(b"array"), memoryview(b"view"), b""])
def test_publish_bytes_like(nc: Connection, payload: Any) -> None:
    """Every bytes-like payload arrives as its bytes."""
    sub = nc.subscribe("p")
    nc.publish("p", payload)
    assert sub.next_msg().data == bytes(payload)


@pytest.mark.parametrize("payload", ["text", None, 5, ["x"]])
def test_publish_of_something_else_is_a_type_error(nc: Connection, payload: Any) -> None:
    """A str payload is a TypeError that says to encode; other types are refused as well."""
    with pytest.raises(TypeError, match="encode" if isinstance(payload, str) else "bytes-like"):
        nc.publish("p", payload)
    with pytest.raises(TypeError):
        nc.request("p", payload)
    assert nc.is_connected


def test_publish_over_max_payload_sends_nothing_and_stays(proxy: FaultProxy) -> None:
    """A payload over max_payload, headers included, is a local error; the exact size passes."""
    with connect(proxy.url) as nc:
        limit = nc.max_payload
        sub = nc.subscribe("big")
        nc.flush()
        sent = len(proxy.captured[0].to_server)
        for payload, headers in ((b"x" * (limit + 1), None), (b"x" * limit, {"A": "b"})):
            with pytest.raises(MaxPayloadError) as caught:
                nc.publish("big", payload, headers=headers)
            assert caught.value.max_payload == limit
            with pytest.raises(MaxPayloadError):
                nc.request("big", payload, headers=headers)
        nc.flush()
        assert b"PUB" not in proxy.captured[0].to_server[sent:]
        nc.publish("big", b"y" * limit)
        assert len(sub.next_msg(timeout=5).data) == limit
        assert nc.stats.reconnects == 0


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nb", "a\tb", "a\0b", ".a", "a.", "a..b", "a.*", "a.>", 5])
def test_publish_to_a_bad_subject_is_refused(nc: Connection, subject: Any) -> None:
    """Subjects that cannot be published to are refused before anything is sent."""
    for call in (nc.publish, nc.request):
        with pytest.raises((BadSubjectError, TypeError)):
            call(subject, b"x")
    if subject:
        with pytest.raises((BadSubjectError, TypeError)):
            nc.publish("ok", b"x", reply=subject)


@pytest.mark.parametrize(
    "headers", [{"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"A": "b\n"}, {"": "x"}, {"A:": "b"}, {"A": 5}]
)
def test_publish_with_bad_headers_is_refused(nc: Connection, headers: Any) -> None:
    """Header names and values that would break the block are refused before anything is sent."""
    with pytest.raises((BadHeaderError, TypeError)):
        nc.publish("ok", b"x", headers=headers)
    assert nc.stats.out_msgs == 0


def test_headers_round_trip_with_several_values(nc: Connection) -> None:
    """Several values per name arrive in order, the case of names is kept, look-up ignores it."""
    headers = Headers()
    headers.add("X-Many", "one")
    headers.add("X-Many", "two")
    headers.add("Accent", "é")
    sub = nc.subscribe("h")
    nc.publish("h", b"body", headers=headers, reply="back.to")
    nc.publish("h", b"", headers={"Plain": "dict"})
    nc.publish("h", b"none")
    first, second, third = (sub.next_msg() for _ in range(3))
    assert first.headers is not None
    assert first.headers.get_all("x-many") == ["one", "two"]
    assert list(first.headers) == ["X-Many", "Accent"]
    assert first.headers["accent"] == "é"
    assert (first.data, first.reply) == (b"body", "back.to")
    assert second.headers == {"Plain": "dict"}
    assert third.headers is None


# --- the buffer while disconnected -------------------------------------------------------------------------


def test_publishes_while_disconnected_arrive_once_in_order(nats_server: LocalServer, proxy: FaultProxy) -> None:
    """What is published while disconnected is sent after the reconnect, once, in order."""
    with connect(nats_server.url) as observer:
        seen = observer.subscribe("buffered")
        observer.flush()
        with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
            disconnect(proxy, nc)
            for number in range(200):
                nc.publish("buffered", b"%d" % number)
            proxy.heal()
            nc.publish("buffered", b"200")
            nc.flush()
            observer.flush()
            got = [int(seen.next_msg().data) for _ in range(seen.pending_msgs)]
            assert got == list(range(201))


def test_publish_over_the_pending_buffer_raises_and_keeps_the_rest(proxy: FaultProxy) -> None:
    """Over pending_size a publish raises and is not taken; what was taken before still arrives."""
    options = {"pending_size": 1000, "reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05}
    with connect(proxy.url, **options) as nc:
        sub = nc.subscribe("small")
        disconnect(proxy, nc)
        frame = len(b"PUB small 90\r\n\r\n") + 90
        taken = 1000 // frame
        for _ in range(taken):
            nc.publish("small", b"x" * 90)
        for _ in range(2):
            with pytest.raises(OutboundBufferLimitError) as caught:
                nc.publish("small", b"x" * 90)
        assert caught.value.limit == 1000
        assert caught.value.pending == taken * frame
        proxy.heal()
        nc.flush()
        assert sub.pending_msgs == taken


def test_flush_given_up_while_disconnected_leaves_nothing_behind(proxy: FaultProxy) -> None:
    """Flushes that time out while disconnected neither pile up nor confuse later ones."""
    with connect(proxy.url, reconnect_time_wait=0.01, reconnect_time_wait_max=0.05) as nc:
        disconnect(proxy, nc)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                nc.flush(0.001)
        before = len(proxy.captured)
        proxy.heal()
        for _ in range(5):
            nc.flush(5)
        sent = proxy.captured[before].to_server
        assert sent.count(b"PING\r\n") == 6  # the handshake's own, and one for each flush
