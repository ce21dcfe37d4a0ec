"""The spellings of nats-py: each alias does what the name of this library does, and what nats-py's returns."""

from __future__ import annotations

import builtins
import pickle
import re
import threading
from pathlib import Path

import pytest

from jetstream_sync import ConsumerConfig, JetStream, Message, StreamConfig, connect, errors, nats_py
from jetstream_sync.errors import (
    ConsumerNotFoundError,
    MessageNotFoundError,
    SlowConsumerError,
    StreamNotFoundError,
)
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import fill

pytestmark = pytest.mark.usefixtures("stream")
PAGE = Path(__file__).parents[2] / "docs" / "from-nats-py.md"

# --- streams and messages -------------------------------------------------------------------------------------


def test_add_stream_and_stream_info(js: JetStream) -> None:
    """By keywords, by a config, or both; the result is the stream's info."""
    assert js.add_stream(name="A", subjects=["a.>"], storage="memory").config.name == "A"
    assert js.add_stream(StreamConfig(name="B", subjects=["b"]), storage="memory").config.subjects == ["b"]
    js.publish("a.x")
    js.publish("a.y")
    assert js.stream_info("A").state.messages == 2
    assert js.stream_info("A", subjects_filter=">").state.subjects == {"a.x": 1, "a.y": 1}
    with pytest.raises(nats_py.NotFoundError):
        js.stream_info("NONE")


def test_purge_stream(js: JetStream) -> None:
    """All, those before a sequence, all but the last, those of a subject."""
    fill(js, 6)
    fill(js, 2, subject="s.y")
    assert js.purge_stream("S", seq=3) is True
    assert js.stream_info("S").state.messages == 6
    assert js.purge_stream("S", keep=3)
    assert js.stream_info("S").state.messages == 3
    assert js.purge_stream("S", subject="s.y")
    assert js.stream_info("S").state.messages == 1
    assert js.purge_stream("S")
    assert js.stream_info("S").state.messages == 0


@pytest.mark.parametrize("direct", [False, True])
def test_get_and_delete_messages(js: JetStream, direct: bool) -> None:
    """By sequence, the last and the next of a subject, by the API and by Direct Get."""
    js.add_stream(name="D", subjects=["d.*"], storage="memory", allow_direct=True)
    for subject in ("d.x", "d.y", "d.x", "d.y"):
        js.publish(subject, subject.encode())
    assert js.get_msg("D", 2, direct=direct).subject == "d.y"
    assert js.get_msg("D", subject="d.x", direct=direct).seq == 3
    assert js.get_msg("D", seq=3, subject="d.y", direct=direct, next=True).seq == 4
    assert js.get_last_msg("D", "d.y", direct=direct).seq == 4
    assert js.delete_msg("D", 4) is True
    with pytest.raises(nats_py.NotFoundError):
        js.get_msg("D", 4, direct=direct)


# --- consumers and subscriptions ------------------------------------------------------------------------------


def test_add_consumer_and_consumer_info(js: JetStream) -> None:
    """As in nats-py, a consumer that is there is updated."""
    assert js.add_consumer("S", durable_name="C", ack_policy="explicit").name == "C"
    config = ConsumerConfig(durable_name="C", ack_policy="explicit", description="new")
    assert js.add_consumer("S", config).config.description == "new"
    assert js.consumer_info("S", "C").config.description == "new"
    with pytest.raises(nats_py.NotFoundError):
        js.consumer_info("S", "NONE")


@pytest.mark.parametrize("group", [None, "workers"])
def test_subscribe_bind(js: JetStream, group: str | None) -> None:
    """To a push consumer that is there; its deliver group is the queue."""
    info = js.add_consumer("S", durable_name="P", deliver_subject="deliver.p", deliver_group=group)
    fill(js, 2)
    with js.subscribe_bind("S", info.config, "P") as sub:
        for number in range(2):
            msg = sub.next_msg(timeout=5)
            assert int(msg.data) == number
            msg.ack()
    assert js.consumer_info("S", "P").name == "P"  # it was found, so it stays


def test_subscribe_bind_with_a_callback_acks(js: JetStream) -> None:
    """The callback and manual_ack stand where nats-py has them."""
    info = js.add_consumer("S", durable_name="P", deliver_subject="deliver.p", ack_policy="explicit")
    seen: list[bytes] = []
    with js.subscribe_bind("S", info.config, "P", lambda msg: seen.append(msg.data), False, pending_msgs_limit=10):
        fill(js, 2)
        eventually(lambda: js.consumer_info("S", "P").ack_floor.consumer_seq == 2)
    assert seen == [b"0", b"1"]


def test_pull_subscribe_bind(js: JetStream) -> None:
    """By the consumer's name, which has three names."""
    js.add_consumer("S", durable_name="C")
    fill(js, 3)
    for number, options in enumerate([{"consumer": "C"}, {"durable": "C"}, {"name": "C"}]):
        with js.pull_subscribe_bind(stream="S", **options) as sub:
            [msg] = sub.fetch()
            assert int(msg.data) == number
            msg.ack_sync()
    with pytest.raises(ValueError, match="a stream and the name"):
        js.pull_subscribe_bind("C")


def test_queue_and_callback_by_position(nats_server: LocalServer, js: JetStream) -> None:
    """subscribe(subject, queue, cb), of the connection and of JetStream."""
    got: list[str] = []
    came = threading.Event()

    def callback(msg: Message) -> None:
        got.append(msg.subject)
        came.set()

    with connect(nats_server.url) as nc:
        sub = nc.subscribe("positional", "workers", callback)
        assert sub.queue == "workers"
        nc.publish("positional")
        assert came.wait(5)
        assert got == ["positional"]
    came.clear()
    with js.subscribe("s.x", "workers", callback) as push:
        assert push.queue == "workers"
        fill(js, 1)
        assert came.wait(5)
    assert got[1:] == ["s.x"]


