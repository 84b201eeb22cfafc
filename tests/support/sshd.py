"""Real sshd processes, each a host of its own: another address, another host key, another HOME."""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from support.fixed_ports import free_ports
from support.needs import SSHD
from support.processes import processes_with
from support.waiting import PATIENCE, wait_until
from tflaunch.clusterspec.values import bracketed

USER = pwd.getpwuid(os.getuid()).pw_name
DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Kills the child with the *thread* that started it: start no process from a thread that ends sooner."""

_CONFIG = """\
LogLevel VERBOSE
MaxSessions 1000
MaxStartups 1000
PasswordAuthentication no
PermitRootLogin prohibit-password
PermitUserRC no
PidFile none
PrintLastLog no
PrintMotd no
StrictModes no
UseDNS no
UsePAM no
"""


class Keyring:
    """Key pairs without passphrase by name, each generated on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines its unprivileged half

    def __getitem__(self, name: str) -> Path:
        """Return the path of a private key; a name such as "h1-rsa" has the key type after the last hyphen."""
        path = self.directory / name
        if not path.exists():
            kind = name.rpartition("-")[2]
            make_key(path, kind if kind in ("rsa", "ecdsa") else "ed25519")
        return path


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Generate a key pair and return the path of its private half."""
    size = ["-b", "2048"] if kind == "rsa" else []  # the default takes many times as long
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", path.name, "-f", path], check=True)
    return path


def public(key: Path) -> str:
    """Return type and base64 of a public key, without its comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def known_hosts_line(names: str, port: int, key: Path) -> str:
    """Return the line for a host key; names are separated by commas."""
    named = names if port == 22 else ",".join(f"[{name}]:{port}" for name in names.split(","))
    return f"{named} {public(key)}\n"


def config(
    directory: Path,
    address: str,
    port: int,
    host_keys: Sequence[Path],
    environ: Mapping[str, str],
    lines: Sequence[str] = (),
) -> str:
    """Return the text of an sshd_config for sessions with these variables, including HOME.

    Args:
        directory: contains the file `authorized_keys`.
        address: to listen on.
        port: to listen on.
        host_keys: private keys.
        environ: variables of every session.
        lines: additional lines of the configuration, which replace ours with the same keyword.
    """
    # A bash that sshd starts reads ~/.bashrc: with the HOME of the user who runs the tests, all of it.
    # sshd reads a single SetEnv line, therefore `environ`.
    variables = " ".join(f'"{name}={value}"' for name, value in environ.items())
    ours = [
        f"ListenAddress {bracketed(address)}:{port}",
        *(f'HostKey "{key}"' for key in host_keys),
        f'AuthorizedKeysFile "{directory}/authorized_keys"',
        f"SetEnv {variables}",
        f'Subsystem sftp internal-sftp -d "{environ["HOME"]}"',
        *_CONFIG.splitlines(),
        *(["PerSourcePenalties no"] if _version() >= (9, 8) else []),
    ]
    theirs = {line.split()[0].lower() for line in lines}
    # Last, as one of them may be a Match block, which extends to the end.
    return "\n".join([*(line for line in ours if line.split()[0].lower() not in theirs), *lines, ""])


def _version() -> tuple[int, int]:
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    assert match, said
    return int(match[1]), int(match[2])


class StartSshd(Protocol):
    """The type of the fixture `sshd`."""

    def __call__(self, name: str = "", **options: Any) -> Sshd:
        """Start a host, by default named h1, h2, ... at 127.0.0.2, 127.0.0.3, ...; options as for `Sshd`."""


