"""Answers that are no acks, in publish() and publish_async(): the same policy in both.

A subscriber on a real server plays the stream: no server can be made to send these answers at will.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetstream_sync import (
    APIError,
    ConnectionLostError,
    JetStream,
    NotConnectedError,
    PubAck,
    Stream,
    TimeoutError,
    WrongLastSequenceError,
    connect,
)
from jetstream_sync.api import publish_retry
from jetstream_sync.api.pub_ack_future import NEVER
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.scripted_stream import ACK, DUPLICATE, ScriptedStream, error
from tests.support.watchdog import InThread

IN_PROCESS = error(10158, 409)
BUSY = error(10008)
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "error_cb": lambda error: None}

Publish = Callable[..., PubAck]


@pytest.fixture(autouse=True)
def short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost answer counts as lost after 0.2 s where that is its share of the timeout; questions follow fast."""
    monkeypatch.setattr(publish_retry, "MIN_TRY_SECONDS", 0.2)
    monkeypatch.setattr(publish_retry, "ASK_SECONDS", 0.05)


@pytest.fixture(params=["publish", "publish_async"])
def publish(request: pytest.FixtureRequest) -> Callable[[JetStream], Publish]:
    """publish(), and publish_async() waited for."""
    if request.param == "publish":
        return lambda js: js.publish
    return lambda js: lambda *args, **options: js.publish_async(*args, **options).result(30)


@pytest.fixture
def proxied(nats_server: LocalServer) -> Iterator[tuple[FaultProxy, JetStream]]:
    """A connection that can be cut."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url, **QUICK) as nc:
        yield proxy, nc.jetstream()


# --- 10158: a message of the same id is being stored ---------------------------------------------------------


@pytest.mark.parametrize("retry_attempts", [0, 2])
def test_id_in_process_is_asked_for_again(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish], retry_attempts: int
) -> None:
    """It is no refusal: whatever the number of retries, the question is repeated until there is an answer."""
    with ScriptedStream(nats_server, "x", IN_PROCESS, IN_PROCESS, IN_PROCESS, DUPLICATE) as stream:
        ack = publish(js)("x", msg_id="id", timeout=5, retry_attempts=retry_attempts)
        assert (ack.seq, ack.duplicate) == (1, True)
        assert stream.ids == ["id"] * 4
        assert stream.times[-1] - stream.times[0] < 3


def test_id_in_process_for_too_long_may_be_stored(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """At the deadline it is not known whether it is stored: TimeoutError, not a refusal."""
    with ScriptedStream(nats_server, "x", then=IN_PROCESS) as stream:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"'x'.*may be stored"):
            publish(js)("x", msg_id="id", timeout=0.5)
        assert 0.4 <= time.monotonic() - started < 1.5
        assert 5 <= len(stream.received) <= 15


def test_id_in_process_after_an_answer_was_lost(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """The repeat after a timeout meets the first copy on its way: the ack of that copy is the result."""
    with ScriptedStream(nats_server, "x", None, IN_PROCESS, DUPLICATE) as stream:
        ack = publish(js)("x", msg_id="id", timeout=4, retry_attempts=19, retry_wait=0.02)
        assert ack.duplicate
        assert stream.ids == ["id"] * 3


def test_id_in_process_after_the_connection_was_lost(
    nats_server: LocalServer,
    proxied: tuple[FaultProxy, JetStream],
    publish: Callable[[JetStream], Publish],
) -> None:
    """The same after a reconnect."""
    proxy, js = proxied
    with ScriptedStream(nats_server, "x", None, IN_PROCESS, IN_PROCESS, DUPLICATE) as stream:
        publishing = InThread(publish(js), "x", msg_id="id", timeout=10)
        eventually(lambda: stream.received)
        proxy.cut()
        assert publishing.result(10).duplicate
        assert stream.ids == ["id"] * 4


def test_id_in_process_without_an_id_is_an_error(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """Not a stream's answer: nothing is sent twice for it."""
    with ScriptedStream(nats_server, "x", then=IN_PROCESS) as stream:
        with pytest.raises(APIError, match="no") as caught:
            publish(js)("x", timeout=5)
        assert caught.value.err_code == 10158
        assert len(stream.received) == 1


