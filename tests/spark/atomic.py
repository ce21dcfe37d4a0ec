"""Drives the sink of exactlyOnce as tasks do, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pyarrow as pa

from jetstream_sync import Connection, JetStream, Stream
from jetstream_sync.spark.atomic_sink import AtomicSink
from jetstream_sync.spark.message_ids import TaskIdentity, Written
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection

DATA = "s.data"
MARKERS = "s.markers"
QUERY = "query"


def stream(js: JetStream, **settings: Any) -> Stream:
    return js.create_stream(name="S", subjects=["s.>"], **{"allow_atomic": True, **settings})


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def batch_of(rows: Iterable[bytes], msg_ids: list[str | None] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"data": pa.array(list(rows), pa.binary())}
    if msg_ids is not None:
        columns["msg_id"] = pa.array(msg_ids, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def write_options(url: str, **options: str) -> WriteOptions:
    given = {"servers": url, "subject": DATA, "exactlyOnce": "true", "markerSubject": MARKERS, **options}
    return WriteOptions.parse(given)


def attempt(
    url: str,
    rows: Iterable[bytes] | pa.RecordBatch,
    *,
    epoch: int = 0,
    partition: int = 0,
    named: bool = False,
    finish: bool = True,
    **options: str,
) -> Written:
    """One attempt of a task. Without `finish` it dies, when those of its chunks are stored that are full."""
    parsed = write_options(url, **options)
    batch = rows if isinstance(rows, pa.RecordBatch) else batch_of(rows)
    with (
        open_connection(parsed, "test") as nc,
        closing(
            AtomicSink(jetstream_of(nc, parsed), parsed, TaskIdentity(QUERY, epoch, partition, named))
        ) as sink,
    ):
        sink.write(batch)
        if finish:
            return sink.finish()
        settle(nc)
        return Written()


def settle(nc: Connection) -> None:
    """Wait until the stream has handled everything that was published over this connection."""
    nc.jetstream().publish("s.settled", b"")


def stored(js: JetStream, subject: str = DATA) -> Counter[bytes]:
    """How often each payload is in the stream."""
    consumer = js.create_consumer("S", ack_policy="none", filter_subject=subject)
    found: Counter[bytes] = Counter()
    while (left := consumer.get_info().num_pending) > 0:
        found.update(message.data for message in consumer.fetch_nowait(min(left, 10_000)))
    consumer.delete()
    return found


def markers(js: JetStream) -> dict[str, int]:
    """How many markers each partition has."""
    subjects = js.get_stream("S").get_info(subjects_filter=f"{MARKERS}.>").state.subjects or {}
    return {subject.rpartition(".")[2]: count for subject, count in subjects.items()}
