"""Several hosts on this machine: namespaces with their own names, addresses, processes and homes.

    controller and switch               h1                  h2
    br0 10.77.0.254 ─┬──────────────── eth0 10.77.0.1
                     └──────────────────────────────────── eth0 10.77.0.2

The files are this machine's, except for HOME and /etc/hosts. The namespaces have no names: they exist as long as
their processes, which die with the thread that made the bed, however it ends. So beds never interfere with each
other, a killed one leaves nothing, and this machine's own network does not change.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from support.launch import Launch
from support.needs import SSHD
from support.processes import Process, ProcessWatch, Table
from support.slow_link import SlowCable, in_network
from support.sshd import (
    DIE_WITH_US,
    USER,
    Keyring,
    authorize,
    config,
    kill,
    known_hosts_line,
    wait_dead,
    wait_for_log,
    write_client_home,
)
from support.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

CONTROLLER = 0
"""The controller's index among the hosts."""

_NETWORK = "10.77.0"
_CONTROLLER_ADDRESS = f"{_NETWORK}.254"
_SSH_PORT = 22
_HOST_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child=SIGKILL")
_BLOCKED, _FORWARDING = 0, 3  # states of a bridge's port
# Prints "in" once it is in its namespaces, as no device can be moved there earlier.
_ENTER = 'set -e; echo "$1" >/proc/sys/kernel/hostname; mount --bind "$2" /etc/hosts'
_CONTROLLER_SCRIPT = f"{_ENTER}; echo in; exec cat"
# sshd becomes process 1; when it dies, all other processes of its namespace die.
_HOST_SCRIPT = f"""{_ENTER}; mount -t tmpfs tmpfs "$3"; echo in; read -r linked
printf 'link set lo up\\naddr add %s/24 dev eth0\\nlink set eth0 up\\n' "$4" | ip -batch -
exec {SSHD} -D -e -f "$5" </dev/null >"$6" 2>&1"""


class _Host:
    def __init__(self, unshare: subprocess.Popen[bytes], port: str) -> None:
        self.unshare = unshare
        """Holds the namespaces, and waits outside for process 1."""
        self.port = port
        """The switch's end of its cable."""
        self.first = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text())
        """Its process 1, with the pid on this machine."""
        self.namespace = _namespace(self.first, "pid")
        self.slow_cable: SlowCable | None = None
        """What replaces the kernel's cable."""

    def drop_slow_cable(self) -> None:
        """Remove it; its devices, and so the networks that contain them, exist until then."""
        if self.slow_cable is not None:
            self.slow_cable.close()
            self.slow_cable = None


