"""Go on after the time limit of a job: Slurm starts it again, as the same run."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tflaunch.core.job_state import Job
from tflaunch.core.restart_budget import Reached
from tflaunch.errors import Problem
from tflaunch.features.notes import read_note, write_note
from tflaunch.features.render.slurm import AT_LIMIT, NO_REQUEUE, REQUEUE
from tflaunch.features.slurm import jobs
from tflaunch.plan.model import Plan
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Findings, Supervision, Watcher
from tflaunch.store.history import lines_in, moments_in
from tflaunch_worker.agent import checkpoint_progress
from tflaunch_worker.readable import duration_words

LIMIT = "the time limit"
"""How the reason of a run begins that ended at it."""
EXTRA = "past_limit"
"""The extra of a run in which `choice` stands."""
_ASKED, _ALLOWED = "asked", "allowed"
_LONGEST_STAY = 120.0  # seconds: nodes are not kept idle for longer, only to be called TIMEOUT
_SOON = 2.0  # seconds
_LATE = 60.0  # seconds: slurmctld looks for jobs at their limits each 30 s (PERIODIC_TIMEOUT in its controller.c)
_HOW = f'write "slurm": {{"{REQUEUE}": "{AT_LIMIT}"}} to let it go on in another job'


def choice(options: Mapping[str, str], plan: Plan) -> str:
    """Return whether a run goes on after its limit: "asked", "allowed", or why not."""
    if options.get(REQUEUE) == AT_LIMIT:
        return _ASKED
    if name := next((name for name in (REQUEUE, NO_REQUEUE) if name in options), ""):
        return f"slurm.{name} is set"
    return _ALLOWED if plan.restart.max else "restart.max is 0"


def find_warnings(options: Mapping[str, str], plan: Plan) -> list[Problem]:
    """Return a warning if a run does not go on after its time limit."""
    reason = choice(options, plan)
    if reason in (_ASKED, _ALLOWED):
        return []
    return [Problem.warning("slurm", f"the run ends at the time limit of its job: {reason}", _HOW)]


class PastLimit(Watcher):
    """Puts the job of a run that the time limit has ended back into the queue.

    Each life must begin where those before have come to, roughly, and come further: a program that does not save in
    time, or does not read what it has saved, would start over each time.
    """

    def __init__(self, supervision: Supervision) -> None:
        self._directory = supervision.config.directory.path
        self._choice = supervision.config.extras[EXTRA]
        self._number = jobs.job_of(self._directory) or ""
        self._goes_on, self._left = False, 0.0

    def finish(self, run: Run) -> Findings | None:
        """Say whether it goes on."""
        culprit = run.job.culprit
        if culprit is None or not culprit.message.startswith(LIMIT):
            return None
        reason = self._why_not(run.job)
        self._goes_on = not reason
        if self._goes_on:
            return Findings([f"job {self._number} goes back into the queue, to go on from there"])
        notes = [f"the run does not go on after its time limit: {reason}"]
        self._left = self._until_limit()
        if self._left:
            notes.append(f"Slurm ends job {self._number} at its time limit, in {duration_words(self._left)}")
        return Findings(notes)

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Put the job back, or let Slurm end it, as TIMEOUT and not as FAILED."""
        if self._left:
            time.sleep(self._left + _LATE)  # until its TERM
        if not self._goes_on:
            return
        try:
            put_back(self._number)
        except jobs.SlurmError as error:
            say(f"job {self._number} cannot be put back into the queue: {error}; start its spec again to go on")

    def _until_limit(self) -> float:
        """Return the seconds until Slurm ends the job; 0: it does so now, or too late."""
        with suppress(jobs.SlurmError):
            job = jobs.find_job(self._number, patience=_SOON)
            if job is not None and job.is_running and 0 < job.seconds_left <= _LONGEST_STAY:
                return job.seconds_left
        return 0.0

    def _why_not(self, job: Job) -> str:
        """Return why it does not go on; "" if it does."""
        if self._choice not in (_ASKED, _ALLOWED):
            return f"{self._choice}; {_HOW}"
        lives = jobs.earlier_lives(self._directory)
        earlier = Reached()
        for life in lives:
            reached = read_note(Reached, life / jobs.REACHED_NAME)  # None: it ended in another way
            earlier = earlier.furthest(reached or Reached())
        reached, has_saved = self._reached(job)
        write_note(self._directory / jobs.REACHED_NAME, reached)
        if not has_saved and self._choice == _ALLOWED:
            return f"its tasks have written no checkpoint into their directories; {_HOW}"
        knows_nothing = has_saved and not any((*reached, *earlier))
        has_resumed = 2 * self._first_step(earlier.step) >= earlier.step  # it may save once in an epoch
        if not lives or knows_nothing or (has_resumed and reached.is_beyond(earlier)):
            return ""
        beyond = f"did not get beyond {earlier or 'its start'}" if has_resumed else "began anew in this job"
        return (
            f"it {beyond}; let the program save within timeouts.grace after TERM, and read what it has saved, or ask "
            "for more time (slurm.time)"
        )

    def _first_step(self, otherwise: int) -> float:
        """Return the first step that a task has reported in this life."""
        moments = moments_in(lines_in(self._directory))
        steps = (figures.step for moment in moments for figures in moment.tasks.values())
        return next((step for step in steps if step is not None), otherwise)

    def _reached(self, job: Job) -> tuple[Reached, bool]:
        """Return the progress of this life, and whether a checkpoint was written in it."""
        reached, began = job.restarts.budget.furthest, jobs.began_at(self._directory)
        roots: dict[str, None] = {}  # of all tasks at once: each search may take a second, and Slurm kills soon
        for task in job.plan.tasks:
            reached = reached.furthest(job.tasks[task.task].reached)
            roots |= dict.fromkeys(checkpoint_progress.directories([*task.argv], task.workdir, task.workdir))
        reached = reached.furthest(Reached(checkpoint=checkpoint_progress.newest([*roots], began)))
        return reached, checkpoint_progress.newest([*roots], began, checkpoint_progress.is_checkpoint) > 0


def put_back(job: str) -> None:
    """Put the job of this process back into the queue; raises as `jobs.run_command`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to the job at once
    jobs.run_command("scontrol", "requeue", job)


def lost(directory: Path) -> int:
    """Return how many of a job's earlier executions did not end at the time limit."""
    return sum(not (life / jobs.REACHED_NAME).exists() for life in jobs.earlier_lives(directory))
