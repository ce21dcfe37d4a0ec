"""connect, publish, request, subscribe, and the end of a connection."""

from __future__ import annotations

import threading

import pytest

from jetstream_sync import Message, NoRespondersError, TimeoutError
from jetstream_sync.net import nkeys
from tests.spec.wire_scenarios.bench import Bench, scenario
from tests.support.eventually import eventually
from tests.support.jwt import new_seed

SEED = new_seed()
USERS = f"""
authorization {{ users: [{{ user: ann, password: secret }}, {{ nkey: {nkeys.KeyPair(SEED).public_key} }}] }}
ping_interval: "100ms"
ping_max: 1000
"""

# --- connect ------------------------------------------------------------------------------------------------


@scenario("connect")
def plain(bench: Bench) -> None:
    """Without options."""
    bench.note(bench.nc.is_connected)


@scenario("connect", name="teller", no_echo=True, inbox_prefix="_MINE")
def named(bench: Bench) -> None:
    """With a name, without echo, with an inbox prefix."""
    with bench.step("a request"):
        with pytest.raises(NoRespondersError):
            bench.nc.request("no.listener", b"?")


@scenario("connect", config=USERS, user="ann", password="secret")
def with_password(bench: Bench) -> None:
    """With user and password; the server's PING is answered."""
    with bench.step("wait for two PINGs of the server"):
        bench.wait_for("PONG", 2)
        bench.note("PONG was sent")


@scenario("connect", config=USERS, nkeys_seed_str=SEED)
def with_nkey(bench: Bench) -> None:
    """With an nkey, which signs what the server asks."""


@scenario("connect", token=lambda: "t0ken")
def with_token(bench: Bench) -> None:
    """With a token that a callable returns."""
    with bench.step("two round trips"):
        bench.nc.flush()
        bench.nc.rtt()


# --- publish ------------------------------------------------------------------------------------------------


@scenario("publish")
def publish(bench: Bench) -> None:
    """Core messages."""
    nc = bench.nc
    with bench.step("payload, no payload, a subject that is not ASCII"):
        nc.publish("a.b", b"one")
        nc.publish("a.b")
        nc.publish("größe", b"two\r\nlines")
    with bench.step("with a reply subject"):
        nc.publish("a.b", b"three", reply="answers.here")
    with bench.step("with headers"):
        nc.publish("a.b", b"four", headers={"Colour": "blue", "Size": ["1", "2"]})
        nc.publish("a.b", headers={"Colour": "red"}, reply="answers.here")


# --- request ------------------------------------------------------------------------------------------------


def answer(message: Message) -> None:
    message.respond(b"re: " + message.data)


@scenario("request")
def request_answered(bench: Bench) -> None:
    """Answered requests share one inbox."""
    with bench.admin_nc.subscribe("echo", cb=answer):
        bench.admin_nc.flush()
        with bench.step("the first opens the inbox"):
            bench.note(bench.nc.request("echo", b"1").data.decode())
        with bench.step("with headers"):
            bench.note(bench.nc.request("echo", b"2", headers={"Colour": "blue"}).data.decode())
        with bench.step("many, one after the other"):
            for number in range(12):
                bench.nc.request("echo", b"%d" % number)


@scenario("request")
def request_unanswered(bench: Bench) -> None:
    """Requests that get no answer."""
    with bench.step("no responders"):
        with pytest.raises(NoRespondersError):
            bench.nc.request("no.listener", b"?")
    with bench.admin_nc.subscribe("silent"):
        bench.admin_nc.flush()
        with bench.step("out of time"):
            with pytest.raises(TimeoutError):
                bench.nc.request("silent", b"?", timeout=0.02)
    with bench.step("no responders again"):
        with pytest.raises(NoRespondersError):
            bench.nc.request("no.listener", b"?")


# --- subscribe ----------------------------------------------------------------------------------------------


@scenario("subscribe")
def subscribe(bench: Bench) -> None:
    """Messages are taken, then the subscription ends."""
    with bench.step("subscribe"):
        sub = bench.nc.subscribe("a.*")
    with bench.step("take a message and respond to it"):
        bench.admin_nc.publish("a.b", b"1", reply="answers.here")
        message = sub.next_msg(5)
        message.respond(b"thanks")
        bench.note(message.data.decode())
    with bench.step("unsubscribe, twice"):
        sub.unsubscribe()
        sub.unsubscribe()
    with bench.step("a `with` block"):
        with bench.nc.subscribe("b.>"):
            pass


