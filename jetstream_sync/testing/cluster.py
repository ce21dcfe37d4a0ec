"""Several nats-servers on this machine that form one JetStream cluster."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from jetstream_sync._deadline import Deadline
from jetstream_sync.testing.server import HOST, LocalServer, PortReservation, find_executable

# The first election takes about a second; an election after a leader was killed takes up to ten.
READY_TIMEOUT = 30.0
_POLL_INTERVAL = 0.02
# A paused node does not reply; waiting for it must not delay the look at the others for long.
_MONITOR_TIMEOUT = 1.0


class LocalCluster:
    """A cluster of `size` servers with JetStream (default 3). A context manager that starts and removes them.

    `nodes` are ordinary `LocalServer`s: each can be killed, paused and started again on its own, and keeps its
    ports, name and data. `config` is added to the configuration of every node. The ports of the routes are
    reserved from construction to `close()`.

    Only one thread at a time may start or stop it. All other methods may be called from any thread.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        config: str | None = None,
        executable: str | os.PathLike[str] | None = None,
    ) -> None:
        if size < 2:
            raise ValueError(f"a cluster has at least two nodes, not {size}")
        executable = find_executable(executable)  # first: it may raise, and nothing is reserved yet
        self._route_ports = [PortReservation() for _ in range(size)]
        # A unique name, so that servers of other clusters on this machine do not join this one.
        self.name: str = f"cluster-{self._route_ports[0].port}"
        """The cluster's name."""
        self.nodes: list[LocalServer] = [
            LocalServer(
                name=f"{self.name}-n{number}",
                config=f"{self._route_config(number)}\n{config or ''}",
                executable=executable,
            )
            for number in range(1, size + 1)
        ]
        """The servers, in the order of their numbers."""

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes, including those that are not running."""
        return [node.url for node in self.nodes]

    @property
    def leader(self) -> LocalServer | None:
        """The leader of the JetStream meta group; None while there is none. Asks the nodes."""
        for node in self._running_nodes():
            if _meta_group(node).get("leader") == node.name:
                return node
        return None

    def __repr__(self) -> str:
        running = sum(node.is_running for node in self.nodes)
        return f"<LocalCluster {self.name!r} {running} of {len(self.nodes)} nodes running>"

    def start(self) -> LocalCluster:
        """Start the nodes that are not running, and wait until the cluster is ready. Raises as `wait_ready()`."""
        stopped = [node for node in self.nodes if not node.is_running]
        for node in stopped:
            node.launch()
        for node in stopped:
            node.wait_ready()
        self.wait_ready()
        return self

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until the running nodes agree on a meta leader, are up to date and report that they are healthy.

        Does not wait for nodes that were stopped or killed. Raises `TimeoutError` after `timeout`
        seconds, which says what is missing.
        """
        deadline = Deadline(timeout)
        while True:
            missing = self._what_is_missing()
            if not missing:
                return
            if deadline.expired:
                raise TimeoutError(f"the cluster is not ready after {timeout} s: {missing}")
            time.sleep(_POLL_INTERVAL)

    def stop(self) -> None:
        """Stop all nodes gracefully. Their data are kept for `start()`."""
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        """Stop all nodes, release the ports and remove the data. Idempotent."""
        for node in self.nodes:
            node.close()
        for reservation in self._route_ports:
            reservation.release()

    def __enter__(self) -> LocalCluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _route_config(self, number: int) -> str:
        routes = ", ".join(f'"nats://{HOST}:{reservation.port}"' for reservation in self._route_ports)
        listen = f"{HOST}:{self._route_ports[number - 1].port}"
        return f'cluster {{ name: "{self.name}", listen: "{listen}", routes: [{routes}] }}'

    def _running_nodes(self) -> list[LocalServer]:
        return [node for node in self.nodes if node.is_running]

    def _what_is_missing(self) -> str:
        """Why the cluster is not ready; empty when it is."""
        running = self._running_nodes()
        if len(running) <= len(self.nodes) // 2:  # a leader without a quorum notices that only after a while
            return f"no quorum with {len(running)} of {len(self.nodes)} nodes"
        groups = {node.name: _meta_group(node) for node in running}
        leaders = {str(group.get("leader", "")) for group in groups.values()}
        if len(leaders) != 1 or not leaders <= set(groups):
            return f"no common meta leader, but {sorted(leaders)}"
        group = groups[leaders.pop()]
        if group.get("cluster_size") != len(self.nodes):
            return f"the meta group has {group.get('cluster_size')} members"
        current = {replica["name"] for replica in group.get("replicas") or () if replica.get("current")}
        behind = sorted(set(groups) - current - {group["leader"]})
        if behind:
            return f"not up to date: {behind}"
        return "; ".join(filter(None, (_illness(node) for node in running)))


def _meta_group(node: LocalServer) -> dict[str, Any]:
    """What the node reports of the meta group; empty when it does not reply."""
    try:
        group: dict[str, Any] = node.monitor("/jsz", _MONITOR_TIMEOUT).get("meta_cluster") or {}
        return group
    except (OSError, ValueError):
        return {}


def _illness(node: LocalServer) -> str:
    try:
        health = node.monitor("/healthz", _MONITOR_TIMEOUT)
    except (OSError, ValueError) as error:
        return f"{node.name}: {error}"
    return "" if health.get("status") == "ok" else f"{node.name}: {health.get('error')}"
