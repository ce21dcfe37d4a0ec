"""Authentication: the fields of CONNECT that identify the client, computed for each connect and reconnect.

There are two kinds of identity. A *plain* one is user and password, or a token. A *signed* one is an nkey or a
user JWT, with a signature of the nonce in the server's INFO. A client may send one of each: a server with an
authorization callout accepts the signed identity and passes the plain one to the callout.

Secrets leave this module only in the dictionary that `connect_fields` returns. Errors name the option and the
file, never their contents.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, TypeVar

from ..errors import AuthorizationError
from .ed25519 import SIGNATURE_SIZE
from .nkeys import KeyPair

__all__ = ["Authenticator", "Credentials", "RawCredentials", "Secret", "SignatureCallback", "UserJwtCallback"]

Secret = str | Callable[[], str]
_PathLike = str | os.PathLike[str]
Credentials = _PathLike | tuple[_PathLike, _PathLike]
UserJwtCallback = Callable[[], str | bytes | bytearray]
SignatureCallback = Callable[[bytes], bytes | bytearray | str]

_T = TypeVar("_T")
_Fields = Callable[[str | None], dict[str, str]]
"""The fields of CONNECT, for the nonce that the server sent."""

# Credentials are a few KiB. A path to something else (a device, a disk image) is not read to its end.
_MAX_FILE_SIZE = 1 << 20

_BLOCK = re.compile(r"BEGIN ([A-Z ]+?) *-{3,}\s+(\S+)\s+-{3,} *END \1 *-{3,}")
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_SEED_LIKE = re.compile(r"S[A-Z2-7]{57}")


class RawCredentials(str):
    """The text of a `.creds` file, in place of its path. Its repr does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "RawCredentials(…)"


class Authenticator:
    """The credentials of a client. Thread-safe. Its repr shows no secret, and it cannot be pickled.

    `user`, `password`, `token`: a string, or a callable without arguments that is called at each connect.
    `user_credentials`: the path of a `.creds` file, or a pair (path of the JWT, path of the seed), or the text of
    such a file: RawCredentials, or a string with its BEGIN and END lines.
    `nkeys_seed`: the path of a file with an nkey seed; `nkeys_seed_str`: the seed itself. Files are read again at
    each connect, because they may have been replaced; a leading `~` is the home directory.
    `user_jwt_cb()` returns the user JWT. `signature_cb(nonce: bytes)` signs the nonce and returns the 64 bytes of
    the signature, or their base64 text (86 characters, 88 with padding; standard or URL-safe), as `str` or bytes.

    Raises `ValueError` for options that contradict each other and for files that cannot be read or are malformed;
    `TypeError` for an option of the wrong type.
    """

    __slots__ = ("_identities",)

    def __init__(
        self,
        *,
        user: Secret | None = None,
        password: Secret | None = None,
        token: Secret | None = None,
        user_credentials: Credentials | None = None,
        nkeys_seed: _PathLike | None = None,
        nkeys_seed_str: str | None = None,
        user_jwt_cb: UserJwtCallback | None = None,
        signature_cb: SignatureCallback | None = None,
    ) -> None:
        self._identities: dict[str, _Fields] = {}  # by what repr() calls them
        plain = _plain_identity(user, password, token)
        given = {
            "user_credentials": user_credentials is not None,
            "nkeys_seed": nkeys_seed is not None,
            "nkeys_seed_str": nkeys_seed_str is not None,
            "user_jwt_cb/signature_cb": user_jwt_cb is not None or signature_cb is not None,
        }
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} contradict each other: give one of them")
        if user_credentials is not None:
            kind = "credentials text" if _is_text(user_credentials) else "credentials file"
            self._identities[kind] = _from_credentials(user_credentials)
        elif nkeys_seed is not None:
            self._identities["nkey seed file"] = _from_seed_file(nkeys_seed)
        elif nkeys_seed_str is not None:
            self._identities["nkey seed"] = _from_seed(nkeys_seed_str)
        elif names:
            self._identities["JWT callback"] = _from_callbacks(user_jwt_cb, signature_cb)
        if plain is not None:
            self._identities["user/password" if token is None else "token"] = plain

    def __repr__(self) -> str:
        return f"Authenticator({', '.join(self._identities) or 'none'})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Authenticator holds secrets and cannot be pickled; connect where it is needed")

    def connect_fields(self, nonce: str | None, url_user: str | None, url_password: str | None) -> dict[str, str]:
        """The authentication fields of CONNECT for a server that sent `nonce`.

        `url_user` and `url_password` come from that server's URL, already percent-decoded; a user without a
        password is a token. They are used only when no option was given. This reads files and calls the user's
        callables, and blocks as long as they do. Raises `AuthorizationError` when a file is unreadable, when a
        callable fails or returns something else than documented, and when the server sent no nonce to sign.
        """
        fields: dict[str, str] = {}
        for fields_for in self._identities.values():
            fields |= fields_for(nonce)
        if self._identities:
            return fields
        if url_user and url_password is not None:
            return {"user": url_user, "pass": url_password}
        if url_password:
            raise AuthorizationError("the server URL has a password but no user: write nats://user:password@host")
        return {"auth_token": url_user} if url_user else {}


