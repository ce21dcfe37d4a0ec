"""An operator, its accounts and their users for tests, as JWTs that a nats-server accepts."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from jetstream_sync.net import nkeys

_UNLIMITED = -1
_CONNECTION_LIMITS = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
_ACCOUNT_LIMITS = _CONNECTION_LIMITS | {
    "conn": _UNLIMITED,
    "leaf": _UNLIMITED,
    "imports": _UNLIMITED,
    "exports": _UNLIMITED,
    "wildcards": True,
}
_JETSTREAM_LIMITS = dict.fromkeys(
    ("mem_storage", "disk_storage", "streams", "consumer", "max_ack_pending"), _UNLIMITED
)


def new_seed(prefix: int = nkeys.USER) -> str:
    """A fresh nkey seed: `nkeys.USER`, `nkeys.ACCOUNT` or `nkeys.OPERATOR`."""
    return encode_seed(prefix, os.urandom(32))


def encode_seed(prefix: int, raw_seed: bytes) -> str:
    """The text of a seed of the kind `prefix`: the letter S, the kind, the seed, a CRC-16, in base32."""
    # The five bits of the kind follow the five bits of the letter S, so they lie in two bytes.
    raw = bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3]) + raw_seed
    checksum = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + checksum).decode("ascii").rstrip("=")


def encode_jwt(claims: dict[str, Any], signer: nkeys.KeyPair) -> str:
    """`claims` as a JWT signed by `signer`, with the algorithm `ed25519-nkey`."""
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    signed = f"{_base64url_json(header)}.{_base64url_json(claims | {'iss': signer.public_key})}"
    return f"{signed}.{_base64url(signer.sign(signed.encode()))}"


def creds_text(jwt: str, seed: str) -> str:
    """The text of a `.creds` file, laid out as `nsc` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "The seed below proves this identity: keep it secret.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )


class JwtKit:
    """One operator, a system account, and one account with JetStream and no limits."""

    def __init__(self) -> None:
        self._operator = nkeys.KeyPair(new_seed(nkeys.OPERATOR))
        self._system = nkeys.KeyPair(new_seed(nkeys.ACCOUNT))
        self._account = nkeys.KeyPair(new_seed(nkeys.ACCOUNT))
        self._revocations: dict[str, int] = {}

    @property
    def account_public_key(self) -> str:
        return self._account.public_key

    def server_config(self) -> str:
        """Configuration text for a nats-server that trusts this operator and knows its accounts."""
        return (
            f"operator: {self._operator_jwt()}\n"
            f"system_account: {self._system.public_key}\n"
            "resolver: MEMORY\n"
            "resolver_preload: {\n"
            f"  {self._system.public_key}: {self._account_jwt(self._system, 'SYS', _ACCOUNT_LIMITS)}\n"
            f"  {self._account.public_key}: {self.account_jwt()}\n"
            "}\n"
        )

    def account_jwt(self) -> str:
        """The account's JWT as it is now, revocations included."""
        return self._account_jwt(
            self._account, "APP", _ACCOUNT_LIMITS | _JETSTREAM_LIMITS, revocations=self._revocations
        )

    def user_jwt(
        self,
        name: str = "user",
        *,
        expires_in: float | None = None,
        publish_allow: Sequence[str] = (),
        publish_deny: Sequence[str] = (),
        subscribe_allow: Sequence[str] = (),
        subscribe_deny: Sequence[str] = (),
    ) -> tuple[str, str]:
        """A new user of the account: its JWT and seed. A negative `expires_in` has expired already."""
        permissions = {
            "pub": _permission(publish_allow, publish_deny),
            "sub": _permission(subscribe_allow, subscribe_deny),
        }
        return self._user_jwt(self._account, name, expires_in, permissions)

    def user_creds(self, name: str = "user", **options: Any) -> str:
        """The `.creds` text of a new user of the account; options as for `user_jwt`."""
        return creds_text(*self.user_jwt(name, **options))

    def system_creds(self, name: str = "sys") -> str:
        """The `.creds` text of a new user of the system account."""
        return creds_text(*self._user_jwt(self._system, name, None, {"pub": {}, "sub": {}}))

    def revoke(self, user: str) -> tuple[str, str]:
        """Revoke a user, given by its public key, seed, or `.creds` text.

        Returns subject and payload: publishing them as a user of the system account tells a running server,
        which then ends the user's connections. `server_config()` has the revocation from now on, too.
        """
        self._revocations[_user_public_key(user)] = math.ceil(time.time())
        return f"$SYS.REQ.ACCOUNT.{self._account.public_key}.CLAIMS.UPDATE", self.account_jwt()

    def _operator_jwt(self) -> str:
        operator_claims = {"type": "operator", "version": 2, "system_account": self._system.public_key}
        return encode_jwt(_claims("OP", self._operator.public_key, operator_claims), self._operator)

    def _account_jwt(self, account: nkeys.KeyPair, name: str, limits: dict[str, Any], **fields: Any) -> str:
        account_claims = {
            "type": "account",
            "version": 2,
            "limits": limits,
            "default_permissions": {"pub": {}, "sub": {}},
        }
        return encode_jwt(_claims(name, account.public_key, account_claims | fields), self._operator)

    def _user_jwt(
        self, account: nkeys.KeyPair, name: str, expires_in: float | None, permissions: dict[str, Any]
    ) -> tuple[str, str]:
        seed = new_seed(nkeys.USER)
        user_claims = {"type": "user", "version": 2} | _CONNECTION_LIMITS | permissions
        claims = _claims(name, nkeys.KeyPair(seed).public_key, user_claims)
        if expires_in is not None:
            claims["exp"] = math.ceil(time.time() + expires_in)
        return encode_jwt(claims, account), seed


def _claims(name: str, subject: str, nats: dict[str, Any]) -> dict[str, Any]:
    return {"jti": os.urandom(16).hex(), "iat": int(time.time()), "name": name, "sub": subject, "nats": nats}


def _permission(allow: Sequence[str], deny: Sequence[str]) -> dict[str, list[str]]:
    return {key: list(subjects) for key, subjects in (("allow", allow), ("deny", deny)) if subjects}


def _user_public_key(user: str) -> str:
    if user.startswith("U"):
        return user
    seeds = [line for line in user.splitlines() if line.startswith("SU")]
    return nkeys.KeyPair(seeds[0]).public_key


def _base64url_json(value: dict[str, Any]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
