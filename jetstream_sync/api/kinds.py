"""The kinds of values in JetStream's JSON: their Python form, their wire form, and the checks of user input.

Reading is lenient about values and strict about types: a wrong type raises a `JetStreamError` that names the
field. Writing is strict about both, so that a mistake is found before anything is sent.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, ClassVar

from ..errors import APIError, BadSubjectError, JetStreamError, api_error
from ..protocol.headers import Headers, encode_headers
from ..protocol.subjects import publish_subject, queue_name, subscribe_subject, valid_name

_NANOSECONDS = 1_000_000_000
# The longest duration in Go. As a float it is rounded up by a nanosecond; encode() limits it again.
_MOST_NANOSECONDS = 2**63 - 1
_LONGEST = _MOST_NANOSECONDS / _NANOSECONDS


class WireEnum(str, Enum):
    """A choice that the server knows by name. It equals and prints as that string, which may be used instead."""

    # Enum's own differ between Python versions.
    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class UnknownChoice(str):
    """A choice that only a newer server knows: a string that is accepted in a config and sent back."""

    __slots__ = ()


def bad_answer(where: str, expected: str, value: object) -> JetStreamError:
    """The error for a value of the wrong JSON type. Its text shows the start of the value."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return JetStreamError(f"the server's reply cannot be read: {where} should be {expected}, not {shown}")


def at_least(name: str, value: int, least: int) -> int:
    """`value`, the argument `name` of a call. Raises ValueError unless it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}: {value!r}")
    return value


class Kind:
    """The kind of a field's value: `coerce` checks the user's value, `encode` writes JSON, `decode` reads JSON."""

    json_type: ClassVar[type]
    expected: ClassVar[str]  # what error messages call that type
    lossy: bool = False  # whether the wire form may be more precise than the Python form

    def coerce(self, value: Any, where: str) -> Any:
        """`value` in its canonical Python form. Raises TypeError or ValueError, which name the field `where`."""
        if not self._fits(value):
            raise TypeError(f"{where} must be {self.expected}, not {type(value).__name__}")
        return value

    def encode(self, value: Any) -> Any:
        """The JSON form of a coerced value."""
        return value

    def decode(self, value: Any, where: str) -> Any:
        """The Python form of a JSON value. Raises JetStreamError when it has the wrong type."""
        if not self._fits(value):
            raise bad_answer(where, self.expected, value)
        return value

    def is_exact(self, value: Any, decoded: Any) -> bool:
        """Whether `decoded` is as precise as the JSON `value`."""
        return bool(self.encode(decoded) == value)

    def _fits(self, value: object) -> bool:
        kind = type(value)  # bool is a subclass of int
        return kind is self.json_type or (issubclass(kind, self.json_type) and kind is not bool)


class Flag(Kind):
    json_type = bool
    expected = "a bool"


class Integer(Kind):
    """An integer in the range of the server's type. Out of range, the server would refuse the whole request."""

    json_type = int
    expected = "an integer"

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def coerce(self, value: Any, where: str) -> Any:
        super().coerce(value, where)
        if not self._low <= value <= self._high:
            raise ValueError(f"{where} must be between {self._low} and {self._high}, not {value}")
        return value


class Text(Kind):
    """A string. `check` rejects what the server would reject. An empty string means unset unless `required`."""

    json_type = str
    expected = "a string"

    def __init__(self, check: Callable[[str], object] | None = None, *, required: bool = False) -> None:
        self._check = check
        self._required = required

    def coerce(self, value: Any, where: str) -> Any:
        super().coerce(value, where)
        if self._check is not None and (value or self._required):
            try:
                self._check(value)
            except BadSubjectError as error:
                raise BadSubjectError(f"{where}: {error}") from None
        return value


class Choice(Kind):
    """A value of an enum. A string that the enum does not know is accepted only from the server."""

    json_type = str
    expected = "a string"

    def __init__(self, enum: type[WireEnum]) -> None:
        self.enum: type[WireEnum] = enum
        self._members = {member.value: member for member in enum}

    def coerce(self, value: Any, where: str) -> Any:
        if isinstance(value, (self.enum, UnknownChoice)):
            return value
        if isinstance(value, Enum) or not isinstance(value, str):
            raise TypeError(f"{where} must be {self.enum.__name__} or a string, not {type(value).__name__}")
        if value not in self._members:
            raise ValueError(f"{where} cannot be {value!r}; valid are {', '.join(map(repr, self._members))}")
        return self._members[value]

    def encode(self, value: Any) -> Any:
        return str(value)

    def decode(self, value: Any, where: str) -> Any:
        super().decode(value, where)
        member = self._members.get(value)
        return UnknownChoice(value) if member is None else member


