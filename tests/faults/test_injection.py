"""Text that would break a protocol line is refused, in every name the user gives, before any byte is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection, Headers
from jetstream_sync.errors import BadHeaderError, BadSubjectError
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy

EVIL = [
    "\r\nPUB x 0\r\n\r\n",
    "a\rb",
    "a\nb",
    "a b",
    "a\tb",
    "a\0b",
    "\r",
    "\n",
    " ",
    "\t",
    "\0",
    "",
    "a\x7fb",
    "\x0b",
]
EMPTY_TOKENS = [".", "a..b", ".a", "a."]
WILDCARDS = ["*", ">", "a.*", "a.>", "*.b"]
BAD_WILDCARDS = ["a.>.b", "a.b*", ">a", "a*.b"]
NOT_UTF8 = ["\ud800"]


@pytest.fixture
def nc(proxy: FaultProxy) -> Iterator[Connection]:
    connection = jetstream_sync.connect(proxy.url)
    connection.flush()
    yield connection
    connection.close()


def assert_refused(nc: Connection, proxy: FaultProxy, call: Callable[[], object]) -> None:
    """`call` raises BadSubjectError or BadHeaderError and sends nothing: the wire shows the PING of flush()."""
    nc.flush()
    before = proxy.captured[0].to_server
    with pytest.raises(ValueError) as caught:
        call()
    assert isinstance(caught.value, (BadSubjectError, BadHeaderError))
    nc.flush()
    assert proxy.captured[0].to_server == before + b"PING\r\n"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", EVIL + EMPTY_TOKENS + WILDCARDS + NOT_UTF8, ids=repr)
def test_publish_subject_and_reply(nc: Connection, proxy: FaultProxy, text: str) -> None:
    """publish() and request() refuse such a subject, and publish() such a reply subject."""
    assert_refused(nc, proxy, lambda: nc.publish(text, b"x"))
    assert_refused(nc, proxy, lambda: nc.publish("fine", b"x", reply=text))
    assert_refused(nc, proxy, lambda: nc.request(text, b"x"))


@pytest.mark.parametrize("text", EVIL + EMPTY_TOKENS + BAD_WILDCARDS + NOT_UTF8, ids=repr)
def test_subscribe_subject(nc: Connection, proxy: FaultProxy, text: str) -> None:
    """subscribe() refuses such a subject."""
    assert_refused(nc, proxy, lambda: nc.subscribe(text))


@pytest.mark.parametrize("text", EVIL + NOT_UTF8, ids=repr)
def test_queue(nc: Connection, proxy: FaultProxy, text: str) -> None:
    """subscribe() refuses such a queue name."""
    assert_refused(nc, proxy, lambda: nc.subscribe("fine", queue=text))


@pytest.mark.parametrize("name", ["a\r\nb", "a\rb", "a\nb", "a:b", "", "a b", "a\0b", "\r\n"], ids=repr)
def test_header_name(nc: Connection, proxy: FaultProxy, name: str) -> None:
    """publish() and request() refuse such a header name."""
    assert_refused(nc, proxy, lambda: nc.publish("fine", b"", headers={name: "x"}))
    assert_refused(nc, proxy, lambda: nc.request("fine", b"", headers={name: "x"}))


@pytest.mark.parametrize("value", ["a\r\nStatus: 503", "a\rb", "a\nb", "\r\n\r\nbody", "a\0b"], ids=repr)
def test_header_value(nc: Connection, proxy: FaultProxy, value: str) -> None:
    """publish() and request() refuse such a header value, from a dict, a list or Headers."""
    assert_refused(nc, proxy, lambda: nc.publish("fine", b"", headers={"A": value}))
    assert_refused(nc, proxy, lambda: nc.publish("fine", b"", headers={"A": ["fine", value]}))
    assert_refused(nc, proxy, lambda: nc.request("fine", b"", headers={"A": value}))

    def add_and_publish() -> None:
        headers = Headers()
        headers.add("A", value)
        nc.publish("fine", b"", headers=headers)

    assert_refused(nc, proxy, add_and_publish)


def test_respond_header(nc: Connection, proxy: FaultProxy) -> None:
    """respond() checks its headers like publish()."""
    sub = nc.subscribe("asked")
    nc.publish("asked", reply="answer")
    msg = sub.next_msg(timeout=5)
    assert_refused(nc, proxy, lambda: msg.respond(b"", headers={"A\r\nB": "x"}))


@pytest.mark.parametrize("prefix", EVIL + EMPTY_TOKENS + WILDCARDS, ids=repr)
def test_inbox_prefix(proxy: FaultProxy, prefix: str) -> None:
    """connect() refuses such an inbox prefix before it dials."""
    with pytest.raises(BadSubjectError):
        jetstream_sync.connect(proxy.url, inbox_prefix=prefix)
    assert proxy.accepted == 0


@pytest.mark.parametrize(
    "text", ["\r\nPUB x 0\r\n\r\n", 'quote"', "back\\slash", "nul\0", "line\u2028", "é\ud83d"], ids=repr
)
def test_json_fields_of_connect(proxy: FaultProxy, nats_server: LocalServer, text: str) -> None:
    """Name, user, password and token are sent as JSON: CONNECT stays one line with any text in them."""
    for options in ({"name": text}, {"user": text, "password": text}, {"token": text}):
        with jetstream_sync.connect(proxy.url, **options) as nc:
            nc.flush()
        lines = proxy.captured[-1].to_server.split(b"\r\n")
        assert lines[0].startswith(b"CONNECT {")
        assert set(lines[1:]) == {b"PING", b""}


@pytest.mark.parametrize(
    "url", ["nats://a b:4222", "nats://host\r\n:4222", "nats://ho\0st", "nats://h\tost"], ids=repr
)
def test_server_url(url: str) -> None:
    """A URL with blanks or control characters is refused."""
    with pytest.raises(ValueError):
        jetstream_sync.connect(url)


@pytest.mark.parametrize("payload", ["text", 5, None, ["x"]], ids=repr)
def test_payload_type(nc: Connection, proxy: FaultProxy, payload: object) -> None:
    """A payload that is not bytes-like is a TypeError before any byte."""
    before = proxy.captured[0].to_server
    for call in (nc.publish, nc.request):
        with pytest.raises(TypeError, match="payload"):
            call("fine", payload)
    nc.flush()
    assert b"PUB" not in proxy.captured[0].to_server[len(before) :]


def test_evil_payload_is_only_data(nc: Connection) -> None:
    """Payloads may hold anything, protocol lines included."""
    sub = nc.subscribe("data")
    for data in (b"\r\nPUB x 0\r\n\r\n", b"\r\n", b"", b"\0", b"-ERR 'x'\r\n"):
        nc.publish("data", data)
        assert sub.next_msg(timeout=5).data == data
