"""What filters of a query leave to be read: sequences, times, subjects and streams. Pure: no I/O, no pyspark.

Spark applies every filter again to the rows that are read. So it is enough to leave out only what certainly does
not match: a filter that is not understood here leaves out nothing. Spark joins the filters of a list by AND.

A filter is known by the name of its class in `pyspark.sql.datasource`, its `attribute` (the path of the column)
and its `value`. Columns are never NULL, so NULL matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from ..errors import BadSubjectError
from ..protocol.subjects import publish_subject
from .ranges import MIN_PER_PARTITION, SequenceRange

# With more subjects than this the server would compare each message with many filters: Spark does it faster.
MOST_SUBJECTS = 64
# Bytes that are not UTF-8 are shown as this character, so it tells nothing of the subject.
_REPLACEMENT = "\ufffd"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Bounds:
    """The whole numbers from `first` up to but not including `end`; None: no bound."""

    first: int | None = None
    end: int | None = None

    def both(self, other: Bounds) -> Bounds:
        firsts = [each for each in (self.first, other.first) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return Bounds(max(firsts, default=None), min(ends, default=None))


@dataclass(frozen=True)
class Narrowing:
    """What is left to be read; None for a column that no filter narrows."""

    seq: Bounds = Bounds()
    sequences: frozenset[int] | None = None
    """The only sequences that match, from IN."""
    micros: Bounds = Bounds()
    """Of `ts`, in microseconds since 1970."""
    subjects: tuple[str, ...] | None = None
    """Subjects, wildcards included; the empty tuple: none matches."""
    streams: frozenset[str] | None = None

    def includes(self, stream: str) -> bool:
        """Whether a message of `stream` may match."""
        return self.subjects != () and (self.streams is None or stream in self.streams)

    def ranges(self, wanted: SequenceRange) -> list[SequenceRange]:
        """The parts of `wanted` that may match, in order.

        Sequences that are closer together than a partition is long are in one part.
        """
        start = max(wanted.start, wanted.start if self.seq.first is None else self.seq.first)
        end = min(wanted.end, wanted.end if self.seq.end is None else self.seq.end)
        whole = SequenceRange(start, end)
        if self.sequences is None:
            return [whole] if len(whole) else []
        parts: list[SequenceRange] = []
        for sequence in sorted(each for each in self.sequences if whole.start <= each < whole.end):
            if parts and sequence - parts[-1].end < MIN_PER_PARTITION:
                parts[-1] = SequenceRange(parts[-1].start, sequence + 1)
            else:
                parts.append(SequenceRange(sequence, sequence + 1))
        return parts


def narrowing_of(filters: Iterable[Any], subjects: tuple[str, ...] = ()) -> Narrowing:
    """What `filters`, all of them, leave of the messages on `subjects` (empty: of all messages)."""
    found = Narrowing(subjects=subjects or None)
    for each in filters:
        kind, column = type(each).__name__, getattr(each, "attribute", None)
        if column not in _BY_COLUMN or not hasattr(each, "value"):
            continue  # of a part of a column, or without a value: IS NULL, NOT
        values = [value for value in (each.value if kind == "In" else (each.value,)) if value is not None]
        kind = "In" if kind in ("EqualTo", "EqualNullSafe") else kind
        found = _BY_COLUMN[column](found, kind, values) if values else replace(found, sequences=frozenset())
    return found


def _narrow_seq(found: Narrowing, kind: str, values: Sequence[Any]) -> Narrowing:
    if not all(type(value) is int for value in values):
        return found
    if kind == "In":
        both = frozenset(values) if found.sequences is None else found.sequences.intersection(values)
        return replace(found, sequences=both)
    return replace(found, seq=found.seq.both(_compared(kind, values[0])))


def _narrow_ts(found: Narrowing, kind: str, values: Sequence[Any]) -> Narrowing:
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return found
    micros = [(value - _EPOCH) // _MICROSECOND for value in values]
    bounds = Bounds(min(micros), max(micros) + 1) if kind == "In" else _compared(kind, micros[0])
    return replace(found, micros=found.micros.both(bounds))


def _compared(kind: str, value: int) -> Bounds:
    """The numbers for which a comparison with `value` holds; all, if it is another kind of filter."""
    if kind == "GreaterThan":
        return Bounds(first=value + 1)
    if kind == "GreaterThanOrEqual":
        return Bounds(first=value)
    if kind == "LessThan":
        return Bounds(end=value)
    return Bounds(end=value + 1) if kind == "LessThanOrEqual" else Bounds()


def _narrow_subject(found: Narrowing, kind: str, values: Sequence[Any]) -> Narrowing:
    if not all(isinstance(value, str) for value in values):
        return found
    if kind == "StringStartsWith":
        # At the last whole token: `a.b` is the start of `a.bc`, too.
        values = [values[0].rpartition(".")[0]]
    elif kind != "In":
        return found
    if not all(map(_is_plain, values)):
        return found
    pushed = [f"{value}.>" if kind == "StringStartsWith" else value for value in dict.fromkeys(values)]
    present = found.subjects if found.subjects is not None else (">",)
    common = (intersection(one, other) for one in present for other in pushed)
    narrowed = tuple(dict.fromkeys(each for each in common if each is not None))
    return found if len(narrowed) > MOST_SUBJECTS else replace(found, subjects=narrowed)


def _is_plain(subject: str) -> bool:
    """Whether the column has this text for one subject only, which has no wildcard."""
    try:
        publish_subject(subject)
    except BadSubjectError:
        return False
    return not any(sign in subject for sign in ("*", ">", _REPLACEMENT))


def _narrow_stream(found: Narrowing, kind: str, values: Sequence[Any]) -> Narrowing:
    if kind != "In" or not all(isinstance(value, str) for value in values):
        return found
    both = frozenset(values) if found.streams is None else found.streams.intersection(values)
    return replace(found, streams=both)


_Narrow = Callable[[Narrowing, str, Sequence[Any]], Narrowing]
_BY_COLUMN: dict[Any, _Narrow] = {
    ("seq",): _narrow_seq,
    ("ts",): _narrow_ts,
    ("subject",): _narrow_subject,
    ("stream",): _narrow_stream,
}


def intersection(one: str, other: str) -> str | None:
    """The pattern that matches what both patterns match; None when they have nothing in common."""
    left, right = one.split("."), other.split(".")
    common: list[str] = []
    for place in range(max(len(left), len(right))):
        rest_of_left, rest_of_right = left[place:], right[place:]
        if not rest_of_left or not rest_of_right:
            return None
        if rest_of_left[0] == ">":
            return ".".join(common + rest_of_right)
        if rest_of_right[0] == ">":
            return ".".join(common + rest_of_left)
        if rest_of_left[0] not in ("*", rest_of_right[0]) and rest_of_right[0] != "*":
            return None
        common.append(rest_of_right[0] if rest_of_left[0] == "*" else rest_of_left[0])
    return ".".join(common)
