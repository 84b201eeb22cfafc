"""Whom an SSH connection trusts: host keys that a line of known_hosts accepts, and no weak algorithm."""

import base64
import hmac
import socket
import time
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import SSHCertificateBuilder, SSHCertificateType

from tflaunch.features.ssh import known_hosts
from tflaunch.features.ssh.known_hosts import KnownHosts, fingerprint, matches
from tflaunch.features.ssh.transport import KEYWORDS, Transport, allowed_algorithms
from tflaunch.transport.base import LinkError

COMMAND = "ssh -p 22 ann@alpha"
NOW = time.time()  # clock: certificates are valid for a time
OPENSSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
PRIVATE = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))  # constant: test names contain it
AUTHORITY = ed25519.Ed25519PrivateKey.generate()
RSA_AUTHORITY = rsa.generate_private_key(65537, 2048)


def text_of(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    """Return the type and base64 of the public half."""
    return key.public_key().public_bytes(*OPENSSH).decode()


def pkey(text: str) -> paramiko.PKey:
    """Return a key as paramiko receives it from a host."""
    kind, data = text.split()[:2]
    cls = {"ssh-e": paramiko.Ed25519Key, "ecdsa": paramiko.ECDSAKey, "ssh-r": paramiko.RSAKey}[kind[:5]]
    return cls(paramiko.Message(base64.b64decode(data)))


ONE = text_of(PRIVATE)
TWO = text_of(ed25519.Ed25519PrivateKey.generate())
CURVE = text_of(ec.generate_private_key(ec.SECP256R1()))
BIG = text_of(RSA_AUTHORITY)


def hashed(name: str) -> str:
    """Return a name as `HashKnownHosts yes` writes it."""
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def known(tmp_path: Path) -> Callable[..., KnownHosts]:
    """Return a function that parses these lines as a file."""

    def read(*lines: str) -> KnownHosts:
        path = tmp_path / "known_hosts"
        path.write_text("\n".join(lines))
        return KnownHosts([str(path)])

    return read


def is_known(hosts: KnownHosts, name: str = "alpha", port: int = 22, key: str = ONE) -> bool:
    try:
        hosts.check(name, port, pkey(key), COMMAND)
    except LinkError:
        return False
    return True


def the_error_of(hosts: KnownHosts, name: str = "alpha", port: int = 22, key: str = ONE) -> str:
    with pytest.raises(LinkError) as caught:
        hosts.check(name, port, pkey(key), COMMAND)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("names", "is_for"),
    [
        ("alpha", True),
        ("beta,alpha,10.0.0.1", True),
        ("al*", True),
        ("alph?", True),
        ("al*,!alpha", False),
        ("*,!beta", True),
        ("[alpha]:2222", False),
        ("al[opq]ha", False),
        (hashed("alpha"), True),
        ("|1|broken", False),
    ],
)
def test_which_lines_are_for_alpha(known: Callable[..., KnownHosts], names: str, is_for: bool) -> None:
    """As sshd(8) specifies; a name without a port is for every port."""
    assert is_known(known(f"{names} {ONE} a comment")) is is_for
    assert is_known(known(f"{names} {ONE}"), port=2222) is (is_for or names == "[alpha]:2222")


def test_another_port_and_other_lines_and_files(known: Callable[..., KnownHosts], tmp_path: Path) -> None:
    """The name is in brackets and lower case, followed by the port.

    A host may have several keys, also of one type; a missing file counts as empty.
    """
    for names in ("[alpha]:2222", "[alp*]:22?2", "[ALPHA]:2222", hashed("[alpha]:2222")):
        hosts = known(f"{names} {ONE}")
        where = [("Alpha", 2222), ("alpha", 2223), ("alpha", 22)]
        assert [is_known(hosts, *each) for each in where] == [True, False, False], names
    (tmp_path / "1").write_text(f"alpha {TWO}\nalpha {CURVE}\n")
    (tmp_path / "2").write_text(f"al* {ONE}\n")
    several = KnownHosts([str(tmp_path / name) for name in ("0", "1", "2")])
    assert [is_known(several, key=key) for key in (ONE, TWO, CURVE)] == [True] * 3


@pytest.mark.parametrize("pattern", ["*a" * 200, "*a" * 18 + "b", "a*" * 100 + "?b", "*" * 10_000 + "b"])
def test_a_pattern_takes_linear_time(pattern: str) -> None:
    assert not matches([pattern], "a" * 150 + "c")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# alpha ssh-ed25519 AAAA",
        f"#alpha {ONE}",
        "alpha",
        "alpha ssh-ed25519",
        "alpha ssh-ed25519 not-base64",
        "alpha ssh-ed25519 AAAA",
        f"alpha ssh-rsa {ONE.split()[1]}",
        "alpha 1024 35 1234567890",
        f"@unknown-marker alpha {ONE}",
        "@revoked",
    ],
)
def test_they_are_passed_over(known: Callable[..., KnownHosts], line: str) -> None:
    assert known(line).key_types("alpha", 22) == []
    assert is_known(known(line, f"\talpha  {ONE}\r"))


