"""Single messages: read by sequence and by subject, through the leader and by Direct Get, and deleted."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync import (
    Connection,
    Headers,
    JetStream,
    MessageNotFoundError,
    RawStreamMsg,
    Stream,
    Subscription,
    connect,
)
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually


@pytest.fixture(params=[False, True], ids=["leader", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


@pytest.fixture
def stream(js: JetStream, direct: bool) -> Stream:
    return js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=direct)


def fill(js: JetStream) -> None:
    """Sequences 1 to 6: s.a, s.b, s.a, s.b, s.a, s.b."""
    for number in range(6):
        js.publish(f"s.{'ab'[number % 2]}", b"%d" % (number + 1), headers={"N": str(number + 1)})


@pytest.mark.parametrize(
    ("options", "seq"),
    [
        ({"seq": 1}, 1),
        ({"seq": 4}, 4),
        ({"last_by_subject": "s.a"}, 5),
        ({"last_by_subject": "s.b"}, 6),
        ({"last_by_subject": "s.*"}, 6),
        ({"next_by_subject": "s.b"}, 2),
        ({"next_by_subject": "s.>"}, 1),
        ({"seq": 3, "next_by_subject": "s.b"}, 4),
        ({"seq": 4, "next_by_subject": "s.b"}, 4),
        ({"seq": 3, "next_by_subject": "s.*"}, 3),
    ],
)
def test_message_in_every_form(js: JetStream, stream: Stream, options: dict[str, Any], seq: int) -> None:
    """By sequence, last and next of a subject, with wildcards: the same message either way, complete."""
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    fill(js)
    message = stream.get_message(**options)
    assert isinstance(message, RawStreamMsg)
    assert message.seq == seq
    assert message.subject == f"s.{'ba'[seq % 2]}"
    assert message.data == b"%d" % seq
    assert message.headers == {"N": str(seq)}
    assert message.time is not None
    assert before < message.time < before + timedelta(minutes=1)


@pytest.mark.parametrize(
    "options",
    [
        {"seq": 7},
        {"seq": 2**63},
        {"last_by_subject": "s.none"},
        {"next_by_subject": "s.none"},
        {"seq": 6, "next_by_subject": "s.a"},
    ],
)
def test_message_that_is_not_there(js: JetStream, stream: Stream, options: dict[str, Any]) -> None:
    """MessageNotFoundError, with the same code either way."""
    fill(js)
    with pytest.raises(MessageNotFoundError) as caught:
        stream.get_message(**options)
    assert (caught.value.code, caught.value.err_code) == (404, 10037)


def test_message_of_an_empty_stream(stream: Stream) -> None:
    """MessageNotFoundError."""
    with pytest.raises(MessageNotFoundError):
        stream.get_message(1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seq": 0},
        {"seq": -1},
        {"seq": "1"},
        {"seq": True},
        {"seq": 1, "last_by_subject": "s.a"},
        {"last_by_subject": "s.a", "next_by_subject": "s.a"},
        {"last_by_subject": "a b"},
        {"next_by_subject": "a\r\nb"},
        {"last_by_subject": ""},
    ],
)
def test_bad_options_send_nothing(nc: Connection, stream: Stream, options: dict[str, Any]) -> None:
    """Contradictions, numbers out of range and bad subjects are refused before anything is sent."""
    before = nc.stats.out_msgs
    with pytest.raises(ValueError):
        stream.get_message(**options)
    assert nc.stats.out_msgs == before


def watch(nc: Connection) -> Subscription:
    sub = nc.subscribe("$JS.API.>")
    nc.flush()
    return sub


@pytest.mark.parametrize(
    ("options", "direct_subject"),
    [
        ({"seq": 1}, "$JS.API.DIRECT.GET.S"),
        ({"last_by_subject": "s.a"}, "$JS.API.DIRECT.GET.S.s.a"),
        ({"next_by_subject": "s.a"}, "$JS.API.DIRECT.GET.S"),
    ],
)
def test_direct_get_is_used_where_allowed(
    nc: Connection, js: JetStream, stream: Stream, direct: bool, options: dict[str, Any], direct_subject: str
) -> None:
    """A stream that allows it is asked on DIRECT.GET, the last of a subject in the subject's own form."""
    fill(js)
    sub = watch(nc)
    stream.get_message(**options)
    assert sub.next_msg(timeout=5).subject == (direct_subject if direct else "$JS.API.STREAM.MSG.GET.S")


def test_headers_that_look_like_the_servers_are_the_messages_own(js: JetStream, stream: Stream) -> None:
    """Headers Nats-Subject and Nats-Sequence of the publisher change neither subject nor sequence."""
    own = Headers(
        {"Nats-Subject": "forged", "Nats-Sequence": "99", "Nats-Stream": "X", "nats-time-stamp": "never"}
    )
    js.publish("s.a", b"x", headers=own)
    message = stream.get_message(1)
    assert (message.subject, message.seq) == ("s.a", 1)
    assert message.headers == own
    assert message.time is not None


