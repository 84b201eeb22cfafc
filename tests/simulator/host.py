"""A simulated host as its agent uses it: the interface of `tflaunch_worker.agent.host.Host`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tflaunch_worker import process_state, spawn, tf_config
from tflaunch_worker.agent import task as tasks
from tflaunch_worker.agent import task_processes
from tflaunch_worker.agent.network.ports import PortTakenError, PortWatch
from tflaunch_worker.agent.services import Service
from tflaunch_worker.agent.task import Task
from tflaunch_worker.agent.task_output import Spool, Stream
from tflaunch_worker.features.checkpoints.checkpoint_copies import CheckpointCopies
from tflaunch_worker.features.hang.evidence import TaskEvidence
from tflaunch_worker.features.memory.memory_reports import MemoryService
from tflaunch_worker.spawn import Command

if TYPE_CHECKING:
    from simulator.hosts import SimHost
    from simulator.loop import SimLoop

_SETTINGS = process_state.TaskSettings(0o022, (1024, 1024), 0)


class SimPorts:
    """Holds simulated ports, which are mere numbers."""

    def __init__(self, host: SimHost) -> None:
        self._host = host

    def holder(self, task: str) -> None:
        """Return nothing: there are no sockets."""

    def hold(self, task: str, port: int) -> int:
        if self._host.refuses_ports:
            raise PortTakenError(port or 2222, "pid 7 (another program)")
        return port or self._host.world.random.randrange(10000, 32000)


class WatchedSpool(Spool):
    """The real spool; it reports dropped and released output to the oracle."""

    def __init__(self, host: SimHost, task: str, attempt: int) -> None:
        super().__init__(host.directory, host.spool_limit)
        self._oracle = host.oracle
        self._about = task, attempt

    def _drop(self, size: int) -> None:
        self._oracle.dropped(*self._about, self.end, size)
        super()._drop(size)

    def release(self, offset: int) -> None:
        self._oracle.released(*self._about, offset)
        super().release(offset)


class SimCheckpointCopies(Service):
    """Answers nothing: the checkpoints of simulated programs are not files."""

    CALLS = CheckpointCopies.CALLS

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in self.CALLS:
            raise AttributeError(name)
        return lambda *_: None


class SimMemoryService(SimCheckpointCopies):
    """Measures nothing: nothing grows, and no death is explained."""

    CALLS = MemoryService.CALLS


class SimMeasurer:
    """Measures tasks, which use nothing here; answers at once."""

    def ask(self, pids: Callable[[], dict[str, int]], answer: Callable[[dict[str, dict[str, float]]], None]) -> None:
        answer({task: {"cpu_seconds": 0.0, "rss_bytes": 0} for task in pids()})


class SimTaskEvidence(TaskEvidence):
    """Looks at tasks, which have no processes here; answers at once."""

    def ask(self, answer: Callable[[dict[str, list[Any]]], None]) -> None:
        answer({task: [] for task in self.agent.pids()})


class SimListeners:
    """Stands in for tasks on their ports."""

    def listen(self, ports: dict[str, int], run: str, secret: str, seen: Callable[[str], None]) -> None:
        """Every peer can be reached here."""

    def close(self) -> None:
        """Nothing was opened."""


class SimFence:
    """Guards simulated ports; now and then it cannot, and outsiders come."""

    def __init__(self, host: SimHost, loop: SimLoop) -> None:
        self.counts: dict[str, int] = {}
        self._host = host
        self._loop = loop
        self.tell: Callable[[str, str], None] = lambda *_: None
        self._admitted: tuple[str, ...] | None = None
        self._tasks: dict[str, None] = {}

    def admit(self, addresses: Sequence[str]) -> str:
        self._admitted = tuple(addresses)
        return "" if addresses else "the addresses of a host are not known"

    @property
    def tasks(self) -> list[str]:
        return list(self._tasks)

    def lacks(self, source: str) -> bool:
        return self._admitted is not None and source not in self._admitted

    def guard(self, task: str, holder: object) -> str:
        """Guard a port, if the agent was told for whom."""
        if self._admitted is None:
            return ""
        self._host.oracle.guarded(task, self._host.address, self._admitted)
        if self._host.world.chance(0.02):
            return "the kernel does not allow it"
        self._tasks[task] = None
        if self._host.world.chance(0.05):
            self.counts[task] = self.counts.get(task, 0) + 1
            self._loop.call_at(
                self._loop.now() + self._host.world.within(0.01, 1.0), lambda: self.tell(task, "10.9.9.9")
            )
        return ""

    def note_opened(self, task: str) -> None:
        """Do nothing: outsiders come at any time here."""

    def leave(self, task: str) -> None:
        self._tasks.pop(task, None)


class SimPendingFork:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimZygotePool:
    """Forks tasks with a delay, once modules are imported, or refuses to."""

    def __init__(self, host: SimHost, loop: SimLoop) -> None:
        self._host = host
        self._loop = loop
        self._ready_at = loop.now() + host.world.within(0.001, 8.0)

    def start_task(
        self, command: Command, started: Callable[[spawn.Child], None], refused: Callable[[], None]
    ) -> SimPendingFork:
        pending = SimPendingFork()

        def decide() -> None:
            if not pending.is_cancelled and not command.unforked and self._host.world.chance(0.8):
                command.preload = "tensorflow"
                started(tasks.spawn.start_process(command, _SETTINGS))  # type: ignore[attr-defined]
            elif not pending.is_cancelled:
                refused()

        self._loop.call_at(max(self._ready_at, self._loop.now()) + self._host.world.within(0.0001, 0.01), decide)
        return pending


class SimAgentHost:
    """What an agent needs of its host."""

    def __init__(self, host: SimHost, loop: SimLoop) -> None:
        self.directory = host.directory
        self._cluster: dict[str, list[str]] = {}
        self.gpus = 0
        self.no_way_out = "pasta is not installed there"
        self.ports = SimPorts(host)
        self.measurer = SimMeasurer()
        self.listeners = SimListeners()
        self.fence = SimFence(host, loop)
        self._host = host
        self._loop = loop
        self._zygotes = SimZygotePool(host, loop)
        self.adopted = task_processes.Adopted()
        self.settings = None

    def addresses(self) -> list[str]:
        return ["127.0.0.1", self._host.address]

    def open_private_network(self) -> str:
        """Return no reason against it: there are no networks."""
        return ""

    def fence_gap(self, task: str, port: int) -> str:
        return ""

    def watch_ports(self, opened: Callable[[str, int], None]) -> PortWatch:
        return PortWatch(self._loop, opened)

    def stream(self, task: str, attempt: int) -> Stream:
        return Stream(task, attempt, WatchedSpool(self._host, task, attempt), self._loop.now)

    def task(self, command: Command, stream: Stream, progress: None, listener: Any) -> Task:
        processes = task_processes.TaskProcesses(stream.task, stream.attempt, command.env, self.adopted)
        return Task(command, stream, processes, progress, self._loop, listener)

    def task_directory(self, name: str) -> str:
        """Return the directory of a task, which is never opened here."""
        return f"{self._host.directory}/tasks/{name}"

    def find_left_file(self, task: str, name: str, most: int) -> Spool:
        """Return a file that may be larger than the window: every attempt leaves one."""
        file = Spool(self._host.directory)
        file.append(self._host.oracle.left_file(task, name))
        return file

    def forget_stale_files(self, task: str, names: Iterable[str]) -> None:
        """An attempt begins, and has left nothing yet."""
        self._host.oracle.left_nothing(task)

    def find_checkpoint(self, command: Command, since: float, found: Callable[[int], None]) -> None:
        """Programs here write no checkpoints; the search takes a while."""
        self._loop.call_at(self._loop.now() + self._host.world.within(0.001, 0.1), lambda: found(0))

    def progress(self, came: Callable[[], None]) -> None:
        """Return nothing: programs here only print."""

    def start(self, task: Task, starter: Any) -> None:
        starter = self._zygotes.start_task if self._host.world.chance(0.3) else None
        task.start(_SETTINGS, starter)

    def look_up(self, names: list[str], found: Callable[[dict[str, str]], None]) -> None:
        address = "127.0.1.1" if self._host.has_bad_names else "10.0.0.9"
        wait = self._host.world.within(0.001, 0.05)
        self._loop.call_at(self._loop.now() + wait, lambda: found(dict.fromkeys(names, address)))

    def probe_peers(self, message: dict[str, Any], tried: Callable[[dict[str, str]], None]) -> None:
        failed = dict.fromkeys(message["peers"], "timed out") if self._host.has_closed_ports else {}
        wait = message["patience"] if failed else self._host.world.within(0.001, 0.2)
        self._loop.call_at(self._loop.now() + wait, lambda: tried(failed))

    def set_cluster(self, cluster: dict[str, list[str]]) -> None:
        self._cluster = cluster

    def command(self, task: str, message: dict[str, Any], progress: None) -> Command:
        env = {str(name): str(value) for name, value in message["env"].items()}
        if message.get("tf_config") is not None:
            env[tf_config.NAME] = tf_config.compose(self._cluster, **message["tf_config"])
        env.update(message.get("secrets") or {})
        env["SIM_PORT"] = str(6006 if message.get("chooses_port") else message.get("port", 0))
        env["TFLAUNCH_TASK_DIR"] = self.task_directory(task)
        return Command([str(word) for word in message["argv"]], env, str(message["workdir"]))
