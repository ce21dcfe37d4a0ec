"""The client's protocol lines, byte for byte."""

from __future__ import annotations

import array
import json

import pytest

from jetstream_sync.protocol import commands


def test_connect_is_one_line_of_json() -> None:
    """CONNECT carries the options, and no option can end the line early."""
    line = commands.connect({"verbose": False, "name": "a\r\nPUB x 0\r\n", "user": "ü"})
    assert line.startswith(b"CONNECT {")
    assert line.endswith(b"}\r\n")
    assert line.count(b"\n") == 1
    assert json.loads(line[8:]) == {"verbose": False, "name": "a\r\nPUB x 0\r\n", "user": "ü"}


@pytest.mark.parametrize(
    ("arguments", "wire"),
    [
        ((b"a", b"hello"), b"PUB a 5\r\nhello\r\n"),
        ((b"a", b""), b"PUB a 0\r\n\r\n"),
        ((b"a", b"hello", b"r"), b"PUB a r 5\r\nhello\r\n"),
        ((b"a", b"hi", None, b"NATS/1.0\r\n\r\n"), b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
        ((b"a", b"hi", b"r", b"NATS/1.0\r\n\r\n"), b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
        ((b"a", bytearray(b"hi")), b"PUB a 2\r\nhi\r\n"),
        ((b"a", memoryview(b"hihi")[::2]), b"PUB a 2\r\nhh\r\n"),
        ((b"a", memoryview(array.array("H", [0x6161, 0x6262]))), b"PUB a 4\r\naabb\r\n"),
        ((b"%s", b"%d"), b"PUB %s 2\r\n%d\r\n"),
    ],
)
def test_publish(arguments: tuple[bytes, ...], wire: bytes) -> None:
    """PUB or HPUB, with the sizes of what is sent whatever type it is."""
    assert commands.publish(*arguments) == wire


def test_subscribe() -> None:
    """SUB has the queue group between subject and sid."""
    assert commands.subscribe(b"a.*", b"7") == b"SUB a.* 7\r\n"
    assert commands.subscribe(b"a.*", b"7", b"workers") == b"SUB a.* workers 7\r\n"


def test_unsubscribe() -> None:
    """UNSUB names a limit only when there is one."""
    assert commands.unsubscribe(b"7") == b"UNSUB 7\r\n"
    assert commands.unsubscribe(b"7", 12) == b"UNSUB 7 12\r\n"


def test_ping_and_pong() -> None:
    """PING and PONG are constants."""
    assert (commands.PING, commands.PONG) == (b"PING\r\n", b"PONG\r\n")
