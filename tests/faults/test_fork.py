"""Forked children: a child cannot use an inherited connection, and the parent's connection is not disturbed."""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, Headers, Message, Subscription, errors
from jetstream_sync.errors import ForkError
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually
from tests.support.forks import end_in_time, in_child
from tests.support.observer import stream_and_consumer
from tests.support.watchdog import InThread

# Python 3.12 and later warn of every fork in a process that has threads: that is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def refusals(uses: dict[str, Callable[[], object]]) -> dict[str, str]:
    """The name of the error that each use raised, with " late" if it took more than a second."""
    outcome = {}
    for name, use in uses.items():
        start = time.monotonic()
        try:
            use()
            outcome[name] = "returned"
        except Exception as error:  # noqa: BLE001 - the kind is what is asked
            outcome[name] = type(error).__name__
        if time.monotonic() - start > 1.0:
            outcome[name] += " late"
    return outcome


def uses_of(nc: Connection, sub: Subscription, msg: Message) -> dict[str, Callable[[], object]]:
    return {
        "publish": lambda: nc.publish("x"),
        "request": lambda: nc.request("x"),
        "subscribe": lambda: nc.subscribe("x"),
        "flush": lambda: nc.flush(),
        "rtt": lambda: nc.rtt(),
        "drain": lambda: nc.drain(),
        "close": lambda: nc.close(),
        "force_reconnect": lambda: nc.force_reconnect(),
        "next_msg": lambda: sub.next_msg(timeout=5),
        "iteration": lambda: next(iter(sub)),
        "unsubscribe": lambda: sub.unsubscribe(),
        "sub.drain": lambda: sub.drain(),
        "respond": lambda: msg.respond(b"x"),
    }


@pytest.fixture
def nc(proxy: FaultProxy) -> Iterator[Connection]:
    """A connection through the proxy, which records what is sent."""
    connection = jetstream_sync.connect(proxy.url)
    yield connection
    connection.close()


def one_request(nc: Connection) -> tuple[Subscription, Message]:
    """A subscription, and a message with a reply subject taken from it."""
    sub = nc.subscribe("asked")
    nc.publish("asked", b"?", reply=nc.new_inbox())
    return sub, sub.next_msg(timeout=5)


def test_every_use_in_child_raises_fork_error(nc: Connection, proxy: FaultProxy) -> None:
    """Every call of a forked child on inherited objects raises ForkError at once and sends no byte."""
    sub, msg = one_request(nc)
    nc.flush()
    sent = proxy.captured[0].to_server
    outcome = in_child(lambda: refusals(uses_of(nc, sub, msg)))
    assert outcome == dict.fromkeys(outcome, "ForkError")
    assert proxy.captured[0].to_server == sent
    assert proxy.connections == 1
    nc.publish("asked", b"still here")
    assert sub.next_msg(timeout=5).data == b"still here"


def test_contexts_left_in_child_are_left_alone(nc: Connection, proxy: FaultProxy) -> None:
    """A child that leaves an inherited `with` block, normally or with an exception, closes nothing."""
    sub = nc.subscribe("asked")
    nc.flush()
    sent = proxy.captured[0].to_server

    def leave() -> str:
        nc.__exit__(None, None, None)
        nc.__exit__(ValueError, ValueError(), None)
        sub.__exit__(None, None, None)
        return nc.status.value

    assert in_child(leave) == "connected"
    assert proxy.captured[0].to_server == sent
    nc.publish("asked", b"1")
    assert sub.next_msg(timeout=5).data == b"1"


def test_taking_in_child_from_what_the_parent_waits_on_raises_fork_error(nc: Connection) -> None:
    """A thread of the parent waits in next() when it forks: the child gets ForkError, not ConcurrencyError."""
    consumer = stream_and_consumer(nc.jetstream())
    messages, batch = consumer.messages(max_messages=10), consumer.fetch(5, expires=20)
    context = consumer.consume(lambda message: None, max_messages=10)
    sub = nc.jetstream().pull_subscribe("s.>", durable="P")
    waiting = InThread(messages.next, 20)
    eventually(lambda: messages._feed.waiting)
    uses = {
        "next": lambda: messages.next(1),
        "for": lambda: list(messages),
        "batch": lambda: list(batch),
        "fetch": lambda: consumer.fetch(1),
        "consumer.next": lambda: consumer.next(1),
        "messages": consumer.messages,
        "consume": lambda: consumer.consume(print),
        "stop": messages.stop,
        "drain": messages.drain,
        "context.stop": context.stop,
        "context.wait": lambda: context.wait(1),
        "sub.fetch": lambda: sub.fetch(1, 1),
        "unsubscribe": sub.unsubscribe,
    }
    outcome = in_child(lambda: refusals(uses))
    assert outcome == dict.fromkeys(outcome, "ForkError")
    batch.close()
    sub.unsubscribe()
    context.stop()
    messages.stop()
    waiting.error(5)


def test_fork_while_receiving(nc: Connection, nats_server: LocalServer) -> None:
    """Children forked in the middle of a stream of messages change nothing for the parent."""
    received: list[int] = []
    nc.subscribe("flood", cb=lambda msg: received.append(int(msg.data)))
    nc.flush()
    stop = threading.Event()

    def flood() -> None:
        with jetstream_sync.connect(nats_server.url) as other:
            number = 0
            while not stop.is_set():
                other.publish("flood", b"%d" % number)
                number += 1
                stop.wait(0.0001)
            sent.append(number)

    sent: list[int] = []
    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    for _ in range(10):
        assert in_child(lambda: refusals({"publish": lambda: nc.publish("x")})) == {"publish": "ForkError"}
    stop.set()
    thread.join(10)
    eventually(lambda: len(received) == sent[0], 10)
    assert received == list(range(sent[0]))
    assert nc.stats.reconnects == 0


