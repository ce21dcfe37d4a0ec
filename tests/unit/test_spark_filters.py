"""What filters of a query leave to be read: tables, and a model that evaluates the filters row by row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.protocol.subjects import subject_matches
from jetstream_sync.spark.filters import MOST_SUBJECTS, Bounds, Narrowing, intersection, narrowing_of
from jetstream_sync.spark.ranges import MIN_PER_PARTITION, SequenceRange

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LATEST = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Filter:
    """As the filters of pyspark 4.1 and later are: known by the name of the class."""

    attribute: tuple[str, ...]
    value: Any


class EqualTo(Filter): ...


class EqualNullSafe(Filter): ...


class GreaterThan(Filter): ...


class GreaterThanOrEqual(Filter): ...


class LessThan(Filter): ...


class LessThanOrEqual(Filter): ...


class In(Filter): ...


class StringStartsWith(Filter): ...


class StringContains(Filter): ...


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


SEQ, TS, SUBJECT, STREAM = ("seq",), ("ts",), ("subject",), ("stream",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Narrowing()),
        ([GreaterThan(SEQ, 5), LessThanOrEqual(SEQ, 9)], Narrowing(seq=Bounds(6, 10))),
        ([GreaterThanOrEqual(SEQ, 5), GreaterThan(SEQ, 2), LessThan(SEQ, 9)], Narrowing(seq=Bounds(5, 9))),
        ([EqualTo(SEQ, 5)], Narrowing(sequences=frozenset({5}))),
        ([In(SEQ, (1, 2, None)), EqualNullSafe(SEQ, 2)], Narrowing(sequences=frozenset({2}))),
        ([GreaterThan(SEQ, None)], Narrowing(sequences=frozenset())),
        ([In(SUBJECT, (None,))], Narrowing(sequences=frozenset())),
        ([GreaterThan(SEQ, 1.5)], Narrowing()),
        ([EqualTo(SEQ, True)], Narrowing()),
        ([GreaterThan(TS, EPOCH + timedelta(microseconds=7))], Narrowing(micros=Bounds(8, None))),
        ([EqualTo(TS, EPOCH + timedelta(microseconds=7))], Narrowing(micros=Bounds(7, 8))),
        ([In(TS, (EPOCH, EPOCH + timedelta(microseconds=7)))], Narrowing(micros=Bounds(0, 8))),
        ([LessThan(TS, EPOCH.replace(tzinfo=None))], Narrowing()),
        ([LessThanOrEqual(TS, LATEST)], Narrowing(micros=Bounds(None, 253402300800000000))),
        ([EqualTo(SUBJECT, "a.b")], Narrowing(subjects=("a.b",))),
        ([In(SUBJECT, ("a", "b", "a"))], Narrowing(subjects=("a", "b"))),
        ([EqualTo(SUBJECT, "a"), EqualTo(SUBJECT, "b")], Narrowing(subjects=())),
        ([StringStartsWith(SUBJECT, "a.b.")], Narrowing(subjects=("a.b.>",))),
        ([StringStartsWith(SUBJECT, "a.b")], Narrowing(subjects=("a.>",))),
        ([StringStartsWith(SUBJECT, "a")], Narrowing()),
        ([StringStartsWith(SUBJECT, "")], Narrowing()),
        ([StringContains(SUBJECT, "a.b")], Narrowing()),
        ([EqualTo(SUBJECT, "a.*")], Narrowing()),
        ([EqualTo(SUBJECT, "a.\ufffd")], Narrowing()),
        ([In(SUBJECT, ("a", "a b"))], Narrowing()),
        ([EqualTo(SUBJECT, "")], Narrowing()),
        ([In(SUBJECT, tuple(f"a.{n}" for n in range(MOST_SUBJECTS + 1)))], Narrowing()),
        ([EqualTo(STREAM, "A"), In(STREAM, ("A", "B"))], Narrowing(streams=frozenset({"A"}))),
        ([GreaterThan(STREAM, "A")], Narrowing()),
        ([EqualTo(("headers", "seq"), 5), IsNotNull(SEQ), Not(EqualTo(SEQ, 5))], Narrowing()),
        ([EqualTo(("data",), b"")], Narrowing()),
    ],
)  # fmt: skip
def test_what_filters_leave(filters: list[Any], expected: Narrowing) -> None:
    """Each kind narrows what it may narrow; what is not understood narrows nothing."""
    assert narrowing_of(filters) == expected


@pytest.mark.parametrize(
    ("option", "filters", "expected"),
    [
        (("s.*",), [EqualTo(SUBJECT, "s.a")], ("s.a",)),
        (("s.*",), [EqualTo(SUBJECT, "s.a.b")], ()),
        (("s.*", "t.>"), [StringStartsWith(SUBJECT, "t.x.")], ("t.x.>",)),
        (("s.*.c", "t.>"), [StringStartsWith(SUBJECT, "s.x.")], ("s.x.c",)),
        (("s.a",), [In(SUBJECT, ("s.b", "s.c"))], ()),
        (("s.a", "s.b"), [], ("s.a", "s.b")),
        (("s.a", "s.b"), [GreaterThan(SEQ, 1)], ("s.a", "s.b")),
    ],
)
def test_the_option_and_the_filters_both_hold(
    option: tuple[str, ...], filters: list[Any], expected: tuple[str, ...]
) -> None:
    """Only subjects that match the option `subjects` and the filter are read."""
    assert narrowing_of(filters, option).subjects == expected


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (">", "a.b", "a.b"),
        ("a.>", ">", "a.>"),
        ("a.>", "a", None),
        ("a.*", "*.b", "a.b"),
        ("a.*.c", "a.>", "a.*.c"),
        ("*.>", "a.*", "a.*"),
        ("a", "a.b", None),
        ("a", "b", None),
        ("*", ">", "*"),
    ],
)
def test_intersection_of_patterns(one: str, other: str, both: str | None) -> None:
    assert intersection(one, other) == both
    assert intersection(other, one) == both


tokens = st.sampled_from(["a", "b", "c"])
subjects = st.lists(tokens, min_size=1, max_size=3).map(".".join)
patterns = st.tuples(st.lists(st.sampled_from(["a", "b", "*"]), max_size=3), st.booleans()).map(
    lambda made: ".".join(made[0] + [">"] * (made[1] or not made[0]))
)


@given(patterns, patterns, subjects)
def test_intersection_matches_what_both_match(one: str, other: str, subject: str) -> None:
    common = intersection(one, other)
    both = subject_matches(one, subject) and subject_matches(other, subject)
    assert (common is not None and subject_matches(common, subject)) == both


def holds(each: Any, row: dict[str, Any]) -> bool:
    """Whether Spark's filter is true for a row."""
    if isinstance(each, Not):
        return not holds(each.child, row)
    actual, value = row[each.attribute[0]], each.value
    if isinstance(each, In):
        return actual in value
    if value is None:
        return False
    return {
        "EqualTo": lambda: actual == value,
        "EqualNullSafe": lambda: actual == value,
        "GreaterThan": lambda: actual > value,
        "GreaterThanOrEqual": lambda: actual >= value,
        "LessThan": lambda: actual < value,
        "LessThanOrEqual": lambda: actual <= value,
        "StringStartsWith": lambda: actual.startswith(value),
    }[type(each).__name__]()


