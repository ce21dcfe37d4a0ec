"""The parser with one frame or one error at a time: whole, byte by byte, and followed by more bytes."""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from jetstream_sync.errors import ProtocolError
from jetstream_sync.protocol.headers import Headers, header_value, status_of
from jetstream_sync.protocol.parser import (
    MAX_CONTROL_LINE,
    MAX_INFO_LINE,
    MAX_PAYLOAD,
    OK,
    PING,
    PONG,
    Err,
    Event,
    Info,
    Parser,
    Run,
    Signal,
)

Feeding = Callable[[Parser, bytes], list[Event]]
STATUSES = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data" / "statuses.jsonl").read_text().splitlines()
]


def feed_whole(parser: Parser, data: bytes) -> list[Event]:
    return parser.feed(data)


def feed_bytewise(parser: Parser, data: bytes) -> list[Event]:
    """A byte at a time; in the middle of what is very long, 97."""
    cuts = [
        *range(min(len(data), 300)),
        *range(300, len(data) - 300, 97),
        *range(max(300, len(data) - 300), len(data)),
    ]
    return feed_pieces(parser, (data[a:b] for a, b in itertools.pairwise([*cuts, len(data)])))


def feed_pieces(parser: Parser, pieces: Iterable[bytes]) -> list[Event]:
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
        if parser.error:
            break
    return events


def feed_after_small_messages(parser: Parser, data: bytes) -> list[Event]:
    """Bring the parser to splitting first, then feed enough at once that it does split."""
    warm_up = b"MSG warm 77 _R_.1 2\r\nup\r\n" * 100
    assert count(parser.feed(warm_up)) == 100
    events = parser.feed(warm_up + data)
    first = events[0]
    assert isinstance(first, Run)
    assert first.messages[:100] == [(b"warm", b"_R_.1", None, b"up")] * 100
    rest = first.messages[100:]
    if rest:
        return [Run(first.sid, rest, first.size - 200), *events[1:]]
    return events[1:]


def count(events: list[Event]) -> int:
    return sum(len(event.messages) for event in events if isinstance(event, Run))


def flat(events: list[Event]) -> list[Any]:
    """Events without the borders of runs, in comparable form."""
    result: list[Any] = []
    for event in events:
        if isinstance(event, Run):
            assert event.messages
            assert event.size == sum(len(m[2] or b"") + len(m[3]) for m in event.messages)
            result += [(event.sid, *message) for message in event.messages]
        elif isinstance(event, Info):
            result.append(event.fields)
        elif isinstance(event, Err):
            result.append(event.text)
        else:
            assert isinstance(event, Signal)
            result.append(event)
    return result


