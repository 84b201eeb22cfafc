"""known_hosts is read as OpenSSH reads it; ssh-keygen is the reference."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import paramiko
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from support.sshd import Keyring, public
from tflaunch.features.ssh.known_hosts import KnownHosts, fingerprint

pytestmark = pytest.mark.ssh


def asked(*command: str | Path) -> str:
    """Return the output of an OpenSSH program."""
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout


NAMES = some.lists(
    some.sampled_from(["alpha", "ALPHA", "al*", "!alpha", "?????", "[alpha]:2222", "[al*]:*", "beta", "10.0.0.1", "*"]),
    min_size=1,
    max_size=3,
)


@given(some.lists(NAMES, min_size=1, max_size=3), some.booleans())
@example([["alpha", "beta"]], True)
@settings(max_examples=60)
def test_known_hosts(
    tmp_path_factory: pytest.TempPathFactory, keys: Keyring, lines: Sequence[Sequence[str]], is_hashed: bool
) -> None:
    """ssh-keygen finds a line for a name exactly when we do, hashed or not."""
    path = tmp_path_factory.mktemp("known") / "known_hosts"
    key = public(keys["host-known"])
    path.write_text("".join(f"{','.join(names)} {key}\n" for names in lines))
    if is_hashed:
        asked("ssh-keygen", "-q", "-H", "-f", path)
    for name, port in (("alpha", 22), ("alpha", 2222), ("beta", 22)):
        written = name if port == 22 else f"[{name}]:{port}"
        found = [asked("ssh-keygen", "-F", each, "-f", path) for each in dict.fromkeys((written, name))]
        assert bool(KnownHosts([str(path)]).key_types(name, port)) is any(found)


def test_fingerprints(keys: Keyring) -> None:
    """They can be compared with those that ssh shows."""
    for kind in ("ed25519", "rsa", "ecdsa"):
        key = keys[f"host-{kind}"]
        loaded = paramiko.PKey.from_path(key)
        assert fingerprint(loaded.asbytes()) == asked("ssh-keygen", "-l", "-f", key).split()[1]
