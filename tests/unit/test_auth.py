"""The authentication part of CONNECT: what is sent, what is refused, and that no secret shows."""

from __future__ import annotations

import base64
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetstream_sync.errors import AuthorizationError
from jetstream_sync.net import nkeys
from jetstream_sync.net.auth import Authenticator, RawCredentials
from jetstream_sync.net.nkeys import KeyPair
from tests.support.jwt import creds_text, new_seed

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
PUBLIC_KEY = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJVIn0.c2lnbmF0dXJl-_---"
NONCE = "PXoWU7zWAMt75FY"
RAW_SIGNATURE = KeyPair(SEED).sign(NONCE.encode())
SIGNATURE = base64.urlsafe_b64encode(RAW_SIGNATURE).decode().rstrip("=")


def fields(authenticator: Authenticator, nonce: str | None = NONCE) -> dict[str, str]:
    return authenticator.connect_fields(nonce, None, None)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(contents: str | bytes, name: str = "user.creds") -> Path:
        path = tmp_path / name
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        return path

    return write_file


def assert_hides(error: BaseException, *secrets: str) -> None:
    """No secret in the error, what it was raised from, or what was being handled: text and attributes."""
    shown = ""
    chain: BaseException | None = error
    while chain is not None:
        shown += repr(chain) + str(chain) + repr(vars(chain)) + repr(getattr(chain, "object", ""))
        chain = chain.__cause__ or chain.__context__
    for secret in secrets:
        assert secret not in shown


# --- plain: user, password, token, URL ----------------------------------------------------------


def test_nothing_given_sends_nothing() -> None:
    """Without options and without credentials in the URL no field is sent."""
    assert fields(Authenticator()) == {}


def test_user_and_password_sent() -> None:
    """User and password go into user and pass."""
    assert fields(Authenticator(user="ann", password="pw")) == {"user": "ann", "pass": "pw"}


def test_user_without_password_sends_user_alone() -> None:
    """A user alone is a user, not a token: only in a URL does it mean a token."""
    assert fields(Authenticator(user="ann")) == {"user": "ann"}


def test_empty_password_is_a_password() -> None:
    """An empty password is sent."""
    assert fields(Authenticator(user="ann", password="")) == {"user": "ann", "pass": ""}


def test_token_sent() -> None:
    """A token goes into auth_token."""
    assert fields(Authenticator(token="t")) == {"auth_token": "t"}


def test_callables_asked_at_each_connect() -> None:
    """Callables are not called at construction, and once for each connect."""
    tokens = iter(["first", "second"])
    authenticator = Authenticator(token=lambda: next(tokens))
    assert fields(authenticator) == {"auth_token": "first"}
    assert fields(authenticator) == {"auth_token": "second"}


def test_user_and_password_from_callables() -> None:
    """user and password may each be a callable."""
    authenticator = Authenticator(user=lambda: "ann", password=lambda: "pw")
    assert fields(authenticator) == {"user": "ann", "pass": "pw"}


@pytest.mark.parametrize(
    ("url_user", "url_password", "expected"),
    [
        ("ann", "pw", {"user": "ann", "pass": "pw"}),
        ("ann", "", {"user": "ann", "pass": ""}),
        ("t0ken", None, {"auth_token": "t0ken"}),
        ("", None, {}),
        ("", "", {}),
        (None, None, {}),
    ],
)
def test_url_credentials_sent_without_options(
    url_user: str | None, url_password: str | None, expected: dict[str, str]
) -> None:
    """Credentials in the URL are user and password, or a token when there is no password."""
    assert Authenticator().connect_fields(None, url_user, url_password) == expected


@pytest.mark.parametrize(
    "options", [{"user": "bob"}, {"token": "other"}, {"nkeys_seed_str": SEED}], ids=["user", "token", "nkey"]
)
def test_url_credentials_ignored_with_options(options: dict[str, Any]) -> None:
    """An explicit option keeps the credentials in the URL from being sent."""
    authenticator = Authenticator(**options)
    assert authenticator.connect_fields(NONCE, "ann", "pw") == fields(authenticator)


def test_url_password_without_user_refused() -> None:
    """A password in the URL without a user is an error that does not show it."""
    with pytest.raises(AuthorizationError, match="no user") as caught:
        Authenticator().connect_fields(None, "", "hunter2")
    assert_hides(caught.value, "hunter2")


