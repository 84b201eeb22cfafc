"""Connect terminals at the control socket with tasks that wait at a breakpoint, through the links to their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflaunch.agents.session import Session
from tflaunch.core.job_state import AT_BREAKPOINT, Breakpoint, Job
from tflaunch.features.debug.debugger_link import Debugging, Terminal
from tflaunch.runtime.control_server import Caller


class DebuggerRelay:
    """The terminals of one run, waiting for a breakpoint or attached to a task."""

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self._sessions = sessions
        self._waiting: dict[Caller, Sequence[str]] = {}
        self._attached: dict[Caller, Debugging] = {}

    def begin(self, caller: Caller, tasks: Sequence[str], job: Job) -> None:
        """Attach a caller to the first of these tasks that waits at a breakpoint, at once or later; [] for all."""
        self.end(caller)
        caller.closed = lambda: self.end(caller)
        self._waiting[caller] = tasks
        self.watch(job)
        if caller in self._waiting:
            caller.say("debugger_waits")

    def watch(self, job: Job) -> None:
        """Attach callers that wait, if a task has reached a breakpoint."""
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

    def write_line(self, caller: Caller, text: str) -> None:
        """Pass on a command."""
        if caller in self._attached:
            self._attached[caller].write_line(text)

    def read_on(self, caller: Caller) -> None:
        """Note that a caller has shown the last output."""
        if caller in self._attached:
            self._attached[caller].read_on()

    def continue_task(self, caller: Caller) -> None:
        """Let the task go on without a debugger; the caller is notified when it does."""
        if caller in self._attached:
            self._attached[caller].continue_task()

    def end(self, caller: Caller) -> None:
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
