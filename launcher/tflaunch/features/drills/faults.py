"""Run a drill: inject its faults at their times and watch how the job reacts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from tflaunch.agents.session import Session
from tflaunch.core.annotations import FaultInjected
from tflaunch.core.job_state import Job
from tflaunch.core.policy import gang_runs
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.features.drills import drill
from tflaunch.features.drills.drill import Fault, FaultOutcome
from tflaunch.plan.model import TaskPlan
from tflaunch.runtime.watchers import Supervision, Watcher


class FaultInjector(Watcher):
    """Injects faults; their times count from when the whole gang first runs."""

    def __init__(self, supervision: Supervision) -> None:
        self._mailbox = supervision.mailbox
        self._sessions = supervision.sessions
        self._say = supervision.say
        faults = drill.parse_drill(supervision.config.extras["drill"], supervision.job.original)
        self._outcomes = [FaultOutcome(fault) for fault in faults]
        self._due: list[int] = []
        self._stopped: list[Callable[[], None]] = []
        self._has_begun = False
        self._job: Job | None = None

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step, and inject faults that are due."""
        self._job = job
        self._outcomes = [drill.follow_fault(outcome, job, now) for outcome in self._outcomes]
        if gang_runs(job) and not self._has_begun:
            self._has_begun = True
            for number, outcome in enumerate(self._outcomes):
                self._mailbox.call_at(now + outcome.fault.after, partial(self._on_due, number))
        due, self._due = self._due, []
        for number in due:
            self._on_due(number)
        stopped, self._stopped = self._stopped, []
        for go_on in stopped:
            go_on()

    def judge(self, exit_code: int) -> tuple[list[str], int]:
        """Return a sentence per fault, and the exit code.

        A drill that injected nothing must not look like one that passed.
        """
        is_done = all(outcome.injected_at is not None for outcome in self._outcomes)
        code = EXIT_INTERNAL if exit_code == 0 and not is_done else exit_code
        return drill.report_faults(self._outcomes, exit_code), code

    def _on_due(self, number: int) -> None:
        """Inject a fault that is due; postpone it while the job recovers."""
        if self._is_possible(self._outcomes[number].fault):
            self._inject(number)
        else:
            self._due.append(number)

    def _is_possible(self, fault: Fault) -> bool:
        """Return whether the gang runs, and the task's agent takes commands."""
        if self._job is None or not gang_runs(self._job):
            return False
        process = _process_of(self._job, fault)
        return process is None or self._sessions[process.host].is_greeted

    def _inject(self, number: int) -> None:
        job, now, fault = self._job, self._mailbox.now(), self._outcomes[number].fault
        assert job is not None
        self._outcomes = [drill.settle_fault(outcome) for outcome in self._outcomes]
        self._outcomes[number] = drill.mark_injected(self._outcomes[number], job, now)
        self._say(f"drill: {fault}")
        self._mailbox.put(FaultInjected(str(fault)))
        if fault.task is None:
            assert fault.lasts is not None
            self._sessions[fault.host].cut(fault.lasts)
            return
        process = _process_of(job, fault)
        if process is None:
            return  # the gang has shrunk and no longer has this task
        session, attempt = self._sessions[process.host], job.tasks[process.task].attempt
        session.request("signal_task", task=process.task, attempt=attempt, signal=fault.signal)
        if fault.lasts is not None:
            self._mailbox.call_at(now + fault.lasts, partial(self._continue, session, process.task, attempt))

    def _continue(self, session: Session, task: str, attempt: int) -> None:
        """Continue a task that was stopped, as soon as its agent takes commands."""
        if session.is_greeted:
            session.request("signal_task", task=task, attempt=attempt, signal=int(signal.SIGCONT))
        else:
            self._stopped.append(partial(self._continue, session, task, attempt))


def _process_of(job: Job, fault: Fault) -> TaskPlan | None:
    """Return the task of a fault, None if it is a host's, or no longer there."""
    return next((process for process in job.plan.processes() if process.task == fault.task), None)
