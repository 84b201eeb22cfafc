"""The place of a drill: tflaunch on this machine or on a bed, its processes, and the faults that they suffer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from chaos import program
from chaos.drill import STEPS, Drill, Fault
from support.launch import Launch
from support.netns_hosts import Bed
from support.processes import ProcessWatch, environment_of, is_agent
from support.sshd import Keyring

PATIENCE = 400.0
"""Seconds for a training to end after the last fault; a quiet one takes less than 40."""
_LEASE, _GRACE = 12, 2  # seconds
_POLL = 0.1
_PACE = 0.1  # seconds of a step
_PLACES: dict[
    str, dict[str, tuple[int, ...]]
] = {  # by strategy: the tasks, with the number of the host on which each one runs
    "multi_worker_mirrored": {"worker": (1, 2)},
    "parameter_server": {"chief": (1,), "worker": (2, 3), "ps": (1,)},
}


class Victim(NamedTuple):
    """A process of the run. ``kind`` is that of a fault; ``name`` that of a task, or of the host."""

    pid: int
    kind: str
    name: str


class World:
    """A drill's training, from its start to its end."""

    def __init__(self, drill: Drill, directory: Path, keys: Keyring, stack: ExitStack) -> None:
        """Prepare everything for a drill; ``stack`` removes it."""
        self.drill = drill
        self.directory = directory
        self.launch = Launch(directory)
        self.bed = stack.enter_context(Bed(directory / "bed", keys)) if drill.is_far else None
        if self.bed is not None:
            self.launch.prefix = self.bed.run_prefix
            self.launch.env["HOME"] = str(self.bed.client_home)
        self.launch.env["TF_CPP_MIN_LOG_LEVEL"] = "2"
        self.places = _PLACES[drill.strategy]
        self.tasks = [f"{role}:{index}" for role, hosts in self.places.items() for index in range(len(hosts))]
        self.running: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    # ---- the training

    def spec(self) -> Path:
        """Write the spec."""
        script = str(Path(program.__file__))
        cluster = {role: [f"h{host}" for host in hosts] for role, hosts in self.places.items()}
        fields: dict[str, Any] = {
            "cluster": cluster if self.bed else {role: len(hosts) for role, hosts in cluster.items()},
            "strategy": self.drill.strategy,
            "command": [sys.executable, script, str(self.directory), str(STEPS), str(_PACE)],
            "restart": {"max": 30, "window": "1h", "backoff": [0.5, 5]},
            "timeouts": {"lease": _LEASE, "heartbeat": 4, "grace": _GRACE, "connect": 30},
        }
        if self.bed:
            fields["hosts"] = {f"h{host}": {"python": sys.executable} for host in self.bed.hosts}
        if self.drill.preload:
            fields["preload"] = ["tensorflow"]
        return self.launch.spec(**fields)

    def start(self) -> ProcessWatch:
        """Start the training; return a watch over its tasks."""
        self._run("up", self.spec())
        runs = self.launch.home / "runs"
        assert self.wait(lambda: runs.exists() and any(runs.iterdir())), "it did not start"
        return ProcessWatch(self._host_of, self.launch.run_directory().name)

    def _run(self, *arguments: object) -> None:
        self.running = running = self.launch.start(*arguments)
        for pipe in (running.stdout, running.stderr) if self.drill.is_read else (running.stderr,):
            assert pipe is not None
            self._readers.append(threading.Thread(target=pipe.read, daemon=True))
            self._readers[-1].start()

    def step(self) -> int:
        """Return the furthest step that the training has reached."""
        furthest = 0
        for path in self.directory.glob("said.*"):
            if path.name != "said.ps:0" and (self.drill.strategy, path.name[:11]) != (
                "parameter_server",
                "said.worker",
            ):
                lines = path.read_text().splitlines()
                furthest = max([furthest, *(int(line.split()[3]) for line in lines if line.count(" ") == 3)])
        return furthest

    def is_over(self) -> bool:
        """Whether the supervisor has exited."""
        return self.running is None or self.running.poll() is not None

    def wait(self, until: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Wait for something, at most for ``patience`` seconds, or until the run is over."""
        end = time.monotonic() + patience
        while not until() and not self.is_over() and time.monotonic() < end:
            time.sleep(_POLL)
        return until()

    def finish(self) -> int | None:
        """Wait for the end; return the exit code, None if there is no end."""
        running = self.running
        assert running is not None
        if not self.drill.is_read:
            self.wait(lambda: all((self.directory / f"result.{task}").exists() for task in self.finishers()))
            assert running.stdout is not None
            threading.Thread(target=running.stdout.read, daemon=True).start()
        return running.poll() if self.wait(self.is_over) else None

    def finishers(self) -> list[str]:
        """Return the tasks that write a result."""
        return ["chief:0"] if "chief" in self.places else list(self.tasks)

    def left(self) -> Sequence[object]:
        """Return the processes that are left; they have some seconds to end."""
        end = time.monotonic() + 20
        if self.bed is not None and (there := self.bed.wait_empty()):
            return there
        while (here := self.launch.survivors()) and time.monotonic() < end:
            time.sleep(_POLL)
        return here

    # ---- processes

    def _host_of(self, namespace: str) -> int | None:
        if self.bed is not None:
            return self.bed.host_of(namespace)
        return 0 if namespace == os.readlink("/proc/self/ns/pid") else None

    def victims(self) -> list[Victim]:
        """Return the processes of the run."""
        found = []
        if self.bed is None:
            known = [(process, environment_of(process), "h0") for process in self.launch.survivors()]
        else:
            there = [(process, f"h{process.host}") for process in self.bed.survivors()]
            known = [(psutil.Process(one.pid), one.environ, host) for one, host in there if psutil.pid_exists(one.pid)]
        agents = {process.pid for process, _, _ in known if is_agent(process)}
        for process, environment, host in known:
            with suppress(psutil.Error):
                if "TFLAUNCH_TASK_DIR" in environment:
                    found.append(Victim(process.pid, "task", environment["TFLAUNCH_TASK"]))
                elif process.pid in agents:
                    found.append(Victim(process.pid, "agent" if process.ppid() in agents else "guard", host))
        if not self.is_over():
            assert self.running is not None
            found.append(Victim(self.running.pid, "supervisor", ""))
        return sorted(found, key=lambda victim: (victim.kind, victim.name, victim.pid))

    # ---- faults

    def suffer(self, fault: Fault) -> str:
        """Inject a fault and wait until it is over; return what was done, "" if there was nothing to hurt."""
        verb, _, whom = fault.kind.partition(" ")
        if fault.kind == "follow and stop":
            return self._follow_and_stop(fault)
        if whom == "sshd":
            return self._kill_sshd(fault)
        if verb in ("kill", "stop"):
            return self._hurt(fault, verb, whom)
        return self._hurt_host(fault)

    def _hurt(self, fault: Fault, verb: str, whom: str) -> str:
        kinds = whom.split(" and ")
        there = [victim for victim in self.victims() if victim.kind in kinds]
        if not there:
            return ""
        name = there[fault.choice % len(there)].name
        victims = [victim for victim in there if victim.name == name]
        for victim in victims:
            _signal(victim.pid, signal.SIGSTOP)
        if verb == "stop":
            time.sleep(fault.seconds)
        for victim in victims:
            _signal(victim.pid, signal.SIGCONT if verb == "stop" else signal.SIGKILL)
        if (verb, whom) == ("kill", "supervisor"):
            assert self.running is not None
            self.running.wait()
            time.sleep(min(fault.seconds, _LEASE / 2))
            self._run("up", "--resume", self.launch.run_directory().name)
        return f"{fault.kind} {name}".rstrip() + (f" for {fault.seconds:g} s" if verb == "stop" else "")

    def _hurt_host(self, fault: Fault) -> str:
        bed = self.bed
        assert bed is not None
        host = sorted({host for hosts in self.places.values() for host in hosts})[fault.choice % len(self.places)]
        match fault.kind:
            case "cut":
                bed.cut(host)
                time.sleep(fault.seconds)
                bed.heal(host)
            case "black hole":
                bed.blackhole(host)
                time.sleep(fault.seconds)
                bed.unblackhole(host)
            case "flap":
                for _ in range(5):
                    bed.cut(host)
                    time.sleep(0.3)
                    bed.heal(host)
                    time.sleep(0.3)
            case "slow":
                bed.delay(host, 100)
            case "power off":
                bed.power_off(host)
                time.sleep(min(fault.seconds, 6))
                bed.power_on(host)
            case "full disk":
                with self._full(host):
                    time.sleep(fault.seconds)
        return f"{fault.kind} h{host}" + (
            f" for {fault.seconds:g} s" if fault.kind in ("cut", "black hole", "full disk") else ""
        )

    @contextmanager
    def _full(self, host: int) -> Iterator[None]:
        """Leave no space in a host's HOME."""
        assert self.bed is not None
        filler = self.bed.home_of(host) / "filler"
        size = "size=64m"
        self.bed.execute(host, "mount", "-o", f"remount,{size}", self.bed.home)
        try:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
            yield
        finally:
            filler.unlink(missing_ok=True)

    def _kill_sshd(self, fault: Fault) -> str:
        assert self.bed is not None
        sessions = [
            one
            for one in self.bed.processes()
            if one.is_sshd and ":" in one.cmdline[0] and "listener" not in one.cmdline[0]
        ]
        if not sessions:
            return ""
        chosen = sessions[fault.choice % len(sessions)]
        _signal(chosen.pid, signal.SIGKILL)
        return f"kill sshd h{chosen.host}"

    def _follow_and_stop(self, fault: Fault) -> str:
        if not (self.launch.home / "runs").exists():
            return ""
        following = self.launch.start("logs", "-f")
        time.sleep(1.0)
        following.send_signal(signal.SIGSTOP)
        time.sleep(fault.seconds)
        following.kill()
        following.communicate()
        return fault.kind


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
