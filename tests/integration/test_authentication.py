"""connect() with every kind of credential, and what happens when they expire, change or are taken away."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.errors import AuthorizationError, ConnectionClosedError, NoServersError
from jetstream_sync.net.nkeys import KeyPair
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually
from tests.support.jwt import JwtKit, new_seed

ANN = 'authorization { user: ann, password: "p@ss wörd" }'


@pytest.fixture(scope="module")
def password_server() -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config=ANN) as server:
        yield server


def assert_works(nc: Connection) -> None:
    sub = nc.subscribe("works")
    nc.publish("works", b"yes")
    assert sub.next_msg(timeout=5).data == b"yes"
    sub.unsubscribe()


def with_credentials(server: LocalServer, text: str) -> str:
    return server.url.replace("nats://", f"nats://{text}@")


# --- ways in --------------------------------------------------------------------------------------


def test_user_and_password(password_server: LocalServer) -> None:
    """User and password are let in as strings, as callables, and from the URL."""
    for options in (
        {"user": "ann", "password": "p@ss wörd"},
        {"user": lambda: "ann", "password": lambda: "p@ss wörd"},
    ):
        with jetstream_sync.connect(password_server.url, **options) as nc:
            assert_works(nc)
    url = with_credentials(password_server, "ann:p%40ss%20w%C3%B6rd")
    with jetstream_sync.connect(url) as nc:
        assert_works(nc)
        assert nc.connected_url == password_server.url
        assert nc.servers == [password_server.url]


def test_token(token_server: LocalServer) -> None:
    """A token is let in as a string, as a callable, and as the user of the URL."""
    for servers, options in (
        (token_server.url, {"token": "t0ken"}),
        (token_server.url, {"token": lambda: "t0ken"}),
        (with_credentials(token_server, "t0ken"), {}),
    ):
        with jetstream_sync.connect(servers, **options) as nc:
            assert_works(nc)


def test_nkey(tmp_path: Path) -> None:
    """An nkey seed is let in as text and from a file."""
    seed = new_seed()
    seed_file = tmp_path / "user.nk"
    seed_file.write_text(seed)
    config = f"authorization {{ users: [ {{ nkey: {KeyPair(seed).public_key} }} ] }}"
    with LocalServer(jetstream=False, config=config) as server:
        for options in ({"nkeys_seed_str": seed}, {"nkeys_seed": str(seed_file)}):
            with jetstream_sync.connect(server.url, **options) as nc:
                assert_works(nc)
        with pytest.raises(AuthorizationError):
            jetstream_sync.connect(server.url, nkeys_seed_str=new_seed())


def test_credentials_file(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """A .creds file is let in by a server in operator mode, again after each lost connection."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds())
    with FaultProxy(operator_server) as proxy:
        with jetstream_sync.connect(proxy.url, user_credentials=str(creds)) as nc:
            assert_works(nc)
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
            assert_works(nc)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": "ann", "password": "wrong"},
        {"user": "eve", "password": "p@ss wörd"},
        {"user": "ann"},
        {"token": "p@ss wörd"},
        {"user": lambda: "ann", "password": lambda: "wrong"},
    ],
)
def test_wrong_credentials(options: dict[str, object], password_server: LocalServer) -> None:
    """Credentials that are refused raise AuthorizationError, which names the server, after one attempt."""
    with FaultProxy(password_server) as proxy:
        with pytest.raises(AuthorizationError, match=proxy.url):
            jetstream_sync.connect(proxy.url, **options)
        assert proxy.accepted == 1


def test_callable_that_fails(token_server: LocalServer) -> None:
    """A callable that raises, or returns no string, is an AuthorizationError and sends nothing."""

    def broken() -> str:
        raise KeyError("vault")

    with FaultProxy(token_server) as proxy:
        for token in (broken, lambda: None, lambda: ""):
            with pytest.raises(AuthorizationError):
                jetstream_sync.connect(proxy.url, token=token)
        assert all(b"CONNECT" not in one.to_server for one in proxy.captured)


def test_wrong_at_one_server_of_two(password_server: LocalServer, token_server: LocalServer) -> None:
    """A server that refuses the credentials is passed over for one that takes them."""
    servers = [token_server.url, password_server.url]
    with jetstream_sync.connect(servers, user="ann", password="p@ss wörd", dont_randomize=True) as nc:
        assert nc.connected_url == password_server.url


def test_refused_and_unreachable(password_server: LocalServer) -> None:
    """Where one server refuses and another is not there, the error names both and why."""
    with LocalServer(jetstream=False) as gone:
        unreachable = gone.url
    with pytest.raises(NoServersError) as caught:
        jetstream_sync.connect([password_server.url, unreachable], user="ann", password="wrong")
    assert {url for url, _ in caught.value.attempts} == {password_server.url, unreachable}
    assert "Authorization Violation" in str(caught.value)


# --- changes --------------------------------------------------------------------------------------


def test_callable_that_exits_does_not_end_the_connection(token_server: LocalServer) -> None:
    """sys.exit() in a callable while reconnecting is an attempt that failed: the next one may do better."""
    asked: list[int] = []
    errors: list[Exception] = []

    def token() -> str:
        asked.append(1)
        if len(asked) == 2:
            sys.exit(1)
        return "t0ken"

    with FaultProxy(token_server) as proxy:
        options: dict[str, Any] = {"token": token, "error_cb": errors.append, "reconnect_time_wait": 0.01}
        with jetstream_sync.connect(proxy.url, **options) as nc:
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
        assert any("callable of the program raised SystemExit" in str(error) for error in errors)