def test_messages_of_a_subscription(nats_server: LocalServer, js: JetStream) -> None:
    """`for msg in sub.messages` is `for msg in sub`."""
    with connect(nats_server.url) as nc:
        sub = nc.subscribe("iterated")
        for number in range(3):
            nc.publish("iterated", b"%d" % number)
        nc.flush()
        sub.unsubscribe(3)
        assert [int(msg.data) for msg in sub.messages] == [0, 1, 2]
    fill(js, 2)
    with js.subscribe("s.x") as push:
        messages = push.messages
        assert [int(next(messages).data) for _ in range(2)] == [0, 1]


def test_sid_of_messages(nats_server: LocalServer, js: JetStream) -> None:
    """Messages of one subscription have its number, those of another another; a reply and a pickled one have 0."""
    with connect(nats_server.url) as nc:
        first, second = nc.subscribe("sid.1"), nc.subscribe("sid.2")
        for _ in range(2):
            nc.publish("sid.1")
            nc.publish("sid.2")
        sids = [[sub.next_msg(timeout=5).sid for _ in range(2)] for sub in (first, second)]
        assert sids[0][0] == sids[0][1] != sids[1][0] == sids[1][1]
        assert all(sid > 0 for pair in sids for sid in pair)
        nc.publish("sid.1")
        assert pickle.loads(pickle.dumps(first.next_msg(timeout=5))).sid == 0
        nc.subscribe("sid.echo", cb=lambda msg: msg.respond(b""))
        assert nc.request("sid.echo").sid == 0
    fill(js, 2)
    with js.subscribe("s.x") as push:
        assert push.next_msg(timeout=5).sid == push.next_msg(timeout=5).sid > 0
    with js.pull_subscribe("s.x") as pull:
        assert {msg.sid > 0 for msg in pull.fetch(2)} == {True}


@pytest.mark.parametrize("callback", [False, True])
def test_slow_consumer_error_names_its_subscription(nats_server: LocalServer, callback: bool) -> None:
    """`error.sub` is the object that subscribe() returned; it does not travel to another process."""
    told: list[Exception] = []
    release = threading.Event()
    with connect(nats_server.url, error_cb=told.append) as nc:
        cb = (lambda _: release.wait(10)) if callback else None
        sub = nc.subscribe("slow", cb=cb, pending_msgs_limit=2)
        for _ in range(20):
            nc.publish("slow")
        nc.flush()
        eventually(lambda: bool(told))
        release.set()
        [error] = told
        assert isinstance(error, SlowConsumerError)
        assert error.sub is sub
        assert pickle.loads(pickle.dumps(error)).sub is None
        assert pickle.loads(pickle.dumps(error)).dropped == error.dropped


# --- errors

# The names in nats.errors and nats.js.errors (nats-py 2.12) without those of key-value and object stores.
NATS_ERRORS = [
    "Error",
    "TimeoutError",
    "NoRespondersError",
    "StaleConnectionError",
    "OutboundBufferLimitError",
    "UnexpectedEOF",
    "FlushTimeoutError",
    "ConnectionClosedError",
    "SecureConnRequiredError",
    "SecureConnWantedError",
    "SecureConnFailedError",
    "BadSubscriptionError",
    "BadSubjectError",
    "SlowConsumerError",
    "BadTimeoutError",
    "AuthorizationError",
    "NoServersError",
    "JsonParseError",
    "MaxPayloadError",
    "DrainTimeoutError",
    "ConnectionDrainingError",
    "ConnectionReconnectingError",
    "InvalidUserCredentialsError",
    "InvalidCallbackTypeError",
    "ProtocolError",
    "ServerNotInPoolError",
    "NotJSMessageError",
    "MsgAlreadyAckdError",
    "APIError",
    "ServiceUnavailableError",
    "ServerError",
    "NotFoundError",
    "BadRequestError",
    "NoStreamResponseError",
    "TooManyStalledMsgsError",
    "FetchTimeoutError",
    "ConsumerSequenceMismatchError",
]


@pytest.mark.parametrize("name", NATS_ERRORS)
def test_error_has_nats_pys_name(name: str) -> None:
    """Each is a class that an `except` can name: one of this library's, or one of Python's."""
    alias = getattr(nats_py, name)
    assert issubclass(alias, errors.NatsError) or alias in (ValueError, TypeError)
    assert name in nats_py.__all__


def test_aliases_of_errors_are_those_that_are_listed() -> None:
    """The module exports this library's errors under their own names, too, and nothing else."""
    assert set(nats_py.__all__) == {*NATS_ERRORS, *errors.__all__}
    assert all(getattr(nats_py, name) is getattr(errors, name) for name in errors.__all__)


def test_not_found_errors_have_one_class() -> None:
    """`except NotFoundError` catches a missing stream, consumer or message."""
    for cls in (StreamNotFoundError, ConsumerNotFoundError, MessageNotFoundError):
        assert issubclass(cls, errors.NotFoundError)
    assert issubclass(nats_py.TimeoutError, builtins.TimeoutError)


def test_page_lists_every_alias() -> None:
    """docs/from-nats-py.md has a row for each alias: a method, an attribute or an error."""
    rows = set(re.findall(r"^\| `(?:js\.|sub\.|nc\.|msg\.|error\.)?(\w+)", PAGE.read_text(), re.MULTILINE))
    methods = {name for name in vars(nats_py.JetStreamNames) if not name.startswith("_")}
    assert rows >= methods | {"messages"} | set(nats_py.ERRORS)
