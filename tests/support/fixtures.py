"""Fixtures that many test modules use. tests/conftest.py imports them; a module may override one with its own.

`nats_server`, `nc` and `js` come from the pytest plugin, `jetstream_sync.testing.plugin`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, Stream
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.certs import CertKit
from tests.support.jwt import JwtKit
from tests.support.observer import Observer

# --- servers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server for one test, which may stop, kill or pause it."""
    with LocalServer() as server:
        yield server
        if server.is_running:
            server.resume()


@pytest.fixture
def proxy(nats_server: LocalServer) -> Iterator[FaultProxy]:
    """A proxy in front of `nats_server`."""
    with FaultProxy(nats_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def token_server() -> Iterator[LocalServer]:
    """A server that requires the token "t0ken"."""
    with LocalServer(jetstream=False, config='authorization { token: "t0ken" }') as server:
        yield server


@pytest.fixture(scope="module")
def cert_kit(tmp_path_factory: pytest.TempPathFactory) -> CertKit:
    """A CA and the means to create certificates."""
    return CertKit(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def jwt_kit() -> JwtKit:
    """An operator, an account and the means to create users, for `operator_server`."""
    return JwtKit()


@pytest.fixture(scope="module")
def operator_server(jwt_kit: JwtKit) -> Iterator[LocalServer]:
    """A server that requires a user JWT of `jwt_kit`."""
    with LocalServer(config=jwt_kit.server_config()) as server:
        yield server


# --- clients -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """The stream S in memory, for the subjects `s.>`."""
    return js.create_stream(name="S", subjects=["s.>"], storage="memory")


@pytest.fixture
def other_js(nats_server: LocalServer) -> Iterator[JetStream]:
    """JetStream over a second connection."""
    with jetstream_sync.connect(nats_server.url) as connection:
        yield connection.jetstream()


@pytest.fixture
def reported(nats_server: LocalServer) -> Iterator[tuple[Connection, list[Exception]]]:
    """A connection, and the errors that its error callback gets."""
    errors: list[Exception] = []
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as connection:
        yield connection, errors


@pytest.fixture
def observer(nats_server: LocalServer) -> Iterator[Observer]:
    """Records the pulls, acks and flow-control replies of all clients."""
    with Observer(nats_server.url) as observer:
        yield observer


@pytest.fixture
def mute(nats_server: LocalServer) -> Iterator[str]:
    """A subject with a subscriber that never replies."""
    with jetstream_sync.connect(nats_server.url) as listener:
        listener.subscribe("mute")
        listener.flush()
        yield "mute"


# --- threads -----------------------------------------------------------------------------------------------------


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """The interpreter switches threads as often as it can, which makes races likely.

    For a whole module: `pytestmark = pytest.mark.usefixtures("eager_switching")`.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
