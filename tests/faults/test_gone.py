"""A consumer or stream that is gone ends what reads from it, with an error that names both (spec: second day, §1).

What a real server says is seen on a real server; a scripted peer says what one says only during elections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import APIError, Consumer, JetStream
from jetstream_sync.errors import (
    ConsumerNotFoundError,
    MissedHeartbeatError,
    NoRespondersError,
    StreamNotFoundError,
    TimeoutError,
)
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, stream_and_consumer
from tests.support.scripted import CONSUMER_NOT_FOUND, UNAVAILABLE, ScriptedJetStream, scripted_jetstream
from tests.support.watchdog import InThread

Errors = list[Any]


def wait_end(consumer: Consumer, how: str, timeout: float = 5.0, **options: Any) -> Any:
    """Start messages() or consume(), and wait until it raises its end."""
    if how == "messages":
        with consumer.messages(**options) as messages:
            return messages.next(timeout)
    context = consumer.consume(print, **options)
    try:
        return context.wait(timeout)
    finally:
        context.stop()


def lose_consumer(js: JetStream) -> None:
    js.delete_consumer("S", "C")


def lose_stream(js: JetStream) -> None:
    js.delete_stream("S")


# --- messages() and consume() ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["messages", "consume"])
@pytest.mark.parametrize(
    ("lose", "kind"), [(lose_consumer, ConsumerNotFoundError), (lose_stream, StreamNotFoundError)]
)
def test_started_on_what_is_not_there_ends(
    js: JetStream, how: str, lose: Callable[[JetStream], None], kind: type[APIError]
) -> None:
    """messages() and consume() end within two seconds, with an error that names stream and consumer."""
    consumer = stream_and_consumer(js)
    lose(js)
    started, errors = time.monotonic(), Errors()
    with pytest.raises(kind, match=r"'C'.*'S'|'S'.*'C'") as caught:
        wait_end(consumer, how, on_error=errors.append)
    assert time.monotonic() - started < 2.0
    assert (caught.value.stream, caught.value.consumer) == ("S", "C")  # type: ignore[attr-defined]
    if how == "consume":  # there need not be a thread in wait()
        eventually(lambda: isinstance(errors[-1], kind))
        errors.pop()
    assert all(isinstance(error, NoRespondersError) for error in errors)


def test_without_the_check_nothing_is_looked_up(proxy: FaultProxy, js: JetStream) -> None:
    """check_on_reconnect=False turns the look-up off, too: the stream goes on."""
    stream_and_consumer(js)
    with jetstream_sync.connect(proxy.url) as nc:
        consumer = nc.jetstream().get_consumer("S", "C")
        sent = len(proxy.captured[-1].to_server)
        lose_consumer(js)
        with pytest.raises(TimeoutError):
            wait_end(consumer, "messages", 1.5, check_on_reconnect=False, on_error=Errors().append)
        assert b"CONSUMER.INFO" not in proxy.captured[-1].to_server[sent:]


def test_consumer_that_never_answers_is_looked_up_after_the_second_alarm(
    js: JetStream, nats_server: LocalServer
) -> None:
    """A subscriber on the pulls' subject keeps the server from answering 503: missed heartbeats show it."""
    consumer = stream_and_consumer(js)
    lose_consumer(js)
    errors = Errors()
    with Observer(nats_server.url), pytest.raises(ConsumerNotFoundError):
        wait_end(consumer, "messages", expires=1, idle_heartbeat=0.5, on_error=errors.append)
    assert len(errors) == 2


# --- what is no answer ------------------------------------------------------------------------------------


def pulling(script: ScriptedJetStream, js: JetStream) -> Consumer:
    script.pulled = lambda asked: ["503"]
    return js.get_consumer("S", "C")


@pytest.mark.parametrize("answer", [None, UNAVAILABLE], ids=["silence", "unavailable"])
def test_no_answer_ends_nothing(answer: dict[str, Any] | None) -> None:
    """No reply and "temporarily unavailable" are no answer: the consume goes on, and asks again."""
    with scripted_jetstream(timeout=0.5) as (script, js, _):
        consumer = pulling(script, js)
        script.answer = lambda asked: answer
        asked_before, errors = len(script.requests("CONSUMER.INFO")), Errors()
        with consumer.messages(on_error=errors.append) as messages:
            with pytest.raises(TimeoutError):
                messages.next(1.5)
            assert not messages.closed
            assert 2 <= len(script.requests("CONSUMER.INFO")) - asked_before <= 6
            script.answer = lambda asked: CONSUMER_NOT_FOUND
            with pytest.raises(ConsumerNotFoundError):
                messages.next(5)


def test_look_ups_are_no_storm_and_delay_no_pull() -> None:
    """While pulls get 503 and the consumer is there, it is looked up every two seconds; pulls go on beside."""
    with scripted_jetstream() as (script, js, _):
        consumer = pulling(script, js)
        asked_before = len(script.requests("CONSUMER.INFO"))
        with consumer.messages(on_error=Errors().append) as messages:
            with pytest.raises(TimeoutError):
                messages.next(2.3)
            assert 1 <= len(script.requests("CONSUMER.INFO")) - asked_before <= 2
            assert len(script.requests("CONSUMER.MSG.NEXT")) >= 4


