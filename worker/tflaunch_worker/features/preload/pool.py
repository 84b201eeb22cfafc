"""This host's zygotes, one per environment, their forked tasks, and warm servers.

A zygote (`server`) is started for the first task that needs it, stays for later attempts, and ends with the agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import Any, Callable, ClassVar, NamedTuple

from tflaunch_worker import offload, schema, spawn
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.features import program_source
from tflaunch_worker.features.preload import refusals, source_checks, warm_client
from tflaunch_worker.features.preload.zygote_client import Kind, PendingFork, Zygote, kind_of, set_preload, start_import
from tflaunch_worker.socket_messages import Message

AUTO = ("auto",)
"""What an order has instead of modules: those that the program imports."""


class WarmZygote(NamedTuple):
    """An agent's child from a warm server: its pid, connection, and key of its tasks."""

    pid: int
    link: int
    key: str


class ZygotePool(Service):
    """The zygotes of this host."""

    CALLS: ClassVar = {"look_for_warm": {"stop": schema.flag}}
    inherited: ClassVar[WarmZygote | None] = None
    """The zygote that this process had before it became an agent."""

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._zygotes: dict[Kind, Zygote] = {}
        self._unusable: dict[Kind, str] = {}
        self._read: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = {}
        self._refused: dict[tuple[Kind, tuple[str, ...]], str] = {}

    def start_task(
        self, command: spawn.Command, started: Callable[[spawn.Child], None], refused: Callable[[], None]
    ) -> PendingFork | None:
        """Fork a task from a zygote; set ``command.preload`` to the modules or a refusal."""

        def note_fork(child: spawn.Child) -> None:
            self.agent.host.measurer.forks.add(child.pid)
            started(child)

        def refuse(reason: str) -> None:
            set_preload(command, f"no: {reason}")
            refused()

        is_auto = command.modules == AUTO
        kind, reason = self._check(command)
        if command.unforked:
            if not reason:
                refusals.remember(self._record_of(kind, command), command.unforked, _places_of(command))
            reason = command.unforked
        if not reason:
            try:
                zygote = self._zygote_for(kind, command)

                def note_refusal(reason: str) -> None:
                    if is_auto and reason:
                        self._refused[kind, _program_of(command)] = reason
                        zygote.end_if_useless()
                    refuse(reason or zygote.describe_end())

                return zygote.request_fork(command, is_auto, note_fork, note_refusal)
            except OSError as error:
                reason = f"no process: {error.strerror}"
        refuse(reason)
        return None

    def expect_task(self, command: spawn.Command) -> None:
        """Start the zygote for this command before its first task, if it can be forked."""
        kind, reason = self._check(command)
        if not reason:
            try:
                self._zygote_for(kind, command)
            except OSError:
                pass  # the first task tries again, and tells the reason

    def outlive_run(self) -> list[int]:
        """Let permitted zygotes become warm servers after the loop; return their pids."""
        return [zygote.pid for zygote in self._zygotes.values() if zygote.stay()]

    def look_for_warm(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the warm servers of this host, which ``stop`` ends."""
        directory = self._directory()
        look = warm_client.stop_servers if message["stop"] else warm_client.describe_servers
        offload.run_in_fork(self.agent.loop, lambda: look(directory), lambda found: call.answer(servers=found or []))

    def _check(self, command: spawn.Command) -> tuple[Kind, str]:
        """Return the kind of a task, and why it cannot be forked ("" if it can).

        The modules of a command that names none are those that its program imports.
        """
        reason = program_source.check_command(command.argv)
        if command.modules == AUTO:
            command.modules, reason = ((), reason) if reason else self._find_modules(command)
        kind = kind_of(command, "" if reason else spawn.find_executable(command))
        if not reason and not kind.path:
            reason = f"{kind.argv0} is not the interpreter itself"
        if reason:
            return kind, reason
        reason = self._unusable.get(kind, "") or self._refused.get((kind, _program_of(command)), "")
        records = (self._record_of(kind), self._record_of(kind, command))
        return kind, reason or next(filter(None, map(refusals.recall, records)), "")

    def _find_modules(self, command: spawn.Command) -> tuple[tuple[str, ...], str]:
        """Return what a program imports first of what takes long, and why not to do it.

        It is read before anything is imported, which would take long in vain; the process that has imported reads it
        again before each fork.
        """
        python_path = command.env.get("PYTHONPATH", "")
        key = (*_program_of(command), python_path)
        if key not in self._read:
            places = source_checks.own_places(python_path, command.workdir)
            self._read[key] = source_checks.find_slow_imports(command.argv, command.workdir, places, [], command.env)
        modules, reason = self._read[key]
        if reason == source_checks.NO_MODULE:
            modules, reason = (f"-m {key[1]}",), ""  # its interpreter searches in more places, and may find it
        lacking = (source_checks.reason_in_word(name) for name in command.secrets)  # which only the task itself gets
        return modules, reason or next(filter(None, lacking), "")

    def _record_of(self, kind: Kind, command: spawn.Command | None = None) -> str:
        """Return the path of earlier runs' refusals; "" if no other run can use them.

        They are those of a kind of tasks, or of the program of a command alone.
        """
        key = _warm_key(kind)
        if key and command is not None:
            key = hashlib.sha256("\0".join((key, *_program_of(command))).encode("utf-8", "replace")).hexdigest()
        return refusals.record_path(self._directory(), key) if key else ""

    def _directory(self) -> str:
        """Return the directory of this user's warm servers, and of the refusals."""
        return warm_client.servers_directory(warm_client.home_of(self.agent.host.directory), os.environ)

    def _zygote_for(self, kind: Kind, command: spawn.Command) -> Zygote:
        """Return the zygote for tasks of a kind, started if there is none.

        Raises:
            OSError: the system refuses another process.
        """
        if kind in self._zygotes:
            return self._zygotes[kind]

        def end(reason: str) -> None:
            del self._zygotes[kind]
            if reason:
                self._unusable[kind] = reason

        host, loop = self.agent.host, self.agent.loop
        key, inherited = _warm_key(kind), ZygotePool.inherited
        if inherited is not None and inherited.key == key:
            ZygotePool.inherited = None
            link, pid, output = socket.socket(fileno=inherited.link), inherited.pid, -1
        else:
            link, pid, output = start_import(loop, kind, host.settings, self._record_of(kind))
        stay: Message | None = None
        if command.warm is not None and key:
            path = warm_client.socket_path(host.directory, command.warm["recipe"], os.environ)
            stay = {"kind": "stay", "path": path, "idle": command.warm["idle"], "key": key}
        self._zygotes[kind] = Zygote(loop, pid, link, output, end, stay)
        return self._zygotes[kind]


def _program_of(command: spawn.Command) -> tuple[str, ...]:
    """Return what distinguishes the programs of Python commands."""
    kind, index = program_source.find_program(command.argv) or ("", 0)
    return kind, command.argv[index], command.workdir


def _places_of(command: spawn.Command) -> refusals.Places:
    """Return the state of a program's file, if its command names that."""
    kind, name, workdir = _program_of(command)
    return refusals.search_places([os.path.join(workdir, name)] if kind == program_source.SCRIPT else [])


def _warm_key(kind: Kind) -> str:
    """Return a hash of the properties by which tasks of different runs share a zygote.

    Returns "" if they depend on the working directory.
    """
    env = warm_client.without_noise(dict(kind.env))
    if not all(place.startswith("/") for place in env.get("PYTHONPATH", "/").split(":")):
        return ""
    return hashlib.sha256(json.dumps(kind._replace(workdir="", env=tuple(env.items()))).encode("ascii")).hexdigest()