# --- signed: nkeys, JWTs ------------------------------------------------------------------------


def test_nkey_seed_signs_nonce() -> None:
    """A seed sends its public key and the nonce's signature in base64url without padding."""
    expected = {"nkey": PUBLIC_KEY, "sig": SIGNATURE}
    assert fields(Authenticator(nkeys_seed_str=SEED)) == expected
    assert fields(Authenticator(nkeys_seed_str=f" {SEED}\n")) == expected
    assert "=" not in SIGNATURE
    assert len(SIGNATURE) == 86


@pytest.mark.parametrize(
    "contents",
    [
        SEED,
        f"{SEED}\n",
        f"\r\n  {SEED}\r\n",
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n",
        creds_text(JWT, SEED),
    ],
    ids=["bare", "line", "crlf", "block", "creds"],
)
def test_nkey_seed_file_forms(contents: str, write: Callable[..., Path]) -> None:
    """A seed file may hold the bare seed, a BEGIN/END block, or be a whole .creds file."""
    path = write(contents)
    assert fields(Authenticator(nkeys_seed=path)) == {"nkey": PUBLIC_KEY, "sig": SIGNATURE}
    assert fields(Authenticator(nkeys_seed=str(path))) == {"nkey": PUBLIC_KEY, "sig": SIGNATURE}


@pytest.mark.parametrize(
    "contents",
    [
        creds_text(JWT, SEED),
        creds_text(JWT, SEED).replace("\n", "\r\n"),
        creds_text(JWT, SEED).rstrip(),
        creds_text(JWT, SEED).replace("-----", "---"),
        "\ufeff" + creds_text(JWT, SEED),
        creds_text(JWT, SEED)[creds_text(JWT, SEED).index("***") :] + "\n" + creds_text(JWT, SEED),
    ],
    ids=["nsc", "crlf", "no-end-of-line", "short-dashes", "bom", "seed-first"],
)
def test_credentials_file_forms(contents: str, write: Callable[..., Path]) -> None:
    """A .creds file gives JWT and signature, whatever its line ends and the order of its blocks."""
    assert fields(Authenticator(user_credentials=write(contents))) == {"jwt": JWT, "sig": SIGNATURE}


@pytest.mark.parametrize("form", [str, RawCredentials])
def test_credentials_given_as_text(form: Callable[[str], Any]) -> None:
    """The text of a .creds file does what the file does; no repr shows it."""
    text = form(creds_text(JWT, SEED))
    authenticator = Authenticator(user_credentials=text)
    assert fields(authenticator) == {"jwt": JWT, "sig": SIGNATURE}
    assert repr(authenticator) == "Authenticator(credentials text)"
    assert SEED not in repr(RawCredentials(creds_text(JWT, SEED)))


@pytest.mark.parametrize("decorated", [True, False])
def test_credentials_pair(decorated: bool, write: Callable[..., Path]) -> None:
    """JWT and seed may stand in two files, bare or in blocks."""
    both = creds_text(JWT, SEED)
    jwt_path = write(both if decorated else f"{JWT}\n", "user.jwt")
    seed_path = write(both if decorated else f"{SEED}\n", "user.nk")
    assert fields(Authenticator(user_credentials=(jwt_path, str(seed_path)))) == {
        "jwt": JWT,
        "sig": SIGNATURE,
    }


