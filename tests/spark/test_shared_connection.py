"""connection(): one per process and options, for code that runs on executors; and how the source is found."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import ForkError, NoServersError
from jetstream_sync.spark import connection, shared
from jetstream_sync.testing import LocalServer
from tests.spark import udfs
from tests.spark.conftest import spark_environment
from tests.support.eventually import eventually
from tests.support.watchdog import InThread


@pytest.fixture
def own_shared() -> object:
    """What a test shares in this process is closed after it."""
    yield None
    for nc in shared._shared.values():
        nc.close()
    shared._shared.clear()


def test_udf_shares_a_connection(spark: SparkSession, nats_server: LocalServer, nc: Connection) -> None:
    """A UDF asks a service a thousand times; each worker process has one connection."""
    with nc.subscribe("double", cb=lambda msg: msg.respond(b"%d" % (2 * int(msg.data)))):
        ask = f.udf(partial(udfs.ask, nats_server.url), useArrow=False)
        rows = (
            spark.range(0, 1000, numPartitions=4)
            .select("id", ask(f.col("id").cast("string")).alias("a"))
            .collect()
        )
    answers = [row.a.split() for row in rows]
    assert [int(each[0]) for each in answers] == [2 * row.id for row in rows]
    connections = {(process, client) for _, process, client in answers}
    assert len(connections) == len({process for process, _ in connections})


def test_foreach_partition(spark: SparkSession, nats_server: LocalServer, js: JetStream) -> None:
    """Partitions publish over the shared connection."""
    js.create_stream(name="S", subjects=["s.>"])
    spark.range(0, 100, numPartitions=4).foreachPartition(partial(udfs.publish_rows, nats_server.url))
    assert js.get_stream("S").info.state.messages == 100


def test_same_options_same_connection(nats_server: LocalServer, own_shared: None) -> None:
    """Equal options give the same connection, others another; one that was closed is made anew."""
    first = connection(servers=nats_server.url)
    assert connection(servers=nats_server.url) is first
    assert connection(servers=nats_server.url, token=None) is first
    other = connection(servers=nats_server.url, user="u", password="p")
    assert other is not first
    first.close()
    assert connection(servers=nats_server.url) is not first
    with pytest.raises(ValueError, match="server"):
        connection(server=nats_server.url)


def test_threads_share_a_connection(nats_server: LocalServer, own_shared: None) -> None:
    """Threads that ask at once get the same connection, and no other one stays open."""
    before = nats_server.monitor("/connz")["num_connections"]
    asking = [InThread(connection, servers=nats_server.url) for _ in range(8)]
    assert len({id(each.result()) for each in asking}) == 1
    eventually(lambda: nats_server.monitor("/connz")["num_connections"] == before + 1)


def test_server_that_is_silent_holds_up_no_other_thread(nats_server: LocalServer, own_shared: None) -> None:
    """Connections to other servers are opened while one thread waits for a server that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = InThread(connection, servers=f"nats://127.0.0.1:{silent.getsockname()[1]}", connectTimeout=20)
        accepted, _ = silent.accept()
        with accepted:
            assert connection(servers=nats_server.url).is_connected
            assert waiting.running
        with pytest.raises(NoServersError):
            waiting.result()


def test_fork_makes_its_own(nats_server: LocalServer, own_shared: None) -> None:
    """A forked child gets a connection of its own, and the parent's raises ForkError there."""
    parents = connection(servers=nats_server.url)
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            mine = connection(servers=nats_server.url)
            mine.flush()
            try:
                parents.flush()
            except ForkError:
                outcome = 0 if mine is not parents else 2
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    parents.flush()


def test_discovered_without_registering(spark: SparkSession) -> None:
    """`pyspark_jetstream` is what Spark looks for, and imports cleanly where pyarrow is not."""
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import pyspark_jetstream\n"
        "assert pyspark_jetstream.DefaultSource.name() == 'jetstream'\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], env=spark_environment(), capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    session = spark.newSession()
    with pytest.raises(Exception, match="'stream' is required"):  # found, and asks for its option
        session.read.format("jetstream").load()


def test_library_loads_nothing_of_spark() -> None:
    """`import jetstream_sync` loads nothing outside the standard library."""
    program = (
        "import sys; before = set(sys.modules); import jetstream_sync\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in new if not name.startswith('__editable__')))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "['jetstream_sync']"
