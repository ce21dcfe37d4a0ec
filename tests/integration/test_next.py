"""next(): one message, pulled when asked for."""

from __future__ import annotations

import time

import pytest

from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import ConsumerDeletedError, NoRespondersError
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, server_version, stream_and_consumer, waiting_pulls
from tests.support.watchdog import InThread


def test_next_returns_messages_one_by_one(js: JetStream) -> None:
    """Each call gives the next message, and the first is acked before the second is asked for."""
    consumer = stream_and_consumer(js, 3)
    assert [getattr(consumer.next(), "data", None) for _ in range(3)] == [b"0", b"1", b"2"]


def test_next_without_a_message_returns_none_after_its_expiry(js: JetStream) -> None:
    """None says that none came; the call takes about as long as `expires`."""
    consumer = stream_and_consumer(js)
    start = time.monotonic()
    assert consumer.next(0.5) is None
    assert 0.4 < time.monotonic() - start < 2


def test_next_never_takes_a_message_ahead(js: JetStream, nc: Connection, nats_server: LocalServer) -> None:
    """Nothing is pulled before the call or after it: one pull of one message per call."""
    consumer = stream_and_consumer(js, 5)
    with Observer(nats_server.url) as observer:
        assert consumer.next() is not None
        observer.settle(nc)
        (pull,) = observer.pulls
        assert pull.body == {"batch": 1, "expires": 5_000_000_000}
        info = consumer.get_info()
        assert (info.num_ack_pending, info.num_pending, info.num_waiting) == (1, 4, 0)


def test_next_waits_for_a_message(js: JetStream) -> None:
    """A message that comes while next() waits is returned at once."""
    consumer = stream_and_consumer(js)
    waiting = InThread(consumer.next, 10)
    eventually(lambda: waiting_pulls(consumer) == 1)
    js.publish("s.x", b"late")
    message = waiting.result(2)
    assert message is not None
    assert message.data == b"late"


def test_next_raises_when_the_consumer_is_deleted(js: JetStream) -> None:
    """A deleted consumer ends a waiting next() with the typed error."""
    consumer = stream_and_consumer(js)
    waiting = InThread(consumer.next, 10)
    eventually(lambda: waiting_pulls(consumer) == 1)
    js.delete_consumer("S", "C")
    assert isinstance(waiting.error(2), ConsumerDeletedError)


def test_next_on_a_consumer_that_is_not_there(js: JetStream, nc: Connection) -> None:
    """Servers from 2.10.26 reply "no responders"; with older ones the client's deadline ends next()."""
    consumer = stream_and_consumer(js)
    js.delete_consumer("S", "C")
    start = time.monotonic()
    if server_version(nc) < (2, 10, 26):
        assert consumer.next(0.5) is None
        assert 1.4 < time.monotonic() - start < 3
    else:
        with pytest.raises(NoRespondersError, match=r"CONSUMER\.MSG\.NEXT\.S\.C"):
            consumer.next(5)
        assert time.monotonic() - start < 1


def test_next_refuses_bad_options_before_sending(js: JetStream, nc: Connection, nats_server: LocalServer) -> None:
    """Bad options are refused at the call, and nothing is sent."""
    consumer = stream_and_consumer(js)
    with Observer(nats_server.url) as observer:
        for options in ({"expires": 0}, {"expires": -1}, {"expires": 1, "idle_heartbeat": 1}, {"priority": 1}):
            with pytest.raises(ValueError):
                consumer.next(**options)
        observer.settle(nc)
        assert observer.pulls == []
