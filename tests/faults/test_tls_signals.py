"""Exceptions of signal handlers while a connection sends over TLS: none of them costs the session."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, _platform
from jetstream_sync.testing import LocalServer
from tests.support.certs import CertKit
from tests.support.storm import Storm, Verifier, publish_under_storm, request_under_storm


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
    """Thousands of exceptions in publish() break and repeat no TLS record and cost no reconnect."""
    errors: list[Exception] = []
    nc = jetstream_sync.connect(server.url, error_cb=errors.append, **options)
    verifier = Verifier(server.url, **options)
    publish_under_storm(nc, verifier)
    end(nc, errors)
    verifier.nc.close()


def test_requests_over_tls_under_storm_of_signals(server: LocalServer, options: dict[str, Any]) -> None:
    """Interrupted requests cost no reconnect, and no request gets the reply to another."""
    errors: list[Exception] = []
    nc = jetstream_sync.connect(server.url, error_cb=errors.append, **options)
    with jetstream_sync.connect(server.url, **options) as responder:
        request_under_storm(nc, responder, Storm(seed=2, longest=0.002, doubles=0), 500)
    end(nc, errors)


def end(nc: Connection, errors: list[Exception]) -> None:
    """The connection works, has not reconnected and has reported no error."""
    nc.flush(5)
    assert (nc.stats.reconnects, nc.last_error, errors) == (0, None, [])
    nc.close()
