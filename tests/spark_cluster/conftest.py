"""A Spark standalone cluster of two workers for the whole folder, and sessions on it, one at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples._cluster import SparkCluster
from jetstream_sync import JetStream
from jetstream_sync.spark import register
from tests.spark.faulty import FaultyDataSource
from tests.support.observer import fill as publish

ROOT = Path(__file__).parent.parent.parent
SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark_settings() -> dict[str, str]:
    """What a module adds to the configuration of its session."""
    return {}


@pytest.fixture(scope="module")
def spark(cluster: SparkCluster, spark_settings: dict[str, str]) -> Iterator[SparkSession]:
    """A session on the cluster, with one executor per worker, whose workers import this checkout."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master(cluster.url).appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.sql.session.timeZone": "UTC",
        # Several Arrow batches per partition, so that a sink can fail between two of them.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        **spark_settings,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    session.dataSource.register(FaultyDataSource)
    yield session
    session.stop()


@pytest.fixture
def fill(js: JetStream) -> Callable[..., None]:
    """Publish `count` numbered messages: `fill("in.a", 1000)`."""

    def numbered(subject: str, count: int) -> None:
        publish(js, count, subject=subject)

    return numbered
