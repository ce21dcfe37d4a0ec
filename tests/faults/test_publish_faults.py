"""Publishing through crashes: what was acknowledged is stored, and with message ids nothing is stored twice.

Loss is measured by set algebra: lost = acknowledged - stored, unexpected = stored - attempted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from jetstream_sync import (
    Connection,
    ConnectionLostError,
    JetStream,
    NatsError,
    OutboundBufferLimitError,
    PubAck,
    Stream,
    TimeoutError,
    TooManyStalledMsgsError,
    connect,
)
from jetstream_sync.testing import LocalCluster, LocalServer
from tests.support.clusters import leader_of
from tests.support.eventually import eventually
from tests.support.watchdog import InThread


def payloads_of(stream: Stream) -> Counter[bytes]:
    """How often each payload is stored."""
    consumer = stream.create_consumer(ack_policy="none", inactive_threshold=60)
    left = stream.get_info().state.messages
    found: Counter[bytes] = Counter()
    while left:
        batch = [message.data for message in consumer.fetch(min(left, 5000))]
        assert batch, "the stream ended early"
        found.update(batch)
        left -= len(batch)
    return found


class Pipeline:
    """Publishes numbered payloads as fast as the window allows until `finish()`."""

    def __init__(self, js: JetStream, *, ids: bool) -> None:
        self._js = js
        self._ids = ids
        self._stop = threading.Event()
        self.futures: dict[bytes, Future[PubAck]] = {}
        self._run = InThread(self._publish)

    def _publish(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            payload = b"%d" % number
            try:
                self.futures[payload] = self._js.publish_async(
                    "s.a", payload, msg_id=f"id-{number}" if self._ids else None, timeout=30
                )
            except (TooManyStalledMsgsError, OutboundBufferLimitError):
                continue  # not sent

    def finish(self) -> None:
        self._stop.set()
        self._run.result(60)
        self._js.publish_async_wait(60)


@pytest.mark.parametrize("ids", [False, True], ids=["without ids", "with ids"])
def test_server_killed_five_times_under_pipelined_publishing(server: LocalServer, ids: bool) -> None:
    """kill -9 and restart, five times: acked = stored; with ids everything attempted is stored exactly once."""
    with connect(
        server.url, reconnect_time_wait=0.02, reconnect_time_wait_max=0.1, error_cb=lambda error: None
    ) as nc:
        js = nc.jetstream(publish_async_max_pending=500)
        stream = js.create_stream(name="S", subjects=["s.>"], storage="file")
        pipeline = Pipeline(js, ids=ids)
        for _ in range(5):
            before = len(pipeline.futures)
            eventually(lambda before=before: len(pipeline.futures) >= before + 1000, timeout=20)  # type: ignore[misc]
            server.kill()
            server.start()
            eventually(lambda: nc.is_connected, timeout=10)
        pipeline.finish()
        errors = {payload: future.exception(0) for payload, future in pipeline.futures.items()}
        stored = payloads_of(stream)
    attempted = set(pipeline.futures)
    acked = {payload for payload, error in errors.items() if error is None}
    kinds = Counter(type(error).__name__ for error in errors.values())
    print(f"{len(attempted)} attempted, {len(acked)} acked, {len(stored)} stored, {kinds}")
    assert acked - set(stored) == set()
    assert set(stored) - attempted == set()
    assert {payload for payload, times in stored.items() if times > 1} == set()
    if ids:
        assert acked == attempted == set(stored)
    else:
        assert set(kinds) == {"NoneType", "ConnectionLostError"}


def test_server_killed_under_publish_one_at_a_time(server: LocalServer) -> None:
    """publish() without a message id raises when its ack is lost; with one it retries until it is acked."""
    with connect(
        server.url, reconnect_time_wait=0.02, reconnect_time_wait_max=0.1, error_cb=lambda error: None
    ) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s.>"], storage="file")
        ended = threading.Event()
        acked: set[bytes] = set()
        unknown: set[bytes] = set()

        def publish() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                for payload, msg_id in ((b"plain-%d" % number, None), (b"id-%d" % number, f"id-{number}")):
                    try:
                        js.publish("s.a", payload, msg_id=msg_id, timeout=20, retry_attempts=40)
                        acked.add(payload)
                    except (ConnectionLostError, TimeoutError):
                        assert msg_id is None
                        unknown.add(payload)

        publishing = InThread(publish)
        for _ in range(3):
            before = len(acked)
            eventually(lambda before=before: len(acked) >= before + 100, timeout=20)  # type: ignore[misc]
            server.kill()
            server.start()
        ended.set()
        publishing.result(30)
        stored = payloads_of(stream)
    assert acked - set(stored) == set()
    assert set(stored) - acked - unknown == set()
    assert {payload for payload, times in stored.items() if times > 1} == set()
    assert len(unknown) <= 3


def test_stopped_server_fails_publishes_at_their_timeout_and_close_is_quick(server: LocalServer) -> None:
    """SIGSTOP: without acks, futures and calls end at their timeouts, and close() returns within 3 s."""
    nc = connect(server.url)
    js = nc.jetstream(publish_async_max_pending=20_000)
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    server.pause()
    started = time.monotonic()
    futures = [
        js.publish_async("s.a", b"x" * 1000, timeout=1) for _ in range(10_000)
    ]  # more than the socket takes
    assert isinstance(futures[0].exception(5), TimeoutError)
    assert isinstance(futures[-1].exception(5), TimeoutError)
    assert time.monotonic() - started < 4
    with pytest.raises(TimeoutError):
        js.publish("s.a", timeout=0.2)
    left = js.publish_async("s.a", timeout=60)
    started = time.monotonic()
    nc.close()
    assert time.monotonic() - started < 3
    assert left.done()


# --- cluster ----------------------------------------------------------------------------------------------


class Publishing:
    """Publishes numbered payloads with message ids, one at a time, until `finish()`."""

    def __init__(self, nc: Connection, subject: str) -> None:
        self._js = nc.jetstream()
        self._subject = subject
        self._stop = threading.Event()
        self.acked: list[bytes] = []
        self.longest = 0.0
        self._run = InThread(self._publish)

    def _publish(self) -> None:
        while not self._stop.is_set():
            payload = f"{self._subject}-{len(self.acked)}"
            started = time.monotonic()
            self._js.publish(self._subject, payload.encode(), msg_id=payload, timeout=15, retry_attempts=60)
            self.longest = max(self.longest, time.monotonic() - started)
            self.acked.append(payload.encode())

    def wait_for_more(self, count: int) -> None:
        target = len(self.acked) + count
        eventually(lambda: len(self.acked) >= target or not self._run.running, timeout=40)

    def finish(self) -> None:
        self._stop.set()
        self._run.result(20)


def test_leader_killed_under_publish_with_ids(nats_cluster: LocalCluster) -> None:
    """3 replicas, kill -9 of the leader: every publish returns its ack, nothing is lost, each id is there once.

    One client is connected to the leader and loses its connection. The other one is connected to a follower and
    gets "no responders".
    """
    with connect(nats_cluster.urls) as nc:
        stream = nc.jetstream(timeout=20).create_stream(name="R3", subjects=["r.>"], num_replicas=3)
        leader = leader_of(nats_cluster, stream)
    others = [node.url for node in nats_cluster.nodes if node is not leader]
    options = {"dont_randomize": True, "reconnect_time_wait": 0.05, "error_cb": lambda error: None}
    with connect([leader.url, *others], **options) as near, connect(others, **options) as far:
        publishing = [Publishing(near, "r.leader"), Publishing(far, "r.follower")]
        for one in publishing:
            one.wait_for_more(100)
        leader.kill()
        for one in publishing:
            one.wait_for_more(100)
        for one in publishing:
            one.finish()
            print(f"{len(one.acked)} acked, the longest publish took {one.longest:.1f} s")
        nats_cluster.wait_ready()  # the node may have been the meta leader, without which no consumer is created
        stored = payloads_of(eventually(lambda: stream_of(far.jetstream(), "R3"), timeout=20))
    acked = {payload for one in publishing for payload in one.acked}
    assert acked - set(stored) == set()
    assert set(stored) - acked == set()
    assert set(stored.values()) == {1}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["publish", "publish_async"])
def test_repeat_meets_the_first_copy_in_process(nats_cluster: LocalCluster, asynchronous: bool) -> None:
    """Both followers stand still: the leader has the message and cannot commit it. Its repeats are answered with
    10158 "duplicate message id is in process" until the followers go on. Then the ack comes; it is stored once.
    """
    nats_cluster.start()
    nats_cluster.wait_ready()
    with connect(nats_cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        stream = js.create_or_update_stream(name="P3", subjects=["p3"], num_replicas=3)
        js.publish("p3", b"before", retry_attempts=60)  # elections of the test before may not be over
        leader = leader_of(nats_cluster, stream)
    followers = [node for node in nats_cluster.nodes if node is not leader]
    in_process = 0
    with connect(leader.url, error_cb=lambda error: None) as nc, connect(leader.url) as observer:
        js = nc.jetstream()
        acks = observer.subscribe("_INBOX.>")
        observer.flush()
        for node in followers:
            node.pause()
        try:
            options: Any = {"msg_id": f"id-{asynchronous}", "timeout": 20, "retry_attempts": 19}
            if asynchronous:
                publishing = InThread(js.publish_async("p3", b"x", **options).result)
            else:
                publishing = InThread(js.publish, "p3", b"x", **options)
            while not in_process:
                in_process += b"10158" in acks.next_msg(timeout=10).data
            assert publishing.running
        finally:
            for node in followers:
                node.resume()
        assert publishing.result(25).stream == "P3"
        nats_cluster.wait_ready()
        found = eventually(lambda: stream_of(nc.jetstream(timeout=2), "P3"), timeout=20)
        assert found.info.state.messages == 2
        nc.jetstream(timeout=10).delete_stream("P3")


def stream_of(js: JetStream, name: str) -> Stream | None:
    try:
        return js.get_stream(name)
    except NatsError:
        return None
