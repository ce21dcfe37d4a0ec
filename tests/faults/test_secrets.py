"""Secrets stay secret: in errors and their tracebacks, in reprs, in URLs shown, and in the log at DEBUG."""

from __future__ import annotations

import gc
import logging
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync.errors import NatsError, NotConnectedError
from jetstream_sync.net.nkeys import KeyPair
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.peer import PeerConnection, ScriptedPeer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually
from tests.support.jwt import JwtKit, creds_text, new_seed

SECRET = "S3cretXyzzy"


@pytest.fixture(autouse=True)
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Log at DEBUG level; after the test no secret may be in the log."""
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text
    assert "SU" + SECRET not in caplog.text


def shown(error: BaseException) -> str:
    """All the text that a program could print of an error."""
    parts = [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
    return "\n".join(parts)


def failure_of(*args: Any, **options: Any) -> str:
    with pytest.raises((NatsError, ValueError, TypeError)) as caught:
        jetstream_sync.connect(*args, connect_timeout=1, **options)
    # The traceback has the source line of the call above, which contains no secret.
    return shown(caught.value)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    config = f"authorization {{ user: ann, password: {SECRET} }}"
    with LocalServer(jetstream=False, config=config) as server:
        yield server


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"user": "ann", "password": SECRET + "-wrong"},
    {"user": "ann", "password": lambda: SECRET + "-wrong"},
    {"token": SECRET},
    {"user": SECRET},  # without a password it may be a token
    {"token": SECRET, "user": "ann"},
    {"password": SECRET},
    {"nkeys_seed_str": "SU" + SECRET},
    {"nkeys_seed_str": SECRET},
    {"token": [SECRET]},
    {"token": lambda: [SECRET]},
    {"user_jwt_cb": lambda: SECRET, "signature_cb": lambda _: b""},
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=lambda options: "+".join(options))
def test_refused_or_bad_options(options: dict[str, Any], server: LocalServer) -> None:
    """The error for a bad option, or one that the server refuses, does not quote its value."""
    assert SECRET not in failure_of(server.url, **options)


URLS = [
    "nats://ann:{s}@127.0.0.1:1",
    "nats://{s}@127.0.0.1:1",
    "ann:{s}@127.0.0.1:1",
    "http://ann:{s}@127.0.0.1:1",
    "nats://ann:{s}@127.0.0.1:99999",
    "nats://ann:{s}@127.0.0.1:port",
    "nats://ann:{s}@",
    "nats://ann:{s}@host/path",
    "nats://ann:{s} x@host",
    "nats://ann:a@{s}@127.0.0.1:1",
    "nats://ann:a/{s}@127.0.0.1:1",
    "nats://ann:a#{s}@127.0.0.1:1",
    "nats://ann:{s}#x@127.0.0.1:1",
    "nats://ann:{s}?x@127.0.0.1:1",
    "nats://ann:{s}/x@127.0.0.1:1",
    "nats://ann:a://{s}@127.0.0.1:1/x",
    "nats://ann:{s}://b@127.0.0.1:1/x",
    "nats://ann:{s}[@127.0.0.1:1",
    "nats://ann:{s},x@127.0.0.1:1",
    "nats://ann:x,{s}@127.0.0.1:1",
    "nats://ann:{s}",
    "nats://127.0.0.1:1?user=ann&password={s}",
    "nats://127.0.0.1:1?token={s}",
    "nats://127.0.0.1:1?pasword={s}",
    "nats://127.0.0.1:1?connect_timeout={s}",
    "nats://127.0.0.1:1?nkeys_seed_str={s}",
    "nats://127.0.0.1:1?nkeys_seed_str=SU{s}",
    "nats://127.0.0.1:1?user_credentials=-----BEGIN%20{s}",
    "nats://127.0.0.1:1?password={s}",
    "nats://127.0.0.1:1?{s}",
    "nats://127.0.0.1:1?password=a@{s}",
    "nats://127.0.0.1:1?{s}=x",
    "nats://127.0.0.1:1?x=1&token={s}%FF",
    "nats://ann:{s}@127.0.0.1:1?token={s}",
    "nats://ann:{s}?password=a@127.0.0.1:1",
    "nats://ann:a?password={s}@127.0.0.1:1",
    "nats://127.0.0.1:1?token={s}&token=x",
    "nats://{s}?x@127.0.0.1:1",
    "{s}?x@127.0.0.1:1",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("as_list", [False, True])
def test_password_in_a_url(url: str, as_list: bool) -> None:
    """The error for a URL that is invalid or cannot be reached shows it without its credentials."""
    full = url.format(s=SECRET)
    assert SECRET not in failure_of([full] if as_list else full)


ENVIRONMENTS: list[dict[str, str]] = [
    {"NATS_URL": "nats://ann:{s}@127.0.0.1:1"},
    {"NATS_URL": "nats://127.0.0.1:1?token={s}"},
    {"NATS_URL": "nats://127.0.0.1:1?tokn={s}"},
    {"NATS_USER": "ann", "NATS_PASSWORD": "{s}-wrong"},
    {"NATS_USER": "ann", "NATS_PASSWORD": "{s}", "NATS_TOKEN": "{s}"},
    {"NATS_PASSWORD": "{s}"},
    {"NATS_TOKEN": "{s}"},
    {"NATS_NKEY": "S" + "A" * 57 + "{s}"},
    {"NATS_CREDS": "-----BEGIN NATS USER JWT-----\n{s}\n------END NATS USER JWT------"},
    {"NATS_CREDS": "-----BEGIN {s}", "NATS_NKEY": "{s}"},
]


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=lambda environ: "+".join(environ))
def test_secret_in_the_environment(
    environ: dict[str, str], server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error over a variable names the variable or the setting and not its value."""
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value.format(s=SECRET))
    assert SECRET not in failure_of(*([] if "NATS_URL" in environ else [server.url]))


