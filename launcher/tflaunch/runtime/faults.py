"""Run a drill: inject its faults at their times and watch how the job reacts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tflaunch.agents.session import Session
from tflaunch.core import drill
from tflaunch.core.drill import Course, Strike
from tflaunch.core.events import Struck
from tflaunch.core.job_state import Job
from tflaunch.core.policy import gang_runs
from tflaunch.mailbox import Mailbox


class Driller:
    """Injects faults into a running job. Times count from when the whole gang first runs."""

    def __init__(
        self, strikes: Sequence[Strike], mailbox: Mailbox, sessions: Mapping[str, Session], say: Callable[[str], None]
    ) -> None:
        self._mailbox = mailbox
        self._sessions = sessions
        self._say = say
        self._courses = [Course(strike) for strike in strikes]
        self._due: list[int] = []
        self._has_begun = False
        self._job: Job | None = None

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step, and inject faults that are due."""
        self._job = job
        self._courses = [drill.follow(course, job, now) for course in self._courses]
        if gang_runs(job):
            if not self._has_begun:
                self._has_begun = True
                for number, course in enumerate(self._courses):
                    self._mailbox.call_at(now + course.strike.after, partial(self._come, number))
            while self._due and gang_runs(self._job):
                self._strike(self._due.pop(0))

    def report(self, exit_code: int | None) -> list[str]:
        """Return one sentence per fault."""
        return drill.report(self._courses, exit_code)

    @property
    def is_done(self) -> bool:
        """Whether every fault was injected."""
        return all(course.struck_at is not None for course in self._courses)

    def _come(self, number: int) -> None:
        """Inject a fault whose time has come; postpone it while the job recovers from another one."""
        if self._job is not None and gang_runs(self._job):
            self._strike(number)
        else:
            self._due.append(number)

    def _strike(self, number: int) -> None:
        job, now, strike = self._job, self._mailbox.now(), self._courses[number].strike
        assert job is not None
        self._courses = [drill.settle(course) for course in self._courses]
        self._courses[number] = drill.strike_now(self._courses[number], job, now)
        self._say(f"drill: {strike}")
        self._mailbox.put(Struck(str(strike)))
        if strike.task is None:
            assert strike.lasts is not None
            self._sessions[strike.host].cut(strike.lasts)
            return
        process = next((process for process in job.plan.processes() if process.task == strike.task), None)
        if process is None:
            return  # the gang has shrunk and no longer has this task
        session, attempt = self._sessions[process.host], job.tasks[process.task].attempt
        session.signal(process.task, attempt, strike.signal)
        if strike.lasts is not None:
            go_on = partial(session.signal, process.task, attempt, int(signal.SIGCONT))
            self._mailbox.call_at(now + strike.lasts, go_on)
