"""Certificates for the hosts of a run in a private network, by an authority of its own, in memory only."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_SINCE, _UNTIL = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2000, 9999))
"""The keys end with the run. A host's clock may be wrong."""


class HostKeys(NamedTuple):
    """What a host needs: the authority's certificate, and its own with its key. PEM texts."""

    authority: str
    certificate: str
    key: str


class NetworkKeys:
    """Issues certificates for the virtual addresses of hosts, one per address."""

    def __init__(self) -> None:
        """Make an authority."""
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tflaunch")])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._authority = _pem(
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._issued: dict[str, HostKeys] = {}

    def issue(self, address: str) -> HostKeys:
        """Return the keys of the host with this address."""
        if address not in self._issued:
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
            certificate = _pem(
                self._builder(subject, key.public_key())
                .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
                .sign(self._key, hashes.SHA256())
            )
            form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            text = key.private_bytes(serialization.Encoding.PEM, *form).decode("ascii")
            self._issued[address] = HostKeys(self._authority, certificate, text)
        return self._issued[address]

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(_SINCE).not_valid_after(_UNTIL)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
