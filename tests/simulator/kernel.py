"""Replacements of os, linux and fork in `Task`, `PortWatch`, `Spool`, `Agent` and `orphans`.

`installed` replaces the modules with these, and large sizes with small ones, so that short
histories fill windows, segments and spools.
"""

# ruff: noqa: ARG003, ARG004 - the replacements have the signatures of the originals

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch.runtime import network_keys
from tflaunch_worker import orphans, spawn
from tflaunch_worker.agent import agent, port_watch, task, task_output

if TYPE_CHECKING:
    from simulator.hosts import SimHost
    from simulator.processes import Process

INIT, GUARD, AGENT = 1, 2, 3  # their pids, on every host

_SIZES = (
    (task_output, "CHUNK", 4096),
    (task_output, "WINDOW", 16384),
    (task_output, "SEGMENT", 8192),
    (task_output, "NEAR", 4096),
    (task_output, "PIECE", 1024),
)


class _Current:
    """The host whose agent is running."""

    host: SimHost


current = _Current()


class _Os:
    """os, as `Task` and `Agent` use it."""

    path = os.path
    fsencode = staticmethod(os.fsencode)
    fsdecode = staticmethod(os.fsdecode)
    WTERMSIG = staticmethod(os.WTERMSIG)
    WIFSIGNALED = staticmethod(os.WIFSIGNALED)
    WEXITSTATUS = staticmethod(os.WEXITSTATUS)

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
    def waitpid(pid: int, options: int) -> tuple[int, int]:
        process = current.host.processes.pop(pid)
        assert not process.is_alive, "the agent would wait for a living process"
        return pid, process.status


class _Linux:
    """linux, as `Task` and `orphans` use it."""

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
    def open_pidfd(pid: int) -> int | None:
        process = _find(pid)
        return None if process is None else process.pid_file().fileno()

    @staticmethod
    def descendants(pid: int, without: int) -> list[int]:
        """Return what the guard, or init, has adopted: the children of dead processes, and their children."""
        assert pid in (GUARD, INIT)
        assert without == AGENT
        return [process.pid for process in current.host.processes.values() if process.is_adopted]

    @staticmethod
    def session_of(pid: int) -> int | None:
        process = _find(pid)
        return None if process is None else process.session

    @staticmethod
    def environment_of(pid: int) -> set[bytes]:
        process = _find(pid)
        entries = {} if process is None else process.env
        return {os.fsencode(f"{name}={value}") for name, value in entries.items()}

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
    def is_listening(port: int, session: int) -> bool:
        process = _find(session)
        return process is not None and process.is_alive and port in current.host.open_ports


class _Spawn:
    """Replace `spawn` for `Task`: a fork is a process of the simulated host."""

    NOT_EXECUTABLE = spawn.NOT_EXECUTABLE
    Command = spawn.Command
    Child = spawn.Child
    describe_start_failure = staticmethod(spawn.describe_start_failure)

    @staticmethod
    def start_process(command: spawn.Command, settings: spawn.ProcessSettings) -> spawn.Child:
        process = current.host.fork(command.env)
        assert process.report is not None
        return spawn.Child(process.pid, process.output.fileno(), process.report.fileno())


class _Stacks:
    """stall, as `Task` uses it: there is no py-spy here."""

    @staticmethod
    def write_stacks(pid: int, env: dict[str, str], loop: object, done: Callable[[bytes], None]) -> None:
        done(b"")

    @staticmethod
    def abort_with_stacks(pid: int) -> None:
        process = _find(pid)
        if process is not None:
            process.is_told = True
            process.receive(signal.SIGABRT)


class Disk:
    """Files without names, in limited space."""

    def __init__(self) -> None:
        self.room = 1 << 40
        self.has_inodes = True
        self.seconds = 0.0  # that a write takes

    def create(self) -> None:
        """Create a file.

        Raises:
            OSError: there is no space for it.
        """
        if not self.has_inodes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.take(1)

    def take(self, size: int) -> int:
        """Return for how many of these bytes there is space.

        Raises:
            OSError: there is none.
        """
        if self.seconds:
            current.host.wait_for_disk(self.seconds)
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(size, self.room)
        self.room -= taken
        return taken


class _SpoolOs:
    """os, as `Spool` uses it: its files are bytes in memory that take space on the host's disk."""

    O_RDWR, O_CREAT, O_EXCL, O_CLOEXEC = 0, 0, 0, 0
    files: ClassVar[dict[int, tuple[Disk, bytearray]]] = {}
    _next = 0

    @classmethod
    def open(cls, path: str, flags: int, mode: int) -> int:
        disk = current.host.disk
        disk.create()
        cls._next += 1
        cls.files[cls._next] = disk, bytearray()
        return cls._next

    @staticmethod
    def unlink(path: str) -> None:
        pass

    @classmethod
    def pwrite(cls, descriptor: int, data: bytes, offset: int) -> int:
        disk, content = cls.files[descriptor]
        assert len(content) == offset
        taken = disk.take(len(data))
        content += data[:taken]
        return taken

    @classmethod
    def pread(cls, descriptor: int, size: int, offset: int) -> bytes:
        return bytes(cls.files[descriptor][1][offset : offset + size])

    @classmethod
    def close(cls, descriptor: int) -> None:
        disk, content = cls.files.pop(descriptor)
        disk.room += len(content) + 1


def _find(pid: int) -> Process | None:
    return current.host.processes.get(pid)


class _NetworkKeys:
    """Keys that are the same in every play of a history."""

    def issue(self, address: str) -> network_keys.HostKeys:
        """Return no keys: there are no networks."""
        return network_keys.HostKeys("authority", "certificate", "key")


_MODULES: tuple[tuple[Any, str, object], ...] = (
    (task, "os", _Os),
    (task, "linux", _Linux),
    (task, "spawn", _Spawn),
    (task, "stall", _Stacks),
    (agent, "os", _Os),
    (orphans, "os", _Os),
    (orphans, "linux", _Linux),
    (port_watch, "listening_sockets", _Listeners),
    (task_output, "os", _SpoolOs),
    (network_keys, "NetworkKeys", _NetworkKeys),
)


@contextmanager
def installed() -> Iterator[None]:
    """Run the worker's modules on simulated hosts."""
    replaced = [(module, name, getattr(module, name)) for module, name, _ in (*_MODULES, *_SIZES)]
    _SpoolOs.files.clear()
    for module, name, substitute in (*_MODULES, *_SIZES):
        setattr(module, name, substitute)
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)
