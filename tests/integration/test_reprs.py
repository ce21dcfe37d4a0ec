"""repr() says what an object is: stream, consumer, state, counts. It never blocks or raises, and hides secrets."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from enum import Enum
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import BatchMessage, JetStream, JetStreamMessage, Message, StreamInfo, connect
from jetstream_sync.testing import FaultProxy, LocalCluster, LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.watchdog import InThread
from tools.reference import entries, foreign_bases, public_classes

SECRET = "hush-s3cret"
LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)

# What the repr of an object of each class matches. Classes of values (configs, infos, choices, named tuples) are
# missing here: test_values_show_their_fields() has them all.
EXPECTED = {
    "Connection": r"<Connection 'shop' connected to nats://127\.0\.0\.1:\d+ in=\d+ out=\d+ reconnects=0>",
    "Subscription": r"<Subscription 'core\.\*' queue='q' open pending=1 delivered=0 dropped=0>",
    "Message": r"<Message subject='core\.a' data=b'x'>",
    "Headers": r"Headers\(\[\('A', '1'\)\]\)",
    "RawCredentials": r"RawCredentials\(…\)",
    "JetStream": r"<JetStream \$JS\.API on nats://127\.0\.0\.1:\d+ publish_async_pending=0>",
    "Stream": r"<Stream 'S' messages=3 bytes=\d+ last_seq=3 consumers=0>",
    "PublishBatch": r"<PublishBatch \w+ messages=1 open>",
    "RawStreamMsg": r"<RawStreamMsg subject='s\.a' seq=1 time=\S+ \S+ data=b'0{40}'… \(50 bytes\)>",
    "Consumer": r"<Consumer 'c' of stream 'S' pending=3 ack_pending=0>",
    "OrderedConsumer": r"<OrderedConsumer '\w+' of stream 'S' last_seq=1>",
    "MessageBatch": r"<MessageBatch of consumer c of S: open received=\d of 10>",
    "MessageStream": r"<MessageStream of consumer c of S: open buffered=\d>",
    "ConsumeContext": r"<ConsumeContext of consumer c of S: open workers=2 buffered=\d>",
    "PullSubscription": r"<PullSubscription of consumer 'c', stream 'S': open>",
    "PushSubscription": r"<PushSubscription of consumer '\w+', stream 'S': open pending=.*>",
    "JetStreamMessage": r"<JetStreamMessage subject='s\.a' stream='S' seq=1 deliveries=1 data=b'0{40}'… \(50 .*>",
}


@pytest.fixture(scope="module")
def password_server() -> Iterator[LocalServer]:
    with LocalServer(config=f'authorization {{ user: "ann", password: "{SECRET}" }}') as server:
        yield server


@pytest.fixture(scope="module")
def objects(password_server: LocalServer) -> Iterator[dict[str, Any]]:
    """An object of each class of EXPECTED, in use."""
    with ExitStack() as stack:
        url = password_server.url.replace("nats://", f"nats://ann:{SECRET}@")
        nc = stack.enter_context(connect(url, name="shop"))
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_atomic=True)
        for _ in range(3):
            js.publish("s.a", b"0" * 50)
        with nc.subscribe("core.a") as other:
            nc.publish("core.a", b"x")
            message = other.next_msg(5)
        stream = js.get_stream("S")
        consumer = stream.create_consumer(name="c", inactive_threshold=60)
        ordered = stream.ordered_consumer()
        taken = ordered.next()
        batch = js.publish_batch()
        batch.add("s.b")
        yield {
            "Connection": nc,
            "Subscription": stack.enter_context(nc.subscribe("core.*", queue="q")),
            "Message": message,
            "Headers": jetstream_sync.Headers({"A": "1"}),
            "RawCredentials": jetstream_sync.RawCredentials(SECRET),
            "JetStream": js,
            "Stream": stream,
            "PublishBatch": batch,
            "RawStreamMsg": stream.get_message(1),
            "Consumer": consumer,
            "OrderedConsumer": ordered,
            "MessageBatch": stack.enter_context(consumer.fetch(10, expires=30)),
            "MessageStream": stack.enter_context(consumer.messages()),
            "ConsumeContext": stack.enter_context(consumer.consume(lambda _: None, max_workers=2)),
            "PullSubscription": js.pull_subscribe(stream="S", consumer="c"),
            "PushSubscription": stack.enter_context(js.subscribe("s.>")),
            "JetStreamMessage": taken,
        }


def test_every_public_class_is_covered() -> None:
    """A class that is added gets a repr: as a value, or with a row in EXPECTED."""
    others = {name for name, cls in public_classes().items() if not is_value(cls)}
    assert others == set(EXPECTED) - {"RawStreamMsg"}


def is_value(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, (Enum, tuple))


@pytest.mark.parametrize("name", EXPECTED)
def test_repr_says_what_it_is(name: str, objects: dict[str, Any]) -> None:
    """Name, state and counts, on one line."""
    one = objects[name]
    if name == "Subscription":
        objects["Connection"].publish("core.a", b"x")
        eventually(lambda: one.pending_msgs == 1)
    assert type(one).__name__ in (name, "OrderedBatch")
    assert re.fullmatch(EXPECTED[name], repr(one)), repr(one)


@pytest.mark.parametrize("name", EXPECTED)
def test_repr_shows_no_secret(name: str, objects: dict[str, Any]) -> None:
    """The URL had a password."""
    assert SECRET not in repr(objects[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_repr_takes_no_lock(name: str, objects: dict[str, Any]) -> None:
    """It returns while every lock below the object is held: a signal handler may call it at any time."""
    held = [lock for lock in locks_below(objects[name]) if lock.acquire(blocking=False)]
    try:
        assert InThread(lambda: repr(objects[name])).result(5)
    finally:
        for lock in held:
            lock.release()


def locks_below(top: object) -> list[Any]:
    """The locks in the fields of an object of the library, and of what is below it."""
    seen: dict[int, object] = {}
    todo, found = [top], []
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, LOCKS):
            found.append(one)
        elif isinstance(one, types.MethodType):
            todo.append(one.__self__)
        elif type(one).__module__.startswith("jetstream_sync"):
            names = {name for cls in type(one).__mro__ for name in getattr(cls, "__slots__", ())}
            todo += [getattr(one, name) for name in names if hasattr(one, name) and name != "__weakref__"]
            todo += list(getattr(one, "__dict__", {}).values())
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_object_shows_what_the_reference_lists(name: str, objects: dict[str, Any]) -> None:
    """dir() of an object in use has no other public names than docs/reference.md."""
    cls = public_classes()[name]
    listed = {entry.name for entry in entries(cls)} | {one for base in foreign_bases(cls) for one in dir(base)}
    assert {one for one in dir(objects[name]) if not one.startswith("_")} <= listed


def test_locks_are_found(objects: dict[str, Any]) -> None:
    """The test above holds locks: those of the connection are below everything that is built on it."""
    assert len(locks_below(objects["MessageStream"])) >= 4


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, cls in public_classes().items() if is_value(cls)])
def test_values_show_their_fields(name: str) -> None:
    """Configs, infos, choices and named tuples name their class."""
    cls = public_classes()[name]
    one = next(iter(cls)) if issubclass(cls, Enum) else sample(cls)  # type: ignore[call-overload]
    assert repr(one).lstrip("<").startswith(name)


def sample(cls: type[Any]) -> Any:
    needed = {"config": jetstream_sync.StreamConfig("S"), "seq": 1}
    if issubclass(cls, tuple):
        return cls(*range(len(cls._fields)))  # type: ignore[attr-defined]
    return cls(
        **{
            item.name: needed.get(item.name, "S")
            for item in dataclasses.fields(cls)
            if item.default is item.default_factory is dataclasses.MISSING
        }
    )


def test_info_that_cannot_be_read() -> None:
    """A part that the server sent in a wrong form is shown as it came; reading it raises."""
    info = StreamInfo.from_wire({"config": {"name": "S"}, "state": {"messages": "many"}})
    assert "state={'messages': 'many'}" in repr(info)
    with pytest.raises(jetstream_sync.JetStreamError):
        _ = info.state


# --- states -------------------------------------------------------------------------------------------------


def test_states(js: JetStream, nats_server: LocalServer) -> None:
    """Objects that have ended say so, and so do those of a closed connection."""
    with connect(nats_server.url) as nc:
        own = nc.jetstream()
        stream = own.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = stream.create_consumer(name="c")
        own.publish("s.a", b"1")
        ended: list[object] = []
        with consumer.messages() as messages:
            next(messages).ack()
        with consumer.fetch(1, expires=5) as batch:
            pass
        with nc.subscribe("core") as sub:
            pass
        context = consumer.consume(lambda _: None)
        context.drain()
        context.wait(5)
        ended += [messages, batch, sub, context]
        for one in ended:
            assert re.search("ended|closed", repr(one)), one
        lost = consumer.messages()
        eventually(lambda: consumer.get_info().num_waiting == 1)
        stream.delete_consumer("c")
        with pytest.raises(jetstream_sync.ConsumerDeletedError):
            lost.next(5)
        assert "ended by ConsumerDeletedError" in repr(lost)
    assert re.fullmatch("<Connection closed in=.*>", repr(nc))
    assert repr(own).startswith("<JetStream $JS.API on closed")
    assert all(map(repr, ended))


def test_messages_that_are_acked_or_foreign(js: JetStream) -> None:
    """A message shows that it was acked; one that is not from JetStream has no sequence."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    js.publish("s.a", b"1")
    message = js.create_consumer("S").next()
    assert message is not None
    message.ack()
    expected = "<JetStreamMessage subject='s.a' stream='S' seq=1 deliveries=1 acked data=b'1'>"
    assert repr(message) == expected
    foreign = JetStreamMessage((b"a\xff", b"_INBOX.x", None, b""))
    assert repr(foreign) == r"<JetStreamMessage subject='a\udcff' reply='_INBOX.x' data=b''>"
    assert repr(Message((b"a", None, b"NATS/1.0\r\nKey: hush\r\n\r\n", b"x" * 41))) == (
        f"<Message subject='a' data=b'{'x' * 40}'… (41 bytes)>"
    )


