"""Nkeys: Ed25519 keys in the text form that NATS uses.

The text is base32, without padding, of a prefix, the 32 bytes of the key, and a CRC-16 (little endian). The prefix
makes the first letter name the kind: `U…` is the public key of a user, `SU…` the seed of a user.
"""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn

from .ed25519 import SEED_SIZE, SigningKey

__all__ = ["ACCOUNT", "OPERATOR", "USER", "KeyPair", "encode_public_key"]

# The first five bits become the first letter of the text (A = 0 … Z = 25).
ACCOUNT = 0 << 3
OPERATOR = 14 << 3
USER = 20 << 3
_SEED = 18 << 3

_KINDS = {ACCOUNT: "account", OPERATOR: "operator", USER: "user", 13 << 3: "server", 2 << 3: "cluster"}

_SEED_PREFIX_SIZE = 2
_CHECKSUM_SIZE = 2


class KeyPair:
    """The key pair of a user, account or operator, derived from its seed (`SU…`, `SA…`, `SO…`). Thread-safe.

    Its repr does not show the seed, and it cannot be pickled. Raises `ValueError` for a malformed seed, without
    quoting it.
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
        """The kind of the key's owner: "user", "account", "operator", "server" or "cluster"."""
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
    raw = bytes([prefix]) + public_key
    return base64.b32encode(raw + _checksum(raw)).decode("ascii").rstrip("=")


def _decode_seed(seed: str) -> tuple[int, bytes]:
    """The prefix of a seed's kind, and the seed's own 32 bytes."""
    # b32decode requires padding. Its error is not chained, because it could quote the key.
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    if len(raw) <= _CHECKSUM_SIZE:
        raise ValueError("not an nkey seed: it is not base32 text")
    raw, checksum = raw[:-_CHECKSUM_SIZE], raw[-_CHECKSUM_SIZE:]
    if _checksum(raw) != checksum:
        raise ValueError("not an nkey seed: its checksum does not match, a character is wrong or missing")
    if len(raw) != _SEED_PREFIX_SIZE + SEED_SIZE:
        raise ValueError("not an nkey seed: a seed has 58 characters")
    # The five bits of the kind follow the five bits of the letter S, so they lie in two bytes.
    first, second = raw[:_SEED_PREFIX_SIZE]
    prefix = (first & 7) << 5 | second >> 3
    if first & 0b11111000 != _SEED or prefix not in _KINDS:
        raise ValueError(
            "not an nkey seed: a seed begins with S and the letter of its kind, such as SU for a user"
        )
    return prefix, raw[_SEED_PREFIX_SIZE:]


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(_CHECKSUM_SIZE, "little")  # CRC-16/XMODEM
