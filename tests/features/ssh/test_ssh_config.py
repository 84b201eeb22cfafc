"""How to reach a host follows from the spec, then from OpenSSH's configuration, which its client reads."""

import errno
import os
import pwd
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.needs import need
from tflaunch.features.ssh import config_lookup
from tflaunch.features.ssh.config_lookup import Values, find_lookup, parse_answer
from tflaunch.features.ssh.connectors import SshConnectors
from tflaunch.features.ssh.ssh_config import SshConfig, Target
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import LinkError

ME = pwd.getpwuid(os.getuid()).pw_name
NOTHING = Path("/nonexistent/config")

Configure = Callable[..., SshConfig]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's home directory, with a .ssh and without an agent."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / "home"


@pytest.fixture
def configured(home: Path) -> Configure:
    """Return the configuration of a user and a system."""
    need("ssh")

    def configure(text: str, system: str = "") -> SshConfig:
        (home / ".ssh" / "config").write_text(text)
        (home / "system").write_text(system)
        return SshConfig(find_lookup(home / "system"))

    return configure


def target_of(config: SshConfig, host: str = "alpha", **settings: str) -> Target:
    """Return how a host is reached, with these settings in the spec."""
    return config.resolve(HostPlan(host, is_local=False, **settings))  # type: ignore[arg-type]


def the_error_in(configure: Configure, text: str, host: str = "alpha", ssh: str | None = None) -> str:
    with pytest.raises(LinkError) as caught:
        configure(text).resolve(HostPlan(host, is_local=False, ssh=ssh))
    sentence = str(caught.value)
    assert sentence.isprintable()
    return sentence


@pytest.mark.parametrize("has_client", [True, False])
def test_without_any_configuration_the_name_is_the_address(
    home: Path, has_client: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 22, the user's own name, the default files; missing keys are not tried."""
    (home / ".ssh" / "id_rsa").touch()
    (home / ".ssh" / "id_ed25519").touch()
    if has_client:
        need("ssh")
    else:
        monkeypatch.setenv("PATH", "/nonexistent")
    config = SshConfig(find_lookup(NOTHING))
    ours = tuple(f"{home}/.ssh/{name}" for name in ("known_hosts", "known_hosts2"))
    assert target_of(config) == Target(
        host="alpha",
        address="alpha",
        port=22,
        user=ME,
        identity_files=(f"{home}/.ssh/id_ed25519", f"{home}/.ssh/id_rsa"),
        known_hosts_files=(*ours, "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
        host_key_name="alpha",
        command=f"ssh -p 22 {ME}@alpha",
    )


def test_the_spec_before_the_configuration(home: Path, configured: Configure) -> None:
    """User, port and identity file; the configuration is searched for the address, not for the name."""
    text = "Host 10.0.0.1\n HostName h.example\n User bob\n Port 1\n IdentityFile /key\nHost alpha\n Port 3\n"
    target = target_of(configured(text), ssh="ann@10.0.0.1:2222", identity_file="~/mine")
    assert (target.host, target.user, target.address, target.port) == ("alpha", "ann", "h.example", 2222)
    assert target.identity_files == (f"{home}/mine", "/key")
    assert target.is_identity_required
    assert target.command == "ssh -p 2222 ann@10.0.0.1"


def test_the_user_before_the_system(configured: Configure) -> None:
    """Even if the user's file ends within a block for other hosts; `Match user` refers to the user who logs in."""
    target = target_of(configured("User ann\nHost beta\n Port 1\n", "User bob\nPort 2\nHostName h.example\n"))
    assert (target.user, target.port, target.address) == ("ann", 2, "h.example")
    config = configured("Match user ann\n Port 1\nMatch user bob\n Port 2\n")
    assert [target_of(config, ssh=f"{name}@alpha").port for name in ("ann", "bob")] == [1, 2]


def test_the_home_of_the_user_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSH's client finds its files by itself where HOME names the same directory."""
    need("ssh")
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    assert target_of(SshConfig(), "127.0.0.1", ssh="ann@127.0.0.1:7")[1:4] == ("127.0.0.1", 7, "ann")


def test_everything_else_that_is_read(home: Path, configured: Configure) -> None:
    """Keywords in any case, with or without =, with quotes; file names with spaces."""
    text = (
        'HOSTKEYALIAS=cluster\n\tidentitiesonly = yes\nIdentityFile "/a key"\n IdentityFile none\n'
        'UserKnownHostsFile "/known hosts" /other/hosts\nGlobalKnownHostsFile none\nConnectTimeout 90\n'
        f"IdentityAgent {home}/agent.sock\nStrictHostKeyChecking yes\n"
    )
    target = target_of(configured(text))
    assert (target.host_key_name, target.identities_only, target.identity_files) == ("cluster", True, ("/a key",))
    assert target.known_hosts_files == ("/known hosts", "/other/hosts")
    assert (target.connect_timeout, target.agent) == (90.0, f"{home}/agent.sock")
    assert target.command == f"ssh -o StrictHostKeyChecking=ask -p 22 {ME}@alpha"


def test_tokens_in_names_of_key_files(home: Path, configured: Configure) -> None:
    """%h is the address; values from the spec apply as well. `ssh -G` leaves these tokens unexpanded."""
    text = "HostName %h.example\nIdentityFile ~/%h_%r_%u\nUserKnownHostsFile ${HOME}/hosts\n"
    target = target_of(configured(text), ssh="ann@beta:7")
    assert (target.address, target.identity_files) == ("beta.example", (f"{home}/beta.example_ann_{ME}",))
    assert f"{home}/hosts" in target.known_hosts_files


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("", "agent", "/agent"),
        ("IdentityAgent none", "agent", None),
        ("IdentityAgent $OTHER", "agent", "/other"),
        ("IdentityAgent /x", "agent", "/x"),
        ("Ciphers aes256-ctr", "algorithms", (("ciphers", "aes256-ctr"),)),
        ("", "algorithms", ()),
        ("RequiredRSASize 3072", "rsa_bits", 3072),
        ("", "rsa_bits", 1024),
        ("", "is_shared", False),
        ("ControlPath none", "is_shared", False),
        ("ControlPath /p", "is_shared", True),  # a shared connection is not used, which a failure says
    ],
)
def test_a_value(configured: Configure, monkeypatch: pytest.MonkeyPatch, line: str, field: str, value: object) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    monkeypatch.setenv("OTHER", "/other")
    assert getattr(target_of(configured(f"{line}\n")), field) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Port 70000", "70000"),
        ("ConnectTimeout soon", ""),
        ("HostName", ""),
        ("IdentityFile ${NO_SUCH_VARIABLE}", "${NO_SUCH_VARIABLE} in '${NO_SUCH_VARIABLE}' has no value"),
        ('Host "a', ""),
        ("Match user", "config"),
        ("ProxyJump a:99999", "ProxyJump"),
        ("RevokedHostKeys /revoked", "does not read the RevokedHostKeys of alpha; list these keys as @revoked"),
        # Plain ssh would start one ssh after the other, without end; its client finds only the shortest circle.
        ("Host alpha two\n ProxyJump one\nHost one\n ProxyJump two", "ProxyJump one leads to one again; keep it from"),
        ("ProxyJump x%h", "ProxyJump leads to alpha through more than 16 jump"),
        (
            "ProxyCommand nc -F %h %p\nProxyUseFdpass yes",  # no program would receive the descriptor
            "tflaunch cannot use a ProxyCommand with ProxyUseFdpass; set ProxyUseFdpass to no for alpha",
        ),
    ],
)
def test_nonsense_is_one_sentence(configured: Configure, line: str, words: str) -> None:
    assert words in the_error_in(configured, f"User ann\n{line}\n")


