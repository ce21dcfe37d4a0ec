"""Publishing with acknowledgement (ADR-22): one at a time, waiting for each ack."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from .._deadline import seconds
from ..errors import ConnectionLostError, NatsError, NoStreamResponseError, TimeoutError
from ..net.link import Link
from ..protocol.headers import Headers, encode_headers, is_no_responders
from ..protocol.subjects import subscribe_subject, valid_name
from .client import raise_error_of
from .info import PubAck
from .kinds import at_least, bad_answer
from .publish_retry import judge, meaning_of, try_seconds

Duration = float | timedelta

MSG_ID = "Nats-Msg-Id"


def publish_block(
    headers: Mapping[str, Any] | None = None,
    msg_id: str | None = None,
    expected_stream: str | None = None,
    expected_last_seq: int | None = None,
    expected_last_subject_seq: int | None = None,
    expected_last_subject_seq_subject: str | None = None,
    expected_last_msg_id: str | None = None,
    ttl: Duration | str | None = None,
) -> tuple[bytes | None, bool]:
    """The header block of a publish, if it has one, and whether it holds a message id. Values are checked."""
    own: dict[str, str] = {}
    if msg_id is not None:
        own[MSG_ID] = _not_empty("msg_id", msg_id)
    if expected_stream is not None:
        own["Nats-Expected-Stream"] = valid_name("expected_stream", expected_stream)
    if expected_last_seq is not None:
        own["Nats-Expected-Last-Sequence"] = str(at_least("expected_last_seq", expected_last_seq, 0))
    if expected_last_subject_seq is not None:
        sequence = at_least("expected_last_subject_seq", expected_last_subject_seq, 0)
        own["Nats-Expected-Last-Subject-Sequence"] = str(sequence)
    if expected_last_subject_seq_subject is not None:
        if expected_last_subject_seq is None:
            raise ValueError("expected_last_subject_seq_subject goes with expected_last_subject_seq only")
        subscribe_subject(expected_last_subject_seq_subject)
        own["Nats-Expected-Last-Subject-Sequence-Subject"] = expected_last_subject_seq_subject
    if expected_last_msg_id is not None:
        own["Nats-Expected-Last-Msg-Id"] = _not_empty("expected_last_msg_id", expected_last_msg_id)
    if ttl is not None:
        own["Nats-TTL"] = _ttl(ttl)
    if not headers:
        return (encode_headers(own) if own else None), msg_id is not None
    merged = Headers(headers)
    merged.update(own)
    return encode_headers(merged), bool(merged.get(MSG_ID, "").strip(" \t"))


def _not_empty(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    if value.strip(" \t") != value:
        # Receivers strip header values: two ids would become one, or none would be left.
        raise ValueError(f"{name} must not start or end with a blank")
    return value


def _ttl(ttl: Duration | str) -> str:
    """The server takes whole seconds of at least one, or "never"."""
    if ttl == "never":
        return "never"
    if isinstance(ttl, str):
        raise ValueError(f'ttl must be seconds, a timedelta or "never": {ttl!r}')
    lifetime = seconds(ttl, "ttl") or 0.0
    if lifetime < 1 or not lifetime.is_integer():
        raise ValueError(f"ttl must be whole seconds, at least 1: {lifetime}")
    return f"{int(lifetime)}s"


# The answer to nearly every publish, read without a JSON parser; spacing differs by server version.
_USUAL_ACK = re.compile(rb'\{"stream": ?"([\w-]+)", ?"seq": ?(\d{1,19})\}', re.ASCII)


def parse_pub_ack(body: bytes, block: bytes | None, subject: bytes) -> PubAck:
    """The PubAck in a reply: its payload and headers. Raises NoStreamResponseError, APIError, JetStreamError."""
    usual = _USUAL_ACK.fullmatch(body)
    if usual is not None:
        return PubAck(usual[1].decode(), int(usual[2]))
    if not body and is_no_responders(block):
        raise NoStreamResponseError(subject.decode("utf-8", "replace"))
    try:
        answer = json.loads(body)
        stream, seq = answer.get("stream"), answer.get("seq")
    except (ValueError, AttributeError, RecursionError):
        raise bad_answer("PubAck", "a JSON object", body[:64]) from None
    raise_error_of(
        answer, stream=stream if isinstance(stream, str) else "", subject=subject.decode("utf-8", "replace")
    )
    if not stream or not isinstance(seq, int):
        raise bad_answer("PubAck", "stream and seq", body[:64])
    return PubAck.from_wire(answer)


def publish_and_wait(
    link: Link,
    subject: bytes,
    payload: bytes,
    block: bytes | None,
    *,
    has_msg_id: bool,
    timeout: Duration,
    retry_attempts: int,
    retry_wait: Duration,
) -> PubAck:
    """Send until acknowledged, refused for good, or out of tries or time; `timeout` bounds all tries."""
    left = seconds(timeout) or 0.0
    pause = seconds(retry_wait, "retry_wait") or 0.0
    ends_at = time.monotonic() + left
    retries = at_least("retry_attempts", retry_attempts, 0)
    maybe_stored = False
    while True:
        try:
            raw = link.request(subject, payload, try_seconds(left, retries) if has_msg_id else left, block)
            return parse_pub_ack(raw[3], raw[2], subject)
        except NatsError as error:
            left = ends_at - time.monotonic()
            verdict = judge(
                meaning_of(error),
                has_msg_id=has_msg_id,
                retries=retries,
                retry_wait=pause,
                maybe_stored=maybe_stored,
                left=left,
            )
            if verdict.pause is None:
                if verdict.maybe_stored and not isinstance(error, ConnectionLostError):
                    raise unknown_fate(subject) from error
                raise
        retries, maybe_stored = verdict.retries, verdict.maybe_stored
        time.sleep(verdict.pause)
        left -= verdict.pause


def unknown_fate(subject: bytes) -> TimeoutError:
    """The error of a publish that was sent, when no answer in time said what became of it."""
    error = TimeoutError(f"no ack of {subject.decode('utf-8', 'replace')!r} came in time: it may be stored")
    error.sent = True
    return error
