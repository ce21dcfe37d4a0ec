"""Nkeys: the text form of keys and seeds, and signing with them."""

from __future__ import annotations

import base64
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.net import nkeys
from jetstream_sync.net.nkeys import KeyPair
from tests.support.jwt import encode_seed

# Seeds and public keys as other NATS tools made them.
KNOWN_PAIRS = [
    (
        "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU",
        "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L",
    ),
    (
        "SUAEIV5COV7ADQZE52WTYHVJQRV7WKJE5J7IBBJGATJTUUT2LVFGVXDPRQ",
        "UBABIZX6SZFAKHK2KGUFD6QH53FDAH5QVCH2R5MJLFPEVYAW22QWQQCX",
    ),
    (
        "SUAP277QP7U4JMFFPVZHLJYEQJ2UHOTYVEIZJYAWRJXQLP4FRSEHYZJJOU",
        "UBO2MQV67TQTVIRV3XFTEZOACM4WLOCMCDMAWN5QVN5PI2N6JHTVDRON",
    ),
]
SEED, PUBLIC_KEY = KNOWN_PAIRS[0]


@pytest.mark.parametrize(("seed", "public_key"), KNOWN_PAIRS)
def test_public_key_of_known_seed(seed: str, public_key: str) -> None:
    """A seed gives the public key that other tools derive from it."""
    assert KeyPair(seed).public_key == public_key


@settings(max_examples=50, deadline=None)
@given(raw=st.binary(min_size=32, max_size=32))
@pytest.mark.parametrize(
    ("prefix", "letter", "kind"),
    [(nkeys.USER, "U", "user"), (nkeys.ACCOUNT, "A", "account"), (nkeys.OPERATOR, "O", "operator")],
)
def test_seed_encoded_and_read_back(prefix: int, letter: str, kind: str, raw: bytes) -> None:
    """Any seed survives its text form, which names its kind in the second letter."""
    seed = encode_seed(prefix, raw)
    key = KeyPair(seed)
    assert seed.startswith(f"S{letter}")
    assert len(seed) == 58
    assert key.kind == kind
    assert key.public_key.startswith(letter)
    assert len(key.public_key) == 56


def test_signature_verifies_with_public_key() -> None:
    """What the key signs verifies with the 32 bytes inside its public key."""
    raw_public_key = base64.b32decode(PUBLIC_KEY)[1:-2]
    signature = KeyPair(SEED).sign(b"nonce")
    Ed25519PublicKey.from_public_bytes(raw_public_key).verify(signature, b"nonce")


@pytest.mark.parametrize(
    ("seed", "complaint"),
    [
        ("", "not base32"),
        ("SU", "not base32"),
        ("S", "not base32"),
        (SEED.lower(), "not base32"),
        (SEED[:-1] + "1", "not base32"),
        (SEED[:-1] + "é", "not base32"),
        (SEED[:20] + "\n" + SEED[20:], "not base32"),
        (SEED[:-2], "checksum"),
        (SEED[:10] + ("A" if SEED[10] != "A" else "B") + SEED[11:], "checksum"),
        (PUBLIC_KEY, "58 characters"),
        (encode_seed(nkeys.USER, bytes(31)), "58 characters"),
        (nkeys.encode_public_key(nkeys.USER, bytes(33)), "begins with S"),
        (encode_seed(25 << 3, bytes(32)), "begins with S"),
    ],
)
def test_malformed_seed_refused_without_quoting_it(seed: str, complaint: str) -> None:
    """A malformed seed is a ValueError that says what is wrong and holds no part of the seed."""
    with pytest.raises(ValueError, match=complaint) as caught:
        KeyPair(seed)
    assert seed not in str(caught.value) or len(seed) < 3
    assert SEED[5:15] not in str(caught.value)


@given(position=st.integers(2, 56), letter=st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_any_wrong_character_noticed(position: int, letter: str) -> None:
    """The checksum catches every single wrong character."""
    wrong = SEED[:position] + letter + SEED[position + 1 :]
    if wrong == SEED:
        assert KeyPair(wrong).kind == "user"
    else:
        with pytest.raises(ValueError, match="not an nkey seed"):
            KeyPair(wrong)


def test_key_pair_is_neither_shown_nor_pickled() -> None:
    """repr names the kind only and pickling is refused."""
    key = KeyPair(SEED)
    assert repr(key) == "KeyPair(user)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)
