"""What is sent on a new TCP session after the old one was lost.

The thread that takes messages is idle when the session is lost, unless the scenario is about it: what it sends
when it goes on then follows what the library sends by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from jetstream_sync import ConnectionLostError, NoRespondersError
from tests.spec.wire_scenarios.bench import PULL, Bench, scenario
from tests.spec.wire_scenarios.push import deleted_twice
from tests.support.eventually import eventually


def cut(bench: Bench, times: int = 1) -> None:
    """Cut the TCP session and wait until there is another."""
    bench.proxy.cut()
    bench.wait_reconnected(times)


def cut_off(bench: Bench) -> None:
    """Cut the TCP session and let there be no other before heal(). Returns when the client has noticed."""
    bench.proxy.refuse()
    bench.proxy.cut()
    eventually(lambda: bench.nc.is_reconnecting)


def back(bench: Bench, times: int = 1) -> None:
    """End cut_off()."""
    bench.proxy.heal()
    bench.wait_reconnected(times)


def lose_during(bench: Bench, text: str, call: Callable[[], object]) -> None:
    """Cut the TCP session as soon as `call` has sent `text`."""
    bench.when(text, bench.proxy.cut)
    with pytest.raises(ConnectionLostError):
        call()
    bench.wait_reconnected()


# --- core ---------------------------------------------------------------------------------------------------


@scenario("reconnect")
def subscriptions(bench: Bench) -> None:
    """Subscriptions are made again, in the order in which they were made, with what is left of a limit."""
    nc = bench.nc
    with bench.step("subscribe"):
        nc.subscribe("a")
        nc.subscribe("b.*", queue="crew")
        limited = nc.subscribe("c")
        limited.unsubscribe(3)
        reached = nc.subscribe("d")
        reached.unsubscribe(1)
        gone = nc.subscribe("e")
        gone.unsubscribe()
        nc.subscribe("f", cb=lambda message: None)
        with pytest.raises(NoRespondersError):
            nc.request("no.listener")
        bench.admin_nc.publish("c", b"1")
        bench.admin_nc.publish("d", b"1")
        limited.next_msg(5)
        reached.next_msg(5)
    with bench.step("cut"):
        cut(bench)
    with bench.step("subscribe, request"):
        nc.subscribe("g")
        with pytest.raises(NoRespondersError):
            nc.request("no.listener")
    with bench.step("force_reconnect()"):
        nc.force_reconnect()
        bench.wait_reconnected(2)


@scenario("reconnect")
def while_disconnected(bench: Bench) -> None:
    """What was done while there was no session follows the subscriptions."""
    nc = bench.nc
    with bench.step("subscribe"):
        first = nc.subscribe("a")
        nc.subscribe("b")
    with bench.step("disconnected: unsubscribe, subscribe, publish"):
        cut_off(bench)
        nc.publish("x", b"1")
        first.unsubscribe()
        third = nc.subscribe("c")
        third.unsubscribe(5)
        nc.publish("x", b"2", headers={"Colour": "blue"})
        back(bench)


@scenario("reconnect")
def requests(bench: Bench) -> None:
    """A request that was under way is not sent again."""
    bench.stream(1)
    with bench.admin_nc.subscribe("silent"):
        bench.admin_nc.flush()
        with bench.step("lost during a request"):
            lose_during(bench, "silent", partial(bench.nc.request, "silent", b"?"))
    with bench.step("a request afterwards"):
        bench.note(bench.js.get_stream("S").info.state.messages)


# --- publishing ---------------------------------------------------------------------------------------------


@scenario("reconnect")
def unanswered(bench: Bench) -> None:
    """publish_async: what has an id is sent again with the same reply subject, the rest is given up."""
    bench.stream()
    with bench.step("answered"):
        bench.js.publish_async("s.x", b"0").result(5)
    with bench.step("lost before the answers"):
        bench.proxy.black_hole("to_client")
        futures = [
            bench.js.publish_async("s.x", b"1", msg_id="id-1"),
            bench.js.publish_async("s.x", b"2"),
            bench.js.publish_async("s.y", b"3", msg_id="id-3", headers={"Colour": "blue"}),
        ]
        bench.wait_for("PUB s.", 3)
        bench.proxy.cut()
        bench.proxy.heal()
        with pytest.raises(ConnectionLostError):
            futures[1].result(10)
        bench.wait_reconnected()
        bench.note(futures[0].result(10).stream, futures[2].result(10).stream)


@scenario("reconnect")
def publish_with_id(bench: Bench) -> None:
    """publish: with an id it is tried again, with another reply subject."""
    bench.stream()
    with bench.step("lost before the answer"):
        bench.proxy.black_hole("to_client")
        bench.when("HPUB s.x", lambda: (bench.proxy.cut(), bench.proxy.heal()))
        bench.note(bench.js.publish("s.x", b"1", msg_id="id-1", retry_wait=0.1, timeout=20).stream)


# --- pulling ------------------------------------------------------------------------------------------------


@scenario("reconnect")
def single_pulls(bench: Bench) -> None:
    """A pull that was under way is given up, with its inbox; the next one is as ever."""
    consumer = bench.consumer()
    with bench.step("lost during a fetch"):
        lose_during(bench, PULL, lambda: list(consumer.fetch(2, expires=20)))
    with bench.step("fetch"):
        bench.when(PULL, partial(bench.fill, 2))
        bench.note(len(list(consumer.fetch(2, expires=20))))


@scenario("reconnect")
def next_pull(bench: Bench) -> None:
    """The same with next()."""
    consumer = bench.consumer()
    with bench.step("lost during next()"):
        lose_during(bench, PULL, lambda: consumer.next(20))
    with bench.step("next"):
        bench.when(PULL, partial(bench.fill, 1))
        message = consumer.next(20)
        assert message is not None


@scenario("reconnect")
def pull_while_disconnected(bench: Bench) -> None:
    """Pulls made while there was no session are sent on the next one."""
    consumer = bench.consumer(4, ack_policy="none")
    with bench.step("fetch"):
        cut_off(bench)
        batch = consumer.fetch(3, expires=20)
        back(bench)
        bench.note(len(list(batch)))


@scenario("reconnect")
def messages(bench: Bench) -> None:
    """messages(): the inbox is subscribed again, a pull made anew, the consumer looked up; acks are kept."""
    consumer = bench.consumer(3)
    with bench.step("open and take two"):
        stream = consumer.messages(max_messages=10)
        first, second = stream.next(timeout=10), stream.next(timeout=10)
        bench.wait_to_hear(b"\r\n2\r\n")
    with bench.step("acknowledge while disconnected"):
        cut_off(bench)
        first.ack()
        second.ack()
        back(bench)
        bench.wait_for(PULL)
        bench.wait_for("CONSUMER.INFO")
    with bench.step("take the third"):
        third = stream.next(timeout=10)
        bench.note(third.data.decode())
        third.ack()
    with bench.step("stop"):
        stream.stop()
        bench.wait_for("UNSUB")


@scenario("reconnect")
def consume(bench: Bench) -> None:
    """consume(), without a look at the consumer."""
    consumer = bench.consumer()
    handled: list[bytes] = []
    with bench.step("open"):
        context = consumer.consume(
            lambda message: handled.append(message.data), max_messages=10, check_on_reconnect=False
        )
    with bench.step("cut"):
        cut(bench)
        bench.wait_for(PULL)
    with bench.step("a message"):
        bench.fill(1)
        eventually(lambda: handled)
    with bench.step("drain"):
        context.drain()
        bench.note(context.wait(10))


@scenario("reconnect")
def pull_subscription(bench: Bench) -> None:
    """pull_subscribe(): the shared inbox is subscribed again."""
    bench.stream(2)
    with bench.step("subscribe and fetch"):
        sub = bench.js.pull_subscribe("s.x", "D")
        bench.note(len(sub.fetch(1)))
    with bench.step("cut"):
        cut(bench)
    with bench.step("fetch"):
        bench.note(len(sub.fetch(1)))
    with bench.step("unsubscribe"):
        sub.unsubscribe()


# --- ordered and push ---------------------------------------------------------------------------------------


@scenario("reconnect")
def ordered_fetch(bench: Bench) -> None:
    """An ordered consumer is replaced before the next fetch."""
    bench.stream(4)
    ordered = bench.js.ordered_consumer("S")
    with bench.step("fetch", elapsing=5.0):
        bench.note(len(list(ordered.fetch(2))))
    with bench.step("cut"):
        cut(bench)
    with bench.step("fetch again", elapsing=5.0):
        bench.note(len(list(ordered.fetch(2))))


@scenario("reconnect")
def ordered_messages(bench: Bench) -> None:
    """An ordered consumer is replaced when the next message is asked for."""
    bench.stream(2)
    with bench.step("open and take two"):
        stream = bench.js.ordered_consumer("S").messages(max_messages=10)
        stream.next(timeout=10)
        stream.next(timeout=10)
    with bench.step("cut"):
        cut(bench)
    with bench.step("take a third"):
        bench.fill(1, first=2)
        bench.note(stream.next(timeout=10).data.decode())
    with bench.step("stop"):
        stream.stop()
        bench.wait_for("CONSUMER.DELETE")


@scenario("reconnect")
def push(bench: Bench) -> None:
    """A push subscription is subscribed again; its consumer stays."""
    bench.stream(1)
    with bench.step("subscribe and take one"):
        sub = bench.js.subscribe("s.x", durable="D", idle_heartbeat=5)
        sub.next_msg(10).ack()
    with bench.step("cut"):
        cut(bench)
    with bench.step("take another"):
        bench.fill(1, first=1)
        message = sub.next_msg(10)
        message.ack()
        bench.note(message.data.decode())
    with bench.step("unsubscribe"):
        sub.unsubscribe()


@scenario("reconnect")
def ordered_push(bench: Bench) -> None:
    """An ordered push subscription moves to another consumer."""
    bench.stream(1)
    with bench.step("subscribe and take one"):
        sub = bench.js.subscribe("s.x", ordered_consumer=True)
        sub.next_msg(10)
    with bench.step("cut"):
        cut(bench)
        bench.fill(1, first=1)
        bench.note(sub.next_msg(10).data.decode())
    with bench.step("unsubscribe", optional=deleted_twice):
        sub.unsubscribe()
