"""Requests from other terminals to a running job: report its status, stop, restart, signal or debug tasks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tflaunch.agents.session import Session
from tflaunch.core import policy
from tflaunch.core.events import FaultInjected, HangExplained, RestartRequested, StopRequested
from tflaunch.core.evidence import Sampling
from tflaunch.core.job_state import Job, Phase, TaskPhase
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import StatusInputs, status
from tflaunch.features.debug.debugger_relay import DebuggerRelay
from tflaunch.features.hang.evidence_collector import EvidenceCollector, Findings
from tflaunch.features.profile.profiler import Profiler
from tflaunch.mailbox import Mailbox
from tflaunch.printable import printable
from tflaunch.runtime.control_server import Caller, ControlServer
from tflaunch.runtime.sampler import ResourceSampler
from tflaunch.store.run_dir import profiles_in
from tflaunch_worker import fields
from tflaunch_worker.agent.breakpoints import LONGEST_LINE
from tflaunch_worker.agent.profiles import LEAST_SECONDS, MOST_SECONDS

_LONGEST_GRACE = 86_400.0
_LONGEST_SAMPLE = 3.0  # seconds


def _sampling(message: dict[str, Any]) -> Sampling:
    """Return how a request wants stacks to be sampled."""
    between = min(fields.number(message, "between", 0), _LONGEST_SAMPLE) if "between" in message else None
    return Sampling(between, fields.flag(message, "with_use") if "with_use" in message else False)


class Refused(Exception):
    """The request cannot be fulfilled; the message is one sentence."""


class Service:
    """Answers control requests for one run. Implements `Watcher`."""

    def __init__(self, job: Job, directory: Path, logs: str, mailbox: Mailbox, sessions: Mapping[str, Session]) -> None:
        """Listen in the run's directory; its journal must exist.

        Raises:
            OSError: the socket cannot be created.
        """
        self._job = job
        self._logs = logs
        self._exit_code: int | None = None
        self._mailbox = mailbox
        self._sessions = sessions
        self._meter = ResourceSampler(sessions, mailbox)
        self._evidence = EvidenceCollector(sessions, mailbox)
        self._debuggers = DebuggerRelay(sessions)
        self._profiler = Profiler(profiles_in(directory), sessions)
        self._server = ControlServer(directory, mailbox, self._hear)

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step; of tasks that are stopped because they hang, find out why."""
        has_stopped = job.phase is Phase.STOPPING and self._job.phase is not Phase.STOPPING
        self._job = job
        if has_stopped and job.culprit is not None and policy.has_hung(job.culprit):
            current = self._status()  # as it is now: when the agents have answered, tasks may be gone
            limit = job.culprit.name
            self._evidence.collect(lambda found: self._explain(current, found, limit))
        self._debuggers.watch(job)
        self._server.tell_change()

    def tell_change(self) -> None:
        """Notify followers that task output was kept."""
        self._server.tell_change()

    def end(self, exit_code: int) -> None:
        """Set tflaunch's exit code at the end of the run; `close` sends it to followers."""
        self._exit_code = exit_code

    def close(self) -> None:
        """Disconnect all callers."""
        self._server.close(self._exit_code)

    def measured(self, tell: Callable[[Status], None]) -> None:
        """Call ``tell`` with the run's status, including fresh measurements."""
        self._meter.measure(lambda: tell(self._status()))

    def _status(self) -> Status:
        now = self._mailbox.now()
        heard = {host: silence for host, session in self._sessions.items() if (silence := session.silence) is not None}
        epoch = time.time() - now
        inputs = StatusInputs(epoch, self._logs, True, now, self._meter.measures, self._meter.cpu, heard)
        return status(self._job, inputs)

    # ---- requests

    def _hear(self, caller: Caller, message: dict[str, Any]) -> None:
        try:
            self._answer(caller, message, self._job)
        except Refused as refused:
            caller.say("refused", reason=str(refused))
        except ValueError as error:
            caller.say(
                "refused", reason=f"malformed request {printable(message['kind'], 40)!r}: {printable(str(error))}"
            )

    def _answer(self, caller: Caller, message: dict[str, Any], job: Job) -> None:
        match message["kind"]:
            case "status":
                self.measured(lambda current: caller.say("status", status=current.as_json()))
            case "stacks":
                self._evidence.collect(lambda found: self._tell_stacks(caller, found), _sampling(message))
            case "follow":
                caller.follows = True
                caller.say("changed")
            case "stop":
                self._stop(message, job)
                caller.say("done")
            case "restart":
                self._restart(fields.texts(message, "tasks"), job)
                caller.say("done")
            case "profile":
                self._profile(caller, message, job)
            case "debug" | "debug_line" | "debug_read" | "debug_continue":
                self._debug(caller, message, job)
            case "signal":
                caller.say(
                    "done",
                    tasks=self._signal(fields.texts(message, "tasks"), fields.integer(message, "signal", 1, 64), job),
                )
            case kind:
                raise Refused(
                    f"{printable(kind, 40)!r} is unknown to this supervisor: it is of another version of tflaunch"
                )

    def _debug(self, caller: Caller, message: dict[str, Any], job: Job) -> None:
        """Serve the terminal of a debugger."""
        match message["kind"]:
            case "debug":
                tasks = fields.texts(message, "tasks")
                self._need_known(tasks, job)
                self._debuggers.begin(caller, tasks, job)
            case "debug_line":
                self._debuggers.write_line(caller, fields.text(message, "text", LONGEST_LINE))
            case "debug_read":
                self._debuggers.read_on(caller)
            case _:
                self._debuggers.continue_task(caller)

    def _profile(self, caller: Caller, message: dict[str, Any], job: Job) -> None:
        """Profile tasks, by default all that belong to a role."""
        tasks = fields.texts(message, "tasks") or [process.task for process in job.plan.tasks]
        self._need_known(tasks, job)
        seconds = fields.number(message, "seconds", LEAST_SECONDS, MOST_SECONDS)
        try:
            self._profiler.begin(caller, tasks, seconds, job)
        except OSError as error:
            raise Refused(f"profiles cannot be stored: {error.filename}: {error.strerror}") from None

    def _explain(self, current: Status, found: Findings, limit: str) -> None:
        from tflaunch.features.hang import hang  # compiles patterns that only a hang needs

        verdict = hang.verdict(current, found.evidence, limit)
        if verdict.culprits:
            self._mailbox.put(HangExplained(printable(verdict.sentence)))

    def _tell_stacks(self, caller: Caller, found: Findings) -> None:
        """Answer with a message per task, which can be long, and the run's status at the end."""
        for evidence in found.evidence.values():
            caller.say("evidence", **evidence.as_json())
        self.measured(
            lambda current: caller.say("done", status=current.as_json(), silent_hosts=list(found.silent_hosts))
        )

    def _stop(self, message: dict[str, Any], job: Job) -> None:
        is_default = message.get("grace") is None
        wanted = job.plan.timeouts.grace if is_default else fields.number(message, "grace", 0)
        self._mailbox.put(StopRequested(min(wanted, _LONGEST_GRACE)))

    def _restart(self, tasks: list[str], job: Job) -> None:
        if job.phase is not Phase.RUNNING:
            raise Refused(f"the job is {job.phase.value}: tasks can be restarted while it is running")
        self._need_known(tasks, job)
        for task in tasks or [""]:
            self._mailbox.put(RestartRequested(task))

    def _signal(self, tasks: list[str], number: int, job: Job) -> list[str]:
        """Send a signal to the given tasks that are running, and return those."""
        self._need_known(tasks, job)
        name = signal.Signals(number).name
        living = [task for task in tasks if job.tasks[task].phase is TaskPhase.RUNNING]
        if not living:
            raise Refused(f"none of these tasks is running: {', '.join(tasks)}")
        for task in living:
            session = self._sessions[job.plan.find(task).host]
            if not session.is_greeted:
                raise Refused(f"{session.host}, where {task} runs, cannot be heard")
        for task in living:
            self._mailbox.put(FaultInjected(f"kill -s {name.removeprefix('SIG')} {task}"))
            self._sessions[job.plan.find(task).host].signal(task, job.tasks[task].attempt, number)
        return living

    def _need_known(self, tasks: list[str], job: Job) -> None:
        unknown = [task for task in tasks if task not in job.tasks]
        if unknown:
            raise Refused(
                f"there is no task {printable(', '.join(unknown), 200)}; the tasks are {', '.join(job.tasks)}"
            )
