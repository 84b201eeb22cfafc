"""Simulated hosts: a clock, a disk, processes, a guard with its lock, and the real agent."""

from __future__ import annotations

import ipaddress
import signal
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from simulator import kernel
from simulator.descriptors import Signal
from simulator.file_system import Disk, FileSystem
from simulator.host import SimAgentHost
from simulator.links import End, Speed, Wire
from simulator.loop import SimLoop
from simulator.processes import Process
from simulator.world import Violation, World
from tflaunch_worker import orphans
from tflaunch_worker.agent.agent import Agent

if TYPE_CHECKING:
    from simulator.code import SimCode
    from simulator.oracle import Oracle
    from simulator.programs import Stage
    from tflaunch_worker.agent.host import Host

_GUARD_WAITS = 5.0  # seconds for which a link outlives the agent's end of it, while the guard lives (boot.py)
_LOOK_AGAIN = 0.01  # seconds between sweeps


class SimHost:
    def __init__(self, name: str, is_local: bool, world: World, oracle: Oracle, stage: Stage) -> None:
        self.name = name
        self.is_local = is_local
        self.world = world
        self.oracle = oracle
        self.stage = stage
        random = world.random
        self.clock_ahead = 0.0 if is_local else random.choice((0.0, random.uniform(0, 1e6), random.uniform(0, 100)))
        self.clock_rate = 1.0 if is_local else 1 + random.uniform(-1e-4, 1e-4)
        self.capacity = random.choice((65536, 262144, 20000))
        self.code: SimCode | None = None
        self.wall_ahead = 0.0
        self._format_disk()
        self.spool_limit = random.choice((1 << 28, 1 << 28, 40000))
        self.processes: dict[int, Process] = {}
        self.open_ports: set[int] = set()
        self.wires: list[Wire] = []
        self.agent: AgentProcess | None = None
        self.is_up = True
        self.is_cut = False
        self.is_refusing = False
        self.has_bad_names = False
        self.has_closed_ports = False
        self.refuses_ports = False
        self.refuses_files = False
        self.is_stuck = False
        self.slow_until = 0.0  # its disk
        self.when_unstuck: list[Callable[[], None]] = []
        self.is_slow_to_die = False
        self.has_lied = False
        self.queued_until = 0.0
        self.slowness = 0.0
        self.shaken_until = 0.0
        delay = 0.00002 if is_local else random.choice((0.0003, 0.002, 0.03))
        self._speed = Speed(delay, delay / 10, 1e8 if is_local else random.choice((1e7, 1e6)))
        self._waiting_for_guard: list[Callable[[], None]] = []

    def wall_clock(self) -> float:
        """Return the seconds since the epoch that this host believes in."""
        return self.world.wall_clock(self.wall_ahead)

    @property
    def address(self) -> str:
        return str(ipaddress.ip_address(0x0A000000 + zlib.crc32(self.name.encode()) % 0xFFFFFF))

    @property
    def directory(self) -> str:
        """The agent's directory, which identifies it."""
        return f"/home/runs/run/agents/{self.name}"

    @property
    def has_orphans(self) -> bool:
        return self.agent is None and bool(self.living())

    @property
    def is_locked(self) -> bool:
        return self.agent is not None

    @property
    def is_reachable(self) -> bool:
        """Whether a connection from the supervisor's machine gets through."""
        return self.is_up and not self.is_cut

    @property
    def latest_hello(self) -> bytes:
        """The greeting with which a supervisor has begun the newest link, or a part of it."""
        return next((wire.first for wire in reversed(self.wires) if wire.first), b"")

    @property
    def delay(self) -> float:
        """The longest time that a byte is in transit, in seconds."""
        return self.speed().delay + self.speed().jitter

    def speed(self) -> Speed:
        if not self.slowness:
            return self._speed
        return Speed(self._speed.delay + self.slowness, self.slowness / 2, min(self._speed.rate, 2e5))

    def living(self) -> list[Process]:
        return [process for process in self.processes.values() if process.is_alive]

    # ---- the agent

    def start_agent(self) -> End:
        """Start guard and agent; return the supervisor's end of the link."""
        assert not self.is_locked, f"two guards on {self.name}"
        self.world.note("agent starts on", self.name)
        self.agent = AgentProcess(self)
        return self.connect()

    def connect(self) -> End:
        assert self.agent is not None
        wire = Wire(self.world, self.speed, self.capacity, self._when_guard_ends)
        self.wires = [wire for wire in self.wires if not (wire.supervisor.is_closed and wire.agent.is_closed)]
        self.wires.append(wire)
        self.agent.accept(wire.agent)
        self.world.note("link", wire.supervisor.fileno(), "to", self.name)
        return wire.supervisor

    def refused_end(self) -> End:
        """Return the supervisor's end of a link to a guard that did not get the lock."""
        wire = Wire(self.world, self.speed, self.capacity, self._when_guard_ends)
        wire.agent.close()
        return wire.supervisor

    def agent_ended(self) -> None:
        """The guard kills what is left, and exits."""
        self.world.note("agent has ended on", self.name)
        if self.agent is not None and self.agent.has_lost_guard:
            self._leave_orphans()
            return
        for process in self.living():
            process.receive(signal.SIGKILL)
        self._guard_looks()

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()

    def kill_guard_and_agent(self) -> None:
        """Kill -9 of both: the kernel kills the tasks, but not their child processes."""
        assert self.agent is not None
        self.agent.vanish()
        self._leave_orphans()

    def _leave_orphans(self) -> None:
        """Guard and agent are dead: the kernel kills the tasks, but not their child processes."""
        assert self.agent is not None
        agent, self.agent = self.agent, None
        for process in self.living():
            process.output.close()
            if process.parent is None:
                process.receive(signal.SIGKILL)
        agent.hang_up()
        self._guard_is_dead()

    def sweep(self, is_guard: bool = False) -> bool:
        """Kill orphans, as a guard before its agent starts or as another command; return whether any existed."""
        kernel.current.host = self
        found, _ = orphans.kill_once(self.directory, is_held=is_guard)
        return bool(found)

    def when_swept(self, call: Callable[[], None], is_guard: bool = False) -> None:
        """Call back once no orphan is found any more."""
        if self.sweep(is_guard):
            self.world.after(_LOOK_AGAIN, lambda: self.when_swept(call, is_guard))
        else:
            call()

    def process_died(self, process: Process) -> None:
        """A process has died: the guard reaps those it adopted (init without a guard), the agent its own."""
        for child in self.processes.values():
            if child.parent is process:
                child.is_agents = self.agent is not None and self.agent.adopts
        if process.parent is not None or self.agent is None or process.output.is_closed:
            self.processes.pop(process.pid, None)
        self._guard_looks()

    def _guard_looks(self) -> None:
        if self.agent is not None and self.agent.has_ended and not self.living():
            self.world.note("guard has ended on", self.name)
            self._forget_run()

    def _forget_run(self) -> None:
        self.agent = None
        self.processes.clear()
        self.open_ports.clear()
        self._guard_is_dead()

    def _guard_is_dead(self) -> None:
        waiting, self._waiting_for_guard = self._waiting_for_guard, []
        for call in waiting:
            call()

    def _when_guard_ends(self, call: Callable[[], None]) -> None:
        """Call back when the remote end of a link has seen the guard exit and has searched for orphans."""
        if self.is_local:
            call()
            return
        if self.agent is None:
            self.when_swept(call)
            return
        waits = [call]

        def once() -> None:
            if waits:
                self.when_swept(waits.pop())

        self._waiting_for_guard.append(once)
        self.world.after(_GUARD_WAITS, once)

    def _format_disk(self) -> None:
        self.disk = Disk(self.wait_for_disk)
        self.files = FileSystem(self.disk, self.wall_clock)
        self.files.make_directories(self.directory)

    def check_code(self) -> None:
        """I15: a process starts only where a complete copy of the code is, if its host needs one."""
        if self.code is not None and not self.is_local and (wrong := self.code.what_is_wrong(self)):
            raise Violation("I15", f"a process starts on {self.name} beside an incomplete copy of the code: {wrong}")

    def wait_for_disk(self, seconds: float) -> None:
        """The agent, which writes, does nothing else meanwhile."""
        if self.agent is not None and self.agent.loop.frozen_until < self.slow_until:
            self.agent.loop.frozen_until = max(self.agent.loop.frozen_until, self.world.now) + seconds

    # ---- processes

    def fork(self, env: dict[str, str]) -> Process:
        process = Process(self, env, None)
        self.stage.begin(process)
        return process

    def death_takes(self) -> float:
        """Return the seconds from a KILL to the process's death."""
        return self.world.within(0.5, 1.5) if self.is_slow_to_die else self.world.within(0.0001, 0.003)

    def unstick(self) -> None:
        self.is_stuck = False
        dying, self.when_unstuck = self.when_unstuck, []
        for die in dying:
            die()

    # ---- power and network

    def power_off(self) -> None:
        """Everything here is lost at once, without notification."""
        self.is_up = False
        for wire in self.wires:
            wire.die()
        if self.agent is not None:
            self.agent.vanish()
        for process in self.living():
            process.die(signal=signal.SIGKILL)
        self._forget_run()
        self._format_disk()

    def power_on(self) -> None:
        self.is_up = True

    def cut(self, is_cut: bool) -> None:
        self.is_cut = is_cut
        for wire in self.wires:
            if is_cut:
                wire.cut()
            else:
                wire.heal()

    def live_wires(self) -> list[Wire]:
        return [wire for wire in self.wires if not wire.supervisor.is_closed]