def test_token_is_asked_again_at_each_reconnect() -> None:
    """A token that changed on the server is taken from the callable at the next reconnect."""
    tokens = queue.Queue()
    for token in ("first", "second", "third"):
        tokens.put(token)
    asked: list[str] = []

    def next_token() -> str:
        asked.append(tokens.get_nowait())
        return asked[-1]

    with LocalServer(jetstream=False, config='authorization { token: "first" }') as server:
        with jetstream_sync.connect(server.url, token=next_token) as nc:
            for number, token in enumerate(("second", "third"), 1):
                server.stop()
                server.config = f'authorization {{ token: "{token}" }}'
                server.start()
                eventually(lambda n=number: nc.stats.reconnects == n, 10)
                assert_works(nc)
    assert asked == ["first", "second", "third"]


def test_expired_jwt_is_replaced_through_callback(operator_server: LocalServer, jwt_kit: JwtKit) -> None:
    """When the server ends the connection because its JWT ran out, it comes back by itself with a new one."""
    asked: list[str] = []
    errors: list[Exception] = []
    seeds: list[str] = []

    def user_jwt() -> str:
        jwt, seed = jwt_kit.user_jwt(expires_in=1.0 if not asked else 60)
        asked.append(jwt)
        seeds.append(seed)
        return jwt

    with jetstream_sync.connect(
        operator_server.url,
        user_jwt_cb=user_jwt,
        signature_cb=lambda nonce: KeyPair(seeds[-1]).sign(nonce),
        error_cb=errors.append,
    ) as nc:
        sub = nc.subscribe("kept")
        eventually(lambda: nc.stats.reconnects == 1, 10)
        nc.publish("kept", b"1")
        assert sub.next_msg(timeout=5).data == b"1"
        assert len(asked) == 2
        assert any(isinstance(error, AuthorizationError) and "Expired" in str(error) for error in errors)


def test_expired_credentials_file_is_read_again(
    operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path
) -> None:
    """A .creds file that was replaced in time brings the connection back after the old JWT ran out."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds(expires_in=1.0))
    with jetstream_sync.connect(operator_server.url, user_credentials=str(creds), error_cb=lambda _: None) as nc:
        creds.write_text(jwt_kit.user_creds(expires_in=60))
        eventually(lambda: nc.stats.reconnects == 1, 10)
        assert_works(nc)


def test_removed_user_ends_closed(tmp_path: Path) -> None:
    """After the user was removed on the server, two attempts fail, the errors are reported, and it closes."""
    errors: list[Exception] = []
    closed = threading.Event()
    both = "authorization { users: [ { user: ann, password: x }, { user: bob, password: x } ] }"
    with LocalServer(jetstream=False, config=both) as server, FaultProxy(server) as proxy:
        nc = jetstream_sync.connect(
            proxy.url, user="ann", password="x", error_cb=errors.append, closed_cb=lambda _: closed.set()
        )
        sub = nc.subscribe("x")
        used = time.process_time()
        server.reload("authorization { users: [ { user: bob, password: x } ] }")
        assert closed.wait(10)
        assert time.process_time() - used < 1.0
        assert nc.is_closed
        assert isinstance(nc.last_error, AuthorizationError)
        assert any(isinstance(error, AuthorizationError) for error in errors)
        assert proxy.accepted == 3  # the first connection and two attempts
        with pytest.raises(ConnectionClosedError, match="Authorization Violation"):
            nc.flush()
        with pytest.raises(ConnectionClosedError):
            nc.publish("x")
        with pytest.raises(ConnectionClosedError):
            sub.next_msg(timeout=5)


def test_credentials_fixed_before_the_second_attempt() -> None:
    """One refusal is not the end: credentials that are right at the second attempt bring it back."""
    answers = iter(["x", "wrong", "x", "wrong", "x"])
    with LocalServer(jetstream=False, config="authorization { user: ann, password: x }") as server:
        with FaultProxy(server) as proxy:
            with jetstream_sync.connect(
                proxy.url, user="ann", password=lambda: next(answers), error_cb=lambda _: None
            ) as nc:
                for number in (1, 2):  # the refusals are counted in a row: a success in between forgets them
                    proxy.cut()
                    eventually(lambda n=number: nc.stats.reconnects == n, 10)
                    assert_works(nc)
                assert proxy.accepted == 5


def test_user_revoked_by_its_account(jwt_kit: JwtKit, tmp_path: Path) -> None:
    """A user that its account revoked is cut off, refused, and closed with AuthorizationError."""
    creds, system = tmp_path / "user.creds", tmp_path / "system.creds"
    creds.write_text(jwt_kit.user_creds())
    system.write_text(jwt_kit.system_creds())
    closed = threading.Event()
    with LocalServer(config=jwt_kit.server_config()) as server:
        nc = jetstream_sync.connect(
            server.url,
            user_credentials=str(creds),
            error_cb=lambda _: None,
            closed_cb=lambda _: closed.set(),
        )
        subject, account_jwt = jwt_kit.revoke(creds.read_text())
        with jetstream_sync.connect(server.url, user_credentials=str(system)) as admin:
            admin.request(subject, account_jwt.encode())
        assert closed.wait(10)
        assert isinstance(nc.last_error, AuthorizationError)
