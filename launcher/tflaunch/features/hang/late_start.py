"""Say what the tasks do that do not listen on their ports in time, from their stacks. Pure.

Importing TensorFlow takes minutes on a slow disk or a crowded host, and a program may load data before it makes its
strategy or server. Only of a task that does neither may one say that it does not use its TF_CONFIG.
"""

from __future__ import annotations

from collections.abc import Mapping

from tflaunch.core import policy
from tflaunch.core.job_state import Job
from tflaunch.explain import cluster_formation
from tflaunch.explain.run_status import Status
from tflaunch.explain.wording import listed
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.position import Position, grouped, is_in_tensorflow, position_of


def explain(job: Job, status: Status, evidence: Mapping[str, Evidence]) -> str:
    """Return what tasks do for which the others wait, or the most likely remedy if their stacks do not show it."""
    missing = set(policy.waited_for(job))
    positions = [position_of(task, evidence.get(task.task)) for task in status.tasks if task.task in missing]
    importing = [at for at in positions if at.does.startswith("imports ")]
    if importing:
        verb = "imports" if len(importing) == 1 else "import"
        what = f"{listed([at.task for at in importing])} still {verb}{importing[0].does.removeprefix('imports')}"
        return f"{what}: that takes minutes where the disk is slow or many tasks share few CPUs; `preload` does it once"
    early = [at for at in positions if at.own is not None and not _trains(at, evidence)]
    if not early:
        return cluster_formation.remedy(job)
    first = grouped(early)[-1]
    verb = "has" if len(first.tasks) == 1 else "have"
    what = f"{listed(first.tasks)} {verb} not made a strategy or server yet: {first.does} ({first.place})"
    return f'{what}; for tasks that need none, set "strategy": "none"'


def _trains(at: Position, evidence: Mapping[str, Evidence]) -> bool:
    """Whether a task is in TensorFlow or has made a step, and so may train without its cluster."""
    found = evidence[at.task]
    has_stepped = found.progress is not None and found.progress.step is not None
    return has_stepped or any(is_in_tensorflow(process) for process in found.processes)
