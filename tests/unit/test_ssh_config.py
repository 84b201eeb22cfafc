"""How a host is reached follows from the spec and from ssh's own configuration, in this order."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tflaunch.spec import Host
from tflaunch.transport import ssh_options
from tflaunch.transport.base import LinkError
from tflaunch.transport.ssh_config import SshConfig, Target

pytestmark = pytest.mark.unit

ME = pwd.getpwuid(os.getuid()).pw_name
NOTHING = Path("/nonexistent/config")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return somebody's home directory, with a .ssh and without an agent."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / "home"


def configured(home: Path, text: str, system: str = "") -> SshConfig:
    """Return the configuration of a user and a system."""
    (home / ".ssh" / "config").write_text(text)
    (home / "system").write_text(system)
    return SshConfig(system_file=home / "system")


def resolved(home: Path, text: str, host: str = "alpha", ssh: str | None = None, system: str = "") -> Target:
    """Return how a host is reached."""
    return configured(home, text, system).resolve(host, Host(ssh=ssh))


def the_error_in(home: Path, text: str, host: str = "alpha", ssh: str | None = None) -> str:
    """Return the one sentence that a configuration is answered with."""
    with pytest.raises(LinkError) as caught:
        resolved(home, text, host, ssh)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


class TestWhatGoesFirst:
    def test_without_any_configuration_the_name_is_the_address(self, home: Path) -> None:
        """Port 22, the user's own name, the usual files; keys that do not exist are not tried."""
        (home / ".ssh" / "id_rsa").touch()
        (home / ".ssh" / "id_ed25519").touch()
        assert SshConfig(system_file=NOTHING).resolve("alpha", Host()) == Target(
            host="alpha",
            address="alpha",
            port=22,
            user=ME,
            identity_files=(f"{home}/.ssh/id_ed25519", f"{home}/.ssh/id_rsa"),
            known_hosts_files=(
                f"{home}/.ssh/known_hosts",
                f"{home}/.ssh/known_hosts2",
                "/etc/ssh/ssh_known_hosts",
                "/etc/ssh/ssh_known_hosts2",
            ),
            host_key_name="alpha",
            command=f"ssh -p 22 {ME}@alpha",
        )

    def test_the_spec_goes_before_the_configuration(self, home: Path) -> None:
        """User, port and identity file; the address is what is looked up, under which the name is not known."""
        text = "Host 10.0.0.1\n HostName h.example\n User bob\n Port 1\n IdentityFile /key\nHost alpha\n Port 3\n"
        settings = Host(ssh="ann@10.0.0.1:2222", identity_file="~/mine")
        target = configured(home, text).resolve("alpha", settings)
        assert (target.host, target.user, target.address, target.port) == ("alpha", "ann", "h.example", 2222)
        assert target.identity_files == (f"{home}/mine", "/key")
        assert target.is_identity_required
        assert target.command == "ssh -p 2222 ann@10.0.0.1"

    def test_the_user_goes_before_the_system(self, home: Path) -> None:
        """Also if the user's file ends within a block for other hosts."""
        target = resolved(home, "User ann\nHost beta\n Port 1\n", system="User bob\nPort 2\nHostName h.example\n")
        assert (target.user, target.port, target.address) == ("ann", 2, "h.example")

    def test_conditions_see_what_the_spec_says(self, home: Path) -> None:
        """`Match user` is about the user who is to log in."""
        text = "Match user ann\n Port 1\nMatch user bob\n Port 2\n"
        assert resolved(home, text, ssh="ann@alpha").port == 1
        assert resolved(home, text, ssh="bob@alpha").port == 2

    def test_conditions_see_the_name_that_hostname_gives(self, home: Path) -> None:
        """For every host another one."""
        config = configured(home, "Host *\n HostName %h.example\nMatch host beta.example\n Port 7\n")
        assert config.resolve("alpha", Host())[1:3] == ("alpha.example", 22)
        assert config.resolve("beta", Host())[1:3] == ("beta.example", 7)

    @pytest.mark.parametrize(
        ("line", "is_for"),
        [
            ("Host al* !alp*", []),
            ("Host al* be*", ["alpha", "beta"]),
            ("Host ????", ["beta"]),
            ('Host "beta"', ["beta"]),
            ("Host [ab]*", []),
            ("Match all", ["alpha", "beta"]),
            ("Match originalhost alpha,gamma", ["alpha"]),
            ("Match !originalhost alpha", ["beta"]),
            ("Match host=alpha", ["alpha"]),
            ("Match localuser nobody-at-all", []),
            ("Match tagged everything", []),
            ("Match !sessiontype shell", []),
            ('Match exec "test %h = beta" # asked of a shell', ["beta"]),
        ],
    )
    def test_blocks_apply_to(self, home: Path, line: str, is_for: list[str]) -> None:
        """As ssh_config(5) says; a condition that is not known here is never fulfilled."""
        config = configured(home, f"{line}\n  Port 7\n")
        assert [host for host in ("alpha", "beta") if config.resolve(host, Host()).port == 7] == is_for


