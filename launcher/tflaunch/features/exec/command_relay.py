"""Commands beside tasks for callers at the control socket, as calls to agents."""

from __future__ import annotations

import signal
from typing import Any

from tflaunch.agents.calls import Call, Calls, Waiter
from tflaunch.core.job_state import Job, Phase
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.runtime.control_server import Caller, RefusedError, require_tasks
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields
from tflaunch_worker.agent import orders
from tflaunch_worker.features.exec.host_commands import HostCommands
from tflaunch_worker.features.exec.running_command import PART, WINDOW, check_told
from tflaunch_worker.readable import printable

_KIND = "run_command"
_HIGHEST_CODE = 255
_LONGEST_PROBLEM = 1000


class CommandRelay(Watcher):
    """The commands that callers run on the hosts of one run."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._running: dict[Caller, dict[str, _Command]] = {}

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Run a command beside ``task``, or without it on all hosts, or pass a message on.

        The caller gets ``exec_begun`` (hosts), for each host ``exec_told`` (host, what, size) as it comes from there,
        and ``exec_ended`` (host, code, problem). When it leaves, the commands are ended.
        """
        if message["kind"] == "exec_tell":
            command = self._running.get(caller, {}).get(fields.text(message, "host"))
            if command is not None:  # it may just have ended
                command.tell(message)
            return
        known = HostCommands.CALLS[_KIND]
        about = {name: message.get(name) for name in known} | {"grace": self.job.plan.timeouts.grace}
        orders.check({**about, "task": "any"}, known)
        if self.job.phase is Phase.ENDED:
            raise RefusedError(f"run {self.job.run} has ended, and its agents leave their hosts")
        tasks = self._tasks_by_host(fields.text(message, "task"))
        self._leave(caller)
        caller.closed = lambda: self._leave(caller)
        commands = self._running[caller] = {}
        commands |= {host: _Command(caller, host, commands) for host in tasks}
        caller.say("exec_begun", hosts=list(tasks))
        for host, task in tasks.items():
            if caller.is_open:  # each message to it may find that it has left
                self._begin(commands[host], host, {**about, "task": task})

    def _tasks_by_host(self, task: str) -> dict[str, str]:
        """Return tasks by host: the given one, or for "" the first one of each host."""
        if task:
            require_tasks([task], self.job)
            return {self.job.host_of(task): task}
        tasks: dict[str, str] = {}
        for process in self.job.process_plans():
            tasks.setdefault(process.host, process.task)
        return tasks

    def _begin(self, command: _Command, host: str, about: dict[str, Any]) -> None:
        session = self.supervision.sessions[host]
        if session.is_greeted:
            command.begin(session.calls, about)
            return
        state = self.job.hosts[host].phase.value
        remedy = "`tflaunch ps` shows when it is connected"
        command.finish(EXIT_INTERNAL, f"host {host} of {about['task']} cannot be reached: it is {state}; {remedy}")

    def watch(self, job: Job, now: float) -> None:
        """End all commands with the run."""
        self.job = job
        if job.phase is Phase.ENDED:
            for command in [command for commands in self._running.values() for command in commands.values()]:
                command.end()
                command.finish(128 + signal.SIGTERM, f"run {job.run} has ended, and the command with it")

    def _leave(self, caller: Caller) -> None:
        for command in self._running.pop(caller, {}).values():
            command.end()


class _Command:
    """A command on one host, until it has ended; ``others`` are all of its caller."""

    def __init__(self, caller: Caller, host: str, others: dict[str, _Command]) -> None:
        self._caller = caller
        self._host = host
        self._others = others
        self._call: Call | None = None
        self._unread = 0

    def begin(self, to_agent: Calls, about: dict[str, Any]) -> None:
        waiter = Waiter(self._ended, self._lost, self._told)
        self._call = to_agent.begin(_KIND, waiter, **about)

    def tell(self, message: dict[str, Any]) -> None:
        body = message["body"]
        about = {name: message[name] for name in ("what", "size", "rows", "columns") if name in message}
        if check_told(message, len(body)) == "input":
            if self._unread + len(body) > WINDOW:
                raise ValueError("more input than there is room for")
            self._unread += len(body)
        if self._call is not None:
            self._call.tell(body, **about)

    def end(self) -> None:
        if self._call is not None:
            self._call.end()

    def finish(self, code: int, problem: str) -> None:
        if self._others.pop(self._host, None) is not None:
            self._caller.say("exec_ended", host=self._host, code=code, problem=problem)

    def _told(self, message: dict[str, Any], body: bytes) -> None:
        what = fields.text(message, "what")
        if what == "took":
            self._unread -= (size := fields.integer(message, "size", 1, self._unread))
            self._caller.say("exec_told", host=self._host, what=what, size=size)
        elif what in ("output", "errors") and 0 < len(body) <= PART:
            self._caller.say("exec_told", body, host=self._host, what=what)
        else:
            raise ValueError("it tells of a command what cannot be")

    def _lost(self, why: str) -> None:
        self.finish(EXIT_INTERNAL, f"host {self._host}: {why}, and the command was ended")

    def _ended(self, message: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text(message, "problem"), _LONGEST_PROBLEM)
        self.finish(fields.integer(message, "code", 0, _HIGHEST_CODE), problem)