def test_futures(js: JetStream) -> None:
    """A publish that is pending, stored or failed."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    future = js.publish_async("s.a")
    assert re.fullmatch("<PubAckFuture 's.a' (pending|returned .*)>", repr(future))
    future.result(5)
    assert repr(future) == f"<PubAckFuture 's.a' returned {future.result()!r}>"
    assert dir(future) == dir(Future)
    failed = js.publish_async("s.a", expected_last_seq=9)
    assert failed.exception(5) is not None
    assert repr(failed) == "<PubAckFuture 's.a' raised WrongLastSequenceError>"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: LocalServer(config="password: hush"), "<LocalServer no port yet stopped>"),
        (lambda: LocalCluster(2), r"<LocalCluster 'cluster-\d+' 0 of 2 nodes running>"),
        (lambda: FaultProxy(("127.0.0.1", 1)), "<FaultProxy not started accepted=0>"),
        (lambda: ScriptedPeer(lambda _: None), "<ScriptedPeer not listening connections=0 errors=0>"),
    ],
)
def test_reprs_of_test_helpers(make: Callable[[], Any], expected: str) -> None:
    """Servers, proxies and peers say whether they run."""
    one = make()
    try:
        assert re.fullmatch(expected, repr(one))
    finally:
        one.close()


def test_repr_of_a_peer_connection() -> None:
    """The peer's end of a connection has a number and a count."""
    seen: list[str] = []

    def script(connection: PeerConnection) -> None:
        seen.append(repr(connection))

    with ScriptedPeer(script) as peer, peer.connect():
        eventually(lambda: seen == ["<PeerConnection 0 received=0 bytes>"])
        assert re.fullmatch(r"<ScriptedPeer nats://\S+ connections=1 errors=0>", repr(peer))


