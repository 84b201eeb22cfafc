"""This host's zygotes, one per environment, their forked tasks, and warm servers.

A zygote (`server`) is started for the first task that needs it, stays for later attempts, and ends with the agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Callable, ClassVar, NamedTuple

from tflaunch_worker import offload, schema, spawn
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features import program_source
from tflaunch_worker.features.preload import refusals, warm_client
from tflaunch_worker.features.preload.zygote_client import (
    Kind,
    PendingFork,
    Zygote,
    kind_of,
    set_preload,
    start_import,
)

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.services import AgentParts
    from tflaunch_worker.socket_messages import Message


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

        kind, reason = self._check(command)
        if not reason:
            try:
                return self._zygote_for(kind, command).request_fork(command, note_fork, refuse)
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
        """Return the kind of a task, and why it cannot be forked ("" if it can)."""
        reason = program_source.check_command(command.argv)
        kind = kind_of(command, "" if reason else spawn.find_executable(command))
        if not reason and not kind.path:
            reason = f"{kind.argv0} is not the interpreter itself"
        record = "" if reason else self._record_of(kind)
        return kind, reason or self._unusable.get(kind, "") or (refusals.recall(record) if record else "")

    def _record_of(self, kind: Kind) -> str:
        """Return the path of earlier runs' refusals; "" if no other run can use them."""
        key = _warm_key(kind)
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


def _warm_key(kind: Kind) -> str:
    """Return a hash of the properties by which tasks of different runs share a zygote.

    Returns "" if they depend on the working directory.
    """
    env = warm_client.without_noise(dict(kind.env))
    if not all(place.startswith("/") for place in env.get("PYTHONPATH", "/").split(":")):
        return ""
    return hashlib.sha256(json.dumps(kind._replace(workdir="", env=tuple(env.items()))).encode("ascii")).hexdigest()
