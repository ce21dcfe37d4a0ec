"""Settings from URLs, the environment and contexts, against real servers with TLS and credentials."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization

from jetstream_sync import connect
from jetstream_sync.errors import AuthorizationError, NoServersError
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.certs import CertKit
from tests.support.eventually import eventually
from tests.support.jwt import JwtKit

USER = "authorization { user: ann, password: hunter2 }"


@pytest.fixture(scope="module")
def user_server() -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config=USER) as server:
        yield server


@pytest.fixture(scope="module")
def client_files(cert_kit: CertKit) -> tuple[Path, Path]:
    return cert_kit.client("ann")


@pytest.fixture(scope="module")
def tls_server(cert_kit: CertKit) -> Iterator[LocalServer]:
    """Clients need a certificate of our CA."""
    with LocalServer(
        jetstream=False, config=cert_kit.server_tls_config(*cert_kit.server(), verify=True)
    ) as server:
        yield server


def tls_files(cert_kit: CertKit, client_files: tuple[Path, Path]) -> dict[str, str]:
    return {"tls_ca": str(cert_kit.ca_file), "tls_cert": str(client_files[0]), "tls_key": str(client_files[1])}


def query(parameters: dict[str, str]) -> str:
    return "&".join(f"{name}={quote(value)}" for name, value in parameters.items())


# --- credentials ------------------------------------------------------------------------------------------------


def test_user_in_every_place(user_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Arguments, parameters, environment, context: each opens the connection, and a higher level wins."""
    url = user_server.url
    connect(url, user="ann", password="hunter2").close()
    connect(f"{url}?user=ann&password=hunter2").close()
    context = tmp_path / "shop.json"
    context.write_text(json.dumps({"url": url, "user": "ann", "password": "hunter2"}))
    monkeypatch.setenv("NATS_CONTEXT", str(context))
    with connect(name="me") as nc:
        assert nc.connected_url == url
    monkeypatch.setenv("NATS_USER", "ann")
    monkeypatch.setenv("NATS_PASSWORD", "wrong")
    with pytest.raises(AuthorizationError):
        connect()
    connect(f"{url}?user=ann&password=hunter2").close()
    connect(url.replace("://", "://ann:hunter2@")).close()
    with pytest.raises(AuthorizationError):
        connect(f"{url}?user=ann&password=hunter2", user="bob", password="x")


