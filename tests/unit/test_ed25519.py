"""Ed25519 as RFC 8032 has it, in our own Python and through `cryptography`."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import time

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.net import ed25519
from jetstream_sync.net.ed25519 import SigningKey

LONG_MESSAGE = """
08b8b2b733424243760fe426a4b54908632110a66c2f6591eabd3345e3e4eb98fa6e264bf09efe12ee50f8f54e9f77b1e355
f6c50544e23fb1433ddf73be84d879de7c0046dc4996d9e773f4bc9efe5738829adb26c81b37c93a1b270b20329d658675fc
6ea534e0810a4432826bf58c941efb65d57a338bbd2e26640f89ffbc1a858efcb8550ee3a5e1998bd177e93a7363c344fe6b
199ee5d02e82d522c4feba15452f80288a821a579116ec6dad2b3b310da903401aa62100ab5d1a36553e06203b33890cc9b8
32f79ef80560ccb9a39ce767967ed628c6ad573cb116dbefefd75499da96bd68a8a97b928a8bbc103b6621fcde2beca1231d
206be6cd9ec7aff6f6c94fcd7204ed3455c68c83f4a41da4af2b74ef5c53f1d8ac70bdcb7ed185ce81bd84359d44254d9562
9e9855a94a7c1958d1f8ada5d0532ed8a5aa3fb2d17ba70eb6248e594e1a2297acbbb39d502f1a8c6eb6f1ce22b3de1a1f40
cc24554119a831a9aad6079cad88425de6bde1a9187ebb6092cf67bf2b13fd65f27088d78b7e883c8759d2c4f5c65adb7553
878ad575f9fad878e80a0c9ba63bcbcc2732e69485bbc9c90bfbd62481d9089beccf80cfe2df16a2cf65bd92dd597b0707e0
917af48bbb75fed413d238f5555a7a569d80c3414a8d0859dc65a46128bab27af87a71314f318c782b23ebfe808b82b0ce26
401d2e22f04d83d1255dc51addd3b75a2b1ae0784504df543af8969be3ea7082ff7fc9888c144da2af58429ec96031dbcad3
dad9af0dcbaaaf268cb8fcffead94f3c7ca495e056a9b47acdb751fb73e666c6c655ade8297297d07ad1ba5e43f1bca32301
651339e22904cc8c42f58c30c04aafdb038dda0847dd988dcda6f3bfd15c4b4c4525004aa06eeff8ca61783aacec57fb3d1f
92b0fe2fd1a85f6724517b65e614ad6808d6f6ee34dff7310fdc82aebfd904b01e1dc54b2927094b2db68d6f903b68401ade
bf5a7e08d78ff4ef5d63653a65040cf9bfd4aca7984a74d37145986780fc0b16ac451649de6188a7dbdf191f64b5fc5e2ab4
7b57f7f7276cd419c17a3ca8e1b939ae49e488acba6b965610b5480109c8b17b80e1b7b750dfc7598d5d5011fd2dcc5600a3
2ef5b52a1ecc820e308aa342721aac0943bf6686b64b2579376504ccc493d97e6aed3fb0f9cd71a43dd497f01f17c0e2cb37
97aa2a2f256656168e6c496afc5fb93246f6b1116398a346f1a641f3b041e989f7914f90cc2c7fff357876e506b50d334ba7
7c225bc307ba537152f3f1610e4eafe595f6d9d90d11faa933a15ef1369546868a7f3a45a96768d40fd9d03412c091c6315c
f4fde7cb68606937380db2eaaa707b4c4185c32eddcdd306705e4dc1ffc872eeee475a64dfac86aba41c0618983f8741c5ef
68d3a101e8a3b8cac60c905c15fc910840b94c00a0b9d0
"""

# RFC 8032, 7.1: seed, public key, message, signature.
VECTORS = {
    "TEST 1": (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    "TEST 2": (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "TEST 3": (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    "TEST 1024": (
        "f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5",
        "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
        LONG_MESSAGE,
        "0aab4c900501b3e24d7cdf4663326a3a87df5e4843b2cbdb67cbf6e460fec350"
        "aa5371b1508f9f4528ecea23c436d94b5e8fcd4f681e30a6ac00a9704a188a03",
    ),
    "TEST SHA(abc)": (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
}

SEED = bytes(range(32))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `cryptography` were not installed: None in sys.modules makes its import fail."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_rfc_vector_in_python(vector: tuple[str, str, str, str], without_library: None) -> None:
    """Without `cryptography` the RFC's keys and signatures come out."""
    seed, public_key, message, signature = map(bytes.fromhex, vector)
    key = SigningKey(seed)
    assert key.public_key == public_key
    assert key.sign(message) == signature
    assert isinstance(key._keys, ed25519._PythonKeys)


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_rfc_vector_with_library(vector: tuple[str, str, str, str]) -> None:
    """With `cryptography` the RFC's keys and signatures come out."""
    seed, public_key, message, signature = map(bytes.fromhex, vector)
    key = SigningKey(seed)
    assert key.public_key == public_key
    assert key.sign(message) == signature
    assert isinstance(key._keys, ed25519._LibraryKeys)


