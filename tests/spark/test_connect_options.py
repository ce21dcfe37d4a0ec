"""The options for connecting, on servers that demand them; and secrets that stay in the environment."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.errors import NoServersError
from jetstream_sync.net.nkeys import KeyPair
from jetstream_sync.spark import connection, shared
from jetstream_sync.spark.discovered import Discovered, discovered_by
from jetstream_sync.spark.identity import TASK
from jetstream_sync.spark.options import ConnectionOptions, ReadOptions, WriteOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.spark.shared import open_connection, open_patiently
from jetstream_sync.spark.writer import JetStreamStreamWriter
from jetstream_sync.testing import LocalCluster, LocalServer
from tests.spark.conftest import SECRET_OF_WORKERS, VARIABLE_OF_WORKERS
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.jwt import JwtKit, new_seed

SECRET = "hunter2-never-shown"


@pytest.fixture
def certificates(tmp_path: Path) -> CertKit:
    return CertKit(tmp_path)


@contextlib.contextmanager
def opened(**options: str) -> Iterator[Connection]:
    """A connection made from options, as planning and tasks make it."""
    with open_connection(ConnectionOptions.parse(options), "test") as nc:
        nc.flush()
        yield nc


@pytest.mark.parametrize(
    ("authorization", "options"),
    [
        (f'user: "u", password: "{SECRET}"', {"user": "u", "passwordEnv": "TEST_SECRET"}),
        (f'token: "{SECRET}"', {"tokenEnv": "TEST_SECRET"}),
    ],
)
def test_password_and_token_from_the_environment(
    authorization: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of the variable is what the server gets."""
    monkeypatch.setenv("TEST_SECRET", SECRET)
    with (
        LocalServer(config=f"authorization {{ {authorization} }}") as server,
        opened(servers=server.url, **options),
    ):
        pass


def test_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable holds the content of a .creds file."""
    kit = JwtKit()
    monkeypatch.setenv("TEST_CREDS", kit.user_creds())
    with (
        LocalServer(config=kit.server_config()) as server,
        opened(servers=server.url, credentialsEnv="TEST_CREDS"),
    ):
        pass


def test_nkey_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed comes from a file, from a variable, and for connection() as a value."""
    seed, file = new_seed(), tmp_path / "seed.nk"
    file.write_text(seed + "\n")
    monkeypatch.setenv("TEST_SEED", seed + "\n")
    config = f"authorization {{ users: [ {{ nkey: {KeyPair(seed).public_key} }} ] }}"
    with LocalServer(config=config) as server:
        for options in ({"nkeySeedFile": str(file)}, {"nkeySeedEnv": "TEST_SEED"}, {"nkeySeed": seed}):
            with opened(servers=server.url, **options):
                pass


def test_tls_first_and_hostname(certificates: CertKit) -> None:
    """The handshake comes before INFO, and the certificate has another name than the address."""
    issued = certificates.server("nats.example.com", ips=())
    config = certificates.server_tls_config(*issued, handshake_first=True)
    with LocalServer(config=config) as server:
        options = {"servers": server.url, "tlsCaFile": str(certificates.ca_file), "tlsFirst": "true"}
        with opened(**options, tlsHostname="nats.example.com"):
            pass
        with pytest.raises(NoServersError, match="certificate"):
            open_connection(ConnectionOptions.parse(options), "test")


def test_inbox_prefix() -> None:
    """An account that may only use inboxes of its own works with inboxPrefix."""
    permissions = 'permissions: { subscribe: { allow: ["_INBOX_spark.>"] } }'
    with LocalServer(config=f"authorization {{ user: u, password: p, {permissions} }}") as server:
        with opened(servers=server.url, user="u", password="p", inboxPrefix="_INBOX_spark") as nc:
            assert nc.jetstream().account_info().streams == 0


