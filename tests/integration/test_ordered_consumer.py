"""The ordered consumer against a real server: order, position, incarnations, and how each use of it ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import (
    BadSubjectError,
    ConcurrencyError,
    Connection,
    ConsumerConfigError,
    ConsumerNotFoundError,
    JetStream,
    JetStreamMessage,
    Stream,
    SubscriptionClosedError,
    TimeoutError,
)
from jetstream_sync.consumers.chain import Chain
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import consumers
from tests.support.ordered import publish, sequences, take, upto

# --- the six methods ----------------------------------------------------------------------------------


def test_fetch_keeps_its_consumer_over_fetches(js: JetStream, stream: Stream) -> None:
    """One consumer on the server serves all fetches, each going on where the one before ended."""
    publish(js, 1, 25)
    ordered = stream.ordered_consumer()
    assert ordered.name is None
    assert ordered.info is None
    batches = [sequences(ordered.fetch(10)) for _ in range(2)]
    batches.append(sequences(ordered.fetch(10, expires=0.3)))
    batches.append(sequences(ordered.fetch_nowait(10)))
    publish(js, 26, 26)
    assert batches == [upto(10), upto(20, 11), upto(25, 21), []]
    first = ordered.next()
    assert first is not None
    assert first.metadata.sequence == (26, 26)  # the consumer sequence has run on: it was never replaced
    assert consumers(js) == [ordered.name]


def test_consumer_on_the_server_is_configured_as_adr_17_wants(js: JetStream, stream: Stream) -> None:
    """Ack none, delivered once, in memory, one replica; the user's choices beside that."""
    ordered = js.ordered_consumer(
        "S", inactive_threshold=60, metadata={"team": "blue"}, headers_only=True, name_prefix="report"
    )
    assert ordered.next(expires=0.1) is None
    config = ordered.get_info().config
    assert config.ack_policy == "none"
    assert config.max_deliver == 1
    assert config.mem_storage is True
    assert config.num_replicas == 1
    assert config.inactive_threshold == 60
    assert config.headers_only is True
    assert config.durable_name is None
    assert (config.metadata or {})["team"] == "blue"
    assert ordered.name is not None
    assert ordered.name.startswith("report_")
    assert ordered.stream_name == "S"


def test_next_returns_messages_in_order_and_none_when_there_is_none(js: JetStream, stream: Stream) -> None:
    """A loop over next() reads the stream."""
    publish(js, 1, 5)
    ordered = stream.ordered_consumer()
    assert sequences(ordered.next() for _ in range(5)) == upto(5)
    assert ordered.next(expires=0.1) is None


def test_fetch_by_bytes_goes_on_behind_what_fitted(js: JetStream, stream: Stream) -> None:
    """max_bytes limits a fetch; no message is lost between two."""
    publish(js, 1, 9)
    ordered = stream.ordered_consumer()
    seen: list[int] = []
    for _ in range(9):
        batch = sequences(ordered.fetch(max_bytes=250, expires=0.2))
        assert 0 < len(batch) < 5
        seen += batch
        if len(seen) == 9:
            break
    assert seen == upto(9)


def test_messages_reads_the_stream_in_order(js: JetStream, stream: Stream) -> None:
    """Also beyond one pull's size, and what is published later."""
    publish(js, 1, 40)
    with stream.ordered_consumer().messages(max_messages=7) as messages:
        assert take(messages, 40) == upto(40)
        publish(js, 41, 45)
        assert take(messages, 5) == upto(45, 41)
        with pytest.raises(TimeoutError):
            messages.next(timeout=0.05)


def test_messages_limited_by_bytes_reads_the_stream_in_order(js: JetStream, stream: Stream) -> None:
    """max_bytes bounds the buffer instead."""
    publish(js, 1, 30)
    with stream.ordered_consumer().messages(max_bytes=500) as messages:
        assert take(messages, 30) == upto(30)


def test_messages_as_a_loop_ends_after_stop(js: JetStream, stream: Stream) -> None:
    """The for loop ends by itself, without an error."""
    publish(js, 1, 10)
    messages = stream.ordered_consumer().messages()
    seen = []
    for message in messages:
        seen.append(message.metadata.sequence.stream)
        if len(seen) == 4:
            messages.stop()
    assert seen == upto(4)
    assert messages.closed


