"""The ordered consumer: how it goes on when its consumer on the server is lost, and what ends it for good."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    JetStream,
    JetStreamMessage,
    OrderedConsumer,
    SequenceMismatchError,
    Stream,
    StreamNotFoundError,
    TimeoutError,
)
from jetstream_sync.jetstream import client_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import consumers, server_version
from tests.support.ordered import publish, sequences, take, upto
from tests.support.watchdog import InThread, under_watchdog

# --- recovery -------------------------------------------------------------------------------------------


def test_fetch_goes_on_with_a_new_consumer_when_its_one_is_deleted(
    js: JetStream, other_js: JetStream, stream: Stream
) -> None:
    """Deleted during a fetch: the same fetch delivers the rest."""
    publish(js, 1, 3)
    ordered = stream.ordered_consumer()
    batch = iter(ordered.fetch(10, expires=5))
    assert sequences(next(batch) for _ in range(3)) == upto(3)
    lost = ordered.name
    other_js.delete_consumer("S", str(lost))
    publish(other_js, 4, 10)
    assert sequences(under_watchdog(list, batch)) == upto(10, 4)
    assert consumers(js) == [ordered.name]
    assert ordered.name != lost


@pytest.mark.parametrize("how", ["fetch", "fetch_nowait", "next"])
def test_fetch_and_next_work_when_the_consumer_was_deleted_between(
    js: JetStream, nc: Connection, other_js: JetStream, stream: Stream, how: str
) -> None:
    """The caller notices nothing, also not by waiting."""
    publish(js, 1, 3)
    ordered = stream.ordered_consumer()
    uses: dict[str, Callable[[], Any]] = {
        "fetch": lambda: ordered.fetch(1, expires=0.5),
        "fetch_nowait": lambda: ordered.fetch_nowait(1),
        "next": lambda: filter(None, [ordered.next(expires=0.5)]),
    }
    assert sequences(uses[how]()) == [1]
    other_js.delete_consumer("S", str(ordered.name))
    start = time.monotonic()
    if server_version(nc) < (2, 10, 26):
        # No answer to such a pull: it sits out its time, and the next one goes on.
        assert sequences(uses[how]()) == []
        start = time.monotonic()
    assert sequences(uses[how]()) == [2]
    assert time.monotonic() - start < 0.5
    assert sequences(uses[how]()) == [3]


def test_fetch_ends_at_its_time_though_its_consumer_is_deleted_all_the_time(
    js: JetStream, other_js: JetStream, stream: Stream
) -> None:
    """Recovery takes place within `expires`."""
    ordered = stream.ordered_consumer()
    fetch = InThread(lambda: sequences(ordered.fetch(5, expires=1.5)))
    deleted = 0
    while fetch.running:
        for name in consumers(other_js):
            try:
                other_js.delete_consumer("S", name)
                deleted += 1
            except ConsumerNotFoundError:
                pass
    assert fetch.result() == []
    assert 1.4 <= fetch.seconds < 4
    assert 2 <= deleted <= 12  # backs off


def test_messages_go_on_when_the_consumer_is_deleted(js: JetStream, other_js: JetStream, stream: Stream) -> None:
    """Again and again; each time it is reported, and no message is missing or doubled."""
    errors: list[Exception] = []
    ordered = stream.ordered_consumer()
    seen: list[int] = []
    with ordered.messages(on_error=errors.append) as messages:
        for round_ in range(4):
            publish(js, 10 * round_ + 1, 10 * round_ + 10)
            seen += take(messages, 5)
            other_js.delete_consumer("S", str(ordered.name))
            seen += take(messages, 5)
        publish(js, 41, 41)
        seen += take(messages, 1)
    assert seen == upto(41)
    eventually(lambda: len(errors) == 4)
    assert all(isinstance(error, ConsumerDeletedError) for error in errors)


def test_consume_goes_on_when_the_consumer_is_deleted(js: JetStream, other_js: JetStream, stream: Stream) -> None:
    """Deleted from inside the callback, in the middle of a buffer."""
    publish(js, 1, 50)
    seen: list[int] = []
    ordered = stream.ordered_consumer()

    def callback(message: JetStreamMessage) -> None:
        seen.append(message.metadata.sequence.stream)
        if len(seen) in (10, 30):
            other_js.delete_consumer("S", str(ordered.name))

    options: dict[str, Any] = {"expires": 1, "idle_heartbeat": 0.5, "on_error": lambda error: None}
    with ordered.consume(callback, max_messages=20, **options):
        eventually(lambda: len(seen) >= 50, timeout=10)
    assert seen == upto(50)


def test_gap_is_mended_when_another_client_pulls_from_the_consumer(
    js: JetStream, other_js: JetStream, stream: Stream
) -> None:
    """The messages stolen come again, in order, in messages() and in fetch()."""
    errors: list[Exception] = []
    ordered = stream.ordered_consumer()
    publish(js, 1, 2)
    assert sequences(ordered.fetch(2)) == [1, 2]
    publish(js, 3, 6)
    assert sequences(other_js.get_consumer("S", str(ordered.name)).fetch(2)) == [3, 4]
    assert sequences(ordered.fetch(4)) == upto(6, 3)
    publish(js, 7, 12)
    assert sequences(other_js.get_consumer("S", str(ordered.name)).fetch(3)) == upto(9, 7)
    with ordered.messages(on_error=errors.append) as messages:
        assert take(messages, 6) == upto(12, 7)
    eventually(lambda: len(errors) == 1)
    assert isinstance(errors[0], SequenceMismatchError)
    assert errors[0].expected == 5  # the second incarnation had delivered four
    assert errors[0].got == 8


def test_gap_at_the_end_of_the_stream_shows_in_the_heartbeat(
    js: JetStream, other_js: JetStream, stream: Stream
) -> None:
    """No message follows the stolen one; Nats-Last-Consumer tells of it."""
    ordered = stream.ordered_consumer()
    publish(js, 1, 2)
    assert sequences(ordered.fetch(1)) == [1]
    assert sequences(other_js.get_consumer("S", str(ordered.name)).fetch(1)) == [2]
    with ordered.messages(expires=1, idle_heartbeat=0.5, on_error=lambda error: None) as messages:
        assert take(messages, 1) == [2]


def test_fetch_after_the_inactive_threshold_goes_on(js: JetStream, stream: Stream) -> None:
    """The server removes the consumer between two fetches; the second one is served at once."""
    publish(js, 1, 4)
    ordered = stream.ordered_consumer(inactive_threshold=0.3)
    assert sequences(ordered.fetch(2)) == [1, 2]
    eventually(lambda: not consumers(js), timeout=10, message="the server removes the idle consumer")
    start = time.monotonic()
    assert sequences(ordered.fetch(2)) == [3, 4]
    assert time.monotonic() - start < 1


def test_recreation_fits_into_a_stream_that_allows_one_consumer(js: JetStream) -> None:
    """The old consumer is deleted first."""
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", max_consumers=1)
    publish(js, 1, 12)
    ordered = stream.ordered_consumer()
    seen: list[int] = []
    for _ in range(4):
        for message in ordered.fetch(5):
            seen.append(message.metadata.sequence.stream)
            if len(seen) % 3 == 0:
                break
    assert seen == upto(12)


def test_recreation_backs_off_while_there_is_no_room_for_a_consumer(js: JetStream, other_js: JetStream) -> None:
    """At most five tries per second, each reported; it goes on as soon as there is room."""
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", max_consumers=1)
    publish(js, 1, 2)
    errors: list[Exception] = []
    ordered = stream.ordered_consumer()
    with ordered.messages(on_error=errors.append) as messages:
        assert take(messages, 1) == [1]
        with client_of(other_js).link.connection.subscribe("$JS.API.CONSUMER.CREATE.>") as tries:
            replace_by_foreign_consumer(other_js, ordered)
            publish(js, 3, 3)
            assert take(messages, 1) == [2]  # what was buffered
            with pytest.raises(TimeoutError):
                messages.next(timeout=2)
            assert 4 <= tries.pending_msgs <= 10
        other_js.delete_consumer("S", "foreign")
        assert take(messages, 1) == [3]
    assert any("maximum consumers" in str(error) for error in errors)


def replace_by_foreign_consumer(js: JetStream, ordered: OrderedConsumer) -> None:
    """Take the only place of a stream; ours may come first a few times."""

    def taken() -> bool:
        try:
            js.delete_consumer("S", str(ordered.name))
        except ConsumerNotFoundError:
            pass
        try:
            js.create_consumer("S", durable_name="foreign")
        except jetstream_sync.APIError:
            return False
        return True

    eventually(taken)


def test_recreation_gives_up_after_max_reset_attempts(js: JetStream, other_js: JetStream) -> None:
    """The last error ends the session."""
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", max_consumers=1)
    ordered = stream.ordered_consumer(max_reset_attempts=3)
    messages = ordered.messages(on_error=lambda error: None)
    replace_by_foreign_consumer(other_js, ordered)
    error = InThread(messages.next).error()
    assert isinstance(error, jetstream_sync.APIError)
    assert error.err_code == 10026
    assert messages.closed


# --- what ends it for good -------------------------------------------------------------------------------


def test_missing_stream_raises_at_the_first_use(js: JetStream) -> None:
    """Not when the object is made, and without delay."""
    ordered = js.ordered_consumer("NONE")
    for use in (lambda: ordered.fetch(1), ordered.next, ordered.messages, lambda: ordered.consume(print)):
        start = time.monotonic()
        with pytest.raises(StreamNotFoundError):
            use()
        assert time.monotonic() - start < 1


def test_deleted_stream_ends_messages(js: JetStream, stream: Stream) -> None:
    """The iteration raises StreamNotFoundError after what came before."""
    publish(js, 1, 3)
    messages = stream.ordered_consumer().messages(on_error=lambda error: None)
    assert take(messages, 1) == [1]
    stream.delete()
    seen: list[int] = []

    def read() -> None:
        for message in messages:
            seen.append(message.metadata.sequence.stream)

    error = InThread(read).error()
    assert isinstance(error, StreamNotFoundError)
    assert seen == [2, 3]
    assert messages.closed


def test_deleted_stream_ends_consume(js: JetStream, stream: Stream) -> None:
    """wait() raises it."""
    consumer = stream.ordered_consumer()
    context = consumer.consume(lambda message: None, on_error=lambda error: None)
    # A pull that reaches the server just as the stream goes is swallowed; only heartbeats tell of that one.
    eventually(lambda: consumer.name and consumer.get_info().num_waiting, message="the pull waits at the server")
    stream.delete()
    with pytest.raises(StreamNotFoundError):
        under_watchdog(context.wait, 10)
    assert isinstance(context.error, StreamNotFoundError)


def test_deleted_stream_ends_a_fetch(js: JetStream, stream: Stream) -> None:
    """Within a second, not at its time."""
    publish(js, 1, 1)
    batch = iter(stream.ordered_consumer().fetch(5, expires=10))
    assert sequences([next(batch)]) == [1]
    stream.delete()
    fetch = InThread(next, batch)
    assert isinstance(fetch.error(), StreamNotFoundError)
    assert fetch.seconds < 1


def test_closed_connection_ends_messages_and_consume(nats_server: LocalServer, js: JetStream) -> None:
    """Both raise ConnectionClosedError, a taker that waits at once."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    nc = jetstream_sync.connect(nats_server.url)
    messages = nc.jetstream().ordered_consumer("S").messages()
    context = nc.jetstream().ordered_consumer("S").consume(lambda message: None)
    taker = InThread(messages.next)
    nc.close()
    assert isinstance(taker.error(2), ConnectionClosedError)
    assert messages.closed
    with pytest.raises(ConnectionClosedError):
        under_watchdog(context.wait, 2)
