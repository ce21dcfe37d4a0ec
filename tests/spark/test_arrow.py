"""Header blocks into Arrow maps: the fast way gives what reading each block gives."""

from __future__ import annotations

import pytest

from jetstream_sync.protocol.headers import Headers
from jetstream_sync.spark.arrow import HEADERS_TYPE, _usual_headers, header_array


def block(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


def read_each(blocks: list[bytes | None]) -> list[list[tuple[str, list[str]]]]:
    """Block by block, as the library reads them."""
    found = []
    for each in blocks:
        headers = Headers.from_wire(each or b"NATS/1.0\r\n\r\n")
        pairs: dict[str, list[str]] = {}
        for name, value in headers.multi_items():
            pairs.setdefault(name, []).append(value)
        found.append(list(pairs.items()))
    return found


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [None, None],
        [block("A: 1", "B: 2")],
        [block("A: 1"), None, block("B:2", "C:\t x \t", "D:", "E: a:b: c", "F: ü")],
        [block("Nats-Msg-Id: x"), block("a: 1", "A: 2")],
    ],
)
def test_usual_blocks_are_read_at_once(blocks: list[bytes | None]) -> None:
    """What clients write takes the fast way, and comes out the same."""
    assert _usual_headers(blocks) is not None
    array = header_array(blocks)
    assert array.type == HEADERS_TYPE
    assert array.to_pylist() == read_each(blocks)


@pytest.mark.parametrize(
    "unusual",
    [
        block("A: 1", "A: 2"),
        block("no colon"),
        block(": no name"),
        block("A: 1", " folded"),
        block("A: 1", " folded: with colon"),
        block("A : 1"),
        block("A: x\ny"),
        block("A: x\ry"),
        block("Ä: 1"),
        block(),
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/1.0\r\nA: 1\nB: 2\r\n\r\n",
        b"",
    ],
)
def test_unusual_blocks_are_read_one_by_one(unusual: bytes) -> None:
    """Whatever a stream holds is read as leniently as the library does, its neighbours included."""
    blocks = [block("A: 1"), None, unusual, block("B: 2")]
    assert _usual_headers(blocks) is None
    assert header_array(blocks).to_pylist() == read_each(blocks)


def test_other_than_utf8_is_replaced() -> None:
    """Bytes that are not UTF-8 are no reason to fail."""
    blocks: list[bytes | None] = [b"NATS/1.0\r\nA: \xff\r\n\r\n", block("B: 2")]
    assert header_array(blocks).to_pylist() == [[("A", ["\ufffd"])], [("B", ["2"])]]
