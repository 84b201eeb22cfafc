"""Replacements of os, linux, procfs, fork, files and clocks in agents, and of files and clocks in the supervisor.

`installed` replaces the modules with these, and large sizes with small ones, so that short
histories fill windows, segments and spools.
"""

# ruff: noqa: ARG004 - the replacements have the signatures of the originals

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.file_system import FileSystem, OsCalls, TreeCalls
from simulator.host import SimCheckpointCopies, SimMemoryService, SimTaskEvidence
from tflaunch import private_files
from tflaunch.features import uploads
from tflaunch.store import log_index, log_reader, log_sink, log_writer
from tflaunch.tui import backlog
from tflaunch_worker import orphans, process_ends, process_state, procfs, spawn
from tflaunch_worker.agent import agent, task, task_output, task_processes
from tflaunch_worker.agent.network import ports
from tflaunch_worker.features import file_parts
from tflaunch_worker.features.checkpoints import checkpoint_copies
from tflaunch_worker.features.code import received_code
from tflaunch_worker.features.hang import evidence
from tflaunch_worker.features.memory import memory_reports
from tflaunch_worker.features.setup import setups

if TYPE_CHECKING:
    from simulator.hosts import SimHost
    from simulator.processes import Process
    from tflaunch_worker.event_loop import Loop

_USAGE = resource.struct_rusage([0.0] * 16)
INIT, GUARD, AGENT = 1, 2, 3  # their pids, on every host

_SIZES = (
    (task_output, "CHUNK", 4096),
    (task_output, "WINDOW", 16384),
    (task_output, "SEGMENT", 8192),
    (task_output, "NEAR", 4096),
    (task_output, "PIECE", 1024),
    (uploads, "PART", 1000),
    (backlog, "MEMORY", 2000),
    (backlog, "MOST_BEHIND", 30000),
    (backlog, "_SEGMENT", 6000),
)


class _Current:
    """The host whose agent is running."""

    host: SimHost
    machine: FileSystem  # that of the supervisor


current = _Current()


def _there() -> FileSystem:
    return current.host.files


def _here() -> FileSystem:
    return current.machine


_on_host, _on_machine = OsCalls(_there), OsCalls(_here)


class _Status(NamedTuple):
    si_status: int
    si_code: int


class _Os:
    """os, as `Task` and `Agent` use it."""

    path = os.path
    fsencode = staticmethod(os.fsencode)
    fsdecode = staticmethod(os.fsdecode)
    P_PID, WEXITED, WNOWAIT, CLD_EXITED = os.P_PID, os.WEXITED, os.WNOWAIT, os.CLD_EXITED

    @staticmethod
    def getpid() -> int:
        return AGENT

    @staticmethod
    def getppid() -> int:
        agent = current.host.agent
        return INIT if agent is not None and agent.has_lost_guard else GUARD

    @staticmethod
    def read(descriptor: int, size: int) -> bytes:
        return current.host.world.files[descriptor].read(size)

    @staticmethod
    def close(descriptor: int) -> None:
        current.host.world.files[descriptor].close()

    @staticmethod
    def killpg(group: int, number: int) -> None:
        members = [process for process in current.host.processes.values() if process.session == group]
        if not members:
            raise ProcessLookupError
        for process in members:
            process.is_told = True
            process.receive(number)

    @staticmethod
    def kill(pid: int, number: int) -> None:
        process = _find(pid)
        if process is None:
            raise ProcessLookupError
        process.is_told = True
        process.receive(number)

    @staticmethod
    def waitid(kind: int, pid: int, options: int) -> _Status:
        process = current.host.processes[pid]
        assert not process.is_alive, "the agent would wait for a living process"
        if os.WIFSIGNALED(process.status):
            return _Status(os.WTERMSIG(process.status), signal.SIGCHLD + 1)
        return _Status(os.WEXITSTATUS(process.status), os.CLD_EXITED)

    @staticmethod
    def wait4(pid: int, options: int) -> tuple[int, int, resource.struct_rusage]:
        process = current.host.processes.pop(pid)
        assert not process.is_alive, "the agent would wait for a living process"
        return pid, process.status, _USAGE


class _Linux:
    """linux and procfs, as `Task` and `orphans` use them."""

    @staticmethod
    def pids() -> list[int]:
        return list(current.host.processes)

    @staticmethod
    def parent_of(pid: int) -> None:
        """Return no parent: the search for orphans is not part of a task."""

    @staticmethod
    def may_be_program(pid: int) -> bool:
        return False

    @staticmethod
    def describe_wait(pid: int) -> str:
        return "state D"

    @staticmethod
    def is_lock_free(path: str) -> bool:
        return not current.host.is_locked

    @staticmethod
    def kill(pid: int, pidfd: int | None, number: int) -> bool:
        process = _find(pid)
        if process is None or not process.is_alive:
            return False
        process.is_told = True
        process.receive(number)
        return True

    @staticmethod
    def forbid_core_file(pid: int) -> None:
        """Do nothing: there are no core files."""

    @staticmethod
    def open_pidfd(pid: int) -> int | None:
        process = _find(pid)
        return None if process is None else process.pid_file().fileno()

    @staticmethod
    def descendants(*roots: int, without: Collection[int] = ()) -> list[int]:
        assert INIT not in roots, "the whole machine would be searched"
        found: list[int] = []
        seen, queue = {*roots, *without}, list(roots)
        while queue:
            above = queue.pop()
            processes = current.host.processes.values()
            children = [each.pid for each in processes if _parent_of(each) == above and each.pid not in seen]
            seen.update(children)
            found += children
            queue += children
        return found

    @staticmethod
    def adopt_orphans() -> None:
        agent = current.host.agent
        assert agent is not None
        agent.adopts = True

    @staticmethod
    def place_of(pid: int) -> procfs.Place | None:
        process = _find(pid)
        if process is None or not process.is_alive:
            return None
        return procfs.Place(_parent_of(process), process.session, process.session, pid)

    @staticmethod
    def clock() -> int:
        return sys.maxsize  # no program here starts others because of a signal

    @staticmethod
    def command_of(pid: int) -> str:
        return "child"

    @staticmethod
    def environment_of(pid: int) -> set[bytes]:
        process = _find(pid)
        entries = {} if process is None else process.env
        return {os.fsencode(f"{name}={value}") for name, value in entries.items()}

    @staticmethod
    def read(path: str) -> str:
        return ""  # no task has children before it exits

    @staticmethod
    def age_of(pid: int) -> float:
        return 3600.0  # processes that outlive a successful program are its helpers

    @staticmethod
    def is_fork(pid: int) -> bool:
        return False

    @staticmethod
    def is_between_programs(pid: int) -> bool:
        return False  # to execute another program takes no time here

    @staticmethod
    def is_zombie(pid: int) -> bool:
        process = _find(pid)
        return process is not None and not process.is_alive