CONTEXTS = [
    '{"user": "ann", "password": "{s}-wrong"}',
    '{"token": "{s}"}',
    '{"user": "ann", "password": "{s}", "token": "{s}"}',
    '{"creds": "data:;base64,{s}"}',
    '{"creds": "env://{s}"}',
    '{"nkey": "env://HIDDEN"}',
    '{"user_jwt": "{s}", "user_seed": "SU{s}"}',
    '{"url": "nats://ann:{s}@127.0.0.1:x"}',
    '{"password": "{s}"',
    '"{s}"',
    '{"user": {"{s}": 1}}',
    '{"nsc": "{s}"}',
]


@pytest.mark.parametrize("text", CONTEXTS)
def test_secret_in_a_context(
    text: str, server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A context that is malformed, or that the server refuses: the error shows nothing of its contents."""
    path = tmp_path / "context.json"
    path.write_text(text.replace("{s}", SECRET))
    monkeypatch.setenv("NATS_CONTEXT", str(path))
    monkeypatch.setenv("HIDDEN", "SU" + SECRET)
    assert SECRET not in failure_of(*([] if "url" in text else [server.url]))


def test_sources_are_logged_without_the_values(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG the log says where each setting comes from, so that none comes from the environment in silence."""
    monkeypatch.setenv("NATS_USER", "ann")
    monkeypatch.setenv("NATS_PASSWORD", SECRET)
    with jetstream_sync.connect(f"{server.url}?name=shop"):
        pass
    [record] = [one for one in caplog.records if "settings:" in one.getMessage()]
    assert (record.name, record.levelname) == ("jetstream_sync.connection", "DEBUG")
    assert record.getMessage() == (
        "shop: settings: name from the URL, password from NATS_PASSWORD, servers from an argument, "
        "user from NATS_USER"
    )


def test_objects_and_urls_of_a_connection(server: LocalServer) -> None:
    """No repr and no property of a connection shows its credentials."""
    url = server.url.replace("nats://", f"nats://ann:{SECRET}@")
    others = gc.get_objects()  # objects of other tests, some of them incomplete
    known = set(map(id, others))
    with jetstream_sync.connect(url) as nc:
        facts = [nc.connected_url, nc.servers, nc.discovered_servers, nc.server_info, nc.stats, nc.last_error]
        assert SECRET not in repr(facts)
        assert SECRET not in repr(nc)
        mine = [one for one in gc.get_objects() if id(one) not in known]
        reprs = [repr(one) for one in mine if type(one).__module__.startswith("jetstream_sync")]
        assert any("Connection" in one for one in reprs)
        assert [one for one in reprs if SECRET in one] == []


def test_lost_and_refused_reconnect(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    """The credentials stop working: neither the errors of the reconnect nor the log show them."""
    passwords = iter([SECRET, SECRET + "-old", SECRET + "-old"])
    told: list[Exception] = []
    closed = threading.Event()
    with FaultProxy(server) as proxy:
        nc = jetstream_sync.connect(
            proxy.url,
            user="ann",
            password=lambda: next(passwords),
            error_cb=told.append,
            closed_cb=lambda _: closed.set(),
        )
        proxy.cut()
        assert closed.wait(10)
    assert told
    assert SECRET not in "".join(map(shown, told))
    with pytest.raises(NatsError) as caught:
        nc.flush()
    assert SECRET not in shown(caught.value)


def test_outage_with_credentials_in_the_url(caplog: pytest.LogCaptureFixture) -> None:
    """What the log, error_cb, last_error and NotConnectedError say of servers that are away."""
    told: list[Exception] = []
    config = f"authorization {{ user: ann, password: {SECRET} }}"
    with LocalServer(jetstream=False, config=config) as server:
        url = server.url.replace("nats://", f"nats://ann:{SECRET}@")
        quick: dict[str, Any] = {"reconnect_time_wait": 0.01, "reconnect_time_wait_max": 0.05}
        with jetstream_sync.connect(url, name="shop", error_cb=told.append, **quick) as nc:
            server.kill()
            eventually(lambda: len(told) >= 3)
            for call in (lambda: nc.request("x", timeout=0.02), lambda: nc.flush(0.02)):
                with pytest.raises(NotConnectedError) as caught:
                    call()
                assert SECRET not in shown(caught.value)
            assert nc.last_error is not None
            assert SECRET not in shown(nc.last_error)
    assert SECRET not in "".join(map(shown, told))
    assert "attempt 1 failed" in caplog.text


@pytest.mark.parametrize("kind", ["core", "push", "consume"])
def test_callback_that_raises(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The record names the message, and shows neither its payload nor its headers."""
    raised = threading.Event()

    def handle(_: object) -> None:
        raised.set()
        raise ValueError("of the callback")

    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="K", subjects=["k.>"])
        if kind == "core":
            nc.subscribe("k.>", cb=handle)
        elif kind == "push":
            js.subscribe("k.>", cb=handle)
        else:
            js.create_consumer("K", name="c").consume(handle)
        js.publish("k.1", SECRET.encode(), headers={"X-Secret": SECRET})
        assert raised.wait(10)
        eventually(lambda: "the callback raised ValueError" in caplog.text)


def test_log_of_a_reconnect_without_error_callback(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log of a lost connection names the server without its credentials."""
    with FaultProxy(server) as proxy:
        shown_url = proxy.url
        url = shown_url.replace("nats://", f"nats://ann:{SECRET}@")
        with jetstream_sync.connect(url) as nc:
            proxy.cut()
            eventually(lambda: nc.stats.reconnects == 1)
    assert f"disconnected: {shown_url} closed the connection" in caplog.text


def test_seed_and_jwt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Seeds and JWTs that the server refuses, or whose file is broken, are neither in errors nor in the log."""
    seed = new_seed()
    kit = JwtKit()
    jwt, user_seed = kit.user_jwt(expires_in=-60)
    creds, broken, seed_file = tmp_path / "user.creds", tmp_path / "broken.creds", tmp_path / "user.nk"
    creds.write_text(creds_text(jwt, user_seed))
    broken.write_text(creds_text(jwt, user_seed[:-3]))
    seed_file.write_text(seed[:-1])
    config = f"authorization {{ users: [ {{ nkey: {KeyPair(new_seed()).public_key} }} ] }}"
    with LocalServer(jetstream=False, config=config) as server:
        texts = [
            failure_of(server.url, nkeys_seed_str=seed),
            failure_of(server.url, nkeys_seed_str=seed[:-1]),
            failure_of(server.url, nkeys_seed=str(seed_file)),
            failure_of(server.url, nkeys_seed=seed),
            failure_of(server.url, user_credentials=str(creds)),
            failure_of(server.url, user_credentials=str(broken)),
            failure_of(server.url, user_credentials=creds.read_text()),
            failure_of(server.url, user_credentials=jwt),
        ]
    for text in [*texts, caplog.text]:
        for secret in (seed[:-3], user_seed[:-3], jwt):
            assert secret not in text


def test_server_that_echoes_the_credentials() -> None:
    """A server that quotes CONNECT back in its error is the server's doing: what we add shows no credentials."""

    def refuse(connection: PeerConnection) -> None:
        connection.send_info()
        connection.expect_line(b"CONNECT")
        connection.send(b"-ERR 'Authorization Violation'\r\n")

    with ScriptedPeer(refuse) as peer:
        url = peer.url.replace("nats://", f"nats://ann:{SECRET}@")
        assert SECRET not in failure_of(url)
