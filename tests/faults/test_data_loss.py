"""Ordered reading of a stream that went back: made anew, or without its end (spec: second day, §1)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, DataLossError, JetStream
from jetstream_sync.consumers import continuity
from jetstream_sync.errors import TimeoutError
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually
from tests.support.observer import fill
from tests.support.scripted import Answer, Asked, ScriptedJetStream, scripted_jetstream
from tests.support.watchdog import InThread, under_watchdog

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.02, "reconnect_time_wait_max": 0.05}


class Reader:
    """Ordered reading in one of its forms: `take` gets one message more."""

    def __init__(self, how: str, js: JetStream, **options: Any) -> None:
        self.errors: list[Any] = []
        self._end: Callable[[], object] = lambda: None
        if how == "push":
            sub = js.subscribe("s.>", stream="S", ordered_consumer=True, idle_heartbeat=0.5, config=options)
            self.take: Callable[[], Any] = lambda: sub.next_msg(8)
            self._end = sub.unsubscribe
            return
        self.ordered = js.ordered_consumer("S", **options)
        if how == "messages":
            messages = self.ordered.messages(on_error=self.errors.append)
            self.take, self._end = lambda: messages.next(8), messages.stop
        elif how == "fetch":
            self.take = lambda: next(iter(list(self.ordered.fetch(1, expires=2))))
        else:
            self.take = lambda: self.ordered.next(2)

    def read(self, count: int) -> list[int]:
        return [self.take().metadata.sequence.stream for _ in range(count)]

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *ignored: object) -> None:
        try:
            self._end()
        except jetstream_sync.NatsError:
            pass  # its consumer is gone


EVERY_FORM = pytest.mark.parametrize("how", ["messages", "fetch", "next", "push"])


@contextmanager
def away(proxy: FaultProxy, nc: Connection) -> Iterator[None]:
    """The connection is lost, and comes back at the end."""
    proxy.refuse()
    proxy.cut()
    eventually(lambda: not nc.is_connected)
    yield
    proxy.heal()
    eventually(lambda: nc.is_connected)


def make_anew(js: JetStream, count: int) -> None:
    js.delete_stream("S")
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, count)


# --- a real server --------------------------------------------------------------------------------------


@EVERY_FORM
@pytest.mark.parametrize("count", [2, 9], ids=["shorter", "longer"])
def test_stream_made_anew_is_data_loss(proxy: FaultProxy, js: JetStream, how: str, count: int) -> None:
    """Deleted and made anew, however long it is by now: DataLossError, in place of other messages or none."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 4)
    with jetstream_sync.connect(proxy.url, **QUICK) as nc, Reader(how, nc.jetstream()) as reader:
        assert reader.read(4) == [1, 2, 3, 4]
        with away(proxy, nc):
            make_anew(js, count)
        with pytest.raises(DataLossError, match="made anew") as caught:
            under_watchdog(reader.take)
        assert (caught.value.stream, caught.value.position, caught.value.last_seq) == ("S", 4, count)
        with pytest.raises(DataLossError):
            reader.take()


@pytest.mark.parametrize("how", ["fetch", "push"])
def test_stream_that_lost_its_end_is_data_loss(server: LocalServer, tmp_path: Path, how: str) -> None:
    """A server that comes back with an older state of its disk: DataLossError after the leader was asked twice."""
    with jetstream_sync.connect(server.url, **QUICK) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        fill(js, 2)
        server.stop()
        shutil.copytree(server.store_dir, tmp_path / "old")
        server.start()
        eventually(lambda: nc.is_connected)
        with Reader(how, js) as reader:
            fill(js, 4, first=2)
            assert reader.read(6) == [1, 2, 3, 4, 5, 6]
            server.kill()
            shutil.rmtree(server.store_dir)
            shutil.copytree(tmp_path / "old", server.store_dir)
            server.start()
            eventually(lambda: nc.is_connected)
            with pytest.raises(DataLossError, match="lost messages") as caught:
                under_watchdog(reader.take)
            assert (caught.value.stream, caught.value.position, caught.value.last_seq) == ("S", 6, 2)


@EVERY_FORM
def test_purged_stream_is_no_data_loss(proxy: FaultProxy, js: JetStream, how: str) -> None:
    """A purge leaves the sequences as they are: reading goes on with the next message."""
    stream = js.create_stream(name="S", subjects=["s.>"])
    fill(js, 4)
    with jetstream_sync.connect(proxy.url, **QUICK) as nc, Reader(how, nc.jetstream()) as reader:
        assert reader.read(4) == [1, 2, 3, 4]
        for expected in (5, 6):  # once without and once with the stream's `created` known
            with away(proxy, nc):
                stream.purge()
                fill(js, 1)
            assert under_watchdog(lambda: reader.read(1)) == [expected]


