"""msg.json(): the payload as JSON, and errors that name the message and show nothing of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync import JetStreamMessage, Message, RawStreamMsg

REPLY = b"$JS.ACK.ORDERS.billing.1.42.7.1700000000000000000.0"


def core(data: bytes) -> Message:
    return Message((b"orders.new", None, None, data))


def delivered(data: bytes) -> JetStreamMessage:
    return JetStreamMessage((b"orders.new", REPLY, None, data))


def stored(data: bytes) -> RawStreamMsg:
    return RawStreamMsg(subject="orders.new", seq=42, data=data)


KINDS: list[Callable[[bytes], Any]] = [core, delivered, stored]


@pytest.mark.parametrize("make", KINDS)
def test_json_decodes_the_payload(make: Callable[[bytes], Any]) -> None:
    """Any JSON value, in any encoding that JSON allows; the payload stays bytes."""
    message = make(b'{"a": [1, 2.5, null, "\xc3\xa9"]}')
    assert message.json() == {"a": [1, 2.5, None, "é"]}
    assert message.data == b'{"a": [1, 2.5, null, "\xc3\xa9"]}'
    assert make(b"7").json() == 7
    assert make('"é"'.encode("utf-16")).json() == "é"


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "data", [b"", b'{"password": hunter2}', b'"hunter2 \xff"', b"hunter2", b"[" * 100_000 + b"hunter2"]
)
def test_error_names_the_message_and_not_its_payload(make: Callable[[bytes], Any], data: bytes) -> None:
    """Payloads may be secrets: neither the error nor what caused it holds them."""
    with pytest.raises(ValueError, match=r"'orders\.new'") as caught:
        make(data).json()
    if make is not core:
        assert "sequence 42" in str(caught.value)
    error: BaseException = caught.value
    assert error.__cause__ is error.__context__ is None
    assert "hunter2" not in "".join(traceback.format_exception_only(error))
    assert not hasattr(error, "doc")


def test_error_of_a_message_that_is_not_from_jetstream() -> None:
    """A message of a push subject without JetStream's reply is named by its subject."""
    with pytest.raises(ValueError, match=r"on 'orders\.new' is no JSON"):
        JetStreamMessage((b"orders.new", None, None, b"x")).json()