def describe(fields: Mapping[str, str]) -> str:
    """The credentials in `fields` of CONNECT, without their secrets: the user, the nkey, or their kind."""
    named = []
    if "pass" in fields:
        named.append(f"user {fields.get('user', '')!r} and a password")
    elif "user" in fields:
        named.append("a user without a password")  # which may be a token: not shown
    if "auth_token" in fields:
        named.append("a token")
    if "nkey" in fields:
        named.append(f"nkey {fields['nkey']}")
    if "jwt" in fields:
        named.append("a user JWT")
    return " and ".join(named) or "no credentials"


# --- plain identities ---------------------------------------------------------------------------


def _plain_identity(user: Secret | None, password: Secret | None, token: Secret | None) -> _Fields | None:
    if token is not None and (user is not None or password is not None):
        raise ValueError("token and user/password contradict each other: give one of them")
    if password is not None and user is None:
        raise ValueError("password needs user")
    fields = {"auth_token": ("token", token), "user": ("user", user), "pass": ("password", password)}
    secrets = {
        field: (option, _checked_secret(option, secret))
        for field, (option, secret) in fields.items()
        if secret is not None
    }

    def plain_fields(_nonce: str | None) -> dict[str, str]:
        return {field: _ask_secret(option, secret) for field, (option, secret) in secrets.items()}

    return plain_fields if secrets else None


def _checked_secret(option: str, secret: Secret) -> Secret:
    if not isinstance(secret, str) and not callable(secret):
        raise TypeError(f"{option} must be a str or a callable that returns one, not {type(secret).__name__}")
    if secret == "" and option != "password":
        raise ValueError(f"{option} is empty: leave it out, or pass None, to connect without it")
    return secret


def _ask_secret(option: str, secret: Secret) -> str:
    if isinstance(secret, str):
        return secret
    value = _ask(option, secret)
    if not isinstance(value, str):
        raise AuthorizationError(f"the {option} callable must return a str, it returned {type(value).__name__}")
    if not value and option != "password":
        raise AuthorizationError(f"the {option} callable returned an empty string")
    return value


def _ask(option: str, callback: Callable[..., _T], *args: bytes) -> _T:
    """Call the user's callable. AuthorizationError does not quote its error, whose text may hold the secret."""
    try:
        return callback(*args)
    except Exception as exc:
        raise AuthorizationError(f"the {option} callable raised {type(exc).__name__}") from exc


# --- signed identities --------------------------------------------------------------------------


def _from_credentials(credentials: Credentials) -> _Fields:
    if _is_text(credentials):
        return _from_text(str(credentials))
    paths = credentials if isinstance(credentials, (tuple, list)) else (credentials, credentials)
    if len(paths) != 2:
        raise ValueError("user_credentials takes one path, or a pair: path of the JWT, path of the seed")
    hint = "give the whole text of a .creds file, or its path"
    jwt_path, seed_path = (_checked_path("user_credentials", path, hint) for path in paths)

    def load() -> tuple[str, KeyPair]:
        jwt_text = _read(jwt_path)
        # A single file is read once, so that JWT and seed match even if the file is being replaced.
        seed_text = jwt_text if seed_path == jwt_path else _read(seed_path)
        return _jwt_in(jwt_text, repr(jwt_path)), _seed_in(seed_text, seed_path)

    return _from_files(load, _jwt_fields)


def _is_text(credentials: Credentials) -> bool:
    return isinstance(credentials, RawCredentials) or (isinstance(credentials, str) and "-BEGIN " in credentials)


def _from_text(text: str) -> _Fields:
    what = "the text given as user_credentials"
    return partial(_jwt_fields, (_jwt_in(text, what), _user_key(_block(text, "SEED"), what)))


def _jwt_fields(identity: tuple[str, KeyPair], nonce: str | None) -> dict[str, str]:
    jwt, key = identity
    return {"jwt": jwt, "sig": _base64url(key.sign(_required(nonce)))}


def _from_seed_file(given: _PathLike) -> _Fields:
    path = _checked_path("nkeys_seed", given, "pass a seed itself as nkeys_seed_str")
    return _from_files(lambda: _seed_in(_read(path), path), _nkey_fields)


def _from_seed(seed: str) -> _Fields:
    if not isinstance(seed, str):
        raise TypeError(f"nkeys_seed_str must be a str, not {type(seed).__name__}")
    return partial(_nkey_fields, _user_key(_block(seed, "SEED"), "nkeys_seed_str"))


