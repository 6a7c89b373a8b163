"""Certificates of a SuperLink and key pairs of SuperNodes, for a trial on one machine.

They last a day. A real deployment brings its own (docs/deploy.md).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LinkCertificates:
    """Where the files of a SuperLink are."""

    authority: Path
    certificate: Path
    key: Path


def link_certificates(folder: Path) -> LinkCertificates:
    """A certificate for the loopback address and the authority that signed it; the authority's key is not kept."""
    authority_key, link_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "privfair trial")])
    authority = (
        _unsigned(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.IPAddress(ipaddress.ip_address(LOOPBACK)), x509.DNSName("localhost")]
    link = (
        _unsigned(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")]), issuer, link_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = link_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return LinkCertificates(
        _write(folder / "ca.pem", authority.public_bytes(Encoding.PEM)),
        _write(folder / "link.pem", link.public_bytes(Encoding.PEM)),
        _write(folder / "link.key", private),
    )


def node_key(folder: Path, name: str) -> Path:
    """The private key of a SuperNode, its public half beside it with the ending .pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / f"{name}.pub", public + b"\n")
    return _write(folder / name, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _write(path: Path, content: bytes) -> Path:
    """Written for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return path
