"""stream.tail(n): the last messages of real streams."""

from __future__ import annotations

import pytest

from jetstream_sync import BadSubjectError, JetStream, Stream, StreamNotFoundError


@pytest.mark.parametrize("allow_direct", [False, True])
def test_tail_of_a_stream(js: JetStream, allow_direct: bool) -> None:
    """The last n, oldest first, with subject, payload and headers; fewer where there are fewer; none at first."""
    stream = js.create_stream(name="T", subjects=["t.>"], allow_direct=allow_direct, storage="memory")
    assert stream.tail(5) == []
    for number in range(1, 21):
        js.publish(f"t.{number % 3}", b'{"n": %d}' % number, headers={"N": str(number)})
    found = stream.tail(3)
    assert [message.seq for message in found] == [18, 19, 20]
    assert [message.json() for message in found] == [{"n": 18}, {"n": 19}, {"n": 20}]
    assert found[0].subject == "t.0"
    assert found[0].headers is not None
    assert found[0].headers["N"] == "18"
    assert [message.seq for message in stream.tail()] == list(range(11, 21))
    assert [message.seq for message in stream.tail(500)] == list(range(1, 21))
    assert stream.tail(0) == []


def test_tail_with_deleted_messages(js: JetStream, stream: Stream) -> None:
    """What was deleted in between does not count: there are still n."""
    for _ in range(30):
        js.publish("s.a")
    for seq in (*range(12, 28), 30):
        stream.delete_message(seq)
    assert [message.seq for message in stream.tail(4)] == [10, 11, 28, 29]
    stream.purge()
    assert stream.tail(4) == []


def test_tail_of_a_subject(js: JetStream, stream: Stream) -> None:
    """`subject` may have wildcards; messages of other subjects do not count."""
    for number in range(60):
        js.publish("s.rare.1" if number % 20 == 0 else "s.often")
    assert [message.seq for message in stream.tail(2, subject="s.rare.*")] == [21, 41]
    assert [message.seq for message in stream.tail(2, subject="s.often")] == [59, 60]
    assert stream.tail(2, subject="s.none") == []


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_tail_of_a_queue(js: JetStream, retention: str) -> None:
    """A work queue allows no second consumer: looking at it makes none, and takes nothing away."""
    stream = js.create_stream(name="Q", subjects=["q"], retention=retention)
    consumer = stream.create_consumer(durable_name="C")
    for _ in range(3):
        js.publish("q")
    assert [message.seq for message in stream.tail(2)] == [2, 3]
    assert consumer.get_info().num_pending == 3
    assert list(stream.consumer_names()) == ["C"]


def test_tail_refuses_bad_input(js: JetStream, stream: Stream) -> None:
    """Before anything is sent, with the parameter's name; a deleted stream says so."""
    for bad in (-1, 1.5, "3"):
        with pytest.raises(ValueError, match="n must be"):
            stream.tail(bad)  # type: ignore[arg-type]
    with pytest.raises(BadSubjectError):
        stream.tail(1, subject="a b")
    stream.delete()
    with pytest.raises(StreamNotFoundError):
        stream.tail(1)