def _nkey_fields(key: KeyPair, nonce: str | None) -> dict[str, str]:
    return {"nkey": key.public_key, "sig": _base64url(key.sign(_required(nonce)))}


def _from_callbacks(user_jwt_cb: UserJwtCallback | None, signature_cb: SignatureCallback | None) -> _Fields:
    if user_jwt_cb is None or signature_cb is None:
        raise ValueError("user_jwt_cb and signature_cb belong together: give both")
    if not callable(user_jwt_cb) or not callable(signature_cb):
        raise TypeError("user_jwt_cb and signature_cb must be callables")

    def fields(nonce: str | None) -> dict[str, str]:
        to_sign = _required(nonce)
        jwt = _ask("user_jwt_cb", user_jwt_cb)
        signature = _ask("signature_cb", signature_cb, to_sign)
        return {"jwt": _returned_jwt(jwt), "sig": _base64url(_returned_signature(signature))}

    return fields


def _required(nonce: str | None) -> bytes:
    if not nonce:
        raise AuthorizationError(
            "the server sent no nonce to sign: it is not set up for nkeys or JWTs; "
            "connect without them or with user and password or a token, or configure the server"
        )
    return nonce.encode()


def _base64url(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).decode("ascii").rstrip("=")


def _returned_jwt(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        # Strict decoding would raise an error that quotes the bytes.
        value = value.decode("ascii", "replace")
    if not isinstance(value, str) or not _JWT.fullmatch(value.strip()):
        raise AuthorizationError("user_jwt_cb did not return a JWT (three base64url parts joined by dots)")
    return value.strip()


def _returned_signature(value: object) -> bytes:
    """The 64 bytes of a signature that is given as bytes or as base64: its size tells which (64, or 86 to 88)."""
    if isinstance(value, (bytes, bytearray)):
        if len(value) == SIGNATURE_SIZE:
            return bytes(value)
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        text = value.strip().rstrip("=").replace("-", "+").replace("_", "/")
        try:
            signature = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            signature = b""
        if len(signature) == SIGNATURE_SIZE:
            return signature
    raise AuthorizationError("signature_cb must return the 64 bytes of an Ed25519 signature, or their base64 text")


# --- files --------------------------------------------------------------------------------------


def _from_files(load: Callable[[], _T], fields_of: Callable[[_T, str | None], dict[str, str]]) -> _Fields:
    """The fields of what `load` reads. It is read now, to check it, and again at each connect."""

    def fields(nonce: str | None) -> dict[str, str]:
        try:
            loaded = load()
        except ValueError as exc:
            raise AuthorizationError(str(exc)) from exc
        return fields_of(loaded, nonce)

    load()
    return fields


def _checked_path(option: str, path: _PathLike, hint: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{option} must be a path, not {type(path).__name__}")
    text = os.fsdecode(path)
    if not text:
        raise ValueError(f"{option} is empty: leave it out, or pass None, to connect without it")
    # If a secret were passed instead of a path, the error "no such file" would quote it.
    is_jwt = text.startswith("eyJ") and _JWT.fullmatch(text) is not None
    if is_jwt or "\n" in text or "-BEGIN " in text or _SEED_LIKE.search(text) is not None:
        raise ValueError(f"{option} takes the path of a file, not its contents: {hint}")
    return os.path.expanduser(text)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            contents = file.read(_MAX_FILE_SIZE + 1)
    except OSError as exc:
        raise ValueError(f"cannot read the credentials in {path!r}: {exc.strerror or type(exc).__name__}") from exc
    if len(contents) > _MAX_FILE_SIZE:
        raise ValueError(f"{path!r} is too large for a file of credentials")
    # Strict decoding would raise an error that quotes the contents.
    return contents.decode("utf-8", "replace")


def _jwt_in(text: str, where: str) -> str:
    jwt = _block(text, "JWT")
    if not _JWT.fullmatch(jwt):
        raise ValueError(f"{where} holds no user JWT: expected a .creds file as written by `nsc`")
    return jwt


def _seed_in(text: str, path: str) -> KeyPair:
    return _user_key(_block(text, "SEED"), repr(path))


def _block(text: str, label: str) -> str:
    """The contents of the BEGIN/END block whose name ends in `label`; of a file without blocks, the whole text."""
    blocks = {name.rpartition(" ")[2]: body for name, body in _BLOCK.findall(text)}
    return blocks.get(label, "") if blocks else text.strip()


def _user_key(seed: str, where: str) -> KeyPair:
    if not seed:
        raise ValueError(f"{where} holds no nkey seed")
    try:
        key = KeyPair(seed)
    except ValueError as exc:
        raise ValueError(f"the nkey seed in {where} is malformed: {exc}") from None
    if key.kind != "user":
        raise ValueError(f"the nkey seed in {where} is of the kind {key.kind}: a client needs a user's (SU…)")
    return key
