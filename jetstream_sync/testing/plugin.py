"""The pytest plugin: fixtures with a real server for tests. It changes nothing else.

    def test_orders(js):
        js.create_stream(name="ORDERS", subjects=["orders.>"])
        assert js.publish("orders.new", b"1").seq == 1

Without a nats-server the tests fail; they are not skipped.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync._deadline import Deadline
from jetstream_sync.testing.cluster import LocalCluster
from jetstream_sync.testing.server import LocalServer

# How long a server may take to remove the folders of deleted streams.
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
    connection = _connect(nats_server)
    yield connection
    connection.close()


@pytest.fixture
def js(nats_server: LocalServer, nc: jetstream_sync.Connection) -> Iterator[jetstream_sync.JetStream]:
    """JetStream over `nc`. Every stream of the server is deleted after the test."""
    yield nc.jetstream()
    _delete_all_streams(nats_server)


def _connect(server: LocalServer) -> jetstream_sync.Connection:
    """Connect without the NATS_… variables of the developer's shell: they are meant for other servers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("NATS_")]:
            patch.delenv(name)
        return jetstream_sync.connect(server.url)


def _delete_all_streams(server: LocalServer) -> None:
    """Delete all streams over a separate connection: the test may have closed its own, or left it in any state."""
    if not server.is_running:
        server.start()
    with _connect(server) as connection:
        streams = connection.jetstream()
        for name in list(streams.stream_names()):
            streams.delete_stream(name)
    await_removal(server.store_dir)


def await_removal(store_dir: Path) -> None:
    """Wait until the server has removed the folders of deleted streams. Its global account must have no stream.

    The server renames the folder of a deleted stream S to `.S`, replies, and then removes `.S`. If S is created
    and deleted again before that, the server cannot rename the second folder and leaves it without an error. The
    next stream S then contains its messages (seen with 2.12.8 and 2.15.1). So this waits for the renamed folders,
    and removes those that were left because a test deleted and created a stream twice.
    """
    deadline = Deadline(REMOVAL_SECONDS)
    folders = store_dir / "jetstream" / "$G" / "streams"
    while glob.glob(".*", root_dir=folders):
        if deadline.expired:
            raise RuntimeError(f"nats-server has not removed deleted streams within {REMOVAL_SECONDS} s")
        time.sleep(0.001)
    for stayed in glob.glob("*", root_dir=folders):
        shutil.rmtree(folders / stayed, ignore_errors=True)