class _Listeners:
    """listeners, as `PortWatch` uses it."""

    @staticmethod
    def ports(without: Collection[int] = ()) -> set[int]:
        return current.host.open_ports

    @staticmethod
    def ports_beside(pid: int) -> set[int]:
        return current.host.open_ports

    @staticmethod
    def ports_of(pid: int) -> set[int]:
        process = _find(pid)
        if process is None or not process.is_alive:
            return set()
        return current.host.open_ports & {int(process.env["SIM_PORT"])}


class _Spawn:
    """Replace `spawn` for `Task`: a fork is a process of the simulated host."""

    NOT_EXECUTABLE = spawn.NOT_EXECUTABLE
    Command = spawn.Command
    Child = spawn.Child
    describe_start_failure = staticmethod(spawn.describe_start_failure)

    @staticmethod
    def start_process(command: spawn.Command, settings: process_state.TaskSettings) -> spawn.Child:
        current.host.check_code()
        process = current.host.fork(command.env)
        assert process.report is not None
        return spawn.Child(process.pid, process.output.fileno(), process.report.fileno())


class _CodeCalls(OsCalls):
    """os, as `received_code` uses it: now and then, no file can be created for the user's code."""

    def makedirs(self, path: str, mode: int, exist_ok: bool) -> None:
        if current.host.refuses_files:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        super().makedirs(path, mode, exist_ok)


class _Clock:
    """time, as far as code asks it for the wall clock."""

    def __init__(self, here: Callable[[], FileSystem]) -> None:
        self._here = here

    def time(self) -> float:
        return self._here().clock()


class _Offload:
    """offload: a fork is done a little later."""

    @staticmethod
    def run_in_fork(loop: Loop, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        host = current.host
        loop.call_at(loop.now() + host.world.rarely.uniform(0.001, 0.3), lambda: done(work()))


class _KilledFork:
    """offload: a fork whose work would start real programs is killed a little later."""

    @staticmethod
    def run_in_fork(
        loop: Loop, work: Callable[[], Any], done: Callable[[Any], None], prepare: object
    ) -> tuple[int, object]:
        loop.call_at(loop.now() + 0.1, lambda: done(None))
        return AGENT, prepare


def _parent_of(process: Process) -> int:
    """Return the parent of a process: who has adopted it, if its first one is dead."""
    if process.parent is None:
        return AGENT
    if process.parent.is_alive:
        return process.parent.pid
    return AGENT if process.is_agents else _Os.getppid()


def _find(pid: int) -> Process | None:
    return current.host.processes.get(pid)


_BY_NAME: tuple[tuple[str, object, tuple[Any, ...]], ...] = (
    ("os", _Os, (task, task_processes, agent, orphans)),
    ("os", _on_host, (task_output,)),
    ("os", _CodeCalls(_there), (received_code, file_parts)),
    ("os", _on_machine, (private_files, log_writer, log_index, log_reader, backlog)),
    ("linux", _Linux, (task, task_processes, process_ends, orphans)),
    ("procfs", _Linux, (task, task_processes, process_ends, orphans)),
    ("open", _on_host.open_stream, (file_parts, received_code)),
    ("time", _Clock(_there), (received_code, task)),
    ("time", _Clock(_here), (log_sink,)),
    ("spawn", _Spawn, (task,)),
    ("listening_sockets", _Listeners, (ports,)),
    ("file_trees", TreeCalls(_there), (received_code,)),
    ("offload", _Offload, (received_code,)),
    ("offload", _KilledFork, (setups,)),
    ("TaskEvidence", SimTaskEvidence, (evidence,)),
    ("MemoryService", SimMemoryService, (memory_reports,)),
    ("CheckpointCopies", SimCheckpointCopies, (checkpoint_copies,)),
)
_MODULES = tuple((module, name, substitute) for name, substitute, modules in _BY_NAME for module in modules)


@contextmanager
def installed() -> Iterator[None]:
    """Run the worker's modules on simulated hosts."""
    replaced = [(module, name, vars(module).get(name)) for module, name, _ in (*_MODULES, *_SIZES)]
    for module, name, substitute in (*_MODULES, *_SIZES):
        setattr(module, name, substitute)
    try:
        yield
    finally:
        for module, name, original in replaced:
            if original is None:  # a built-in function
                delattr(module, name)
            else:
                setattr(module, name, original)
