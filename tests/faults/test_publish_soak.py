"""Publishing with message ids to three replicas while leaders are killed: what is told is what is stored."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from jetstream_sync import (
    JetStream,
    NatsError,
    OutboundBufferLimitError,
    PubAck,
    TimeoutError,
    TooManyStalledMsgsError,
    connect,
)
from jetstream_sync.testing import LocalCluster
from tests.faults.test_publish_faults import payloads_of
from tests.support.clusters import leader_of
from tests.support.eventually import eventually
from tests.support.watchdog import InThread

KILLS = 5


class Soaking:
    """Publishes numbered payloads with ids until `finish()`, and keeps what became of each."""

    def __init__(self, js: JetStream, name: str, *, asynchronous: bool) -> None:
        self._js = js
        self._name = name
        self._asynchronous = asynchronous
        self._stop = threading.Event()
        self._calls: dict[bytes, Callable[[], PubAck]] = {}
        self.outcomes: dict[bytes, NatsError | None] = {}
        self._run = InThread(self._publish)

    def _publish(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                break
            payload = f"{self._name}-{number}"
            try:
                if self._asynchronous:
                    future = self._js.publish_async("r.a", payload.encode(), msg_id=payload, timeout=25)
                    self._calls[payload.encode()] = future.result
                else:
                    self._js.publish("r.a", payload.encode(), msg_id=payload, timeout=25, retry_attempts=100)
                    self.outcomes[payload.encode()] = None
            except (TooManyStalledMsgsError, OutboundBufferLimitError):
                continue  # not sent
            except NatsError as error:
                self.outcomes[payload.encode()] = error

    @property
    def count(self) -> int:
        return len(self._calls) + len(self.outcomes)

    def finish(self) -> None:
        self._stop.set()
        self._run.result(60)
        for payload, call in self._calls.items():
            try:
                call()
                self.outcomes[payload] = None
            except NatsError as error:
                self.outcomes[payload] = error


@pytest.mark.soak
def test_leaders_killed_under_publishing_with_ids() -> None:
    """Five kills of the stream's leader: refused but stored 0, acked but not stored 0, each id stored once."""
    options = {"reconnect_time_wait": 0.05, "error_cb": lambda error: None}
    with (
        LocalCluster(3) as cluster,
        connect(cluster.urls, **options) as nc,
        connect(cluster.urls, **options) as own,
    ):
        own.jetstream(timeout=20).create_stream(name="R3", subjects=["r.>"], num_replicas=3)
        stream = own.jetstream(timeout=2).get_stream("R3")  # a question during an election may not be answered
        soaking = [
            Soaking(nc.jetstream(publish_async_max_pending=200), "async", asynchronous=True),
            *[Soaking(nc.jetstream(), f"sync-{number}", asynchronous=False) for number in range(3)],
        ]
        for _ in range(KILLS):
            before = [one.count for one in soaking]
            eventually(
                lambda before=before: all(  # type: ignore[misc]
                    one.count >= count + 50 for one, count in zip(soaking, before, strict=True)
                ),
                timeout=60,
            )
            leader = leader_of(cluster, stream)
            leader.kill()
            leader_of(cluster, stream)
            leader.start()
            cluster.wait_ready()
        for one in soaking:
            one.finish()
        stored = payloads_of(stream)
    outcomes = {payload: outcome for one in soaking for payload, outcome in one.outcomes.items()}
    acked = {payload for payload, outcome in outcomes.items() if outcome is None}
    unknown = {payload for payload, outcome in outcomes.items() if isinstance(outcome, TimeoutError)}
    refused = set(outcomes) - acked - unknown
    print(f"{len(outcomes)} published: {Counter(type(outcome).__name__ for outcome in outcomes.values())}")
    print(f"refused but stored: {len(refused & set(stored))}, unknown but stored: {len(unknown & set(stored))}")
    assert acked - set(stored) == set()
    assert refused & set(stored) == set()
    assert set(stored) - set(outcomes) == set()
    assert set(stored.values()) == {1}