def test_fork_inside_iteration(nc: Connection) -> None:
    """A child forked inside `for msg in sub` gets ForkError from the loop; the parent's loop goes on."""
    sub = nc.subscribe("loop")
    for number in range(5):
        nc.publish("loop", b"%d" % number)
    nc.flush()
    seen = []
    for msg in sub:
        seen.append(msg.data)
        if len(seen) == 2:
            messages = iter(sub)
            assert in_child(lambda it=messages: refusals({"next": lambda: next(it)})) == {"next": "ForkError"}
        if len(seen) == 5:
            break
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


def test_fork_with_buffered_messages(nc: Connection) -> None:
    """Buffered messages belong to the parent: the child gets ForkError, the parent gets all of them."""
    sub = nc.subscribe("held")
    for number in range(100):
        nc.publish("held", b"%d" % number)
    eventually(lambda: sub.pending_msgs == 100)
    assert in_child(lambda: refusals({"next_msg": lambda: sub.next_msg(5)})) == {"next_msg": "ForkError"}
    assert [sub.next_msg().data for _ in range(100)] == [b"%d" % n for n in range(100)]


def test_child_connects_for_itself(nc: Connection, nats_server: LocalServer) -> None:
    """A connection made in the child works and has ids of its own; the parent's connection is not affected."""
    inbox = nc.new_inbox()

    def work() -> list[str]:
        with jetstream_sync.connect(nats_server.url) as own:
            sub = own.subscribe("child")
            own.publish("child", b"from the child")
            return [sub.next_msg(timeout=5).data.decode(), own.new_inbox()]

    data, child_inbox = in_child(work)
    assert data == "from the child"
    assert child_inbox != inbox
    nc.flush()
    assert nc.stats.reconnects == 0


def test_fork_storm_with_busy_threads(nc: Connection) -> None:
    """Children forked while other threads use the connection, and may hold its locks, never hang."""
    stop = threading.Event()

    def work() -> None:
        sub = nc.subscribe("busy")
        while not stop.is_set():
            nc.publish("busy", b"x" * 100)
            sub.next_msg(timeout=5)
        sub.unsubscribe()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    sub, msg = one_request(nc)
    for _ in range(25):
        outcome = in_child(lambda: refusals(uses_of(nc, sub, msg)))
        assert outcome == dict.fromkeys(outcome, "ForkError")
    stop.set()
    for thread in threads:
        thread.join(10)
    nc.flush()


def use_in_worker(url: str, results: Any) -> None:
    """Try the inherited connection, which raises, and then use a connection of its own."""
    try:
        _inherited[0].publish("x")
    except ForkError:
        with jetstream_sync.connect(url) as own:
            own.flush()
        results.put("fine")


_inherited: list[Connection] = []


def test_multiprocessing_worker(nc: Connection, nats_server: LocalServer) -> None:
    """A multiprocessing worker (fork) gets ForkError from the inherited connection, and exits with code 0."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    _inherited[:] = [nc]
    worker = context.Process(target=use_in_worker, args=(nats_server.url, results))
    worker.start()
    worker.join(10)
    _inherited.clear()
    assert worker.exitcode == 0
    assert results.get() == "fine"
    nc.flush()
    assert nc.stats.reconnects == 0


def test_child_that_ends_like_a_program(nc: Connection, proxy: FaultProxy) -> None:
    """A child that runs the exit hooks does not close the parent's connection."""
    sub = nc.subscribe("asked")
    nc.flush()
    sent = proxy.captured[0].to_server
    child = os.fork()
    if child == 0:
        end_in_time()
        code = 1
        try:
            atexit._run_exitfuncs()  # sys.exit() runs them, os._exit() does not
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert proxy.captured[0].to_server == sent
    nc.publish("asked", b"1")
    assert sub.next_msg(timeout=5).data == b"1"


# --- pickling ---------------------------------------------------------------------------------------


def test_connection_refuses_to_be_pickled(nc: Connection) -> None:
    """Pickling a connection raises TypeError that says what to do instead."""
    with pytest.raises(TypeError, match=r"connect\(\)"):
        pickle.dumps(nc)


def test_message_pickles_without_its_connection(nc: Connection) -> None:
    """An unpickled message has all its data, but respond() raises."""
    sub = nc.subscribe("pickled")
    nc.publish("pickled", b"\x00data", reply="answer.here", headers={"A": "1", "b": "2"})
    msg = sub.next_msg(timeout=5)
    copy = pickle.loads(pickle.dumps(msg))
    assert (copy.subject, copy.reply, copy.data) == ("pickled", "answer.here", b"\x00data")
    assert isinstance(copy.headers, Headers)
    assert copy.headers.get("a") == "1"
    with pytest.raises(errors.NatsError, match="unpickled"):
        copy.respond(b"")


ERROR_CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.NatsError)
]


def make_error(kind: type[errors.NatsError]) -> errors.NatsError:
    """An error with a value for every argument."""
    samples = {"str": "text", "int": 7, "float": 1.5, "str | None": "text"}
    if not inspect.isfunction(kind.__init__):  # inherited from Exception
        return kind("text")
    positional, named = [], {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        value = samples.get(str(parameter.annotation), [("nats://host:4222", OSError("refused"))])
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return kind(*positional, **named)


def facts(error: BaseException) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(error).items()}


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_error_pickles_with_its_facts(kind: type[errors.NatsError], protocol: int) -> None:
    """An unpickled error has the class, text and attributes of the original."""
    error = make_error(kind)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert facts(copy) == facts(error)
