"""Answer requests from other processes to a supervisor."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.agents.session import Session
from tflaunch.core.annotations import Annotations, FaultInjected
from tflaunch.core.events import Interrupted, RestartRequested, Seconds, SignalNumber, StopRequested
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.states import TaskPhase
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import StatusInputs, status
from tflaunch.feature import feature_verbs
from tflaunch.mailbox import Mailbox
from tflaunch.records import as_json, read_record
from tflaunch.runtime.control_server import Caller, ControlServer, RefusedError, require_tasks
from tflaunch.runtime.usage_sampler import ResourceSampler
from tflaunch_worker import signals
from tflaunch_worker.readable import printable, signal_name

_ENDING = signals.ENDING | signals.OF_TERMINALS
_LONGEST_GRACE = 86_400.0

AnswerOther = Callable[[Caller, dict[str, Any]], bool]
"""Answers a request, unless it returns False."""


class StopRequest(NamedTuple):
    """A request to stop; ``grace``: seconds from TERM to KILL, None for the spec's.

    ``signal``: it came to the terminal that follows the run, and means what it means to the supervisor.
    """

    grace: Seconds | None = None
    signal: SignalNumber | None = None


class RestartRequest(NamedTuple):
    """Restart these tasks, or with none all that train."""

    tasks: tuple[str, ...]


class SignalRequest(NamedTuple):
    """Send a signal to these tasks."""

    tasks: tuple[str, ...]
    signal: SignalNumber


class Service:
    """Answers control requests for one run. Implements `Watcher`."""

    def __init__(self, job: Job, logs: str, mailbox: Mailbox, sessions: Mapping[str, Session]) -> None:
        self._job = job
        self._known = Annotations()
        self._logs = logs
        self.exit_code: int | None = None
        """The exit code of tflaunch once the run has ended; `close` sends it to followers."""
        self._mailbox = mailbox
        self._sessions = sessions
        self._meter = ResourceSampler(sessions, mailbox)
        self._answer_other: AnswerOther | None = None
        self._server: ControlServer | None = None

    def listen(self, directory: Path, answer_other: AnswerOther) -> None:
        """Listen in the run's directory, which has its journal; raises as `ControlServer`."""
        self._answer_other = answer_other
        self._server = ControlServer(directory, self._mailbox, self._hear)

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step."""
        self._job = job
        self.tell_change()

    def take_annotations(self, known: Annotations) -> None:
        """Take what is known after another annotation."""
        self._known = known
        self.tell_change()

    def tell_change(self) -> None:
        """Notify followers that task output was kept."""
        if self._server is not None:
            self._server.tell_change()

    def close(self) -> None:
        """Disconnect all callers."""
        if self._server is not None:
            self._server.close(self.exit_code)

    def measured(self, tell: Callable[[Status], None]) -> None:
        """Call ``tell`` with the run's status, including fresh measurements."""
        self._meter.measure(lambda: tell(self.status()))

    def status(self) -> Status:
        """Return the run's status, with the last measurements."""
        now = self._mailbox.now()
        heard = {host: silence for host, session in self._sessions.items() if (silence := session.silence) is not None}
        epoch = time.time() - now
        measured = self._meter.measures, self._meter.cpu
        inputs = StatusInputs(epoch, self._logs, True, now, *measured, heard, self._known, feature_verbs())
        return status(self._job, inputs)

    # ---- requests

    def _hear(self, caller: Caller, message: dict[str, Any]) -> None:
        try:
            self._answer(caller, message)
        except RefusedError as refused:
            caller.say("refused", reason=str(refused))
        except ValueError as error:
            caller.say(
                "refused", reason=f"malformed request {printable(message['kind'], 40)!r}: {printable(str(error))}"
            )

    def _answer(self, caller: Caller, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "status":
                self.measured(lambda current: caller.say("status", status=as_json(current)))
            case "follow":
                caller.follows = True
                caller.say("changed")
            case "stop":
                self._stop(read_record(StopRequest, message))
                caller.say("done")
            case "restart":
                self._restart(read_record(RestartRequest, message))
                caller.say("done")
            case "signal":
                caller.say("done", tasks=self._signal(read_record(SignalRequest, message)))
            case kind if self._answer_other is None or not self._answer_other(caller, message):
                raise RefusedError(
                    f"{printable(kind, 40)!r} is unknown to this supervisor: it is of another version of tflaunch, or "
                    "without that feature"
                )

    def _stop(self, request: StopRequest) -> None:
        if request.signal is not None and request.signal in _ENDING:
            self._mailbox.put(Interrupted(request.signal))
            return
        wanted = self._job.plan.timeouts.grace if request.grace is None else request.grace
        self._mailbox.put(StopRequested(min(wanted, _LONGEST_GRACE)))

    def _restart(self, request: RestartRequest) -> None:
        if self._job.phase is not Phase.RUNNING:
            raise RefusedError(f"the job is {self._job.phase.value}: tasks can be restarted while it is running")
        require_tasks(request.tasks, self._job)
        for task in request.tasks or ("",):
            self._mailbox.put(RestartRequested(task))

    def _signal(self, request: SignalRequest) -> list[str]:
        """Send a signal to the given tasks that are running, and return those."""
        (tasks, number), job = request, self._job
        require_tasks(tasks, job)
        name = signal_name(number)
        living = [task for task in tasks if job.tasks[task].phase is TaskPhase.RUNNING]
        if not living:
            raise RefusedError(f"none of these tasks is running: {', '.join(tasks)}")
        for task in living:
            session = self._sessions[job.plan.find(task).host]
            if not session.is_greeted:
                raise RefusedError(f"{session.host}, where {task} runs, cannot be heard")
        for task in living:
            self._mailbox.put(FaultInjected(f"kill -s {name.removeprefix('SIG')} {task}"))
            session = self._sessions[job.plan.find(task).host]
            session.request("signal_task", task=task, attempt=job.tasks[task].attempt, signal=number)
        return living
