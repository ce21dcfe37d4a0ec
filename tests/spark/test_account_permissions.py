"""The permissions that docs/spark-deploy.md names are enough for each use, and none of them is for nothing.

The tests run what Spark runs on the driver and in tasks, as a user that has these permissions only. A second user
of the account records what is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import jetstream_sync
from jetstream_sync import JetStream, Message
from jetstream_sync.protocol.subjects import subject_matches
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import ReadOptions, WriteOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import sink_of
from jetstream_sync.spark.stream_reader import JetStreamStreamReader
from jetstream_sync.spark.writer import batch_writer
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark-deploy.md"
COLUMNS = ("seq", "data")
ROWS = 2500

CONFIG = """
accounts {{
  A {{
    jetstream: enabled
    users: [
      {{ user: admin, password: admin }}
      {{
        user: spark, password: spark
        permissions {{ publish: {{ allow: [{publish}] }}, subscribe: {{ allow: ["_INBOX.>"] }} }}
      }}
    ]
  }}
}}
"""


def permissions_of(use: str) -> list[str]:
    """What the page says that an account may publish to for a use, for the stream ORDERS."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    found = [subjects for name, subjects in rows if name == use]
    assert len(found) == 1, f"{PAGE.name} has {len(found)} rows {use!r}"
    return re.findall(r"`([^`]+)`", found[0])


class Account:
    """A server with a user that may do what the page says for some uses, and a record of what it sent."""

    def __init__(self, server: LocalServer, js: JetStream, allowed: list[str], sent: list[str]) -> None:
        self.js = js
        self.options = {"servers": server.url, "user": "spark", "password": "spark"}
        self._server = server
        self._allowed = allowed
        self._sent = sent

    def check(self) -> None:
        """The user was refused nothing, and has used each of its permissions."""
        eventually(lambda: self._unused() == [], message=f"used is each of {self._allowed}")
        assert "Violation" not in self._server.log

    def _unused(self) -> list[str]:
        sent = set(self._sent)
        return [each for each in self._allowed if not any(subject_matches(each, one) for one in sent)]


@pytest.fixture
def account() -> Iterator[Callable[..., Account]]:
    opened: list[Any] = []

    def start(*uses: str) -> Account:
        allowed = [subject for use in uses for subject in permissions_of(use)]
        config = CONFIG.format(publish=", ".join(f'"{each}"' for each in allowed))
        server = LocalServer(config=config).start()
        opened.append(server)
        admin = jetstream_sync.connect(server.url, user="admin", password="admin")
        opened.append(admin)
        sent: list[str] = []
        watcher = jetstream_sync.connect(server.url, user="admin", password="admin")
        opened.append(watcher)
        watcher.subscribe(">", cb=lambda message: _note(message, sent))
        watcher.flush()
        return Account(server, admin.jetstream(), allowed, sent)

    yield start
    for each in reversed(opened):
        each.close()


def _note(message: Message, sent: list[str]) -> None:
    sent.append(message.subject)


def fill(js: JetStream) -> None:
    """Messages with a hole at the end: the leader is asked whether the last one is still to come."""
    for ack in [js.publish_async("orders.a", b"%d" % number) for number in range(ROWS + 1)]:
        ack.result(10)
    js.get_stream("ORDERS").delete_message(ROWS + 1)


def read_all(reader: Any, partitions: Any) -> list[int]:
    return [seq for each in partitions for batch in reader.read(each) for seq in batch["seq"].to_pylist()]


@pytest.mark.parametrize("filtered", [{}, {"subjects": "orders.a,orders.b"}], ids=["whole", "filtered"])
def test_batch_read(account: Callable[..., Account], filtered: dict[str, str]) -> None:
    """Reading needs the four requests of an ephemeral consumer, and two about the stream."""
    mine = account("reading")
    mine.js.create_stream(name="ORDERS", subjects=["orders.*"])
    fill(mine.js)
    reader = JetStreamReader(ReadOptions.parse({**mine.options, "stream": "ORDERS", **filtered}), COLUMNS)
    assert read_all(reader, reader.partitions()) == list(range(1, ROWS + 1))
    mine.check()


def test_read_of_a_work_queue(account: Callable[..., Account]) -> None:
    """Without a consumer, by Direct Get."""
    mine = account("reading a work-queue or interest stream")
    mine.js.create_stream(name="ORDERS", subjects=["orders.*"], retention="workqueue", allow_direct=True)
    fill(mine.js)
    reader = JetStreamReader(ReadOptions.parse({**mine.options, "stream": "ORDERS"}), COLUMNS)
    assert read_all(reader, reader.partitions()) == list(range(1, ROWS + 1))
    mine.check()


@pytest.mark.parametrize(
    ("uses", "options"),
    [
        (["reading"], {}),
        (["reading", "`deleteOnCommit`, in addition"], {"deleteOnCommit": "true"}),
        (["reading", "`positionConsumer=spark`, in addition"], {"positionConsumer": "spark"}),
    ],
    ids=["plain", "deleteOnCommit", "positionConsumer"],
)
def test_stream_read(account: Callable[..., Account], uses: list[str], options: dict[str, str]) -> None:
    """Streaming needs no more than a batch, except for what its options do."""
    mine = account(*uses)
    mine.js.create_stream(name="ORDERS", subjects=["orders.*"])
    fill(mine.js)
    wanted = {**mine.options, "stream": "ORDERS", "startingOffsets": "earliest", **options}
    reader = JetStreamStreamReader(ReadOptions.parse(wanted), COLUMNS)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start)
        assert read_all(reader, reader.partitions(start, end)) == list(range(1, ROWS + 1))
        reader.commit(end)
    finally:
        reader.stop()
    mine.check()


EXACTLY_ONCE = {"exactlyOnce": "true", "markerSubject": "orders.marks"}


@pytest.mark.parametrize(
    ("uses", "options"),
    [
        (["writing, with the option `stream`"], {"stream": "ORDERS"}),
        (["writing, with the option `stream`", "writing without it, in addition"], {"subject": "orders.a"}),
        (
            ["writing, with the option `stream`", "`exactlyOnce` with `markerSubject=orders.marks`, in addition"],
            {"stream": "ORDERS", **EXACTLY_ONCE},
        ),
        (
            [
                "writing, with the option `stream`",
                "writing without it, in addition",
                "`exactlyOnce` with `markerSubject=orders.marks`, in addition",
            ],
            EXACTLY_ONCE,
        ),
    ],
    ids=["stream", "subject", "exactlyOnce-stream", "exactlyOnce"],
)
def test_write(account: Callable[..., Account], uses: list[str], options: dict[str, str]) -> None:
    """Two attempts of a task, as after a failure: the second one looks for what is stored."""
    mine = account(*uses)
    mine.js.create_stream(name="ORDERS", subjects=["orders.>"], allow_atomic=True, allow_rollup_hdrs=True)
    parsed = WriteOptions.parse({**mine.options, **options})
    schema = StructType([StructField("subject", StringType()), StructField("data", BinaryType())])
    batch_writer(parsed, schema, False)
    rows = {"subject": ["orders.a"] * ROWS, "data": [b"%d" % number for number in range(ROWS)]}
    for _ in range(2):
        with open_connection(parsed, "task") as nc:
            sink = sink_of(jetstream_of(nc, parsed), parsed, TaskIdentity("query", 0, 0))
            sink.write(pa.RecordBatch.from_pydict(rows))
            sink.finish()
    found = mine.js.create_consumer("ORDERS", ack_policy="none", filter_subject="orders.a")
    assert found.info.num_pending == ROWS
    mine.check()
