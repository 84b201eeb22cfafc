"""Jobs to which things happen, for tests of what follows."""

from __future__ import annotations

from specs import clustered
from tflaunch import supervisor
from tflaunch.actions import Action, StopTask
from tflaunch.events import (
    Event,
    HostJoined,
    PortOpened,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskStarted,
    TimePassed,
)
from tflaunch.plan import Plan

HERE = "localhost"


class History:
    """A job to which things happen."""

    def __init__(self, plan: Plan) -> None:
        self.now = 1000.0
        self.job = supervisor.begin("run", plan, self.now)
        self.actions: list[Action] = []

    def happens(self, *events: Event) -> History:
        """Let events happen and remember the actions that followed the last of them."""
        for event in events:
            self.job, self.actions = supervisor.step(self.job, event, self.now)
        return self

    def wait(self) -> History:
        """Let time pass until the supervisor wants to know."""
        deadline = supervisor.next_deadline(self.job)
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

    def ends(self, task: str, code: int | None = 0, signal: int | None = None) -> History:
        """Let a task's process exit, and be gone."""
        attempt = self.job.tasks[task].attempt
        exited, actions = TaskExited(HERE, task, attempt, code, signal, 0.0), []
        self.happens(exited)
        actions += self.actions
        self.happens(TaskGone(HERE, task, attempt))
        self.actions = actions + self.actions
        return self

    def stopped(self) -> list[str]:
        """Return the tasks that the last event had stopped."""
        return [action.task for action in self.actions if isinstance(action, StopTask)]


def mirrored(count: int = 2, **fields: object) -> History:
    """Return a running MultiWorkerMirrored job."""
    return History(clustered({"worker": count}, **fields)).start()


def parameter_server(**fields: object) -> History:
    """Return a running job of chief, two workers and a ps."""
    return History(clustered({"chief": 1, "worker": 2, "ps": 1}, **fields)).start()