def test_consume_calls_back_in_order(js: JetStream, stream: Stream) -> None:
    """One callback at a time, every message once."""
    publish(js, 1, 300)
    seen: list[int] = []
    with stream.ordered_consumer().consume(lambda msg: seen.append(msg.metadata.sequence.stream)) as context:
        eventually(lambda: len(seen) >= 300)
        assert context.error is None
    assert seen == upto(300)
    assert context.closed


def test_consume_goes_on_after_a_callback_that_raises(js: JetStream, stream: Stream) -> None:
    """The error is reported; the message does not come again."""
    publish(js, 1, 4)
    seen: list[int] = []
    errors: list[Exception] = []

    def callback(message: JetStreamMessage) -> None:
        seen.append(message.metadata.sequence.stream)
        if len(seen) == 2:
            raise ValueError("two")

    with stream.ordered_consumer().consume(callback, on_error=errors.append):
        eventually(lambda: len(seen) >= 4 and errors)
    assert seen == upto(4)
    assert [str(error) for error in errors] == ["two"]


def test_acks_on_messages_are_ignored(js: JetStream, nc: Connection, stream: Stream) -> None:
    """Nothing is sent for any kind of ack."""
    publish(js, 1, 1)
    message = stream.ordered_consumer().next()
    assert message is not None
    with nc.subscribe("$JS.ACK.>") as acks:
        nc.flush()
        message.in_progress()
        message.ack_sync()
        message.nak()
        message.term()
        message.ack()
        nc.flush()
        assert acks.pending_msgs == 0


def test_arguments_that_make_no_sense_are_refused_at_once(js: JetStream, nc: Connection) -> None:
    """Before anything is asked of the server."""
    before = nc.stats.out_msgs
    ordered = js.ordered_consumer("S")
    with pytest.raises(ValueError, match="max_workers"):
        ordered.consume(print, max_workers=2)
    with pytest.raises(TypeError, match="priority groups"):
        ordered.next(group="A")
    with pytest.raises(TypeError, match="callback"):
        ordered.consume("print")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_error"):
        ordered.messages(on_error=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_messages"):
        ordered.fetch()
    with pytest.raises(ConsumerConfigError, match="durable_name"):
        js.ordered_consumer("S", durable_name="d")
    with pytest.raises(ValueError, match="max_reset_attempts"):
        js.ordered_consumer("S", max_reset_attempts=0)
    with pytest.raises(BadSubjectError, match="name_prefix"):
        js.ordered_consumer("S", name_prefix="a b")
    with pytest.raises(BadSubjectError, match="stream"):
        js.ordered_consumer("S.x")
    assert nc.stats.out_msgs == before


# --- where it begins, what it lets through -------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"deliver_policy": "all"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"deliver_policy": "last"}, [6, 7]),
        ({"deliver_policy": "new"}, [7]),
        ({"opt_start_seq": 4}, [4, 5, 6, 7]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, [6, 7]),
        ({"deliver_policy": "last_per_subject"}, [5, 6, 7]),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.a"}, [5, 7]),
        ({"filter_subject": "s.a"}, [1, 3, 5, 7]),
        ({"filter_subjects": ["s.b", "s.none"]}, [2, 4, 6]),
        ({"filter_subjects": ["s.a", "s.b"], "opt_start_seq": 3}, [3, 4, 5, 6, 7]),
    ],
)
def test_start_options_and_filters_choose_the_messages(
    js: JetStream, stream: Stream, fields: dict[str, Any], expected: list[int]
) -> None:
    """Six messages, alternating between two subjects, are there at the first use and a seventh comes later."""
    for number in range(1, 7):
        js.publish("s.a" if number % 2 else "s.b", b"%d" % number)
    ordered = stream.ordered_consumer(**fields)
    with ordered.messages() as messages:
        js.publish("s.a", b"7")
        assert take(messages, len(expected)) == expected


def test_start_time_chooses_the_first_message(js: JetStream, stream: Stream) -> None:
    """opt_start_time alone is enough."""
    publish(js, 1, 3)
    eventually(lambda: datetime.now(timezone.utc) > js.get_stream("S").get_message(3).time)
    start = datetime.now(timezone.utc)
    publish(js, 4, 6)
    assert sequences(stream.ordered_consumer(opt_start_time=start).fetch(3)) == [4, 5, 6]


