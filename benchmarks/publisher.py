"""The publisher process: sends what the measured client asks for, so that both clients face the same one.

python -m benchmarks.publisher <server url>

One thread on a plain socket: the less time passes here, the more of what is measured is the client's.
"""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

from jetstream_sync.protocol import commands
from jetstream_sync.protocol.parser import PING, PONG, Parser, Run

from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, SUBJECT

PAYLOAD = b"x" * 128
ONE = commands.publish(SUBJECT.encode(), PAYLOAD)
CORE = commands.publish(CORE_SUBJECT.encode(), PAYLOAD)
# Many frames in one write: the publisher must not be what limits the rate.
HUNDRED = CORE * 100


def main(url: str) -> None:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(commands.connect({"verbose": False, "name": "publisher"}))
        sock.sendall(commands.subscribe(CREDIT_SUBJECT.encode(), b"1") + commands.PING)
        parser = Parser()
        while data := sock.recv(65536):
            for event in parser.feed(data):
                if event is PONG:
                    print("ready", flush=True)
                elif event is PING:
                    sock.sendall(commands.PONG)
                elif isinstance(event, Run):
                    for *_, credit in event.messages:
                        answer(sock, credit)


def answer(sock: socket.socket, credit: bytes) -> None:
    if credit == b"one":
        sock.sendall(ONE)
        return
    hundreds, rest = divmod(int(credit), 100)
    for _ in range(hundreds):
        sock.sendall(HUNDRED)
    if rest:
        sock.sendall(CORE * rest)


if __name__ == "__main__":
    main(sys.argv[1])
