"""A Slurm of the test's own: a controller and nodes, with all their files in one directory.

Its nodes are the hosts of a `Bed`, or this machine under other names, which tasks find in an /etc/hosts visible
only to them. Without cgroups, Slurm ends a task by its process tree: it may miss a child whose parent it has
just killed.
"""

import os
import pwd
import socket
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Self

from support import waiting
from support.fixed_ports import free_ports
from support.needs import program
from support.netns_hosts import CONTROLLER, Bed
from support.sshd import DIE_WITH_US

_PORTS = 6817  # the controller's, followed by those of nodes with addresses of their own

_CONFIG = """\
ClusterName=tflaunch
SlurmctldHost={controller}
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait={kill_wait}
SlurmdTimeout={silence}
MessageTimeout={answer}
ReturnToService=2
SchedulerParameters=sched_min_interval=10000,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
{options}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmNode(NamedTuple):
    """A node: ``prefix`` precedes a command to run there, ``hostname`` is the machine's own name."""

    name: str
    hostname: str
    address: str
    port: int
    prefix: Sequence[str]


class SlurmBed:
    def __init__(
        self,
        directory: Path,
        controller: SlurmNode,
        nodes: Sequence[SlurmNode],
        options: Sequence[str] = (),
        kill_wait: int = 10,
        gpus: int = 0,
        *,
        loses_nodes: bool = False,
    ) -> None:
        """Prepare it; `with` starts it.

        Args:
            directory: created for it.
            controller: where slurmctld runs.
            nodes: where tasks run.
            options: additional lines of its configuration.
            kill_wait: seconds between TERM and KILL when a job is cancelled.
            gpus: number of GPUs per node; the devices behave like /dev/null.
            loses_nodes: whether the loss of a node must be noticed soon; a busy machine may seem to be one.
        """
        self._silence, self._answer = (12, 8) if loses_nodes else (30, 20)
        self._directory = directory
        self._controller = controller
        self._nodes = {node.name: node for node in nodes}
        self._options = options
        self._kill_wait = kill_wait
        self._gpus = gpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmctld: subprocess.Popen[bytes] | None = None
        self.env = {"SLURM_CONF": str(directory / "slurm.conf")}

    @classmethod
    def on_this_machine(cls, directory: Path, count: int, gpus: int = 0, options: Sequence[str] = ()) -> Self:
        """Nodes n1, n2 and so on, each this machine under another name, with device files for GPUs."""
        machine = socket.gethostname().partition(".")[0]
        names = [f"n{number}" for number in range(1, count + 1)]
        hosts = directory / "hosts"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(f"127.0.0.1 localhost {machine} {' '.join(names)}\n")
        seeing = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
        first, *ports = free_ports(count + 1)
        return cls(
            directory,
            SlurmNode(machine, machine, "127.0.0.1", first, DIE_WITH_US),
            [
                SlurmNode(name, machine, "127.0.0.1", port, [*DIE_WITH_US, *seeing])
                for name, port in zip(names, ports, strict=True)
            ],
            ["CommunicationParameters=NoInAddrAny,NoCtldInAddrAny", *options],
            gpus=gpus,
        )

    @classmethod
    def on_hosts(cls, directory: Path, bed: Bed, *, loses_nodes: bool = False) -> Self:
        """The hosts of a bed, with its controller as Slurm's."""
        machine = bed.name(CONTROLLER)
        return cls(
            directory,
            SlurmNode(machine, machine, bed.address(CONTROLLER), _PORTS, bed.run_prefix),
            [SlurmNode(bed.name(i), bed.name(i), bed.address(i), _PORTS + 1, bed.host_prefix(i)) for i in bed.hosts],
            loses_nodes=loses_nodes,
        )

    def __enter__(self) -> Self:
        self._write()
        self.start_controller()
        for node in self._nodes.values():
            self._start(node, "slurmd", "-D", "-N", node.name)
        try:
            self.wait_until(lambda: self._idle() == len(self._nodes), "nodes do not come up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.asked("scancel", "--user", str(os.getuid()))
        try:
            self.wait_until(self.is_empty, "jobs do not end")
        finally:
            for node in (*self._nodes.values(), self._controller):
                self._end(node)
            for daemon in self._daemons:
                daemon.wait(waiting.PATIENCE)

    def start_controller(self) -> None:
        """Start slurmctld, which restores its state."""
        self._slurmctld = self._start(self._controller, "slurmctld", "-D")

    def stop_controller(self) -> None:
        """Make slurmctld save its state and exit."""
        self._end(self._controller)
        assert self._slurmctld is not None
        self._slurmctld.wait(waiting.PATIENCE)

    def asked(self, *command: str) -> str:
        return self._ask(*command).stdout.strip()

    def is_empty(self) -> bool:
        """Return whether Slurm has answered that it has no job."""
        done = self._ask("squeue", "--noheader")
        return done.returncode == 0 and not done.stdout.strip()

    def _ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = [*self._controller.prefix, *command]
        return subprocess.run(
            words, env=self._environ(), capture_output=True, text=True, timeout=waiting.PATIENCE, check=False
        )

    def _environ(self) -> Mapping[str, str]:
        return {**os.environ, **self.env}

    def _idle(self) -> int:
        return sum(map(int, self.asked("sinfo", "--noheader", "--states=idle", "--format=%D").split()))

    def wait_until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait until a condition is true; Slurm sends no notifications."""
        waiting.wait_until(is_so, otherwise=lambda: f"{otherwise}: {self._logs()}")

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._directory.glob("*.log")))

    def _write(self) -> None:
        for name in ("state", *self._nodes):
            (self._directory / name).mkdir(parents=True)
        controller = self._controller
        gres = f" Gres=gpu:{self._gpus}" if self._gpus else ""
        nodes = "\n".join(
            f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} Port={node.port} CPUs=8{gres}"
            for node in self._nodes.values()
        )
        text = _CONFIG.format(
            controller=f"{controller.name}({controller.address})",
            port=controller.port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            directory=self._directory,
            kill_wait=self._kill_wait,
            silence=self._silence,
            answer=self._answer,
            options="\n".join([*self._options, *(["GresTypes=gpu"] if self._gpus else [])]),
            nodes=nodes,
        )
        (self._directory / "slurm.conf").write_text(text)
        if self._gpus:
            for number in range(self._gpus):
                os.mknod(self._directory / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
            files = f"{self._directory}/gpu[0-{self._gpus - 1}]"
            lines = [f"NodeName={name} Name=gpu File={files}\n" for name in self._nodes]
            (self._directory / "gres.conf").write_text("".join(lines))

    def _start(self, node: SlurmNode, daemon: str, *arguments: str) -> subprocess.Popen[bytes]:
        words = [*node.prefix, program(daemon) or daemon, *arguments]
        with (self._directory / f"{node.name}.out.log").open("wb") as log:
            process = subprocess.Popen(words, env=self._environ(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._daemons.append(process)
        return process

    def _end(self, node: SlurmNode) -> None:
        """Stop a daemon, in its own PID namespace if it has one."""
        daemon = "slurmctld" if node is self._controller else node.name
        script = f'kill "$(cat {self._directory}/{daemon}.pid)"'
        subprocess.run([*node.prefix, "sh", "-c", script], capture_output=True, timeout=waiting.PATIENCE, check=False)
