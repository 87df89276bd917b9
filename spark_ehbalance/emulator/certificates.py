"""A certificate made on the spot: an authority that exists for one run, and a certificate that it has signed."""

from __future__ import annotations

import ipaddress
import shutil
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography import x509

#: How a client on this machine may call the server.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

#: Longer than any run, and short, because nobody should get used to it.
_LIFE = timedelta(days=30)

#: A client's clock may be slow.
_BEFORE = timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """Two PEM files: the authority's certificate, for clients, and for the server its private key and its chain."""

    ca_file: Path
    server_file: Path

    def server_context(self) -> ssl.SSLContext:
        """The TLS context of the server."""
        return server_context(self.server_file)

    def client_context(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts the authority and nobody else."""
        return ssl.create_default_context(cafile=str(self.ca_file))


class TemporaryCertificate(Certificate):
    """A certificate in a folder that only this user can read."""

    @classmethod
    def made(cls, names: Iterable[str] = LOCAL_NAMES) -> TemporaryCertificate:
        """Raises ImportError without the package cryptography, OSError."""
        folder = Path(tempfile.mkdtemp(prefix="ehbalance-tls-"))
        try:
            certificate = make(folder, names)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(certificate.ca_file, certificate.server_file)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.ca_file.parent, ignore_errors=True)


def server_context(server_file: Path) -> ssl.SSLContext:
    """The TLS context of a server with this PEM file of its private key and its certificate. Raises OSError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file)
    return context


def make(folder: Path, names: Iterable[str] = LOCAL_NAMES) -> Certificate:
    """Make the files in `folder` for a server with these host names and addresses. Raises ImportError, OSError."""
    from cryptography import x509  # not needed without TLS
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Event Hubs emulator: authority of one run")])
    server = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Event Hubs emulator")])
    signing, serving = _key_usage(key_cert_sign=True, crl_sign=True), _key_usage(digital_signature=True)
    authority_certificate = (
        _builder(authority, authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing, critical=True)
        .sign(authority_key, _sha256())
    )
    certificate = (
        _builder(server, authority, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(serving, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .sign(authority_key, _sha256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made = Certificate(folder / "ca.pem", folder / "server.pem")
    made.ca_file.write_bytes(authority_certificate.public_bytes(pem))
    made.server_file.touch(mode=0o600)
    made.server_file.write_bytes(private + certificate.public_bytes(pem) + authority_certificate.public_bytes(pem))
    return made


def _builder(subject: x509.Name, issuer: x509.Name, public_key: Any) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(**used: bool) -> x509.KeyUsage:
    from cryptography import x509

    purposes = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{purpose: used.get(purpose, False) for purpose in purposes})


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