def test_message_between_two_503_ends_the_row() -> None:
    """One 503 after each message: the consumer serves, and is not looked up."""
    with scripted_jetstream() as (script, js, _):
        consumer = js.get_consumer("S", "C")
        asked_before, sent = len(script.requests("CONSUMER.INFO")), threading.Event()
        with consumer.messages(max_messages=2, on_error=Errors().append) as messages:
            for number in range(1, 6):
                eventually(lambda: script.requests("CONSUMER.MSG.NEXT"))
                inbox = next(subject for subject in script.inboxes() if subject.startswith("_INBOX"))
                script.send("s.x", b"m", f"$JS.ACK.S.C.1.{number}.{number}.1.0", to=inbox)
                assert messages.next(5).data == b"m"
                script.status(inbox, "503")
                sent.wait(0.05)
        assert len(script.requests("CONSUMER.INFO")) == asked_before


# --- push subscriptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lose", "kind"), [(lose_consumer, ConsumerNotFoundError), (lose_stream, StreamNotFoundError)]
)
@pytest.mark.parametrize("how", ["next_msg", "iteration", "callback"])
def test_push_subscription_ends_with_its_consumer(
    js: JetStream, nats_server: LocalServer, how: str, lose: Callable[[JetStream], None], kind: type[APIError]
) -> None:
    """After an alarm the consumer is looked up; gone, next_msg() and the iteration raise, a callback's is told."""
    js.create_stream(name="S", subjects=["s.>"])
    js.publish("s.x", b"1")
    errors, seen = Errors(), Errors()
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        callback = seen.append if how == "callback" else None
        sub = nc.jetstream().subscribe("s.>", durable="C", idle_heartbeat=0.2, cb=callback)
        if callback is None:
            seen.append(sub.next_msg(5))
        eventually(lambda: len(seen) == 1)
        lose(js)
        if callback is not None:
            eventually(lambda: any(isinstance(error, kind) for error in errors))
            error = errors.pop()
        else:
            with pytest.raises(kind) as caught:
                sub.next_msg(5) if how == "next_msg" else list(sub)
            error = caught.value
        assert (error.stream, error.consumer) == ("S", "C")
        assert [type(each) for each in errors] == [MissedHeartbeatError]
        eventually(lambda: not threads_of("js-push", "js-sub"), message="the threads of the subscription end")
        if callback is None:
            with pytest.raises(kind):
                sub.next_msg(5)
        sub.unsubscribe()  # nothing is left to delete


def threads_of(*prefixes: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]


@pytest.mark.parametrize("answer", [UNAVAILABLE, {"stream_name": "S", "name": "C", "config": {}}])
def test_push_subscription_goes_on_without_a_definite_answer(answer: dict[str, Any] | None) -> None:
    """One look-up per alarm; only "not found" ends the subscription, and an alarm is no reason to wait for one."""
    with scripted_jetstream() as (script, js, errors):
        sub = js.subscribe("s.x", idle_heartbeat=0.1)
        script.answer = lambda asked: answer
        eventually(lambda: len(errors) >= 2)
        assert 1 <= len(script.requests("CONSUMER.INFO")) <= len(errors)
        script.send("s.x", b"on time", f"$JS.ACK.S.{sub.consumer_name}.1.1.1.1.0", to=sub.subject)
        assert sub.next_msg(1).data == b"on time"
        assert {type(error) for error in errors} == {MissedHeartbeatError}
        script.answer = lambda asked: CONSUMER_NOT_FOUND
        with pytest.raises(ConsumerNotFoundError):
            sub.next_msg(5)


def test_push_subscription_that_is_ended_while_it_is_looked_up() -> None:
    """A look-up that is answered after unsubscribe() finds what that deleted: nothing to report."""
    with scripted_jetstream() as (script, js, errors):
        sub = js.subscribe("s.x", idle_heartbeat=0.2, cb=print)
        asked, may_answer = threading.Event(), threading.Event()

        def answer(request: Any) -> Any:
            if request.subject.startswith("CONSUMER.INFO"):
                asked.set()
                may_answer.wait(5)
                return CONSUMER_NOT_FOUND
            return script.usual(request)

        script.answer = answer
        assert asked.wait(5)
        ending = InThread(sub.unsubscribe)
        eventually(lambda: not threads_of("js-sub"))
        may_answer.set()
        ending.result(5)
        eventually(lambda: not threads_of("js-push", "js-sub"))
        assert {type(error) for error in errors} == {MissedHeartbeatError}


def test_ordered_push_with_a_callback_tells_of_its_end(js: JetStream, nats_server: LocalServer) -> None:
    """The stream of an ordered subscription is deleted: the error callback is told, and the threads end."""
    js.create_stream(name="S", subjects=["s.>"])
    errors = Errors()
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        nc.jetstream().subscribe("s.>", ordered_consumer=True, idle_heartbeat=0.2, cb=print)
        js.delete_stream("S")
        eventually(lambda: any(isinstance(error, StreamNotFoundError) for error in errors))
        eventually(lambda: not threads_of("js-push", "js-sub"))
