"""Run real NATS servers in tests and experiments, and inject faults into the connections to them.

`LocalServer` and `LocalCluster` run nats-server on this machine. `FaultProxy` cuts, stalls and splits the traffic
between a client and a server. `ScriptedPeer` plays a server that behaves as no real one would. The pytest plugin
(`nats_server`, `nats_cluster`, `nc`, `js`) is in `jetstream_sync.testing.plugin`.
"""

from __future__ import annotations

from jetstream_sync.testing.cluster import LocalCluster
from jetstream_sync.testing.peer import PeerConnection, ScriptedPeer
from jetstream_sync.testing.proxy import FaultProxy
from jetstream_sync.testing.server import LocalServer

__all__ = ["FaultProxy", "LocalCluster", "LocalServer", "PeerConnection", "ScriptedPeer"]
