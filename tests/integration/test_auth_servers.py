"""Each way to authenticate, against a real server: INFO, CONNECT, PING, then PONG or `-ERR`."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_sync.net import ed25519
from jetstream_sync.net.auth import Authenticator
from jetstream_sync.net.nkeys import KeyPair
from jetstream_sync.testing.server import LocalServer
from tests.support.jwt import JwtKit, creds_text, new_seed

TIMEOUT = 5.0
ACCEPTED = "PONG"
REFUSED = "-ERR 'Authorization Violation'"


class RawClient:
    """A minimal client that can authenticate."""

    def __init__(self, server: LocalServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def authenticate(self, authenticator: Authenticator, url_user: str | None, url_password: str | None) -> str:
        """PONG, or the error the server answered with."""
        info = json.loads(self._line().removeprefix("INFO "))
        fields = authenticator.connect_fields(info.get("nonce"), url_user, url_password)
        self.send(f"CONNECT {json.dumps({'verbose': False, 'protocol': 1} | fields)}\r\nPING\r\n")
        return self.answer()

    def send(self, commands: str) -> None:
        self._socket.sendall(commands.encode())

    def answer(self) -> str:
        """The next line that is PONG or an error."""
        while True:
            line = self._line()
            if not line or line.startswith(("PONG", "-ERR")):
                return line

    def message(self) -> str:
        """The payload of the next message."""
        while not self._line().startswith("MSG "):
            pass
        return self._line()

    def _line(self) -> str:
        return self._lines.readline().decode().rstrip("\r\n")


def handshake(
    server: LocalServer,
    authenticator: Authenticator,
    url_user: str | None = None,
    url_password: str | None = None,
) -> str:
    with RawClient(server) as client:
        return client.authenticate(authenticator, url_user, url_password)


@pytest.fixture(scope="module")
def password_server() -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config='authorization { user: ann, password: "s3cr et" }') as server:
        yield server


@pytest.fixture(params=["python", "library"])
def signing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test with this library's Ed25519, and with the package `cryptography`."""
    if request.param == "python":
        monkeypatch.setattr(ed25519, "_library_keys", lambda seed: None)
    return str(request.param)


def test_user_and_password_accepted(password_server: LocalServer) -> None:
    """The right user and password are let in, given as strings or as callables."""
    assert handshake(password_server, Authenticator(user="ann", password="s3cr et")) == ACCEPTED
    assert handshake(password_server, Authenticator(user=lambda: "ann", password=lambda: "s3cr et")) == ACCEPTED


def test_user_and_password_wrong(password_server: LocalServer) -> None:
    """A wrong password is refused."""
    assert handshake(password_server, Authenticator(user="ann", password="guess")) == REFUSED


def test_user_and_password_in_url(password_server: LocalServer) -> None:
    """Credentials in the URL are sent when no option is given, and only then."""
    assert handshake(password_server, Authenticator(), "ann", "s3cr et") == ACCEPTED
    assert handshake(password_server, Authenticator(user="bob", password="x"), "ann", "s3cr et") == REFUSED


def test_no_credentials_where_needed(password_server: LocalServer) -> None:
    """Without credentials a server that wants some refuses."""
    assert handshake(password_server, Authenticator()) == REFUSED


def test_token_accepted(token_server: LocalServer) -> None:
    """A token is let in from the option, a callable, and the user part of the URL."""
    assert handshake(token_server, Authenticator(token="t0ken")) == ACCEPTED
    assert handshake(token_server, Authenticator(token=lambda: "t0ken")) == ACCEPTED
    assert handshake(token_server, Authenticator(), "t0ken") == ACCEPTED


def test_token_wrong(token_server: LocalServer) -> None:
    """A wrong token is refused."""
    assert handshake(token_server, Authenticator(token="guess")) == REFUSED


def test_nkey_accepted_and_unknown_one_refused(signing: str, tmp_path: Path) -> None:
    """A seed, as text or in a file, is let in where the server lists its public key; another one is not."""
    seed = new_seed()
    seed_file = tmp_path / "user.nk"
    seed_file.write_text(f"{seed}\n")
    config = f"authorization {{ users: [ {{ nkey: {KeyPair(seed).public_key} }} ] }}"
    with LocalServer(jetstream=False, config=config) as server:
        assert handshake(server, Authenticator(nkeys_seed_str=seed)) == ACCEPTED
        assert handshake(server, Authenticator(nkeys_seed=seed_file)) == ACCEPTED
        assert handshake(server, Authenticator(nkeys_seed_str=new_seed())) == REFUSED


