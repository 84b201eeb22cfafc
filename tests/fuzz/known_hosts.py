"""Known_hosts files, and keys and certificates that hosts present: accepted, or one error, quickly."""

from __future__ import annotations

import base64
import functools
import random
import tempfile
import time
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import SSHCertificateBuilder, SSHCertificateType

from fuzz.borders import MEMORY, Border
from tflaunch.features.ssh.known_hosts import KnownHosts
from tflaunch.transport.base import LinkError

_BETWEEN = b"\n\0\n"  # separates the file and what the host presents
_SECONDS = 2.0
_NAMES = (
    *("alpha", "ALPHA", "al*", "?????", "!alpha", "*", "alpha,beta", "[alpha]:2222", "[al*]:*", "*a" * 30 + "b", ","),
    *(
        "|1|",
        "|1||",
        "|1|AAAA|AAAA",
        "|1|====|x",
        "|2|a|b",
        "#",
        "",
        "!",
        "!!",
        "\udcff",
        "\x1b[2J",
        "\x85",
        "a" * 5000,
    ),
)
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
    builder = (
        SSHCertificateBuilder()
        .public_key(key.public_key())
        .type(SSHCertificateType.HOST)
        .key_id(b"alpha")
        .valid_principals([b"alpha"])
        .valid_after(0)
        .valid_before(2**63)
    )
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
    changed = bytearray(data)
    for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 8))):
        place = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = chance.randrange(256)
        elif kind == 1:
            changed.insert(place, chance.randrange(256))
        elif kind == 2:
            del changed[place : place + chance.choice((1, 4, 40))]
        else:
            changed[place : place + 4] = chance.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1", b"\x7f\xff\xff\xff")
            )
    return bytes(changed)


def check(case: bytes) -> None:
    """Read the file, and check what a host presents, as it arrives through paramiko."""
    file, _, blob = case.partition(_BETWEEN)
    key = _shown(blob)
    with tempfile.NamedTemporaryFile(prefix="fuzz-known-", dir=MEMORY) as known:
        Path(known.name).write_bytes(file)
        began = time.process_time()
        hosts = KnownHosts([known.name])
        for port in (22, 2222):
            hosts.key_types("alpha", port)
            if key is not None:
                _check(hosts, port, key)
    assert time.process_time() - began < _SECONDS


def _shown(blob: bytes) -> paramiko.PKey | None:
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey):
        try:
            return kind(paramiko.Message(blob))
        except Exception:  # noqa: BLE001 - where paramiko refuses it, the handshake ends
            continue
    return None


def _check(hosts: KnownHosts, port: int, key: paramiko.PKey) -> None:
    problem = ""
    try:
        hosts.check("alpha", port, key, "ssh alpha")
    except LinkError as error:
        problem = str(error)
    assert problem.isprintable(), problem
    assert len(problem) < 2000


BORDER = Border(generate, check)
