"""What is read here in place of OpenSSH is read as OpenSSH reads it: ssh and ssh-keygen are asked."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import paramiko
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from install import need
from sshd import Keyring, public
from tflaunch.spec import Host
from tflaunch.transport.base import LinkError
from tflaunch.transport.known_hosts import KnownHosts, fingerprint
from tflaunch.transport.ssh_config import SshConfig

pytestmark = pytest.mark.ssh

HOSTS = ("alpha", "beta", "Gamma")
PATTERNS = some.sampled_from(["alpha", "a*", "*a", "????", "!beta", "*", "!*mm*", "Gamma", "gamma", "other", "[ab]*"])
LINES = some.sampled_from(
    ["User ann", "User=bob", "Port 1", 'port "2" # two', "HostName %h.example", "HostName other", "ConnectTimeout 1m"]
)
CRITERIA = some.one_of(
    some.tuples(some.sampled_from(["host", "originalhost", "!host", "!originalhost"]), PATTERNS, PATTERNS).map(
        lambda parts: f"{parts[0]} {parts[1]},{parts[2]}"
    ),
    some.sampled_from(["user ann", "!user b*", "user root,bob", "localuser nobody", "!localuser nobody", "final"]),
    some.sampled_from(["host other,*.example", "host *.example", "!final"]),
)
HEADS = some.one_of(
    some.lists(PATTERNS, min_size=1, max_size=3).map(lambda patterns: f"Host {' '.join(patterns)}"),
    some.lists(CRITERIA, min_size=1, max_size=3).map(lambda criteria: f"Match {' '.join(criteria)}"),
    some.just("Match all"),
)
INCLUDES = some.sampled_from(["Include {folder}/1", "Include {folder}/2", "Include {folder}/[12] {folder}/none"])
FILES = some.tuples(
    some.lists(some.one_of(HEADS, LINES, INCLUDES), max_size=12),
    some.lists(some.one_of(HEADS, LINES), max_size=5),
    some.lists(some.one_of(HEADS, LINES), max_size=5),
)


def asked(*command: str | Path) -> str:
    """Return what a program of OpenSSH prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout


@given(FILES)
@example((["Host a*", "Include {folder}/1", "User ann"], ["Port 1", "Host b*", "Port 2"], []))
@example((["HostName %h.example", "Match host *.example", "Port 1"], [], []))
@example((["Match final user bob", "Port 2", "Match all", "User bob", "Port 1"], [], []))
@example((["Match user ann !final", "Match host *.example", "User ann", "Match all", "HostName %h.example"], [], []))
@example((["Match host GAMMA", "User ann", "Host gamma", "Port 1"], [], []))
@example((["Host gamma other", "User ann", "Match final", "Port 1", "Match all", "HostName other"], [], []))
@settings(max_examples=100)
def test_the_configuration(
    tmp_path_factory: pytest.TempPathFactory, files: tuple[Sequence[str], Sequence[str], Sequence[str]]
) -> None:
    """Blocks, conditions, includes within blocks: the first value wins."""
    need(["ssh"], ["openssh-client"])
    folder = tmp_path_factory.mktemp("config")
    for name, lines in zip(("config", "1", "2"), files, strict=True):
        (folder / name).write_text("\n".join(line.replace("{folder}", str(folder)) for line in lines))
    config = SshConfig(folder / "config", folder / "none")
    for host in HOSTS:
        said = dict(line.split(" ", 1) for line in asked("ssh", "-G", "-F", folder / "config", host).splitlines())
        target = config.resolve(host, Host())
        timeout = "none" if target.connect_timeout is None else f"{target.connect_timeout:g}"
        ours = (target.address.lower(), target.user, str(target.port), timeout)
        assert ours == tuple(said[key] for key in ("hostname", "user", "port", "connecttimeout"))


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
    """They can be compared with what ssh shows."""
    for kind in ("ed25519", "rsa", "ecdsa"):
        key = keys[f"host-{kind}"]
        loaded = paramiko.PKey.from_path(key)
        assert fingerprint(loaded.asbytes()) == asked("ssh-keygen", "-l", "-f", key).split()[1]


@pytest.mark.parametrize("is_hashed", [False, True])
def test_the_remedy_for_a_changed_key(tmp_path: Path, keys: Keyring, is_hashed: bool) -> None:
    """The command that is recommended makes ssh and us forget the old key, and no other."""
    old, new = public(keys["host-old"]), paramiko.PKey.from_path(keys["host-new"])
    path = tmp_path / "known hosts"
    path.write_text(f"beta {old}\n[alpha]:2222,[10.0.0.1]:2222 {old}\n")
    if is_hashed:
        asked("ssh-keygen", "-q", "-H", "-f", path)
    with pytest.raises(LinkError, match="its host key has changed") as caught:
        KnownHosts([str(path)]).check("alpha", 2222, new, "ssh alpha")
    command = str(caught.value).split("`")[1]
    assert command.startswith("ssh-keygen -R ")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    with pytest.raises(LinkError, match="is not in"):
        KnownHosts([str(path)]).check("alpha", 2222, new, "ssh alpha")
    assert KnownHosts([str(path)]).key_types("beta", 22) == ["ssh-ed25519"]