@EVERY_FORM
def test_start_beyond_the_end_is_the_users(proxy: FaultProxy, js: JetStream, how: str) -> None:
    """A start beyond the end that the user chose is no loss: the reading waits for it over reconnects."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 2)
    with (
        jetstream_sync.connect(proxy.url, **QUICK) as nc,
        Reader(how, nc.jetstream(), opt_start_seq=6) as reader,
    ):
        if how in ("fetch", "next"):
            assert reader.ordered.next(0.2) is None
        with away(proxy, nc):
            fill(js, 1)
        if how in ("fetch", "next"):
            assert reader.ordered.next(0.2) is None
        time.sleep(0.3)
        fill(js, 4)
        assert under_watchdog(lambda: reader.read(2)) == [6, 7]


DENYING = """
authorization { users: [
  { user: ann, password: x, permissions: { publish: { deny: ["$JS.API.STREAM.INFO.>"] } } }
  { user: bob, password: x }
] }
"""


def test_without_permission_to_ask_reading_goes_on() -> None:
    """An account that may not ask for STREAM.INFO reads on without the comparison, and is asked once a session."""
    with (
        LocalServer(config=DENYING) as server,
        FaultProxy(server) as proxy,
        jetstream_sync.connect(server.url, user="bob", password="x") as other,
        jetstream_sync.connect(proxy.url, user="ann", password="x", error_cb=[].append, **QUICK) as nc,
    ):
        js = other.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        fill(js, 1)
        with Reader("messages", nc.jetstream()) as reader:
            assert reader.read(1) == [1]
            with away(proxy, nc):
                fill(js, 1)
            assert under_watchdog(lambda: reader.read(1)) == [2]
            for expected in (3, 4):
                js.delete_consumer("S", js.get_stream("S").consumer_names().__next__())
                fill(js, 1)
                assert under_watchdog(lambda: reader.read(1)) == [expected]
            assert proxy.captured[-1].to_server.count(b"STREAM.INFO") == 1


# --- what a real server says in elections alone --------------------------------------------------------------


def lose_generation(script: ScriptedJetStream) -> None:
    """Deliver message 1 of the present generation, and say that it was deleted."""
    pull = script.requests("CONSUMER.MSG.NEXT")[-1]
    inbox = script.inboxes()[0]
    name = pull.subject.split(".")[-1]
    script.send("s.x", b"1", f"$JS.ACK.S.{name}.1.7.1.1.0", to=inbox)
    script.status(inbox, "409 Consumer Deleted")


def start_and_lose(script: ScriptedJetStream, js: JetStream) -> Any:
    """messages() that has read message 7, and needs another generation."""
    messages = js.ordered_consumer("S").messages(on_error=[].append)
    eventually(lambda: script.requests("CONSUMER.MSG.NEXT"))
    lose_generation(script)
    assert messages.next(5).metadata.sequence.stream == 7
    return messages


def test_leader_that_catches_up_is_no_data_loss() -> None:
    """A low last_seq is asked for again for a second: one that has grown to the position is no loss."""
    with scripted_jetstream() as (script, js, _):
        script.last_seq = 5
        with start_and_lose(script, js) as messages:
            with pytest.raises(TimeoutError):
                messages.next(0.6)
            assert len(script.requests("CONSUMER.MSG.NEXT")) == 1
            script.last_seq = 7
            eventually(lambda: len(script.requests("CONSUMER.MSG.NEXT")) == 2)
            assert len(script.requests("STREAM.INFO")) >= 3
            creations = [asked.body["config"] for asked in script.requests("CONSUMER.CREATE")[1:]]
            assert creations == [creations[0]] * len(creations)
            assert creations[0]["opt_start_seq"] == 8


def test_low_end_that_stays_is_data_loss() -> None:
    """A low last_seq that stays is a loss, within three seconds."""
    with scripted_jetstream() as (script, js, _):
        script.last_seq = 5
        with start_and_lose(script, js) as messages, pytest.raises(DataLossError) as caught:
            messages.next(3)
        assert (caught.value.stream, caught.value.position, caught.value.last_seq) == ("S", 7, 5)
        assert len(script.requests("CONSUMER.MSG.NEXT")) == 1
        name = script.requests("CONSUMER.CREATE")[-1].body["config"]["name"]
        eventually(lambda: script.requests(f"CONSUMER.DELETE.S.{name}"))


def silent(kind: str, times: int, script: ScriptedJetStream) -> Callable[[Asked], Answer]:
    """The usual answers, except that the first requests of `kind` after now get none."""
    begin = len(script.requests(kind))

    def answer(asked: Asked) -> Answer:
        if asked.subject.startswith(kind) and len(script.requests(kind)) - begin <= times:
            return None
        return script.usual(asked)

    return answer


def test_unanswered_question_is_asked_again() -> None:
    """No answer to STREAM.INFO puts the creation off; the next answer decides."""
    with scripted_jetstream(timeout=0.3) as (script, js, _):
        script.last_seq = 9
        script.answer = silent("STREAM.INFO", 2, script)
        with start_and_lose(script, js) as messages:
            waiting = InThread(lambda: next(messages, None))
            eventually(lambda: len(script.requests("CONSUMER.MSG.NEXT")) == 2)
            assert len(script.requests("STREAM.INFO")) == 3
            messages.stop()
            waiting.result()


def test_question_that_is_never_answered_does_not_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where STREAM.INFO alone is never answered, the generation is created without it, and the next ones."""
    monkeypatch.setattr(continuity, "MOST_UNANSWERED", 3)
    with scripted_jetstream(timeout=0.2) as (script, js, _):
        script.answer = silent("STREAM.INFO", 1000, script)
        with start_and_lose(script, js) as messages:
            waiting = InThread(lambda: next(messages, None))
            eventually(lambda: len(script.requests("CONSUMER.MSG.NEXT")) == 2)
            script.status(script.inboxes()[0], "409 Consumer Deleted")
            eventually(lambda: len(script.requests("CONSUMER.MSG.NEXT")) == 3)
            assert len(script.requests("STREAM.INFO")) == 3
            messages.stop()
            waiting.result()
