"""What a client sends to its server, recorded and written so that two recordings can be compared.

A `Recording` is one connection of the client's, made through a FaultProxy that keeps every byte. Its steps say
which frames belong to which call: each step ends with a `flush()`, whose PING is the boundary and is left out.

`Script` writes the frames as text, one line each. Frames are written, not packets: what leaves together does not
matter. Ids are replaced by numbers in the order of their first appearance: sids, inboxes and the tokens below
them, nuids. Times, versions and signatures are replaced by what they are. A PONG is left out, because the server
chooses when it sends a PING.

A recording belongs to the thread that runs the scenario. `when()` starts the only other threads, and the end of
the step joins them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually

# How long a step waits for what another thread of the client sends.
PATIENCE = 20.0
# A longer payload is written as its first characters and its length.
SHOWN_BYTES = 2000
# The prefix of inboxes by default, and the one that a scenario asks for.
INBOX_PREFIXES = ("_INBOX", "_MINE")


# --- frames ---------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A command of the client's. `words` are its arguments without sizes; `end` is the offset behind it."""

    verb: str
    words: list[str]
    headers: list[str]
    payload: str
    end: int

    @property
    def text(self) -> str:
        """The frame as it was sent, in one line and without headers."""
        return " ".join([self.verb, *self.words, self.payload])


def read_frames(data: bytes, start: int = 0) -> Iterator[Frame]:
    """The complete frames in `data` from `start` on. Raises AssertionError for what no client may send."""
    while (line_end := data.find(b"\r\n", start)) >= 0:
        line = data[start:line_end].decode("utf-8", "surrogateescape")
        verb, _, rest = line.partition(" ")
        words, header_size, body_size = rest.split(" ") if rest else [], 0, 0
        start = end = line_end + 2
        if verb == "CONNECT":
            words = [rest]
        elif verb in ("PUB", "HPUB"):
            body_size = int(words.pop())
            header_size = int(words.pop()) if verb == "HPUB" else 0
            end = start + body_size + 2
            if len(data) < end:
                return
            assert data[end - 2 : end] == b"\r\n", f"{line!r}: the payload has another size"
        else:
            assert verb in ("SUB", "UNSUB", "PING", "PONG"), f"not a command of a client: {line!r}"
        headers = _header_lines(data[start : start + header_size])
        yield Frame(verb, words, headers, _shown(data[start + header_size : start + body_size]), end)
        start = end


def _header_lines(block: bytes) -> list[str]:
    if not block:
        return []
    version, *lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    assert version == "NATS/1.0", f"a header block begins with {version!r}"
    assert lines[-2:] == ["", ""], f"a header block does not end with an empty line: {block!r}"
    return lines[:-2]


def _shown(payload: bytes) -> str:
    text = payload.decode("utf-8", "backslashreplace").replace("\r", "\\r").replace("\n", "\\n")
    return text if len(payload) <= SHOWN_BYTES else f"{text[:16]}… ({len(payload)} bytes)"


# --- text -----------------------------------------------------------------------------------------------

_INBOX = re.compile(rf"(?:{'|'.join(INBOX_PREFIXES)})\.[0-9A-Za-z]{{22}}(?:\.[0-9A-Za-z]+)*(?:\.\*)?")
_NUID = re.compile(r"(?<![0-9A-Za-z])[0-9A-Za-z]{22}(?![0-9A-Za-z])")
_ACK = re.compile(r"\$JS\.ACK\.\S+")
_FLOW = re.compile(r"(\$JS\.FC\.[^.\s]+\.[^.\s]+)\.\S+")
_EXPIRES = re.compile(r'"expires":(\d+)')
# Fields of CONNECT that differ from run to run, or from release to release.
_VARYING = ("version", "nkey", "sig", "jwt")


