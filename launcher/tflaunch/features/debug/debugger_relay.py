"""Connect terminals at the control socket with tasks that wait at a breakpoint, through the links to their agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflaunch.core.job_state import Job
from tflaunch.core.task_state import AT_BREAKPOINT, Breakpoint
from tflaunch.features.debug.debugger_link import Debugging, Terminal
from tflaunch.runtime.control_server import Caller, require_tasks
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields
from tflaunch_worker.features.debug.breakpoints import LONGEST_LINE


class DebuggerRelay(Watcher):
    """The terminals of one run, waiting for a breakpoint or attached to a task."""

    def __init__(self, supervision: Supervision) -> None:
        self._sessions = supervision.sessions
        self._job = supervision.job
        self._waiting: dict[Caller, Sequence[str]] = {}
        self._attached: dict[Caller, Debugging] = {}

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Attach a caller to a task that waits, or serve its terminal."""
        if message["kind"] == "debug":
            tasks = fields.texts(message, "tasks")
            require_tasks(tasks, self._job)
            self._begin(caller, tasks)
        elif message["kind"] == "debug_line":
            text = fields.text(message, "text", LONGEST_LINE)
            if caller in self._attached:
                self._attached[caller].write_line(text)
        elif caller in self._attached and message["kind"] == "debug_read":
            self._attached[caller].read_on()
        elif caller in self._attached:
            self._attached[caller].continue_task()  # it is notified when the task goes on

    def _begin(self, caller: Caller, tasks: Sequence[str]) -> None:
        """Attach a caller to the first of these tasks that waits at a breakpoint, at once or later; [] for all."""
        self._end(caller)
        caller.closed = lambda: self._end(caller)
        self._waiting[caller] = tasks
        self._attach()
        if caller in self._waiting:
            caller.say("debugger_waits")

    def watch(self, job: Job, now: float) -> None:
        """Attach callers that wait, if a task has reached a breakpoint."""
        self._job = job
        self._attach()

    def _attach(self) -> None:
        job = self._job
        if not self._waiting or not job.tasks.count(AT_BREAKPOINT):
            return
        stopped = [task for task in job.tasks.values() if AT_BREAKPOINT in task.tags]
        for caller, tasks in list(self._waiting.items()):
            found = next((task for task in stopped if not tasks or task.task in tasks), None)
            session = None if found is None else self._sessions[job.host_of(found.task)]
            if found is not None and session is not None and session.is_greeted:
                del self._waiting[caller]
                terminal = _CallerTerminal(caller, found.task, self._attached)
                debugging = Debugging(session.calls, found.task, found.attempt, terminal)
                if not terminal.has_left:
                    self._attached[caller] = debugging

    def _end(self, caller: Caller) -> None:
        """Forget a caller; its task keeps waiting."""
        self._waiting.pop(caller, None)
        debugging = self._attached.pop(caller, None)
        if debugging is not None:
            debugging.leave()


class _CallerTerminal(Terminal):
    """A caller as the terminal of a task's debugger."""

    def __init__(self, caller: Caller, task: str, attached: dict[Caller, Debugging]) -> None:
        self.has_left = False
        self._caller = caller
        self._task = task
        self._attached = attached

    def attached(self, found: Breakpoint) -> None:
        """Tell where the process waits."""
        self._caller.say("debugger_attached", task=self._task, **found._asdict())

    def show(self, text: str) -> None:
        """Pass on output."""
        self._caller.say("debugger_output", text=text)

    def asked(self) -> None:
        """Ask for a command."""
        self._caller.say("debugger_asks")

    def left(self, reason: str) -> None:
        """Tell why the caller is not attached any more."""
        self.has_left = True
        self._attached.pop(self._caller, None)
        self._caller.say("debugger_left", task=self._task, reason=reason)