class Duration(Kind):
    """Seconds in Python (float, or timedelta when given), integer nanoseconds on the wire."""

    json_type = int
    expected = "an integer"
    lossy = True

    def coerce(self, value: Any, where: str) -> Any:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{where} must be seconds (float) or a timedelta, not {type(value).__name__}")
        if not 0 <= value < float("inf"):  # True for NaN, too
            raise ValueError(f"{where} must be a number of seconds and not negative: {value}")
        if value > _LONGEST:
            raise ValueError(f"{where} is too long, the server counts up to 292 years: {value}")
        return float(value)

    def encode(self, value: Any) -> Any:
        return min(nanoseconds(value), _MOST_NANOSECONDS)

    def decode(self, value: Any, where: str) -> Any:
        return super().decode(value, where) / _NANOSECONDS

    def is_exact(self, value: Any, decoded: Any) -> bool:
        # A float holds any integer of up to fifteen digits exactly: whole microseconds below 10**18 ns are exact.
        return (value % 1000 == 0 and abs(value) < 10**18) or super().is_exact(value, decoded)


class Age(Duration):
    """The time since an event, in seconds; None if it never happened (-1 on the wire)."""

    def decode(self, value: Any, where: str) -> Any:
        age = super().decode(value, where)
        return age if age >= 0 else None


class Timestamp(Kind):
    """An aware datetime in Python, RFC 3339 on the wire. Nanoseconds are truncated to microseconds."""

    expected = "an RFC 3339 time"
    lossy = True

    def coerce(self, value: Any, where: str) -> Any:
        if not isinstance(value, datetime):
            raise TypeError(f"{where} must be a datetime, not {type(value).__name__}")
        if value.utcoffset() is None:
            raise ValueError(
                f"{where} must be a datetime with a time zone, for example datetime.now(timezone.utc); "
                f"got the naive {value.isoformat()}"
            )
        return value

    def encode(self, value: Any) -> Any:
        text: str = value.astimezone(timezone.utc).isoformat()
        return text.removesuffix("+00:00") + "Z"

    def decode(self, value: Any, where: str) -> Any:
        try:
            return parse_time(value)
        except (TypeError, ValueError, OverflowError):
            raise bad_answer(where, self.expected, value) from None


class Base64(Kind):
    """Bytes in Python, base64 on the wire. Only infos have such fields: there is no coerce() for them."""

    def encode(self, value: Any) -> Any:
        return base64.b64encode(value).decode("ascii")

    def decode(self, value: Any, where: str) -> Any:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError):
            raise bad_answer(where, "base64", value) from None


class HeaderBlock(Base64):
    """`Headers` in Python, base64 of their wire form in JSON."""

    def encode(self, value: Any) -> Any:
        return super().encode(encode_headers(value) if value.raw is None else value.raw)

    def decode(self, value: Any, where: str) -> Any:
        return Headers.from_wire(super().decode(value, where))


class ServerError(Kind):
    """An `APIError` (not raised) in Python, `{"code", "err_code", "description"}` on the wire. Of infos only."""

    json_type = dict
    expected = "an error object"

    def encode(self, value: APIError) -> Any:
        return {"code": value.code, "err_code": value.err_code, "description": value.description}

    def decode(self, value: Any, where: str) -> Any:
        super().decode(value, where)
        return api_error(
            INT64.decode(value.get("code") or 0, f"{where}.code"),
            INT64.decode(value.get("err_code") or 0, f"{where}.err_code"),
            TEXT.decode(value.get("description") or "", f"{where}.description"),
        )


class Nested(Kind):
    """A nested config or info of the class `cls`. A user may pass a dict of its fields instead."""

    json_type = dict
    expected = "an object"

    def __init__(self, cls: type[Any]) -> None:
        self.cls: type[Any] = cls

    def coerce(self, value: Any, where: str) -> Any:
        if isinstance(value, self.cls):
            return value
        if isinstance(value, Mapping):
            return self.cls(**value)
        name = self.cls.__name__
        raise TypeError(f"{where} must be {name} or a dict of its fields, not {type(value).__name__}")

    def encode(self, value: Any) -> Any:
        return value.to_wire()

    def decode(self, value: Any, where: str) -> Any:
        return self.cls.from_wire(super().decode(value, where))


