"""The files of ssh's configuration: what they say is a way to a host, or one sentence, soon."""

from __future__ import annotations

import os
import random
import socket
import tempfile
import time
from pathlib import Path
from unittest import mock

from fuzz.borders import MEMORY, Border
from tflaunch.spec import Host
from tflaunch.transport.base import LinkError
from tflaunch.transport.ssh_config import SshConfig, Target

_BETWEEN = b"\n\0\n"  # between the file and the one that it includes
_SECONDS = 2.0
_KEYS = (
    *("Host", "Match", "Include", "HostName", "Port", "User", "IdentityFile", "IdentitiesOnly", "IdentityAgent"),
    *("ConnectTimeout", "UserKnownHostsFile", "GlobalKnownHostsFile", "HostKeyAlias", "StrictHostKeyChecking"),
    *("ProxyJump", "ProxyCommand", "CanonicalizeHostname", "CanonicalDomains", "CanonicalizeMaxDots", "Ciphers"),
    *("CanonicalizeFallbackLocal", "MACs", "KexAlgorithms", "HostKeyAlgorithms", "Tunnel", "#", "", "host", "PORT"),
)
_VALUES = (
    *("alpha", "beta", "*", "al*", "?????", "!alpha", "*a" * 20 + "b", "all", "host", "user", "final", "canonical"),
    *("!final", "exec", "originalhost", "localuser", "host=alpha", "root", "yes", "no", "always", "none", "ask"),
    *("22", "0", "-1", "65535", "65536", "9" * 5000, "\u0662\u0662", "1h30m", "5x", "1e3", "inf", "nan", "part"),
    *("p*", "**", "/dev/null", "/", "~", "~/x", "~nobody-at-all/x", "%h", "%n.x", "%%", "%", "%C", "%d/k", "${HOME}"),
    *("${NONE}", "${", "$HOME", "SSH_AUTH_SOCK", "ann@beta:22", "ssh://ann@beta:2222/", "[::1]:22", "a,b,c", "x%h"),
    *("beta,gamma", ",", "+3des-cbc", "-*", "^aes*", "aes128-ctr", '"', "'", '"a b"', "\\", "\\ ", "=", "#", "\x1b[2J"),
    *("\x85", "\u2028", "\udcff", "\x0b", "x" * 70_000, "ssh-ed25519*"),
)
_PLAIN = (
    "alpha",
    "beta",
    "al*",
    "part",
    "none",
    "yes",
    "no",
    "always",
    "22",
    "2222",
    "all",
    "final",
    "~/x",
    "%h",
    "a,b",
)
_SEPARATORS = (" ", "  ", "\t", "=", " = ", ",", "", "\r", "\f")


def generate(chance: random.Random) -> bytes:
    """Return two files of lines that are nearly right."""
    files = (b"\n".join(_line(chance) for _ in range(chance.randrange(1, 12))) for _ in range(2))
    case = bytearray(_BETWEEN.join(files))
    for _ in range(chance.choice((0, 0, 0, 1, 5))):
        case.insert(chance.randrange(len(case) + 1), chance.randrange(256))
    return bytes(case)


def _line(chance: random.Random) -> bytes:
    count = chance.choice((0, 2, 3, 4)) if chance.random() < 0.1 else 1
    words = [chance.choice(_PLAIN if chance.random() < 0.8 else _VALUES) for _ in range(count)]
    separators = [chance.choice(_SEPARATORS) if chance.random() < 0.05 else " " for _ in words]
    text = "".join(part for pair in zip(separators, words, strict=True) for part in pair)
    return f"{chance.choice(_KEYS[: None if chance.random() < 0.1 else -5])}{text}".encode("utf-8", "surrogateescape")


def check(case: bytes) -> None:
    """Resolve a host by the files; no name is looked up, and no command does anything."""
    main, _, part = case.partition(_BETWEEN)
    with tempfile.TemporaryDirectory(prefix="fuzz-ssh-", dir=MEMORY) as home:
        (Path(home) / "config").write_bytes(main)
        (Path(home) / "part").write_bytes(part)
        surroundings = {"SHELL": "/bin/false", "HOME": home}
        with mock.patch.dict(os.environ, surroundings), mock.patch.object(socket, "getaddrinfo", side_effect=OSError):
            began = time.process_time()
            _resolve(Path(home))
    assert time.process_time() - began < _SECONDS


def _resolve(home: Path) -> None:
    targets: tuple[Target, ...] = ()
    problem = ""
    try:
        target = SshConfig(home / "none", home / "config").resolve("alpha", Host())
        targets = (target, *target.jumps)
    except LinkError as error:
        problem = str(error)
    assert problem.isprintable(), problem
    assert len(problem) < 2000
    for each in targets:
        assert 1 <= each.port <= 65535
        assert "\0" not in "".join((each.address, each.user, *each.identity_files, *each.known_hosts_files))
        assert each.command.isprintable()


BORDER = Border(generate, check)