def test_a_host_is_asked_for_what_is_known_of_it(known: Callable[..., KnownHosts]) -> None:
    """Otherwise a host with several keys might present an unknown one; RSA has two signature algorithms.

    Where an authority is known, certificates are asked for.
    """
    hosts = known(f"alpha {CURVE}", f"@revoked alpha {TWO}", f"beta,[alpha]:7 {BIG}")
    assert hosts.key_types("alpha", 22) == ["ecdsa-sha2-nistp256"]
    assert hosts.key_types("alpha", 7) == ["rsa-sha2-512", "rsa-sha2-256", "ecdsa-sha2-nistp256"]
    assert hosts.key_types("gamma", 22) == []
    kinds = known(f"@cert-authority * {ONE}").key_types("alpha", 22)
    assert "ssh-ed25519-cert-v01@openssh.com" in kinds
    assert set(kinds) <= set(paramiko.Transport._key_info)  # type: ignore[attr-defined]  # noqa: SLF001 - listed nowhere else


def test_a_key_that_is_not_known_and_one_that_has_changed(known: Callable[..., KnownHosts], tmp_path: Path) -> None:
    """The message names the line of the old key; the command removes that."""
    file = tmp_path / "known_hosts"
    assert the_error_of(known(f"beta {ONE}"), port=2222) == (
        f"its host key {fingerprint(pkey(ONE).asbytes())} (ssh-ed25519) is not in {file} as that "
        f"of [alpha]:2222; connect once with `{COMMAND}` and compare the fingerprint"
    )
    assert the_error_of(known("", f"alpha {BIG}", f"[alpha]:2222 {TWO}"), port=2222) == (
        f"its host key has changed: ssh-ed25519 was {fingerprint(pkey(TWO).asbytes())} ({file}:3) and is "
        f"{fingerprint(pkey(ONE).asbytes())}, so another machine may be answering; only if you expect this, forget "
        f"the old key with `ssh-keygen -R '[alpha]:2222' -f {file}` and connect once with `{COMMAND}` and compare "
        "the fingerprint"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"alpha {BIG}", "(ssh-ed25519) is not in"),  # not changed: there was none of this type
        (f"al* {TWO}", "with that line removed and connect once"),  # ssh-keygen -R would refuse a pattern
        (f"@cert-authority * {ONE}", f"it shows no host certificate, and its key {fingerprint(pkey(ONE).asbytes())}"),
    ],
    ids=["another type", "a pattern", "the key of an authority"],
)
def test_what_a_line_does_not_accept(known: Callable[..., KnownHosts], line: str, words: str) -> None:
    assert words in the_error_of(known(line))


@pytest.mark.parametrize("other", [f"alpha {ONE}", ""])
def test_a_revoked_key(known: Callable[..., KnownHosts], tmp_path: Path, other: str) -> None:
    sentence = the_error_of(known(other, f"@revoked * {ONE}"))
    assert f"is revoked by {tmp_path}/known_hosts:2; do not use the host" in sentence
    assert is_known(known(f"alpha {TWO}", f"@revoked * {ONE}"), key=TWO)