def test_home_directory_expanded(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A leading ~ in a path is the home directory."""
    path = write(SEED, "user.nk")
    monkeypatch.setenv("HOME", str(path.parent))
    assert fields(Authenticator(nkeys_seed="~/user.nk"))["nkey"] == PUBLIC_KEY


def test_files_read_again_at_each_connect(write: Callable[..., Path]) -> None:
    """A rotated file is noticed at the next connect."""
    other_seed = new_seed()
    path = write(creds_text(JWT, SEED))
    authenticator = Authenticator(user_credentials=path)
    first = fields(authenticator)
    write(creds_text(JWT + "2", other_seed))
    second = fields(authenticator)
    assert first == {"jwt": JWT, "sig": SIGNATURE}
    assert second["jwt"] == JWT + "2"
    assert second["sig"] != SIGNATURE


@pytest.mark.parametrize(
    "returned",
    [
        RAW_SIGNATURE,
        bytearray(RAW_SIGNATURE),
        SIGNATURE,
        SIGNATURE.encode(),
        base64.b64encode(RAW_SIGNATURE),
        base64.b64encode(RAW_SIGNATURE).decode(),
        base64.urlsafe_b64encode(RAW_SIGNATURE) + b"\n",
    ],
)
def test_signature_callback_forms(returned: bytes | bytearray | str) -> None:
    """signature_cb may return raw bytes or base64 of either alphabet; what is sent is the same."""
    authenticator = Authenticator(user_jwt_cb=lambda: JWT, signature_cb=lambda nonce: returned)
    assert fields(authenticator) == {"jwt": JWT, "sig": SIGNATURE}


@pytest.mark.parametrize("returned", [JWT, JWT.encode(), bytearray(JWT.encode()), f"{JWT}\n"])
def test_jwt_callback_forms(returned: str | bytes | bytearray) -> None:
    """user_jwt_cb may return text or bytes; surrounding white space is dropped."""
    authenticator = Authenticator(user_jwt_cb=lambda: returned, signature_cb=KeyPair(SEED).sign)
    assert fields(authenticator) == {"jwt": JWT, "sig": SIGNATURE}


def test_signature_callback_gets_nonce_as_bytes() -> None:
    """signature_cb is called with the bytes of the nonce, once for each connect."""
    nonces: list[bytes] = []

    def sign(nonce: bytes) -> bytes:
        nonces.append(nonce)
        return RAW_SIGNATURE

    authenticator = Authenticator(user_jwt_cb=lambda: JWT, signature_cb=sign)
    fields(authenticator)
    fields(authenticator, "other")
    assert nonces == [NONCE.encode(), b"other"]


@pytest.mark.parametrize(
    "returned",
    [b"", RAW_SIGNATURE[:-1], RAW_SIGNATURE + b"x", SIGNATURE[:-2], SIGNATURE[:-1] + "!", "é" * 64, None, 64],
    ids=["empty", "short", "long", "short text", "no base64", "no ascii", "none", "number"],
)
def test_signature_callback_returns_no_signature(returned: Any) -> None:
    """Anything that is no signature is an AuthorizationError that says what is wanted."""
    authenticator = Authenticator(user_jwt_cb=lambda: JWT, signature_cb=lambda nonce: returned)
    with pytest.raises(AuthorizationError, match="64 bytes"):
        fields(authenticator)


@pytest.mark.parametrize("returned", ["", "jwt", "a.b", f"{JWT} {JWT}", b"\xff.\xff.\xff", None, 5])
def test_jwt_callback_returns_no_jwt(returned: Any) -> None:
    """Anything that is no JWT is an AuthorizationError that says what is wanted."""
    authenticator = Authenticator(user_jwt_cb=lambda: returned, signature_cb=KeyPair(SEED).sign)
    with pytest.raises(AuthorizationError, match="did not return a JWT"):
        fields(authenticator)


@pytest.mark.parametrize("nonce", [None, ""])
@pytest.mark.parametrize("kind", ["nkey", "file", "creds", "callbacks"])
def test_nonce_missing_where_needed(nonce: str | None, kind: str, write: Callable[..., Path]) -> None:
    """A server without a nonce cannot check a signature: an AuthorizationError says so."""
    options: dict[str, dict[str, Any]] = {
        "nkey": {"nkeys_seed_str": SEED},
        "file": {"nkeys_seed": write(SEED, "user.nk")},
        "creds": {"user_credentials": write(creds_text(JWT, SEED))},
        "callbacks": {"user_jwt_cb": lambda: JWT, "signature_cb": KeyPair(SEED).sign},
    }
    with pytest.raises(AuthorizationError, match="no nonce"):
        fields(Authenticator(**options[kind]), nonce)


def test_plain_and_signed_together(write: Callable[..., Path]) -> None:
    """A token or a user beside credentials is sent with them, as an authorization callout wants it."""
    creds = write(creds_text(JWT, SEED))
    signed = {"jwt": JWT, "sig": SIGNATURE}
    assert fields(Authenticator(user_credentials=creds, token="t")) == signed | {"auth_token": "t"}
    with_user = Authenticator(user_credentials=creds, user="ann", password="pw")
    assert fields(with_user) == signed | {"user": "ann", "pass": "pw"}


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"token": "t", "user": "ann"}, "token and user/password"),
        ({"token": "t", "password": "hunter2"}, "token and user/password"),
        ({"password": "hunter2"}, "password needs user"),
        ({"user": ""}, "user is empty"),
        ({"token": ""}, "token is empty"),
        ({"nkeys_seed": "a", "nkeys_seed_str": SEED}, "nkeys_seed and nkeys_seed_str"),
        ({"user_credentials": "a", "nkeys_seed_str": SEED}, "user_credentials and nkeys_seed_str"),
        ({"user_credentials": "a", "nkeys_seed": "b"}, "user_credentials and nkeys_seed"),
        ({"user_credentials": "a", "signature_cb": len}, "user_credentials and user_jwt_cb"),
        ({"nkeys_seed_str": SEED, "user_jwt_cb": str}, "nkeys_seed_str and user_jwt_cb"),
        ({"user_jwt_cb": str}, "belong together"),
        ({"signature_cb": len}, "belong together"),
        ({"user_credentials": ""}, "user_credentials is empty"),
        ({"nkeys_seed": ""}, "nkeys_seed is empty"),
        ({"nkeys_seed_str": ""}, "holds no nkey seed"),
        ({"user_credentials": ("a",)}, "a pair"),
        ({"user_credentials": ("a", "b", "c")}, "a pair"),
        ({"nkeys_seed_str": SEED[:-1]}, "nkeys_seed_str is malformed"),
        ({"nkeys_seed_str": PUBLIC_KEY}, "nkeys_seed_str is malformed"),
        ({"nkeys_seed_str": new_seed(nkeys.ACCOUNT)}, "kind account"),
        ({"nkeys_seed": SEED}, "not its contents: pass a seed itself as nkeys_seed_str"),
        ({"user_credentials": JWT}, "not its contents: give the whole text"),
        ({"user_credentials": RawCredentials("")}, "holds no user JWT"),
        ({"user_credentials": RawCredentials(SEED)}, "holds no user JWT"),
        ({"user_credentials": RawCredentials(creds_text(JWT, SEED[:-1]))}, "user_credentials is malformed"),
        ({"user_credentials": "-----BEGIN " + SEED}, "holds no user JWT"),
        ({"user_credentials": (JWT, SEED)}, "not its contents"),
        ({"user_credentials": ("a", SEED)}, "not its contents"),
    ],
)
def test_options_refused_at_construction(options: dict[str, Any], complaint: str) -> None:
    """Contradictory, incomplete or malformed options are a ValueError that shows no secret."""
    with pytest.raises(ValueError, match=complaint) as caught:
        Authenticator(**options)
    assert_hides(caught.value, SEED, SEED[:-1], JWT, "hunter2")


@pytest.mark.parametrize(
    "options",
    [
        {"user": 5},
        {"user": b"ann"},
        {"user": "ann", "password": 5},
        {"token": b"t"},
        {"nkeys_seed": 5},
        {"nkeys_seed_str": SEED.encode()},
        {"user_credentials": 5},
        {"user_credentials": ("a", None)},
        {"user_jwt_cb": JWT, "signature_cb": len},
        {"user_jwt_cb": str, "signature_cb": "sig"},
    ],
)
def test_options_of_wrong_type(options: dict[str, Any]) -> None:
    """An option of the wrong type is a TypeError that names it and shows no secret."""
    with pytest.raises(TypeError, match=list(options)[-1].split("_cb")[0]) as caught:
        Authenticator(**options)
    assert_hides(caught.value, SEED, JWT)


MALFORMED_CREDENTIALS = {
    "empty": ("", "holds no user JWT"),
    "seed alone": (SEED, "holds no user JWT"),
    "jwt alone": (JWT, "malformed"),
    "seed block alone": (
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n",
        "holds no user JWT",
    ),
    "jwt block alone": (
        f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------\n",
        "holds no nkey seed",
    ),
    "cut off": (creds_text(JWT, SEED)[:-150], "holds no nkey seed"),
    "broken seed": (creds_text(JWT, SEED[:-1] + "7"), "malformed"),
    "broken jwt": (creds_text(JWT.replace(".", ""), SEED), "holds no user JWT"),
    "account seed": (creds_text(JWT, new_seed(nkeys.ACCOUNT)), "kind account"),
    "not text": (b"\xff\xfe\x00" + SEED.encode(), "holds no user JWT"),
    "too large": (b"x" * (1 << 20) + SEED.encode(), "too large"),
}


@pytest.mark.parametrize(
    ("contents", "complaint"), MALFORMED_CREDENTIALS.values(), ids=MALFORMED_CREDENTIALS.keys()
)
def test_credentials_file_malformed(contents: str | bytes, complaint: str, write: Callable[..., Path]) -> None:
    """A malformed file is a ValueError at construction, an AuthorizationError at connect; none quotes it."""
    path = write(creds_text(JWT, SEED))
    authenticator = Authenticator(user_credentials=path)
    write(contents)
    with pytest.raises(ValueError, match=complaint) as at_construction:
        Authenticator(user_credentials=path)
    with pytest.raises(AuthorizationError, match=complaint) as at_connect:
        fields(authenticator)
    for error in (at_construction.value, at_connect.value):
        assert str(path) in str(error)
        assert_hides(error, SEED, SEED[2:-1], JWT, JWT.replace(".", ""))


def test_file_missing(tmp_path: Path, write: Callable[..., Path]) -> None:
    """A missing file is named, at construction by a ValueError and at connect by an AuthorizationError."""
    with pytest.raises(ValueError, match=r"cannot read .*absent\.creds.*No such file"):
        Authenticator(user_credentials=tmp_path / "absent.creds")
    with pytest.raises(ValueError, match="Is a directory"):
        Authenticator(nkeys_seed=tmp_path)
    path = write(SEED, "user.nk")
    authenticator = Authenticator(nkeys_seed=path)
    path.unlink()
    with pytest.raises(AuthorizationError, match=r"cannot read .*user\.nk.*No such file"):
        fields(authenticator)


@pytest.mark.parametrize("option", ["user", "password", "token", "user_jwt_cb", "signature_cb"])
def test_callable_raises(option: str) -> None:
    """What a callable raises is the cause of an AuthorizationError that names the option and not its text."""
    problem = RuntimeError("vault said: hunter2")

    def fail(*_: object) -> str:
        raise problem

    options: dict[str, Any] = {
        "password": {"user": "ann"},
        "user_jwt_cb": {"signature_cb": KeyPair(SEED).sign},
        "signature_cb": {"user_jwt_cb": lambda: JWT},
    }.get(option, {})
    with pytest.raises(AuthorizationError, match=f"the {option} callable raised RuntimeError") as caught:
        fields(Authenticator(**options, **{option: fail}))
    assert caught.value.__cause__ is problem
    assert "hunter2" not in str(caught.value)


def test_callable_interrupted() -> None:
    """KeyboardInterrupt in a callable is not turned into another error."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fields(Authenticator(token=interrupted))


@pytest.mark.parametrize(
    ("returned", "complaint"), [(None, "returned NoneType"), (b"t", "returned bytes"), ("", "empty string")]
)
def test_callable_returns_no_text(returned: Any, complaint: str) -> None:
    """A callable that returns no text is an AuthorizationError that says what came."""
    with pytest.raises(AuthorizationError, match=complaint):
        fields(Authenticator(token=lambda: returned))


# --- secrets ------------------------------------------------------------------------------------


def test_repr_names_kinds_only(write: Callable[..., Path]) -> None:
    """repr() names the kind of credentials and shows no secret."""
    creds = write(creds_text(JWT, SEED))
    shown = {
        "Authenticator(none)": Authenticator(),
        "Authenticator(user/password)": Authenticator(user="ann", password="pw"),
        "Authenticator(token)": Authenticator(token="t"),
        "Authenticator(nkey seed)": Authenticator(nkeys_seed_str=SEED),
        "Authenticator(nkey seed file)": Authenticator(nkeys_seed=creds),
        "Authenticator(credentials file)": Authenticator(user_credentials=creds),
        "Authenticator(credentials file, token)": Authenticator(user_credentials=creds, token="t"),
        "Authenticator(JWT callback)": Authenticator(user_jwt_cb=str, signature_cb=len),
    }
    for expected, authenticator in shown.items():
        assert repr(authenticator) == str(authenticator) == f"{authenticator}" == expected


def test_pickle_and_copy_refused() -> None:
    """An Authenticator can neither be pickled nor copied."""
    authenticator = Authenticator(user="ann", password="pw")
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            duplicate(authenticator)
