"""Links between terminals at the control socket and tasks at a breakpoint."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tflaunch.agents.calls import Calls, Waiter
from tflaunch.core.job_state import Job
from tflaunch.core.states import AT_BREAKPOINT, Breakpoint
from tflaunch.features.debug import LINK_LOST
from tflaunch.records import read_record
from tflaunch.runtime.control_server import Caller, require_tasks
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields
from tflaunch_worker.features.debug.breakpoints import LONGEST_LINE, MOST_OUTPUT

REASONS = ("continued", "ended", "quit", "replaced", "stopped")
"""Why an agent detaches a terminal."""


class DebuggerRelay(Watcher):
    """The terminals of one run, waiting for a breakpoint or attached to a task."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._waiting: dict[Caller, Sequence[str]] = {}
        self._attached: dict[Caller, Debugging] = {}

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Attach a caller to a task that waits, or serve its terminal."""
        if message["kind"] == "debug":
            tasks = fields.texts(message, "tasks")
            require_tasks(tasks, self.job)
            self._begin(caller, tasks)
        elif message["kind"] == "debug_line":
            text = fields.text(message, "text", LONGEST_LINE)
            if caller in self._attached:
                self._attached[caller].call.tell(what="line", text=text)
        elif caller in self._attached:  # which is notified when the task goes on
            what = "read_on" if message["kind"] == "debug_read" else "continue"
            self._attached[caller].call.tell(what=what)

    def _begin(self, caller: Caller, tasks: Sequence[str]) -> None:
        """Attach a caller to the first of ``tasks`` ([]: all) that waits at a breakpoint."""
        self._end(caller)
        caller.closed = lambda: self._end(caller)
        self._waiting[caller] = tasks
        self._attach()
        if caller in self._waiting:
            caller.say("debugger_waits")

    def watch(self, job: Job, now: float) -> None:
        """Attach callers that wait, if a task has reached a breakpoint."""
        self.job = job
        self._attach()

    def _attach(self) -> None:
        job = self.job
        if not self._waiting or not job.tasks.count(AT_BREAKPOINT):
            return
        stopped = [task for task in job.tasks.values() if AT_BREAKPOINT in task.tags]
        for caller, tasks in list(self._waiting.items()):
            found = next((task for task in stopped if not tasks or task.task in tasks), None)
            session = None if found is None else self.supervision.sessions[job.host_of(found.task)]
            if found is not None and session is not None and session.is_greeted:
                del self._waiting[caller]
                forget = partial(self._attached.pop, caller, None)
                debugging = Debugging(session.calls, found.task, found.attempt, caller, forget)
                if not debugging.has_left:
                    self._attached[caller] = debugging

    def _end(self, caller: Caller) -> None:
        """Forget a caller; its task keeps waiting."""
        self._waiting.pop(caller, None)
        debugging = self._attached.pop(caller, None)
        if debugging is not None:
            debugging.call.end()


class Debugging:
    """A caller's terminal of a process at a breakpoint, which replaces an earlier one.

    It is a call to the agent of the host, which sends the next output after a message that the last one was read.
    """

    def __init__(self, calls: Calls, task: str, attempt: int, caller: Caller, forget: Callable[[], object]) -> None:
        """Attach it; ``forget`` is called when it is not attached any more."""
        self.has_left = False
        self._task = task
        self._caller = caller
        self._forget = forget
        waiter = Waiter(self._left, lambda _: self._leave(LINK_LOST), self._told)
        self.call = calls.begin("attach_debugger", waiter, task=task, attempt=attempt)

    def _told(self, message: dict[str, Any], body: bytes) -> None:
        what = fields.text(message, "what")
        if what == "attached":
            self._caller.say("debugger_attached", task=self._task, **read_record(Breakpoint, message)._asdict())
        elif what == "output" and len(body) <= MOST_OUTPUT:
            self._caller.say("debugger_output", text=body.decode("utf-8", "replace"))
        elif what == "asks":
            self._caller.say("debugger_asks")
        else:
            raise ValueError("it reports about a debugger what cannot be")

    def _left(self, message: dict[str, Any], body: bytes) -> None:
        reason = fields.text(message, "reason")
        if reason not in REASONS:
            raise ValueError("it reports about a debugger what cannot be")
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        self.has_left = True
        self._forget()
        self._caller.say("debugger_left", task=self._task, reason=reason)
