"""Converts rows of a DataFrame to messages: subject, payload, headers, message id. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ..api.publish import MSG_ID, publish_block
from ..errors import BadHeaderError
from ..protocol.headers import VERSION_LINE, encode_headers
from ..protocol.subjects import publish_subject

COLUMNS = ("subject", "data", "headers", "msg_id", "ttl")

# Headers that tell a stream how to treat a publish. Rows that were read from a stream may have those of the
# publish that stored them, which must not be sent again.
_NOT_REPEATED = ("nats-msg-id", "nats-expected-", "nats-batch-", "nats-rollup")

ROWS_AT_ONCE = 1000
CACHED_NAMES = 1000


class Outgoing(NamedTuple):
    """A message. Its header block lacks the message id and the closing blank line."""

    subject: bytes
    payload: bytes
    block: bytes
    msg_id: str | None


class Columns(NamedTuple):
    """Rows by column; None for a column that does not exist."""

    data: list[Any]
    subject: list[str | None] | None = None
    headers: list[Any] | None = None
    msg_id: list[str | None] | None = None
    ttl: list[Any] | None = None


def columns_of_rows(rows: Iterable[Any], names: frozenset[str]) -> Iterator[Columns]:
    """Rows by column, for Spark versions that pass rows one by one."""
    source = iter(rows)
    while run := list(islice(source, ROWS_AT_ONCE)):
        yield Columns(**{name: [row[name] for row in run] for name in COLUMNS if name in names})


class RowEncoder:
    """Encodes rows as messages. For one thread."""

    def __init__(self, subject: str | None, stream: str | None) -> None:
        self.subject: bytes | None = None if subject is None else publish_subject(subject)
        """The subject of all messages, which overrides that of the rows; None to use that of the rows."""
        block, _ = publish_block(expected_stream=stream)
        self.start: bytes = VERSION_LINE if block is None else block[:-2]
        """The start of the header block of every message."""
        self._names: dict[str, bytes] = {}  # the start of a header line, by name

    def encode(self, columns: Columns) -> Iterator[Outgoing]:
        """Encode rows. Raises ValueError, which names the column, for a row that cannot be a message."""
        count = len(columns.data)
        subjects = self._subjects(columns.subject, count)
        ids = columns.msg_id or [None] * count
        blocks = self._blocks(columns.headers, columns.ttl, count)
        for subject, data, block, msg_id in zip(subjects, columns.data, blocks, ids, strict=True):
            if type(data) is not bytes:
                data = _payload(data)
            if msg_id == "":
                raise ValueError("column 'msg_id' is empty: use NULL for a generated id")
            yield Outgoing(subject, data, block, msg_id)

    def _subjects(self, column: list[str | None] | None, count: int) -> Iterable[bytes]:
        if self.subject is not None:
            return [self.subject] * count
        if column is None or None in column:
            raise ValueError("column 'subject' is NULL: give every row a subject, or the option 'subject'")
        return map(publish_subject, column)  # type: ignore[arg-type]  # None was excluded

    def _blocks(self, headers: list[Any] | None, ttls: list[Any] | None, count: int) -> Iterable[bytes]:
        if headers is None and ttls is None:
            return [self.start] * count
        return [
            self.start + self.header_lines(pairs) + self.ttl_line(ttl)
            for pairs, ttl in zip(headers or [None] * count, ttls or [None] * count, strict=True)
        ]

    def header_lines(self, pairs: Any) -> bytes:
        """The header lines of a row. Raises ValueError, BadHeaderError."""
        lines = b""
        for name, values in pairs.items() if isinstance(pairs, Mapping) else pairs or ():
            for value in (values,) if isinstance(values, str) else values or ():
                if value is None:
                    raise ValueError(f"header {name!r} has a value that is NULL")
                start = self.line_start(name)
                if not start:
                    continue
                if value.isprintable() and value.strip() == value:
                    lines += start + value.encode() + b"\r\n"
                else:
                    lines += encode_headers([(name, value)])[len(VERSION_LINE) : -2]
        return lines

    def line_start(self, name: str) -> bytes:
        """The start of a header line; empty for a header that is not sent. Raises BadHeaderError."""
        start = self._names.get(name)
        if start is None:
            start = b"" if name.lower().startswith(_NOT_REPEATED) else _line_start(name)
            if len(self._names) < CACHED_NAMES:
                self._names[name] = start
        return start

    def ttl_line(self, ttl: Any) -> bytes:
        if ttl is None:
            return b""
        block, _ = publish_block(ttl=_ttl(ttl))
        assert block is not None
        return block[len(VERSION_LINE) : -2]


def _line_start(name: str) -> bytes:
    line_end = len(b"\r\n\r\n")
    return encode_headers([(name, "")])[len(VERSION_LINE) : -line_end]


def with_id(block: bytes, msg_id: str) -> bytes:
    """The complete header block of a message, with its message id. Raises BadHeaderError."""
    if msg_id.isascii() and msg_id.isalnum():
        return b"%bNats-Msg-Id: %b\r\n\r\n" % (block, msg_id.encode())
    if msg_id.strip(" \t") != msg_id:  # stripped, two ids could become one
        raise BadHeaderError("the value of header 'Nats-Msg-Id' starts or ends with a blank")
    return block + encode_headers([(MSG_ID, msg_id)])[len(VERSION_LINE) :]


def _payload(data: Any) -> bytes:
    if data is None:
        raise ValueError("column 'data' is NULL: a message has a payload, if an empty one")
    return data.encode() if isinstance(data, str) else bytes(data)


def _ttl(value: Any) -> Any:
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    return value
