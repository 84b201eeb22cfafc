"""Check host keys against OpenSSH's known_hosts files, see sshd(8).

Own code, as paramiko's `HostKeys` supports neither patterns with "!", nor `@revoked`, nor `@cert-authority`.
"""

import base64
import fnmatch
import hashlib
import hmac
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import SSHCertificate, SSHCertificateType

from tflaunch.transport.base import LinkError

MAX_BYTES = 16 * 1024 * 1024

_DEFAULT_PORT = 22
_REVOKED = "@revoked"
_AUTHORITY = "@cert-authority"
_HASH = "|1|"
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # signature algorithms of an ssh-rsa key
_CERTIFIED = tuple(
    f"{kind}-cert-v01@openssh.com"
    for kind in ("ssh-ed25519", *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)), *_RSA)
)


class Line(NamedTuple):
    """A line of a known_hosts file: a key ``blob`` of ``names``, in role ``marker``."""

    file: str
    number: int
    marker: str
    names: str
    kind: str
    blob: bytes


class KnownHosts:
    """The host keys known to the user and the system. Each file is read once."""

    def __init__(self, files: Sequence[str]) -> None:
        """Read files; missing files count as empty, and malformed lines are skipped.

        Raises:
            LinkError: a file cannot be read, or is larger than `MAX_BYTES`.
        """
        self._files = files
        # Files may hold thousands of hosts, and hundreds are looked up, so plain names are indexed.
        self._by_name: dict[str, list[Line]] = {}
        self._others: list[Line] = []
        for line in (line for file in files for line in _lines(file)):
            if any(sign in line.names for sign in "*?!|"):
                self._others.append(line)
                continue
            for name in line.names.split(","):
                self._by_name.setdefault(name.lower(), []).append(line)

    def key_types(self, name: str, port: int) -> list[str]:
        """Return the host key algorithms to ask for: those in known_hosts, else none."""
        found: dict[str, None] = {}
        for line in self._about(name, port):
            if line.marker == _AUTHORITY:
                found.update(dict.fromkeys(_CERTIFIED))
            elif line.marker == "":
                found.update(dict.fromkeys(_RSA if line.kind == "ssh-rsa" else (line.kind,)))
        return list(found)

    def check(self, name: str, port: int, key: paramiko.PKey, command: str, rsa_bits: int = 1024) -> None:
        """Check the key that a host presents against the known keys.

        ``name`` is the host's in known_hosts, without a port; ``command`` lets the user inspect and accept the key.

        Raises:
            LinkError: the key is unknown, differs from the known one, is revoked, or is too short.
        """
        lines = self._about(name, port)
        blob = key.asbytes()
        if isinstance(key, paramiko.RSAKey) and key.get_bits() < rsa_bits:
            least = max(rsa_bits, 2048)
            raise LinkError(f"its RSA host key has only {key.get_bits()} bits; give it one of {least} bits or more")
        _refuse_revoked(lines, blob)
        if any(line.marker == "" and line.blob == blob for line in lines):
            return
        objection = ""
        if key.public_blob is not None:
            objection = _objection(key.public_blob.key_blob, name.lower(), lines)
            if not objection:
                return
        raise LinkError(self._verdict(_with_port(name, port), lines, key, objection, command))

    def _verdict(self, name: str, lines: Sequence[Line], key: paramiko.PKey, objection: str, command: str) -> str:
        kind, shown = key.get_name(), fingerprint(key.asbytes())
        kept = self._files[0] if self._files else os.devnull  # the file to which ssh adds what the user accepts
        remedy = f"connect once with `{command}` and compare the fingerprint"
        if kept == os.devnull:  # written by tools for machines that come and go
            change = "set UserKnownHostsFile, which keeps no key now, to ~/.ssh/known_hosts in your SSH configuration"
            remedy = f"{change}, then {remedy}"
        for line in lines:
            if line.marker == "" and line.kind == kind and _covers(line, name):
                remove = f"`ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(line.file)}`"
                if not line.names.startswith(_HASH) and re.search("[*?!]", line.names):
                    remove = "that line removed"
                return (
                    f"its host key has changed: {kind} was {fingerprint(line.blob)} ({line.file}:{line.number}) "
                    f"and is {shown}, so another machine may be answering; only if you expect this, forget the old "
                    f"key with {remove} and {remedy}"
                )
        if objection:
            return f"{objection}; have it certified again, or {remedy}"
        where = "any file" if kept == os.devnull else kept
        if any(line.marker == _AUTHORITY for line in lines):
            return f"it shows no host certificate, and its key {shown} ({kind}) is not in {where}; {remedy}"
        return f"its host key {shown} ({kind}) is not in {where} as that of {name}; {remedy}"

    def _about(self, name: str, port: int) -> list[Line]:
        """Return a host's lines; as in ssh, those without a port apply to every port."""
        names = dict.fromkeys((_with_port(name, port), name.lower()))
        return [
            line
            for each in names
            for line in [*self._by_name.get(each, ()), *(line for line in self._others if _covers(line, each))]
        ]


