"""`up --on slurm`: submit a run to Slurm and follow it; also the command that the job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli._follow import follow_run
from tflaunch.cli._spec import say, warn

if TYPE_CHECKING:
    from tflaunch.clusterspec.spec_file import SpecFile
    from tflaunch.features.slurm.submission import Order

_SLURM = "slurm"
_OPTIONS = {
    "partition": "Submit to this partition.",
    "account": "Charge this account.",
    "time": "Time limit, in the format of sbatch.",
    "nodes": "Number of nodes to spread tasks given as a count over.",
    "gpus-per-node": "Number of GPUs on each node.",
}


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on` to a command, and sbatch options for `slurm_settings`."""
    for name, text in reversed(_OPTIONS.items()):
        command = click.option(
            f"--{name}", metavar="VALUE", expose_value=False, callback=_note, help=f"{text} With --on slurm."
        )(command)
    choice = click.Choice([_SLURM, "kubernetes"])
    return click.option("--on", "engine", type=choice, help="Run it as a Slurm job, or in Kubernetes pods.")(command)


def _note(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = (option.name or "").replace("_", "-")
        context.meta.setdefault(__name__, []).append(f"slurm.{name}={value}")


def slurm_settings(engine: str | None) -> tuple[str, ...]:
    """Return the given sbatch options as settings of the spec.

    Raises:
        click.UsageError: they were given without ``--on slurm``.
    """
    settings = tuple(click.get_current_context().meta.get(__name__, ()))
    if settings and engine != _SLURM:
        name = settings[0].partition("=")[0].removeprefix("slurm.")
        raise click.UsageError(f"--{name} is an option of sbatch; add --on slurm.")
    return settings


def submit(spec: SpecFile, order: Order, is_detached: bool, is_verbose: bool, is_quiet: bool) -> int:
    """Submit a run of a spec, and follow it unless detached; return its exit code."""
    from tflaunch.client.run_location import locate_run
    from tflaunch.features.slurm import submission as slurm_submission

    submitted = slurm_submission.submit_spec(spec, order)
    warn(spec.source, submitted.warnings)
    directory = submitted.directory
    if not is_quiet:
        say(f"run {directory.run} is job {submitted.job}")
    if is_detached:
        click.echo(directory.run)
        return 0
    return follow_run(locate_run(directory.path), is_verbose, is_quiet)


@click.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def supervise(directory: Path) -> int:
    """Begin the run in DIRECTORY: its job calls this, on its first node."""
    from tflaunch import descriptors
    from tflaunch.features.slurm import batch
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

    code = launch.code_for_hosts(plan)
    return launch.start(plan, RunConfig(run, code, say, order.extras, sink=daemon.notes, begun=begun))
