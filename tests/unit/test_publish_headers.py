"""The headers of a publish: what each option becomes, and what is refused before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jetstream_sync import BadHeaderError, BadSubjectError, Headers, JetStreamError, NoStreamResponseError
from jetstream_sync.api.publish import parse_pub_ack, publish_block


def block_of(**options: Any) -> bytes | None:
    return publish_block(**options)[0]


def test_no_options_make_no_header_block() -> None:
    """A plain publish has no headers, and neither has one with an empty mapping."""
    assert publish_block() == (None, False)
    assert publish_block(headers={}) == (None, False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"msg_id": "id-1"}, b"Nats-Msg-Id: id-1"),
        ({"expected_stream": "ORDERS"}, b"Nats-Expected-Stream: ORDERS"),
        ({"expected_last_seq": 0}, b"Nats-Expected-Last-Sequence: 0"),
        ({"expected_last_seq": 2**64 - 1}, b"Nats-Expected-Last-Sequence: 18446744073709551615"),
        ({"expected_last_subject_seq": 7}, b"Nats-Expected-Last-Subject-Sequence: 7"),
        ({"expected_last_msg_id": "before"}, b"Nats-Expected-Last-Msg-Id: before"),
        ({"ttl": 5}, b"Nats-TTL: 5s"),
        ({"ttl": 90.0}, b"Nats-TTL: 90s"),
        ({"ttl": timedelta(hours=1)}, b"Nats-TTL: 3600s"),
        ({"ttl": "never"}, b"Nats-TTL: never"),
    ],
)
def test_option_becomes_its_header(options: dict[str, Any], line: bytes) -> None:
    """Each option is one header line, as the server reads it."""
    assert block_of(**options) == b"NATS/1.0\r\n" + line + b"\r\n\r\n"


def test_subject_of_an_expected_sequence_goes_with_the_sequence() -> None:
    """A filter for the expected sequence, wildcards allowed, is a header of its own beside the sequence."""
    block = block_of(expected_last_subject_seq=3, expected_last_subject_seq_subject="orders.*")
    assert block is not None
    assert b"\r\nNats-Expected-Last-Subject-Sequence-Subject: orders.*\r\n" in block
    with pytest.raises(ValueError, match="expected_last_subject_seq"):
        publish_block(expected_last_subject_seq_subject="orders.*")


def test_options_replace_headers_of_the_same_name() -> None:
    """The user's headers stay, several values included; an option wins over a header in whatever case."""
    headers = Headers({"X": "1", "nats-msg-id": "old"})
    headers.add("X", "2")
    block, has_msg_id = publish_block(headers, msg_id="new")
    assert has_msg_id
    assert block is not None
    read = Headers.from_wire(block)
    assert read.get_all("X") == ["1", "2"]
    assert read.get_all("Nats-Msg-Id") == ["new"]
    assert headers["nats-msg-id"] == "old"


def test_message_id_given_as_a_header_counts() -> None:
    """A publish is safe to repeat whichever way its id was given."""
    assert publish_block({"Nats-Msg-Id": "x"})[1] is True
    assert publish_block({"nats-msg-id": "x"})[1] is True
    assert publish_block({"Nats-Msg-Id": ""})[1] is False
    assert publish_block({"Nats-Msg-Id": " "})[1] is False
    assert publish_block({"Other": "x"})[1] is False


@pytest.mark.parametrize("name", ["msg_id", "expected_last_msg_id", "expected_stream"])
@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "a\0b", " a", "a ", ""])
def test_text_that_would_break_a_header_is_refused(name: str, value: str) -> None:
    """CR, LF, NUL, blanks at the ends and nothing at all are refused in every text option."""
    with pytest.raises(ValueError):
        publish_block(**{name: value})


@pytest.mark.parametrize("name", ["msg_id", "expected_last_msg_id", "expected_stream"])
@pytest.mark.parametrize("value", [1, b"bytes", ["list"]])
def test_text_of_another_type_is_refused(name: str, value: Any) -> None:
    """Only str is text."""
    with pytest.raises(TypeError):
        publish_block(**{name: value})


@pytest.mark.parametrize("name", ["a.b", "a b", "a*", "a>", "a/b", "a\\b", "a\tb"])
def test_expected_stream_that_is_no_name_is_refused(name: str) -> None:
    """The expected stream is a stream's name."""
    with pytest.raises(BadSubjectError, match="expected_stream"):
        publish_block(expected_stream=name)


@pytest.mark.parametrize("name", ["expected_last_seq", "expected_last_subject_seq"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", True])
def test_sequence_that_is_none_is_refused(name: str, value: Any) -> None:
    """A sequence is an int of zero or more."""
    with pytest.raises(ValueError, match=name):
        publish_block(**{name: value})


@pytest.mark.parametrize("ttl", [0, 0.5, 1.5, -1, "5s", "", float("inf"), float("nan")])
def test_ttl_the_server_cannot_take_is_refused(ttl: Any) -> None:
    """A TTL is whole seconds, at least one, or "never"."""
    with pytest.raises(ValueError, match="ttl"):
        publish_block(ttl=ttl)


@pytest.mark.parametrize("headers", [{"A\r\nB": "x"}, {"A": "x\r\ny"}, {"A:": "x"}, {"": "x"}])
def test_bad_header_is_refused(headers: dict[str, str]) -> None:
    """The user's own headers are checked like the options."""
    with pytest.raises(BadHeaderError):
        publish_block(headers)


# --- the answer ---------------------------------------------------------------------------------------


def answer(body: bytes, block: bytes | None = None) -> Any:
    return parse_pub_ack(body, block, b"orders.new")


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":"S","seq":5}',
        b'{"stream":"S", "seq":5}',
        b'{ "seq" : 5 , "stream" : "S", "duplicate": false, "domain": "" }',
    ],
)
def test_pub_ack_is_read_in_every_spacing(body: bytes) -> None:
    """Versions of the server space the JSON differently."""
    ack = answer(body)
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == ("S", 5, False, "")


def test_pub_ack_keeps_what_a_newer_server_adds() -> None:
    """Known fields are attributes, unknown ones are kept."""
    ack = answer(b'{"stream":"S","seq":5,"domain":"hub","duplicate":true,"val":"12","later":1}')
    assert (ack.domain, ack.duplicate, ack.val, ack.unknown_fields) == ("hub", True, "12", {"later": 1})


def test_no_responders_names_the_subject() -> None:
    """The server's own 503 means that no stream listens on the subject."""
    with pytest.raises(NoStreamResponseError, match=r"orders\.new") as caught:
        answer(b"", b"NATS/1.0 503\r\n\r\n")
    assert caught.value.subject == "orders.new"


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[]", b"null", b"1", b"{}", b'{"stream":"S"}', b'{"seq":1}', b'{"stream":"","seq":1}',
     b'{"stream":"S","seq":"1"}', b'{"error":"text"}', b"\xff\xfe", b"[" * 100_000],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_answer_that_is_no_ack_is_a_typed_error(body: bytes) -> None:
    """A reply that does not come from a stream makes the publish raise a JetStreamError."""
    with pytest.raises(JetStreamError):
        answer(body)
