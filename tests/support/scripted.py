"""A scripted peer that plays JetStream with one stream S, and answers what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.testing import PeerConnection, ScriptedPeer
from tests.support.eventually import eventually

CREATED = "2026-01-01T00:00:00.000000001Z"
CONSUMER_NOT_FOUND = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
STREAM_NOT_FOUND = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
UNAVAILABLE = {
    "error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}
}


class Asked(NamedTuple):
    """A request of the client's: when it came, its subject behind `$JS.API.`, and its body."""

    at: float
    subject: str
    body: dict[str, Any]


# The answer to a request; None: none at all.
Answer = dict[str, Any] | None


class ScriptedJetStream:
    """Answers the API as `answer` says, and each pull with the lines of statuses that `pulled` returns."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.pulled: Callable[[Asked], list[str]] = lambda asked: []
        self.answer: Callable[[Asked], Answer] = self.usual
        self.created, self.last_seq = CREATED, 0
        self._sids: dict[str, str] = {}
        self._connection: PeerConnection | None = None
        self._lock = threading.Lock()

    def requests(self, kind: str) -> list[Asked]:
        """What was asked so far, of one kind: `CONSUMER.INFO`, say."""
        return [asked for asked in list(self.asked) if asked.subject.startswith(kind)]

    def usual(self, asked: Asked) -> Answer:
        """What a server says that has the stream and every consumer."""
        kind = ".".join(asked.subject.split(".")[:2])
        if kind == "STREAM.NAMES":
            return {"streams": ["S"], "total": 1}
        if kind == "STREAM.INFO":
            state = {"messages": self.last_seq, "first_seq": 1, "last_seq": self.last_seq}
            return {"config": {"name": "S"}, "created": self.created, "state": state}
        if kind == "CONSUMER.CREATE":
            config = asked.body["config"]
            return {"stream_name": "S", "name": config["name"], "config": config}
        if kind == "CONSUMER.INFO":
            return {"stream_name": "S", "name": asked.subject.split(".")[-1], "config": {"ack_policy": "explicit"}}
        return {"success": True}

    # --- thread of the script -------------------------------------------------------------------------

    def serve(self, connection: PeerConnection) -> None:
        connection.handshake()
        with self._lock:
            self._connection = connection
        while True:
            verb, *words = connection.expect_line(timeout=60.0).decode().split(" ")
            if verb == "PING":
                self._send(b"PONG\r\n")
            elif verb == "SUB":
                self._sids[words[0]] = words[-1]
            elif verb == "PUB":
                payload = connection.read_exactly(int(words[-1]) + 2)[:-2]
                subject = words[0].removeprefix("$JS.API.")
                body = json.loads(payload) if payload[:1] == b"{" else {}
                asked = Asked(time.monotonic(), subject, body)
                self.asked.append(asked)
                if len(words) == 3:
                    self._reply(asked, words[1])

    def _reply(self, asked: Asked, reply: str) -> None:
        if asked.subject.startswith("CONSUMER.MSG.NEXT."):
            for line in self.pulled(asked):
                self.status(reply, line)
            return
        answer = self.answer(asked)
        if answer is not None:
            self.send(reply, json.dumps(answer).encode())

    def _send(self, data: bytes) -> None:
        with self._lock:
            assert self._connection is not None
            self._connection.send(data)

    def inboxes(self) -> list[str]:
        """The subjects that the client is subscribed to, the newest first."""
        return list(reversed(self._sids))

    def _sid(self, subject: str) -> str:
        """Of the subscription that `subject` is for; it may still be on its way."""
        wildcard = subject.rpartition(".")[0] + ".*"
        return eventually(lambda: self._sids.get(subject) or self._sids.get(wildcard), message=f"SUB of {subject}")

    # --- what the test says ---------------------------------------------------------------------------

    def send(self, subject: str, payload: bytes, reply: str = "", *, to: str = "") -> None:
        """A message on `subject`, for the subscription of `to` (default: that of the subject)."""
        head = f"MSG {subject} {self._sid(to or subject)} {reply + ' ' if reply else ''}{len(payload)}\r\n"
        self._send(head.encode() + payload + b"\r\n")

    def status(self, subject: str, line: str) -> None:
        block = f"NATS/1.0 {line}\r\n\r\n".encode()
        self._send(f"HMSG {subject} {self._sid(subject)} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")


@contextmanager
def scripted_jetstream(**options: Any) -> Iterator[tuple[ScriptedJetStream, JetStream, list[Exception]]]:
    """The script, a JetStream on a connection to it, and what the error callback was told."""
    script, errors = ScriptedJetStream(), []
    with ScriptedPeer(script.serve) as peer:
        nc = jetstream_sync.connect(peer.url, error_cb=errors.append, reconnect_time_wait=0.01)
        try:
            yield script, nc.jetstream(**options), errors
        finally:
            nc.close()
