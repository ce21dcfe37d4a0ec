"""The client's protocol lines, as bytes. Callers validate the arguments; nothing is checked here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["PING", "PONG", "connect", "payload_bytes", "publish", "subscribe", "unsubscribe"]

Payload = bytes | bytearray | memoryview

PING = b"PING\r\n"
PONG = b"PONG\r\n"


def connect(options: Mapping[str, Any]) -> bytes:
    """CONNECT with `options` as its JSON object. JSON escapes CR and LF, so no option can end the line."""
    return b"CONNECT %s\r\n" % json.dumps(dict(options), separators=(",", ":")).encode()


def publish(subject: bytes, payload: Payload, reply: bytes | None = None, headers: bytes | None = None) -> bytes:
    """PUB, or HPUB when `headers` (an encoded block) is given."""
    if not isinstance(payload, bytes):
        # A copy: the caller may change its buffer before the frame is sent. And len() of a memoryview counts
        # items.
        payload = bytes(payload)
    size = len(payload)
    if headers is None:
        if reply is None:
            return b"PUB %b %d\r\n%b\r\n" % (subject, size, payload)
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, payload)
    header_size = len(headers)
    size += header_size
    if reply is None:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, header_size, size, headers, payload)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, header_size, size, headers, payload)


def payload_bytes(payload: Any) -> bytes:
    """A payload that is bytes-like, as bytes. Raises TypeError for anything else."""
    if isinstance(payload, str):
        raise TypeError("payload must be bytes, not str: encode it first, for example text.encode()")
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise TypeError(f"payload must be bytes-like, not {type(payload).__name__}") from None


def subscribe(subject: bytes, sid: bytes, queue: bytes | None = None) -> bytes:
    """SUB, in the queue group `queue` if one is given."""
    if queue is None:
        return b"SUB %b %b\r\n" % (subject, sid)
    return b"SUB %b %b %b\r\n" % (subject, queue, sid)


def unsubscribe(sid: bytes, limit: int = 0) -> bytes:
    """UNSUB: at once, or after `limit` messages in all, counted from the start of the subscription."""
    if limit > 0:
        return b"UNSUB %b %d\r\n" % (sid, limit)
    return b"UNSUB %b\r\n" % sid