class TestValues:
    def test_everything_else_that_is_read(self, home: Path) -> None:
        """Keywords in any case, with = or without, with quotes, comments and indentation."""
        text = (
            'HOSTKEYALIAS=cluster\n\tidentitiesonly = yes\nIdentityFile "/a key"   # mine\n IdentityFile none\n'
            'UserKnownHostsFile "/known hosts" ~/hosts\nGlobalKnownHostsFile none\nConnectTimeout 1m30\n'
            "IdentityAgent ~/agent.sock\nStrictHostKeyChecking yes\n"
        )
        target = resolved(home, text)
        assert target.host_key_name == "cluster"
        assert target.identities_only
        assert target.identity_files == ("/a key",)
        assert target.known_hosts_files == ("/known hosts", f"{home}/hosts")
        assert target.connect_timeout == 90.0
        assert target.agent == f"{home}/agent.sock"
        assert target.command == f"ssh -o StrictHostKeyChecking=ask -p 22 {ME}@alpha"

    def test_tokens(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """%h is the address, %n what was looked up; what the spec says counts for them too."""
        monkeypatch.setenv("KEYS", "/keys")
        text = (
            "HostName %h.example\nIdentityFile %d/%h_%n_%p_%r_%u_100%%\nIdentityFile ${KEYS}/x\n"
            "UserKnownHostsFile ~/%h %d/%k\nGlobalKnownHostsFile /dev/null\n"
        )
        target = resolved(home, text, ssh="ann@beta:7")
        assert target.address == "beta.example"
        assert target.identity_files == (f"{home}/beta.example_beta_7_ann_{ME}_100%", "/keys/x")
        assert target.known_hosts_files == (f"{home}/beta.example", f"{home}/beta", "/dev/null")

    @pytest.mark.parametrize(
        ("line", "agent"),
        [("", "/agent"), ("IdentityAgent none", None), ("IdentityAgent $OTHER", "/other"), ("IdentityAgent /x", "/x")],
    )
    def test_the_agent(self, home: Path, monkeypatch: pytest.MonkeyPatch, line: str, agent: str | None) -> None:
        """From the environment, unless IdentityAgent says otherwise."""
        monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
        monkeypatch.setenv("OTHER", "/other")
        assert resolved(home, line).agent == agent

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("Port", "config:2: 'Port' is not a keyword with a value"),
            ("Port ssh", "config:2: 'ssh' is not a port; give a number from 1 to 65535"),
            ("Port 70000", "config:2: '70000' is not a port"),
            pytest.param(f"Port {'9' * 5000}", "is not a port", id="digits"),
            pytest.param(f"ProxyJump a:{'9' * 5000}", "is not of the form", id="digits of a jump host"),
            ("ProxyJump x%h", "ProxyJump leads to alpha through more than 16 jump hosts"),
            pytest.param("Include a\0*", "the line contains control characters; remove them", id="NUL"),
            pytest.param(f"User {'a' * 70_000}", "the line is longer than 64 KiB", id="long"),
            pytest.param(f"Match {'9' * 5000}", "9 has no value", id="long criterion"),
            pytest.param(f"ProxyJump {'9' * 5000}", "is not of the form", id="long name"),
            ("ConnectTimeout soon", "config:2: 'soon' is not a time; give a number of seconds"),
            ("HostName %x", "config:2: %x in '%x' has no value; write it out"),
            ("IdentityFile ${NO_SUCH_VARIABLE}", "config:2: ${NO_SUCH_VARIABLE} in"),
            ('UserKnownHostsFile "/a', "is malformed: No closing quotation"),
            ('Host "a', "config:2: '\"a' is malformed: No closing quotation"),
            ("Match user", "config:2: user has no value"),
            ("ProxyCommand nc %h %p", "config:2: tflaunch does not run a ProxyCommand; use ProxyJump for alpha"),
            ("ProxyJump a:b:c", "config:2: ProxyJump 'a:b:c' is not of the form"),
            ("ProxyJump a:99999", "config:2: ProxyJump 'a:99999' has no port from 1 to 65535"),
        ],
    )
    def test_nonsense_is_one_sentence(self, home: Path, line: str, words: str) -> None:
        """It names the place where there is one."""
        assert words in the_error_in(home, f"User ann\n{line}\n")

    def test_a_port_that_is_none_in_the_spec(self, home: Path) -> None:
        """A spec cannot tell: five digits can be too many."""
        assert the_error_in(home, "", ssh="ann@alpha:70000") == "`ssh` 'ann@alpha:70000' has no port from 1 to 65535"

    @pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
    def test_a_file_that_others_can_write_to_is_refused(self, home: Path, mode: int) -> None:
        """Like ssh: whoever writes to it can run commands as the user. Also one that is included."""
        config, part = home / ".ssh" / "config", home / ".ssh" / "part"
        config.write_text("Include part\n")
        part.write_text("User ann\n")
        for path in (config, part):
            path.chmod(mode)
            with pytest.raises(LinkError, match=f"can be written by other users.*run `chmod go-w {path}`"):
                SshConfig(system_file=NOTHING)
            path.chmod(0o644)
        assert SshConfig(system_file=NOTHING).resolve("alpha", Host()).user == "ann"

    def test_files_that_include_each_other_many_times_come_to_an_end(self, home: Path) -> None:
        """They could be read 10^16 times."""
        for number in range(15):
            (home / ".ssh" / f"level{number}").write_text(f"Include level{number + 1}\n" * 10)
        assert "is the 1001th file that is included" in the_error_in(home, "Include level0")

    def test_algorithms_are_those_of_the_configuration(self, home: Path) -> None:
        """By keyword; what is not given is left to the defaults."""
        text = "Ciphers aes256-ctr\nMACs -hmac-sha1\nKexAlgorithms ^ecdh*\nHostKeyAlgorithms +ssh-rsa\n"
        assert dict(resolved(home, text).algorithms) == {
            "ciphers": "aes256-ctr",
            "macs": "-hmac-sha1",
            "kexalgorithms": "^ecdh*",
            "hostkeyalgorithms": "+ssh-rsa",
        }
        assert resolved(home, "").algorithms == ()

    def test_match_exec_is_left_alone_by_the_terminal(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the user types is not for it, and what it prints is not for the user."""
        monkeypatch.setenv("SHELL", "/bin/sh")
        assert resolved(home, f"Match exec 'cat >{home}/typed; echo %n >&2; test %n = alpha'\n Port 7\n").port == 7
        assert (home / "typed").read_text() == ""

    def test_match_exec_that_does_not_end(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is ended."""
        monkeypatch.setattr(ssh_options, "_EXEC_PATIENCE", 0.05)
        assert "config:2: the command of `Match exec`" in the_error_in(home, "\nMatch exec 'exec sleep 100'\n Port 1\n")

    def test_names_are_completed_where_the_user_wants_that(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the first domain in which the name resolves; blocks are then for the long name too."""

        def resolve(name: str, port: int | None) -> list[object]:
            if name != "alpha.two.example":
                raise OSError("no such name")
            return []

        monkeypatch.setattr("socket.getaddrinfo", resolve)
        wish = "CanonicalizeHostname yes\nCanonicalDomains one.example two.example\n"
        config = configured(home, f"{wish}Host *.two.example\n Port 7\nMatch canonical\n User ann\n")
        assert config.resolve("alpha", Host())[1:4] == ("alpha.two.example", 7, "ann")
        assert config.resolve("alpha.b.c", Host())[1:4] == ("alpha.b.c", 22, ME)
        assert config.resolve("beta", Host())[1:4] == ("beta", 22, "ann")
        assert "the name beta resolves in none of your CanonicalDomains" in the_error_in(
            home, f"{wish}CanonicalizeFallbackLocal no\n", "beta"
        )

    def test_a_user_who_does_not_exist(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a container that runs with any number."""
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
        assert "no user has the id 4000000" in the_error_in(home, "")


class TestJumps:
    def test_each_jump_host_has_its_own_configuration(self, home: Path) -> None:
        """A list is a way; the first in it may have a way of its own, the others are reached through it."""
        text = (
            "Host alpha\n ProxyJump bob@one,two:7\nHost one\n HostName 1.example\n ProxyJump zero\n"
            "Host two\n ProxyJump elsewhere\n User carl\nHost zero\n Port 5\n"
        )
        jumps = resolved(home, text).jumps
        assert [(jump.host, jump.address, jump.port, jump.user) for jump in jumps] == [
            ("zero", "zero", 5, ME),
            ("one", "1.example", 22, "bob"),
            ("two", "two", 7, "carl"),
        ]
        assert [jump.jumps for jump in jumps] == [jumps[:0], jumps[:1], jumps[:2]]
        assert jumps[2].command == f"ssh -J {ME}@zero:5,bob@one:22 -p 7 carl@two"

    @pytest.mark.parametrize(
        ("text", "jumps"),
        [
            ("ProxyJump none\n", []),
            ("ProxyJump none\nProxyJump one\n", []),
            ("ProxyCommand none\nProxyJump one\n", []),
            ("ProxyJump one\nProxyCommand nc\n", ["one"]),
            ("ProxyJump ssh://ann@one:2/, [::1]:3\n", ["one", "::1"]),
            ("ProxyJump %n-gate\n", ["alpha-gate"]),
        ],
    )
    def test_which_jump_hosts(self, home: Path, text: str, jumps: list[str]) -> None:
        """Of ProxyJump and ProxyCommand the first counts, as for ssh."""
        indented = "".join(f" {line}\n" for line in text.splitlines())
        assert [jump.address for jump in resolved(home, f"Host alpha\n{indented}").jumps] == jumps

    def test_a_proxy_jump_of_none_does_not_hide_a_proxy_command(self, home: Path) -> None:
        """Nor does it for ssh."""
        assert "ProxyCommand" in the_error_in(home, "ProxyJump none\nProxyCommand nc\n")

    def test_a_circle_is_an_error(self, home: Path) -> None:
        """Ssh itself would start one ssh after the other, without end."""
        sentence = the_error_in(home, "Host *\n ProxyJump gate\n")
        assert sentence.endswith("leads to gate again; keep it from applying to the jump host itself: `Host * !gate`")

    def test_equal_ways_are_equal(self, home: Path) -> None:
        """So that connections to jump hosts can be shared."""
        config = configured(home, "Host h*\n ProxyJump gate\n")
        assert config.resolve("h1", Host()).jumps == config.resolve("h2", Host()).jumps


class TestFiles:
    def test_include(self, home: Path) -> None:
        """Relative to ~/.ssh, with patterns, quotes and ~, in place, several at once; what is missing is empty."""
        (home / ".ssh" / "conf.d").mkdir()
        (home / ".ssh" / "conf.d" / "1").write_text("Host alpha\n User one\n")
        (home / ".ssh" / "conf.d" / "2").write_text("Host *\n User two\n Port 2\n")
        (home / "my file").write_text("HostName h.example\n")
        text = 'Include conf.d/* missing "~/my file"\nHost beta\n User never\n'
        assert resolved(home, text)[1:4] == ("h.example", 2, "one")
        assert resolved(home, text, "beta")[1:4] == ("h.example", 2, "two")

    def test_include_within_a_block(self, home: Path) -> None:
        """It counts for that block's hosts only, and the block goes on behind it."""
        (home / ".ssh" / "inner").write_text("Port 1\nHost a* b*\n User inner\nMatch all\n ConnectTimeout 3\n")
        text = "Host a*\n Include inner\n HostName behind\n"
        target = resolved(home, text)
        assert (target.port, target.user, target.address, target.connect_timeout) == (1, "inner", "behind", 3.0)
        target = resolved(home, text, "beta")
        assert (target.port, target.user, target.address, target.connect_timeout) == (22, ME, "beta", None)

    def test_include_of_the_system(self, home: Path) -> None:
        """Relative to where the system's file is."""
        (home / "more").write_text("Port 9\n")
        assert resolved(home, "", system="Include more\n").port == 9

    def test_a_file_that_includes_itself(self, home: Path) -> None:
        """Sixteen levels are enough."""
        assert the_error_in(home, "Include config\n") == (
            f"{home}/.ssh/config is included 17 levels deep; does it include itself?"
        )

    def test_the_place_of_a_mistake_is_in_the_included_file(self, home: Path) -> None:
        """The line is counted there."""
        (home / ".ssh" / "inner").write_text("\n# a comment\nPort x\n")
        assert the_error_in(home, "Include inner\n").startswith(f"{home}/.ssh/inner:3: ")

    def test_a_file_that_is_a_directory(self, home: Path) -> None:
        """Includes pass over such."""
        (home / ".ssh" / "conf.d").mkdir()
        assert resolved(home, "Include conf.d\n").port == 22
        (home / ".ssh" / "config").unlink()
        (home / ".ssh" / "config").mkdir()
        with pytest.raises(LinkError, match=r"config cannot be read: Is a directory"):
            SshConfig(system_file=NOTHING)

    def test_a_file_that_is_far_too_large(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not read to its end."""
        monkeypatch.setattr(ssh_options, "MAX_BYTES", 1024 * 1024)
        (home / ".ssh" / "config").write_bytes(b"#" * (1024 * 1024 + 1))
        with pytest.raises(LinkError, match="config is larger than 1 MiB"):
            SshConfig(system_file=NOTHING)

    def test_bytes_that_are_no_text(self, home: Path) -> None:
        """In comments of long ago, for example."""
        (home / ".ssh" / "config").write_bytes(b"# M\xfcller\nPort 5\n")
        assert SshConfig(system_file=NOTHING).resolve("alpha", Host()).port == 5
