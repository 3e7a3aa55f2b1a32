"""Keys for a federation: an authority, the server's certificate, and a key for every node.

KEYS/ca.pem, ca.key           the authority; nodes trust ca.pem, and ca.key should be stored offline
KEYS/server.pem, server.key   the server's certificate, for the names and addresses that nodes connect to
KEYS/nodes/NAME.key, .pub     a node's key; the .key goes to the node, the .pub is registered at the server under NAME
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedatlas.errors import UsageError

DAYS = 365
LOCAL = ("127.0.0.1", "localhost")
_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH


@dataclass(frozen=True)
class KeyFolder:
    """The files of a federation's keys."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which nodes trust."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    def node_key(self, name: str) -> Path:
        """The private key of one client's node."""
        return self.folder / "nodes" / f"{name}.key"

    def public_key(self, name: str) -> Path:
        """The public key of one client's node."""
        return self.folder / "nodes" / f"{name}.pub"

    def names(self) -> list[str]:
        """Return the clients that have a key."""
        return sorted(path.stem for path in (self.folder / "nodes").glob("*.pub"))


def make_keys(
    folder: Path | str, *, hosts: Sequence[str] = ("127.0.0.1", "localhost"), nodes: Sequence[str]
) -> KeyFolder:
    """Make the authority, the server's certificate and a key for each node; files that exist are kept."""
    keys = KeyFolder(Path(folder))
    (keys.folder / "nodes").mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _authority(keys)
    if not keys.certificate.exists():
        _certify(keys, authority, hosts)
    for name in nodes:
        if not re.fullmatch(r"[\w.-]+", name):
            raise UsageError(
                f"a client's name must be letters, digits, '.', '-' or '_' to name a file; got {name!r}.",
                code="client-name",
                got=name,
            )
        if not keys.node_key(name).exists():
            private = ec.generate_private_key(ec.SECP384R1())
            _write_private(
                keys.node_key(name),
                private.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()),
            )
            public = private.public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH)
            keys.public_key(name).write_bytes(public + b"\n")
    return keys


def _authority(keys: KeyFolder) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    secret = keys.folder / "ca.key"
    if keys.authority.exists() and secret.exists():
        private = serialization.load_pem_private_key(secret.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        return private, x509.load_pem_x509_certificate(keys.authority.read_bytes())
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedatlas development authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, private)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA384())
    )
    _write_private(secret, _pem(private))
    keys.authority.write_bytes(certificate.public_bytes(_PEM))
    return private, certificate


def _certify(
    keys: KeyFolder, authority: tuple[ec.EllipticCurvePrivateKey, x509.Certificate], hosts: Sequence[str]
) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    issuer_key = authority[0].public_key()
    certificate = (
        _builder(subject, authority[1].subject, private)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority[0], hashes.SHA384())
    )
    _write_private(keys.server_key, _pem(private))
    keys.certificate.write_bytes(certificate.public_bytes(_PEM))


def _builder(subject: x509.Name, issuer: x509.Name, private: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(hours=1))
        .not_valid_after(today + datetime.timedelta(days=DAYS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; one that is there, or a link to elsewhere, is removed first."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