def matches(patterns: Iterable[str], name: str) -> bool:
    """Return whether a name matches a pattern, and none that begins with "!"."""
    is_match = False
    for pattern in patterns:
        is_negated = pattern.startswith("!")
        # Only "*" and "?" are special. In its regular expression each "*" matches as little as possible without
        # backtracking: the time stays linear.
        if fnmatch.fnmatchcase(name, pattern[is_negated:].replace("[", "[[]")):
            if is_negated:
                return False
            is_match = True
    return is_match


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint of a public key as OpenSSH prints it."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def _with_port(name: str, port: int) -> str:
    return name.lower() if port == _DEFAULT_PORT else f"[{name.lower()}]:{port}"


def _lines(path: str) -> Iterator[Line]:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LinkError(f"the known host keys in {path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise LinkError(f"{path} is larger than {MAX_BYTES // 2**20} MiB, which no list of host keys is")
    for number, text in enumerate(raw.decode(errors="replace").split("\n"), 1):
        marker, *words = text.split() if text.lstrip().startswith("@") else ["", *text.split()]
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", _REVOKED, _AUTHORITY):
            continue
        names, kind, key = words[:3]
        try:
            blob = base64.b64decode(key, validate=True)
        except ValueError:
            continue
        if blob.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
            yield Line(path, number, marker, names, kind, blob)


def _covers(line: Line, name: str) -> bool:
    """Return whether a line covers a name in lower case, with its port if not 22."""
    if line.names.startswith(_HASH):
        salt, _, digest = line.names.removeprefix(_HASH).partition("|")
        try:
            return hmac.digest(base64.b64decode(salt), name.encode(), "sha1") == base64.b64decode(digest)
        except ValueError:
            return False
    return matches(line.names.lower().split(","), name)


def _refuse_revoked(lines: Sequence[Line], blob: bytes) -> None:
    for line in lines:
        if line.marker == _REVOKED and line.blob == blob:
            raise LinkError(
                f"its host key {fingerprint(blob)} is revoked by {line.file}:{line.number}; "
                "do not use the host before it has a new one"
            )


def _objection(blob: bytes, name: str, lines: Sequence[Line]) -> str:
    """Return why a certificate is invalid, or "", by OpenSSH's sshkey_cert_check_host."""
    kind_end = 4 + int.from_bytes(blob[:4], "big")
    try:
        certificate = serialization.load_ssh_public_identity(blob[4:kind_end] + b" " + base64.b64encode(blob))
        assert isinstance(certificate, SSHCertificate)
        authority = certificate.signature_key()
        certificate.verify_cert_signature()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return "its host certificate is broken"
    public = authority.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    authority_blob = base64.b64decode(public.split()[1])
    _refuse_revoked(lines, authority_blob)
    if not any(line.marker == _AUTHORITY and line.blob == authority_blob for line in lines):
        return f"its host certificate is signed by {fingerprint(authority_blob)}, which is no @cert-authority for it"
    # A SHA-1 signature proves nothing; the name of the algorithm precedes the signature and its length.
    if isinstance(authority, RSAPublicKey) and not blob[: -authority.key_size // 8 - 4].endswith(
        tuple(map(str.encode, _RSA))
    ):
        return "its host certificate is signed with SHA-1"
    if certificate.type is not SSHCertificateType.HOST or certificate.critical_options:
        return "its certificate is not one for hosts"
    if not certificate.valid_after <= time.time() < certificate.valid_before:
        return "its host certificate has expired or is not valid yet"
    principals = [principal.decode(errors="replace") for principal in certificate.valid_principals]
    if principals and name not in principals:  # no patterns here, as in OpenSSH
        return f"its host certificate is for {', '.join(principals)[:200]}, not for {name}"
    return ""
