"""Objects as users hold them: a misspelt attribute raises AttributeError, a read-only one stays as it is."""

from __future__ import annotations

import weakref

import pytest

from jetstream_sync import Connection, JetStream, Stream, TooManyStalledMsgsError
from tests.support.eventually import eventually
from tests.support.watchdog import InThread


@pytest.fixture
def objects(nc: Connection, js: JetStream, stream: Stream) -> list[object]:
    """One of each class of objects that a program holds."""
    ack = js.publish("s.a", b"1")
    js.publish("s.a", b"2")
    consumer = stream.create_consumer(durable_name="C")
    ordered = stream.ordered_consumer()
    first = ordered.next()
    ordered_messages = ordered.messages()
    ordered_messages.stop()
    messages, context = consumer.messages(), consumer.consume(lambda msg: None)
    context.stop()
    batch = js.publish_batch()
    batch.discard()
    subscription = nc.subscribe("core")
    nc.publish("core")
    push, pull = js.subscribe("s.a"), js.pull_subscribe("s.a", durable="P")
    found: list[object] = [
        nc, js, stream, stream.info, stream.info.config, stream.get_message(1), ack, consumer, consumer.info,
        ordered, ordered_messages, first, first.metadata, messages, consumer.fetch(1), context, batch,
        subscription, subscription.next_msg(5), push, push.next_msg(5), pull, nc.stats,
    ]  # fmt: skip
    messages.stop()
    return found


def test_unknown_attribute_is_refused(objects: list[object]) -> None:
    """Every object that a program holds refuses an attribute that it does not have."""
    for one in objects:
        with pytest.raises(AttributeError):
            one.no_such_attribute = 1  # type: ignore[attr-defined]
        assert not hasattr(one, "no_such_attribute")


def test_long_lived_objects_can_be_referenced_weakly(nc: Connection, js: JetStream, stream: Stream) -> None:
    """Caches of programs may hold them weakly, as without `__slots__`."""
    long_lived: list[object] = [
        nc,
        js,
        stream,
        stream.create_consumer(),
        nc.subscribe("core"),
        js.subscribe("s.a"),
    ]
    for one in long_lived:
        assert weakref.ref(one)() is one


def test_window_can_be_changed_at_any_time(js: JetStream, mute: str) -> None:
    """publish_async_max_pending is a setting: a larger window lets a waiting caller in, a bad one is refused."""
    assert js.publish_async_max_pending == 4000
    js.publish_async_max_pending = 2
    for _ in range(2):
        js.publish_async(mute, timeout=20)
    with pytest.raises(TooManyStalledMsgsError):
        js.publish_async(mute, timeout=0.1)
    waiting = InThread(js.publish_async, mute, timeout=20)
    eventually(lambda: len(js._async_publisher.window) == 1)
    js.publish_async_max_pending = 3
    waiting.result(5)
    assert js.publish_async_pending == 3
    for bad in (0, -1, 1.5, "4"):
        with pytest.raises(ValueError, match="publish_async_max_pending"):
            js.publish_async_max_pending = bad  # type: ignore[assignment]
    assert js.publish_async_max_pending == 3
