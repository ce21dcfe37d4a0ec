"""Leaders in a cluster: which node leads, and how to have another one elected."""

from __future__ import annotations

from jetstream_sync import Connection, Consumer, NatsError, Stream
from jetstream_sync.testing import LocalCluster, LocalServer
from tests.support.eventually import eventually


def leader_of(cluster: LocalCluster, led: Stream | Consumer) -> LocalServer:
    """The node that leads a stream or consumer. Waits while there is no leader."""

    def find() -> LocalServer | None:
        try:
            info = led.get_info()
        except NatsError:
            return None
        name = info.cluster.leader if info.cluster is not None else None
        return next((node for node in cluster.nodes if node.name == name), None)

    found = eventually(find, 20.0, "there is a leader")
    assert found is not None
    return found


def step_down(nc: Connection, stream: str, consumer: str = "") -> None:
    """Have the leader of a stream, or of a consumer of it, step down."""
    kind, path = ("CONSUMER", f"{stream}.{consumer}") if consumer else ("STREAM", stream)

    def accepted() -> bool:
        try:
            reply = nc.request(f"$JS.API.{kind}.LEADER.STEPDOWN.{path}", b"", timeout=2)
        except NatsError:
            return False  # an election is in progress
        return b'"success":true' in reply.data.replace(b" ", b"")

    eventually(accepted, 10.0, f"the leader of {path} steps down")
