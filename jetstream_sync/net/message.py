"""A received message. It keeps the bytes as they came and decodes what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import NatsError
from ..protocol.headers import Headers, encode_headers
from ..protocol.parser import RawMessage

if TYPE_CHECKING:
    from .link import Link


class Message:
    """One message. Subject, reply and headers are decoded on access; `data` is the payload as it came.

    Pickling keeps everything but the connection: an unpickled message can be read, not answered.
    """

    __slots__ = ("_headers", "_link", "_raw")

    def __init__(self, raw: RawMessage, link: Link | None = None) -> None:
        self._raw = raw
        self._link = link

    @property
    def subject(self) -> str:
        # Not all that was published is UTF-8; surrogateescape keeps every byte and can be sent back.
        return self._raw[0].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str | None:
        reply = self._raw[1]
        return None if reply is None else reply.decode("utf-8", "surrogateescape")

    @property
    def data(self) -> bytes:
        return self._raw[3]

    @property
    def headers(self) -> Headers | None:
        """The headers, or None when the message has none. Parsed once, leniently: never raises."""
        try:
            return self._headers
        except AttributeError:
            block = self._raw[2]
            self._headers: Headers | None = None if block is None else Headers.from_wire(block)
            return self._headers

    @property
    def raw_subject(self) -> bytes:
        """The subject's bytes, for subjects that are not UTF-8."""
        return self._raw[0]

    @property
    def raw_headers(self) -> bytes | None:
        """The header block's bytes as they came, version line included."""
        return self._raw[2]

    def respond(self, payload: bytes = b"", headers: Mapping[str, Any] | None = None) -> None:
        """Publish `payload` to this message's reply subject. Raises NatsError when it has none."""
        reply = self._raw[1]
        if reply is None:
            raise NatsError("this message has no reply subject: it was not a request")
        if self._link is None:
            raise NatsError("this message was unpickled: it has no connection to answer on")
        self._link.publish(reply, payload, None, encode_headers(headers) if headers else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._raw,))

    def __repr__(self) -> str:
        # Neither data nor header values: they may be secrets, and reprs end up in logs.
        reply = "" if self._raw[1] is None else f" reply={self.reply!r}"
        return f"<{type(self).__name__} subject={self.subject!r}{reply} data={len(self.data)} bytes>"
