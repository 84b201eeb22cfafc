"""Jobs that receive events, for tests of the resulting actions."""

from __future__ import annotations

from typing import Any

from support.specs import clustered
from tflaunch.core import step, time_limits
from tflaunch.core.actions import Action, HoldPorts, JoinHost, LookUpNames, ProbePeers, StartTask, StopTask
from tflaunch.core.annotations import NOTHING, Annotation
from tflaunch.core.events import (
    Event,
    HostJoined,
    HostLost,
    HostUnreachable,
    NamesResolved,
    PeersProbed,
    PortOpened,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Culprit
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.explain.status import StatusInputs, status
from tflaunch.plan.model import Plan

HERE = "localhost"


class History:
    def __init__(self, plan: Plan, *, preflight: bool = False) -> None:
        self.now = 1000.0
        plan = plan._replace(preflight=preflight)
        self.job = step.begin_job("run", plan, self.now)
        self.actions: list[Action] = []
        self.known = NOTHING

    def happens(self, *events: Event | Annotation) -> History:
        """Process events, and keep the actions that the last one caused; note annotations."""
        for event in events:
            if isinstance(event, Annotation):
                self.known = self.known.noted(event, self.now)
            else:
                self.job, self.actions = step.step(self.job, event, self.now)
        return self

    def wait(self) -> History:
        """Advance the time to the supervisor's next deadline."""
        deadline = time_limits.next_deadline(self.job)
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.happens(TimePassed())

    def start(self) -> History:
        """Let the current attempt start and all its ports open."""
        ports = {task.task: 10000 + number for number, task in enumerate(self.job.plan.tasks)}
        self.happens(HostJoined(HERE), PortsHeld(HERE, ports))
        for task in self.job.plan.processes():
            attempt = self.job.tasks[task.task].attempt
            self.happens(TaskStarted(HERE, task.task, attempt, 1, 0.0), PortOpened(HERE, task.task, attempt))
        return self

    def start_without_ports(self) -> History:
        """Let the first attempt start; no task listens yet."""
        ports = {task.task: 10000 + number for number, task in enumerate(self.job.plan.tasks)}
        self.happens(HostJoined(HERE), PortsHeld(HERE, ports))
        return self.happens(*[TaskStarted(HERE, task, 0, 1, 0.0) for task in ports])

    def ends(
        self, task: str, code: int | None = 0, signal: int | None = None, checkpoint: int = 0, **known: Any
    ) -> History:
        """Let a task's process exit and be gone; ``known``: other fields of its exit, such as ``failure``."""
        host, attempt = self.job.plan.find(task).host, self.job.tasks[task].attempt
        exited, actions = TaskExited(host, task, attempt, code, signal, 0.0, **known), []
        self.happens(exited)
        actions += self.actions
        self.happens(TaskGone(host, task, attempt, checkpoint))
        self.actions = actions + self.actions
        return self

    def told(self, event: Event | Annotation, *log: str) -> list[str]:
        """Process an event, and return the messages about it; ``log`` is the log of every task."""
        before, known = self.job, self.known
        self.happens(event)
        return messages_about(before, event, self.job, self.now, Logs("/logs", lambda *_: [*log]), known)

    def status(self, epoch: float = 0.0) -> Status:
        return status(self.job, StatusInputs(epoch, "/logs", True, self.now, known=self.known))

    @property
    def culprit(self) -> Culprit:
        assert self.job.culprit is not None
        return self.job.culprit

    def stopped(self) -> list[str]:
        return [action.task for action in self.actions if isinstance(action, StopTask)]


class Willing(History):
    """A job whose hosts obey every request at once; those in ``away`` cannot be reached."""

    def __init__(self, plan: Plan, *away: str) -> None:
        super().__init__(plan, preflight=True)
        self.away = set(away)
        self.seen: list[Action] = []
        self._do([JoinHost(host.host) for host in plan.hosts])

    def happens(self, *events: Event | Annotation) -> Willing:
        """Process events, and all events that the hosts' responses cause."""
        self.seen = []
        for event in events:
            super().happens(event)
            self._do(self.actions)
        return self

    def _do(self, actions: list[Action]) -> None:
        waiting = list(actions)
        while waiting:
            action = waiting.pop(0)
            self.seen.append(action)
            for event in self._answers(action):
                super().happens(event)
                waiting += self.actions

    def _answers(self, action: Action) -> list[Event]:
        match action:
            case JoinHost(host) if host in self.away:
                return [HostUnreachable(host, "no route")]
            case JoinHost(host):
                return [HostJoined(host)]
            case LookUpNames(host, names):
                return [NamesResolved(host, dict.fromkeys(names, "10.0.0.9"))]
            case HoldPorts(host, ports):
                return [PortsHeld(host, {task: port or 20000 for task, port in ports.items()})]
            case ProbePeers(host):
                return [PeersProbed(host, {})]
            case StartTask(host, task, attempt):
                return [TaskStarted(host, task, attempt, 1, self.now), PortOpened(host, task, attempt)]
            case StopTask(host, task, attempt):
                exited = TaskExited(host, task, attempt, None, 15, self.now, was_told=True)
                return [exited, TaskGone(host, task, attempt)]
        return []

    def loses(self, host: str) -> Willing:
        """Lose a host with all its tasks, permanently."""
        self.away.add(host)
        return self.happens(HostLost(host, "no power"))

    def waits(self, seconds: float) -> Willing:
        """Advance the time, and process every deadline on the way."""
        end = self.now + seconds
        while (deadline := time_limits.next_deadline(self.job)) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.happens(TimePassed())
        self.now = end
        return self

    def started(self) -> list[str]:
        return [action.task for action in self.seen if isinstance(action, StartTask)]

    def workers(self) -> list[str]:
        """Return the hosts of the workers in the current plan, ordered by index."""
        return [task.host for task in self.job.plan.tasks if task.role == "worker"]


def mirrored(count: int = 2, **fields: object) -> History:
    """Return a running MultiWorkerMirrored job."""
    return History(clustered({"worker": count}, **fields)).start()


def parameter_server(**fields: object) -> History:
    """Return a running job with a chief, two workers and a ps."""
    return History(clustered({"chief": 1, "worker": 2, "ps": 1}, **fields)).start()


TASK = TaskStatus("worker:0", role="worker", host="host-0", address=None, state="running", pid=None, attempt=0)
RUN = Status(
    run="night", name="night", phase="running", state="running", attempt=0, restarts=0, restart=None, max_restarts=3,
    last_failure=None, exit_code=None, culprit=None, reason=None, forming=None, supervisor="alive", started=0.0,
    logs="/logs", tensorboard=None, hosts=(), tasks=(),
)  # fmt: skip
