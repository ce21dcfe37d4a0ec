"""Certificates for tests: a CA of our own, and what it signed, as PEM files in a directory."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class CertKit:
    """A CA (`ca_file`), certificates signed by it, and a CA that signed nothing (`other_ca_file`)."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._issued = 0
        self._ca = _Authority("Test CA")
        self.ca_file = self._write("ca.pem", _pem(self._ca.certificate))
        self.other_ca_file = self._write("other-ca.pem", _pem(_Authority("Other CA").certificate))

    def server(
        self, name: str = "localhost", ips: Sequence[str] = ("127.0.0.1",), expired: bool = False
    ) -> tuple[Path, Path]:
        """Certificate file and key file for a server of that DNS name and those addresses."""
        names = [x509.DNSName(name), *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips)]
        return self._issue(name, names, ExtendedKeyUsageOID.SERVER_AUTH, expired=expired)

    def client(self, name: str) -> tuple[Path, Path]:
        """Certificate file and key file for a client; `name` is its common name and e-mail name."""
        names = [x509.RFC822Name(f"{name}@example.com")]
        return self._issue(name, names, ExtendedKeyUsageOID.CLIENT_AUTH, expired=False)

    def server_tls_config(self, cert: Path, key: Path, verify: bool = False, handshake_first: bool = False) -> str:
        """nats-server configuration text; with `verify` clients need a certificate of our CA."""
        lines = [f"cert_file: {json.dumps(str(cert))}", f"key_file: {json.dumps(str(key))}", "timeout: 5"]
        if verify:
            lines += [f"ca_file: {json.dumps(str(self.ca_file))}", "verify: true"]
        if handshake_first:
            lines.append("handshake_first: true")
        return "tls {\n  " + "\n  ".join(lines) + "\n}\n"

    def _issue(
        self, name: str, names: Sequence[x509.GeneralName], usage: x509.ObjectIdentifier, *, expired: bool
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._ca.sign(name, names, usage, key.public_key(), expired=expired)
        self._issued += 1
        stem = f"{self._issued}-{name}"
        key_pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._write(f"{stem}.pem", _pem(certificate)), self._write(f"{stem}-key.pem", key_pem)

    def _write(self, file_name: str, pem: bytes) -> Path:
        path = self._directory / file_name
        path.touch(mode=0o600)
        path.write_bytes(pem)
        return path


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(name)
        builder = _builder(self._name, self._name, self._key.public_key(), expired=False)
        # Python 3.13 verifies strictly by RFC 5280: a CA must say that it may sign certificates.
        self.certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def sign(
        self,
        name: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        public_key: ec.EllipticCurvePublicKey,
        *,
        expired: bool,
    ) -> x509.Certificate:
        issuer_key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(_common_name(name), self._name, public_key, expired=expired)
            .add_extension(issuer_key_id, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, *, expired: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now - _DAY if expired else now + _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