class Bed:
    """Hosts 1 to 3, each with an sshd on port 22, and a controller that knows their names."""

    def __init__(self, directory: Path, keys: Keyring, *, environ: Mapping[str, str] | None = None) -> None:
        """Prepare it; `with` or `up` creates it.

        Args:
            directory: created for it.
            keys: `client` is authorized.
            environ: variables of every session, in addition to HOME.
        """
        self.directory = directory
        self.hosts = range(1, 4)
        self.home = directory / "home"
        """HOME of sessions on any host; each host has its own content there, see `home_of`."""
        self.etc_hosts = {i: directory / f"{self.name(i)}.hosts" for i in (CONTROLLER, *self.hosts)}
        """The hosts' /etc/hosts files; new text written to a file (`write_text`) takes effect at once."""
        self.logs = {i: directory / f"{self.name(i)}.log" for i in self.hosts}
        """The output of sshd."""
        self.client_key = keys["client"]
        self.client_home = directory / "client"
        """A HOME for the controller; its .ssh has config and known_hosts."""
        self._setup_log = directory / "setup.log"
        self._keys = keys
        self._environ = {"HOME": str(self.home), **(environ or {})}
        self._controller: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._on: dict[int, _Host] = {}
        self._ports = 0  # number of ports created so far
        self._namespaces: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # Names and addresses.

    def name(self, i: int) -> str:
        return f"h{i}" if i else "controller"

    def address(self, i: int) -> str:
        return f"{_NETWORK}.{i}" if i else _CONTROLLER_ADDRESS

    def everybody(self) -> str:
        """Return the initial text of every /etc/hosts."""
        return "127.0.0.1 localhost\n" + "".join(f"{self.address(i)} {self.name(i)}\n" for i in self.etc_hosts)

    def home_of(self, i: int) -> Path:
        """Return where this machine sees the HOME of a host that is powered on."""
        return Path(f"/proc/{self._on[i].first}/root{self.home}")

    def network(self, i: int) -> str:
        """Return the file that stands for the network of a host that is powered on."""
        return _network_of(self._on[i].first)

    # Start and end.

    def up(self) -> None:
        """Create everything, and return when every sshd accepts connections."""
        self._write_files()
        known = (self.name(CONTROLLER), self.etc_hosts[CONTROLLER])
        self._controller = self._start("--net", "--uts", "--mount", "sh", "-c", _CONTROLLER_SCRIPT, "sh", *known)
        self._wait_in(self._controller)
        self._ip(
            "link set lo up",
            # A port forwards as soon as it has a carrier.
            "link add br0 type bridge stp_state 0 forward_delay 0",
            f"addr add {_CONTROLLER_ADDRESS}/24 dev br0",
            "link set br0 up",
        )
        self.power_on(*self.hosts)

    def down(self) -> None:
        """End every process of the bed; the kernel removes the rest with the last one."""
        kill(_known([*self._on_controller(), *(host.first for host in self._on.values())]))
        for process in self._started:
            process.kill()
            with process:  # waits, and closes its pipes
                pass
        self._started.clear()
        for host in self._on.values():
            host.drop_slow_cable()
        self._on.clear()
        self._namespaces.clear()
        self._controller = None

    def _write_files(self) -> None:
        self.directory.mkdir()
        self.home.mkdir()
        authorize(self.directory, self.client_key)
        known_hosts = ""
        for path in self.etc_hosts.values():
            path.write_text(self.everybody())
        for i in self.hosts:
            key = self._keys[f"bed-{self.name(i)}"]
            known_hosts += known_hosts_line(f"{self.name(i)},{self.address(i)}", _SSH_PORT, key)
            text = config(self.directory, self.address(i), _SSH_PORT, [key], self._environ)
            self._sshd_config(i).write_text(text)
        names = " ".join(f"{self.name(i)} {self.address(i)}" for i in self.hosts)
        entry = f'Host {names}\n  Port {_SSH_PORT}\n  User {USER}\n  IdentityFile "{self.client_key}"\n'
        write_client_home(self.client_home, entry, known_hosts)

    def _sshd_config(self, i: int) -> Path:
        return self.directory / f"{self.name(i)}.sshd_config"

    def _start(self, *unshare: str | Path) -> subprocess.Popen[bytes]:
        with self._setup_log.open("ab") as log:
            process = subprocess.Popen(
                [*DIE_WITH_US, "unshare", *unshare],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _wait_in(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n", self._setup_log.read_text()

    def _ip(self, *commands: str, pid: int | None = None) -> None:
        """Run commands of `ip` in the network of a process, by default the switch."""
        done = subprocess.run(
            ["nsenter", f"--net={_network_of(pid or self._switch)}", "ip", "-batch", "-"],
            input="\n".join([*commands, ""]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @property
    def _switch(self) -> int:
        assert self._controller is not None, "the bed is not made"
        return self._controller.pid

    # Faults of hosts.

    def power_off(self, i: int) -> None:
        """Silence a host and kill all its processes, at the same instant for all others."""
        self.cut(i)  # no dying process can send a message now
        host = self._on.pop(i)
        os.kill(host.first, signal.SIGKILL)
        # Process 1 is reaped when all others of its namespace are dead.
        host.unshare.wait()
        host.drop_slow_cable()
        del self._namespaces[host.namespace]

    def power_on(self, *hosts: int) -> None:
        """Start hosts, with an empty HOME, and return when every sshd accepts connections."""
        starting = {}
        for i in hosts:
            assert i not in self._on, f"{self.name(i)} is on"
            self.logs[i].write_bytes(b"")
            known = (self.name(i), self.etc_hosts[i], self.home, self.address(i), self._sshd_config(i), self.logs[i])
            starting[i] = self._start(*_HOST_NAMESPACES, "sh", "-c", _HOST_SCRIPT, "sh", *known)
        commands = []
        for i, process in starting.items():
            self._wait_in(process)
            self._on[i] = host = _Host(process, self._new_port())
            self._namespaces[host.namespace] = i
            end = f"eth0 address {_hardware_address(i)} netns {process.pid}"
            commands += [f"link add {host.port} type veth peer name {end}", f"link set {host.port} master br0 up"]
        self._ip(*commands)
        for process in starting.values():
            assert process.stdin is not None
            process.stdin.write(b"linked\n")
            process.stdin.close()
        for i, process in starting.items():
            wait_for_log(process, self.logs[i])
        for i in starting:
            self._wait_for_answer(i)

    def _wait_for_answer(self, i: int) -> None:
        def answers() -> bool:
            # While the host was off, the kernel has noted that nothing has its address, for some seconds.
            with suppress(OSError), self.connect(i) as connection:
                return connection.recv(4) == b"SSH-"
            return False

        wait_until(answers)

    def cut(self, i: int) -> None:
        """Unplug a host's cable; the host sees that it has no carrier."""
        self._ip(f"link set {self._on[i].port} down")

    def heal(self, i: int) -> None:
        """Plug it in again."""
        self._ip(f"link set {self._on[i].port} up")

    def blackhole(self, i: int) -> None:
        """Drop all packets from and to a host, with no sign of it at either end."""
        self._set_port(i, _BLOCKED)

    def unblackhole(self, i: int) -> None:
        self._set_port(i, _FORWARDING)

    def _set_port(self, i: int, state: int) -> None:
        command = ["bridge", "link", "set", "dev", self._on[i].port, "state", str(state)]
        subprocess.run(["nsenter", f"--net={_network_of(self._switch)}", *command], check=True)

    def delay(self, i: int, milliseconds: float) -> None:
        """Replace a host's cable by one that delays packets this long each way, until the power is off.

        The host does not notice if it is cut.
        """
        host = self._on[i]
        old, host.port = host.port, self._new_port()
        if host.slow_cable is None:
            self._ip(f"link del {old}")
        host.drop_slow_cable()
        ends = (_network_of(self._switch), host.port), (_network_of(host.first), "eth0")
        host.slow_cable = SlowCable(*ends, milliseconds / 1000)
        self._ip(f"link set {host.port} master br0 up")
        self._ip(
            f"link set eth0 address {_hardware_address(i)}",  # unchanged, else the others use a stale address
            f"addr add {self.address(i)}/24 dev eth0",
            "link set eth0 up",
            pid=host.first,
        )
        self._wait_for_answer(i)

    def _new_port(self) -> str:
        # The kernel may remove the cable of a host that was powered off a moment later.
        self._ports += 1
        return f"port{self._ports}"

    # Commands and processes on hosts.

    def control(self, launch: Launch) -> Launch:
        """Let tflaunch be run on the controller, as a user who knows the hosts; return it."""
        launch.prefix = self.run_prefix
        launch.env["HOME"] = str(self.client_home)
        return launch

    @property
    def run_prefix(self) -> list[str]:
        """Return the prefix that runs a command on the controller, in the same working directory.

        The command is the process that was started, and dies with the thread that started it.
        """
        return [*DIE_WITH_US, *_enter(self._switch, "--net", "--uts", "--mount")]

    def host_prefix(self, i: int) -> list[str]:
        """Return the prefix that runs a command on a host, in the same working directory."""
        return [*_enter(self._on[i].first, "--net", "--uts", "--ipc", "--mount", "--pid"), "env", f"HOME={self.home}"]

    def execute(self, i: int, *argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on a host (or the controller), which must succeed; options as for `subprocess.run`."""
        prefix = self.host_prefix(i) if i else self.run_prefix
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "check": True, **options}
        return subprocess.run([*prefix, *argv], timeout=PATIENCE, **options)  # noqa: PLW1510 - it is in the options

    def connect(self, i: int, port: int = _SSH_PORT, patience: float = PATIENCE) -> socket.socket:
        """Connect to a host from the controller."""
        where = (self.address(i), port)
        return in_network(_network_of(self._switch), lambda: socket.create_connection(where, patience))

    def processes(self, i: int | None = None) -> list[Process]:
        """Return all processes of one host or of all hosts, without zombies."""
        return [process for process in Table(self._namespaces.get).read() if i in (None, process.host)]

    def survivors(self, i: int | None = None) -> list[Process]:
        """Return all processes of one host or of all hosts that do not belong to the host itself."""
        return [process for process in self.processes(i) if not process.is_sshd]

    def wait_empty(self, i: int | None = None) -> list[Process]:
        """Wait until the survivors have exited; return those that do not."""
        while (living := self.survivors(i)) and wait_dead(_known([process.pid for process in living])):
            pass
        return living

    def host_of(self, namespace: str) -> int | None:
        """Return the host of a PID namespace, None if it is that of no host that is powered on."""
        return self._namespaces.get(namespace)

    def watch(self, run: str | None = None) -> ProcessWatch:
        """Return a watch over the tasks of one run, or of all, on all hosts."""
        return ProcessWatch(self._namespaces.get, run)

    def _on_controller(self) -> list[int]:
        if self._controller is None:
            return []
        mine = _namespace(self._switch, "mnt")
        return [pid for pid in psutil.pids() if mine and _namespace(pid, "mnt") == mine]


def _enter(pid: int, *namespaces: str) -> list[str]:
    # Entering a mount namespace resets the working directory.
    script = f"""exec nsenter --target {pid} {" ".join(namespaces)} sh -c 'cd "$0" && exec "$@"' "$(pwd -P)" "$@" """
    return ["sh", "-c", script, "sh"]


def _hardware_address(i: int) -> str:
    """Return a host's fixed address, the same whenever it is powered on, so that no ARP cache becomes stale."""
    return f"02:00:0a:4d:00:{i:02x}"


def _network_of(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _known(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found
