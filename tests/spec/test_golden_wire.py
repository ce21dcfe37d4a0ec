"""The golden wire: what each surface of the library sends to a server is what it sent when this was recorded.

The scenarios are in `wire_scenarios`, their recordings in `tests/data/wire`, one text file per surface. How a
recording is made, and what is left out of it, is said in `tests/support/wire.py`.

After a change of the wire that is meant, record anew and read the difference:

    RECORD_WIRE=1 python -m pytest tests/spec/test_golden_wire.py
    git diff tests/data/wire

A scenario that needs a newer server than the present one is not run, and its recording stays as it is.
What the server sends is not recorded: it differs from version to version, and the frames that follow from it are.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from jetstream_sync import Connection
from jetstream_sync.testing import LocalServer
from tests.spec.wire_scenarios import api, core, endless, ordered, publish, pull, push, reconnect
from tests.spec.wire_scenarios.bench import SURFACES, record
from tests.support.observer import server_version
from tests.support.wire import Frame, Script, read_frames

RECORDINGS = Path(__file__).resolve().parent.parent / "data" / "wire"
RECORDS = os.environ.get("RECORD_WIRE") == "1"
# Importing these has filled SURFACES.
SCENARIOS = (api, core, endless, ordered, publish, pull, push, reconnect)

Parts = dict[str, list[str]]  # the lines of each scenario, by its title


def read_recording(surface: str) -> Parts:
    path = RECORDINGS / f"{surface}.txt"
    text = "\n" + (path.read_text(encoding="utf-8") if path.exists() else "")
    parts: Parts = {}
    for part in text.split("\n== ")[1:]:
        title, *lines = part.rstrip("\n").split("\n")
        parts[title] = lines
    return parts


def as_lines(parts: Parts) -> list[str]:
    return [line for title, lines in parts.items() for line in (f"== {title}", *lines, "")]


@pytest.mark.parametrize("surface", SURFACES)
def test_what_is_sent_is_what_was_recorded(surface: str, nats_server: LocalServer, nc: Connection) -> None:
    recorded = read_recording(surface)
    version = server_version(nc)
    sent: Parts = {}
    for scenario in SURFACES[surface]:
        known = version >= scenario.since
        sent[scenario.title] = record(scenario, nats_server) if known else recorded[scenario.title]
    if RECORDS:
        RECORDINGS.mkdir(exist_ok=True)
        (RECORDINGS / f"{surface}.txt").write_text("\n".join(as_lines(sent)), encoding="utf-8")
        return
    difference = difflib.unified_diff(
        as_lines(recorded), as_lines(sent), "recorded", "sent now", n=12, lineterm=""
    )
    text = "\n".join(difference)
    if text:
        pytest.fail(f"the wire of {surface!r} differs from its recording:\n{text}", pytrace=False)


def test_every_recording_belongs_to_a_surface_and_has_its_scenarios() -> None:
    assert {path.stem for path in RECORDINGS.glob("*")} == set(SURFACES)
    for surface, scenarios in SURFACES.items():
        assert list(read_recording(surface)) == [scenario.title for scenario in scenarios]


# --- the instrument itself --------------------------------------------------------------------------------

NUIDS = [f"{letter}{'0123456789' * 2}z" for letter in "ABCD"]


def written(data: str, elapsing: float | None = None) -> list[str]:
    script = Script()
    return [line for frame in read_frames(data.encode()) for line in script.lines(frame, elapsing)]


def test_frames_are_read_when_they_are_complete() -> None:
    data = b"SUB a 1\r\nPUB a 4\r\n\r\nxy\r\nHPUB a b 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\nPING\r\n"
    complete = [
        Frame("SUB", ["a", "1"], [], "", 9),
        Frame("PUB", ["a"], [], "\\r\\nxy", 24),
        Frame("HPUB", ["a", "b"], ["A: b"], "hi", 62),
        Frame("PING", [], [], "", 68),
    ]
    for size in range(len(data) + 1):
        assert list(read_frames(data[:size])) == [frame for frame in complete if frame.end <= size]


@pytest.mark.parametrize(
    "data", [b"PUB a 1\r\nxyz\r\n", b"MSG a 1 0\r\n\r\n", b"HPUB a 10 10\r\nNATS/1.0\r\n\r\n\r\n"]
)
def test_what_no_client_may_send_is_refused(data: bytes) -> None:
    with pytest.raises(AssertionError):
        list(read_frames(data))


def test_ids_are_numbered_in_the_order_of_their_appearance() -> None:
    first, second, third, name = NUIDS
    data = (
        f"SUB _INBOX.{first}.* 7\r\nSUB _INBOX.{second} 3\r\nSUB a crew 9\r\nUNSUB 3 5\r\nUNSUB 7\r\n"
        f"PUB x.{name} _INBOX.{first}.f 0\r\n\r\nPUB x _INBOX.{first}.a 0\r\n\r\nPUB x _INBOX.{first}.f 0\r\n\r\n"
        f"PUB x _INBOX.{third}.12 {len(name)}\r\n{name}\r\nPUB x _INBOX.{second} 0\r\n\r\n"
    )
    assert written(data) == [
        "SUB inbox1.* sid1",
        "SUB inbox2 sid2",
        "SUB a crew sid3",
        "UNSUB sid2 5",
        "UNSUB sid1",
        "PUB x.nuid1 inbox1.1",
        "PUB x inbox1.2",
        "PUB x inbox1.1",
        "PUB x inbox3 | nuid1",
        "PUB x inbox2",
    ]


def test_what_varies_is_left_out() -> None:
    acks = ["$JS.ACK.S.C.1.2.3.1700000000000000000.9", "$JS.ACK._.HASH.S.C.1.2.3.1700000000000000000.9.token"]
    pulls = ['{"batch":1,"expires":1900000000}', '{"batch":1,"expires":2100000000}']
    data = "".join(f"PUB {ack} 4\r\n+ACK\r\n" for ack in acks)
    data += "".join(f"PUB p {len(pull)}\r\n{pull}\r\n" for pull in pulls)
    data += "PUB $JS.FC.S.C.token 0\r\n\r\n" + 'CONNECT {"version":"1.2","name":"n","sig":"s"}\r\n' * 2
    assert written(data, elapsing=2.0) == [
        "PUB $JS.ACK.S.C.1.2.3.<time>.<pending> | +ACK",
        "PUB $JS.ACK.S.C.1.2.3.<time>.<pending> | +ACK",
        'PUB p | {"batch":1,"expires":<up to 2000000000>}',
        'PUB p | {"batch":1,"expires":2100000000}',
        "PUB $JS.FC.S.C.<id>",
        'CONNECT {"version": "<version>", "name": "n", "sig": "<sig>"}',
        "CONNECT as before",
    ]
