"""The place of a drill: tflaunch on this machine or on a bed, its processes, and the faults that they suffer."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from chaos import program
from chaos.drill import STEPS, Drill, Fault, is_early
from chaos.judge import Taken
from chaos.taken_ports import most_ports, taken_ports
from chaos.wall_clock import WallClock
from support.fixed_ports import free_ports
from support.launch import Launch
from support.memory_group import memory_group
from support.netns_hosts import Bed
from support.processes import ProcessWatch, environment_of, is_agent
from support.sshd import Keyring
from support.waiting import wait_until

_LEASE, _GRACE = 12, 2  # seconds
_POLL = 0.1
_PACE = 0.1  # seconds of a step
_CHOSEN = (10000, 32768)  # the ports among which tflaunch chooses
_CLOCKS = (2, -1, 26, -7)  # hours by which the wall clock of a run comes to differ from this machine's
_MEMORY = 48 << 20  # bytes that a task may allocate in addition to what it has
_LAST_WORDS = 5.0  # seconds to read what a supervisor wrote before its end
_BETWEEN = 500  # tries, in some seconds, until the ports of a killed agent and its tasks are free
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
        self.clock = WallClock(directory / "clock") if any(one.kind == "step clock" for one in drill.faults) else None
        clocked = self.clock.environ if self.clock else {}
        self.bed = stack.enter_context(Bed(directory / "bed", keys, environ=clocked)) if drill.is_far else None
        if self.bed is not None:
            self.bed.control(self.launch)
        self.launch.env |= clocked
        self.launch.env["TF_CPP_MIN_LOG_LEVEL"] = "2"
        if any(one.kind == "hang" for one in drill.faults):
            self.launch.env["TFLAUNCH_STALL_SCALE"] = "100"
        self.places = _PLACES[drill.strategy]
        self.tasks = [f"{role}:{index}" for role, hosts in self.places.items() for index in range(len(hosts))]
        self.running: subprocess.Popen[str] | None = None
        self.errors: list[str] = []
        """What its supervisors have written to stderr."""
        self.taken: list[Taken] = []
        self._ports = free_ports(len(self.tasks)) if drill.has_fixed_ports else []
        self._early = ExitStack()
        stack.callback(self._early.close)
        self._readers: list[threading.Thread] = []

    # ---- the training

    def spec(self) -> Path:
        fields: dict[str, Any] = {
            "cluster": self._cluster(),
            "strategy": self.drill.strategy,
            "command": [sys.executable, program.__file__, str(self.directory), str(STEPS), str(_PACE)],
            "restart": {"max": 30, "window": "1h", "backoff": [0.5, 5]},
            "timeouts": {"lease": _LEASE, "heartbeat": 4, "grace": _GRACE, "connect": 30},
        }
        if self.bed:
            fields["hosts"] = {f"h{host}": {"python": sys.executable} for host in self.bed.hosts}
        if self.clock:
            fields["env"] = self.clock.environ  # over SSH, tasks have no variables of the session
        if self.drill.preload:
            fields["preload"] = ["tensorflow"]
        return self.launch.spec(**fields)

    def _cluster(self) -> dict[str, list[str]]:
        ports = iter(self._ports)
        return {
            role: [self._host_name(host) + (f":{next(ports)}" if self._ports else "") for host in hosts]
            for role, hosts in self.places.items()
        }

    def _host_name(self, host: int) -> str:
        return self.bed.name(host) if self.bed else "localhost"

    def _task_hosts(self) -> list[int]:
        return sorted({host for hosts in self.places.values() for host in hosts}) if self.bed else [0]

    def start(self) -> ProcessWatch:
        """Start the training; return a watch over its tasks."""
        if any(map(is_early, self.drill.faults)):
            for host in self._task_hosts():
                self._early.enter_context(self._take(host, self._early_ports(host), is_early=True))
        self._run("up", self.spec())
        runs = self.launch.home / "runs"
        assert self.wait(lambda: runs.exists() and any(runs.iterdir())), "it did not start"
        return ProcessWatch(self._host_of, self.launch.run_directory().name)

    def _run(self, *arguments: object) -> None:
        self.running = running = self.launch.start(*arguments)
        for pipe in (running.stdout, running.stderr) if self.drill.is_read else (running.stderr,):
            kept = self.errors if pipe is running.stderr else deque[str](maxlen=1)
            self._readers.append(threading.Thread(target=kept.extend, args=(pipe,), daemon=True))
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
        return self.running is None or self.running.poll() is not None

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait for something, or until the run is over; return whether it has happened."""
        with suppress(AssertionError):
            wait_until(lambda: until() or self.is_over())
        return until()

    def last(self, seconds: float) -> None:
        """Return after some seconds, or when the run is over."""
        for _ in range(round(seconds / _POLL)):
            if not self.is_over():
                time.sleep(_POLL)  # clock: how long a fault lasts is drawn

    def finish(self) -> int | None:
        """Wait for the end; return the exit code, None if there is no end."""
        running = self.running
        if not self.drill.is_read:
            self.wait(lambda: all((self.directory / f"result.{task}").exists() for task in self.finishers()))
            threading.Thread(target=running.stdout.read, daemon=True).start()
        if not self.wait(self.is_over):
            return None
        for reader in self._readers:
            reader.join(_LAST_WORDS)
        return running.poll()

    def finishers(self) -> list[str]:
        """Return the tasks that write a result."""
        return ["chief:0"] if "chief" in self.places else list(self.tasks)

    def left(self) -> Sequence[object]:
        if self.bed is not None and (there := self.bed.wait_empty()):
            return there
        with suppress(AssertionError):
            wait_until(lambda: not self.launch.survivors())
        return self.launch.survivors()

    # ---- processes

    def _host_of(self, namespace: str) -> int | None:
        if self.bed is not None:
            return self.bed.host_of(namespace)
        return 0 if namespace == os.readlink("/proc/self/ns/pid") else None

    def victims(self) -> list[Victim]:
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
            found.append(Victim(self.running.pid, "supervisor", ""))
        return sorted(found, key=lambda victim: (victim.kind, victim.name, victim.pid))

    # ---- faults

    def suffer(self, fault: Fault) -> str:
        """Inject a fault and wait until it is over; return what was done, "" if there was nothing to hurt."""
        if is_early(fault):
            return self._give_back(fault)
        if self.is_over():
            return ""
        verb, _, whom = fault.kind.partition(" ")
        special = {
            "take ports": self._take_between,
            "step clock": self._step_clock,
            "exceed memory": self._exceed_memory,
            "follow and stop": self._follow_and_stop,
            "hang": self._hang,
            "kill sshd": self._kill_sshd,
        }
        if fault.kind in special:
            return special[fault.kind](fault)
        return self._hurt(fault, verb, whom) if verb in ("kill", "stop") else self._hurt_host(fault)

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
            self.last(fault.seconds)
        for victim in victims:
            _signal(victim.pid, signal.SIGCONT if verb == "stop" else signal.SIGKILL)
        if (verb, whom) == ("kill", "supervisor"):
            self.running.wait()
            self.last(min(fault.seconds, _LEASE / 2))
            self._run("up", "--resume", self.launch.run_directory().name)
        return f"{fault.kind} {name}".rstrip() + (f" for {fault.seconds:g} s" if verb == "stop" else "")

    def _hurt_host(self, fault: Fault) -> str:
        bed = self.bed
        hosts = self._task_hosts()
        host = hosts[fault.choice % len(hosts)]
        match fault.kind:
            case "cut":
                bed.cut(host)
                self.last(fault.seconds)
                bed.heal(host)
            case "black hole":
                bed.blackhole(host)
                self.last(fault.seconds)
                bed.unblackhole(host)
            case "flap":
                for change in (bed.cut, bed.heal) * 5:
                    change(host)
                    self.last(0.3)
            case "slow":
                bed.delay(host, 100)
            case "power off":
                bed.power_off(host)
                self.last(min(fault.seconds, 6))
                bed.power_on(host)
            case "full disk":
                with self._full(host):
                    self.last(fault.seconds)
        return f"{fault.kind} h{host}" + (
            f" for {fault.seconds:g} s" if fault.kind in ("cut", "black hole", "full disk") else ""
        )

    @contextmanager
    def _full(self, host: int) -> Iterator[None]:
        """Leave no space in a host's HOME."""
        filler = self.bed.home_of(host) / "filler"
        self.bed.execute(host, "mount", "-o", "remount,size=64m", self.bed.home)
        try:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
            yield
        finally:
            filler.unlink(missing_ok=True)

    def _kill_sshd(self, fault: Fault) -> str:
        servers = [one for one in self.bed.processes() if one.is_sshd]
        sessions = [one for one in servers if ":" in one.cmdline[0] and "listener" not in one.cmdline[0]]
        if not sessions:
            return ""
        chosen = sessions[fault.choice % len(sessions)]
        _signal(chosen.pid, signal.SIGKILL)
        return f"kill sshd h{chosen.host}"

    def _step_clock(self, fault: Fault) -> str:
        """Step the wall clock of all processes of the run, to a time that differs from this machine's by hours."""
        hours = _CLOCKS[fault.choice % len(_CLOCKS)]
        there = self.victims()
        number = sum(self.clock.is_read_by(victim.pid) for victim in there)
        self.clock.step(hours * 3600)
        self.last(fault.seconds)
        return f"{fault.kind} by {hours:+d} h for {number} of {len(there)} processes" if number else ""

    def _exceed_memory(self, fault: Fault) -> str:
        """Let a task allocate more than its cgroup allows, until the kernel kills it."""
        tasks = [victim for victim in self.victims() if victim.kind == "task"]
        if not tasks:
            return ""
        name = tasks[fault.choice % len(tasks)].name
        told = self.directory / f"greed.{name}"
        with memory_group(_MEMORY) as group:
            for victim in tasks:
                if victim.name == name:
                    group.add(victim.pid)
            told.touch()
            self.wait(lambda: group.kills() > 0 or not group.members())
            told.unlink()
            return f"{fault.kind} as {name}" if group.kills() else ""

    def _hang(self, fault: Fault) -> str:
        """Let a task that trains wait without end, until tflaunch has ended the attempt."""
        names = self.finishers()
        name = names[fault.choice % len(names)]
        told, before = self.directory / f"hang.{name}", self._hangs()
        told.touch()
        self.wait(lambda: self._hangs() > before)
        told.unlink(missing_ok=True)
        return f"{fault.kind} in {name}" if self._hangs() > before else ""

    def _hangs(self) -> int:
        return sum(record["kind"] == "job_hung" for record in self.launch.journal())

    # ---- ports

    def _early_ports(self, host: int) -> list[int]:
        """Return what to take before the start: the ports of the spec, or half of those that tflaunch chooses from."""
        if self._ports:
            named = zip(self._ports, (one for hosts in self.places.values() for one in hosts), strict=True)
            return [port for port, where in named if not self.bed or where == host]
        return list(range(*_CHOSEN, 2))[: most_ports() // len(self._task_hosts())]

    @contextmanager
    def _take(self, host: int, ports: list[int], tries: int = 1, *, is_early: bool = False) -> Iterator[int]:
        """Let another program have ports of a host; yield how many it has got."""
        network = self.bed.network(host) if self.bed else "/proc/self/ns/net"
        since = time.monotonic()  # clock: the journal says when ports were held
        with taken_ports(network, ports, tries) as got:
            try:
                yield len(got)
            finally:
                times = (since, time.monotonic())  # clock: as above
                self.taken.append(Taken(self._host_name(host), frozenset(got), *times, is_early, self.is_over()))

    def _give_back(self, fault: Fault) -> str:
        """Let the ports that were taken before the start be taken for a while."""
        self.last(fault.seconds)
        self._early.close()
        return f"take ports before the start, for {fault.seconds:g} s"

    def _take_between(self, fault: Fault) -> str:
        """Kill the agent of a host, and take the ports of its tasks before the next one can hold them."""
        agents = [victim for victim in self.victims() if victim.kind in ("agent", "guard")]
        held = {record["host"]: record["ports"] for record in self.launch.journal() if record["kind"] == "ports_held"}
        agents = [victim for victim in agents if self._host_name(int(victim.name[1:])) in held]
        if not agents:
            return ""
        host = int(agents[fault.choice % len(agents)].name[1:])
        for victim in agents:
            if victim.name == f"h{host}":
                _signal(victim.pid, signal.SIGKILL)
        with self._take(host, list(held[self._host_name(host)].values()), _BETWEEN) as number:
            self.last(fault.seconds)
        return f"kill agent and take {number} ports on {self._host_name(host)} for {fault.seconds:g} s"

    def _follow_and_stop(self, fault: Fault) -> str:
        if not (self.launch.home / "runs").exists():
            return ""
        following = self.launch.start("logs", "-f")
        self.last(1.0)
        following.send_signal(signal.SIGSTOP)
        self.last(fault.seconds)
        following.kill()
        following.communicate()
        return fault.kind


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
