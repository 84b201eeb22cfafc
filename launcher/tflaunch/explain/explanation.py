"""The explanation of a run, in fields for programs and in sentences for people. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tflaunch.core.annotations import Annotations
from tflaunch.core.job_state import Job
from tflaunch.explain import cluster_formation, summary
from tflaunch.explain.run_status import Status
from tflaunch.explain.summary import JobFailure
from tflaunch.explain.wording import absence_words, counted


class Explanation(NamedTuple):
    """What is the matter with a run.

    ``sentence`` answers in one sentence. ``host`` and ``attempt`` are those of the culprit, if it is a task.
    ``next``: commands that help further, the most useful one first.
    """

    run: str
    state: str
    exit_code: int | None
    restarts: int
    sentence: str
    host: str | None
    attempt: int | None
    failure: JobFailure | None
    logs: str
    next: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as the JSON that `tflaunch explain --json` prints."""
        found = self.failure
        culprit = None
        if found is not None:
            culprit = {
                "task": found.task,
                "host": self.host,
                "attempt": self.attempt,
                "python": found.python or None,
                "traceback": found.traceback,
                "last_lines": found.last_lines,
            }
        return {
            "run": self.run,
            "state": self.state,
            "exit_code": self.exit_code,
            "restarts": self.restarts,
            "sentence": self.sentence,
            "hang": found.hang or None if found is not None else None,
            "culprit": culprit,
            "hint": found.hint if found is not None else None,
            "also_stopped": found.also_stopped if found is not None else (),
            "not_restarted": found.not_restarted or None if found is not None else None,
            "unended": found.unended if found is not None else (),
            "logs": self.logs,
            "next": self.next,
        }


def explain_run(
    job: Job, current: Status, tail: Callable[[str, int], list[str]], now: float, known: Annotations
) -> Explanation:
    """Explain a run.

    Args:
        job: its job, as of the last record of its journal.
        current: its status.
        tail: returns the last lines of a task's log.
        now: seconds since the epoch.
        known: what is known beside the job.
    """
    has_failed = bool(job.exit_code) and job.culprit is not None
    found = summary.failure(job, tail, known) if has_failed else None
    culprit = job.culprit if found is not None and found.task is not None else None
    return Explanation(
        run=current.run,
        state=current.state,
        exit_code=current.exit_code,
        restarts=current.restarts,
        sentence=found.sentence if found is not None else _sentence(job, current, tail, now),
        host=job.host_of(culprit.name) if culprit is not None else None,
        attempt=culprit.attempt if culprit is not None else None,
        failure=found,
        logs=current.logs,
        next=_next(current, found),
    )


def _sentence(job: Job, current: Status, tail: Callable[[str, int], list[str]], now: float) -> str:
    """Answer for a run that has not failed."""
    if job.exit_code == 0:
        return summary.summary(job, current.logs, tail).partition("\n")[0]
    if current.exit_code is not None:
        return f"it has ended with exit code {current.exit_code}"
    if current.supervisor == "dead":
        return "its supervisor was killed"
    if absences := [words for host in current.hosts if (words := absence_words(host, now))]:
        return f"{current.phase.replace('_', ' ')}: {'; '.join(absences)}"
    waits = f", waiting for {', '.join(current.forming.missing)} to listen" if current.forming is not None else ""
    again = f", after {counted(current.restarts, 'restart')}" if current.restarts else ""
    last = f"; the last attempt failed: {current.last_failure}" if current.last_failure else ""
    return "; ".join([f"{current.phase.replace('_', ' ')}{again}{waits}{last}", *cluster_formation.servers_ended(job)])


def _next(current: Status, found: JobFailure | None) -> tuple[str, ...]:
    """Return commands that help further."""
    if current.exit_code is None:
        if current.supervisor == "dead":
            return (f"tflaunch up --resume {current.run}", f"tflaunch down {current.run}")
        return (f"tflaunch ps {current.run}", f"tflaunch stacks {current.run}", f"tflaunch logs -f {current.run}")
    if found is None:
        return (f"tflaunch logs {current.run}",)
    task = f" {found.task}" if found.task is not None else ""
    return (f"tflaunch logs {current.run}{task}", f"tflaunch events {current.run}", f"tflaunch report {current.run}")
