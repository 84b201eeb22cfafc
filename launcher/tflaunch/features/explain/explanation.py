"""The explanation of a run, for programs and for people. Pure."""

from typing import NamedTuple

from tflaunch.core.annotations import Annotations
from tflaunch.core.job_state import Job
from tflaunch.explain import cluster_formation, summary
from tflaunch.explain.run_status import Status, absence_words, missing_words
from tflaunch.explain.summary import FailedTask, JobFailure, Tail
from tflaunch.explain.wording import counted


class Explanation(NamedTuple):
    """Why a run failed, or its state; `next` has commands that help further, the most useful first."""

    run: str
    state: str
    exit_code: int | None
    restarts: int
    sentence: str
    hang: str | None = None
    culprit: FailedTask | None = None
    hint: str | None = None
    also_stopped: tuple[str, ...] = ()
    not_restarted: str | None = None
    unended: tuple[str, ...] = ()
    logs: str = ""
    next: tuple[str, ...] = ()


def explain_run(job: Job, current: Status, tail: Tail, now: float, known: Annotations) -> Explanation:
    """Explain a run."""
    has_failed = bool(job.exit_code) and job.culprit is not None
    found = summary.failure(job, tail, known) if has_failed else None
    sentence = found.sentence if found is not None else _sentence(job, current, tail, now)
    about = Explanation(current.run, current.state, current.exit_code, current.restarts, sentence)
    about = about._replace(logs=current.logs, next=_next(current, found))
    if found is None:
        return about
    shared = {name: value for name, value in found._asdict().items() if name in Explanation._fields}
    return about._replace(**shared, unended=tuple(summary.unended(job)))


def _sentence(job: Job, current: Status, tail: Tail, now: float) -> str:
    if job.exit_code == 0:
        return summary.summary(job, current.logs, tail).partition("\n")[0]
    if current.exit_code is not None:
        return f"it has ended with exit code {current.exit_code}"
    if current.supervisor == "dead":
        return "its supervisor was killed"
    if absences := [words for host in current.hosts if (words := absence_words(host, now))]:
        return f"{current.phase.replace('_', ' ')}: {'; '.join(absences)}"
    waits = f", waiting for {', '.join(current.forming.missing)} to listen" if current.forming is not None else ""
    hangs = f"; no task goes on: {current.hang.sentence}" if current.hang is not None else ""
    again = f", after {counted(current.restarts, 'restart')}" if current.restarts else ""
    last = f"; the last attempt failed: {current.last_failure}" if current.last_failure else ""
    state = f"{current.phase.replace('_', ' ')}{again}{waits}{hangs}{last}"
    missing = [words] if (words := missing_words(current)) else []
    return "; ".join([state, *missing, *cluster_formation.servers_ended(job)])


def _next(current: Status, found: JobFailure | None) -> tuple[str, ...]:
    if current.exit_code is None:
        if current.supervisor == "dead":
            return (f"tflaunch up --resume {current.run}", f"tflaunch down {current.run}")
        return (f"tflaunch ps {current.run}", f"tflaunch stacks {current.run}", f"tflaunch logs -f {current.run}")
    if found is None:
        return (f"tflaunch logs {current.run}",)
    task = f" {found.culprit.task}" if found.culprit.task is not None else ""
    return (f"tflaunch logs {current.run}{task}", f"tflaunch events {current.run}", f"tflaunch report {current.run}")
