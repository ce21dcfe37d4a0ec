"""Ranges of sequences read below Spark, as a task reads them: each message once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from jetstream_sync import Connection, DataLossError, JetStream, Message
from jetstream_sync.spark import fetchers
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.reader import JetStreamReader
from jetstream_sync.testing import LocalServer

PREFIX = "LOSSY"
REPUBLISHED = {
    "Nats-Stream": "FROM",
    "Nats-Subject": "from.here",
    "Nats-Sequence": "77",
    "Nats-Time-Stamp": "2020-01-01T00:00:00Z",
    "Nats-Last-Sequence": "3",
}


def rows(server: LocalServer, *columns: str, **options: str) -> list[dict[str, Any]]:
    """What tasks read of stream S, one partition after the other."""
    reader = JetStreamReader(ReadOptions.parse({"servers": server.url, "stream": "S", **options}), columns)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture
def queue(js: JetStream) -> None:
    """A work queue S, which is read by Direct Get."""
    js.create_stream(name="S", subjects=["s.>"], retention="workqueue", allow_direct=True)


@pytest.mark.usefixtures("queue")
def test_republished_messages_of_a_work_queue(nats_server: LocalServer, js: JetStream) -> None:
    """Their own headers have the names of those that Direct Get adds, and say nothing of the message itself."""
    for number in range(3):
        js.publish(f"s.{number}", headers=REPUBLISHED if number == 1 else {"A": "1"} if number else None)
    found = rows(nats_server, "subject", "seq", "headers")
    own = [[], [(name, [value]) for name, value in REPUBLISHED.items()], [("A", ["1"])]]
    assert found == [{"subject": f"s.{each}", "seq": each + 1, "headers": own[each]} for each in range(3)]


@contextmanager
def lossy_api(nc: Connection, missing: int) -> Iterator[list[bytes]]:
    """The API at the prefix PREFIX. A reply of the first Direct Get, with sequence `missing`, gets lost."""
    lost: list[bytes] = []

    def pass_on(request: Message) -> None:
        subject = request.subject.replace(PREFIX, "$JS.API", 1)
        if "DIRECT" not in subject or lost:
            nc.publish(subject, request.data, reply=request.reply)
            return
        with nc.subscribe(nc.new_inbox()) as replies:
            nc.publish(subject, request.data, reply=replies.subject)
            while not (reply := replies.next_msg(5)).raw_headers.startswith(b"NATS/1.0 204"):
                if f"Nats-Sequence: {missing}\r\n".encode() in reply.raw_headers:
                    lost.append(reply.raw_headers)
                else:
                    nc.publish(request.reply, reply.data, headers=reply.headers)
        # A status can be sent by the server only. This one says that there is nothing at that place.
        nc.publish(subject, b'{"seq": 1000, "next_by_subj": ">"}', reply=request.reply)

    with nc.subscribe(f"{PREFIX}.>", cb=pass_on):
        nc.flush()
        yield lost


@pytest.mark.usefixtures("queue")
def test_lost_reply_of_direct_get(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """A connection that was lost in the midst of a batch: what comes after it does not hide what is missing."""
    for number in range(20):
        js.publish("s.a", str(number).encode())
    js.get_stream("S").delete_message(9)
    with lossy_api(nc, 12) as lost:
        found = rows(nats_server, "seq", apiPrefix=PREFIX)
    assert lost
    assert [row["seq"] for row in found] == [number for number in range(1, 21) if number != 9]


@pytest.mark.parametrize("strict", [True, False])
def test_stream_created_anew_between_two_pulls(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """The new stream has all sequences of the range, but they are other messages: none of them is read."""
    monkeypatch.setattr(fetchers, "PULL_MESSAGES", 5)

    def create() -> None:
        js.create_stream(name="S", subjects=["s.>"])
        for _ in range(20):
            js.publish("s.a")

    create()
    options = {"servers": nats_server.url, "stream": "S", "failOnDataLoss": str(strict)}
    reader = JetStreamReader(ReadOptions.parse(options), ("seq",))
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    assert next(batches)["seq"].to_pylist() == [1, 2, 3, 4, 5]
    js.delete_stream("S")
    create()
    with pytest.raises(DataLossError, match="created anew, sequences 6 to 20") if strict else nullcontext():
        assert list(batches) == []


@pytest.mark.parametrize("subjects", [None, "s.a"])
def test_consumer_gone_between_two_pulls(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch, subjects: str | None
) -> None:
    """The server deletes a consumer when Spark takes long for the rows of a pull: reading goes on with another."""
    monkeypatch.setattr(fetchers, "PULL_MESSAGES", 5)
    stream = js.create_stream(name="S", subjects=["s.>"])
    for _ in range(12):
        js.publish("s.a")
    options = {"servers": nats_server.url, "stream": "S"} | ({"subjects": subjects} if subjects else {})
    reader = JetStreamReader(ReadOptions.parse(options), ("seq",))
    (partition,) = reader.partitions()
    found = []
    for batch in reader.read(partition):
        found += batch["seq"].to_pylist()
        for name in stream.consumer_names():
            js.delete_consumer("S", name)
    assert found == list(range(1, 13))
    assert list(stream.consumer_names()) == []


def test_messages_larger_than_a_pull(
    nats_server: LocalServer, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that exceeds the bytes of a pull is asked for by itself."""
    monkeypatch.setattr(fetchers, "PULL_BYTES", 2000)
    js.create_stream(name="S", subjects=["s.>"])
    sizes = [5000, 1, 1, 5000, 5000, 1, 1500, 1500, 5000]
    for size in sizes:
        js.publish("s.a", bytes(size))
    assert [(row["seq"], len(row["data"])) for row in rows(nats_server, "seq", "data")] == [*enumerate(sizes, 1)]