def test_batch_message_is_a_tuple() -> None:
    """Named tuples show their fields."""
    assert repr(BatchMessage("s", b"x")) == "BatchMessage(subject='s', payload=b'x', headers=None)"


def test_reprs_while_everything_changes(js: JetStream, nats_server: LocalServer) -> None:
    """Threads that call repr() all the time meet no error while the connection is lost again and again."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    running = threading.Event()
    running.set()
    with connect(nats_server.url, reconnect_time_wait=0.01) as nc, ExitStack() as stack:
        own = nc.jetstream()
        consumer = own.create_consumer("S", name="c")
        objects: list[object] = [nc, own, consumer, own.get_stream("S")]
        objects += [stack.enter_context(nc.subscribe("x")), stack.enter_context(consumer.messages())]
        objects += [stack.enter_context(consumer.consume(lambda msg: msg.ack(), max_workers=2))]
        futures: list[object] = []

        def show() -> int:
            count = 0
            while running.is_set():
                count += len([repr(one) for one in [*objects, *futures[-3:]]])
                time.sleep(0.0005)  # the library's threads need the interpreter, too
            return count

        showing = [InThread(show) for _ in range(2)]
        try:
            for number in range(8):
                futures.append(own.publish_async("s.a", b"x", msg_id=str(number)))
                nc.publish("x", b"y")
                nc.force_reconnect()
                eventually(lambda number=number: nc.stats.reconnects > number)  # type: ignore[misc]
        finally:
            running.clear()
        assert min(one.result(10) for one in showing) > 0
