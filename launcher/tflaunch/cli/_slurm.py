"""`up --on slurm`: submit a run to Slurm and follow it; also the command that the job runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli._spec import say, warn
from tflaunch.errors import Problem, SpecError, TflaunchError

if TYPE_CHECKING:
    from tflaunch.client.observer import Observer
    from tflaunch.clusterspec.load import SpecFile
    from tflaunch.clusterspec.model import Spec
    from tflaunch.plan.model import Plan
    from tflaunch.runtime.slurm_submission import Order

ENGINE = "slurm"
_OPTIONS = {
    "partition": "Submit to this partition.",
    "account": "Charge this account.",
    "time": "Limit of time, as sbatch takes it.",
    "nodes": "Number of nodes to spread tasks given as a count over.",
    "gpus-per-node": "Number of GPUs on each node.",
}


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on` to a command, and sbatch options for `slurm_settings`."""
    for name, text in reversed(_OPTIONS.items()):
        command = click.option(
            f"--{name}", metavar="VALUE", expose_value=False, callback=_note, help=f"{text} With --on slurm."
        )(command)
    return click.option("--on", "engine", type=click.Choice([ENGINE]), help="Submit it as a job of Slurm.")(command)


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
    if settings and engine is None:
        name = settings[0].partition("=")[0].removeprefix("slurm.")
        raise click.UsageError(f"--{name} is an option of sbatch; add --on slurm.")
    return settings


def submit(spec: SpecFile, order: Order, is_detached: bool) -> int:
    """Submit a run of a spec, and follow it unless detached; return its exit code."""
    from tflaunch.discovery import prepare
    from tflaunch.plan import lint
    from tflaunch.render import slurm
    from tflaunch.render.target_plan import with_gpus
    from tflaunch.runtime import slurm_submission
    from tflaunch.store import log_writer
    from tflaunch.store.run_dir import RunDirectory

    loaded = with_gpus(_offline(spec, order))
    if problems := lint.unused_image(loaded, ENGINE):
        raise SpecError(spec.source, problems)
    warn(spec.source, prepare.warnings_about(spec.source, loaded))
    plan = prepare.make_plan(spec.source, spec.directory, loaded)
    _check(plan, order)
    if order.log_dir is not None:
        log_writer.require_own_logs(Path(order.log_dir), [process.task for process in plan.processes()])
    directory = RunDirectory(plan.name, None if order.log_dir is None else Path(order.log_dir))
    directory.keep_spec(order.suffix, spec.text.encode())
    job = slurm_submission.submit(directory, order, slurm.options(plan, loaded))
    say(f"run {directory.run} is job {job}")
    if is_detached:
        click.echo(directory.run)
        return 0
    return _follow(directory.path)


def _offline(file: SpecFile, order: Order) -> Spec:
    """Return the spec with placeholder nodes, since the real ones are not known yet."""
    from tflaunch.discovery import resolve
    from tflaunch.plan import placement

    spec = _load(file, order)
    if spec.pool not in (None, ENGINE):
        message = f"is {spec.pool!r}, and --on slurm takes the nodes that Slurm gives"
        raise SpecError(file.source, [Problem("error", "hosts.discover", message, "remove one of them")])
    spec = resolve.assumed(file.source, spec.model_copy(update={"pool": None}))
    nodes = [f"node-{number}" for number in range(1, placement.nodes_wanted(spec) + 1)]
    return placement.onto(spec, nodes)


def _load(file: SpecFile, order: Order) -> Spec:
    from tflaunch.clusterspec import load

    return load.load_spec(file, order.settings, order.name, order.command, os.environ)


def _check(plan: Plan, order: Order) -> None:
    """Report errors now that the job would otherwise report when it starts."""
    from tflaunch.core import drill

    if order.drill is not None:
        drill.parse_drill(order.drill, plan)


def _follow(directory: Path) -> int:
    from tflaunch.client import slurm_follow
    from tflaunch.client.follow import Follower
    from tflaunch.tui.screen import Screen

    def watch(observer: Observer) -> int:
        tasks = [process.task for process in observer.job.original.processes()]
        screen = Screen(tasks)
        try:
            return Follower(observer, screen, tasks).run(None)
        finally:
            screen.close()

    with _interrupts_end(directory) as interrupts:
        try:
            code = slurm_follow.follow(directory, say, watch)
        except TflaunchError as error:
            if not interrupts:
                raise
            say(str(error))
            code = error.exit_code
    return 128 + interrupts[0] if interrupts and code != 0 else code


@contextmanager
def _interrupts_end(directory: Path) -> Iterator[list[int]]:
    """Make Ctrl-C end the run as `up` does: tasks may save, a second one kills them. Yields the signals."""
    from tflaunch.client import requests

    seen: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        requests.request_stop(directory, 0 if len(seen) > 1 else None)

    earlier = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@click.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def supervise(directory: Path) -> int:
    """Begin the run in DIRECTORY: its job calls this, on its first node."""
    from tflaunch import descriptors
    from tflaunch.clusterspec import load
    from tflaunch.core import drill
    from tflaunch.discovery import prepare, resolve
    from tflaunch.render import slurm
    from tflaunch.render.target_plan import with_gpus
    from tflaunch.runtime import daemon, launch, slurm_submission
    from tflaunch.runtime.run_config import RunConfig
    from tflaunch.slurm import batch
    from tflaunch.store import log_writer

    order, run = slurm_submission.take_up(directory)
    path, home = directory / f"spec{order.suffix}", Path(order.directory)
    kept = load.read_spec_file(path)._replace(directory=home)
    spec = resolve.with_hosts(str(path), _load(kept, order), home, on=ENGINE)
    spec = slurm.with_gpus_of_nodes(with_gpus(spec))
    prepare.warnings_about(str(path), spec)
    plan = prepare.make_plan(str(path), home, spec)._replace(preflight=order.preflight)
    descriptors.require(len(plan.hosts), len(plan.processes()))
    if order.log_dir is not None:
        log_writer.require_own_logs(run.logs, [process.task for process in plan.processes()])
    faults = () if order.drill is None else drill.parse_drill(order.drill, plan)

    def begun() -> None:
        batch.note_life(directory, slurm_submission.restart_count())

    code = launch.code_for_hosts(plan)
    return launch.start(plan, RunConfig(run, code, say, faults, order.metrics_port, sink=daemon.notes, begun=begun))