@pytest.mark.parametrize("policy", ["new", "last", "all"])
def test_start_is_kept_when_the_consumer_is_lost_before_the_first_message(
    js: JetStream, other_js: JetStream, stream: Stream, policy: str
) -> None:
    """`new` means new when the use began, not when the consumer was replaced."""
    publish(js, 1, 3)
    ordered = stream.ordered_consumer(deliver_policy=policy)
    assert sequences(ordered.fetch_nowait(1)) == {"new": [], "last": [3], "all": [1]}[policy]
    other_js.delete_consumer("S", str(ordered.name))
    publish(js, 4, 5)
    expected = {"new": [4, 5], "last": [4, 5], "all": upto(5, 2)}[policy]
    # A server up to 2.10.25 does not answer a pull for a consumer that is gone: there the heartbeats tell.
    with ordered.messages(expires=1, idle_heartbeat=0.5, on_error=lambda error: None) as messages:
        assert take(messages, len(expected)) == expected


def test_headers_only_leaves_out_the_payload(js: JetStream, stream: Stream) -> None:
    """As the server's own option does."""
    js.publish("s.x", b"payload")
    message = stream.ordered_consumer(headers_only=True).next()
    assert message is not None
    assert message.data == b""
    assert message.headers is not None
    assert message.headers["Nats-Msg-Size"] == "7"


# --- how a use ends --------------------------------------------------------------------------------------


def test_fetch_left_early_loses_nothing(js: JetStream, stream: Stream) -> None:
    """The next fetch begins right behind the last message handed out."""
    publish(js, 1, 20)
    ordered = stream.ordered_consumer()
    seen: list[int] = []
    for _ in range(5):
        for message in ordered.fetch(10):
            seen.append(message.metadata.sequence.stream)
            if len(seen) % 4 == 0:
                break
    assert seen == upto(20)
    eventually(lambda: len(consumers(js)) <= 1)


def test_fetch_that_is_never_iterated_loses_nothing(js: JetStream, stream: Stream) -> None:
    """Dropped or closed, its messages come with the next one."""
    publish(js, 1, 3)
    ordered = stream.ordered_consumer()
    ordered.fetch(3)
    gc.collect()
    with ordered.fetch(3):
        pass
    ordered.fetch(3).close()
    assert sequences(ordered.fetch(3)) == upto(3)


