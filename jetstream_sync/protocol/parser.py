"""Turns the server's byte stream into events: bytes in, events out, no I/O.

`Parser.feed` takes the bytes that `recv` returned, cut anywhere, and returns the events they complete.
Consecutive messages of one subscription form one `Run`: handing over a run takes one lock and one wake-up,
not one for each message.

Two loops read messages, and both accept exactly the same streams. Splitting the whole buffer at CRLF is the
fastest way to read small plain messages, but its cost grows with the payload bytes. Finding each control line
and slicing costs more per message and almost nothing per payload byte. The size of the last messages decides
which loop reads the next ones.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import ProtocolError

__all__ = ["OK", "PING", "PONG", "Err", "Event", "Info", "Parser", "RawMessage", "Run", "Signal", "single_message"]

# Subject, reply, header block (with version line and closing blank line), payload. A plain tuple: one is created
# for every message, and nothing is cheaper to create.
RawMessage = tuple[bytes, bytes | None, bytes | None, bytes]

CRLF = b"\r\n"
# Integers, because `bytes in bytes` takes ten times as long: it first tries its operand as an integer.
TAB = 9
LF = 10

# Far above a server's `max_control_line`, which is 4 KiB unless configured.
MAX_CONTROL_LINE = 64 * 1024
# INFO lists the URLs of all servers of the cluster, so it may be longer than other lines.
MAX_INFO_LINE = 1024 * 1024
# A server's `max_payload` is at most its `max_pending`, which is 64 MiB unless configured. 1 MiB is margin.
MAX_PAYLOAD = 64 * 1024 * 1024 + 1024 * 1024
# Ten digits hold every size up to MAX_PAYLOAD. A longer number is refused before int() reads it.
MAX_SIZE_DIGITS = 10
# Sizes that were read before are kept, so that a usual size is a look-up. They are dropped when there are more.
SIZES_KEPT = 4096
# Above this mean payload size, splitting the buffer is slower than finding lines.
MAX_SPLIT_PAYLOAD = 192
# With less data than this, splitting is slower because of its set-up.
MIN_SPLIT_DATA = 1024
# Errors show this much of a malformed line: enough to recognise it, never a whole INFO.
SHOWN_BYTES = 64

NO_HEADERS = -1  # instead of a header size


class Run:
    """Consecutive messages of one subscription; `size` is the sum of their header and payload bytes."""

    __slots__ = ("messages", "sid", "size")

    def __init__(self, sid: bytes, messages: list[RawMessage], size: int) -> None:
        self.sid: bytes = sid
        self.messages: list[RawMessage] = messages
        self.size: int = size

    def __repr__(self) -> str:
        return f"<Run sid={self.sid!r} messages={len(self.messages)} size={self.size}>"


class Info:
    """The server described itself: `fields` is the JSON object of an INFO line."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields: dict[str, Any] = fields

    def __repr__(self) -> str:
        return f"<Info of {len(self.fields)} fields>"


class Err:
    """The server reported an error: `text` without its quotes."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: str = text

    def __repr__(self) -> str:
        return f"<Err {self.text!r}>"


class Signal:
    """A line without content: PING, PONG or OK. Compare with `is`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


PING = Signal("PING")
PONG = Signal("PONG")
OK = Signal("OK")

Event = Run | Info | Err | Signal

# Subject, sid, reply, header size or NO_HEADERS, total size.
_Frame = tuple[bytes, bytes, bytes | None, int, int]

_SIGNALS = {b"PING": PING, b"PONG": PONG, b"+OK": OK}
# Fields of a control line, with and without the optional reply.
_FIELD_COUNTS = {b"MSG": (4, 5), b"HMSG": (5, 6)}