def test_a_circle_of_one_and_a_port_that_is_too_large(configured: Configure) -> None:
    assert "jumphost loop via gate" in the_error_in(configured, "Host *\n ProxyJump gate\n")
    sentence = the_error_in(configured, "", ssh="ann@alpha:70000")
    assert sentence == "`ssh` 'ann@alpha:70000' has no port from 1 to 65535"


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_file_that_others_can_write_to_is_refused(home: Path, configured: Configure, mode: int) -> None:
    configured("User ann\n")
    path = home / ".ssh" / "config"
    path.chmod(mode)
    with pytest.raises(LinkError, match="Bad owner or permissions") as caught:
        target_of(SshConfig(find_lookup(NOTHING)))
    assert str(path) in str(caught.value)
    path.chmod(0o644)
    assert target_of(SshConfig(find_lookup(NOTHING))).user == "ann"


def test_a_user_who_does_not_exist(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    config = SshConfig(find_lookup(NOTHING))
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(LinkError, match="4000000"):
        target_of(config)


def test_each_jump_host_has_its_own_configuration(configured: Configure) -> None:
    """A list is a route; the first host may have a route of its own, the others are reached through it."""
    text = (
        "Host alpha other\n ProxyJump bob@one,two:7\nHost one\n HostName 1.example\n ProxyJump zero\n"
        "Host two\n ProxyJump elsewhere\n User carl\nHost zero\n Port 5\n ProxyCommand nc %h\n"
    )
    config = configured(text)
    jumps = target_of(config).jumps
    assert [(jump.host, jump.address, jump.port, jump.user) for jump in jumps] == [
        ("zero", "zero", 5, ME),
        ("one", "1.example", 22, "bob"),
        ("two", "two", 7, "carl"),
    ]
    assert [jump.jumps for jump in jumps] == [jumps[:0], jumps[:1], jumps[:2]]
    assert [jump.proxy_command for jump in jumps] == ["nc zero", "", ""]
    assert jumps[2].command == f"ssh -J {ME}@zero:5,bob@one:22 -p 7 carl@two"
    assert target_of(config, "other").jumps == jumps  # so that connections to jump hosts can be shared


@pytest.mark.parametrize(
    ("text", "jumps", "command"),
    [
        ("ProxyJump none\nProxyJump one\n", [], ""),
        ("ProxyCommand none\nProxyJump one\n", [], ""),
        ("ProxyJump one\nProxyCommand nc\n", ["one"], ""),
        ("ProxyCommand nc -X 5 '%h' %p # %r@%n\nProxyJump one\n", [], f"nc -X 5 'alpha' 22 # {ME}@alpha"),
        ("ProxyJump ann@one:2,[::1]:3\n", ["one", "::1"], ""),
        ("ProxyJump %h-gate\n", ["alpha-gate"], ""),
    ],
)
def test_which_jump_hosts(configured: Configure, text: str, jumps: list[str], command: str) -> None:
    target = target_of(configured("Host alpha\n" + "".join(f" {line}\n" for line in text.splitlines())))
    assert [jump.address for jump in target.jumps] == jumps
    assert target.proxy_command == command


def test_the_place_of_a_mistake_is_openssh_s(home: Path, configured: Configure) -> None:
    """File and line, which are not remembered; what would be an option of ssh is refused."""
    config = configured("User ann\nPort x\n")
    with pytest.raises(LinkError) as caught:
        target_of(config)
    assert str(caught.value).startswith(f"`ssh -G alpha` fails: {home}/.ssh/config line 2: Bad port 'x'.")
    assert str(caught.value).endswith("; correct the SSH configuration")
    (home / "part").write_text('Match exec "test %n = alpha"\n Port 7\n')
    (home / ".ssh" / "config").write_text(f"Include {home}/part\n")
    assert [target_of(config, host).port for host in ("alpha", "beta")] == [7, 22]
    assert "-oProxyCommand=x" in the_error_in(configured, "", ssh="-oProxyCommand=x")


def test_changes_of_algorithms(configured: Configure) -> None:
    text = "Ciphers ^aes256-ctr\nMACs -hmac-sha1*\nHostKeyAlgorithms ssh-rsa\nKexAlgorithms +curve25519-sha256\n"
    found = dict(target_of(configured(text)).algorithms)
    assert found["ciphers"].startswith("aes256-ctr,")
    assert "hmac-sha1" not in found["macs"].split(",")
    assert found["hostkeyalgorithms"] == "ssh-rsa"


def test_a_condition_that_does_not_end(configured: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_lookup, "_TIMEOUT", 1.0)
    config = configured('Match exec "sleep 9999; true"\n Port 1\n')
    with pytest.raises(LinkError, match="`ssh -G alpha` does not end within 1 s; see `Match exec`"):
        target_of(config)


def test_many_hosts_at_once(configured: Configure, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    config = configured(f'Match exec "echo %n >>{asked}"\n User ann\n')
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda number: target_of(config, f"h{number % 20}"), range(40)))
    assert [target.address for target in found] == [f"h{number % 20}" for number in range(40)]
    assert sorted(asked.read_text().split()) == sorted(f"h{number}" for number in range(20))


