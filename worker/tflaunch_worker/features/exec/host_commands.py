"""Commands of users beside tasks, with the directory and environment of one.

They never count as the task, and do not report progress or stop at a `breakpoint()` as the task does.
"""

from __future__ import annotations

import os
import pwd
from functools import partial
from typing import Any, ClassVar

from tflaunch_worker import spawn
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import Service
from tflaunch_worker.feature import features
from tflaunch_worker.features.exec.running_command import RunningCommand, check_size

NOT_STARTED = 2
"""The exit code of a command whose task has no environment yet."""

_NO_SHELLS = ("false", "nologin")


class HostCommands(Service):
    """The commands of all terminals on this host."""

    CALLS: ClassVar = {
        "run_command": {
            "task": orders.task,
            "argv": orders.words,
            "grace": orders.seconds,
            "columns": check_size,
            "rows": check_size,
            "term": orders.word,
        }
    }

    def run_command(self, call: Call, message: dict[str, Any]) -> None:
        """Run a command beside a task's latest attempt, in a terminal if ``columns`` > 0.

        It is answered with the exit code, which is 128 + N for a signal, and the problem that caused it, or "".
        """
        task = self.agent.tasks.get(message["task"])
        if task is None:
            remedy = "`tflaunch ps` shows when it has"
            call.answer(code=NOT_STARTED, problem=f"{message['task']} has not started on its host yet; {remedy}")
            return
        command = _beside(task.command, message["argv"], message["term"])
        size = (message["rows"], message["columns"]) if message["columns"] else None
        try:
            running = RunningCommand(self.agent, call, command, size)
        except OSError as error:
            call.answer(code=spawn.NOT_EXECUTABLE, problem=f"no process or terminal: {error.strerror}")
            return
        call.when_told = running.hear
        call.when_ended = partial(running.end, message["grace"])


def _beside(task: spawn.Command, argv: list[str], term: str) -> spawn.Command:
    """Return a command, by default a shell, with a task's environment and directory."""
    env = {**task.env, "TFLAUNCH_PROGRESS": ""}
    for feature in features().values():
        for name, variable in feature.variables.items():
            if env.get(name) == variable.value:
                del env[name]
    if term:
        env["TERM"] = term
    command = spawn.Command(argv or [_shell()], env, task.workdir)
    command.secrets, command.namespaces = task.secrets, task.namespaces
    return command


def _shell() -> str:
    try:
        known = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        known = ""  # a container may run as a user without a name
    is_usable = os.access(known, os.X_OK) and os.path.basename(known) not in _NO_SHELLS
    return known if is_usable else "/bin/sh"