@settings(max_examples=60, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200))
def test_both_ways_agree_on_any_seed_and_message(seed: bytes, message: bytes) -> None:
    """Our Python and `cryptography` give the same bytes, and those verify."""
    python, library = ed25519._PythonKeys(seed), ed25519._library_keys(seed)
    assert library is not None
    assert python.public_key == library.public_key
    assert python.sign(message) == library.sign(message)
    Ed25519PublicKey.from_public_bytes(python.public_key).verify(python.sign(message), message)


@pytest.mark.parametrize("scalar", [0, 1, 7, 8, 9, 15, 16, 2**252, ed25519._ORDER - 1, ed25519._ORDER])
def test_times_base_equals_doubling_and_adding(scalar: int) -> None:
    """The product from the table equals the one by doubling from the highest bit down."""
    base = ed25519._addend((ed25519._BASE_X, ed25519._BASE_Y, 1, ed25519._BASE_X * ed25519._BASE_Y))
    expected = ed25519._NEUTRAL
    for bit in f"{scalar:b}":
        expected = ed25519._add(expected, ed25519._addend(expected))
        if bit == "1":
            expected = ed25519._add(expected, base)
    assert ed25519._encoded(ed25519._times_base(scalar)) == ed25519._encoded(expected)


def test_library_without_ed25519_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `cryptography` is built without Ed25519 our own Python signs."""
    expected = SigningKey(SEED).sign(b"nonce")

    def refuse(seed: bytes) -> Ed25519PrivateKey:
        raise UnsupportedAlgorithm("ed25519 is not supported by this version of OpenSSL")

    monkeypatch.setattr(Ed25519PrivateKey, "from_private_bytes", refuse)
    key = SigningKey(SEED)
    assert key.sign(b"nonce") == expected
    assert isinstance(key._keys, ed25519._PythonKeys)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_seed_of_wrong_size_refused(size: int) -> None:
    """A seed that has not 32 bytes is a ValueError that names the size."""
    with pytest.raises(ValueError, match=f"has {size}"):
        SigningKey(bytes(size))


def test_key_is_neither_shown_nor_pickled() -> None:
    """repr holds no key material and pickling is refused."""
    key = SigningKey(SEED)
    assert repr(key) == "SigningKey(...)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_signature_in_python_is_quick() -> None:
    """After the first use a signature in Python, key derivation included, takes less than 3 ms."""
    ed25519._PythonKeys(SEED).sign(b"first use builds the table")
    durations = []
    for _ in range(20):
        start = time.perf_counter()
        ed25519._PythonKeys(SEED).sign(b"nonce")
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.003


def test_import_builds_no_table_and_loads_no_library() -> None:
    """Importing the modules of authentication neither loads `cryptography` nor computes anything."""
    program = (
        "import sys; from jetstream_sync.net import auth, ed25519; "
        "assert 'cryptography' not in sys.modules; "
        "assert ed25519._base_table.cache_info().currsize == 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
