"""Denied publishes and subscriptions: the call concerned fails within a second, and the connection stays."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.errors import PermissionsError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.threads import thread_names

TOLD_WITHIN = 1.0

CONFIG = """
authorization {
  users: [
    { user: ann, password: x, permissions: {
        publish: { deny: ["secret.>"] }
        subscribe: { deny: ["secret.>", "open workers", "_DENIED.>"] }
    } }
    { user: bob, password: x }
  ]
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config=CONFIG) as server:
        yield server


@pytest.fixture
def errors() -> queue.Queue[Exception]:
    return queue.Queue()


@pytest.fixture
def nc(server: LocalServer, errors: queue.Queue[Exception]) -> Iterator[Connection]:
    connection = jetstream_sync.connect(server.url, user="ann", password="x", error_cb=errors.put)
    yield connection
    assert_usable(connection)
    connection.close()


def assert_usable(nc: Connection) -> None:
    """The connection works and has not reconnected."""
    with nc.subscribe("open.ask", cb=lambda msg: msg.respond(b"yes")):
        assert nc.request("open.ask", timeout=5).data == b"yes"
    assert nc.stats.reconnects == 0


def denial_of(call: Callable[[], object]) -> PermissionsError:
    """The PermissionsError that `call` must raise within a second."""
    start = time.monotonic()
    with pytest.raises(PermissionsError) as caught:
        call()
    assert time.monotonic() - start < TOLD_WITHIN
    return caught.value


def test_publish_denied_goes_to_the_error_callback(nc: Connection, errors: queue.Queue[Exception]) -> None:
    """publish() does not wait, so the error callback gets its denial, which names the subject."""
    nc.publish("secret.plan", b"x")
    error = errors.get(timeout=TOLD_WITHIN)
    assert isinstance(error, PermissionsError)
    assert (error.subject, error.operation) == ("secret.plan", "publish")
    assert "secret.plan" in str(error)
    assert nc.last_error is error


def test_request_denied_fails_at_once(nc: Connection) -> None:
    """A request the user may not make fails with the denial, not at its timeout."""
    error = denial_of(lambda: nc.request("secret.ask", timeout=30))
    assert (error.subject, error.operation) == ("secret.ask", "publish")


def test_request_denied_leaves_others_waiting(nc: Connection, server: LocalServer) -> None:
    """Only requests to the denied subject fail; a request to another subject gets its reply."""
    with jetstream_sync.connect(server.url, user="bob", password="x") as bob:

        def answer_late(msg: jetstream_sync.Message) -> None:
            denial_of(lambda: nc.request("secret.ask", timeout=30))
            msg.respond(b"late")

        bob.subscribe("open.late", cb=answer_late)
        bob.flush()
        assert nc.request("open.late", timeout=10).data == b"late"


@pytest.mark.parametrize("take", ["next_msg", "iteration"])
def test_subscribe_denied_ends_the_wait(nc: Connection, take: str) -> None:
    """next_msg() and iteration of a denied subscription raise PermissionsError."""
    sub = nc.subscribe("secret.news")
    wait = {"next_msg": lambda: sub.next_msg(timeout=30), "iteration": lambda: next(iter(sub))}[take]
    error = denial_of(wait)
    assert (error.subject, error.operation, error.queue) == ("secret.news", "subscription", None)
    assert b"secret.news" not in [receiver.wire_subject for receiver in link_of(nc).router.receivers.values()]


def test_subscribe_denied_with_callback(nc: Connection, errors: queue.Queue[Exception]) -> None:
    """The callback of a denied subscription is never called; the error callback is."""
    nc.subscribe("secret.>", cb=lambda _: None)
    error = errors.get(timeout=TOLD_WITHIN)
    assert isinstance(error, PermissionsError)
    assert error.subject == "secret.>"
    eventually(lambda: not thread_names("js-sub-"))


def test_queue_subscribe_denied(nc: Connection) -> None:
    """A denial for one queue group ends that subscription and no other on the same subject."""
    plain = nc.subscribe("open")
    other = nc.subscribe("open", queue="others")
    error = denial_of(lambda: nc.subscribe("open", queue="workers").next_msg(timeout=30))
    assert (error.subject, error.queue) == ("open", "workers")
    nc.publish("open", b"1")
    assert plain.next_msg(timeout=5).data == b"1"
    assert other.next_msg(timeout=5).data == b"1"


def test_request_inbox_denied(server: LocalServer) -> None:
    """If the inbox of replies is denied every request fails at once, naming the inbox; the rest works."""
    nc = jetstream_sync.connect(
        server.url, user="ann", password="x", inbox_prefix="_DENIED", error_cb=lambda _: None
    )
    for _ in range(3):
        error = denial_of(lambda: nc.request("open.ask", timeout=30))
        assert error.subject.startswith("_DENIED.")
    sub = nc.subscribe("open")
    nc.publish("open", b"1")
    assert sub.next_msg(timeout=5).data == b"1"
    nc.close()


def test_many_denials_do_not_hurt(nc: Connection, errors: queue.Queue[Exception]) -> None:
    """A hundred denials in a row are each reported, and no receiver is left."""
    for number in range(50):
        nc.publish(f"secret.{number}")
        nc.subscribe(f"secret.{number}")
    nc.flush()
    told = {(errors.get(timeout=5).subject) for _ in range(100)}
    assert told == {f"secret.{number}" for number in range(50)}
    assert link_of(nc).router.receivers == {}


def test_permission_granted_after_reconnect(errors: queue.Queue[Exception]) -> None:
    """A denied inbox of replies works after a reconnect to a server that allows it."""
    denied = CONFIG
    granted = CONFIG.replace(', "_DENIED.>"', "")
    with LocalServer(jetstream=False, config=denied) as server:
        nc = jetstream_sync.connect(
            server.url, user="ann", password="x", inbox_prefix="_DENIED", error_cb=errors.put
        )
        nc.subscribe("open.ask", cb=lambda msg: msg.respond(b"yes"))
        denial_of(lambda: nc.request("open.ask", timeout=30))
        server.stop()
        server.config = granted
        server.start()
        eventually(lambda: nc.stats.reconnects == 1, 10)
        assert nc.request("open.ask", timeout=5).data == b"yes"
        nc.close()


def test_denied_check_after_a_reconnect_is_not_repeated() -> None:
    """A user who may pull but not get the consumer's info is denied once after a reconnect; reading goes on."""
    config = """
    authorization { users: [
      { user: ann, password: x, permissions: { publish: { deny: ["$JS.API.CONSUMER.INFO.>"] } } }
      { user: bob, password: x }
    ] }
    """
    with LocalServer(config=config) as server:
        with jetstream_sync.connect(server.url, user="bob", password="x") as bob:
            bob.jetstream().create_stream(name="S", subjects=["s"])
        errors: list[Exception] = []
        with jetstream_sync.connect(server.url, user="ann", password="x", error_cb=errors.append) as nc:
            consumer = nc.jetstream().create_consumer("S", durable_name="C")
            with consumer.messages() as messages:
                nc.force_reconnect()
                eventually(lambda: any(isinstance(error, PermissionsError) for error in errors))
                eventually(lambda: not thread_names("js-check"), 2)
                nc.jetstream().publish("s", b"on")
                assert messages.next(5).data == b"on"
                assert not messages.closed