# --- refused for now -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("msg_id", [None, "id"])
@pytest.mark.parametrize("err_code", [10008, 10118, 10167])
def test_refused_for_now_is_tried_again(
    nats_server: LocalServer,
    js: JetStream,
    publish: Callable[[JetStream], Publish],
    err_code: int,
    msg_id: str | None,
) -> None:
    """Nothing was stored: it is sent again, also without an id."""
    with ScriptedStream(nats_server, "x", error(err_code), error(err_code), ACK) as stream:
        assert publish(js)("x", msg_id=msg_id, retry_wait=0.05).seq == 1
        assert stream.ids == [msg_id] * 3
        assert stream.times[2] - stream.times[0] >= 0.1


@pytest.mark.parametrize("retry_attempts", [0, 2])
def test_refusal_is_told_when_the_retries_are_used_up(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish], retry_attempts: int
) -> None:
    """The last answer is the error, long before the timeout."""
    with ScriptedStream(nats_server, "x", then=BUSY) as stream:
        started = time.monotonic()
        with pytest.raises(APIError) as caught:
            publish(js)("x", msg_id="id", timeout=20, retry_attempts=retry_attempts, retry_wait=0.02)
        assert caught.value.err_code == 10008
        assert time.monotonic() - started < 5
        assert len(stream.received) == retry_attempts + 1


