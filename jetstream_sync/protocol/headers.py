"""Message headers: the mapping users see, its wire format, and the status on the version line.

Reading is lenient: a stream may hold header blocks that no client would write today, and they must stay
readable. Writing is strict: a CR or LF in a header would end it early.
ADR-4: the case of a name is preserved; blanks around a value are not part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from ..errors import BadHeaderError

__all__ = ["HeaderSource", "Headers", "Status", "encode_headers", "header_value", "is_no_responders", "status_of"]

VERSION_LINE = b"NATS/1.0\r\n"

# ADR-4: a name is made of printable ASCII (33 to 126) without the colon.
_NAME = re.compile(r"[!-9;-~]+")
_FORBIDDEN_IN_VALUE = re.compile(r"[\r\n\0]")
# Only this version is followed by a status, as for the server and the Go client.
_STATUS = re.compile(rb"NATS/1\.0[ \t]+([0-9]{3})(?:[ \t]+([^\r\n]*))?(?:\r?\n|\Z)")


class Status(NamedTuple):
    """A status that the server puts on the version line, such as `404 No Messages`."""

    code: int
    description: str


class Headers(MutableMapping[str, str]):
    """Header names and values, as a mapping. Look-up ignores case; a name keeps the case it was set with.

    A name may have several values: `headers[name]` and `get` return the first, `get_all` returns all of them, and
    `headers[name] = value` replaces all of them. Iteration yields each name once. Headers are equal to any mapping
    with the same names (ignoring case) and values. They can be pickled. Threads must not change them at once.
    """

    __slots__ = ("_entries", "raw")

    def __init__(self, source: HeaderSource = ()) -> None:
        self.raw: bytes | None = None
        """The received header block, None for other headers. Changes to the headers do not change it."""
        self._entries: dict[str, list[tuple[str, str]]] = {}  # lower-case name → its (name, value) pairs
        for name, value in _pairs(source):
            self.add(name, value)

    @classmethod
    def from_wire(cls, block: bytes) -> Headers:
        """Read a received `block`. Never raises: lines that are not headers are skipped; `raw` keeps everything.

        Bytes that are not UTF-8 are decoded with `surrogateescape`. A line that starts with a blank continues the
        value of the line before (folding).
        """
        headers = cls()
        headers.raw = block
        entries = headers._entries
        lines = block.decode("utf-8", "surrogateescape").split("\n")
        last: list[tuple[str, str]] | None = None
        for line in lines[1:] if lines[0].startswith("NATS/") else lines:
            if line[:1] in (" ", "\t"):
                _unfold(last, line)
                continue
            name, colon, value = line.partition(":")
            name = name.strip(" \t\r")
            if colon and name:
                last = entries.setdefault(name.lower(), [])
                last.append((name, value.strip(" \t\r")))
        return headers

    def __getitem__(self, name: str) -> str:
        entry = self._entries.get(name.lower()) if isinstance(name, str) else None
        if entry is None:
            raise KeyError(name)
        return entry[0][1]

    def __setitem__(self, name: str, value: str) -> None:
        _check_types(name, value)
        self._entries[name.lower()] = [(name, value)]

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        del self._entries[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._entries

    def __iter__(self) -> Iterator[str]:
        return (pairs[0][0] for pairs in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return self._values() == (other if isinstance(other, Headers) else Headers(other))._values()
        except TypeError:  # a key or value of `other` is not a str
            return False

    def __repr__(self) -> str:
        return f"Headers({list(self.multi_items())!r})"

    def add(self, name: str, value: str) -> None:
        """Add `value` after those that `name` has already. Raises TypeError for anything but str."""
        _check_types(name, value)
        self._entries.setdefault(name.lower(), []).append((name, value))

    def get_all(self, name: str) -> list[str]:
        """All values of `name` in their order; an empty list when there is none."""
        return [value for _, value in self._entries.get(name.lower(), ())]

    def multi_items(self) -> Iterator[tuple[str, str]]:
        """All (name, value) pairs: names in the order in which they were first added, and the values of each."""
        return (pair for pairs in self._entries.values() for pair in pairs)

    def copy(self) -> Headers:
        """An independent copy, including `raw`."""
        other = Headers()
        other.raw = self.raw
        other._entries = {key: pairs.copy() for key, pairs in self._entries.items()}
        return other

    __copy__ = copy

    def _values(self) -> dict[str, list[str]]:
        return {key: [value for _, value in pairs] for key, pairs in self._entries.items()}


# What may be passed as headers. The values of a mapping are a str, or a list or tuple of str.
HeaderSource = (
    Headers
    | Mapping[str, str]
    | Mapping[str, Sequence[str]]
    | Mapping[str, str | Sequence[str]]
    | Iterable[tuple[str, str]]
)


def _unfold(last: list[tuple[str, str]] | None, line: str) -> None:
    more = line.strip(" \t\r")
    if last and more:
        name, value = last[-1]
        last[-1] = (name, f"{value} {more}")


def _pairs(source: HeaderSource) -> Iterator[tuple[str, str]]:
    if isinstance(source, Headers):
        yield from source.multi_items()
        return
    items: Iterable[tuple[str, Any]] = source.items() if isinstance(source, Mapping) else source
    for name, value in items:
        if isinstance(value, (list, tuple)):
            for single in value:
                yield name, single
        else:
            yield name, value


def _check_types(name: object, value: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a header name must be str, not {type(name).__name__}")
    if not isinstance(value, str):
        raise TypeError(f"the value of header {name!r} must be str, not {type(value).__name__}")


def encode_headers(headers: HeaderSource) -> bytes:
    """The wire form of `headers`, with version line and closing blank line.

    Blanks at the ends of a value are left out: they are not part of it (ADR-4), and receivers strip them. Raises
    `BadHeaderError` for a name that is empty, has a colon, or anything but printable ASCII, and for a value with
    CR, LF or NUL. The error names the header but not its value, which may be a secret. Raises `TypeError` for
    anything but str.
    """
    lines = [VERSION_LINE]
    for name, value in _pairs(headers):
        _check_types(name, value)
        lines.append(_encode_line(name, value))
    lines.append(b"\r\n")
    return b"".join(lines)


def _encode_line(name: str, value: str) -> bytes:
    if _NAME.fullmatch(name) is None:
        raise BadHeaderError(f"header name {name!r} must be printable ASCII without blanks and colons, not empty")
    if _FORBIDDEN_IN_VALUE.search(value) is not None:
        raise BadHeaderError(f"the value of header {name!r} contains CR, LF or NUL")
    value = value.strip(" \t")
    try:
        return f"{name}: {value}\r\n".encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadHeaderError(f"the value of header {name!r} cannot be encoded as UTF-8") from None


def status_of(block: bytes | None) -> Status | None:
    """The status on the version line of a header block; None when there is none."""
    if block is None or block.startswith(VERSION_LINE):
        return None
    match = _STATUS.match(block)
    if match is None:
        return None
    description = match[2] or b""
    return Status(int(match[1]), description.decode("utf-8", "replace").strip())


def header_value(block: bytes, name: bytes) -> bytes | None:
    """The first value of `name` (ignoring case) in a header block, found without reading the other headers."""
    key = b"\r\n%b:" % name.lower()
    found = block.lower().find(key)
    if found < 0:
        return None
    start = found + len(key)
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].strip(b" \t")


def is_no_responders(block: bytes | None) -> bool:
    """Whether a reply's header block is the server's own "503 No Responders"."""
    status = status_of(block)
    return status is not None and status.code == 503
