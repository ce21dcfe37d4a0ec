"""Exceptions out of signal handlers while a connection sends over TLS: none of them may cost the session."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, _platform
from jetstream_sync.testing import LocalServer
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.storm import Sender, Storm, Verifier


@pytest.fixture(scope="module")
def server(cert_kit: CertKit) -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config=cert_kit.server_tls_config(*cert_kit.server())) as server:
        yield server


@pytest.fixture(scope="module")
def options(cert_kit: CertKit) -> dict[str, Any]:
    return {"tls": ssl.create_default_context(cafile=str(cert_kit.ca_file))}


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets with small buffers, so that sends are partial."""
    connect_tcp = _platform.connect_tcp

    def connect(host: str, port: int, timeout: float | None) -> socket.socket:
        sock = connect_tcp(host, port, timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return sock

    monkeypatch.setattr(_platform, "connect_tcp", connect)


@pytest.mark.usefixtures("small_buffers")
def test_publish_over_tls_under_storm_of_signals(server: LocalServer, options: dict[str, Any]) -> None:
    """Thousands of exceptions in publish() break no record, lose no message of a returned call, repeat none, and
    cost no reconnect."""
    errors: list[Exception] = []
    nc = jetstream_sync.connect(server.url, error_cb=errors.append, **options)
    verifier = Verifier(server.url, **options)
    main, others = Sender(nc, "main"), [Sender(nc, f"thread-{n}") for n in range(2)]
    threads = [threading.Thread(target=sender.publish_all, args=(1500,), daemon=True) for sender in others]
    for thread in threads:
        thread.start()
    with Storm(seed=1) as storm:
        while storm.raised < 1500:
            storm.interrupt(main.publish)
    for thread in threads:
        thread.join(30)
    assert (nc.stats.reconnects, errors) == (0, [])
    nc.flush()
    verifier.nc.flush()
    for sender in (main, *others):
        eventually(lambda s=sender: set(s.returned) <= verifier.seen.get(s.subject, set()), 20, sender.subject)
    assert verifier.wrong == []
    assert [len(sender.returned) for sender in others] == [1500, 1500]
    end(nc, errors)
    verifier.nc.close()


def test_requests_over_tls_under_storm_of_signals(server: LocalServer, options: dict[str, Any]) -> None:
    """Interrupted requests cost no reconnect either, and no later one gets the reply to another."""
    errors: list[Exception] = []
    nc = jetstream_sync.connect(server.url, error_cb=errors.append, **options)
    with jetstream_sync.connect(server.url, **options) as responder:
        responder.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        responder.flush()
        numbers = iter(range(10**9))

        def ask() -> None:
            payload = b"%d" % next(numbers)
            assert nc.request("echo", payload, timeout=5).data == payload

        with Storm(seed=2, longest=0.002, doubles=0) as storm:
            while storm.raised < 500:
                storm.interrupt(ask)
        ask()
    end(nc, errors)


def end(nc: Connection, errors: list[Exception]) -> None:
    """The connection works, was never replaced, and nothing went wrong on it."""
    nc.flush(5)
    assert (nc.stats.reconnects, nc.last_error, errors) == (0, None, [])
    nc.close()
