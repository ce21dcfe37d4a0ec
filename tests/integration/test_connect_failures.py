"""connect() that fails after a server was dialled: its threads were already started, and must be gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jetstream_sync
from jetstream_sync import AuthorizationError, NoServersError
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.threads import thread_names


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalServer]:
    with LocalServer(config='authorization { user: ann, password: "right" }') as server:
        yield server


def test_refused_connect_leaves_no_thread_and_calls_no_callback(guarded: LocalServer) -> None:
    """When connect() raises, its threads have ended, and closed_cb is not called."""
    told: list[object] = []
    with pytest.raises(AuthorizationError):
        jetstream_sync.connect(guarded.url, user="ann", password="wrong", closed_cb=told.append)
    assert thread_names() == []
    assert told == []


def test_second_server_is_tried_with_the_same_threads(guarded: LocalServer, nats_server: LocalServer) -> None:
    """A server that refuses does not cost another pair of threads, and the next one is used."""
    with jetstream_sync.connect([guarded.url, nats_server.url], dont_randomize=True) as nc:
        assert nc.connected_url == nats_server.url
        eventually(lambda: "js-writer" in thread_names(), message="connect() does not wait for it")
        assert thread_names() == ["js-reader", "js-writer"]


def test_exception_during_the_handshake_leaves_no_thread(
    guarded: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When connect() raises, its threads end, also when the error comes from a signal handler."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jetstream_sync.net.handshake._Handshake._first_info", interrupt)
    with pytest.raises(KeyboardInterrupt):
        jetstream_sync.connect(guarded.url)
    assert thread_names() == []


def test_retry_on_failed_connect_goes_on_with_the_thread_it_has(guarded: LocalServer) -> None:
    """Refused at first, connect() returns; the reader that was started dials again until it is let in."""
    passwords = iter(["wrong", "right"])
    nc = jetstream_sync.connect(
        guarded.url,
        user="ann",
        password=lambda: next(passwords),
        retry_on_failed_connect=True,
        reconnect_time_wait=0.01,
    )
    try:
        eventually(lambda: nc.is_connected)
        eventually(lambda: "js-writer" in thread_names(), message="connect() does not wait for it")
        assert thread_names() == ["js-reader", "js-writer"]
    finally:
        nc.close()


def test_unreachable_server_starts_nothing() -> None:
    """Without a server that accepts the connection, no reader thread is started."""
    with pytest.raises(NoServersError):
        jetstream_sync.connect("nats://127.0.0.1:1")
    assert thread_names() == []