def test_republished_message_is_read_as_stored(js: JetStream, stream: Stream, direct: bool) -> None:
    """A message that one stream republished into another keeps the first one's headers."""
    js.create_stream(name="FROM", subjects=["from"], republish={"src": "from", "dest": "s.copy"})
    js.publish("from", b"x")
    eventually(lambda: stream.get_info().state.messages == 1)
    message = stream.get_message(1)
    assert (message.subject, message.seq, message.data) == ("s.copy", 1, b"x")
    assert message.headers is not None
    assert message.headers["Nats-Stream"] == "FROM"
    assert message.headers["Nats-Subject"] == "from"


def test_empty_payload_and_no_headers(js: JetStream, stream: Stream) -> None:
    """An empty message is returned, and not taken for a status."""
    js.publish("s.a")
    message = stream.get_message(1)
    assert (message.data, message.headers) == (b"", None)


def test_payload_of_every_byte(js: JetStream, stream: Stream) -> None:
    """Binary payloads come back as they are."""
    payload = bytes(range(256)) * 100
    js.publish("s.a", payload)
    assert stream.get_message(1).data == payload


def test_direct_get_turned_off_meanwhile_still_reads(js: JetStream) -> None:
    """When the stream no longer allows Direct Get, but the Stream object does not know, the leader is asked."""
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    fill(js)
    js.update_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=False)
    assert stream.get_message(2).seq == 2
    assert stream.get_message(last_by_subject="s.a").seq == 5


@pytest.mark.parametrize("context", [{"domain": "hub"}, {"prefix": "$JS.hub.API"}, {}])
def test_domain_and_prefix_are_honoured(direct: bool, context: dict[str, str]) -> None:
    """Direct Get and get by the leader go to the context's own JetStream."""
    # A proxy sees what is sent; to subscribers the server shows its own domain as the plain API.
    with LocalServer(config="jetstream { domain: hub }") as server, FaultProxy(server) as proxy:
        with connect(proxy.url) as nc:
            js = nc.jetstream(**context)
            stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=direct)
            js.publish("s.a", b"x")
            assert stream.get_message(1).data == b"x"
            assert stream.get_message(last_by_subject="s.a").data == b"x"
        sent = proxy.captured[0].to_server
    prefix = b"$JS.hub.API" if context else b"$JS.API"
    asked = [b"DIRECT.GET.S", b"DIRECT.GET.S.s.a"] if direct else [b"STREAM.MSG.GET.S"]
    for subject in asked:
        assert b"PUB %b.%b _INBOX" % (prefix, subject) in sent


# --- delete -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_deleted_message_is_gone(nc: Connection, js: JetStream, stream: Stream, secure: bool) -> None:
    """Both ways of deleting remove the message; only the plain one says no_erase."""
    fill(js)
    sub = nc.subscribe("$JS.API.STREAM.MSG.DELETE.S")
    nc.flush()
    (stream.secure_delete_message if secure else stream.delete_message)(2)
    assert sub.next_msg(timeout=5).data == (b'{"seq":2}' if secure else b'{"seq":2,"no_erase":true}')
    with pytest.raises(MessageNotFoundError):
        stream.get_message(2)
    assert stream.get_info(deleted_details=True).state.deleted == [2]
    assert stream.get_message(3).data == b"3"


def test_secure_delete_overwrites_the_bytes() -> None:
    """On disk the payload of a securely deleted message is not to be found any more."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"])
        js.publish("s", b"before")
        js.publish("s", b"the-secret-payload")
        js.publish("s", b"after")
        stream.secure_delete_message(2)
        server.stop()
        files = [path.read_bytes() for path in server.store_dir.rglob("*.blk")]
        assert any(b"before" in content for content in files)
        assert not any(b"the-secret-payload" in content for content in files)


@pytest.mark.parametrize("seq", [0, -1, "1", None, True])
def test_delete_of_no_sequence_sends_nothing(nc: Connection, js: JetStream, stream: Stream, seq: Any) -> None:
    """A sequence is an int of at least one."""
    before = nc.stats.out_msgs
    for delete in (stream.delete_message, stream.secure_delete_message):
        with pytest.raises(ValueError):
            delete(seq)
    assert nc.stats.out_msgs == before


def test_delete_of_a_message_that_is_not_there(js: JetStream, stream: Stream) -> None:
    """The server's refusal is MessageNotFoundError."""
    fill(js)
    with pytest.raises(MessageNotFoundError):
        stream.delete_message(99)
