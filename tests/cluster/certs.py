"""One certificate authority for a bed: certificates, and kubeconfigs that need no other file."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=7)
EARLIER = dt.timedelta(hours=1)
"""Certificates begin in the past: a clock that is set back must not make them invalid."""


class Authority:
    """Writes ``NAME.crt``, ``NAME.key`` and ``NAME.kubeconfig`` into its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("ffdl-bed", ())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        builder = builder.add_extension(usage, True)
        self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)
        self.ca_file = folder / "ca.crt"

    def issue(
        self, name: str, *, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key for a user, or for a server with these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = self._builder(_subject(user, groups), key)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Private and public key (for the tokens of ServiceAccounts)."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        private_path, public_path = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        private_path.write_bytes(_pem(key))
        public_path.write_bytes(public)
        return private_path, public_path

    def kubeconfig(self, name: str, server: str, *, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with everything inside; its only context is called ``bed``."""
        certificate, key = self.issue(name, user=user, groups=groups)
        cluster = {"server": server, "certificate-authority-data": _encoded(self.ca_file)}
        secret = {
            "client-certificate-data": _encoded(certificate),
            "client-key-data": _encoded(key),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": name, "user": secret}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name}}],
            "current-context": "bed",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config, indent=1))
        path.chmod(0o600)
        return path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLIER)
            .not_valid_after(now + LIFETIME)
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> tuple[Path, Path]:
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].touch(mode=0o600)
        paths[1].write_bytes(_pem(key))
        return paths


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