def test_credentials_as_text_and_from_the_environment(
    operator_server: LocalServer, jwt_kit: JwtKit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The text of a .creds file opens the connection as the file does, also from NATS_CREDS."""
    text = jwt_kit.user_creds("ann")
    path = tmp_path / "ann.creds"
    path.write_text(text)
    connect(operator_server.url, user_credentials=text).close()
    for value in (text, str(path)):
        monkeypatch.setenv("NATS_CREDS", value)
        connect(operator_server.url).close()
    connect(f"{operator_server.url}?user_credentials={quote(str(path))}").close()


# --- TLS --------------------------------------------------------------------------------------------------------


def test_tls_files_in_every_place(
    tls_server: LocalServer,
    cert_kit: CertKit,
    client_files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Keywords, parameters, environment and context lead to the same connection, which is encrypted."""
    files = tls_files(cert_kit, client_files)
    url = tls_server.url
    connect(url, **files).close()
    connect(url, **{name: Path(path) for name, path in files.items()}).close()  # type: ignore[arg-type]
    connect(f"{url}?{query(files)}").close()
    context = tmp_path / "shop.json"
    fields = {"url": url, "ca": files["tls_ca"], "cert": files["tls_cert"], "key": files["tls_key"]}
    context.write_text(json.dumps(fields))
    with monkeypatch.context() as patch:
        patch.setenv("NATS_CONTEXT", str(context))
        connect().close()
    for variable, name in {"NATS_CA": "tls_ca", "NATS_CERT": "tls_cert", "NATS_KEY": "tls_key"}.items():
        monkeypatch.setenv(variable, files[name])
    connect(url).close()
    with pytest.raises(NoServersError, match="certificate"):  # the argument is an argument
        connect(url, tls_ca=cert_kit.other_ca_file)


def test_certificate_and_key_in_one_file(
    tls_server: LocalServer, cert_kit: CertKit, client_files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without tls_key the key stands in the file of the certificate."""
    both = tmp_path / "both.pem"
    both.write_text(client_files[0].read_text() + client_files[1].read_text())
    connect(tls_server.url, tls_ca=cert_kit.ca_file, tls_cert=both).close()


def test_tls_files_ask_for_tls(user_server: LocalServer, cert_kit: CertKit) -> None:
    """With a CA given there is no fallback to a server without TLS."""
    with pytest.raises(NoServersError, match="TLS was asked for"):
        connect(user_server.url, tls_ca=cert_kit.ca_file)


def test_replaced_certificate_is_used_at_the_next_connect(
    tls_server: LocalServer, cert_kit: CertKit, tmp_path: Path
) -> None:
    """A worker runs longer than its certificate: the files are read at each reconnect."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path, source in zip((cert, key), cert_kit.client("ann"), strict=True):
        path.write_bytes(source.read_bytes())
    told: list[Exception] = []
    with FaultProxy(tls_server) as proxy:
        options: dict[str, Any] = {"reconnect_time_wait": 0.01, "error_cb": told.append}
        with connect(proxy.url, tls_ca=cert_kit.ca_file, tls_cert=cert, tls_key=key, **options) as nc:
            good = cert.read_bytes()
            cert.write_text("not a certificate")
            proxy.cut()
            eventually(lambda: nc.is_reconnecting)
            cert.write_bytes(good)
            eventually(lambda: nc.is_connected and nc.stats.reconnects == 1)


BAD_FILES: list[tuple[dict[str, Any], str]] = [
    ({"tls_ca": "/no/such"}, r"tls_ca '/no/such': No such file"),
    ({"tls_ca": "{junk}"}, "tls_ca"),
    ({"tls_cert": "/no/such"}, "tls_cert '/no/such'"),
    ({"tls_cert": "{junk}"}, "tls_cert"),
    ({"tls_cert": "{cert}", "tls_key": "{other}"}, "with tls_key .*KEY_VALUES_MISMATCH"),
    ({"tls_cert": "{cert}", "tls_key": "{encrypted}"}, "the key is encrypted"),
    ({"tls_key": "{key}"}, "tls_key needs tls_cert"),
    ({"tls_ca": ""}, "tls_ca is empty"),
    ({"tls_ca": "{ca}", "tls": False}, "contradict"),
    ({"tls_ca": "{ca}", "tls": "context"}, "contradict"),
]


@pytest.mark.parametrize(("options", "complaint"), BAD_FILES)
def test_bad_tls_files_are_refused_before_anything_is_sent(
    options: dict[str, Any], complaint: str, cert_kit: CertKit, client_files: tuple[Path, Path], tmp_path: Path
) -> None:
    """The error names the option and the file; an encrypted key does not ask for its password on the terminal."""
    junk, encrypted = tmp_path / "junk.pem", tmp_path / "encrypted.pem"
    junk.write_text("nothing of use")
    encrypted.write_bytes(_encrypted(client_files[1].read_bytes()))
    names = {
        "junk": junk,
        "encrypted": encrypted,
        "ca": cert_kit.ca_file,
        "cert": client_files[0],
        "key": client_files[1],
        "other": cert_kit.client("bob")[1],
    }
    given = {
        name: value.format(**names) if isinstance(value, str) and name != "tls" else value
        for name, value in options.items()
    }
    if given.get("tls") == "context":
        given["tls"] = ssl.create_default_context()
    with pytest.raises(ValueError, match=complaint):
        connect("nats://127.0.0.1:1", **given)


def _encrypted(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hidden"),
    )


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_tls_files_of_another_type(name: str) -> None:
    """Only a path is a path."""
    with pytest.raises(TypeError, match=name):
        connect("nats://127.0.0.1:1", **{name: 5})


def test_settings_do_not_load_openssl() -> None:
    """Without TLS files OpenSSL stays unloaded: it is half of the time that a script takes to start."""
    code = "import sys, jetstream_sync\ntry: jetstream_sync.connect('nats://127.0.0.1:1?name=x')\n"
    code += "except jetstream_sync.NoServersError: print('ssl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "False", done.stderr


# --- arguments --------------------------------------------------------------------------------------------------


def test_arguments_that_are_defaults_count(user_server: LocalServer) -> None:
    """An argument wins over a parameter though it has the value of the default."""
    url = f"{user_server.url}?user=ann&password=hunter2&connect_timeout=0.000001"
    with pytest.raises(NoServersError):
        connect(url)
    connect(url, connect_timeout=5.0).close()
    connect(url.replace("connect_timeout", "ping_interval"), ping_interval=120.0).close()


def test_unknown_keyword_is_a_type_error() -> None:
    """As for any function."""
    with pytest.raises(TypeError, match="tls_caa"):
        connect("nats://127.0.0.1:1", tls_caa="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        connect("nats://127.0.0.1:1", "shop")  # type: ignore[misc]
    with pytest.raises(TypeError, match="servers"):
        connect("nats://127.0.0.1:1", servers="nats://127.0.0.1:2")  # type: ignore[misc]


def test_fixtures_of_the_plugin_leave_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A developer's NATS_CREDS is not for the server of a test: the fixture `nc` connects without it."""
    monkeypatch.setenv("NATS_CREDS", "/no/such.creds")
    assert request.getfixturevalue("nc").is_connected
    assert os.environ["NATS_CREDS"] == "/no/such.creds"