def test_connect_timeout() -> None:
    """connectTimeout bounds an attempt at a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accepted: list[socket.socket] = []
        threading.Thread(target=lambda: accepted.append(silent.accept()[0]), daemon=True).start()
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NoServersError):
            open_connection(ConnectionOptions.parse({"servers": url, "connectTimeout": "0.3"}), "test")
        for each in accepted:
            each.close()


DEAD = "nats://127.0.0.1:1"


def test_discovered_servers_are_the_second_choice() -> None:
    """A task connects to a server that the cluster has advertised if those of the options are away."""
    with LocalServer() as configured, LocalServer() as other:
        discovered = Discovered((other.url,))
        for servers, expected in ((DEAD, other), (f"{DEAD},{configured.url}", configured)):
            with open_patiently(ConnectionOptions.parse({"servers": servers}), "t", discovered=discovered) as nc:
                assert nc.connected_url == expected.url


def test_discovered_address_has_the_name_of_the_server_that_advertised_it(certificates: CertKit) -> None:
    """Clusters advertise IP addresses, which certificates rarely name."""
    config = certificates.server_tls_config(*certificates.server("localhost", ips=()))
    with LocalServer(config=config) as server:
        options = ConnectionOptions.parse({"servers": DEAD, "tlsCaFile": str(certificates.ca_file)})
        with open_connection(options, "test", TASK, Discovered((server.url,), "localhost")) as nc:
            nc.flush()
        with pytest.raises(NoServersError, match="certificate"):
            open_connection(options, "test", TASK, Discovered((server.url,)))


def test_discovered_servers_of_a_cluster() -> None:
    """What the cluster advertises is passed on, with the name of the server; nothing where it is ignored."""
    with LocalCluster(3) as cluster:
        first = cluster.nodes[0].url
        with opened(servers=first.replace("127.0.0.1", "localhost")) as nc:
            eventually(lambda: set(cluster.urls) - {first} <= set(discovered_by(nc).urls), timeout=30)
            assert discovered_by(nc).tls_name == "localhost"
        with opened(servers=f"{first}?ignore_discovered_servers=true") as nc:
            assert discovered_by(nc) == Discovered()


def test_credentials_of_a_url_are_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in NATS_URL is not tried, nor left out, at servers that the cluster advertises."""
    with LocalServer() as other:
        monkeypatch.setenv("NATS_URL", f"nats://u:{SECRET}@127.0.0.1:1")
        with pytest.raises(NoServersError) as caught:
            open_connection(ConnectionOptions.parse({}), "test", TASK, Discovered((other.url,)))
    assert SECRET not in str(caught.value)


def test_shared_connection_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """connection() has the same options; what a variable lacks is said of the process that calls it."""
    monkeypatch.setenv("TEST_SECRET", SECRET)
    with LocalServer(config=f'authorization {{ token: "{SECRET}" }}') as server:
        with connection(servers=server.url, tokenEnv="TEST_SECRET", inboxPrefix="_mine", connectTimeout=5) as nc:
            assert nc.new_inbox().startswith("_mine.")
        shared._shared.clear()
        with pytest.raises(
            ValueError, match=r"'tokenEnv': .* 'NO_SUCH' is not set in the process that calls conn"
        ):
            connection(servers=server.url, tokenEnv="NO_SUCH")


def test_no_secret_in_what_spark_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader and the writer that Spark serializes into tasks hold the variable's name only."""
    monkeypatch.setenv("TEST_SECRET", SECRET)
    given = {"servers": "nats://h", "user": "u", "passwordEnv": "TEST_SECRET"}
    reader = JetStreamReader(ReadOptions.parse({**given, "stream": "S"}), ("seq",))
    writer = JetStreamStreamWriter(WriteOptions.parse({**given, "subject": "s"}), frozenset({"data"}))
    for copied in (reader, writer):
        task = cloudpickle.dumps(copied)
        assert b"TEST_SECRET" in task
        assert SECRET.encode() not in task
        assert isinstance(pickle.loads(task), type(copied))


def test_secret_of_the_workers(spark: SparkSession, spark_log: Path) -> None:
    """Planner and tasks read the password from their own environment: it is in no plan and no log."""
    config = f'authorization {{ user: "spark", password: "{SECRET_OF_WORKERS}" }}'
    with LocalServer(config=config) as server:
        options = {"servers": server.url, "user": "spark", "passwordEnv": VARIABLE_OF_WORKERS}
        with jetstream_sync.connect(server.url, user="spark", password=SECRET_OF_WORKERS) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s.>"])
        spark.sparkContext.setLogLevel("DEBUG")
        try:
            rows = spark.range(10).selectExpr("cast(id as string) as data", "'s.a' as subject")
            rows.write.format("jetstream").options(**options).mode("append").save()
            frame = spark.read.format("jetstream").options(**options, stream="S").load()
            assert frame.count() == 10
            plan = frame._jdf.queryExecution().toString()
            with pytest.raises(Exception) as caught:
                missing = {**options, "passwordEnv": "NO_SUCH_VARIABLE"}
                spark.read.format("jetstream").options(**missing, stream="S").load().count()
        finally:
            spark.sparkContext.setLogLevel("OFF")
    said = (
        "option 'passwordEnv': the environment variable 'NO_SUCH_VARIABLE' is not set in the process of the driver"
    )
    assert said in str(caught.value)
    for where in (plan, spark_log.read_text(), str(caught.value)):
        assert SECRET_OF_WORKERS not in where