@scenario("subscribe")
def limited(bench: Bench) -> None:
    """A limit ends the subscription at the server."""
    with bench.step("subscribe and set a limit of 2"):
        sub = bench.nc.subscribe("a")
        sub.unsubscribe(2)
    with bench.step("iterate until it ends"):
        for number in range(3):
            bench.admin_nc.publish("a", b"%d" % number)
        bench.note(*(message.data.decode() for message in sub))
    with bench.step("unsubscribe what has ended"):
        sub.unsubscribe()
    with bench.step("a limit that has been reached already"):
        sub = bench.nc.subscribe("b")
        bench.nc.flush()
        bench.admin_nc.publish("b", b"0")
        bench.note(sub.next_msg(5).data.decode())
        sub.unsubscribe(1)
    with bench.step("a limit, then no limit"):
        sub = bench.nc.subscribe("c")
        sub.unsubscribe(7)
        sub.unsubscribe()


@scenario("subscribe")
def queues_and_callbacks(bench: Bench) -> None:
    """Queue groups and callbacks."""
    with bench.step("two members of a queue group"):
        first = bench.nc.subscribe("work.>", queue="crew")
        second = bench.nc.subscribe("work.>", queue="crew")
    with bench.step("unsubscribe them"):
        first.unsubscribe()
        second.unsubscribe()
    with bench.step("a callback that responds"):
        sub = bench.nc.subscribe("echo", cb=answer)
        bench.nc.flush()
        bench.admin_nc.request("echo", b"1")
        bench.admin_nc.request("echo", b"2")
    with bench.step("drain it"):
        sub.drain()
    with bench.step("drain one without a callback"):
        sub = bench.nc.subscribe("a")
        bench.nc.flush()
        bench.admin_nc.publish("a", b"1")
        bench.admin_nc.flush()
        sub.drain()
        bench.note(*(message.data.decode() for message in sub))


# --- the end ------------------------------------------------------------------------------------------------


@scenario("end")
def close(bench: Bench) -> None:
    """close() says nothing more."""
    with bench.step("subscriptions, a request"):
        bench.nc.subscribe("a")
        bench.nc.subscribe("b", cb=lambda message: None)
        with pytest.raises(NoRespondersError):
            bench.nc.request("no.listener")
    with bench.step("publish and close", ends=True):
        bench.nc.publish("c", b"last words")
        bench.nc.close()


@scenario("end")
def drain(bench: Bench) -> None:
    """drain() unsubscribes, has everything handled, and closes."""
    bench.stream()
    handled = threading.Semaphore(0)
    with bench.step("subscriptions of all kinds"):
        bench.nc.subscribe("a")
        bench.nc.subscribe("b", cb=lambda message: handled.release())
        bench.nc.subscribe("c", queue="crew")
        ended = bench.nc.subscribe("d")
        ended.unsubscribe()
        bench.nc.flush()
        bench.admin_nc.publish("b")
        assert handled.acquire(timeout=5)
    with bench.step("publish_async"):
        bench.js.publish_async("s.x", b"1").result(5)
    with bench.step("drain, twice", ends=True):
        bench.js.publish_async("s.x", b"2")
        bench.nc.drain()
        bench.nc.drain()
    bench.note(bench.admin.get_stream("S").info.state.messages, "stored")


@scenario("end")
def drain_while_consuming(bench: Bench) -> None:
    """drain() during a consume, a messages() and a push subscription."""
    consumer = bench.consumer(2, ack_policy="none")
    seen: list[bytes] = []
    with bench.step("consume"):
        context = consumer.consume(lambda message: seen.append(message.data), max_messages=10)
        eventually(lambda: len(seen) == 2)
    with bench.step("messages"):
        stream = consumer.messages(max_messages=10)
    with bench.step("push"):
        bench.js.subscribe("s.x", durable="P", deliver_policy="new")
    with bench.step("drain", ends=True):
        bench.nc.drain()
    bench.note(context.closed, stream.closed)


@scenario("end")
def with_block(bench: Bench) -> None:
    """Leaving the `with` block of a connection drains it."""
    with bench.step("leave the block", ends=True):
        with bench.nc as nc:
            nc.subscribe("a")
            nc.publish("b", b"1")


@scenario("end")
def with_block_and_error(bench: Bench) -> None:
    """Leaving the `with` block of a connection with an error closes it."""
    with bench.step("leave the block", ends=True):
        with pytest.raises(ZeroDivisionError):
            with bench.nc as nc:
                nc.subscribe("a")
                nc.publish("b", b"1")
                raise ZeroDivisionError