def test_refusal_for_good_is_told_at_once(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """Asking again would not change it."""
    with ScriptedStream(nats_server, "x", then=error(10071, 400)) as stream:
        with pytest.raises(WrongLastSequenceError):
            publish(js)("x", msg_id="id")
        assert len(stream.received) == 1


# --- lost answers --------------------------------------------------------------------------------------------


def test_lost_answer_is_asked_for_again_with_an_id(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """No disconnect, no answer: the next try comes after a share of the timeout, not after all of it."""
    with ScriptedStream(nats_server, "x", None, DUPLICATE) as stream:
        started = time.monotonic()
        assert publish(js)("x", msg_id="id", timeout=4, retry_attempts=19, retry_wait=0.05).duplicate
        assert 0.2 <= time.monotonic() - started < 3
        assert stream.ids == ["id", "id"]


def test_lost_answer_without_an_id_may_be_stored(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """It must not be sent twice: one try has all the time, and the error says what is not known."""
    with ScriptedStream(nats_server, "x") as stream:
        with pytest.raises(TimeoutError, match=r"'x'.*may be stored"):
            publish(js)("x", timeout=0.3, retry_attempts=5, retry_wait=0.01)
        assert len(stream.received) == 1


def test_refusals_after_a_lost_answer_say_nothing_about_the_first_copy(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """They cost no try, the question goes on, and the first copy's ack is the result."""
    with ScriptedStream(nats_server, "x", None, *[BUSY] * 4, DUPLICATE) as stream:
        ack = publish(js)("x", msg_id="id", timeout=4, retry_attempts=19, retry_wait=0.02)
        assert ack.duplicate
        assert len(stream.received) == 6


def test_refused_until_the_deadline_after_a_lost_answer_may_be_stored(
    nats_server: LocalServer, js: JetStream, publish: Callable[[JetStream], Publish]
) -> None:
    """The refusals are of the later copies: to call the message refused would be a lie."""
    with ScriptedStream(nats_server, "x", None, then=BUSY):
        with pytest.raises(TimeoutError, match="may be stored"):
            publish(js)("x", msg_id="id", timeout=0.5, retry_attempts=1, retry_wait=0.02)


# --- publish_async alone -------------------------------------------------------------------------------------


def test_late_ack_of_the_first_copy_counts(nats_server: LocalServer, js: JetStream) -> None:
    """The ack comes when the second copy is out: the future has it, and the answer to the second is ignored."""
    with ScriptedStream(nats_server, "x", None, None, None) as stream:
        future = js.publish_async("x", msg_id="id", timeout=3, retry_attempts=9, retry_wait=0.02)
        eventually(lambda: len(stream.received) == 2, timeout=5)
        assert stream.replies[0] == stream.replies[1]
        stream.nc.publish(str(stream.replies[0]), ACK)
        assert not future.result(2).duplicate
        stream.nc.publish(str(stream.replies[0]), DUPLICATE)
        stream.nc.flush()
        assert js.publish_async_pending == 0
        assert not future.result(0).duplicate


def test_refused_message_without_an_id_is_sent_after_a_reconnect(
    nats_server: LocalServer, proxied: tuple[FaultProxy, JetStream]
) -> None:
    """The connection is lost between the refusal and the next try: nothing is stored, so nothing is unknown."""
    proxy, js = proxied
    with ScriptedStream(nats_server, "x", BUSY, ACK) as stream:
        future = js.publish_async("x", timeout=10, retry_wait=0.4)
        eventually(lambda: future.retry_at < NEVER)  # refused: if the cut came first, the future would fail
        proxy.cut()
        assert future.result(10).seq == 1
        assert len(stream.received) == 2


# --- pending_size=-1: nothing is kept while disconnected -----------------------------------------------------


@pytest.fixture
def unbuffered(nats_server: LocalServer) -> Iterator[tuple[FaultProxy, JetStream]]:
    """A connection that can be cut, without a buffer."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url, pending_size=-1, **QUICK) as nc:
        yield proxy, nc.jetstream()


def test_full_buffer_says_nothing_about_the_first_copy(
    nats_server: LocalServer,
    unbuffered: tuple[FaultProxy, JetStream],
    publish: Callable[[JetStream], Publish],
) -> None:
    """The first copy was sent, the second could not be: it is not safe to say that nothing was sent."""
    proxy, js = unbuffered
    with ScriptedStream(nats_server, "x") as stream:
        publishing = InThread(publish(js), "x", msg_id="id", timeout=1, retry_wait=0.1)
        eventually(lambda: stream.received)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(TimeoutError, match="may be stored") as caught:
            publishing.result(10)
        assert caught.value.sent is True


def test_refused_message_is_sent_when_there_is_room_again(
    nats_server: LocalServer, unbuffered: tuple[FaultProxy, JetStream]
) -> None:
    """A try that is due while the buffer is full is made later, with an id and without."""
    proxy, js = unbuffered
    with ScriptedStream(nats_server, "x", BUSY, BUSY, then=ACK) as stream:
        futures = [js.publish_async("x", msg_id=msg_id, timeout=10, retry_wait=0.3) for msg_id in (None, "id")]
        eventually(lambda: len(stream.received) == 2)
        eventually(lambda: all(future.retry_at < NEVER for future in futures))
        proxy.refuse()
        proxy.cut()
        time.sleep(0.4)  # longer than retry_wait: the tries are due while nothing can be sent
        proxy.heal()
        assert [future.result(5).seq for future in futures] == [1, 1]
        assert len(stream.received) == 4


def test_refused_message_that_found_no_room_was_not_sent(
    nats_server: LocalServer, unbuffered: tuple[FaultProxy, JetStream]
) -> None:
    """Its first copy was refused and no second one left: it can safely be repeated."""
    proxy, js = unbuffered
    with ScriptedStream(nats_server, "x", BUSY):
        future = js.publish_async("x", timeout=0.8, retry_wait=0.3)
        eventually(lambda: future.retry_at < NEVER)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(NotConnectedError) as caught:
            future.result(5)
        assert caught.value.sent is False


def test_unanswered_message_without_an_id_is_not_sent_again(
    nats_server: LocalServer, proxied: tuple[FaultProxy, JetStream]
) -> None:
    """Refused once, sent again, connection lost: the second copy may be stored."""
    proxy, js = proxied
    with ScriptedStream(nats_server, "x", BUSY) as stream:
        future = js.publish_async("x", timeout=10, retry_wait=0.01)
        eventually(lambda: len(stream.received) == 2)
        proxy.cut()
        with pytest.raises(ConnectionLostError, match="may be stored"):
            future.result(10)


def test_outage_longer_than_a_try_costs_no_try() -> None:
    """A message published while disconnected is sent once, however many tries would have ended meanwhile."""
    with LocalServer() as server, connect(server.url, **QUICK) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"])
        js.publish_async("s").result(5)
        server.stop()
        eventually(lambda: js._async_publisher._lost)  # earlier, it would count as sent on the lost session
        before = nc.stats.out_msgs
        future = js.publish_async("s", msg_id="id", timeout=20, retry_attempts=100)
        time.sleep(0.5)  # more than MIN_TRY_SECONDS
        server.start()
        assert not future.result(20).duplicate
        assert nc.stats.out_msgs == before + 1
        assert stream.get_info().state.messages == 2


def test_order_of_what_is_asked_for_again(nats_server: LocalServer, js: JetStream, stream: Stream) -> None:
    """Repeats leave in the order of publication."""
    with ScriptedStream(nats_server, "x", *[None] * 20, then=ACK) as scripted:
        patient: Any = {"timeout": 4, "retry_attempts": 19}
        futures = [js.publish_async("x", b"%d" % number, msg_id=str(number), **patient) for number in range(20)]
        for future in futures:
            future.result(10)
        assert scripted.payloads == [b"%d" % number for number in range(20)] * 2