@pytest.mark.parametrize("how", ["fetch", "next"])
def test_message_not_handed_out_because_a_signal_handler_raised_comes_again(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """An exception that comes in between, in the library's own code, costs no message."""
    publish(js, 1, 4)
    ordered = stream.ordered_consumer()
    interruptions = iter([False, True, False, True])
    advance = Chain.advance

    def interrupted(chain: Chain, *args: Any) -> bool:
        is_next = advance(chain, *args)
        if next(interruptions, False):
            raise KeyboardInterrupt
        return is_next

    monkeypatch.setattr(Chain, "advance", interrupted)
    seen: list[int] = []
    for _ in range(8):
        try:
            for message in ordered.fetch(4, expires=0.5) if how == "fetch" else [ordered.next()]:
                assert message is not None
                seen.append(message.metadata.sequence.stream)
        except KeyboardInterrupt:
            continue
        if len(seen) == 4:
            break
    assert seen == upto(4)


def test_public_surface_is_that_of_any_batch_and_stream(js: JetStream, stream: Stream) -> None:
    """What is not for users begins with an underscore or lives elsewhere."""
    publish(js, 1, 2)
    plain, ordered = js.create_consumer("S", durable_name="d"), stream.ordered_consumer()

    def surface(thing: object) -> list[str]:
        return [name for name in dir(thing) if not name.startswith("_")]

    with plain.fetch(1) as batch, ordered.fetch(1) as ordered_batch:
        assert surface(ordered_batch) == surface(batch)
    with plain.messages() as messages, ordered.messages() as ordered_messages:
        assert surface(ordered_messages) == surface(messages)


def test_second_use_at_the_same_time_is_refused(js: JetStream, stream: Stream) -> None:
    """The order is one: an unfinished fetch, messages() or consume() excludes any other."""
    publish(js, 1, 9)
    ordered = stream.ordered_consumer()
    uses: list[Callable[[], Any]] = [
        lambda: ordered.fetch(1),
        lambda: ordered.fetch_nowait(1),
        ordered.next,
        ordered.messages,
        lambda: ordered.consume(print),
    ]
    begun: list[Callable[[], Any]] = [
        lambda: ordered.fetch(5),
        ordered.messages,
        lambda: ordered.consume(lambda message: None),
    ]
    for begin in begun:
        with begin():
            for use in uses:
                with pytest.raises(ConcurrencyError):
                    use()
    ordered.fetch_nowait(1).close()


def test_uses_one_after_the_other_go_on_where_the_last_ended(js: JetStream, stream: Stream) -> None:
    """What messages() had buffered when it was stopped is not lost to the next use."""
    publish(js, 1, 30)
    ordered = stream.ordered_consumer()
    seen = sequences(ordered.fetch(3))
    with ordered.messages() as messages:
        seen += take(messages, 4)
    seen += sequences([ordered.next()])
    consumed: list[int] = []
    with ordered.consume(lambda message: consumed.append(message.metadata.sequence.stream)) as context:
        eventually(lambda: len(consumed) >= 2)
        context.stop()
    seen += consumed
    seen += sequences(ordered.fetch(30, expires=0.3))
    assert seen == upto(30)


@pytest.mark.parametrize("how", ["stop", "with", "drop", "drain"])
def test_end_of_messages_deletes_the_consumer(js: JetStream, stream: Stream, how: str) -> None:
    """Whatever ends it, nothing is left on the server."""
    publish(js, 1, 5)
    ordered = stream.ordered_consumer()
    messages = ordered.messages()
    assert take(messages, 2) == [1, 2]
    assert consumers(js) == [ordered.name]
    if how == "stop":
        messages.stop()
    elif how == "drain":
        messages.drain()
    elif how == "with":
        with messages:
            pass
    else:
        del messages
    eventually(lambda: not consumers(js))


def test_end_of_consume_deletes_the_consumer(js: JetStream, stream: Stream) -> None:
    """stop() from inside the callback; wait() returns without an error."""
    publish(js, 1, 5)
    seen: list[int] = []
    begun = threading.Event()

    def callback(message: JetStreamMessage) -> None:
        assert begun.wait(5)
        seen.append(message.metadata.sequence.stream)
        if len(seen) == 2:
            context.stop()

    ordered = stream.ordered_consumer()
    with ordered.consume(callback) as context:
        begun.set()
        assert context.wait(5)
    assert seen == [1, 2]
    assert context.error is None
    eventually(lambda: not consumers(js))


def test_connection_closed_right_after_stop_leaves_no_consumer(nats_server: LocalServer, js: JetStream) -> None:
    """The deletion does not wait for a reply, but is sent before the connection is closed."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publish(js, 1, 1)
    with jetstream_sync.connect(nats_server.url) as nc:
        with nc.jetstream().ordered_consumer("S").messages() as messages:
            assert take(messages, 1) == [1]
    eventually(lambda: not consumers(js))


def test_drain_hands_out_what_is_buffered_and_the_next_use_goes_on_behind(js: JetStream, stream: Stream) -> None:
    """Until that has been taken, the stream is in use."""
    publish(js, 1, 8)
    ordered = stream.ordered_consumer()
    messages = ordered.messages(max_messages=4)
    assert take(messages, 1) == [1]
    messages.drain()
    eventually(lambda: messages.closed)
    with pytest.raises(ConcurrencyError):
        ordered.fetch(1)
    rest = sequences(messages)
    assert rest[:3] == [2, 3, 4]
    last = rest[-1]
    with pytest.raises(SubscriptionClosedError):
        messages.next(timeout=1)
    assert sequences(ordered.fetch(8 - last, expires=1)) == upto(8, last + 1)


def test_delete_replaces_the_consumer_at_the_next_use(js: JetStream, stream: Stream) -> None:
    """delete() frees the server's resources; the position is kept."""
    publish(js, 1, 4)
    ordered = stream.ordered_consumer()
    with pytest.raises(ConsumerNotFoundError):
        ordered.get_info()
    assert sequences(ordered.fetch(2)) == [1, 2]
    ordered.delete()
    eventually(lambda: not consumers(js))
    with pytest.raises(ConsumerNotFoundError):
        ordered.get_info()
    assert sequences(ordered.fetch(2)) == [3, 4]
