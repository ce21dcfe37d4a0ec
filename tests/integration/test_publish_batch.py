"""Atomic batches (ADR-50): all or nothing, on whatever server NATS_SERVER names."""

from __future__ import annotations

import time
from threading import Timer

import pytest

from jetstream_sync import Connection, JetStream, Message
from jetstream_sync.errors import (
    APIError,
    BadHeaderError,
    BadSubjectError,
    BatchPublishError,
    ConnectionLostError,
    JetStreamError,
    MaxPayloadError,
    NoStreamResponseError,
    TimeoutError,
    WrongLastSequenceError,
)
from jetstream_sync.testing import LocalServer
from tests.support.scripted_stream import ScriptedStream
from tests.support.scripted_stream import error as refusal


def knows_batches(nc: Connection) -> bool:
    return tuple(int(number) for number in nc.server_info["version"].split("-")[0].split(".")[:2]) >= (2, 12)


def count(js: JetStream, stream: str = "S") -> int:
    return js.get_stream(stream).info.state.messages


@pytest.fixture
def batches(js: JetStream, nc: Connection) -> JetStream:
    """A stream `S` on `s.>` that takes batches, where the server knows them."""
    if knows_batches(nc):
        js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
    else:
        js.create_stream(name="S", subjects=["s.>"])
    return js


def refused_by_old_server(nc: Connection, js: JetStream) -> bool:
    """On a server before 2.12: a batch is refused before anything is sent, which is asserted here."""
    if knows_batches(nc):
        return False
    with pytest.raises(JetStreamError, match=r"2\.12"):
        js.publish_batch([("s.a", b"1"), ("s.a", b"2")])
    assert count(js) == 0
    return True


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_batch_of_an_iterable_is_stored_together(nc: Connection, batches: JetStream, size: int) -> None:
    """The ack is the last message's; the messages stand side by side in order."""
    if refused_by_old_server(nc, batches):
        return
    batches.publish("s.before", b"")
    ack = batches.publish_batch((f"s.{number}", b"%d" % number, {"N": str(number)}) for number in range(size))
    assert (ack.stream, ack.seq, ack.count) == ("S", size + 1, size)
    stream = batches.get_stream("S")
    assert stream.info.state.messages == size + 1
    last = stream.get_message(size + 1)
    assert (last.subject, last.data, last.headers["N"]) == (f"s.{size - 1}", b"%d" % (size - 1), str(size - 1))


def test_batch_as_context_manager_commits_on_leaving(nc: Connection, batches: JetStream) -> None:
    """Nothing is stored inside the block, everything after it."""
    if refused_by_old_server(nc, batches):
        return
    with batches.publish_batch() as batch:
        batch.add("s.a", b"1", headers={"A": "x"}, msg_id="one")
        batch.add("s.b", b"2")
        assert len(batch) == 2
        assert count(batches) == 0
    assert batch.ack is not None
    assert batch.ack.seq == count(batches) == 2


def test_batch_is_given_up_when_the_block_raises(nc: Connection, batches: JetStream) -> None:
    """An exception in the block stores nothing, and is not replaced."""
    with pytest.raises(KeyError):
        with batches.publish_batch() as batch:
            batch.add("s.a", b"1")
            raise KeyError("mine")
    assert batch.ack is None
    assert count(batches) == 0
    with pytest.raises(ValueError, match="committed or discarded"):
        batch.commit()


def test_empty_block_stores_nothing(nc: Connection, batches: JetStream) -> None:
    """A block that adds nothing is no error; committing nothing is."""
    with batches.publish_batch() as batch:
        pass
    assert batch.ack is None
    with pytest.raises(ValueError, match="empty"):
        batches.publish_batch([])


def test_batch_of_more_than_1000_is_refused_before_sending(batches: JetStream) -> None:
    """ADR-50: 1000 messages at most."""
    with pytest.raises(ValueError, match="1000"):
        batches.publish_batch(("s.a", b"") for _ in range(1001))
    assert count(batches) == 0


def test_wrong_expectation_refuses_the_whole_batch(nc: Connection, batches: JetStream) -> None:
    """One message's expectation fails: none is stored."""
    if refused_by_old_server(nc, batches):
        return
    batches.publish("s.a", b"")
    with pytest.raises(WrongLastSequenceError):
        with batches.publish_batch() as batch:
            batch.add("s.b", b"1")
            batch.add("s.a", b"2", expected_last_subject_seq=0)
    assert count(batches) == 1
    with batches.publish_batch() as batch:
        batch.add("s.b", b"1")
        batch.add("s.a", b"2", expected_last_subject_seq=1)
    assert count(batches) == 3


def test_duplicate_id_refuses_the_whole_batch(nc: Connection, batches: JetStream) -> None:
    """A message id that the stream has already: none is stored, and the error says so."""
    if refused_by_old_server(nc, batches):
        return
    batches.publish("s.a", b"", msg_id="x")
    with pytest.raises(BatchPublishError) as caught:
        with batches.publish_batch() as batch:
            batch.add("s.b", b"1")
            batch.add("s.c", b"2", msg_id="x")
    assert caught.value.err_code == 10201
    assert count(batches) == 1


