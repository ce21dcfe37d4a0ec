"""Headers: the mapping, the lenient reader, the strict writer, and the status line."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.errors import BadHeaderError
from jetstream_sync.protocol.headers import Headers, Status, encode_headers, header_value, status_of

# --- the mapping --------------------------------------------------------------------------------


def test_lookup_ignores_case_and_keeps_the_original() -> None:
    """Names are found in any case and listed in their own."""
    headers = Headers({"Content-Type": "json"})
    assert headers["content-type"] == headers["CONTENT-TYPE"] == headers.get("Content-type") == "json"
    assert "CONTENT-type" in headers
    assert list(headers) == ["Content-Type"]
    assert list(headers.items()) == [("Content-Type", "json")]


def test_missing_name_is_a_key_error_or_the_default() -> None:
    """A missing name behaves as in a dict; get_all gives an empty list."""
    headers = Headers()
    with pytest.raises(KeyError):
        headers["x"]
    with pytest.raises(KeyError):
        del headers["x"]
    assert headers.get("x") is None
    assert headers.get("x", "y") == "y"
    assert headers.get_all("x") == []
    assert 1 not in headers
    assert not headers


def test_several_values_per_name() -> None:
    """add keeps all values, look-up gives the first, assignment replaces all, deletion removes all."""
    headers = Headers()
    headers.add("A", "1")
    headers.add("B", "x")
    headers.add("a", "2")
    assert headers["A"] == "1"
    assert headers.get_all("A") == ["1", "2"]
    assert list(headers.multi_items()) == [("A", "1"), ("a", "2"), ("B", "x")]
    assert len(headers) == 2
    headers["a"] = "3"
    assert headers.get_all("A") == ["3"]
    assert list(headers) == ["a", "B"]
    del headers["A"]
    assert dict(headers) == {"B": "x"}


@pytest.mark.parametrize(
    "source",
    [
        {"A": ["1", "2"], "B": "x"},
        {"A": ("1", "2"), "B": ["x"]},
        [("A", "1"), ("A", "2"), ("B", "x")],
        iter([("A", "1"), ("A", "2"), ("B", "x")]),
        Headers([("A", "1"), ("A", "2"), ("B", "x")]),
    ],
    ids=["lists", "tuples", "pairs", "iterator", "headers"],
)
def test_headers_are_made_of_mappings_and_pairs(source: Any) -> None:
    """Mappings of str or lists of str, pairs, and other Headers are accepted."""
    headers = Headers(source)
    assert list(headers.multi_items()) == [("A", "1"), ("A", "2"), ("B", "x")]


@pytest.mark.parametrize("source", [{"A": 1}, {1: "A"}, {"A": None}, {"A": b"x"}, {"A": ["x", 1]}, [("A", 2.0)]])
def test_other_types_are_refused(source: Any) -> None:
    """Names and values are str; anything else is a TypeError, here and when encoding."""
    with pytest.raises(TypeError):
        Headers(source)
    with pytest.raises(TypeError):
        encode_headers(source)


def test_assignment_of_another_type_is_refused() -> None:
    """Assigning or adding what is no str is a TypeError that does not show the value."""
    headers = Headers()
    with pytest.raises(TypeError, match="'A' must be str, not int"):
        headers["A"] = 12345  # type: ignore[assignment]
    with pytest.raises(TypeError):
        headers.add(b"A", "x")  # type: ignore[arg-type]


def test_equality_with_mappings() -> None:
    """Equal are the same names, in any case, with the same values."""
    headers = Headers({"A": ["1", "2"], "B": "x"})
    assert headers == {"a": ["1", "2"], "b": "x"}
    assert headers == Headers([("B", "x"), ("A", "1"), ("a", "2")])
    assert headers != {"a": "1", "b": "x"}
    assert headers != {"a": 1}
    assert headers != [("A", "1")]
    with pytest.raises(TypeError):
        hash(headers)


def test_copies_are_independent() -> None:
    """A copy, shallow or pickled, is equal and can be changed alone."""
    headers = Headers.from_wire(b"NATS/1.0\r\nA: 1\r\n\r\n")
    for other in (
        headers.copy(),
        copy.copy(headers),
        copy.deepcopy(headers),
        pickle.loads(pickle.dumps(headers)),
    ):
        assert other == headers
        assert other.raw == headers.raw
        other.add("A", "2")
        assert headers.get_all("A") == ["1"]


def test_repr_builds_an_equal_object() -> None:
    """The repr is the expression that makes the headers."""
    headers = Headers({"A": ["1", "2"]})
    assert eval(repr(headers)) == headers


# --- writing ------------------------------------------------------------------------------------


def test_encoding_writes_every_pair() -> None:
    """The block has the version line, one line per value and a blank line."""
    block = encode_headers({"A": ["1", "2"], "B": "ü"})
    assert block == b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: \xc3\xbc\r\n\r\n"


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", ":", "a\r", "a\nb", "a\tb", "a\0", "ü", "a\x7f", "\udc80"])
def test_bad_names_are_refused(name: str) -> None:
    """A name that is empty or has blanks, colons, control or other than ASCII characters is refused."""
    with pytest.raises(BadHeaderError) as raised:
        encode_headers({name: "x"})
    assert repr(name) in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    "value",
    ["secret\r", "secret\n", "secret\r\n", "secret\r\nX: y", "\nsecret", "sec\0ret", "secret\ud800"],
)
def test_bad_values_are_refused_without_being_shown(value: str) -> None:
    """A value that would not arrive as given is refused; the error names the header only."""
    with pytest.raises(BadHeaderError) as raised:
        encode_headers({"Fine": "ok", "Authorization": value})
    assert "'Authorization'" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("value", [" a b", "a b ", "\ta b\t", "  a b \t "])
def test_blanks_at_the_ends_of_a_value_are_not_part_of_it(value: str) -> None:
    """ADR-4: they are stripped, as receivers do; blanks inside stay."""
    assert encode_headers({"A": value}) == b"NATS/1.0\r\nA: a b\r\n\r\n"
    assert encode_headers({"A": " \t"}) == b"NATS/1.0\r\nA: \r\n\r\n"


names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=10
)
values = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20).map(
    lambda value: value.strip(" \t")
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(names, values), max_size=6))
def test_written_headers_are_read_back(pairs: list[tuple[str, str]]) -> None:
    """Whatever can be written is read back as it was."""
    assert Headers.from_wire(encode_headers(pairs)) == Headers(pairs)


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", [("A", "1"), ("A", "2")]),
        (b"NATS/1.0\r\nA:1\r\nB:   2 \r\nC:\r\n\r\n", [("A", "1"), ("B", "2"), ("C", "")]),
        (b"NATS/1.0\r\nA: http://x:1/\r\n\r\n", [("A", "http://x:1/")]),
        (b"A: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/9.9\r\nA: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/1.0 404 No Messages\r\nA: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/1.0\r\nno colon\r\nA: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/1.0\r\n: no name\r\nA: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", [("\udcff", "\udcfe")]),
        (b"NATS/1.0\r\nA\0: b\0c\r\n\r\n", [("A\0", "b\0c")]),
        (b"NATS/1.0\r\nA: 1\r\n  and 2\r\n\t3\r\nB: x\r\n\r\n", [("A", "1 and 2 3"), ("B", "x")]),
        (b"NATS/1.0\r\n folded: nothing\r\nA: 1\r\n\r\n", [("A", "1")]),
        (b"NATS/1.0\nA: 1\n\n", [("A", "1")]),
        (b"NATS/1.0\r\nA: 1", [("A", "1")]),
        (b"NATS/1.0\r\n\r\n", []),
        (b"", []),
        (b"\r\n", []),
    ],
)
def test_reading_keeps_what_is_readable(block: bytes, expected: list[tuple[str, str]]) -> None:
    """Odd blocks give the pairs that are in them, and the block itself."""
    headers = Headers.from_wire(block)
    assert list(headers.multi_items()) == expected
    assert headers.raw == block


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([b"A", b":", b" ", b"\r\n", b"\xff", b"NATS/"])).map(b"".join)
)
def test_reading_never_raises(block: bytes) -> None:
    """Any bytes can be read, looked up, and asked for a status."""
    headers = Headers.from_wire(block)
    assert dict(headers).keys() == set(headers)
    status_of(block)
    header_value(block, b"A")


def test_reading_large_blocks_is_linear() -> None:
    """60 KB of headers with ten thousand names, or of folded lines, are read and listed at once."""
    many = b"NATS/1.0\r\n" + b"".join(b"%d:x\r\n" % n for n in range(10_000)) + b"\r\n"
    folded = b"NATS/1.0\r\nA: x\r\n" + b" y\r\n" * 15_000 + b"\r\n"
    started = time.process_time()
    assert len(dict(Headers.from_wire(many))) == 10_000
    assert len(Headers.from_wire(folded)["A"]) == 30_001
    assert time.process_time() - started < 1.0


# --- status and single look-ups -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"NATS/1.0 404 No Messages\r\n\r\n", Status(404, "No Messages")),
        (b"NATS/1.0 503\r\n\r\n", Status(503, "")),
        (b"NATS/1.0 503 \r\n\r\n", Status(503, "")),
        (b"NATS/1.0   100   Idle Heartbeat  \r\nA: b\r\n\r\n", Status(100, "Idle Heartbeat")),
        (b"NATS/1.0 409 \xff\r\n\r\n", Status(409, "\ufffd")),
        (b"NATS/1.0 404", Status(404, "")),
        (b"NATS/1.0\r\nStatus: 409\r\n\r\n", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0 \r\n\r\n", None),
        (b"NATS/1.0 4040\r\n\r\n", None),
        (b"NATS/1.0 40\r\n\r\n", None),
        (b"NATS/1.0 40x No\r\n\r\n", None),
        (b"NATS/1.0 404x\r\n\r\n", None),
        (b"NATS/1.0404\r\n\r\n", None),
        (b"NATS/9.9 404 No Messages\r\n\r\n", None),
        (b"NATS/1.0\r\n404\r\n\r\n", None),
        (b"A: b\r\n\r\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_status_stands_on_the_version_line(block: bytes | None, expected: Status | None) -> None:
    """Three digits behind the version are a status; a header named Status, or anything else, is none."""
    assert status_of(block) == expected


def test_header_value_finds_one_header() -> None:
    """A single value is found in any case, at the start of a line only, without its blanks."""
    block = b"NATS/1.0 408 X\r\nB: A: no\r\nNats-Pending-Messages:  12 \r\nA: 1\r\nA: 2\r\n\r\n"
    assert header_value(block, b"nats-pending-messages") == b"12"
    assert header_value(block, b"NATS-PENDING-MESSAGES") == b"12"
    assert header_value(block, b"A") == b"1"
    assert header_value(block, b"Pending-Messages") is None
    assert header_value(b"NATS/1.0\r\nA: x", b"A") == b"x"
    assert header_value(b"", b"A") is None
