"""How each status ends a fetch and what it does to a consume, row by row, as the running server answers.

Most statuses are provoked; the few that this server cannot be made to send to us (they are marked `injected`) are
put where the reader thread would put them. Where versions differ the expectation for each is spelled out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream, JetStreamMessage
from jetstream_sync.errors import (
    ConnectionLostError,
    ConsumerDeletedError,
    ConsumerIsPushError,
    MissedHeartbeatError,
    NatsError,
    NoRespondersError,
    PullError,
    TimeoutError,
)
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.bench import Bench
from tests.support.consuming import buffered, pull_of
from tests.support.eventually import eventually
from tests.support.observer import await_pending, fill, stream_and_consumer, waiting_pulls

AT_ONCE = 1.0  # seconds, far less than any expiry


@pytest.fixture
def bench(nats_server: LocalServer, nc: Connection, js: JetStream) -> Bench:
    return Bench(nats_server, nc, js)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.monotonic()
    return call(), time.monotonic() - start


def inject(inlet: Any, status: bytes) -> None:
    """A status as the reader thread would deliver it."""
    inlet.deliver([(inlet.wire_subject, None, b"NATS/1.0 " + status + b"\r\n\r\n", b"")], 0)


# --- §1.2: fetch and next -----------------------------------------------------------------------------


def test_fetch_batch_filled_ends_normally(bench: Bench) -> None:
    """batch filled: ends normally."""
    got, seconds = timed(lambda: list(bench.consumer(3).fetch(3, expires=5)))
    assert len(got) == 3
    assert seconds < AT_ONCE


def test_fetch_404_no_messages_ends_normally(bench: Bench) -> None:
    """404: nothing, or what came before it (older servers end a partial batch with 408 instead)."""
    consumer = bench.consumer()
    got, seconds = timed(lambda: list(consumer.fetch_nowait(5)))
    assert (got, seconds < AT_ONCE) == ([], True)
    fill(bench.js, 2)
    await_pending(consumer, 2)
    got, seconds = timed(lambda: list(consumer.fetch_nowait(5)))
    assert (len(got), seconds < AT_ONCE) == (2, True)


def test_fetch_408_request_timeout_ends_normally(bench: Bench) -> None:
    """408 Request Timeout: ends normally, with nothing or with what came."""
    consumer = bench.consumer()
    assert list(consumer.fetch(5, expires=0.3)) == []
    assert consumer.next(0.3) is None
    fill(bench.js, 2)
    assert len(list(consumer.fetch(5, expires=0.3))) == 2


def test_fetch_408_requests_pending_ends_normally(bench: Bench) -> None:
    """408 Requests Pending: a no_wait pull while another one waits."""
    consumer = bench.consumer()
    with consumer.fetch(1, expires=5):
        eventually(lambda: waiting_pulls(consumer) == 1)
        got, seconds = timed(lambda: list(consumer.fetch_nowait(5)))
    assert (got, seconds < AT_ONCE) == ([], True)


def test_fetch_409_batch_completed_ends_normally(bench: Bench) -> None:
    """409 Batch Completed follows a batch that was filled with bytes to spare: no harm."""
    consumer = bench.consumer(4)
    for _ in range(2):
        got, seconds = timed(lambda: list(consumer.fetch(2, max_bytes=100_000, expires=5)))
        assert (len(got), seconds < AT_ONCE) == (2, True)


def test_fetch_409_message_size_exceeds_ends_after_what_fitted(bench: Bench) -> None:
    """409 Message Size Exceeds MaxBytes: normal after what fitted, and the reason if nothing came."""
    consumer = bench.consumer(1)
    fill(bench.js, 1, size=2000)
    got, seconds = timed(lambda: list(consumer.fetch(max_bytes=500, expires=5)))
    assert (len(got), seconds < AT_ONCE) == (1, True)
    with pytest.raises(PullError, match="Message Size Exceeds MaxBytes"):
        list(consumer.fetch(max_bytes=500, expires=5))


@pytest.mark.parametrize("count", [0, 2])
def test_fetch_409_server_shutdown_is_an_error_only_if_empty(count: int) -> None:
    """409 Server Shutdown: with messages a normal end, without an error."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream(), count)
        batch = consumer.fetch(10, expires=10)
        eventually(lambda: buffered(batch) == count and waiting_pulls(consumer) == 1)
        server.stop()
        if count:
            assert len(list(batch)) == count
        else:
            with pytest.raises(PullError, match="Server Shutdown"):
                list(batch)
        nc.close()