def test_without_files() -> None:
    """UserKnownHostsFile may be `none` or /dev/null: no command adds a key to that."""
    for files in ([], ["/dev/null"], ["/dev/null", "/etc/ssh/ssh_known_hosts"]):
        sentence = the_error_of(KnownHosts(files))
        assert "set UserKnownHostsFile, which keeps no key now, to ~/.ssh/known_hosts" in sentence
        assert f", then connect once with `{COMMAND}`" in sentence


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No host is accepted then; one that is far too large is not read to its end."""
    with pytest.raises(LinkError, match=f"{tmp_path} cannot be read: Is a directory"):
        KnownHosts([str(tmp_path)])
    monkeypatch.setattr(known_hosts, "MAX_BYTES", 1024 * 1024)
    (tmp_path / "known_hosts").write_bytes(b"\n" * (1024 * 1024 + 1))
    with pytest.raises(LinkError, match="known_hosts is larger than 1 MiB"):
        KnownHosts([str(tmp_path / "known_hosts")])


def certificate(
    principals: list[bytes] | None = None,
    kind: SSHCertificateType = SSHCertificateType.HOST,
    authority: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey = AUTHORITY,
    begin: float = -86400,
    end: float = 86400,
    critical: bytes = b"",
) -> str:
    """Return a host certificate; ``begin`` and ``end`` in seconds from now."""
    builder = (
        SSHCertificateBuilder()
        .public_key(PRIVATE.public_key())
        .type(kind)
        .key_id(b"test")
        .valid_after(int(NOW + begin))
        .valid_before(int(NOW + end))
    )
    builder = builder.valid_principals(principals) if principals else builder.valid_for_all_principals()
    if critical:
        builder = builder.add_critical_option(critical, b"")
    return builder.sign(authority).public_bytes().decode()


@pytest.mark.parametrize("principals", [None, [b"beta", b"alpha"]])
@pytest.mark.parametrize("authority", [AUTHORITY, RSA_AUTHORITY], ids=["ed25519", "rsa"])
def test_what_an_authority_has_signed_is_right(
    known: Callable[..., KnownHosts],
    principals: list[bytes] | None,
    authority: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey,
) -> None:
    """For the names in it, or for every name if it lists none. The port does not matter."""
    hosts = known(f"@cert-authority al*,[al*]:* {text_of(authority)}")
    assert is_known(hosts, key=certificate(principals, authority=authority))
    assert is_known(hosts, port=2222, key=certificate(principals, authority=authority))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        *(
            (certificate([principal]), f"is for {principal.decode()}, not for alpha")
            for principal in (b"*", b"al*", b"?????", b"ALPHA", b"alpha,beta")
        ),
        (certificate([b"beta"]), "is for beta, not for alpha; have it certified again, or connect once with"),
        (certificate(kind=SSHCertificateType.USER), "its certificate is not one for hosts"),
        (certificate(critical=b"force-command"), "its certificate is not one for hosts"),
        (certificate(end=-1), "has expired or is not valid yet"),
        (certificate(begin=43200), "has expired or is not valid yet"),
        (certificate(authority=PRIVATE), "is signed by SHA256:"),
        (certificate(authority=RSA_AUTHORITY), "which is no @cert-authority for it"),
    ],
)
def test_what_proves_nothing(known: Callable[..., KnownHosts], key: str, words: str) -> None:
    hosts = known(f"@cert-authority alpha {text_of(AUTHORITY)}", f"@cert-authority beta {BIG}")
    assert words in the_error_of(hosts, key=key)


def test_a_wrong_signature_and_one_with_sha1(known: Callable[..., KnownHosts], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, data = certificate(authority=RSA_AUTHORITY).split()[:2]
    raw = base64.b64decode(data)

    def error_with(changed: bytes) -> str:
        return the_error_of(known(f"@cert-authority alpha {BIG}"), key=f"{kind} {base64.b64encode(changed).decode()}")

    sentence = error_with(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert sentence.startswith("its host certificate is broken; have it certified again")
    old = raw.replace(b"\0\0\0\x0crsa-sha2-512", b"\0\0\0\x07ssh-rsa").replace(
        b"\0\0\x01\x14\0\0\0\x07", b"\0\0\x01\x0f\0\0\0\x07"
    )
    assert old != raw
    monkeypatch.setattr(
        "cryptography.hazmat.primitives.serialization.SSHCertificate.verify_cert_signature", lambda _: 0
    )
    assert is_known(known(f"@cert-authority alpha {BIG}"), key=certificate(authority=RSA_AUTHORITY))
    assert "is signed with SHA-1" in error_with(old)


def test_a_revoked_authority_and_a_known_key(known: Callable[..., KnownHosts]) -> None:
    """Its signatures are rejected; where the key itself is known, the certificate is not needed."""
    authority = text_of(AUTHORITY)
    sentence = the_error_of(known(f"@cert-authority * {authority}", f"@revoked * {authority}"), key=certificate())
    assert "is revoked by" in sentence
    assert is_known(known(f"alpha {ONE}"), key=certificate(end=-1))


CIPHERS = ("aes128-ctr", "aes256-ctr", "aes128-cbc", "3des-cbc", "aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


@pytest.mark.parametrize(
    ("wish", "offered"),
    [
        ("", "aes128-gcm@openssh.com aes256-gcm@openssh.com aes128-ctr aes256-ctr"),
        ("aes256-ctr,3des-cbc", "aes256-ctr 3des-cbc"),
        ("no-such-cipher,aes256-ctr,aes256-ctr", "aes256-ctr"),
    ],
)
def test_the_user_chooses(wish: str, offered: str) -> None:
    """In the user's order, as far as paramiko supports them; weak ones only by name."""
    assert allowed_algorithms("ciphers", wish, CIPHERS) == tuple(offered.split())


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("wish", ["no-such-algorithm", "-"])
def test_nothing_to_offer_is_an_error(keyword: str, wish: str) -> None:
    """It names the keyword as users write it, and the available algorithms."""
    with pytest.raises(LinkError, match=f"^{KEYWORDS[keyword]} '.*' in ssh_config leaves nothing .* add one of alpha$"):
        allowed_algorithms(keyword, wish, ["alpha"])


def test_nothing_weak_is_offered() -> None:
    one, other = socket.socketpair()
    with one, other:
        options = Transport(one, (), {}).get_security_options()
        transport = Transport(other, (), {"hostkeyalgorithms": "ssh-ed25519", "macs": "hmac-sha2-512"})
    weak = ("cbc", "3des", "md5", "-96", "arcfour", "blowfish", "group1-", "group14-sha1", "exchange-sha1", "ssh-dss")
    offered = (*options.ciphers, *options.digests, *options.kex, *options.key_types)
    assert len(offered) > 15
    assert [name for name in offered if any(part in name for part in weak)] == []
    assert "ssh-rsa" not in offered
    assert transport.preferred_keys == ("ssh-ed25519",)
    assert transport.get_security_options().digests == ("hmac-sha2-512",)
