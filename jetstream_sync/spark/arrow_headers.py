"""Converts header blocks to Arrow maps, whole columns at once. Imports pyarrow.

There are three ways, and each leaves what it does not know to the next:

- Alike: all blocks have the same names in the same order, as the messages of one program have. Nothing is
  parsed: the lines at one place of all blocks are a column, and the name in front is the same in all of them.
- Usual: each block has names of its own, once each, and values in UTF-8 without line breaks.
- Any: whatever a stream may hold, block by block in Python, as leniently as the rest of the library.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.headers import Headers

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string(), nullable=True)))

_VERSION_LINE = "NATS/1.0\r\n"
_BLOCK_END = "\r\n\r\n"
_USUAL_NAME = r"\A[!-9;-~]+\z"
_NAME = re.compile("[!-9;-~]+")


def text_array(values: list[bytes]) -> pa.Array:
    """Strings from bytes. All are checked as UTF-8 at once; they are decoded one by one only if that fails."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def header_array(blocks: list[bytes | None]) -> pa.Array:
    """The headers of each message as a map, which is empty for a message without headers."""
    texts = _framed(blocks)
    if texts is not None:
        for columnwise in (alike_headers, usual_headers):
            converted = columnwise(texts)
            if converted is not None:
                return converted
    return any_headers(blocks)


def _framed(blocks: list[bytes | None]) -> pa.Array | None:
    """The blocks as text; None when one is not UTF-8, or does not begin and end as all clients write it."""
    whole = pa.array(blocks, pa.binary())
    if not (_all(pc.starts_with(whole, _VERSION_LINE)) and _all(pc.ends_with(whole, _BLOCK_END))):
        return None
    try:
        return whole.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def alike_headers(texts: pa.Array) -> pa.Array | None:
    """Convert blocks that have the same names in the same order; None when one differs or is unusual."""
    present = texts.drop_null() if texts.null_count else texts
    count = len(present)
    if not count:
        return None
    first = present[0].as_py().split("\r\n")
    names = tuple(line.partition(":")[0] for line in first[1:-2])
    if not names or len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
        return None
    lines = pc.split_pattern(present, "\r\n")
    if not _all(pc.equal(pc.list_value_length(lines), len(first))):
        return None
    flat, columns = lines.flatten(), []
    for place, name in enumerate(names, start=1):
        column = flat.take(_every(len(first), place, count))
        if not _all(pc.starts_with(column, f"{name}:")):
            return None
        columns.append(pc.binary_replace_slice(column, 0, len(name) + 1, ""))
    values = pc.ascii_trim(pa.concat_arrays(columns).take(_interleaved(len(names), count)), " \t")
    if _any_line_break(values):
        return None
    counts = pc.if_else(pc.is_valid(texts), pa.scalar(len(names), pa.int32()), pa.scalar(0, pa.int32()))
    return _map_array(_ends(counts), _repeated(names, count), _single(values))


def _every(step: int, first: int, count: int) -> pa.Array:
    """`first`, `first + step`, … : `count` numbers."""
    return _kept_numbers(step, first, _room(count)).slice(0, count)


def _repeated(names: tuple[str, ...], count: int) -> pa.Array:
    return _kept_names(names, _room(count)).slice(0, len(names) * count)


@lru_cache(maxsize=4)
def _interleaved(columns: int, rows: int) -> pa.Array:
    """Where the values of one row after the other are in columns of `rows` values, one after the other."""
    number = _every(1, 0, columns * rows)
    row = pc.divide(number, columns)
    column = pc.subtract(number, pc.multiply(row, columns))
    return pc.add(pc.multiply(column, rows), row)


def _room(count: int) -> int:
    """The next power of two: what is kept for this many serves chunks of any length up to it."""
    return 1 << max(0, count - 1).bit_length()


@lru_cache(maxsize=32)
def _kept_numbers(step: int, first: int, count: int) -> pa.Array:
    return pa.array(range(first, first + step * count, step), pa.int32())


@lru_cache(maxsize=4)
def _kept_names(names: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(names * count, pa.string())


def _single(values: pa.Array) -> pa.Array:
    """A list of one for each value."""
    return pa.ListArray.from_arrays(_every(1, 0, len(values) + 1), values)


def usual_headers(texts: pa.Array) -> pa.Array | None:
    """Convert blocks of any usual headers; None when one of them is unusual."""
    lines = pc.split_pattern(pc.utf8_slice_codeunits(texts, len(_VERSION_LINE), -len(_BLOCK_END)), "\r\n")
    pairs = pc.split_pattern(lines.flatten(), ":", max_splits=1)
    if not _all(pc.equal(pc.list_value_length(pairs), 2)):
        return None
    names, values = pc.list_element(pairs, 0), pc.ascii_trim(pc.list_element(pairs, 1), " \t")
    if not _all(pc.match_substring_regex(pc.unique(names), _USUAL_NAME)) or _any_line_break(values):
        return None
    if _repeats(pc.list_parent_indices(lines), names):
        return None
    return _map_array(_ends(pc.fill_null(pc.list_value_length(lines), 0)), names, _single(values))


def _all(conditions: pa.Array) -> bool:
    """Whether all conditions are true, ignoring those that are NULL."""
    return bool(pc.all(conditions, min_count=0).as_py())


def _any_line_break(values: pa.Array) -> bool:
    """Whether a value contains a CR or an LF alone, as some clients have written them."""
    text = values.buffers()[2]
    return text is not None and any(sign in text.to_pybytes() for sign in (b"\r", b"\n"))


def _repeats(rows: pa.Array, names: pa.Array) -> bool:
    """Whether a message has several values for one name."""
    encoded = names.dictionary_encode()
    width = max(1, len(encoded.dictionary))
    keys = pc.add(pc.multiply(rows.cast(pa.int64()), width), encoded.indices.cast(pa.int64()))
    return int(pc.count_distinct(keys).as_py()) != len(keys)


def any_headers(blocks: list[bytes | None]) -> pa.Array:
    """Convert any header blocks, message by message."""
    names: list[bytes] = []
    values: list[bytes] = []
    per_message: list[int] = []
    per_name: list[int] = []
    for block in blocks:
        found = {} if block is None else _headers_of(block)
        per_message.append(len(found))
        names += found
        for texts in found.values():
            per_name.append(len(texts))
            values += texts
    lists = pa.ListArray.from_arrays(_ends(pa.array(per_name, pa.int32())), text_array(values))
    return _map_array(_ends(pa.array(per_message, pa.int32())), text_array(names), lists)


def _map_array(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(ends, names, values).cast(HEADERS_TYPE)


def _ends(lengths: pa.Array) -> pa.Array:
    """Arrow offsets of consecutive items: where each begins, and where the last one ends."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _headers_of(block: bytes) -> dict[bytes, list[bytes]]:
    """The headers of any block, read as leniently as by the rest of the library."""
    headers = Headers.from_wire(block)
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers.multi_items():
        found.setdefault(_bytes(name), []).append(_bytes(value))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