def test_a_machine_without_space_or_descriptors(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".ssh" / "config").touch()
    need("ssh")
    connector = SshConnectors("run", 1.0).connector_to(HostPlan("alpha", is_local=False), None)
    for fault in (errno.ENOSPC, errno.EMFILE):
        monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=OSError(fault, os.strerror(fault))))
        with pytest.raises(LinkError, match=r"space|files"):
            connector.open()


def test_another_program_of_this_name(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no configuration, which hosts without one do not need."""
    (tmp_path / "bin").mkdir()
    config = home / ".ssh" / "config"
    for script in ("echo 'unknown option -G' >&2; exit 1", "echo hello", "head -c 100 /dev/zero"):
        (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        assert target_of(SshConfig(find_lookup(NOTHING)), ssh="ann@h:7")[1:4] == ("h", 7, "ann")
        config.touch()
        with pytest.raises(LinkError, match=f"^{config} cannot be read without an OpenSSH client .*; install one$"):
            find_lookup(NOTHING)
        config.unlink()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "`ssh -G alpha` prints '', which is not a keyword with a value"),
        (b"hostname a\nuser b\n", "`ssh -G alpha` prints no port; is it OpenSSH's client?"),
        (b"hostname a\nuser \x1b[2J\nport 1\n", "is not a keyword with a value"),
        (b"Pseudo-terminal\n", "prints 'Pseudo-terminal', which is not a keyword"),
    ],
)
def test_an_answer_that_is_not_one(raw: bytes, words: str) -> None:
    """Where it is one, key files are printed one per line, known_hosts files on a single line."""
    with pytest.raises(LinkError) as caught:
        parse_answer(raw, "alpha")
    assert words in str(caught.value)
    right = b"hostname a\nuser b\nport 1\nidentityfile ~/k 1\nidentityfile /k2\nuserknownhostsfile /a b /c none\n"
    found: Values = parse_answer(right, "alpha")
    assert (found["identityfile"], found["userknownhostsfile"]) == (["~/k 1", "/k2"], ["/a b", "/c", "none"])
