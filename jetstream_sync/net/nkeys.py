"""Nkeys: Ed25519 keys in the text form NATS gives them.

A key is base32 without padding of: prefix, 32 bytes, CRC-16 (little endian). The prefix is chosen so that the
first letter names the kind: `U…` is a user's public key, `SU…` a user's seed.
"""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn

from .ed25519 import SEED_SIZE, SigningKey

__all__ = ["ACCOUNT", "OPERATOR", "USER", "KeyPair", "encode_public_key", "encode_seed"]

# The first five bits of the text are its first letter (A = 0 … Z = 25).
ACCOUNT = 0 << 3
OPERATOR = 14 << 3
USER = 20 << 3
_SEED = 18 << 3

_KINDS = {ACCOUNT: "account", OPERATOR: "operator", USER: "user", 13 << 3: "server", 2 << 3: "cluster"}

_SEED_PREFIX_SIZE = 2
_CHECKSUM_SIZE = 2


class KeyPair:
    """A user's, account's or operator's key, made from its seed (`SU…`, `SA…`, `SO…`).

    Thread-safe. Neither shown nor pickled. Raises `ValueError` for a malformed seed, without quoting it.
    """

    __slots__ = ("_key", "_prefix")

    def __init__(self, seed: str) -> None:
        self._prefix, raw_seed = _decode_seed(seed)
        self._key = SigningKey(raw_seed)

    def __repr__(self) -> str:
        return f"KeyPair({self.kind})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key pair holds a secret and cannot be pickled")

    @property
    def kind(self) -> str:
        """What the key belongs to: "user", "account", "operator", "server" or "cluster"."""
        return _KINDS[self._prefix]

    @property
    def public_key(self) -> str:
        """The public key as text, such as `U…` for a user."""
        return encode_public_key(self._prefix, self._key.public_key)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `message`."""
        return self._key.sign(message)


def encode_public_key(prefix: int, public_key: bytes) -> str:
    """The text of a public key of the kind `prefix` (`USER`, `ACCOUNT`, `OPERATOR`)."""
    return _encode(bytes([prefix]) + public_key)


def encode_seed(prefix: int, raw_seed: bytes) -> str:
    """The text of a seed of the kind `prefix` (`USER`, `ACCOUNT`, `OPERATOR`)."""
    # The kind's five bits follow the five bits of the letter S, across the border of two bytes.
    return _encode(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + raw_seed)


def _encode(raw: bytes) -> str:
    checksum = _checksum(raw).to_bytes(_CHECKSUM_SIZE, "little")
    return base64.b32encode(raw + checksum).decode("ascii").rstrip("=")


def _decode_seed(seed: str) -> tuple[int, bytes]:
    raw = _decode(seed)
    if len(raw) != _SEED_PREFIX_SIZE + SEED_SIZE:
        raise ValueError("not an nkey seed: a seed has 58 characters")
    first, second = raw[:_SEED_PREFIX_SIZE]
    prefix = (first & 7) << 5 | second >> 3
    if first & 0b11111000 != _SEED or prefix not in _KINDS:
        raise ValueError(
            "not an nkey seed: a seed begins with S and the letter of its kind, such as SU for a user"
        )
    return prefix, raw[_SEED_PREFIX_SIZE:]


def _decode(text: str) -> bytes:
    """The bytes of a key's text, their checksum verified and taken off."""
    # b32decode insists on padding. Its error is not chained: nothing of the key may travel with ours.
    padding = "=" * (-len(text) % 8)
    try:
        raw = base64.b32decode(text + padding)
    except ValueError:
        raw = b""
    if len(raw) <= _CHECKSUM_SIZE:
        raise ValueError("not an nkey seed: it is not base32 text")
    body, checksum = raw[:-_CHECKSUM_SIZE], raw[-_CHECKSUM_SIZE:]
    if _checksum(body) != int.from_bytes(checksum, "little"):
        raise ValueError("not an nkey seed: its checksum does not match, a character is wrong or missing")
    return body


def _checksum(data: bytes) -> int:
    return binascii.crc_hqx(data, 0)  # CRC-16/XMODEM
