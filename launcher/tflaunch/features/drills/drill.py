"""Inject faults into a running job at their times, and judge how it reacts.

``kill worker:1 after 20s; stop ps:0 for 10s; cut host=b for 5s``
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import click

from tflaunch.agents.session import Session
from tflaunch.cli.arguments.launch import Launching
from tflaunch.clusterspec.values import parse_duration
from tflaunch.core.annotations import FaultInjected
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.policy import forms_cluster, gang_started, gang_tasks
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Findings, Supervision, Watcher
from tflaunch_worker.readable import duration_words

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
_EXAMPLE = "write for example 'kill worker:1 after 20s; stop ps:0 for 10s; cut host=b for 5s'"
_LASTING = ("stop", "cut")


class Fault(NamedTuple):
    """One fault, ``after`` seconds of training, for ``lasts`` (None: for good)."""

    verb: str
    task: str | None
    host: str
    after: float
    lasts: float | None

    @property
    def signal(self) -> int:
        """Number of the signal sent to the task."""
        return int(_SIGNALS[self.verb])

    def __str__(self) -> str:
        target = self.task or f"host={self.host}"
        lasts = "" if self.lasts is None else f" for {duration_words(self.lasts)}"
        return f"{self.verb} {target} after {duration_words(self.after)}{lasts}"


def check_start(text: str, launching: Launching) -> None:
    """Require that a drill goes with how a run is started.

    Raises:
        click.UsageError: it does not.
        TflaunchError: the text cannot be parsed or does not fit the plan.
    """
    if launching.options.begins_later:
        raise click.UsageError("--drill goes with a run that begins now; leave out --queue and --matrix")
    if launching.plan is not None:
        parse_drill(text, launching.plan)


def parse_drill(text: str, plan: Plan) -> tuple[Fault, ...]:
    """Return the faults of a drill, ordered by time.

    Raises:
        TflaunchError: the text cannot be parsed or does not fit the plan.
    """
    clauses = [clause.split() for clause in text.split(";") if clause.strip()]
    if not clauses:
        raise _wrong(text, "it says nothing")
    return tuple(sorted((_fault(words, plan) for words in clauses), key=lambda fault: fault.after))


def _fault(words: list[str], plan: Plan) -> Fault:
    clause = " ".join(words)
    if len(words) < 2 or len(words) % 2 or (words[0] not in _SIGNALS and words[0] != "cut"):
        raise _wrong(clause, "it must begin with kill, term, stop or cut, and a task or host=NAME")
    times = dict(zip(words[2::2], words[3::2], strict=True))
    if not times.keys() <= {"after", "for"} or 2 * len(times) != len(words) - 2:
        raise _wrong(clause, "after the target only 'after TIME' and 'for TIME' may follow")
    after, lasts = (_seconds(clause, times.get(word)) for word in ("after", "for"))
    if (lasts is not None) != (words[0] in _LASTING):
        raise _wrong(clause, "stop and cut need 'for TIME', kill and term cannot have it")
    task, host = _target(clause, words[0], words[1], plan)
    return Fault(words[0], task, host, after or 0.0, lasts)


def _seconds(clause: str, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None:
        raise _wrong(clause, f"{text!r} is not a valid duration")
    return seconds


def _target(clause: str, verb: str, name: str, plan: Plan) -> tuple[str | None, str]:
    if verb == "cut":
        host = name.removeprefix("host=")
        if host == name or all(known.host != host for known in plan.hosts):
            raise _wrong(clause, f"the hosts are {', '.join(f'host={known.host}' for known in plan.hosts)}")
        if plan.lease == 0:
            raise _wrong(clause, "without a lease (timeouts.lease) a cut link is the end of its tasks")
        return None, host
    tasks = {process.task: process.host for process in plan.processes()}
    if name not in tasks:
        raise _wrong(clause, f"the tasks are {', '.join(tasks)}")
    return name, tasks[name]


def _wrong(clause: str, reason: str) -> TflaunchError:
    return TflaunchError(f"--drill {clause!r}: {reason}; {_EXAMPLE}", EXIT_USAGE)


class FaultOutcome(NamedTuple):
    """Outcome of one fault. Times are seconds of the supervisor's clock.

    ``attempts``: the attempt of each task when the fault was injected. ``was_noticed``: a task ended because of it.
    ``recovered_at``: when the whole gang ran again. ``is_settled``: another fault followed before any task ended.
    """

    fault: Fault
    injected_at: float | None = None
    attempts: tuple[int, ...] = ()
    was_noticed: bool = False
    recovered_at: float | None = None
    is_settled: bool = False

    def settled(self) -> FaultOutcome:
        """Return it when another fault follows, to which changes belong."""
        return self._replace(is_settled=self.injected_at is not None and not self.was_noticed)

    def injected(self, job: Job, now: float) -> FaultOutcome:
        """Return it for a fault that is injected ``now``."""
        return self._replace(injected_at=now, attempts=_attempts(job))


def follow_fault(outcome: FaultOutcome, job: Job, now: float) -> FaultOutcome:
    """Return the outcome of a fault, updated from the new state ``job``."""
    is_over = outcome.is_settled or outcome.recovered_at is not None or job.exit_code == 0
    if outcome.injected_at is None or is_over:
        return outcome
    is_whole = gang_runs(job)
    if not is_whole or _attempts(job) != outcome.attempts:
        outcome = outcome._replace(was_noticed=True)
    if outcome.was_noticed and is_whole:
        outcome = outcome._replace(recovered_at=now)
    return outcome


def gang_runs(job: Job) -> bool:
    """Whether every task of the gang runs and listens, or has succeeded."""
    gang = [job.tasks[process.task] for process in gang_tasks(job)]
    are_open = not forms_cluster(job.plan) or all(task.has_succeeded or task.is_port_open for task in gang)
    return job.phase is Phase.RUNNING and gang_started(job) and are_open


def _attempts(job: Job) -> tuple[int, ...]:
    return tuple(job.tasks[process.task].attempt for process in job.plan.tasks)


def report_faults(outcomes: list[FaultOutcome], exit_code: int | None) -> list[str]:
    """Return a sentence for each fault."""
    return [f"drill: {outcome.fault}: {_describe(outcome, exit_code)}" for outcome in outcomes]


def _describe(outcome: FaultOutcome, exit_code: int | None) -> str:
    if outcome.injected_at is None:
        return "not done, the job had ended before"
    if not outcome.was_noticed:
        return "no task ended because of it"
    if outcome.recovered_at is None:
        return "the job ended well without a restart" if exit_code == 0 else "the job did not recover"
    took = outcome.recovered_at - outcome.injected_at
    return f"all tasks ran again after {duration_words(took)}" + ("" if exit_code == 0 else ", but the job failed")


class FaultInjector(Watcher):
    """Injects faults; their times count from when the whole gang first runs."""

    def __init__(self, supervision: Supervision) -> None:
        self._mailbox = supervision.mailbox
        self._sessions = supervision.sessions
        self._say = supervision.say
        faults = parse_drill(supervision.config.extras["drill"], supervision.job.original)
        self._outcomes = [FaultOutcome(fault) for fault in faults]
        self._due: list[int] = []
        self._stopped: list[Callable[[], None]] = []
        self._has_begun = False
        self._job: Job | None = None

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step, and inject faults that are due."""
        self._job = job
        self._outcomes = [follow_fault(outcome, job, now) for outcome in self._outcomes]
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

    def finish(self, run: Run) -> Findings:
        """Return a sentence per fault.

        A drill that injected nothing must not look like one that passed.
        """
        is_done = all(outcome.injected_at is not None for outcome in self._outcomes)
        notes = report_faults(self._outcomes, run.exit_code)
        return Findings(notes, exit_code=0 if is_done else EXIT_INTERNAL)

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
        self._outcomes = [outcome.settled() for outcome in self._outcomes]
        self._outcomes[number] = self._outcomes[number].injected(job, now)
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
