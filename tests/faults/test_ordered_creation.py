"""An ordered consumer is created again though servers leave requests unanswered during elections (issue 12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.errors import ConsumerNotFoundError, MissedHeartbeatError, TimeoutError
from jetstream_sync.testing import FaultProxy
from tests.support.eventually import eventually
from tests.support.observer import consumers, fill
from tests.support.scripted import Answer, Asked, ScriptedJetStream, scripted_jetstream
from tests.support.watchdog import InThread


def unanswered(script: ScriptedJetStream, times: int) -> Callable[[Asked], Answer]:
    """The usual answers, except that the first creations after now get none."""
    begin = len(script.requests("CONSUMER.CREATE"))

    def answer(asked: Asked) -> Answer:
        creation = asked.subject.startswith("CONSUMER.CREATE")
        late = len(script.requests("CONSUMER.CREATE")) - begin > times
        return script.usual(asked) if late or not creation else None

    return answer


def names(script: ScriptedJetStream) -> list[str]:
    return [asked.body["config"]["name"] for asked in script.requests("CONSUMER.CREATE")]


def test_pull_asks_again_after_a_second_under_the_same_name() -> None:
    """Two creations without an answer cost two seconds, not ten. The second is for the same consumer, in case that
    the first was done; the third for another one, in case that it was given to a server that is dead."""
    with scripted_jetstream() as (script, js, _):
        script.last_seq = 7
        messages = js.ordered_consumer("S").messages(on_error=[].append)
        eventually(lambda: script.requests("CONSUMER.MSG.NEXT"))  # sent behind the subscription of its inbox
        inbox = script.inboxes()[0]
        script.send("s.x", b"1", f"$JS.ACK.S.{names(script)[0]}.1.7.1.1.0", to=inbox)
        script.answer = unanswered(script, 2)
        script.status(inbox, "409 Consumer Deleted")
        waiting = InThread(lambda: [messages.next(8), messages.next(8)])
        started = time.monotonic()
        eventually(lambda: len(script.requests("CONSUMER.MSG.NEXT")) == 2, 8.0)
        assert 1.9 <= time.monotonic() - started < 4.0
        first, second, third = (asked.body["config"] for asked in script.requests("CONSUMER.CREATE")[1:])
        assert first == second
        assert third == {**first, "name": third["name"]}
        assert third["name"] != first["name"]
        assert first["opt_start_seq"] == 8
        eventually(lambda: script.requests(f"CONSUMER.DELETE.S.{first['name']}"))
        script.send("s.x", b"2", f"$JS.ACK.S.{names(script)[-1]}.1.8.1.1.0", to=script.inboxes()[0])
        assert [message.data for message in waiting.result()] == [b"1", b"2"]
        messages.stop()


def test_push_asks_again_after_a_second_under_the_same_name() -> None:
    """The same for an ordered push subscription, which subscribes when its consumer is known to be there."""
    with scripted_jetstream() as (script, js, errors):
        script.last_seq = 3
        sub = js.subscribe("s.x", ordered_consumer=True, idle_heartbeat=30)
        script.send("s.x", b"1", f"$JS.ACK.S.{sub.consumer_name}.1.1.1.1.0", to=sub.subject)
        assert sub.next_msg(5).data == b"1"
        script.answer = unanswered(script, 1)
        script.send("s.x", b"3", f"$JS.ACK.S.{sub.consumer_name}.1.3.3.1.0", to=sub.subject)  # a gap
        with pytest.raises(TimeoutError):
            sub.next_msg(0.2)
        started = time.monotonic()
        eventually(lambda: script.requests("CONSUMER.CREATE")[-1].body["config"]["deliver_subject"] == sub.subject)
        assert time.monotonic() - started < 3.0
        creations = [asked.body["config"] for asked in script.requests("CONSUMER.CREATE")[1:]]
        assert creations == [creations[0]] * 2
        assert creations[0]["name"] == sub.consumer_name
        assert creations[0]["opt_start_seq"] == 2
        script.send("s.x", b"2", f"$JS.ACK.S.{sub.consumer_name}.1.2.1.1.0", to=sub.subject)
        assert sub.next_msg(5).data == b"2"
        assert len(errors) == 1


def test_slow_server_is_waited_for() -> None:
    """A server that takes 1.2 s for an answer is not given up where there is a deadline."""
    with scripted_jetstream() as (script, js, _):
        ordered = js.ordered_consumer("S")
        assert ordered.next(0.2) is None

        def answer(asked: Asked) -> Answer:
            if asked.subject.startswith("CONSUMER.CREATE"):
                time.sleep(1.2)
            return script.usual(asked)

        script.answer = answer
        ordered.delete()
        with ordered.messages(on_error=[].append):
            assert len(names(script)) == 2


@pytest.mark.parametrize("how", ["messages", "push"])
def test_creation_that_the_server_did_unseen_is_found(proxy: FaultProxy, js: JetStream, how: str) -> None:
    """A real server created the consumer, and its answer comes too late: it is found again, and all comes."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 3)
    with jetstream_sync.connect(proxy.url) as nc:
        take: Any
        if how == "push":
            take = nc.jetstream().subscribe("s.>", ordered_consumer=True, idle_heartbeat=0.3).next_msg
        else:
            take = nc.jetstream().ordered_consumer("S").messages(on_error=[].append, expires=2).next
        assert [take(5).metadata.sequence.stream for _ in range(3)] == [1, 2, 3]
        (first,) = consumers(js)
        js.delete_consumer("S", first)
        waiting = InThread(lambda: take(10))
        eventually(lambda: proxy.captured[-1].to_server.count(b"STREAM.INFO") == 1)
        proxy.delay(0.7)  # of each direction: an answer takes longer than a try
        eventually(lambda: consumers(js))
        proxy.heal()
        fill(js, 1, first=3)
        assert waiting.result(10).metadata.sequence.stream == 4
        eventually(lambda: len(consumers(js)) == 1)


def test_consumer_not_found_is_not_definite_for_ordered_reading(js: JetStream) -> None:
    """The info of a generation that is gone raises; reading goes on."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 2)
    ordered = js.ordered_consumer("S")
    first = ordered.next(5)
    assert first is not None
    js.delete_consumer("S", ordered.name or "")
    with pytest.raises(ConsumerNotFoundError):
        ordered.get_info()
    second = ordered.next(5)
    assert second is not None
    assert second.metadata.sequence.stream == 2


@pytest.mark.parametrize("how", ["messages", "push"])
def test_deletion_that_a_lost_session_swallowed_is_repeated(proxy: FaultProxy, js: JetStream, how: str) -> None:
    """A generation that is given up while nothing reaches the server does not stay for its inactive_threshold."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 1)
    errors: list[Exception] = []
    with jetstream_sync.connect(proxy.url, reconnect_time_wait=0.01, error_cb=errors.append) as nc:
        take: Any
        if how == "push":
            take = nc.jetstream().subscribe("s.>", ordered_consumer=True, idle_heartbeat=0.3).next_msg
        else:
            ordered = nc.jetstream().ordered_consumer("S")
            take = ordered.messages(on_error=errors.append, expires=2, idle_heartbeat=0.5).next
        assert take(5).data == b"0"
        (first,) = consumers(js)
        proxy.black_hole()
        waiting = InThread(lambda: take(30))
        eventually(lambda: any(isinstance(error, MissedHeartbeatError) for error in errors), 10.0)
        proxy.cut()
        proxy.heal()
        fill(js, 1, first=1)
        assert waiting.result(20).data == b"1"
        eventually(lambda: len(consumers(js)) == 1)
        assert first not in consumers(js)
