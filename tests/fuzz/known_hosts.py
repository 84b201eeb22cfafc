"""Known_hosts files, and keys and certificates that hosts present: accepted, or one error, quickly."""

import base64
import functools
import random
import tempfile
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import SSHCertificateBuilder, SSHCertificateType

from fuzz.borders import MEMORY, Border
from fuzz.mutations import mutate_bytes
from fuzz.stages import check_sentence, little_work
from tflaunch.features.ssh.known_hosts import KnownHosts
from tflaunch.transport.base import LinkError

_BETWEEN = b"\n\0\n"  # separates the file and what the host presents
_NAMES = (
    "alpha", "ALPHA", "al*", "?????", "!alpha", "*", "alpha,beta", "[alpha]:2222", "[al*]:*", "*a" * 30 + "b", ",",
    "|1|", "|1||", "|1|AAAA|AAAA", "|1|====|x", "|2|a|b", "#", "", "!", "!!", "\udcff", "\x1b[2J", "\x85", "a" * 5000,
)  # fmt: skip
_MARKERS = ("", "", "", "@cert-authority", "@revoked", "@other", "@")
_KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ssh-dss", "x", "", "ssh-ed25519-cert-v01@openssh.com")
_AUTHORITY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
_CURVE = ec.derive_private_key(12345, ec.SECP256R1())


def _public(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return base64.b64decode(public.split()[1])


@functools.cache
def _certificate(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    about = SSHCertificateBuilder().public_key(key.public_key()).type(SSHCertificateType.HOST).key_id(b"alpha")
    builder = about.valid_principals([b"alpha"]).valid_after(0).valid_before(2**63)
    return base64.b64decode(builder.sign(_AUTHORITY).public_bytes().split()[1])


def generate(chance: random.Random) -> bytes:
    """Return a file of almost valid lines, and an almost valid key or certificate."""
    file = b"\n".join(_line(chance) for _ in range(chance.randrange(8)))
    key = chance.choice((_KEY, _CURVE))
    blob = _mutated(_certificate(key) if chance.random() < 0.7 else _public(key), chance)
    return (file if chance.random() < 0.8 else _mutated(file, chance)) + _BETWEEN + blob


def _line(chance: random.Random) -> bytes:
    key = chance.choice((_KEY, _CURVE, _AUTHORITY))
    blob = _public(key)
    kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode() if chance.random() < 0.8 else chance.choice(_KINDS)
    text = base64.b64encode(blob if chance.random() < 0.8 else _mutated(blob, chance)).decode()
    marker = "@cert-authority" if key is _AUTHORITY and chance.random() < 0.8 else chance.choice(_MARKERS)
    name = chance.choice(_NAMES[:5] if chance.random() < 0.6 else _NAMES)
    words = [marker, name, kind, text, "a comment"]
    return " ".join(words[: chance.choice((5, 5, 5, 3, 2))]).encode("utf-8", "surrogateescape")


def _mutated(data: bytes, chance: random.Random) -> bytes:
    return mutate_bytes(data, chance) if chance.random() < 0.5 else data


def check(case: bytes) -> None:
    """Read the file, and check what a host presents, as it arrives through paramiko."""
    file, _, blob = case.partition(_BETWEEN)
    key = _shown(blob)
    with tempfile.NamedTemporaryFile(prefix="fuzz-known-", dir=MEMORY) as known:
        Path(known.name).write_bytes(file)
        with little_work():
            hosts = KnownHosts([known.name])
            for port in (22, 2222):
                hosts.key_types("alpha", port)
                if key is not None:
                    _check(hosts, port, key)


def _shown(blob: bytes) -> paramiko.PKey | None:
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey):
        try:
            return kind(paramiko.Message(blob))
        except Exception:  # noqa: BLE001 - where paramiko refuses it, the handshake ends
            continue
    return None


def _check(hosts: KnownHosts, port: int, key: paramiko.PKey) -> None:
    try:
        hosts.check("alpha", port, key, "ssh alpha")
    except LinkError as error:
        check_sentence(str(error), longest=2000)


BORDER = Border(generate, check)
