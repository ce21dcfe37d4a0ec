"""Both ways to publish against a stream that loses, delays and refuses: what they tell is what the stream has.

The stream is played by a subscriber on a real server. It keeps a set of message ids, as a stream does, and answers
a repeat of an id as a replicated stream does: "in process" until the first copy is committed, a duplicate then.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from jetstream_sync import (
    APIError,
    ConnectionLostError,
    JetStream,
    Message,
    NatsError,
    NoStreamResponseError,
    PubAck,
    TimeoutError,
    connect,
)
from jetstream_sync.api import publish_retry
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.scripted_stream import ACK, DUPLICATE, error
from tests.support.watchdog import InThread

THREADS = 4
REFUSALS = (APIError, NoStreamResponseError)
UNKNOWN = (TimeoutError, ConnectionLostError)


class FaultyStream:
    """Stores by message id. Refuses, loses answers and commits late, at random."""

    def __init__(self, server: LocalServer, subject: str, seed: int) -> None:
        self.nc = connect(server.url)
        self.stored: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._in_process: dict[str, int] = {}
        self._pick = random.Random(seed)
        self.nc.subscribe(subject, cb=self._on_message)
        self.nc.flush()

    def _on_message(self, msg: Message) -> None:
        headers = msg.headers or {}
        answer = self._answer(str(headers["Nats-Msg-Id"]))
        if answer:
            msg.respond(answer)

    def _answer(self, msg_id: str) -> bytes:
        if msg_id in self.stored:
            if self._in_process[msg_id]:
                self._in_process[msg_id] -= 1
                return self._counted("in process", error(10158, 409))
            return self._counted("duplicate", DUPLICATE)
        fate = self._pick.random()
        if fate < 0.2:
            return self._counted("refused", error(self._pick.choice([10008, 10118])))
        if fate < 0.25:
            return self._counted("request lost", b"")
        self.stored[msg_id] += 1
        self._in_process[msg_id] = self._pick.randrange(3)
        if fate < 0.35:
            return self._counted("answer lost", b"")
        self._in_process[msg_id] = 0
        return self._counted("ack", ACK)

    def _counted(self, name: str, answer: bytes) -> bytes:
        self.answers[name] += 1
        return answer


@pytest.mark.parametrize("asynchronous", [False, True], ids=["publish", "publish_async"])
def test_what_is_told_is_what_the_stream_has(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """Refusals, lost answers, ids in process and reconnects: acked is stored, refused is not stored."""
    monkeypatch.setattr(publish_retry, "MIN_TRY_SECONDS", 0.1)
    monkeypatch.setattr(publish_retry, "ASK_SECONDS", 0.02)
    stream = FaultyStream(nats_server, "faulty", 11)
    options = {"timeout": 1.5, "retry_attempts": 4, "retry_wait": 0.01}
    outcomes: dict[str, NatsError | None] = {}
    ended = threading.Event()
    with connect(nats_server.url, reconnect_time_wait=0.01, error_cb=lambda error: None) as nc:
        js = nc.jetstream(publish_async_max_pending=100)

        def publish(thread: int) -> None:
            calls: dict[str, Callable[[], PubAck]] = {}
            for number in range(500 if asynchronous else 15):
                msg_id = f"{thread}-{number}"
                calls[msg_id] = _call(js, msg_id, asynchronous, options)
                if not asynchronous:
                    outcomes[msg_id] = _outcome(calls[msg_id])
            if asynchronous:
                outcomes.update({msg_id: _outcome(call) for msg_id, call in calls.items()})

        def disturb() -> None:
            while not ended.wait(0.3):
                before = nc.stats.reconnects
                nc.force_reconnect()
                eventually(lambda before=before: nc.stats.reconnects > before)  # type: ignore[misc]

        disturbing = InThread(disturb)
        publishing = [InThread(publish, number) for number in range(THREADS)]
        for call in publishing:
            call.result(60)
        ended.set()
        disturbing.result(10)
        assert js.publish_async_pending == 0
    stream.nc.close()
    kinds = Counter(type(outcome).__name__ for outcome in outcomes.values())
    print(dict(kinds), dict(stream.answers))
    acked = {msg_id for msg_id, outcome in outcomes.items() if outcome is None}
    refused = {msg_id for msg_id, outcome in outcomes.items() if isinstance(outcome, REFUSALS)}
    unknown = {msg_id for msg_id, outcome in outcomes.items() if isinstance(outcome, UNKNOWN)}
    assert acked - set(stream.stored) == set()
    assert refused & set(stream.stored) == set()
    assert acked | refused | unknown == set(outcomes)
    assert len(acked) > 0.95 * len(outcomes)
    assert stream.answers["in process"] > 0


def _call(js: JetStream, msg_id: str, asynchronous: bool, options: dict[str, float]) -> Callable[[], PubAck]:
    if asynchronous:
        return js.publish_async("faulty", msg_id=msg_id, **options).result  # type: ignore[arg-type]
    return lambda: js.publish("faulty", msg_id=msg_id, **options)  # type: ignore[arg-type]


def _outcome(call: Callable[[], PubAck]) -> NatsError | None:
    try:
        call()
    except NatsError as error:
        return error
    return None