def test_credentials_file_accepted(
    operator_server: LocalServer, jwt_kit: JwtKit, signing: str, tmp_path: Path
) -> None:
    """A .creds file is let in by a server in operator mode."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds())
    assert handshake(operator_server, Authenticator(user_credentials=creds)) == ACCEPTED


def test_credentials_pair_accepted(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """JWT and seed in two files are let in."""
    jwt, seed = jwt_kit.user_jwt()
    (tmp_path / "user.jwt").write_text(jwt)
    (tmp_path / "user.nk").write_text(seed)
    authenticator = Authenticator(user_credentials=(tmp_path / "user.jwt", tmp_path / "user.nk"))
    assert handshake(operator_server, authenticator) == ACCEPTED


def test_jwt_callbacks_accepted(operator_server: LocalServer, jwt_kit: JwtKit) -> None:
    """JWT and signature from callbacks are let in, the signature raw or in base64."""
    jwt, seed = jwt_kit.user_jwt()
    sign = KeyPair(seed).sign
    raw = Authenticator(user_jwt_cb=lambda: jwt, signature_cb=sign)
    text = Authenticator(user_jwt_cb=jwt.encode, signature_cb=lambda nonce: base64.b64encode(sign(nonce)))
    assert handshake(operator_server, raw) == ACCEPTED
    assert handshake(operator_server, text) == ACCEPTED


def test_jwt_with_seed_of_another_user_refused(
    operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path
) -> None:
    """A JWT with the seed of another user is refused."""
    creds = tmp_path / "user.creds"
    creds.write_text(creds_text(jwt_kit.user_jwt()[0], new_seed()))
    assert handshake(operator_server, Authenticator(user_credentials=creds)) == REFUSED


def test_jwt_expired_then_rotated(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """An expired JWT is refused; once the file is replaced the same authenticator is let in."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds(expires_in=-60))
    authenticator = Authenticator(user_credentials=creds)
    assert handshake(operator_server, authenticator) == REFUSED
    creds.write_text(jwt_kit.user_creds(expires_in=60))
    assert handshake(operator_server, authenticator) == ACCEPTED


def test_jwt_expires_while_connected(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """A JWT that runs out ends the connection with an error that says so."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds(expires_in=1.5))
    with RawClient(operator_server) as client:
        assert client.authenticate(Authenticator(user_credentials=creds), None, None) == ACCEPTED
        assert client.answer() == "-ERR 'User Authentication Expired'"


def test_jwt_revoked_while_connected(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """A user revoked by its account is cut off and not let in again."""
    creds, system_creds = tmp_path / "user.creds", tmp_path / "system.creds"
    creds.write_text(jwt_kit.user_creds())
    system_creds.write_text(jwt_kit.system_creds())
    user = Authenticator(user_credentials=creds)
    with RawClient(operator_server) as client, RawClient(operator_server) as system:
        assert client.authenticate(user, None, None) == ACCEPTED
        assert system.authenticate(Authenticator(user_credentials=system_creds), None, None) == ACCEPTED
        subject, account_jwt = jwt_kit.revoke(creds.read_text())
        system.send(f"PUB {subject} {len(account_jwt)}\r\n{account_jwt}\r\nPING\r\n")
        assert system.answer() == ACCEPTED
        assert client.answer() == "-ERR 'User Authentication Revoked'"
    assert handshake(operator_server, user) == REFUSED


def test_jwt_permissions_enforced(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """Permissions in the JWT hold: a denied publish is answered by a violation."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds(publish_deny=["secret.>"]))
    with RawClient(operator_server) as client:
        assert client.authenticate(Authenticator(user_credentials=creds), None, None) == ACCEPTED
        client.send("PUB secret.x 0\r\n\r\n")
        assert client.answer().startswith("-ERR 'Permissions Violation for Publish")


def test_jetstream_enabled_for_account(operator_server: LocalServer, jwt_kit: JwtKit, tmp_path: Path) -> None:
    """The account of `jwt_kit` has JetStream: its account info is returned."""
    creds = tmp_path / "user.creds"
    creds.write_text(jwt_kit.user_creds())
    with RawClient(operator_server) as client:
        assert client.authenticate(Authenticator(user_credentials=creds), None, None) == ACCEPTED
        client.send("SUB answer 1\r\nPUB $JS.API.INFO answer 0\r\n\r\n")
        answer = json.loads(client.message())
    assert "error" not in answer
    assert answer["limits"]["max_streams"] == -1
