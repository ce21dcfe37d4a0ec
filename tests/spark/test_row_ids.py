"""Message ids name rows: a write that is run again loses nothing, whatever rows come the second time.

Each test writes a part of a batch, as an attempt that crashed has done, and then runs the batch again.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jetstream_sync import JetStream
from jetstream_sync.spark.message_ids import TaskIdentity, Written
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.shared import jetstream_of, open_connection
from jetstream_sync.spark.sinks import IdempotentSink
from jetstream_sync.testing import LocalServer
from tests.spark.queries import CopyQuery, copied, once
from tests.spark.udfs import shuffled_by_attempt

Attempt = Callable[..., Written]
ROWS_AT_ONCE = 400


def batches(numbers: Sequence[int], subject: str) -> Iterable[pa.RecordBatch]:
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        run = numbers[start : start + ROWS_AT_ONCE]
        yield pa.RecordBatch.from_pydict({"subject": [subject] * len(run), "data": [b"%d" % each for each in run]})


@pytest.fixture
def attempt(nats_server: LocalServer, js: JetStream) -> Attempt:
    """Write rows with these numbers as a partition of batch 3 of a query."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    options = WriteOptions.parse({"servers": nats_server.url})

    def write(numbers: Sequence[int], partition: int = 0, epoch: int | None = 3, subject: str = "s.a") -> Written:
        with open_connection(options, "test") as nc:
            sink = IdempotentSink(jetstream_of(nc, options), options, TaskIdentity("query", epoch, partition))
            for batch in batches(numbers, subject):
                sink.write(batch)
            return sink.finish()

    return write


def stored(js: JetStream) -> Counter[int]:
    """The numbers of the rows in the stream, and how often."""
    count = js.get_stream("S").info.state.messages
    consumer = js.create_consumer("S", ack_policy="none")
    return Counter(int(message.data) for message in consumer.fetch(count, expires=20))


def test_where_that_skips_the_poisoned_row(attempt: Attempt, js: JetStream) -> None:
    """The rows behind the one that was left out move up by one place, and are still the same rows."""
    attempt(range(2000))
    mended = [each for each in range(5000) if each != 1000]
    again = attempt(mended)
    assert again.duplicates == 1999
    assert stored(js) == Counter(range(5000))


def test_other_rows_in_the_same_places(attempt: Attempt, js: JetStream) -> None:
    """With other `subjects` the query reads other messages: all of them are stored."""
    attempt(range(2000))
    attempt(range(10_000, 15_000))
    assert stored(js) == Counter([*range(2000), *range(10_000, 15_000)])


def test_same_payload_to_another_subject_is_another_row(attempt: Attempt, js: JetStream) -> None:
    """Subject, headers and payload make a row."""
    attempt(range(500))
    assert attempt(range(500), subject="s.b").duplicates == 0
    assert attempt(range(500), subject="s.b").duplicates == 500
    assert stored(js) == Counter([*range(500), *range(500)])


def test_other_partitioning(attempt: Attempt, js: JetStream) -> None:
    """2 partitions become 4: a row is stored twice at worst, and none is missing."""
    attempt(range(1000), partition=0)
    attempt(range(5000, 6000), partition=1)
    for partition in range(4):
        attempt(range(partition * 2500, (partition + 1) * 2500), partition)
    found = stored(js)
    assert set(found) == set(range(10_000))
    assert set(found.values()) <= {1, 2}
    assert {each for each, count in found.items() if count == 2} == set(range(5000, 6000))


@pytest.mark.parametrize("epoch", [3, None])
def test_task_whose_rows_come_in_another_order(attempt: Attempt, js: JetStream, epoch: int | None) -> None:
    """A retried task, of a stream or a batch write: every row is recognised wherever it comes."""
    numbers = [*range(4000), *range(1000)]
    attempt(numbers[:2400], epoch=epoch)
    random.Random(7).shuffle(numbers)
    again = attempt(numbers, epoch=epoch)
    assert again.duplicates == 2400
    assert stored(js) == Counter([*range(4000), *range(1000)])


def test_identical_rows_stay_as_many_as_they_are(attempt: Attempt, js: JetStream) -> None:
    """In one record batch, over several, and in an attempt that has more of them than the one before."""
    attempt([7] * 1000 + [8] * 3)
    assert stored(js) == Counter({7: 1000, 8: 3})
    assert attempt([8] * 5 + [7] * 1100).duplicates == 1003
    assert stored(js) == Counter({7: 1100, 8: 5})