class AgentProcess:
    """The agent's process: what `daemon.serve` puts around the agent."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.has_ended = False
        self.agent: Agent | None = None
        self.loop = SimLoop(host, self._stopped)
        self._connections: list[End] = []
        self._ends: list[End] = []
        self._listener = Signal(host.world)
        self._signals = Signal(host.world)
        self._is_drained = False
        self.has_lost_guard = False
        self.adopts = False
        """Whether it adopts processes itself, instead of the guard."""
        boot = host.world.within(0.005, 0.02) if host.is_local else host.world.within(0.02, 0.3)
        host.world.after(boot, lambda: host.when_swept(self._boot, is_guard=True))

    def _boot(self) -> None:
        if self.has_ended:
            return
        self.agent = Agent(self.loop, cast("Host", SimAgentHost(self.host, self.loop)))
        self.loop.watch(self._listener.fileno(), self._accept)
        self.loop.watch(self._signals.fileno(), self._read_signals)
        self.loop.turn()

    def accept(self, end: End) -> None:
        self._connections.append(end)
        self._ends.append(end)
        self._listener.set()

    def drain(self) -> None:
        """TERM."""
        self._is_drained = True
        self._signals.set()

    def lose_guard(self) -> None:
        """The guard is dead: the kernel sends TERM."""
        self.has_lost_guard = True
        self.drain()

    def _accept(self) -> None:
        self._listener.take()
        assert self.agent is not None
        while self._connections:
            self.agent.connect(self._connections.pop(0))  # type: ignore[arg-type]

    def _read_signals(self) -> None:
        self._signals.take()
        assert self.agent is not None
        if self.has_lost_guard:
            self.agent.give_up("its guard was killed there")
        elif self._is_drained:
            self.agent.drain()
        self.agent.check_exits()

    def _stopped(self) -> None:
        assert self.agent is not None
        self.agent.disconnect()
        self._end()

    def kill(self) -> None:
        if not self.has_ended:
            self.loop.kill()
            self._end()

    def vanish(self) -> None:
        """The power is off: peers are not notified."""
        self.has_ended = True
        self.loop.kill()

    def hang_up(self) -> None:
        """The kernel closes its open files."""
        for end in self._ends:
            end.close()

    def _end(self) -> None:
        self.has_ended = True
        self.hang_up()
        self.host.agent_ended()