class Numbers:
    """Numbers for names, in the order in which the names first appear."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def of(self, name: str) -> int:
        return self._known.setdefault(name, len(self._known) + 1)


class Script:
    """Frames as lines of text without what varies. One script per recording: it remembers the ids."""

    def __init__(self) -> None:
        self._sids = Numbers()
        self._inboxes = Numbers()
        self._wildcards: dict[str, Numbers] = {}  # by inbox that has a wildcard below it: the tokens there
        self._nuids = Numbers()
        self._connect: str | None = None

    def lines(self, frame: Frame, elapsing: float | None = None) -> list[str]:
        """The frame's line, and one for each header. `elapsing`: see Recording.step()."""
        if frame.verb == "CONNECT":
            return [self._connect_line(frame.words[0])]
        words = list(frame.words)
        if frame.verb == "SUB":
            words[-1] = f"sid{self._sids.of(words[-1])}"
        elif frame.verb == "UNSUB":
            words[0] = f"sid{self._sids.of(words[0])}"
        line = " ".join([frame.verb, *map(self._plain, words)])
        if frame.payload:
            payload = frame.payload if elapsing is None else _without_elapsed_time(frame.payload, elapsing)
            line += f" | {self._plain(payload)}"
        return [line, *(f"    {self._plain(header)}" for header in frame.headers)]

    def _connect_line(self, options: str) -> str:
        fields = json.loads(options)
        for name in _VARYING:
            if name in fields:
                fields[name] = f"<{name}>"
        line = f"CONNECT {json.dumps(fields)}"
        if line == self._connect:
            return "CONNECT as before"
        self._connect = line
        return line

    def _plain(self, text: str) -> str:
        text = _ACK.sub(_plain_ack, text)
        text = _FLOW.sub(r"\1.<id>", text)
        text = _INBOX.sub(self._plain_inbox, text)
        return _NUID.sub(lambda found: f"nuid{self._nuids.of(found[0])}", text)

    def _plain_inbox(self, found: re.Match[str]) -> str:
        inbox = found[0]
        base, _, token = inbox.rpartition(".")
        if token == "*":
            self._wildcards.setdefault(base, Numbers())
            return f"inbox{self._inboxes.of(base)}.*"
        if base in self._wildcards:
            return f"inbox{self._inboxes.of(base)}.{self._wildcards[base].of(token)}"
        return f"inbox{self._inboxes.of(inbox)}"


def _plain_ack(found: re.Match[str]) -> str:
    """A reply subject of JetStream's without its time and its pending count, which are the server's.

    The longer form of it has domain and account before the stream, and a token behind the pending count.
    """
    tokens = found[0].split(".")
    if len(tokens) > 9:
        tokens = tokens[:2] + tokens[4:]
    return ".".join([*tokens[:7], "<time>", "<pending>"])


def _without_elapsed_time(payload: str, elapsing: float) -> str:
    most = round(elapsing * 1_000_000_000)

    def plain(found: re.Match[str]) -> str:
        return f'"expires":<up to {most}>' if 0 < int(found[1]) <= most else found[0]

    return _EXPIRES.sub(plain, payload)


# --- recording ------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A place in the recording: an offset in what one TCP session sent."""

    session: int = 0
    offset: int = 0


@dataclass
class Step:
    """Some frames and what they are about."""

    title: str
    apart: str | None = None
    any_order: bool = False
    repeated: str | None = None
    optional: Callable[[Frame], bool] | None = None
    elapsing: float | None = None
    ends: bool = False
    notes: list[str] = field(default_factory=list)
    start: Mark = field(default_factory=Mark)
    end: Mark = field(default_factory=Mark)


