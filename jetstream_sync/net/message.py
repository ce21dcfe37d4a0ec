"""A received message. It keeps the bytes as received and decodes a part when that part is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import NatsError
from ..protocol.headers import Headers, encode_headers
from ..protocol.parser import RawMessage

if TYPE_CHECKING:
    from .link import Link

SHOWN_BYTES = 40


class Message:
    """A received message. Subject, reply and headers are decoded when they are read; `data` is the payload.

    A message can be pickled, without its connection: after unpickling it can be read, but respond() raises.
    """

    __slots__ = ("_headers", "_link", "_raw", "_sid")

    def __init__(self, raw: RawMessage, link: Link | None = None, sid: bytes = b"") -> None:
        self._raw = raw
        self._link = link
        self._sid = sid

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        # A subject need not be UTF-8. surrogateescape keeps every byte, so it can be published to again.
        return self._raw[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str | None:
        """The subject to which the sender expects a reply; None when it expects none."""
        reply = self._raw[1]
        return None if reply is None else reply.decode("utf-8", "surrogateescape")

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._raw[3]

    @property
    def headers(self) -> Headers | None:
        """The headers; None when the message has none. Parsed on first access; malformed lines are skipped."""
        try:
            return self._headers
        except AttributeError:
            block = self._raw[2]
            self._headers: Headers | None = None if block is None else Headers.from_wire(block)
            return self._headers

    @property
    def sid(self) -> int:
        """The number of the subscription that it came on; 0 for the reply to a request, and after unpickling."""
        return int(self._sid or 0)

    @property
    def raw_subject(self) -> bytes:
        """The subject as received, for subjects that are not UTF-8."""
        return self._raw[0]

    @property
    def raw_headers(self) -> bytes | None:
        """The header block as received, with its version line; None when the message has no headers."""
        return self._raw[2]

    def json(self) -> Any:
        """The payload decoded as JSON; `data` stays bytes.

        Raises ValueError when it is no JSON. The error names the subject, and the sequence where there is one, but
        shows nothing of the payload.
        """
        return decode_json(self._raw[3], self._origin)

    def _origin(self) -> str:
        """Which message this is, for errors."""
        return f"on {self.subject!r}"

    def respond(self, payload: bytes = b"", headers: Mapping[str, Any] | None = None) -> None:
        """Publish `payload`, with `headers` if given, to this message's reply subject. Does not block.

        Raises NatsError when the message has no reply subject or was unpickled, and what publish() raises.
        """
        reply = self._raw[1]
        if reply is None:
            raise NatsError("this message has no reply subject: it was not a request")
        if self._link is None:
            raise NatsError("this message was unpickled: it has no connection to answer on")
        self._link.publish(reply, payload, None, encode_headers(headers) if headers else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._raw,))

    def __repr__(self) -> str:
        # Without header values: they may be credentials, and a repr often ends up in a log.
        reply = "" if self._raw[1] is None else f" reply={self.reply!r}"
        return f"<{type(self).__name__} subject={self.subject!r}{reply} data={excerpt(self.data)}>"


def decode_json(data: bytes, origin: Callable[[], str]) -> Any:
    """The JSON value in a payload. Raises ValueError that names the `origin` and shows nothing of the payload."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        why = f"{error.reason} at byte {error.start}"
    except RecursionError:
        why = "it is nested too deeply"
    # Python's own errors hold the payload: none of them may be the context of this one.
    raise ValueError(f"the message {origin()} is no JSON: {why}")


def excerpt(data: bytes) -> str:
    """The first SHOWN_BYTES of a payload, and its size if there are more."""
    return repr(data) if len(data) <= SHOWN_BYTES else f"{data[:SHOWN_BYTES]!r}… ({len(data)} bytes)"