class Sshd:
    """An sshd process with all its files in one directory.

    Sessions start in the user's own home directory, as sshd reads it from /etc/passwd, but with HOME set
    to `home`, where an SFTP session starts as well.
    """

    def __init__(
        self,
        directory: Path,
        keys: Keyring,
        address: str = "127.0.0.1",
        *,
        lines: Sequence[str] = (),
        banner: str = "",
        host_keys: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and return when it listens.

        Args:
            directory: created for it; its name is the host's.
            keys: `client` is authorized.
            address: in 127.0.0.0/8, or ::1; the port is a free one there.
            lines: lines of sshd_config, which replace ours with the same keyword.
            banner: sent to every client before authentication.
            host_keys: names of keys in the ring; by default one that no other host has.
            environ: variables of every session, including HOME.
        """
        directory.mkdir()
        self.directory = directory
        self.name = directory.name
        self.address = address
        (self.port,) = free_ports(1)
        self.user = USER
        self.home = directory / "home"
        self.home.mkdir()
        self.log = directory / "sshd.log"
        self.client_key = keys["client"]
        self._keys = keys
        self._environ = {"HOME": str(self.home), **(environ or {})}
        self._lines = [*lines]
        if banner:
            (directory / "banner").write_text(banner)
            self._lines.append(f'Banner "{directory}/banner"')
        authorize(directory, self.client_key)
        self.start(*(host_keys or (f"host-{self.name}",)))

    def start(self, *host_keys: str, lines: Sequence[str] = ()) -> None:
        """Start it at the same address and port, with other host keys and additional lines if given."""
        if host_keys:
            self.host_keys = [self._keys[name] for name in host_keys]
        self._lines = [*self._lines, *lines]
        path = self.directory / "sshd_config"
        path.write_text(config(self.directory, self.address, self.port, self.host_keys, self._environ, self._lines))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_US, SSHD, "-D", "-e", "-f", path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for_log(self._process, self.log)

    @property
    def known_hosts(self) -> str:
        """A client's known_hosts file for it: a line for each of its host keys."""
        return "".join(known_hosts_line(self.address, self.port, key) for key in self.host_keys)

    def client_config(self, name: str) -> str:
        """Return a client's ssh_config block for it."""
        return (
            f"Host {name}\n  HostName {self.address}\n  Port {self.port}\n"
            f'  User {self.user}\n  IdentityFile "{self.client_key}"\n'
        )

    def connections(self) -> list[psutil.Process]:
        """Return sshd's own processes of every connection, without the users' commands."""
        try:
            return list(_only_sshd(psutil.Process(self._process.pid)))
        except psutil.NoSuchProcess:
            return []

    def kill_connections(self) -> None:
        """SIGKILL the processes that serve connections: these break, new ones are possible, commands survive."""
        kill(self.connections())

    def stop_listening(self) -> None:
        """Refuse new connections; open ones continue."""
        self._process.kill()
        self._process.wait()

    def restart(self, *host_keys: str, lines: Sequence[str] = ()) -> None:
        """Break all connections and restart, see `start`."""
        connections = self.connections()
        self.stop_listening()
        kill(connections)
        self.start(*host_keys, lines=lines)

    def survivors(self) -> list[psutil.Process]:
        """Return every process that a session started and that still has its HOME, without sshd's own."""
        return list(processes_with("HOME", str(self.home)))

    def wait_empty(self, besides: Collection[int] = ()) -> list[psutil.Process]:
        """Wait until no session has a process, but for the pids in ``besides``; return those that do not exit."""
        # A command may exit a moment after the client that no longer waits for it.
        while (living := [one for one in self.survivors() if one.pid not in besides]) and wait_dead(living):
            pass
        return living

    def stop(self) -> None:
        """Stop it, its connections and all that sessions have left."""
        connections = self.connections()
        self.stop_listening()
        kill(connections)
        while living := self.survivors():
            kill(living)


def authorize(directory: Path, *keys: Path) -> None:
    """Write a directory's authorized_keys."""
    path = directory / "authorized_keys"
    path.write_text("".join(f"{public(key)}\n" for key in keys))
    path.chmod(0o600)


def home_for_client(directory: Path, hosts: Mapping[str, Sshd]) -> Path:
    """Create a HOME for a client that can reach hosts by name, and return it.

    OpenSSH's own client reads the home from /etc/passwd: pass it `-F HOME/.ssh/config`.

    Args:
        directory: made here.
        hosts: name → sshd, whose host keys become known.
    """
    entries = [sshd.client_config(name) for name, sshd in hosts.items()]
    return write_client_home(directory, "".join(entries), "".join(sshd.known_hosts for sshd in hosts.values()))


def write_client_home(directory: Path, ssh_config: str, known_hosts: str) -> Path:
    """Create a HOME with these two files, and return it."""
    ssh = directory / ".ssh"
    ssh.mkdir(parents=True)
    ssh.chmod(0o700)
    (ssh / "known_hosts").write_text(known_hosts)
    common = f'Host *\n  BatchMode yes\n  IdentitiesOnly yes\n  UserKnownHostsFile "{ssh}/known_hosts"\n'
    (ssh / "config").write_text(f"{ssh_config}{common}  GlobalKnownHostsFile /dev/null\n")
    return directory


def wait_for_log(process: subprocess.Popen[bytes], log: Path, words: str = "Server listening on") -> None:
    # A connection would show as much, but sshd counts it: against MaxStartups, and as an authentication attempt.

    def listens() -> bool:
        has_ended = process.poll() is not None
        said = log.read_text(errors="replace")
        assert words in said or not has_ended, f"sshd ended: {said}"
        return words in said

    wait_until(listens, otherwise=f"sshd does not listen, see {log}")


def _only_sshd(parent: psutil.Process) -> Iterator[psutil.Process]:
    for child in parent.children():
        try:
            name = child.name()
        except psutil.NoSuchProcess:
            continue
        # sshd, sshd-session, sshd-auth: a connection has one to three, depending on version and user.
        if name.startswith("sshd"):
            yield child
            yield from _only_sshd(child)


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    assert wait_dead(processes), f"not even SIGKILL ends one of {processes}"


def wait_dead(processes: Sequence[psutil.Process], patience: float = PATIENCE) -> bool:
    """Wait until processes have exited, whether or not their parents have reaped them."""
    # psutil's own wait would be for the latter, and an orphan's new parent may take seconds.
    for process in processes:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            if process.is_running() and not select.select([pidfd], [], [], patience)[0]:
                return False
        finally:
            os.close(pidfd)
    return True