class Parser:
    """Reads one connection's byte stream. Not thread-safe: one thread feeds it.

    It holds at most what has arrived: no memory is allocated for a declared size.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self.error: ProtocolError | None = None
        """Set once the stream is malformed, and never cleared; the events before that point are still returned."""
        self._held = bytearray()  # the start of an incomplete frame
        self._wanted = 0  # the length of the complete frame; 0 while its control line is incomplete
        self._split_next = False
        self.max_payload = max_payload

    @property
    def max_payload(self) -> int:
        """The largest message accepted, headers included. A change applies to the bytes that are fed after it."""
        return self._max_payload

    @max_payload.setter
    def max_payload(self, limit: int) -> None:
        self._max_payload = limit
        # Sizes by their text. Only the first message of a size is read strictly and compared with the limit. The
        # finding loop looks sizes up together with the line's CR, which checks the end of the line for free.
        self._sizes: dict[bytes, int] = {}
        self._sizes_with_cr: dict[bytes, int] = {}

    @property
    def buffered(self) -> int:
        """How many bytes are held of an incomplete frame."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the stream and return the events they complete.

        When the bytes are malformed or exceed a limit, the events before that point are returned and `error` is
        set: the caller dispatches the events and then checks it. Later calls raise that `ProtocolError`.
        """
        if self.error is not None:
            raise self.error
        events: list[Event] = []
        try:
            position = 0
            while self._held and position < len(data):
                position = self._fill(data, position, events)
            if self._split_next and len(data) >= MIN_SPLIT_DATA:
                position = self._split(data, position, events)
            if position < len(data):
                self._find(data, position, events)
        except ProtocolError as error:
            self.error = error
            self._held.clear()
        if events:
            self._split_next = _is_worth_splitting(events[-1])
        return events

    def _fill(self, data: bytes, start: int, events: list[Event]) -> int:
        """Add to the held frame its bytes from `data[start:]`; return where the rest of `data` starts."""
        held, wanted = self._held, self._wanted
        end = start + wanted - len(held) if wanted else data.find(b"\n", start) + 1 or len(data)
        held += data[start:end]
        complete = len(held) == wanted if wanted else held.endswith(b"\n")
        if complete:
            frame = bytes(held)
            held.clear()
            self._find(frame, 0, events)
        elif not wanted:
            _check_length(held, len(held))
        return min(end, len(data))

    def _hold(self, tail: bytes, wanted: int) -> None:
        """Keep the start of an incomplete frame of `wanted` bytes (0: its control line is incomplete)."""
        self._held += tail
        self._wanted = wanted
        if not wanted:
            _check_length(tail, len(tail))

    def _find(self, data: bytes, position: int, events: list[Event]) -> None:
        """Read the frames of `data[position:]`, finding one control line after the other; hold the rest.

        The loop is the main cost of receiving, so it calls only methods of bytes and list for each message.
        """
        find, length, longest = data.find, len(data), MAX_CONTROL_LINE
        sizes, header_sizes = self._sizes_with_cr, self._sizes
        run = _run_to_extend(events)
        sid, append, run_size = run.sid, run.messages.append, run.size
        wanted = 0
        reply: bytes | None
        usual: object
        try:
            while (eol := find(b"\n", position)) >= 0:
                line = data[position:eol]  # with its CR
                fields = line.split(b" ")
                count = len(fields)
                header_size = NO_HEADERS
                usual = False
                try:
                    if eol - position > longest or TAB in line:
                        pass
                    elif count == 5 and fields[0] == b"MSG":
                        _, subject, to_sid, reply, size_text = fields
                        size = sizes[size_text]
                        usual = subject and to_sid and reply
                    elif count == 6 and fields[0] == b"HMSG":
                        _, subject, to_sid, reply, header_text, size_text = fields
                        header_size, size = header_sizes[header_text], sizes[size_text]
                        usual = subject and to_sid and reply and header_size <= size
                    elif count == 4 and fields[0] == b"MSG":
                        _, subject, to_sid, size_text = fields
                        reply, size = None, sizes[size_text]
                        usual = subject and to_sid
                    elif count == 5 and fields[0] == b"HMSG":
                        _, subject, to_sid, header_text, size_text = fields
                        reply, header_size, size = None, header_sizes[header_text], sizes[size_text]
                        usual = subject and to_sid and header_size <= size
                except KeyError:
                    pass
                if not usual:
                    frame = self._read_line(line)
                    if not isinstance(frame, tuple):
                        run.size = run_size
                        run = _no_run()
                        sid, append, run_size = run.sid, run.messages.append, 0
                        events.append(frame)
                        position = eol + 1
                        continue
                    subject, to_sid, reply, header_size, size = frame
                start = eol + 1
                end = start + size
                following = end + 2
                if following > length:
                    wanted = following - position
                    break
                if data[end:following] != CRLF:
                    raise ProtocolError(f"no CRLF behind {size} bytes of payload: {_shown(data[end:])}")
                if to_sid != sid:
                    run.size = run_size
                    run = Run(to_sid, [], 0)
                    sid, append, run_size = to_sid, run.messages.append, 0
                    events.append(run)
                if header_size == NO_HEADERS:
                    append((subject, reply, None, data[start:end]))
                else:
                    middle = start + header_size
                    append((subject, reply, data[start:middle], data[middle:end]))
                run_size += size
                position = following
        finally:
            run.size = run_size
        if position < length:
            self._hold(data[position:], wanted)

    def _split(self, data: bytes, position: int, events: list[Event]) -> int:
        """Read plain messages of `data[position:]` by splitting; return where the unread rest starts."""
        while len(data) - position >= MIN_SPLIT_DATA:
            # A window is no longer than the longest line allowed, so the loop need not check the length of lines.
            window = data[position : position + MAX_CONTROL_LINE]
            unread = self._split_window(window, events)
            position += len(window) - unread
            if unread == len(window):
                break
        return position

    def _split_window(self, data: bytes, events: list[Event]) -> int:
        """Read plain messages by splitting `data` at CRLF; return how many bytes are left unread.

        It leaves an incomplete frame at the end, and stops at the first frame that is not plain: a message with
        headers, a payload that contains CRLF, an unusual line.
        """
        pieces = data.split(CRLF)
        tail = pieces.pop()  # no CRLF follows it: an incomplete line or payload
        if len(pieces) % 2:
            tail = pieces.pop() + CRLF + tail
        sizes = self._sizes
        has_tab = TAB in data  # one test for the whole window: tabs are rare
        run = _run_to_extend(events)
        sid, append, run_size = run.sid, run.messages.append, run.size
        reply: bytes | None
        pairs = iter(pieces)
        try:
            for line, payload in zip(pairs, pairs, strict=False):
                fields = line.split(b" ")
                if len(fields) == 5:
                    verb, subject, to_sid, reply, size_text = fields
                    if not reply:
                        break
                elif len(fields) == 4:
                    verb, subject, to_sid, size_text = fields
                    reply = None
                else:
                    break
                size = sizes[size_text]
                if verb != b"MSG" or not subject or not to_sid or len(payload) != size:
                    break
                if LF in line or (has_tab and TAB in line):
                    break
                if to_sid != sid:
                    run.size = run_size
                    run = Run(to_sid, [], 0)
                    sid, append, run_size = to_sid, run.messages.append, 0
                    events.append(run)
                append((subject, reply, None, payload))
                run_size += size
            else:
                return len(tail)
        except KeyError:  # a size that was not read before
            pass
        finally:
            run.size = run_size
        return len(CRLF.join([line, payload, *pairs, tail]))

    def _read_line(self, line: bytes) -> Event | _Frame:
        """Read any control line (with its CR, without its LF), strictly: the loops leave unusual lines to this."""
        _check_length(line, len(line))
        if not line.endswith(b"\r"):
            raise ProtocolError(f"control line without CRLF: {_shown(line)}")
        line = line[:-1]
        # The server separates fields by space and tab. bytes.split() would also split at VT and FF, which a
        # subject may contain.
        fields = [field for field in line.replace(b"\t", b" ").split(b" ") if field]
        verb = fields[0].upper() if fields else b""
        if verb in _FIELD_COUNTS and len(fields) in _FIELD_COUNTS[verb]:
            return self._read_message_line(verb, fields)
        if verb in _SIGNALS and len(fields) == 1:
            return _SIGNALS[verb]
        if verb == b"INFO":
            return Info(_info_fields(line.strip(b" \t")[4:]))
        if verb == b"-ERR":
            return Err(_error_text(line.strip(b" \t")[4:]))
        raise ProtocolError(f"not a line of the NATS protocol: {_shown(line)}")

    def _read_message_line(self, verb: bytes, fields: list[bytes]) -> _Frame:
        size = self._read_size(fields[-1])
        header_size = NO_HEADERS
        if verb == b"HMSG":
            header_size = self._read_size(fields[-2])
            if header_size > size:
                raise ProtocolError(f"header of {header_size} bytes in a message of {size} bytes")
        reply = fields[3] if len(fields) == _FIELD_COUNTS[verb][1] else None
        return fields[1], fields[2], reply, header_size, size

    def _read_size(self, text: bytes) -> int:
        if not text.isdigit() or len(text) > MAX_SIZE_DIGITS:
            raise ProtocolError(f"not a size: {_shown(text)}")
        size = int(text)
        if size > self._max_payload:
            raise ProtocolError(f"message of {size} bytes announced, the limit is {self._max_payload}")
        if len(self._sizes) >= SIZES_KEPT:
            self._sizes.clear()
            self._sizes_with_cr.clear()
        self._sizes[text] = self._sizes_with_cr[text + b"\r"] = size
        return size


def single_message(data: bytes, subject: bytes, sid: bytes) -> RawMessage | None:
    """The message in `data`, if `data` is exactly one message to `subject` without a reply; otherwise None.

    An empty Parser would return the same message. None does not mean that `data` is malformed.
    """
    eol = data.find(CRLF)
    fields = data[:eol].split(b" ")
    if fields[1:3] != [subject, sid] or not data.endswith(CRLF):
        return None
    start, end = eol + 2, len(data) - 2
    size_text = fields[-1]
    if not size_text.isdigit() or len(size_text) > MAX_SIZE_DIGITS or int(size_text) != end - start:
        return None
    if len(fields) == 4 and fields[0] == b"MSG":
        return subject, None, None, data[start:end]
    if len(fields) == 5 and fields[0] == b"HMSG":
        header_text = fields[3]
        if header_text.isdigit() and len(header_text) <= MAX_SIZE_DIGITS and int(header_text) <= end - start:
            middle = start + int(header_text)
            return subject, None, data[start:middle], data[middle:end]
    return None


def _no_run() -> Run:
    """A run that no message can extend: no sid is a blank."""
    return Run(b" ", [], 0)


def _run_to_extend(events: list[Event]) -> Run:
    last = events[-1] if events else None
    return last if isinstance(last, Run) else _no_run()


def _is_worth_splitting(last: Event) -> bool:
    """Whether messages such as the last ones in `last` are read faster by splitting."""
    if not isinstance(last, Run):
        return False
    return last.messages[-1][2] is None and last.size <= MAX_SPLIT_PAYLOAD * len(last.messages)


def _check_length(line: bytes | bytearray, length: int) -> None:
    if length > MAX_CONTROL_LINE:
        limit = MAX_INFO_LINE if line[:4].upper() == b"INFO" else MAX_CONTROL_LINE
        if length > limit:
            raise ProtocolError(f"control line longer than {limit} bytes: {_shown(line)}")


def _info_fields(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ProtocolError(f"INFO is not JSON: {_shown(text)}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"INFO is not a JSON object: {_shown(text)}")
    return fields


def _error_text(text: bytes) -> str:
    text = text.strip(b" \t")
    if len(text) >= 2 and text[:1] == text[-1:] == b"'":
        text = text[1:-1]
    return text.decode(errors="replace")


def _shown(data: bytes | bytearray) -> str:
    shown = repr(bytes(data[:SHOWN_BYTES]))
    return shown if len(data) <= SHOWN_BYTES else f"{shown}… ({len(data)} bytes)"