class _Items(Kind):
    """A list or dict whose items are all of one kind."""

    def __init__(self, item: Kind) -> None:
        self.item: Kind = item
        self.lossy: bool = item.lossy


class ListOf(_Items):
    json_type = list
    expected = "a list"

    def coerce(self, value: Any, where: str) -> Any:
        if isinstance(value, (str, bytes)):
            raise TypeError(f"{where} must be a list, not a single {type(value).__name__}: write [{value!r}]")
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{where} must be a list, not {type(value).__name__}")
        return [self.item.coerce(item, f"{where}[{index}]") for index, item in enumerate(value)]

    def encode(self, value: Any) -> Any:
        return [self.item.encode(item) for item in value]

    def decode(self, value: Any, where: str) -> Any:
        decode = self.item.decode
        return [decode(item, where) for item in super().decode(value, where)]


class MapOf(_Items):
    """A dict with strings as keys."""

    json_type = dict
    expected = "an object"

    def coerce(self, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} must be a dict, not {type(value).__name__}")
        return {
            TEXT.coerce(key, f"a key of {where}"): self.item.coerce(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }

    def encode(self, value: Any) -> Any:
        return {key: self.item.encode(item) for key, item in value.items()}

    def decode(self, value: Any, where: str) -> Any:
        decode = self.item.decode
        return {key: decode(item, where) for key, item in super().decode(value, where).items()}


INT32 = Integer(-(2**31), 2**31 - 1)
INT64 = Integer(-(2**63), 2**63 - 1)
UINT64 = Integer(0, 2**64 - 1)
TEXT = Text()
NAME = Text(functools.partial(valid_name, "name"), required=True)
SUBJECT = Text(subscribe_subject)
LITERAL_SUBJECT = Text(publish_subject)
NONEMPTY_SUBJECT = Text(subscribe_subject, required=True)
QUEUE = Text(queue_name)
AGE = Age()
TIMESTAMP = Timestamp()

_KINDS: dict[type, Kind] = {
    bool: Flag(),
    int: INT64,  # for infos, whose values are not checked for their range
    str: TEXT,
    float: Duration(),
    bytes: Base64(),
    datetime: TIMESTAMP,
    Headers: HeaderBlock(),
    APIError: ServerError(),
}


def kind_of(form: Any) -> Kind:
    """The kind of a type, an enum, a config or an info; of `[form]` or `{str: form}`. A kind stands for itself."""
    if isinstance(form, Kind):
        return form
    if isinstance(form, list):
        return ListOf(kind_of(form[0]))
    if isinstance(form, dict):
        return MapOf(kind_of(form[str]))
    if form in _KINDS:
        return _KINDS[form]
    return Choice(form) if issubclass(form, WireEnum) else Nested(form)


def nanoseconds(seconds: float) -> int:
    """`seconds` as integer nanoseconds, converted as a decimal number: 0.1 is exactly 100 000 000."""
    if isinstance(seconds, int):
        return seconds * _NANOSECONDS
    # seconds * 1e9 would round twice. repr() is the shortest decimal number that is this float. Where repr() has
    # an exponent, twelve decimals are enough.
    text = repr(seconds)
    whole, _, decimals = (f"{seconds:.12f}" if "e" in text else text).partition(".")
    exact = int(whole) * _NANOSECONDS + int(decimals[:9].ljust(9, "0"))
    rest = decimals[9:].rstrip("0")
    return exact + (rest > "5" or (rest == "5" and exact % 2 == 1))  # half to even


_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII)
_USUAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", re.ASCII)
_GO_ZERO_TIME = "0001-01-01T00:00:00Z"


def parse_time(text: str) -> datetime | None:
    """An RFC 3339 time as an aware datetime, truncated to microseconds; None for Go's zero time."""
    if text == _GO_ZERO_TIME:
        return None
    if _USUAL_TIME.fullmatch(text):  # nine decimals and UTC, as in most times
        return datetime.fromisoformat(text[:26] + "+00:00")
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    day, clock, fraction, zone = match.groups()
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '')[:6]:0<6}{zone or '+00:00'}")
