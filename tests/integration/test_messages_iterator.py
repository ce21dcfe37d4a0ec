"""messages(): the endless iterator."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
import traceback
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream, MessageStream
from jetstream_sync.errors import (
    ConcurrencyError,
    ConnectionClosedError,
    ConsumerDeletedError,
    PullError,
    SubscriptionClosedError,
    TimeoutError,
)
from jetstream_sync.testing import LocalServer
from tests.support.consuming import buffered, receivers
from tests.support.eventually import eventually
from tests.support.observer import Observer, Seen, fill, stream_and_consumer, waiting_pulls
from tests.support.signals import Interrupted, handler_of, interrupted_after
from tests.support.threads import thread_names
from tests.support.watchdog import InThread


def assert_never_over(limit: int, pulls: list[Seen], taken_at: list[tuple[float, int]]) -> None:
    """What was asked for, less what had been taken by then, is never more than the buffer."""
    asked = 0
    for pull in pulls:
        asked += pull.body["batch"]
        taken = max((count for at, count in taken_at if at <= pull.at), default=0)
        assert asked - taken <= limit, (asked, taken, limit)


# --- pulls --------------------------------------------------------------------------------------------


def test_messages_first_pull_has_the_defaults(js: JetStream, observer: Observer) -> None:
    """One message, because nothing is known of the handler yet; 30 s, a heartbeat every 15 s."""
    consumer = stream_and_consumer(js)
    with consumer.messages():
        (pull,) = observer.wait_for_pulls(1)
        assert pull.body == {"batch": 1, "expires": 30_000_000_000, "idle_heartbeat": 15_000_000_000}


def test_messages_pulls_share_one_inbox_and_keep_the_limit(
    js: JetStream, nc: Connection, observer: Observer
) -> None:
    """All pulls have one reply subject, and never ask for more than is free in the buffer."""
    consumer = stream_and_consumer(js, 500)
    taken_at = []
    with consumer.messages(max_messages=20) as messages:
        for count in range(500):
            # Before it is taken: the pull may be seen before this thread gets to look at the clock again.
            taken_at.append((time.monotonic(), count + 1))
            messages.next(5).ack()
    observer.settle(nc)
    assert len({pull.reply for pull in observer.pulls}) == 1
    assert len(observer.pulls) <= 60
    assert_never_over(20, observer.pulls, taken_at)
    assert set(observer.acked_once().values()) == {1}
    assert len(observer.acked_once()) == 500


@pytest.mark.parametrize("how", ["loop", "next"])
@pytest.mark.parametrize(
    ("options", "first", "second_after", "second"),
    [
        ({"max_messages": 500}, 500, 250, 250),
        ({"max_messages": 10}, 10, 5, 5),
        ({"max_messages": 10, "threshold_messages": 8}, 10, 2, 2),
        ({"max_messages": 100, "threshold_messages": 1}, 100, 99, 99),
        ({"max_messages": 1}, 1, 1, 1),
    ],
)
def test_messages_second_pull_comes_at_the_threshold(
    js: JetStream,
    nc: Connection,
    observer: Observer,
    how: str,
    options: dict[str, int],
    first: int,
    second_after: int,
    second: int,
) -> None:
    """When the message behind the threshold is asked for, whichever way messages are taken: until then the user
    has the last one in hand."""
    consumer = stream_and_consumer(js, first + 1)
    with consumer.messages(**options) as messages:
        eventually(lambda: buffered(messages) == first)
        take = iter(messages).__next__ if how == "loop" else messages.next
        for _ in range(second_after):
            take()
        observer.settle(nc)
        assert [pull.body["batch"] for pull in observer.pulls] == [first]
        take()
        observer.wait_for_pulls(2)
        assert [pull.body["batch"] for pull in observer.pulls] == [first, second]


def test_messages_idle_keeps_at_most_two_pulls_waiting(js: JetStream, observer: Observer) -> None:
    """An idle stream of messages with expires=1 renews its pull, and never piles pulls up."""
    assert_idle_for(js, observer, 2.5)


@pytest.mark.soak
def test_messages_idle_keeps_at_most_two_pulls_waiting_for_30_seconds(js: JetStream, observer: Observer) -> None:
    """The same over 30 s."""
    assert_idle_for(js, observer, 30)


def assert_idle_for(js: JetStream, observer: Observer, seconds: float) -> None:
    consumer = stream_and_consumer(js)
    errors: list[Exception] = []
    with consumer.messages(expires=1, on_error=errors.append) as messages:
        taker = InThread(list, messages)
        end = time.monotonic() + seconds
        most = 0
        while time.monotonic() < end:
            most = max(most, waiting_pulls(consumer))
            threading.Event().wait(0.05)
        assert most <= 2
        assert seconds - 1 <= len(observer.pulls) <= seconds + 2
        messages.stop()
        assert taker.result(2) == []
    assert errors == []


@pytest.mark.parametrize(
    ("limit", "options", "raised", "text"),
    [
        ({"max_batch": 5}, {"max_messages": 10}, {"max_batch": 10}, "MaxRequestBatch"),
        ({"max_expires": 2}, {"expires": 5}, {"max_expires": 5}, "MaxRequestExpires"),
        ({"max_bytes": 100}, {"max_bytes": 1000}, {"max_bytes": 1000}, "MaxRequestMaxBytes"),
    ],
)
def test_messages_over_a_limit_backs_off_and_recovers(
    js: JetStream,
    observer: Observer,
    limit: dict[str, int],
    options: dict[str, Any],
    raised: dict[str, int],
    text: str,
) -> None:
    """A refused pull is warned about and repeated at most 5 times in a second; once allowed, messages flow."""
    consumer = stream_and_consumer(js, 1, **limit)
    errors: list[Exception] = []
    with consumer.messages(on_error=errors.append, **options) as messages:
        with pytest.raises(TimeoutError):
            messages.next(1.2)
        times = [pull.at for pull in observer.pulls]
        assert 2 <= len(times) <= 8
        assert all(len([at for at in times if start <= at < start + 1]) <= 5 for start in times)
        js.update_consumer("S", durable_name="C", **raised)
        assert messages.next(3).data == b"0"
    assert errors
    assert all(isinstance(error, PullError) and text in str(error) for error in errors)


def test_messages_with_a_buffer_of_one_is_never_stuck(js: JetStream) -> None:
    """max_messages=1 goes on over many messages and over expired pulls."""
    consumer = stream_and_consumer(js, 200)
    with consumer.messages(max_messages=1, expires=1) as messages:
        for number in range(200):
            assert messages.next(5).data == b"%d" % number
        with pytest.raises(TimeoutError):
            messages.next(1.3)
        js.publish("s.x", b"late")
        assert messages.next(2).data == b"late"


# --- bytes --------------------------------------------------------------------------------------------


def test_messages_by_bytes_keeps_its_buffer_and_delivers_all(
    js: JetStream, nc: Connection, observer: Observer
) -> None:
    """With max_bytes the pulls ask for bytes, a million messages at most, and never more than is free."""
    consumer = stream_and_consumer(js)
    fill(js, 300, size=200)
    limit = 4000
    with consumer.messages(max_bytes=limit) as messages:
        for number in range(300):
            message = messages.next(5)
            assert message.data.startswith(b"%d." % number)
            message.ack()
    observer.settle(nc)
    assert {pull.body["batch"] for pull in observer.pulls} == {1_000_000}
    assert observer.pulls[0].body["max_bytes"] == limit
    assert all(0 < pull.body["max_bytes"] <= limit for pull in observer.pulls)


def test_messages_by_bytes_with_exact_fit_goes_on(js: JetStream) -> None:
    """A buffer that messages fill to the byte is filled again: the server says nothing then."""
    consumer = stream_and_consumer(js, 9)  # numbers of one digit: all of one size
    (sample,) = consumer.fetch(1)  # a pull that does not wait may find nothing right after the publish
    size = len(sample.subject) + len(sample.reply or "") + len(sample.data)
    js.delete_consumer("S", "C")
    consumer = js.create_consumer("S", durable_name="C")
    errors: list[Exception] = []
    with consumer.messages(max_bytes=3 * size, on_error=errors.append) as messages:
        assert [messages.next(3).data for _ in range(9)] == [b"%d" % number for number in range(9)]
    assert errors == []


def test_messages_by_bytes_with_too_large_a_message_warns_without_a_hot_loop(
    js: JetStream, observer: Observer
) -> None:
    """A message that can never fit is warned about, at most 5 pulls a second; smaller ones before it came."""
    consumer = stream_and_consumer(js, 3)
    fill(js, 1, size=2000)
    errors: list[Exception] = []
    with consumer.messages(max_bytes=500, on_error=errors.append) as messages:
        assert [messages.next(2).data for _ in range(3)] == [b"0", b"1", b"2"]
        seen = len(observer.pulls)
        with pytest.raises(TimeoutError):
            messages.next(1.2)
        assert len(observer.pulls) - seen <= 7
    assert errors
    assert all("Message Size Exceeds MaxBytes" in str(error) for error in errors)


# --- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_messages_ends_typed_when_deleted(js: JetStream, nc: Connection, observer: Observer, what: str) -> None:
    """Messages before the deletion come first, the error within 1 s, and no further pull is sent."""
    consumer = stream_and_consumer(js, 8)
    messages = consumer.messages(max_messages=10, threshold_messages=5)
    eventually(lambda: buffered(messages) == 8)
    observer.settle(nc)
    pulls = len(observer.pulls)
    if what == "consumer":
        js.delete_consumer("S", "C")
    else:
        js.delete_stream("S")
    eventually(lambda: buffered(messages) == 9)
    start = time.monotonic()
    got = []
    with pytest.raises(ConsumerDeletedError):
        for message in messages:
            got.append(message.data)
    assert time.monotonic() - start < 1
    assert len(got) == 8
    assert messages.closed
    observer.settle(nc)
    assert len(observer.pulls) == pulls
    with pytest.raises(ConsumerDeletedError):
        messages.next(1)


def test_messages_stop_in_the_loop_ends_it_at_once(js: JetStream) -> None:
    """After stop() not one message more is handed out, in the main thread as in another."""
    consumer = stream_and_consumer(js, 100, ack_wait=60)

    def take_three_and_stop() -> list[int]:
        with consumer.messages(max_messages=500) as messages:
            eventually(lambda: buffered(messages) > 10)
            got = []
            for message in messages:
                got.append(message.metadata.sequence.stream)
                message.ack()
                if len(got) == 3:
                    messages.stop()
                    messages.stop()
            with pytest.raises(SubscriptionClosedError):
                messages.next(1)
            assert list(messages) == []
            return got

    assert len(take_three_and_stop()) == 3
    fill(js, 100)
    assert len(InThread(take_three_and_stop).result(5)) == 3


def test_messages_drain_delivers_what_is_buffered(js: JetStream, nc: Connection, observer: Observer) -> None:
    """After drain() there is no new pull, no interest; the buffer is emptied, then the loop ends."""
    consumer = stream_and_consumer(js, 30)
    messages = consumer.messages(max_messages=20)
    eventually(lambda: buffered(messages) == 20)
    messages.drain()
    messages.drain()
    eventually(lambda: messages.closed)
    js.publish("s.x", b"after the drain")
    assert [message.data for message in messages] == [b"%d" % number for number in range(20)]
    observer.settle(nc)
    assert len(observer.pulls) == 1


def test_messages_drain_on_a_silent_server_does_not_spin() -> None:
    """While a drain waits for the server nothing runs hot, and drain() itself returns at once."""
    with LocalServer() as server:
        nc = jetstream_sync.connect(server.url, drain_timeout=1.0)
        consumer = stream_and_consumer(nc.jetstream(), 10)
        messages = consumer.messages(max_messages=10)
        try:
            eventually(lambda: buffered(messages) == 10)
            server.pause()
            for _ in range(9):
                messages.next(1)
            start, cpu = time.monotonic(), time.process_time()
            messages.drain()
            assert time.monotonic() - start < 0.2
            eventually(lambda: messages.closed, 3.0)
            assert time.process_time() - cpu < 0.5
            assert len(list(messages)) == 1
        finally:
            server.resume()
            nc.close()


def test_messages_with_block_stops(js: JetStream) -> None:
    """Leaving the block ends the stream, its pull and its thread."""
    consumer = stream_and_consumer(js)
    with consumer.messages() as messages:
        eventually(lambda: waiting_pulls(consumer) == 1)
    assert messages.closed
    assert not thread_names("js-refill")


def test_messages_dropped_stops_pulling(js: JetStream, nc: Connection) -> None:
    """A message stream without references ends by itself, also after its loop was left by break."""
    consumer = stream_and_consumer(js, 5)
    for _ in consumer.messages():
        break
    gc.collect()
    eventually(lambda: not thread_names("js-refill"), 2.0)
    eventually(
        lambda: (
            not any(
                b"_INBOX" in each.wire_subject and b"*" not in each.wire_subject for each in receivers(nc).values()
            )
        )
    )


def test_messages_loop_left_and_resumed_keeps_counting(js: JetStream, observer: Observer) -> None:
    """A loop left by break and begun again goes on where it was, and pulls go on as well."""
    consumer = stream_and_consumer(js, 1001)
    with consumer.messages(max_messages=40) as messages:
        got = []
        while len(got) < 1001:
            for message in messages:
                got.append(message.data)
                message.ack()
                if len(got) % 7 == 0:
                    break
        assert got == [b"%d" % number for number in range(1001)]


def test_messages_next_times_out_and_goes_on(js: JetStream) -> None:
    """A timeout is no end."""
    consumer = stream_and_consumer(js)
    with consumer.messages() as messages:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            messages.next(0.2)
        assert 0.1 < time.monotonic() - start < 1
        js.publish("s.x", b"late")
        assert messages.next(2).data == b"late"


def test_messages_connection_closed_raises_in_the_loop(js: JetStream, nc: Connection) -> None:
    """A connection that is closed for good ends the loop with ConnectionClosedError."""
    consumer = stream_and_consumer(js)
    taker = InThread(list, consumer.messages())
    eventually(lambda: waiting_pulls(consumer) == 1)
    nc.close()
    error = taker.error(2)
    assert isinstance(error, ConnectionClosedError)
    assert "IndexError" not in "".join(traceback.format_exception(error))


def test_messages_interrupted_by_ctrl_c_can_go_on(js: JetStream) -> None:
    """KeyboardInterrupt gets out of a waiting loop within a second; the stream is usable afterwards."""
    consumer = stream_and_consumer(js)
    with consumer.messages() as messages:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2, KeyboardInterrupt):
            for _ in messages:
                pass
        assert time.monotonic() - start < 1.2
        js.publish("s.x", b"later")
        assert messages.next(2).data == b"later"


@pytest.mark.parametrize("end", ["stop", "drain"])
def test_messages_ended_by_a_signal_handler_never_deadlocks(js: JetStream, end: str) -> None:
    """A handler in the main thread, which iterates in a tight loop, ends it: whatever it interrupts."""
    consumer = stream_and_consumer(js, 3000, ack_policy="none")
    consumer.delete()
    for round_ in range(25):
        consumer = js.create_consumer("S", durable_name=f"R{round_}", ack_policy="none")
        messages = consumer.messages(max_messages=50)
        with handler_of(signal.SIGALRM, lambda *_, one=messages: getattr(one, end)()):
            signal.setitimer(signal.ITIMER_REAL, 0.002 + round_ * 0.0005)
            for _ in messages:
                pass
        assert messages.closed


# A handler that raises while the interpreter closes a dropped generator: Python can only report that.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["loop", "next"])
@pytest.mark.parametrize("limit", [1, 40])
def test_messages_through_a_storm_of_interruptions_never_sticks(js: JetStream, how: str, limit: int) -> None:
    """A handler that raises at any instruction of the taker: what it lost comes again, and it pulls on."""

    def interrupt(*_: object) -> None:
        nonlocal interruptions
        interruptions += 1
        raise Interrupted

    def take(messages: MessageStream) -> None:
        # In a function: on Python 3.13.0 what a handler raises at a loop's end escapes the `try` around the loop.
        before = interruptions  # one that Python could only report ends the turn as well
        while len(seen) < 500 and interruptions == before:
            if how == "next":
                message = messages.next(1)
                seen.add(message.data)
                message.ack()
            else:
                for message in messages:
                    seen.add(message.data)
                    message.ack()
                    break

    consumer = stream_and_consumer(js, 500, ack_wait=0.4)
    seen: set[bytes] = set()
    interruptions = 0
    chance = random.Random(limit)
    deadline = time.monotonic() + 20
    with handler_of(signal.SIGALRM, interrupt):
        with consumer.messages(max_messages=limit, expires=1, idle_heartbeat=0.5, on_error=print) as messages:
            while len(seen) < 500 and time.monotonic() < deadline:
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.0001 + chance.random() * 0.0007)
                        take(messages)
                    finally:  # inside: the timer may go off in here, too
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except (Interrupted, TimeoutError):
                    pass
    assert len(seen) == 500
    assert interruptions > 2


# --- threads ------------------------------------------------------------------------------------------


def test_messages_taken_by_two_threads_is_refused(js: JetStream) -> None:
    """The second thread gets ConcurrencyError; the first one goes on."""
    consumer = stream_and_consumer(js)
    with consumer.messages() as messages:
        first = InThread(messages.next, 5)
        eventually(lambda: messages._feed.waiting)
        with pytest.raises(ConcurrencyError):
            messages.next(1)
        with pytest.raises(ConcurrencyError):
            next(iter(messages))
        js.publish("s.x", b"one")
        assert first.result(2).data == b"one"


def test_messages_taken_by_two_threads_in_turn_is_allowed(js: JetStream) -> None:
    """One after the other is fine."""
    consumer = stream_and_consumer(js, 100)
    with consumer.messages(max_messages=10) as messages:
        got = [InThread(messages.next, 5).result(6).data for _ in range(100)]
    assert got == [b"%d" % number for number in range(100)]


def test_messages_slow_loop_is_no_missed_heartbeat(js: JetStream, observer: Observer, nc: Connection) -> None:
    """Messages taken but not yet counted, and a filled batch: the server owes nothing, so there is no alarm."""
    consumer = stream_and_consumer(js, 500)
    errors: list[Exception] = []
    options: dict[str, Any] = {"max_messages": 500, "expires": 2, "idle_heartbeat": 0.5}
    with consumer.messages(**options, on_error=errors.append) as messages:
        eventually(lambda: buffered(messages) == 500)
        loop = iter(messages)
        for _ in range(10):
            next(loop)
        threading.Event().wait(1.5)
        observer.settle(nc)
        assert len(observer.pulls) == 1
        for _ in range(490):
            next(loop)
        js.publish("s.x", b"last")
        assert next(loop).data == b"last"
    assert errors == []


def test_messages_silence_before_a_pull_is_no_missed_heartbeat(js: JetStream) -> None:
    """While the server owes nothing the silence does not count, however shortly before its end a pull goes out."""
    consumer = stream_and_consumer(js)
    errors: list[Exception] = []
    with consumer.messages(max_messages=1, expires=2, idle_heartbeat=0.5, on_error=errors.append) as messages:
        for pause in (0.9, 0.97):
            js.publish("s.x")
            messages.next(1)
            threading.Event().wait(pause)
            with pytest.raises(TimeoutError):  # asks for the next one, which sends the pull
                messages.next(0.2)
            assert waiting_pulls(consumer) == 1
    assert errors == []


def test_messages_refuses_bad_options_before_sending(js: JetStream, nc: Connection, observer: Observer) -> None:
    """Bad options are refused at the call, and nothing is sent; the same for consume()."""
    consumer = stream_and_consumer(js)
    bad: list[dict[str, Any]] = [
        {"max_messages": 0},
        {"max_messages": 10, "max_bytes": 10},
        {"max_bytes": 0},
        {"expires": 0.5},
        {"idle_heartbeat": 0.4},
        {"idle_heartbeat": 31, "expires": 100},
        {"idle_heartbeat": 20},
        {"threshold_messages": 501},
        {"threshold_messages": 0},
        {"threshold_bytes": 1},
        {"max_bytes": 10, "threshold_bytes": 11},
        {"group": ""},
        {"min_pending": 1},
    ]
    for options in bad:
        with pytest.raises(ValueError):
            consumer.messages(**options)
        with pytest.raises(ValueError):
            consumer.consume(print, **options)
    for options in ({"max_messages": "1"}, {"on_error": 1}, {"expires": None}):
        with pytest.raises(TypeError):
            consumer.messages(**options)  # type: ignore[arg-type]
    observer.settle(nc)
    assert observer.pulls == []
    assert not thread_names("js-refill")


@pytest.mark.usefixtures("eager_switching")
def test_messages_under_a_tiny_switch_interval_loses_nothing(js: JetStream, observer: Observer) -> None:
    """With threads switching all the time every message comes once, in order, and the buffer holds."""
    consumer: Consumer = stream_and_consumer(js, 1500)
    got = []
    with consumer.messages(max_messages=16) as messages:
        for message in messages:
            got.append(message.data)
            message.ack()
            if len(got) == 1500:
                break
    assert got == [b"%d" % number for number in range(1500)]
    assert sum(pull.body["batch"] for pull in observer.pulls) <= 1500 + 16
