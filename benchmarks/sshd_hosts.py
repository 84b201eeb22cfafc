"""Run N hosts for SSH clients: an sshd each, on this machine, at 127.0.0.2 and the addresses after it.

Standard library only, Linux only; needs OpenSSH's server and client. Without root, only the current user can log in.
"""

import contextlib
import ipaddress
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = "/usr/sbin/sshd"
USER = pwd.getpwuid(os.getuid()).pw_name

_START = 30.0  # seconds until all must listen
_SETTLE = 5.0  # seconds for hosts to finish with a client that has returned
_SSHD_CONFIG = """\
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/client_key.pub
LogLevel ERROR
MaxStartups 1000
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintLastLog no
PrintMotd no
StrictModes no
Subsystem sftp internal-sftp
UseDNS no
UsePAM no
"""
_SSH_CONFIG = """\
Host *
  BatchMode yes
  ControlPath none
  GlobalKnownHostsFile /dev/null
  IdentitiesOnly yes
  IdentityFile {directory}/client_key
  LogLevel ERROR
  Port {port}
  User {user}
  UserKnownHostsFile {home}/.ssh/known_hosts
"""


@dataclass(frozen=True)
class Host:
    """One host; a session on it has `home` as HOME."""

    name: str
    address: str
    home: Path


@contextlib.contextmanager
def running(directory: Path, count: int) -> Iterator["Hosts"]:
    """Yield running hosts, and stop them on exit."""
    hosts = Hosts(directory, count)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


class Hosts:
    """All hosts, and what a client needs to reach them."""

    def __init__(self, directory: Path, count: int) -> None:
        """Describe `count` hosts; all files will be in an existing directory."""
        first = ipaddress.ip_address("127.0.0.2")
        self.directory = directory
        self.hosts = [Host(f"n{i + 1}", str(first + i), directory / "homes" / f"n{i + 1}") for i in range(count)]
        with socket.create_server((str(first), 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.client_key = directory / "client_key"
        self.client_home = directory / "client"
        """A client's HOME: .ssh has config and known_hosts."""
        self.ssh_config = self.client_home / ".ssh" / "config"
        self.names = directory / "names"
        """A file with one name per line."""
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all hosts, and return when all of them answer."""
        self._write_files()
        for host in self.hosts:
            self._processes.append(self._start(host))
        deadline = time.monotonic() + _START
        for host, process in zip(self.hosts, self._processes, strict=True):
            _wait_for(host, self.port, process, deadline)

    def stop(self) -> None:
        """Kill the hosts, and what sessions have left behind."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()
        while left := self._of_sessions():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def empty_homes(self) -> None:
        """Remove from the hosts everything that a client has copied there."""
        for host in self.hosts:
            shutil.rmtree(host.home, ignore_errors=True)
            host.home.mkdir(parents=True)

    def left_running(self) -> int:
        """Count the processes that outlive the settling time: of sessions, and connections of sshd."""
        deadline = time.monotonic() + _SETTLE
        while (count := self._connections() + len(self._of_sessions())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return count

    def _connections(self) -> int:
        tasks = (Path(f"/proc/{process.pid}/task/{process.pid}/children") for process in self._processes)
        return sum(len(task.read_text().split()) for task in tasks)

    def _of_sessions(self) -> list[int]:
        mark = f"HOME={self.directory}/homes/".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    if any(variable.startswith(mark) for variable in variables):
                        found.append(int(entry.name))
        return found

    def _write_files(self) -> None:
        for name in ("host_key", "client_key"):
            path = str(self.directory / name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        self.empty_homes()
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        config = _SSHD_CONFIG.format(directory=self.directory)
        if _version() >= (9, 8):
            config += "PerSourcePenalties no\n"  # all clients have the same address here
        (self.directory / "sshd_config").write_text(config)
        key = " ".join((self.directory / "host_key.pub").read_text().split()[:2])
        self.ssh_config.parent.mkdir(parents=True)
        known = (f"[{host.address}]:{self.port} {key}\n" for host in self.hosts)
        (self.ssh_config.parent / "known_hosts").write_text("".join(known))
        entries = (f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts)
        common = _SSH_CONFIG.format(directory=self.directory, port=self.port, user=USER, home=self.client_home)
        self.ssh_config.write_text("".join(entries) + common)
        self.names.write_text("".join(f"{host.name}\n" for host in self.hosts))

    def _start(self, host: Host) -> subprocess.Popen[bytes]:
        own = [f"ListenAddress={host.address}:{self.port}", f"SetEnv=HOME={host.home}"]
        options = [word for option in own for word in ("-o", option)]
        # Share one session: Linux divides CPU time among sessions before processes (autogroups), so a hundred
        # sessions would starve a client, which has a machine to itself in practice.
        with (self.directory / "sshd.log").open("ab") as log:
            return subprocess.Popen(
                [SSHD, "-D", "-e", "-f", self.directory / "sshd_config", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def _version() -> tuple[int, int]:
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _wait_for(host: Host, port: int, process: subprocess.Popen[bytes], deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((host.address, port), max(deadline - time.monotonic(), 0.1)) as connection:
                connection.recv(4)
                return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
