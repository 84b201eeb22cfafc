"""A Slurm of the test's own: a controller and nodes as processes on this machine, all they write in one directory.

Every node is this machine by a name of its own, which its tasks find in an /etc/hosts that only they see. Slurm ends a
task here by its tree of processes, for want of cgroups: it may miss a child whose parent it has just killed.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from install import lacking, need, program
from sshd import DIE_WITH_US

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 90.0
_POLL = 0.1  # seconds between questions

_CONFIG = """\
ClusterName=tflaunch
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
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
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=3
ReturnToService=2
SchedulerParameters=sched_min_interval=10000,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def need_slurm() -> None:
    """Require Slurm, and root: only root can give processes an /etc/hosts of their own."""
    if os.getuid() != 0:
        lacking("a Slurm whose nodes have names of their own needs root")
    need(["slurmctld", "slurmd", "sbatch", "unshare", "setpriv"], ["slurm-wlm", "munge"])


class SlurmBed:
    """A running Slurm with nodes n1, n2 and so on."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self._directory = directory
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.env = {"SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> Self:
        """Start it, and wait until the nodes are there."""
        self._write()
        self._start("slurmctld", "slurmctld", "-D")
        seeing = 'mount --bind "$0" /etc/hosts && exec "$@"'
        for name in self._names:
            alone = ["unshare", "--mount", "sh", "-c", seeing, str(self._directory / "hosts")]
            self._start(name, *alone, program("slurmd") or "slurmd", "-D", "-N", name)
        try:
            self.wait_until(lambda: self._idle() == len(self._names), "nodes do not come up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the jobs, then the daemons, and wait for them."""
        subprocess.run(["scancel", "--user", str(os.getuid())], env={**os.environ, **self.env}, check=False, timeout=30)
        try:
            self.wait_until(lambda: not self.asked("squeue", "--noheader"), "jobs do not end")
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in self._daemons:
                daemon.wait(PATIENCE)

    def asked(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        env = {**os.environ, **self.env}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False).stdout.strip()

    def _idle(self) -> int:
        return sum(map(int, self.asked("sinfo", "--noheader", "--states=idle", "--format=%D").split()))

    def wait_until(self, is_so: Callable[[], bool], otherwise: str, patience: float = PATIENCE) -> None:
        """Wait until something is so; Slurm tells nobody by itself."""
        deadline = time.monotonic() + patience
        while not is_so():
            assert time.monotonic() < deadline, f"{otherwise}: {self._logs()}"
            time.sleep(_POLL)

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._directory.glob("*.log")))

    def _write(self) -> None:
        machine = socket.gethostname().partition(".")[0]
        for name in ("state", *self._names):
            (self._directory / name).mkdir(parents=True)
        ports = free_ports(len(self._names) + 1)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN"
            for name, port in zip(self._names, ports[1:], strict=True)
        )
        user = pwd.getpwuid(os.getuid()).pw_name
        text = _CONFIG.format(machine=machine, port=ports[0], user=user, directory=self._directory, nodes=nodes)
        (self._directory / "slurm.conf").write_text(text)
        (self._directory / "hosts").write_text(f"127.0.0.1 localhost {machine} {' '.join(self._names)}\n")

    def _start(self, name: str, *command: str) -> None:
        path = program(command[0]) or command[0]
        with (self._directory / f"{name}.out.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*DIE_WITH_US, path, *command[1:]],
                    env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )
            )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
