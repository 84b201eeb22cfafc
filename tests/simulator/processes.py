"""Processes of simulated hosts, and what the kernel reports about them."""

from __future__ import annotations

import signal
from collections import deque
from typing import TYPE_CHECKING

from simulator.descriptors import File
from simulator.world import World

if TYPE_CHECKING:
    from simulator.hosts import SimHost
    from simulator.programs import Program


class Pipe(File):
    """The read end of a pipe, as the agent holds it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.writers = 1
        self._data: deque[bytes] = deque()

    @property
    def is_readable(self) -> bool:
        return bool(self._data) or not self.writers

    def read(self, size: int) -> bytes:
        if self._data:
            data = b"".join(self._data)
            self._data.clear()
            if len(data) > size:
                self._data.append(data[size:])
            return data[:size]
        if self.writers:
            raise BlockingIOError
        return b""

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self._data.append(data)
            self.changed()

    def hang_up(self) -> None:
        self.writers -= 1
        if not self.is_closed:
            self.changed()


class PidFile(File):
    """Becomes readable when a process exits."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world)
        self._process = process

    @property
    def is_readable(self) -> bool:
        return not self._process.is_alive


class Process:
    """A process of the run on a host: of a task, or a remaining child of one."""

    def __init__(self, host: SimHost, env: dict[str, str], parent: Process | None) -> None:
        self.world = host.world
        self.host = host
        self.env = env
        self.task = env["TFLAUNCH_TASK"]
        self.attempt = int(env["TFLAUNCH_ATTEMPT"])
        self.pid = 100 + self.world.number()
        self.parent = parent
        self.session: int = self.pid if parent is None else parent.session
        self.output: Pipe = Pipe(self.world) if parent is None else parent.output
        self.report: Pipe | None = Pipe(self.world) if parent is None else None
        self.program: Program | None = None
        self.is_alive = True
        self.is_told = False
        self.is_agents = False
        """Whether the agent has adopted it, not the guard."""
        self.status = 0
        self._pid_files: list[PidFile] = []
        self._kill_comes = False
        if parent is not None:
            self.output.writers += 1
        host.processes[self.pid] = self
        host.oracle.process_began(self)

    def __str__(self) -> str:
        return f"{self.task} attempt {self.attempt} pid {self.pid} on {self.host.name}"

    def pid_file(self) -> PidFile:
        file = PidFile(self.world, self)
        self._pid_files.append(file)
        return file

    @property
    def can_act(self) -> bool:
        """Whether its code still runs: a process that has received KILL may be slow to die, but does nothing more."""
        return self.is_alive and not self._kill_comes

    def say(self, data: bytes) -> None:
        if self.can_act and self.host.agent is not None and not self.output.is_closed:
            self.host.oracle.wrote(self.task, self.attempt, data)
            self.output.write(data)

    def receive(self, number: int) -> None:
        if not self.can_act or number == signal.SIGCONT:
            return
        if number == signal.SIGKILL and self.host.is_stuck:
            self._kill_comes = True
            self.host.when_unstuck.append(lambda: self.die(signal=number))
        elif number == signal.SIGKILL:
            self._kill_comes = True
            self.world.after(self.host.death_takes(), lambda: self.die(signal=number))
        elif self.program is not None and not self.host.is_stuck:
            self.program.on_signal(number)

    def report_start(self, failure: bytes) -> None:
        """The fork has called exec, or has failed."""
        if self.report is not None:
            if failure:
                self.report.write(failure)
            self.report.hang_up()
            self.report = None

    def die(self, code: int = 0, signal: int = 0) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.status = signal or code << 8
        how = f"by signal {signal}" if signal else f"with {code}"
        self.world.note("dies", self, how, "(told)" if self.is_told else "")
        self.host.oracle.process_ended(self)
        self.report_start(b"")
        self.output.hang_up()
        if self.program is not None:
            self.program.ended()
        for file in self._pid_files:
            if not file.is_closed:
                file.changed()
        self.host.process_died(self)