every_feeding = pytest.mark.parametrize("feed", [feed_whole, feed_bytewise, feed_after_small_messages])

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
FRAMES: dict[str, tuple[bytes, Any]] = {
    "ping": (b"PING\r\n", PING),
    "pong": (b"PONG\r\n", PONG),
    "ok": (b"+OK\r\n", OK),
    "ping with blanks": (b" PING \t\r\n", PING),
    "lower case": (b"ping\r\n", PING),
    "mixed case ok": (b"+Ok\r\n", OK),
    "error": (b"-ERR 'Stale Connection'\r\n", "Stale Connection"),
    "error without quotes": (b"-err Stale Connection \r\n", "Stale Connection"),
    "error with quotes inside": (b"-ERR 'it's \"x\"'\r\n", 'it\'s "x"'),
    "error without text": (b"-ERR\r\n", ""),
    "error with one quote": (b"-ERR '\r\n", "'"),
    "error not UTF-8": (b"-ERR 'a\xffb'\r\n", "a\ufffdb"),
    "info": (b'INFO {"server_id":"X","n":1}\r\n', {"server_id": "X", "n": 1}),
    "info with blanks": (b' info\t  {"a": {"b": [1, 2]}} \r\n', {"a": {"b": [1, 2]}}),
    "info without blank": (b"INFO {}\r\n", {}),
    "message": (b"MSG a.b 1 5\r\nhello\r\n", (b"1", b"a.b", None, None, b"hello")),
    "message with reply": (b"MSG a.b 12 r.s 5\r\nhello\r\n", (b"12", b"a.b", b"r.s", None, b"hello")),
    "empty payload": (b"MSG a 1 0\r\n\r\n", (b"1", b"a", None, None, b"")),
    "payload of CRLF": (b"MSG a 1 4\r\n\r\n\r\n\r\n", (b"1", b"a", None, None, b"\r\n\r\n")),
    "payload ends in CR": (b"MSG a 1 r 2\r\nx\r\r\n", (b"1", b"a", b"r", None, b"x\r")),
    "payload like a frame": (
        b"MSG a 1 r 18\r\nMSG a 1 2\r\nhi\r\nx\r\n\r\n",
        (b"1", b"a", b"r", None, b"MSG a 1 2\r\nhi\r\nx\r\n"),
    ),
    "lower case message": (b"msg a 1 2\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "tabs and blanks": (b"MSG\ta \t 1  r\t 2 \r\nhi\r\n", (b"1", b"a", b"r", None, b"hi")),
    "two blanks for a reply": (b"MSG a 1  2\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "two blanks before the subject": (b"MSG  a 1 2\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "two blanks before the sid": (b"MSG a  1 2\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "blank at the end": (b"MSG a 1 2 \r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "blank in front": (b" MSG a 1 2\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "tab for a blank": (b"MSG a 1 r\t2\r\nhi\r\n", (b"1", b"a", b"r", None, b"hi")),
    "VT and FF in a subject": (b"MSG a\x0bb\x0c 1 2\r\nhi\r\n", (b"1", b"a\x0bb\x0c", None, None, b"hi")),
    "CR in a subject": (b"MSG a\rb 1 r 2\r\nhi\r\n", (b"1", b"a\rb", b"r", None, b"hi")),
    "NUL and non-UTF-8 subject": (b"MSG a\x00\xff 1 2\r\nhi\r\n", (b"1", b"a\x00\xff", None, None, b"hi")),
    "binary payload": (b"MSG a 1 4\r\n\x00\xff\t\n\r\n", (b"1", b"a", None, None, b"\x00\xff\t\n")),
    "leading zeros": (b"MSG a 1 0002\r\nhi\r\n", (b"1", b"a", None, None, b"hi")),
    "headers": (b"HMSG a 1 18 20\r\n" + HEADER + b"hi\r\n", (b"1", b"a", None, HEADER, b"hi")),
    "headers with reply": (b"HMSG a 1 r 18 20\r\n" + HEADER + b"hi\r\n", (b"1", b"a", b"r", HEADER, b"hi")),
    "headers alone": (b"HMSG a 1 18 18\r\n" + HEADER + b"\r\n", (b"1", b"a", None, HEADER, b"")),
    "headers of no bytes": (b"HMSG a 1 0 2\r\nhi\r\n", (b"1", b"a", None, b"", b"hi")),
    "headers with tabs": (b"hmsg\ta\t1\t18\t20\r\n" + HEADER + b"hi\r\n", (b"1", b"a", None, HEADER, b"hi")),
    "longest line": (
        b"MSG " + b"s" * (MAX_CONTROL_LINE - 9) + b" 1 0\r\n\r\n",
        (b"1", b"s" * (MAX_CONTROL_LINE - 9), None, None, b""),
    ),
}
every_frame = pytest.mark.parametrize(("wire", "expected"), FRAMES.values(), ids=FRAMES.keys())


@every_feeding
@every_frame
def test_frame_is_read(wire: bytes, expected: Any, feed: Feeding) -> None:
    """A frame is read the same, however it arrives, and leaves nothing behind."""
    parser = Parser()
    assert flat(feed(parser, wire)) == [expected]
    assert parser.error is None
    assert parser.buffered == 0


@every_feeding
@every_frame
def test_frame_is_read_twice(wire: bytes, expected: Any, feed: Feeding) -> None:
    """The second of two equal frames, whose sizes are known by then, is read as the first."""
    assert flat(feed(Parser(), wire * 2)) == [expected, expected]


@pytest.mark.parametrize("behind", [b"P", b"PING", b"MSG a 1 5\r\nhel", b"MSG a 1 0\r\n\r", b"INFO {"])
@every_feeding
@every_frame
def test_bytes_behind_a_frame_are_kept(wire: bytes, expected: Any, feed: Feeding, behind: bytes) -> None:
    """The start of the next frame is no event and is counted as buffered."""
    parser = Parser()
    assert flat(feed(parser, wire + behind)) == [expected]
    assert parser.buffered == len(behind)


@every_feeding
def test_incomplete_frame_is_no_event(feed: Feeding) -> None:
    """An incomplete frame produces neither an event nor an error."""
    for wire, _ in FRAMES.values():
        for end in range(min(len(wire), 60)):
            parser = Parser()
            assert feed(parser, wire[:end]) == []
            assert parser.error is None
            assert parser.buffered == end


@pytest.mark.parametrize("status", STATUSES, ids=lambda s: f"{s['code']} {s['description']}")
@every_feeding
def test_statuses_of_real_servers_are_read(status: dict[str, Any], feed: Feeding) -> None:
    """Every status and error that real servers sent is read with its code, text and headers."""
    parser = Parser()
    [event] = feed(parser, status["example"].encode())
    assert parser.buffered == 0
    if status["code"] == "-ERR":
        assert isinstance(event, Err)
        assert f"-ERR '{event.text}'\r\n" == status["example"]
        return
    assert isinstance(event, Run)
    [(_, _, block, payload)] = event.messages
    assert block is not None
    assert payload == b""
    got = status_of(block)
    assert got is not None
    assert str(got.code) == status["code"]
    assert f"NATS/1.0 {got.code} {got.description}".rstrip() == block.split(b"\r\n")[0].decode()
    assert list(Headers.from_wire(block)) == status["headers"]
    for name in status["headers"]:
        value = header_value(block, name.lower().encode())
        assert value is not None
        assert value.decode() == Headers.from_wire(block)[name]


# --- runs ---------------------------------------------------------------------------------------


def test_messages_of_one_subscription_are_one_run() -> None:
    """Consecutive messages with the same sid come as one run; another sid or event starts the next."""
    wire = b"MSG a 1 1\r\nx\r\nMSG b 1 r 2\r\nyz\r\nMSG a 2 0\r\n\r\nPING\r\nMSG a 2 0\r\n\r\n"
    first, second, ping, third = Parser().feed(wire)
    assert isinstance(first, Run)
    assert (first.sid, first.size, len(first.messages)) == (b"1", 3, 2)
    assert isinstance(second, Run)
    assert (second.sid, second.size, len(second.messages)) == (b"2", 0, 1)
    assert ping is PING
    assert isinstance(third, Run)
    assert third.sid == b"2"


def test_run_goes_on_over_a_message_completed_from_the_buffer() -> None:
    """A message that came in two pieces and those behind it make one run."""
    wire = b"MSG a 1 r 3\r\nabc\r\n" * 500
    parser = Parser()
    parser.feed(wire)
    assert parser.feed(wire[:5]) == []
    [run] = parser.feed(wire[5:])
    assert isinstance(run, Run)
    assert len(run.messages) == 500
    assert run.size == 1500


@pytest.mark.parametrize("payload", [b"x" * 10, b"a\r\nb", b"tab\t", b"lf\n", b"", b"x" * 5000])
@pytest.mark.parametrize("chunk", [700, 4096, 100_000])
def test_long_streams_are_read_in_any_mixture(payload: bytes, chunk: int) -> None:
    """Subscriptions, headers, replies and other lines in turn, in many frames, keep their order."""
    wire, expected = b"", []
    for n in range(600):
        sid = b"%d" % (n // 3 % 5)
        body = payload + b"%d" % n
        if n % 50 == 49:
            wire += b"PING\r\n"
            expected.append(PING)
        if n % 40 > 36:
            wire += b"HMSG s %b 18 %d\r\n%b%b\r\n" % (sid, len(body) + 18, HEADER, body)
            expected.append((sid, b"s", None, HEADER, body))
        else:
            wire += b"MSG s %b r.%d %d\r\n%b\r\n" % (sid, n, len(body), body)
            expected.append((sid, b"s", b"r.%d" % n, None, body))
    events = feed_pieces(Parser(), (wire[i : i + chunk] for i in range(0, len(wire), chunk)))
    assert flat(events) == expected


# --- faults -------------------------------------------------------------------------------------

FAULTS: dict[str, bytes] = {
    "size 99999999999": b"MSG a 1 99999999999\r\n",
    "negative size": b"MSG a 1 -1\r\n",
    "signed size": b"MSG a 1 +1\r\nx\r\n",
    "hexadecimal size": b"MSG a 1 0x10\r\n",
    "size in exponents": b"MSG a 1 1e3\r\n",
    "size with underscore": b"MSG a 1 1_0\r\n",
    "size of 30 digits": b"MSG a 1 " + b"1" * 30 + b"\r\n",
    "size of 30 zeros": b"MSG a 1 " + b"0" * 30 + b"\r\n\r\n",
    "size with VT": b"MSG a 1 2\x0b\r\nhi\r\n",
    "size with CR": b"MSG a 1 2\r\r\nhi\r\n",
    "size in other digits": "MSG a 1 ٢\r\nhi\r\n".encode(),
    "size one above the limit": b"MSG a 1 %d\r\n" % (MAX_PAYLOAD + 1),
    "header size with CR": b"HMSG a 1 2\r 4\r\nhihi\r\n",
    "header longer than total": b"HMSG a 1 20 18\r\n" + HEADER + b"\r\n",
    "negative header size": b"HMSG a 1 -1 18\r\n",
    "message without size": b"MSG a 1\r\n",
    "message of too many fields": b"MSG a 1 r s 2\r\nhi\r\n",
    "message of a tab too many": b"MSG a 1 r\ts 2\r\nhi\r\n",
    "message alone": b"MSG\r\n",
    "header message of a message's fields": b"HMSG a 1 2\r\nhi\r\n",
    "header message of too many fields": b"HMSG a 1 r s 0 2\r\nhi\r\n",
    "no CRLF behind the payload": b"MSG a 1 2\r\nhiPING\r\n",
    "LF behind the payload": b"MSG a 1 2\r\nhi\nPING\r\n",
    "payload longer than said": b"MSG a 1 r 2\r\nhix\r\n",
    "line ends in LF": b"PING\n",
    "message line ends in LF": b"MSG a 1 2\nhi\r\n",
    "LF in a subject": b"MSG a\nb 1 2\r\nhi\r\n",
    "LF in a reply": b"MSG a 1 r\ns 2\r\nhi\r\n",
    "unknown verb": b"HELLO\r\n",
    "verb of another protocol": b"HTTP/1.1 400 Bad Request\r\n",
    "client's verb": b"PUB a 2\r\nhi\r\n",
    "longer verb": b"PINGS\r\n",
    "ping with more": b"PING 1\r\n",
    "ok with more": b"+OK yes\r\n",
    "error glued": b"-ERROR\r\n",
    "empty line": b"\r\n",
    "blank line": b" \t \r\n",
    "line of NULs": b"\0\0\0\0\r\n",
    "message line too long": b"MSG " + b"s" * (MAX_CONTROL_LINE - 8) + b" 1 0\r\n\r\n",
    "line of 1 MB": b"MSG a 1 " + b"x" * 1_000_000 + b"\r\n",
    "line of 1 MB without end": b"-ERR '" + b"x" * 1_000_000,
    "info without object": b"INFO\r\n",
    "info list": b"INFO []\r\n",
    "info number": b"INFO 1\r\n",
    "info null": b"INFO null\r\n",
    "info cut": b'INFO {"a":\r\n',
    "info not UTF-8": b'INFO {"a":"\xff"}\r\n',
    "info in UTF-16": b"INFO " + '{"a":1}'.encode("utf-16") + b"\r\n",
    "info nested deeply": b'INFO {"a":' + b"[" * 100_000 + b"\r\n",
    "info with more": b"INFO {} {}\r\n",
    "info of 10 MB": b'INFO {"a":"' + b"x" * 10_000_000 + b'"}\r\n',
    "info one byte too long": b'INFO {"a":"' + b"x" * (MAX_INFO_LINE - 13) + b'"}\r\n',
}
every_fault = pytest.mark.parametrize("wire", FAULTS.values(), ids=FAULTS.keys())


def feed_in_kilobytes(parser: Parser, data: bytes) -> list[Event]:
    return feed_pieces(parser, (data[i : i + 1000] for i in range(0, len(data), 1000)))


@pytest.mark.parametrize("feed", [feed_whole, feed_in_kilobytes, feed_after_small_messages])
@every_fault
def test_fault_breaks_the_parser(wire: bytes, feed: Feeding) -> None:
    """Malformed input makes no event, sets a short error, and every later feed raises it."""
    parser = Parser()
    assert feed(parser, wire) == []
    assert isinstance(parser.error, ProtocolError)
    assert len(str(parser.error)) < 64 * 4 + 100
    assert parser.buffered == 0
    with pytest.raises(ProtocolError) as raised:
        parser.feed(b"PING\r\n")
    assert raised.value is parser.error


@pytest.mark.parametrize("name", [name for name, wire in FAULTS.items() if len(wire) < 1000])
def test_fault_is_found_byte_by_byte(name: str) -> None:
    """Malformed input is found when it arrives a byte at a time, too."""
    parser = Parser()
    assert feed_bytewise(parser, FAULTS[name]) == []
    assert parser.error is not None


@every_fault
def test_events_before_a_fault_are_returned(wire: bytes) -> None:
    """What came before malformed input in the same feed is not lost."""
    good = b"PING\r\nMSG a 1 2\r\nhi\r\nMSG b 1 r 2\r\nyo\r\n"
    parser = Parser()
    events = parser.feed(good + wire)
    assert flat(events) == [PING, (b"1", b"a", None, None, b"hi"), (b"1", b"b", b"r", None, b"yo")]
    assert parser.error is not None


@pytest.mark.parametrize("line", ["size with CR", "message of a tab too many", "LF in a reply", "line ends in LF"])
def test_fault_is_found_among_small_messages(line: str) -> None:
    """The loop for small messages is as strict when sizes and subscription are known already."""
    good = b"MSG a 1 r 2\r\nhi\r\n" * 100
    parser = Parser()
    parser.feed(good)
    assert count(parser.feed(good + FAULTS[line] + good)) == 100
    assert parser.error is not None


def test_info_of_the_longest_size_is_read() -> None:
    """INFO may be much longer than other control lines."""
    text = b'INFO {"a":"' + b"x" * (MAX_INFO_LINE - 14) + b'"}\r\n'
    [info] = Parser().feed(text)
    assert isinstance(info, Info)
    assert len(info.fields["a"]) == MAX_INFO_LINE - 14


def test_max_payload_set_later_is_enforced() -> None:
    """Lowering the limit refuses sizes that were accepted (and remembered) before."""
    parser = Parser()
    wire = b"MSG a 1 r 5\r\nhello\r\n" * 100
    assert count(parser.feed(wire)) == 100
    parser.max_payload = 4
    assert parser.feed(wire) == []
    assert "limit is 4" in str(parser.error)


# --- growth -------------------------------------------------------------------------------------


def test_large_payload_in_small_pieces_is_linear() -> None:
    """8 MiB in pieces of 4 KiB cost little more than their bytes, and arrive whole."""
    payload = bytes(range(256)) * 32768
    wire = b"MSG a 1 r %d\r\n%b\r\n" % (len(payload), payload)
    pieces = [wire[i : i + 4096] for i in range(0, len(wire), 4096)]
    started = time.process_time()
    [run] = feed_pieces(Parser(), pieces)
    assert time.process_time() - started < 1.0
    assert isinstance(run, Run)
    assert run.messages[0][3] == payload


def test_large_info_byte_by_byte_is_linear() -> None:
    """A long control line costs the same per byte however small the pieces are."""
    wire = b'INFO {"a":"' + b"x" * 100_000 + b'"}\r\n'
    started = time.process_time()
    assert len(feed_pieces(Parser(), (wire[i : i + 1] for i in range(len(wire))))) == 1
    assert time.process_time() - started < 3.0


def test_declared_size_allocates_nothing() -> None:
    """The parser holds what has arrived, and allocates nothing for a declared size."""
    parsers = [Parser() for _ in range(10)]
    tracemalloc.start()
    try:
        for parser in parsers:
            parser.feed(b"MSG a 1 60000000\r\nabc")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_remembered_sizes_are_bounded() -> None:
    """A stream with endless different size texts does not grow the parser."""
    parser = Parser()
    wire = b"".join(b"MSG a 1 %0*d\r\n\r\n" % (n % 9 + 1, 0) for n in range(50))
    wire += b"".join(b"MSG a 1 %d\r\n%b\r\n" % (n, b"x" * n) for n in range(6000))
    assert count(parser.feed(wire)) == 6050
    assert len(parser._sizes) <= 4096
    assert len(parser._sizes_with_cr) <= 4096