@pytest.mark.parametrize("count", [0, 2])
def test_fetch_409_leadership_change_is_an_error_only_if_empty(bench: Bench, count: int) -> None:
    """409 Leadership Change (injected here; a cluster sends it in tests/faults): as Server Shutdown."""
    batch = bench.consumer(count).fetch(10, expires=10)
    eventually(lambda: buffered(batch) == count)
    inject(pull_of(batch), b"409 Leadership Change")
    if count:
        assert len(list(batch)) == count
    else:
        with pytest.raises(PullError, match="Leadership Change"):
            list(batch)


LIMITS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_batch": 5}, {"max_messages": 6}, "Exceeded MaxRequestBatch of 5"),
    ({"max_expires": 2}, {"max_messages": 1, "expires": 5}, "Exceeded MaxRequestExpires of 2s"),
    ({"max_bytes": 100}, {"max_bytes": 200}, "Exceeded MaxRequestMaxBytes of 100"),
]


@pytest.mark.parametrize(("config", "options", "text"), LIMITS)
def test_fetch_409_over_a_limit_is_an_error(
    bench: Bench, config: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    """409 Exceeded MaxRequest…: an error in the server's words."""
    batch = bench.consumer(1, **config).fetch(**options)
    with pytest.raises(PullError, match=text) as caught:
        list(batch)
    assert (caught.value.code, caught.value.description) == (409, text)


def test_fetch_409_max_waiting_is_an_error(bench: Bench) -> None:
    """409 Exceeded MaxWaiting: told to a pull without heartbeats by every version."""
    consumer = bench.consumer(max_waiting=1)
    with consumer.fetch(1, expires=5):
        eventually(lambda: waiting_pulls(consumer) == 1)
        with pytest.raises(PullError, match="Exceeded MaxWaiting"):
            list(consumer.fetch(1, expires=1))


def test_fetch_409_max_waiting_with_heartbeats(bench: Bench) -> None:
    """Servers from 2.11.5 and 2.12.0 are silent to a pull with heartbeats: then those are missed."""
    consumer = bench.consumer(max_waiting=1)
    silent = bench.version >= (2, 11, 5)
    with consumer.fetch(1, expires=10):
        eventually(lambda: waiting_pulls(consumer) == 1)
        with pytest.raises(MissedHeartbeatError if silent else PullError):
            list(consumer.fetch(1, expires=5, idle_heartbeat=0.3))


def test_fetch_409_consumer_deleted_is_an_error_after_the_messages(bench: Bench) -> None:
    """409 Consumer Deleted: what came before it first."""
    consumer = bench.consumer(2)
    batch = iter(consumer.fetch(10, expires=10))
    assert len([next(batch), next(batch)]) == 2
    consumer.delete()
    with pytest.raises(ConsumerDeletedError):
        next(batch)


def test_fetch_409_consumer_is_push_based_is_an_error(bench: Bench) -> None:
    """409 Consumer is push based."""
    consumer = bench.consumer()
    bench.recreate_as_push(consumer)
    with pytest.raises(ConsumerIsPushError):
        list(consumer.fetch(1, expires=2))


BAD_BODIES = [b'{"batch":1,"expires":1000000000,"idle_heartbeat":900000000}', b'{"batch":', b'{"batch":1e400}']


@pytest.mark.parametrize("body", BAD_BODIES)
def test_fetch_400_bad_request_is_an_error(bench: Bench, body: bytes) -> None:
    """400 Bad Request, whatever follows it."""
    consumer = bench.consumer(1)
    with bench.pulls_as(consumer, body):
        with pytest.raises(PullError, match="Bad Request") as caught:
            list(consumer.fetch(1, expires=2))
    assert caught.value.code == 400


def test_fetch_423_drops_the_pin_then_ends(bench: Bench) -> None:
    """423: the stored pin is dropped, and the pull is over; a server before 2.11 knows no pins."""
    consumer = bench.consumer(3, priority_groups=["A"], priority_policy="pinned_client", priority_timeout=30)
    if bench.version < (2, 11):
        assert consumer.next(2, group="A") is not None
        assert consumer._target._pins == {}
        return
    assert consumer.next(2, group="A") is not None
    pin = consumer._target._pins["A"]
    assert pin
    consumer._target._pins["A"] = "another client's"  # 423 Nats-Pin-Id mismatch
    got, seconds = timed(lambda: consumer.next(5, group="A"))
    assert (got, seconds < AT_ONCE) == (None, True)
    assert consumer._target._pins == {}
    consumer._target._pins["A"] = pin
    bench.js.get_stream("S").unpin_consumer("C", "A")  # 423 Nats-Wrong-Pin-Id
    got, seconds = timed(lambda: consumer.next(5, group="A"))
    assert (got, seconds < AT_ONCE) == (None, True)
    assert consumer._target._pins == {}
    assert consumer.next(2, group="A") is not None


API_LEVEL = b"NATS/1.0\r\nNats-Required-Api-Level: 9999\r\n\r\n"


def test_fetch_412_required_api_level_is_an_error(bench: Bench) -> None:
    """412 from 2.12; older servers take no notice of the demand and deliver."""
    consumer = bench.consumer(1)
    with bench.pulls_as(consumer, header=API_LEVEL):
        batch = consumer.fetch(1, expires=2)
    if bench.version < (2, 12):
        assert len(list(batch)) == 1
        return
    with pytest.raises(PullError, match="Required Api Level") as caught:
        list(batch)
    assert caught.value.code == 412


def test_fetch_503_no_responders_is_an_error(bench: Bench) -> None:
    """503: the consumer is not there. Silence on 2.10.25: then the client's own deadline ends it."""
    consumer = bench.consumer()
    consumer.delete()
    start = time.monotonic()
    if bench.version < (2, 10, 26):
        assert list(consumer.fetch(1, expires=0.3)) == []
        assert time.monotonic() - start < 2
        with pytest.raises(MissedHeartbeatError):
            list(consumer.fetch(1, expires=5, idle_heartbeat=0.3))
        return
    with pytest.raises(NoRespondersError):
        list(consumer.fetch(1, expires=5))
    assert time.monotonic() - start < AT_ONCE


def test_fetch_503_without_jetstream_is_an_error() -> None:
    """503: JetStream is not there at all, on every version."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        consumer = stream_and_consumer(nc.jetstream())
        with LocalServer(jetstream=False) as bare, jetstream_sync.connect(bare.url) as other:
            consumer._target.link = link_of(other)
            with pytest.raises(NoRespondersError):
                list(consumer.fetch(1, expires=5))


def test_fetch_100_idle_heartbeat_is_no_message(bench: Bench) -> None:
    """100: not a message, resets the timer."""
    got, seconds = timed(lambda: list(bench.consumer().fetch(1, expires=1.5, idle_heartbeat=0.3)))
    assert got == []
    assert 1.4 < seconds < 2.7


@pytest.mark.parametrize("status", [b"499 Something New", b"409 Something New", b"777", b"200 OK"])
def test_fetch_unknown_status_is_an_error_with_code_and_text(bench: Bench, status: bytes) -> None:
    """Any other status (injected): an error that carries code and description, after the messages."""
    consumer = bench.consumer(1)
    batch = consumer.fetch(5, expires=5)
    eventually(lambda: buffered(batch) == 1)
    inject(pull_of(batch), status)
    iterator = iter(batch)
    assert next(iterator).data == b"0"
    with pytest.raises(PullError) as caught:
        next(iterator)
    assert caught.value.code == int(status[:3])
    assert caught.value.description == status[4:].decode()


def test_fetch_408_interest_expired_ends_normally(bench: Bench) -> None:
    """408 Interest Expired (injected: servers send it across accounts only): ends normally."""
    batch = bench.consumer().fetch(5, expires=5)
    inject(pull_of(batch), b"408 Interest Expired\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0")
    got, seconds = timed(lambda: list(batch))
    assert (got, seconds < AT_ONCE) == ([], True)


def test_fetch_two_heartbeats_missed_is_an_error(bench: Bench) -> None:
    """Two heartbeats missed, if they were requested: MissedHeartbeatError."""
    batch = bench.consumer().fetch(1, expires=10, idle_heartbeat=0.4)
    bench.nc.flush()
    bench.server.pause()
    try:
        start = time.monotonic()
        with pytest.raises(MissedHeartbeatError):
            list(batch)
        assert time.monotonic() - start < 1.5
    finally:
        bench.server.resume()


def test_fetch_connection_lost_ends_at_once(bench: Bench) -> None:
    """Connection lost: an error at once, the expiry is not sat out."""
    batch = bench.consumer().fetch(1, expires=20)
    start = time.monotonic()
    bench.nc.force_reconnect()
    with pytest.raises(ConnectionLostError):
        list(batch)
    assert time.monotonic() - start < AT_ONCE


# --- §1.3: messages and consume -----------------------------------------------------------------------


class Stream:
    """messages() with a list of what was reported."""

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self.errors: list[Exception] = []
        self.consumer = consumer
        self.messages = consumer.messages(on_error=self.errors.append, **options)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.messages.stop()

    def idle(self, seconds: float) -> None:
        """Take statuses for a while; there is no message."""
        with pytest.raises(TimeoutError):
            self.messages.next(seconds)

    def next(self, timeout: float = 4.0) -> JetStreamMessage:
        return self.messages.next(timeout)

    def expect_end(self, error: type[NatsError]) -> None:
        start = time.monotonic()
        with pytest.raises(error):
            self.messages.next(5)
        assert time.monotonic() - start < AT_ONCE
        assert self.messages.closed
        assert self.errors == []


def test_consume_409_consumer_deleted_is_terminal(bench: Bench) -> None:
    """409 Consumer Deleted concludes, not reported besides."""
    with Stream(bench.consumer()) as stream:
        eventually(lambda: waiting_pulls(stream.consumer) == 1)
        stream.consumer.delete()
        stream.expect_end(ConsumerDeletedError)


def test_consume_409_consumer_is_push_based_is_terminal(bench: Bench) -> None:
    """409 Consumer is push based concludes."""
    consumer = bench.consumer()
    bench.recreate_as_push(consumer)
    with Stream(consumer) as stream:
        stream.expect_end(ConsumerIsPushError)


@pytest.mark.parametrize("body", BAD_BODIES)
def test_consume_400_bad_request_is_reported_and_recovered(bench: Bench, body: bytes) -> None:
    """400: an error to on_error, then pulls again."""
    consumer = bench.consumer(1)
    with bench.pulls_as(consumer, body):
        stream = Stream(consumer)
        stream.idle(0.1)
    with stream:
        assert stream.next().data == b"0"
        assert stream.errors
        assert "Bad Request" in str(stream.errors[0])


@pytest.mark.parametrize(("config", "options", "text"), LIMITS)
def test_consume_409_over_a_limit_is_a_warning_and_recovered(
    bench: Bench, config: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    """409 Exceeded MaxRequest…: reported, recovered when the limit is raised."""
    options = {**options, "expires": 5}
    with Stream(bench.consumer(1, **config), **options) as stream:
        stream.idle(0.4)
        assert text in str(stream.errors[0])
        bench.js.update_consumer("S", durable_name="C", max_batch=1_000_000, max_expires=30, max_bytes=1000)
        assert stream.next().data == b"0"


def test_consume_409_max_waiting_is_a_warning_and_recovered(bench: Bench) -> None:
    """409 Exceeded MaxWaiting: a warning; where the server is silent, missed heartbeats; recovered in both."""
    consumer = bench.consumer(max_waiting=1)
    with consumer.fetch(1, expires=10):
        eventually(lambda: waiting_pulls(consumer) == 1)
        with Stream(consumer, expires=2, idle_heartbeat=0.5) as stream:
            stream.idle(1.6)
            (first, *_) = stream.errors
            if bench.version >= (2, 11, 5):
                assert isinstance(first, MissedHeartbeatError)
            else:
                assert "Exceeded MaxWaiting" in str(first)
    with Stream(consumer, expires=2, idle_heartbeat=0.5) as stream:
        # The server may hold the abandoned pull for a second yet: then this is refused once, too.
        bench.js.publish("s.x", b"now")
        assert stream.next().data == b"now"


def test_consume_503_is_a_warning_and_recovered(bench: Bench) -> None:
    """503: a warning; on 2.10.25 silence and missed heartbeats. When the consumer is there again, it goes on.

    Without the look-up: it would find that the consumer is gone.
    """
    consumer = bench.consumer()
    consumer.delete()
    with Stream(consumer, expires=2, idle_heartbeat=0.5, check_on_reconnect=False) as stream:
        if bench.version < (2, 10, 26):
            stream.idle(1.3)
            assert isinstance(stream.errors[0], MissedHeartbeatError)
        else:
            stream.idle(0.2)
            assert isinstance(stream.errors[0], NoRespondersError)
        bench.js.create_consumer("S", durable_name="C")
        bench.js.publish("s.x", b"back")
        assert stream.next().data == b"back"


def test_consume_409_server_shutdown_is_a_warning_and_recovered() -> None:
    """409 Server Shutdown: a warning, and after the restart it goes on."""
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        with Stream(stream_and_consumer(js)) as stream:
            eventually(lambda: waiting_pulls(stream.consumer) == 1)
            server.stop()
            stream.idle(0.2)
            assert "Server Shutdown" in str(stream.errors[0])
            server.start()
            eventually(lambda: nc.is_connected)
            js.publish("s.x", b"again", msg_id="1", timeout=5)
            assert stream.next().data == b"again"
            assert len(stream.errors) == 1


def test_consume_404_and_408_are_not_reported(bench: Bench) -> None:
    """404, 408 Request Timeout, 408 Requests Pending end a pull quietly, and never in a hot loop."""
    consumer = bench.consumer()
    with bench.pulls_as(consumer, b'{"batch":10,"no_wait":true}'):
        stream = Stream(consumer)
        stream.idle(0.4)  # 404, again and again, with back-off
        with consumer.fetch(1, expires=1):
            stream.idle(0.5)
    with stream:
        bench.js.publish("s.x", b"after no_wait")
        assert stream.next().data == b"after no_wait"
    with Stream(consumer, expires=1) as stream:
        stream.idle(1.3)  # 408 Request Timeout
        bench.js.publish("s.x", b"after 408")
        assert stream.next().data == b"after 408"
    assert stream.errors == []


def test_consume_409_batch_completed_is_not_reported(bench: Bench) -> None:
    """409 Batch Completed gives its bytes back, and the next pull follows."""
    consumer = bench.consumer(20)
    body = b'{"batch":2,"max_bytes":1000,"expires":5000000000,"idle_heartbeat":1000000000}'
    with bench.pulls_as(consumer, body), Stream(consumer, max_bytes=1000, expires=5) as stream:
        assert [stream.next().data for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert stream.errors == []


def test_consume_409_message_size_exceeds_is_a_warning_only_if_nothing_fits(bench: Bench) -> None:
    """Between messages that fit it is quiet; a message that can never fit is warned about."""
    consumer = bench.consumer()
    fill(bench.js, 20, size=200)
    with Stream(consumer, max_bytes=600) as stream:
        for _ in range(20):
            stream.next().ack()
        assert stream.errors == []
        fill(bench.js, 1, size=2000)
        stream.idle(0.7)
        assert stream.errors
        assert all("Message Size Exceeds MaxBytes" in str(error) for error in stream.errors)


def test_consume_423_drops_the_pin_quietly(bench: Bench) -> None:
    """423: the pin is dropped, a new one learnt, nothing reported; a server before 2.11 knows no pins."""
    consumer = bench.consumer(2, priority_groups=["A"], priority_policy="pinned_client", priority_timeout=30)
    with Stream(consumer, group="A", max_messages=2) as stream:
        assert stream.next().data == b"0"
        pin = consumer._target._pins.get("A")
        assert bool(pin) == (bench.version >= (2, 11))
        if pin:
            bench.js.get_stream("S").unpin_consumer("C", "A")
        assert stream.next().data == b"1"
        bench.js.publish("s.x", b"more")
        assert stream.next().data == b"more"
        assert stream.errors == []
        assert pin is None or consumer._target._pins["A"] != pin


def test_consume_412_concludes(bench: Bench) -> None:
    """412 concludes with the error; servers before 2.12 take no notice."""
    consumer = bench.consumer(1)
    with bench.pulls_as(consumer, header=API_LEVEL):
        stream = Stream(consumer)
    with stream:
        if bench.version < (2, 12):
            assert stream.next().data == b"0"
        else:
            stream.expect_end(PullError)


@pytest.mark.parametrize("status", [b"499 Something New", b"409 Something New", b"409 Leadership Change"])
def test_consume_unknown_status_is_reported_and_recovered(bench: Bench, status: bytes) -> None:
    """An unknown status, and a leadership change (injected): reported, and messages go on."""
    with Stream(bench.consumer()) as stream:
        eventually(lambda: waiting_pulls(stream.consumer) == 1)
        inject(pull_of(stream.messages), status)
        bench.js.publish("s.x", b"on")
        assert stream.next().data == b"on"
        eventually(lambda: stream.errors)
        assert status[4:].decode() in str(stream.errors[0])


def test_consume_unknown_statuses_in_a_row_back_off(bench: Bench) -> None:
    """A server that answers every pull with something unknown gets at most 5 pulls in a second."""
    consumer = bench.consumer()
    sent: list[float] = []
    with Stream(consumer) as stream:
        pull = pull_of(stream.messages)
        target = consumer._target
        own = target.pull_frame

        def frame(body: bytes, inbox: bytes) -> bytes:
            sent.append(time.monotonic())
            threading.Timer(0.001, inject, (pull, b"499 No")).start()
            return own(body, inbox)

        target.pull_frame = frame  # type: ignore[method-assign]
        inject(pull, b"499 No")
        stream.idle(2.0)
        del target.pull_frame  # type: ignore[method-assign]
    assert 2 <= len(sent) <= 10
    assert all(len([at for at in sent if start <= at < start + 1]) <= 5 for start in sent)


def test_consume_missed_heartbeats_are_a_warning(bench: Bench) -> None:
    """Silence of twice the heartbeat: a warning, repeated, and when the server speaks again it goes on."""
    with Stream(bench.consumer(), expires=2, idle_heartbeat=0.5) as stream:
        bench.nc.flush()
        bench.server.pause()
        try:
            stream.idle(2.4)
        finally:
            bench.server.resume()
        assert len(stream.errors) == 2
        assert all(isinstance(error, MissedHeartbeatError) for error in stream.errors)
        bench.js.publish("s.x", b"awake")
        assert stream.next().data == b"awake"
