"""The pytest plugin: fixtures that give a test a real server. It changes nothing else.

    def test_orders(js):
        js.create_stream(name="ORDERS", subjects=["orders.>"])
        assert js.publish("orders.new", b"1").seq == 1

A missing nats-server is an error, not a skip: a suite that runs nothing must not be green.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync._deadline import Deadline
from jetstream_sync.testing.cluster import LocalCluster
from jetstream_sync.testing.server import LocalServer

# How long a server may take to remove the folders of streams it says are deleted.
REMOVAL_SECONDS = 10.0


@pytest.fixture(scope="module")
def nats_server() -> Iterator[LocalServer]:
    """A `LocalServer` with JetStream for the tests of one module."""
    with LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def nats_cluster() -> Iterator[LocalCluster]:
    """A `LocalCluster` of three nodes for the tests of one module."""
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def nc(nats_server: LocalServer) -> Iterator[jetstream_sync.Connection]:
    """A fresh connection to `nats_server`, closed after the test."""
    connection = jetstream_sync.connect(nats_server.url)
    yield connection
    connection.close()


@pytest.fixture
def js(nats_server: LocalServer, nc: jetstream_sync.Connection) -> Iterator[jetstream_sync.JetStream]:
    """JetStream over `nc`. Every stream of the server is deleted after the test."""
    yield nc.jetstream()
    _delete_all_streams(nats_server)


def _delete_all_streams(server: LocalServer) -> None:
    """Over a connection of its own: the test may have closed its one, or left it in any state."""
    if not server.is_running:
        server.start()
    with jetstream_sync.connect(server.url) as connection:
        streams = connection.jetstream()
        names = list(streams.stream_names())
        for name in names:
            streams.delete_stream(name)
    _await_removal(server.store_dir, names)


def _await_removal(store_dir: Path, names: list[str]) -> None:
    """Wait until the folders of deleted streams are gone.

    The server answers before it has removed them (by way of a name with a dot), and a stream of the same name
    that is created meanwhile finds the deleted one's messages in it (seen with 2.15.1).
    """
    deadline = Deadline(REMOVAL_SECONDS)
    streams = [folder for folder in (store_dir / "jetstream").glob("*/streams") if folder.is_dir()]
    left = [folder / name for folder in streams for stem in names for name in (stem, f".{stem}")]
    while any(folder.exists() for folder in left):
        if deadline.expired:
            raise RuntimeError(f"nats-server has not removed deleted streams within {REMOVAL_SECONDS} s")
        time.sleep(0.001)