def test_ids_of_a_stream_and_of_a_batch_write(attempt: Attempt, js: JetStream) -> None:
    """`<query>/<batch>/<partition>/<fingerprint>.<occurrence>`; a batch write has no batch number."""
    attempt([1, 1], partition=4)
    attempt([1], partition=4, epoch=None)
    ids = [js.get_stream("S").get_message(seq).headers["Nats-Msg-Id"] for seq in (1, 2, 3)]
    prints = {re.sub(r"^query/(3/)?4/|\.[01]$", "", each) for each in ids}
    assert len(prints) == 1
    assert re.fullmatch("[0-9a-f]{16}", prints.pop())
    assert [re.sub("[0-9a-f]{16}", "F", each) for each in ids] == ["query/3/4/F.0", "query/3/4/F.1", "query/4/F.0"]


def test_rows_with_an_id_keep_it(nats_server: LocalServer, js: JetStream) -> None:
    """Rows without one get generated ids, also where some rows of a batch have one."""
    js.create_stream(name="S", subjects=["s.>"])
    options = WriteOptions.parse({"servers": nats_server.url, "subject": "s.a"})
    rows = pa.RecordBatch.from_pydict(
        {"data": [b"1", b"1", b"1", b"1"], "msg_id": pa.array(["mine", None, "other", None])}
    )
    with open_connection(options, "test") as nc:
        sink = IdempotentSink(jetstream_of(nc, options), options, TaskIdentity("query", 3, 0))
        sink.write(rows)
        sink.write(rows.slice(1, 2))
        assert (sink.finish()).duplicates == 1
    ids = [js.get_stream("S").get_message(seq).headers["Nats-Msg-Id"] for seq in range(1, 6)]
    assert [re.sub("[0-9a-f]{16}", "F", each) for each in ids] == [
        "mine",
        "query/3/0/F.0",
        "other",
        "query/3/0/F.1",
        "query/3/0/F.2",
    ]


def test_copied_rollup_removes_no_rows(nats_server: LocalServer, js: JetStream) -> None:
    """The roll-up of the stream that a row was read from does not remove what the target has."""
    js.create_stream(name="S", subjects=["s.>"], allow_rollup_hdrs=True)
    options = WriteOptions.parse({"servers": nats_server.url, "subject": "s.a"})
    rows = pa.RecordBatch.from_pydict(
        {"data": [b"1", b"2"], "headers": [[], [("Nats-Rollup", "all"), ("A", "x")]]},
        pa.schema([("data", pa.binary()), ("headers", pa.map_(pa.string(), pa.string()))]),
    )
    with open_connection(options, "test") as nc:
        sink = IdempotentSink(jetstream_of(nc, options), options, TaskIdentity("query", 3, 0))
        sink.write(rows)
        sink.finish()
    stream = js.get_stream("S")
    assert stream.info.state.messages == 2
    headers = stream.get_message(2).headers
    assert headers["A"] == "x"
    assert "Nats-Rollup" not in headers


# --- with Spark ---------------------------------------------------------------------------------------------


def test_mended_query_loses_nothing(
    spark: SparkSession, nats_server: LocalServer, js: JetStream, fill: Callable[..., None], tmp_path: Path
) -> None:
    """A row that cannot be written stops the query in the middle; a `where` that skips it goes on from there."""
    js.create_stream(name="IN", subjects=["in.>"])
    js.create_stream(name="OUT", subjects=["out.>"])
    fill("in.a", 8000)
    query = CopyQuery(spark, nats_server, tmp_path)
    query.read_options["minPartitions"] = 1
    query.write_options.clear()
    query.columns = ["if(seq = 6000, null, 'out.copy') as subject"]
    with pytest.raises(Exception, match="column 'subject' is NULL"):
        query.run()
    before = js.get_stream("OUT").info.state.messages
    assert 0 < before < 6000
    query.where = "seq <> 6000"
    query.run_to_the_end()
    assert copied(js) == once(*range(1, 6000), *range(6001, 8001))


def test_retried_batch_task_with_its_rows_in_another_order(
    spark: SparkSession, nats_server: LocalServer, js: JetStream
) -> None:
    """The first attempt of the task fails in the middle, the second one computes the rows in another order."""
    js.create_stream(name="OUT", subjects=["out.>"])
    rows = spark.sparkContext.range(10_000, numSlices=1).mapPartitions(shuffled_by_attempt)
    writer = spark.createDataFrame(rows, "data string").write.format("jetstream").mode("append")
    writer.options(servers=nats_server.url, subject="out.copy").save()
    assert copied(js) == once(*range(10_000))
