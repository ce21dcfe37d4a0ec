"""Ed25519 signatures (RFC 8032) for nkey authentication, on the standard library.

A connect signs one short nonce, so the first signature must be fast: the table of multiples of the base point is
built for the first signature, not on import. If the package `cryptography` (extra `nkeys`) is installed, it is
used instead; both produce the same bytes, because Ed25519 is deterministic.

The time of arithmetic on Python integers depends on their values, so an attacker who measures many signatures
could learn about the key. A client signs once per connect; where the risk matters, install the extra `nkeys`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple, NoReturn

__all__ = ["SEED_SIZE", "SIGNATURE_SIZE", "SigningKey"]

SEED_SIZE = 32
SIGNATURE_SIZE = 64

# RFC 8032, 5.1: the field, the curve's d, the order of the base point, the base point.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_ORDER = 2**252 + 27742317777372353535851937790883648493
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960

# Extended coordinates (X, Y, Z, T): x = X/Z, y = Y/Z, x*y = T/Z.
_Point = tuple[int, int, int, int]
# A point prepared as the second operand of an addition: (Y - X, Y + X, 2dT, 2Z).
_Addend = tuple[int, int, int, int]

_NEUTRAL: _Point = (0, 1, 1, 0)


class SigningKey:
    """The key pair of a 32-byte seed. Thread-safe. Its repr does not show the seed, and it cannot be pickled.

    Raises `ValueError` for a seed of another size.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_SIZE:
            raise ValueError(f"an Ed25519 seed has {SEED_SIZE} bytes, this one has {len(seed)}")
        self._seed = seed

    def __repr__(self) -> str:
        return "SigningKey(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key is a secret and cannot be pickled")

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._keys.public_key

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message`."""
        return self._keys.sign(message)

    @functools.cached_property
    def _keys(self) -> _LibraryKeys | _PythonKeys:
        # On first use, so that checking a seed is cheap. Two threads that do so at once get the same keys.
        return _library_keys(self._seed) or _PythonKeys(self._seed)


class _LibraryKeys(NamedTuple):
    """The keys as `cryptography` derives them."""

    public_key: bytes
    sign: Callable[[bytes], bytes]


def _library_keys(seed: bytes) -> _LibraryKeys | None:
    """The keys of `cryptography`; None where it is not installed or was built without Ed25519 (FIPS)."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    except ImportError:
        return None
    try:
        private_key = Ed25519PrivateKey.from_private_bytes(seed)
    except UnsupportedAlgorithm:
        return None
    return _LibraryKeys(private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), private_key.sign)


class _PythonKeys:
    """The keys as RFC 8032, 5.1.5 derives them."""

    def __init__(self, seed: bytes) -> None:
        digest = hashlib.sha512(seed).digest()
        # Step 2: a multiple of the cofactor 8, with bit 254 as its highest.
        self._scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
        self._prefix = digest[32:]
        self.public_key = _encoded(_times_base(self._scalar))

    def sign(self, message: bytes) -> bytes:
        # RFC 8032, 5.1.6, with its names; the commitment is its R.
        r = _hash_to_scalar(self._prefix + message)
        commitment = _encoded(_times_base(r))
        k = _hash_to_scalar(commitment + self.public_key + message)
        s = (r + k * self._scalar) % _ORDER
        return commitment + s.to_bytes(32, "little")


def _hash_to_scalar(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _ORDER


def _encoded(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    sign = x * inverse % _P & 1
    return (y * inverse % _P | sign << 255).to_bytes(32, "little")


def _times_base(scalar: int) -> _Point:
    """`scalar` times the base point: one addition for each bit that is set."""
    point = _NEUTRAL
    for bit, multiple in enumerate(_base_table()):
        if scalar >> bit & 1:
            point = _add(point, multiple)
    return point


@functools.cache
def _base_table() -> list[_Addend]:
    """Element i is 2**i times the base point, for scalars below 2**255."""
    table = []
    point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)
    for _ in range(255):
        addend = _addend(point)
        table.append(addend)
        point = _add(point, addend)
    return table


def _addend(point: _Point) -> _Addend:
    x, y, z, t = point
    return (y - x) % _P, (y + x) % _P, 2 * _D * t % _P, 2 * z % _P


def _add(left: _Point, right: _Addend) -> _Point:
    # RFC 8032, 5.1.4. The formula is complete: it also covers doubling and the neutral element.
    x, y, z, t = left
    y_minus_x, y_plus_x, t2d, z2 = right
    a = (y - x) * y_minus_x % _P
    b = (y + x) * y_plus_x % _P
    c = t * t2d % _P
    d = z * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P