class Recording:
    """A connection `nc` to `server` and all that it sends. A context manager; leaving it closes the connection.

    `options` are those of connect(). The handshake is the first step.
    """

    def __init__(self, server: LocalServer, options: dict[str, Any]) -> None:
        self.proxy = FaultProxy(server)
        self._options = {"reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05, **options}
        self._steps: list[Step] = []
        self._helpers: list[threading.Thread] = []

    def __enter__(self) -> Recording:
        self.proxy.start()
        try:
            with self.step("connect"):
                self.nc = jetstream_sync.connect(self.proxy.url, **self._options)
        except BaseException:
            self.proxy.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with self.step("close", ends=True):
                    self.nc.close()
        finally:
            self.nc.close()
            self.proxy.close()

    # --- steps --------------------------------------------------------------------------------------

    @contextmanager
    def step(
        self,
        title: str,
        *,
        apart: str | None = None,
        any_order: bool = False,
        repeated: str | None = None,
        optional: Callable[[Frame], bool] | None = None,
        elapsing: float | None = None,
        ends: bool = False,
    ) -> Iterator[None]:
        """Frames that are sent in this block belong together. The connection must be there when it is left.

        `apart`: frames that contain this text are written behind the others, with `any_order` sorted. Another
        thread sends them, or they may overtake what was queued before them (acks do).
        `repeated`: frames that contain this text are written once, however often they were sent.
        `optional`: such frames are left out from here on. It depends on two threads whether they are sent.
        `elapsing`: the expiry of the pulls in this step is what is left of so many seconds.
        `ends`: the block closes the connection.
        """
        start = Mark()
        if self._steps:
            start, optional = self._steps[-1].end, optional or self._steps[-1].optional
        step = Step(title, apart, any_order, repeated, optional, elapsing, ends, start=start)
        self._steps.append(step)
        yield
        while self._helpers:
            self._helpers.pop().join(PATIENCE)
        step.end = self._end_of_all() if ends else self._boundary()

    def note(self, *results: object) -> None:
        """Write the outcome of a call behind the frames of the present step."""
        self._steps[-1].notes.append(" ".join(map(str, results)) or "none")

    def _boundary(self) -> Mark:
        """Behind the PING of a flush(), which is the last one: nothing else of the step can come any more."""
        self.nc.flush(PATIENCE)
        session = len(self.proxy.captured) - 1
        frames = read_frames(self.proxy.captured[session].to_server)
        return Mark(session, [frame.end for frame in frames if frame.verb == "PING"][-1])

    def _end_of_all(self) -> Mark:
        eventually(lambda: self.proxy.connections == 0, PATIENCE, "the connection is closed")
        session = len(self.proxy.captured) - 1
        return Mark(session, len(self.proxy.captured[session].to_server))

    # --- looking and waiting ------------------------------------------------------------------------

    def sent(self, text: str = "") -> list[Frame]:
        """The frames of the present step so far that contain `text`."""
        step = self._steps[-1]
        return [frame for _, frame in self._frames(step.start) if text in frame.text]

    def wait_for(self, text: str, count: int = 1) -> list[Frame]:
        """Wait until `count` frames of the present step contain `text`."""
        eventually(
            lambda: len(self.sent(text)) >= count,
            PATIENCE,
            f"{count} frames with {text!r}: {[frame.text for frame in self.sent()]}",
        )
        return self.sent(text)

    def wait_to_hear(self, text: bytes, count: int = 1) -> None:
        """Wait until the server has said `text` so many times on the present session."""
        eventually(lambda: self.proxy.captured[-1].to_client.count(text) >= count, PATIENCE, f"{text!r} was heard")

    def when(self, text: str, act: Callable[[], object], count: int = 1) -> None:
        """Have another thread do `act` when `count` frames of the present step contain `text`."""

        def run() -> None:
            self.wait_for(text, count)
            act()

        helper = threading.Thread(target=run, name=f"when-{text}", daemon=True)
        self._helpers.append(helper)
        helper.start()

    def wait_reconnected(self, times: int = 1) -> None:
        eventually(
            lambda: self.nc.stats.reconnects >= times and self.nc.is_connected, PATIENCE, "it has reconnected"
        )

    def _frames(self, start: Mark, end: Mark | None = None) -> Iterator[tuple[int, Frame]]:
        """The frames between two marks, each with the number of its session."""
        for number, connection in enumerate(self.proxy.captured[start.session :], start.session):
            if end is not None and number > end.session:
                return
            data = connection.to_server
            if end is not None and number == end.session:
                data = data[: end.offset]
            for frame in read_frames(data, start.offset if number == start.session else 0):
                yield number, frame

    # --- text ---------------------------------------------------------------------------------------

    def text(self, *, handshake: bool) -> list[str]:
        """All steps as lines, the handshake only if asked for. The recording must have ended."""
        script = Script()
        blocks = [self._step_lines(script, step) for step in self._steps]
        lines: list[str] = []
        for step, block in zip(self._steps, blocks, strict=True):
            if step is self._steps[0] and not handshake:
                continue
            if step is self._steps[-1] and not block:
                continue
            lines += ["", f"-- {step.title}", *(block or ["nothing"]), *(f"=> {note}" for note in step.notes)]
        return lines

    def _step_lines(self, script: Script, step: Step) -> list[str]:
        lines: list[str] = []
        apart: list[str] = []
        session = step.start.session
        frames = list(self._frames(step.start, step.end))
        if not step.ends:
            frames.pop()  # the boundary
        for number, frame in frames:
            if frame.verb == "PONG" or (step.optional is not None and step.optional(frame)):
                continue
            if number != session:
                session = number
                lines.append("(a new TCP session)")
            written = script.lines(frame, step.elapsing)
            if step.repeated is not None and step.repeated in frame.text and written[0] in lines:
                continue
            if step.apart is not None and step.apart in frame.text:
                apart += written
            else:
                lines += written
        if apart:
            order = "in any order" if step.any_order else "not in order with these"
            lines += [f"({order}:)", *(sorted(apart) if step.any_order else apart)]
        return lines
