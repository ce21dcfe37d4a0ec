"""One Spark session for the whole folder: two cores, four attempts per task, workers that import this checkout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_sync import JetStream
from jetstream_sync.spark import checks, register, sink_start
from jetstream_sync.spark.java import ensure_java
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.testing import LocalServer
from tests.spark.faulty import FaultyDataSource

ROOT = Path(__file__).parent.parent.parent


# pyspark 4.0 and 4.1 leave the sockets of collect() to the garbage collector, which complains.
PYSPARK_LEAKS_SOCKETS = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PYSPARK_LEAKS_SOCKETS:
        pattern = "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.filterwarnings(pattern))


# A secret in the environment of Spark's processes, for the options that name a variable.
VARIABLE_OF_WORKERS = "JETSTREAM_TEST_PASSWORD"
SECRET_OF_WORKERS = "swordfish-never-shown"


def spark_environment() -> dict[str, str]:
    """What a process needs to run Spark on this checkout."""
    ensure_java()
    environment = dict(os.environ)
    environment["PYSPARK_PYTHON"] = sys.executable
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    environment[VARIABLE_OF_WORKERS] = SECRET_OF_WORKERS
    # A path, not an editable install: Spark discovers packages by listing directories.
    path = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return environment


LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark logs to; quiet unless a test sets the level."""
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="session")
def spark_stderr(spark_log: Path) -> Path:
    """What Spark's processes print on stderr: the JVM, and the Python processes of driver and executors."""
    return spark_log.with_name("stderr")


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile print to the file."""
    saved = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_log: Path, spark_stderr: Path) -> Iterator[SparkSession]:
    os.environ.update(spark_environment())
    logging = spark_log.with_name("log4j2.properties")
    logging.write_text(LOGGING.format(log=spark_log))
    builder = (
        SparkSession.builder.master("local[2, 4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{logging}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with stderr_to(spark_stderr):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    session.dataSource.register(FaultyDataSource)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_checked() -> Iterator[None]:
    """The sink has not checked any stream yet, as in a process that Spark has just started."""
    forget = (checks._checked.clear, sink_start.check_sink_once.cache_clear)
    for each in forget:
        each()
    yield
    for each in forget:
        each()


@pytest.fixture
def read(spark: SparkSession, nats_server: LocalServer) -> Callable[..., DataFrame]:
    """A DataFrame of a stream: `read("S", minPartitions=8)`."""

    def load(stream: str, **options: object) -> DataFrame:
        return spark.read.format("jetstream").options(servers=nats_server.url, stream=stream, **options).load()

    return load


@pytest.fixture
def stream_reader(nats_server: LocalServer) -> Iterator[Callable[..., JetStreamStreamReader]]:
    """The reader of a streaming query, to be called as Spark's driver does: `stream_reader(stream="S")`."""
    made: list[JetStreamStreamReader] = []

    def make(**options: str) -> JetStreamStreamReader:
        every = {"servers": nats_server.url, **options}
        made.append(JetStreamStreamReader(ReadOptions.parse(every), ("seq",)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def fill(js: JetStream) -> Callable[..., None]:
    """Publish `count` numbered messages: `fill("s.a", 1000)`."""

    def publish(subject: str, count: int, first: int = 0) -> None:
        acks = [js.publish_async(subject, b"%d" % number) for number in range(first, first + count)]
        js.publish_async_wait(60)
        assert all(ack.exception() is None for ack in acks)

    return publish