def test_stream_without_batches_refuses(nc: Connection, js: JetStream) -> None:
    """A stream without allow_atomic answers the first message with an error; nothing is stored."""
    js.create_stream(name="S", subjects=["s.>"])
    if refused_by_old_server(nc, js):
        return
    for size in (1, 2):
        with pytest.raises(BatchPublishError) as caught:
            js.publish_batch([("s.a", b"")] * size)
        assert caught.value.err_code == 10174
    assert count(js) == 0


def test_batch_over_two_streams_is_refused(nc: Connection, batches: JetStream) -> None:
    """A batch belongs to one stream: the other one sees half of it, and neither stores any."""
    if refused_by_old_server(nc, batches):
        return
    batches.create_stream(name="T", subjects=["t.>"], allow_atomic=True)
    with pytest.raises(BatchPublishError) as caught:
        batches.publish_batch([("s.a", b""), ("t.a", b""), ("s.b", b"")])
    assert caught.value.err_code == 10176
    assert count(batches) == count(batches, "T") == 0


def test_subject_without_stream(nc: Connection, batches: JetStream) -> None:
    """No stream stores the subject: NoStreamResponseError, as with publish()."""
    if refused_by_old_server(nc, batches):
        return
    with pytest.raises(NoStreamResponseError):
        batches.publish_batch([("unstored", b""), ("unstored", b"")])


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (("s.*", b""), BadSubjectError),
        (("s.a", b"", {"Nats-Batch-Id": "x"}), BadHeaderError),
        (("s.a", b"", {"A": "x\r\ny"}), BadHeaderError),
    ],
)
def test_bad_message_is_refused_before_sending(batches: JetStream, message: tuple, error: type[Exception]) -> None:
    """Bad input names itself, and nothing of the batch is sent."""
    with pytest.raises(error):
        batches.publish_batch([("s.a", b""), message])
    assert count(batches) == 0


def test_message_too_large_is_refused_before_sending(nc: Connection, batches: JetStream) -> None:
    """A message that is too large is rejected before anything is sent, also when it is the last one."""
    if refused_by_old_server(nc, batches):
        return
    with pytest.raises(MaxPayloadError):
        batches.publish_batch([("s.a", b""), ("s.b", b"x" * nc.max_payload)])
    assert count(batches) == 0


def test_many_large_messages(nc: Connection, batches: JetStream) -> None:
    """A batch of 32 MB goes through the socket's buffers and is stored as one."""
    if refused_by_old_server(nc, batches):
        return
    ack = batches.publish_batch([("s.a", b"x" * 512 * 1024)] * 64, timeout=30)
    assert ack.count == count(batches) == 64


def test_connection_lost_before_the_commit_stores_nothing(
    nats_server: LocalServer, nc: Connection, batches: JetStream
) -> None:
    """A server that dies in the middle: the commit raises, and the batch is not stored in part."""
    if refused_by_old_server(nc, batches):
        return
    batch = batches.publish_batch(timeout=10)
    for number in range(10):
        batch.add("s.a", b"%d" % number)
    nats_server.pause()
    try:
        timer = Timer(0.3, nats_server.kill)
        timer.start()
        with pytest.raises(ConnectionLostError):
            batch.commit()
        timer.join()
    finally:
        nats_server.start()
    assert count(batches) == 0
    assert batches.publish_batch([("s.a", b"")] * 3).count == 3


class PausingStream(ScriptedStream):
    """Accepts the begin of a batch; then the server stands still."""

    def __init__(self, server: LocalServer, subject: str) -> None:
        self._server = server
        super().__init__(server, subject, b"")

    def _on_message(self, msg: Message) -> None:
        super()._on_message(msg)
        self.nc.flush()
        self._server.pause()


def test_server_that_takes_no_more_data(nats_server: LocalServer, nc: Connection, js: JetStream) -> None:
    """The timeout holds while the socket is full, too; without a commit nothing is stored."""
    if not knows_batches(nc):
        return
    batch = js.publish_batch()
    for _ in range(400):
        batch.add("x", b"x" * 64 * 1024)  # more than the buffers of a socket hold
    with PausingStream(nats_server, "x"):
        started = time.monotonic()
        try:
            with pytest.raises(TimeoutError, match="nothing of it is stored") as caught:
                batch.commit(timeout=0.5)
            assert caught.value.sent is False
            assert time.monotonic() - started < 5
        finally:
            nats_server.resume()


def test_batch_is_sent_again_while_one_of_its_ids_is_in_process(
    nats_server: LocalServer, nc: Connection, js: JetStream
) -> None:
    """10158 stores nothing of the batch: it is sent again under another batch id, until there is an answer."""
    if not knows_batches(nc):
        return
    in_process, ack = refusal(10158, 409), b'{"stream":"X","seq":2,"batch":"b","count":2}'
    with ScriptedStream(nats_server, "x", b"", in_process, in_process, b"", ack) as scripted:
        with js.publish_batch() as batch:
            batch.add("x", b"1", msg_id="one")
            batch.add("x", b"2", msg_id="two")
        assert batch.ack is not None
        assert batch.ack.seq == 2
        assert scripted.ids == ["one", "two", "one", "one", "two"]
        assert len({headers["Nats-Batch-Id"] for headers in scripted.received}) == 3
    with ScriptedStream(nats_server, "x", then=in_process):
        with pytest.raises(APIError) as caught:
            js.publish_batch([("x", b"", {"Nats-Msg-Id": "one"})], timeout=0.3)
        assert caught.value.err_code == 10158