times = st.integers(0, 6).map(lambda micros: EPOCH + timedelta(microseconds=micros))
texts = subjects | st.sampled_from(["a.", "a.b.", "", "a.*", ".", "a..b", "b.c"])
comparisons = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
filters_of = st.one_of(
    st.builds(lambda kind, value: kind(SEQ, value), comparisons, st.none() | st.integers(0, 9)),
    st.builds(lambda values: In(SEQ, tuple(values)), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    st.builds(lambda kind, value: kind(TS, value), comparisons, times),
    st.builds(lambda values: In(TS, tuple(values)), st.lists(times, max_size=2)),
    st.builds(lambda value: EqualTo(SUBJECT, value), texts),
    st.builds(lambda value: StringStartsWith(SUBJECT, value), texts),
    st.builds(lambda values: In(SUBJECT, tuple(values)), st.lists(texts, max_size=3)),
    st.builds(lambda value: EqualTo(STREAM, value), st.sampled_from("AB")),
)


@settings(max_examples=300)
@given(
    st.lists(filters_of | filters_of.map(Not), max_size=4),
    st.lists(patterns, max_size=1).map(tuple),
    st.fixed_dictionaries(
        {"seq": st.integers(1, 9), "ts": times, "subject": subjects, "stream": st.sampled_from("AB")}
    ),
)
def test_nothing_that_matches_is_left_out(
    filters: list[Any], option: tuple[str, ...], row: dict[str, Any]
) -> None:
    """A row for which all filters hold, and which the option admits, is read."""
    if not all(holds(each, row) for each in filters):
        return
    if option and not any(subject_matches(pattern, row["subject"]) for pattern in option):
        return
    left = narrowing_of(filters, option)
    micros = (row["ts"] - EPOCH) // timedelta(microseconds=1)
    assert left.includes(row["stream"])
    assert any(part.start <= row["seq"] < part.end for part in left.ranges(SequenceRange(1, 10)))
    assert (left.micros.first or 0) <= micros < (micros + 1 if left.micros.end is None else left.micros.end)
    assert left.subjects is None or any(subject_matches(each, row["subject"]) for each in left.subjects)


def test_sequences_far_apart_are_parts_of_their_own() -> None:
    """Reading up to a partition's worth between two sequences is cheaper than another task."""
    far = 10 * MIN_PER_PARTITION
    left = narrowing_of([In(SEQ, (far, 3, 5, 10**9)), GreaterThan(SEQ, 3)])
    assert left.ranges(SequenceRange(1, 10**6)) == [SequenceRange(5, 6), SequenceRange(far, far + 1)]
    assert narrowing_of([GreaterThan(SEQ, 10)]).ranges(SequenceRange(1, 5)) == []
    assert narrowing_of([In(SEQ, (10,))]).ranges(SequenceRange(1, 5)) == []
