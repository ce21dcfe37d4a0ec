"""TLS, credentials, and secrets that show up nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetstream_sync
from jetstream_sync.spark.options import ConnectionOptions, ReadOptions, WriteOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.spark.shared import open_connection
from jetstream_sync.spark.source import JetStreamDataSource
from jetstream_sync.testing import LocalServer
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.jwt import JwtKit

SECRET = "hunter2-never-shown"


@pytest.fixture
def certificates(tmp_path: Path) -> CertKit:
    return CertKit(tmp_path)


@pytest.fixture
def guarded(certificates: CertKit) -> Iterator[LocalServer]:
    """A server that wants a client certificate and a password."""
    config = certificates.server_tls_config(*certificates.server(), verify=True)
    with LocalServer(config=f'{config}\nauthorization {{ user: "spark", password: "{SECRET}" }}\n') as server:
        yield server


def options_for(server: LocalServer, certificates: CertKit) -> dict[str, str]:
    cert, key = certificates.client("spark")
    return {
        "servers": server.url,
        "user": "spark",
        "password": SECRET,
        "tlsCaFile": str(certificates.ca_file),
        "tlsCertFile": str(cert),
        "tlsKeyFile": str(key),
    }


def test_tls_and_password(
    spark: SparkSession,
    spark_log: Path,
    guarded: LocalServer,
    certificates: CertKit,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reading and writing work over TLS with a password, which is in no plan, no log and no error."""
    options = options_for(guarded, certificates)
    with open_connection(ConnectionOptions.parse(options), "test") as nc:
        nc.jetstream().create_stream(name="S", subjects=["s.>"])
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        rows = spark.range(100).selectExpr("cast(id as string) as data", "'s.a' as subject")
        rows.write.format("jetstream").options(**options).mode("append").save()
        frame = spark.read.format("jetstream").options(**options, stream="S").load()
        assert frame.count() == 100
        plan = frame._jdf.queryExecution().toString()
        frame.explain("extended")
        errors = [error_of(spark, {**options, "stream": "S", change: value}) for change, value in WRONG.items()]
    finally:
        spark.sparkContext.setLogLevel("OFF")
    explained, log = capsys.readouterr().out, spark_log.read_text()
    assert "jetstream" in explained
    assert "TaskSetManager" in log  # it was on
    for where in (plan, explained, log, *errors):
        assert SECRET not in where


def test_streaming_query_keeps_no_secret(spark: SparkSession, spark_log: Path, tmp_path: Path) -> None:
    """Nor are they in a query's checkpoint, its progress, its description, its plan, its log or its failure."""
    checkpoint = tmp_path / "checkpoint"
    with LocalServer(config=f'authorization {{ user: "spark", password: "{SECRET}" }}') as server:
        both = {"servers": server.url, "user": "spark", "password": SECRET}
        with jetstream_sync.connect(server.url, user="spark", password=SECRET) as nc:
            js = nc.jetstream()
            js.create_stream(name="S", subjects=["s.>"])
            js.create_stream(name="T", subjects=["t.>"])
            js.publish("s.a", b"x")
            spark.sparkContext.setLogLevel("DEBUG")
            try:
                source = spark.readStream.format("jetstream").options(**both, stream="S")
                sink = source.option("startingOffsets", "earliest").load().writeStream.format("jetstream")
                query = sink.options(**both, subject="t.a", checkpointLocation=str(checkpoint)).start()
                eventually(lambda: js.get_stream("T").info.state.messages == 1, timeout=60)
                eventually(lambda: query.lastProgress, timeout=60)
                progress = [str(each) for each in query.recentProgress]
                plan = query._jsq.explainInternal(True)
                js.delete_stream("S")
                js.create_stream(name="S", subjects=["s.>"])
                with pytest.raises(Exception, match="created anew") as caught:
                    query.awaitTermination(60)
            finally:
                spark.sparkContext.setLogLevel("OFF")
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert any(path.parent.name == "offsets" for path in files)
    shown = [*progress, plan, str(query.status), f"{caught.value!r} {caught.value}", spark_log.read_text()]
    assert not [text for text in shown if SECRET in text]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_options_show_no_secret() -> None:
    """Neither the options nor the objects that hold them show a secret."""
    given = {"servers": "nats://h", "user": SECRET, "password": SECRET, "token": SECRET, "stream": "S"}
    read, write = ReadOptions.parse(given), WriteOptions.parse({**given, "subject": "s"})
    reader = JetStreamReader(read, ("seq",))
    for shown in (read, write, reader, vars(reader), JetStreamDataSource({**given})):
        assert SECRET not in f"{shown!r} {shown}"


# One option changed, so that connecting or reading fails.
WRONG = {
    "user": "stranger",
    "stream": "NOSUCH",
    "minPartitions": "many",
    "pasword": "x",
    "tlsCaFile": "/nowhere.pem",
}


def error_of(spark: SparkSession, options: dict[str, str]) -> str:
    with pytest.raises(Exception) as caught:
        spark.read.format("jetstream").options(**options).load().count()
    return f"{caught.value!r} {caught.value}"


def test_wrong_password_fails_at_once(spark: SparkSession, guarded: LocalServer, certificates: CertKit) -> None:
    """Credentials that the server refuses fail at once, without a minute of attempts."""
    options = {**options_for(guarded, certificates), "password": "wrong-" + SECRET}
    message = error_of(spark, {**options, "stream": "S"})
    assert "AuthorizationError" in message or "Authorization" in message
    assert SECRET not in message


def test_token(spark: SparkSession) -> None:
    """A token is taken, too."""
    with LocalServer(config=f'authorization {{ token: "{SECRET}" }}') as server:
        with jetstream_sync.connect(server.url, token=SECRET) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s.>"])
        source = spark.read.format("jetstream")
        assert source.options(servers=server.url, token=SECRET, stream="S").load().count() == 0
        server.stop()
        assert SECRET not in error_of(spark, {"servers": server.url, "token": SECRET, "stream": "S"})


@pytest.mark.parametrize("login", [f"u:{SECRET}@", f"{SECRET}@"])
def test_credentials_in_a_url_are_refused(spark: SparkSession, login: str) -> None:
    """Spark shows the option servers in the plans of some queries: no secret may be in it."""
    servers = f"nats://127.0.0.1:4222,nats://{login}127.0.0.1:4223"
    message = error_of(spark, {"servers": servers, "stream": "S"})
    assert "option 'servers' holds" in message
    assert SECRET not in message
    with pytest.raises(Exception, match="option 'servers' holds") as caught:
        writer = spark.range(1).selectExpr("'x' as data").write.format("jetstream").mode("append")
        writer.options(servers=servers, subject="s.a").save()
    assert SECRET not in str(caught.value)


def test_credentials_file(spark: SparkSession, tmp_path: Path) -> None:
    """A .creds file signs the server's nonce."""
    kit = JwtKit()
    creds = tmp_path / "spark.creds"
    creds.write_text(kit.user_creds())
    with LocalServer(config=kit.server_config()) as server:
        with jetstream_sync.connect(server.url, user_credentials=str(creds)) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s.>"])
        source = spark.read.format("jetstream")
        assert source.options(servers=server.url, credentials=str(creds), stream="S").load().count() == 0
