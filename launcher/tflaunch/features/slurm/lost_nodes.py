"""Begin a run again on other nodes, if some could not be reached at its start: Slurm takes minutes to notice that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tflaunch.core.job_state import Cause
from tflaunch.features.slurm import batch, commands
from tflaunch.features.slurm.commands import SlurmError
from tflaunch.plan.model import Plan
from tflaunch.store import journal

_NONE = "(null)"


def begin_elsewhere(directory: Path, plan: Plan, restarts: int, say: Callable[[str], None]) -> None:
    """Have Slurm start the job of a run again without the nodes that it did not reach; do nothing if it may not.

    Args:
        directory: the run's, which has ended.
        plan: of the run.
        restarts: how often Slurm has started the job again.
        say: shows a message.
    """
    _, job = journal.read_job(directory)
    culprit, number = job.culprit, batch.job_of(directory)
    if culprit is None or culprit.cause is not Cause.UNREACHABLE or number is None or restarts >= plan.restart.max:
        return
    lost = culprit.name.split(", ")
    if len(lost) == len(plan.hosts):
        return  # the fault is not the nodes'
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes with the first command
    try:
        before = commands.show("job", number).get("ExcNodeList", _NONE)
        commands.run_command("scontrol", "requeue", number)
        without = ",".join([*([] if before == _NONE else [before]), *lost])
        commands.run_command("scontrol", "update", f"jobid={number}", f"ExcNodeList={without}")
    except SlurmError as error:
        say(f"the run cannot begin again without {culprit.name}: {error}")
    else:
        say(f"job {number} is back in the queue, to begin again without {culprit.name}")
