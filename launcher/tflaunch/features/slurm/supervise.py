"""`supervise`: what the batch job of a run executes. For programs, not for people."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from tflaunch.cli.arguments.spec import say


@click.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def supervise(directory: Path) -> int:
    """Begin the run in DIRECTORY: its job calls this, on its first node."""
    from tflaunch import descriptors
    from tflaunch.errors import EXIT_PREFLIGHT
    from tflaunch.features.slurm import batch, lost_nodes
    from tflaunch.features.slurm import submission as slurm_submission
    from tflaunch.runtime import daemon, launch
    from tflaunch.runtime.run_config import RunConfig
    from tflaunch.store import log_writer

    order, run = slurm_submission.take_up(directory)
    plan = slurm_submission.plan_of_allocation(order, run)
    descriptors.require(len(plan.hosts), len(plan.processes()))
    if order.log_dir is not None:
        log_writer.require_own_logs(run.logs, [process.task for process in plan.processes()])

    def begun() -> None:
        batch.note_life(directory, slurm_submission.restart_count())

    explain = functools.partial(slurm_submission.explain_term, directory)
    code = launch.code_for_hosts(plan)
    config = RunConfig(run, code, say, order.extras, sink=daemon.notes, begun=begun, explain_term=explain)
    exit_code = launch.start(plan, config)
    if exit_code == EXIT_PREFLIGHT:
        lost_nodes.begin_elsewhere(directory, plan, slurm_submission.restart_count(), say)
    return exit_code
