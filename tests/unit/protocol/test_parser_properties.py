"""The parser against a slow, obvious one: random streams cut at random places."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.protocol.parser import OK, PING, PONG, Err, Info, Parser, Run, single_message

SIGNALS = {b"PING": PING, b"PONG": PONG, b"+OK": OK}


class Malformed(Exception):
    """The reference parser met something that is not the protocol."""


def reference(stream: bytes) -> tuple[list[Any], bool]:
    """The flat events of a whole stream, and whether it is malformed behind them."""
    result: list[Any] = []
    try:
        while (match := re.match(rb"([^\n]*)\n", stream)) is not None:
            event, stream = reference_frame(match[1], stream[match.end() :])
            if event is None:
                break
            result.append(event)
    except Malformed:
        return result, True
    return result, False


def reference_frame(line: bytes, rest: bytes) -> tuple[Any, bytes]:
    if not line.endswith(b"\r"):
        raise Malformed
    text = line[:-1].strip(b" \t")
    fields = re.split(rb"[ \t]+", text)
    verb = fields[0].upper()
    if verb in SIGNALS and len(fields) == 1:
        return SIGNALS[verb], rest
    if verb == b"-ERR":
        return text[4:].strip(b" \t").decode(errors="replace").removeprefix("'").removesuffix("'"), rest
    if verb == b"INFO":
        return reference_info(text[4:]), rest
    sizes = {b"MSG": 1, b"HMSG": 2}.get(verb)
    if sizes is None or len(fields) - sizes not in (3, 4):
        raise Malformed
    if not all(re.fullmatch(rb"[0-9]{1,10}", size) for size in fields[-sizes:]):
        raise Malformed
    total = int(fields[-1])
    split = int(fields[-2]) if sizes == 2 else 0
    if split > total:
        raise Malformed
    if len(rest) < total + 2:
        return None, rest
    if rest[total : total + 2] != b"\r\n":
        raise Malformed
    reply = fields[3] if len(fields) - sizes == 4 else None
    headers = rest[:split] if sizes == 2 else None
    return (fields[2], fields[1], reply, headers, rest[split:total]), rest[total + 2 :]


def reference_info(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text.decode())
    except ValueError:
        raise Malformed from None
    if not isinstance(fields, dict):
        raise Malformed
    return fields


def parse(pieces: list[bytes]) -> tuple[list[Any], bool]:
    parser = Parser()
    result: list[Any] = []
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, Run):
                assert event.size == sum(len(m[2] or b"") + len(m[3]) for m in event.messages)
                result += [(event.sid, *message) for message in event.messages]
            elif isinstance(event, Info):
                result.append(event.fields)
            elif isinstance(event, Err):
                result.append(event.text)
            else:
                result.append(event)
        if parser.error:
            return result, True
    return result, False


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


tokens = st.binary(min_size=1, max_size=8).map(lambda b: re.sub(rb"[ \t\r\n]", b"x", b))
sids = st.sampled_from([b"1", b"2", b"34"])
payloads = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.sampled_from([b"\r\n", b"\n", b"\r", b"\t", b"MSG a 1 2\r\nhi\r\n", b"PING\r\n", b"HMSG ", b"0"]),
        max_size=6,
    ).map(b"".join),
    st.sampled_from([b"", b"hello", b"x" * 300, b"y" * 3000]),
)
headers = st.sampled_from(
    [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 404 No Messages\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"]
)
gaps = st.sampled_from([b" ", b" ", b" ", b" ", b"  ", b"\t", b" \t "])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    payload = draw(payloads)
    fields = [b"MSG", draw(tokens), draw(sids)]
    if draw(st.booleans()):
        fields.append(draw(tokens))
    if draw(st.integers(0, 3)) == 0:
        fields[0] = b"HMSG"
        block = draw(headers)
        fields.append(b"%d" % len(block))
        payload = block + payload
    fields.append(b"%d" % len(payload))
    if draw(st.integers(0, 5)) == 0:
        fields[0] = fields[0].lower()
    gap = draw(gaps)
    return gap.join(fields) + b"\r\n" + payload + b"\r\n"


lines = st.sampled_from([b"PING\r\n", b"pong\r\n", b"+OK\r\n", b"-ERR 'x y'\r\n", b'INFO {"a":[1,"b"]}\r\n'])
# Plenty of one kind, so that the loop for small messages is reached and left.
plain = st.integers(50, 120).map(lambda n: b"MSG a 1 r 5\r\nhello\r\n" * n)
streams = st.lists(st.one_of(messages(), messages(), messages(), lines, plain), max_size=12).map(b"".join)
garbage = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\n", b"MSG a 1 2\r\nhiX\n", b"MSG a 1 r\ts 5\r\nhello\r\n", b"MSG a 1 -5\r\n", b" "]),
)
places = st.lists(st.integers(0, 1 << 20), max_size=12)


@settings(max_examples=250, deadline=None)
@given(streams, places)
def test_valid_stream_cut_anywhere_reads_the_same(stream: bytes, places: list[int]) -> None:
    """Whatever the cuts, the messages are those of the reference parser."""
    expected = reference(stream)
    assert expected[1] is False
    assert parse(cut(stream, places)) == expected


@settings(max_examples=250, deadline=None)
@given(streams, garbage, streams, places)
def test_damaged_stream_cut_anywhere_reads_the_same(
    before: bytes, damage: bytes, behind: bytes, places: list[int]
) -> None:
    """A malformed stream is detected after the same message, wherever it is cut; all messages before are read."""
    stream = before + damage + behind
    assert parse(cut(stream, places)) == reference(stream)


@settings(max_examples=40, deadline=None)
@given(streams)
def test_stream_in_single_bytes_reads_the_same(stream: bytes) -> None:
    """A byte at a time gives the same messages."""
    stream = stream[:3000]
    assert parse([stream[i : i + 1] for i in range(len(stream))]) == reference(stream)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5))
def test_random_bytes_never_raise_but_break_the_parser(pieces: list[bytes]) -> None:
    """Noise gives events or an error in `error`, never another exception."""
    parse(pieces)


@settings(max_examples=500, deadline=None)
@given(st.one_of(messages(), streams), st.one_of(st.just(b""), garbage), st.integers(0, 3))
def test_single_message_is_what_the_parser_reads(stream: bytes, damage: bytes, missing: int) -> None:
    """A single whole message is read as by the parser; anything else is left to the parser."""
    stream += damage
    stream = stream[: len(stream) - missing]
    events, malformed = parse([stream])
    first = events[0] if events and isinstance(events[0], tuple) else (b"1", b"a", None, None, b"")
    sid, subject = first[:2]
    found = single_message(stream, subject, sid)
    if found is not None:
        assert (events, malformed) == ([(sid, *found)], False)
    assert single_message(stream, subject + b"x", sid) is None
    assert single_message(stream, subject, sid + b"0") is None


@given(tokens, sids, payloads, st.one_of(st.none(), headers))
def test_usual_answer_is_a_single_message(subject: bytes, sid: bytes, payload: bytes, block: bytes | None) -> None:
    """As the server writes it: with one blank between the fields and without a reply."""
    whole = (block or b"") + payload
    sizes = b"%d" % len(whole) if block is None else b"%d %d" % (len(block), len(whole))
    verb = b"MSG" if block is None else b"HMSG"
    frame = b"%b %b %b %b\r\n%b\r\n" % (verb, subject, sid, sizes, whole)
    assert single_message(frame, subject, sid) == (subject, None, block, payload)
    assert single_message(frame + frame, subject, sid) is None
    assert single_message(frame[:-1], subject, sid) is None
