"""Consuming from a cluster of three: step-downs, a killed leader, a rolling restart. Nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection, Consumer
from jetstream_sync.errors import PullError
from jetstream_sync.testing import LocalCluster
from tests.faults.test_consume_faults import Publisher, Reader, assert_nothing_lost
from tests.support.clusters import leader_of, step_down
from tests.support.eventually import eventually

FLOWS_WITHIN = 3.0


@pytest.fixture
def nc(nats_cluster: LocalCluster) -> Iterator[Connection]:
    nats_cluster.start()  # an earlier test may have killed nodes
    connection = jetstream_sync.connect(nats_cluster.urls)
    yield connection
    nats_cluster.start()
    eventually(lambda: connection.is_connected, 10.0)
    connection.jetstream(timeout=10).delete_stream("S")
    connection.close()


def replicated(nc: Connection) -> Consumer:
    """Stream and consumer on three nodes, both with a leader."""
    js = nc.jetstream(timeout=10)
    js.create_stream(name="S", subjects=["s.>"], num_replicas=3)
    consumer = js.create_consumer("S", durable_name="C", ack_wait=3)
    eventually(lambda: consumer.get_info().cluster is not None, 10.0)
    return consumer


def assert_flows_after(publisher: Publisher, reader: Reader, since: float) -> None:
    """The first message stored after `since` is read within 3 s. The election before it may take longer."""
    number, stored_at = eventually(
        lambda: publisher.last_ack if publisher.last_ack[1] > since else None, 15.0, "the stream takes messages"
    )
    eventually(lambda: reader.newest >= number, FLOWS_WITHIN + 10.0)
    assert time.monotonic() - stored_at <= FLOWS_WITHIN


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_step_downs_are_ridden_out(nats_cluster: LocalCluster, nc: Connection, what: str) -> None:
    """After each of a few step-downs messages flow again within 3 s; nothing is lost, the consume never ends."""
    ride_out_step_downs(nats_cluster, nc, [what] * 2, 0.5)


@pytest.mark.soak
def test_twenty_step_downs_are_ridden_out(nats_cluster: LocalCluster, nc: Connection) -> None:
    """20 step-downs, one every 2 s, at 100 messages/s."""
    ride_out_step_downs(nats_cluster, nc, ["consumer", "stream"] * 10, 2.0)


def ride_out_step_downs(cluster: LocalCluster, nc: Connection, steps: list[str], every: float) -> None:
    consumer = replicated(nc)
    errors: list[Exception] = []
    reader = Reader()
    with Publisher(cluster.urls, 100) as publisher, consumer.consume(reader, on_error=errors.append) as context:
        eventually(lambda: reader.count > 20, 10.0)
        for what in steps:
            start = time.monotonic()
            step_down(nc, "S", "C" if what == "consumer" else "")
            assert_flows_after(publisher, reader, time.monotonic())
            eventually(lambda start=start: time.monotonic() >= start + every, every + 1)
        publisher.close()
        assert_nothing_lost(publisher, reader)
        assert not context.closed


def test_step_down_ends_an_empty_fetch_with_the_servers_reason(nats_cluster: LocalCluster, nc: Connection) -> None:
    """A real 409 Leadership Change ends a fetch without messages with PullError, long before its expiry."""
    consumer = replicated(nc)
    batch = consumer.fetch(1, expires=15)
    eventually(lambda: consumer.get_info().num_waiting == 1)
    start = time.monotonic()
    step_down(nc, "S", "C")
    with pytest.raises(PullError, match="Leadership Change"):
        list(batch)
    assert time.monotonic() - start < 5


def test_killed_leader_is_ridden_out(nats_cluster: LocalCluster, nc: Connection) -> None:
    """The consumer's leader is killed and sends no status: consume() goes on with the next leader."""
    consumer = replicated(nc)
    reader = Reader()
    consuming = consumer.consume(reader, expires=4, idle_heartbeat=1, on_error=lambda _: None)
    with Publisher(nats_cluster.urls, 100) as publisher, consuming as context:
        eventually(lambda: reader.count > 20, 10.0)
        leader = leader_of(nats_cluster, consumer)
        leader.kill()
        before = reader.count
        eventually(lambda: reader.count > before + 50, 25.0)
        leader.start()
        publisher.close()
        assert_nothing_lost(publisher, reader)
        assert not context.closed


@pytest.mark.soak
def test_rolling_restart_is_ridden_out(nats_cluster: LocalCluster, nc: Connection) -> None:
    """Each node stopped and started in turn: nothing lost, consume and messages() never end."""
    consumer = replicated(nc)
    reader = Reader()
    consuming = consumer.consume(reader, expires=4, idle_heartbeat=1, on_error=lambda _: None)
    with Publisher(nats_cluster.urls, 100) as publisher, consuming as context:
        eventually(lambda: reader.count > 20, 10.0)
        for node in nats_cluster.nodes:
            node.stop()
            before = reader.count
            eventually(lambda before=before: reader.count > before + 50, 25.0)
            node.start()
            nats_cluster.wait_ready()
        publisher.close()
        assert_nothing_lost(publisher, reader, 30.0)
        assert not context.closed
