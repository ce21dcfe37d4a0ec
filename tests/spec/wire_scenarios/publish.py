"""JetStream publishing: one at a time, pipelined, in batches."""

from __future__ import annotations

import gc

import pytest

from jetstream_sync import BatchMessage, NoStreamResponseError, PublishManyError, WrongLastSequenceError
from tests.spec.wire_scenarios.bench import Bench, scenario


@scenario("js_publish")
def publish(bench: Bench) -> None:
    """Acknowledged messages."""
    bench.stream()
    js = bench.js
    with bench.step("plain"):
        bench.note(js.publish("s.x", b"one").seq)
    with bench.step("with an id, and the same again"):
        bench.note(js.publish("s.x", b"two", msg_id="id-2").duplicate)
        bench.note(js.publish("s.x", b"two", msg_id="id-2").duplicate)
    with bench.step("with headers"):
        bench.note(js.publish("s.x", b"three", headers={"Colour": "blue"}, msg_id="id-3").seq)
    with bench.step("with all expectations"):
        ack = js.publish(
            "s.y",
            b"four",
            expected_stream="S",
            expected_last_seq=3,
            expected_last_msg_id="id-3",
            expected_last_subject_seq=0,
        )
        bench.note(ack.seq)
    with bench.step("with an expectation that fails"):
        with pytest.raises(WrongLastSequenceError):
            js.publish("s.x", b"five", expected_last_seq=1)
    with bench.step("many, one after the other"):
        for number in range(12):
            js.publish("s.x", b"%d" % number)


@scenario("js_publish", since=(2, 11))
def publish_with_ttl(bench: Bench) -> None:
    """With a time to live."""
    bench.stream(allow_msg_ttl=True)
    with bench.step("seconds"):
        bench.js.publish("s.x", b"one", ttl=60)
    with bench.step("never"):
        bench.js.publish("s.x", b"two", ttl="never")


@scenario("js_publish", since=(2, 12))
def publish_expecting_elsewhere(bench: Bench) -> None:
    """With an expectation of the last message of another subject."""
    bench.stream(3)
    with bench.step("the third"):
        bench.js.publish("s.y", b"four", expected_last_subject_seq=3, expected_last_subject_seq_subject="s.x")


@scenario("js_publish")
def publish_unheard(bench: Bench) -> None:
    """No stream listens: tried again, then given up."""
    with bench.step("two retries"):
        with pytest.raises(NoStreamResponseError):
            bench.js.publish("t.x", b"one", retry_wait=0.01)
    with bench.step("no retry"):
        with pytest.raises(NoStreamResponseError):
            bench.js.publish("t.x", b"two", retry_attempts=0, msg_id="id-2")


# --- publish_async ------------------------------------------------------------------------------------------


@scenario("publish_async")
def pipelined(bench: Bench) -> None:
    """Messages on their way together."""
    bench.stream()
    js = bench.js
    with bench.step("the first opens an inbox"):
        bench.note(js.publish_async("s.x", b"one").result(5).seq)
    with bench.step("ten, then wait"):
        futures = [js.publish_async("s.x", b"%d" % number) for number in range(10)]
        js.publish_async_wait(5)
        bench.note(*(future.result().seq for future in futures))
    with bench.step("with an id, headers and an expectation"):
        js.publish_async("s.x", b"two", msg_id="id-2").result(5)
        js.publish_async("s.x", b"three", headers={"Colour": "blue"}, expected_stream="S").result(5)
    with bench.step("publish between two of them"):
        js.publish_async("s.x", b"four").result(5)
        js.publish("s.x", b"five")
        js.publish_async("s.x", b"six").result(5)


@scenario("publish_async")
def narrow_window(bench: Bench) -> None:
    """A window of one message: each waits for the ack of the one before."""
    bench.stream()
    js = bench.nc.jetstream(publish_async_max_pending=1)
    with bench.step("four messages"):
        for number in range(4):
            js.publish_async("s.x", b"%d" % number)
        js.publish_async_wait(5)
    with bench.step("the context is dropped"):
        del js
        gc.collect()
        bench.wait_for("UNSUB")


@scenario("publish_async")
def unheard(bench: Bench) -> None:
    """No stream listens: sent again with the same reply subject, then given up."""
    with bench.step("two retries"):
        future = bench.js.publish_async("t.x", b"one", retry_wait=0.02)
        with pytest.raises(NoStreamResponseError):
            future.result(5)
    with bench.step("no retry"):
        future = bench.js.publish_async("t.x", b"two", retry_attempts=0)
        with pytest.raises(NoStreamResponseError):
            future.result(5)


# --- publish_many -------------------------------------------------------------------------------------------


@scenario("publish_many")
def many(bench: Bench) -> None:
    """An inbox for the call; each message has an id."""
    bench.stream()
    with bench.step("three messages"):
        messages = [("s.x", b"one"), ("s.x", b"two", {"Colour": "blue"}), ("s.y", b"three", None, "id-3")]
        bench.note(bench.js.publish_many(messages).published)
    with bench.step("none"):
        bench.note(bench.js.publish_many([]).published)
    with bench.step("in another stream than expected"):
        with pytest.raises(PublishManyError):
            bench.js.publish_many([("s.x", b"four")], expected_stream="T")


# --- publish_batch ------------------------------------------------------------------------------------------


@scenario("publish_batch", since=(2, 12))
def batches(bench: Bench) -> None:
    """Atomic batches."""
    bench.stream(allow_atomic=True)
    js = bench.js
    with bench.step("four messages in a `with` block"):
        with js.publish_batch() as batch:
            for number in range(4):
                batch.add("s.x", b"%d" % number)
        assert batch.ack is not None
        bench.note(batch.ack.seq, batch.ack.count)
    with bench.step("an iterable"):
        messages = [BatchMessage("s.x", b"4", {"Colour": "blue"}), ("s.y", b"5")]
        bench.note(js.publish_batch(messages).seq)
    with bench.step("one message, with expectations"):
        with js.publish_batch() as batch:
            batch.add("s.x", b"6", msg_id="id-6", expected_stream="S", expected_last_seq=6)
    with bench.step("an error in the block: nothing is sent"):
        with pytest.raises(ZeroDivisionError):
            with js.publish_batch() as batch:
                batch.add("s.x", b"7")
                raise ZeroDivisionError


@scenario("publish_batch", since=(2, 12))
def refused_batch(bench: Bench) -> None:
    """A batch that the stream refuses."""
    bench.stream(allow_atomic=True)
    with bench.step("the last sequence is another"):
        batch = bench.js.publish_batch()
        batch.add("s.x", b"0", expected_last_seq=9)
        batch.add("s.x", b"1")
        batch.add("s.x", b"2")
        with pytest.raises(WrongLastSequenceError):
            batch.commit()
