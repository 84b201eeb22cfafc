"""`up`: run a spec, attached or detached, or take over a run whose supervisor was killed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli._kubernetes import kubernetes_options, kubernetes_settings
from tflaunch.cli._launch_options import PRELOADED, LaunchOptions, launch_options
from tflaunch.cli._select import complete_runs
from tflaunch.cli._slurm import slurm_options, slurm_settings, submit
from tflaunch.cli._spec import (
    CommandAfterDashes,
    command_argument,
    read_file,
    say,
    set_option,
    warn,
)
from tflaunch.features.web.command import page_beside

if TYPE_CHECKING:
    from tflaunch.client.output_sink import OutputSink
    from tflaunch.features.drills.drill import Fault
    from tflaunch.plan.model import Plan


@click.command(cls=CommandAfterDashes)
@click.argument("spec", required=False, type=click.Path(readable=False, path_type=Path))
@command_argument
@set_option
@launch_options
@slurm_options
@kubernetes_options
@click.option("--drill", metavar="TEXT", help="Inject these faults into the running job, and report if it recovers.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Take over RUN, whose supervisor was killed, instead of starting SPEC.",
)
def up(
    spec: Path | None,
    command: tuple[str, ...],
    settings: tuple[str, ...],
    options: LaunchOptions,
    engine: str | None,
    drill: str | None,
    resume: str | None,
) -> int:
    """Validate SPEC, start its tasks, supervise them until the job ends, and leave nothing behind.

    The exit code is the job's: 0, or that of the task that failed first. Ctrl-C ends the tasks with
    time to save; a second one kills them. COMMAND, after --, replaces the spec's. A SPEC `-` is read from
    standard input.

    --preload is --set 'preload=["tensorflow"]': Python tasks are forked from a process that has already imported
    TensorFlow, where that is safe.

    With -d the job outlives this terminal and a logout. The name of the run is printed; ps, logs, attach, wait
    and down work on it from anywhere.

    A supervisor that was killed can be replaced while the lease of its agents runs (timeouts.lease): with
    --resume the job goes on, and its tasks never notice.

    With --queue the run waits until no other run of yours holds its hosts, or enough of their GPUs are free; see
    `tflaunch queue`. Ctrl-C takes it out of the queue; with -d it begins without this terminal. --matrix lr=0.1,0.01
    queues a run for each value, which replaces {matrix.lr} in command, env and workdir; `tflaunch ls` compares them.

    With --on slurm, a Slurm batch job is submitted, which starts the tasks on its nodes; this terminal follows it,
    unless -d is given. ps, logs, attach, wait and down work as usual, also while it is in the queue.

    With --on kubernetes, or "kubernetes" in the spec, each task gets a pod of its own, which is reached through
    kubectl. The pods are deleted when the run has ended. With -d the supervisor has a pod, too.

    --drill tests how a job recovers: kill, term or stop a task, or cut the link to a host, after some time of training.
    If a fault cannot be injected, the exit code is 125.

    \b
    Example:
      tflaunch up cluster.json --set restart.max=0 -- python train.py --epochs 2
      tflaunch up -d cluster.json --matrix lr=0.1,0.01 --matrix batch=32,64
      tflaunch up cluster.json --drill "kill worker:1 after 20s; stop ps:0 for 10s; cut host=b for 5s"
      tflaunch up --resume cluster-20260102-030405-6789
    """
    if resume is not None:
        taken = (spec, command, settings, options.name, options.log_dir, drill, options.preload, options.web, engine)
        if any(taken) or options.is_queued or options.collect_every is not None:
            raise click.UsageError(
                "--resume takes the rest from the run itself; only -d, -q, -v and --metrics-port go with it"
            )
        return take_over(resume, options.metrics_port, options.detach, options.verbose, options.quiet)
    if spec is None:
        raise click.UsageError("Missing argument 'SPEC': the path of a cluster spec.")
    _require_terminal_for_page(options.web, options.detach or engine is not None)
    if options.is_queued and engine is not None:
        raise click.UsageError(f"--on {engine} has a queue of its own; leave out --queue and --matrix")
    file = read_file(spec)
    settings += (f'preload=["{PRELOADED}"]',) * options.preload + slurm_settings(engine) + kubernetes_settings(engine)
    if engine == "slurm" and options.collect_every is not None:
        raise click.UsageError("--collect-every is not for --on slurm, where a batch job supervises the tasks")
    if engine == "slurm":
        from tflaunch.runtime.slurm_submission import Order

        order = Order(
            str(file.directory.absolute()),
            file.suffix,
            settings,
            options.name,
            command,
            log_dir=None if options.log_dir is None else str(options.log_dir.absolute()),
            metrics_port=options.metrics_port,
            preflight=options.preflight,
            drill=drill,
        )
        return submit(file, order, options.detach, options.verbose, options.quiet)
    from tflaunch.runtime import plan_cache

    planned = plan_cache.plan_spec(file, settings, options.name, command, is_detached=options.outlives_terminal)
    plan = planned.plan._replace(preflight=options.preflight)
    warn(file.source, planned.warnings)
    faults = _faults(drill, plan)
    return start(plan, file.suffix, file.text.encode(), options, faults)


def start(plan: Plan, suffix: str, spec: bytes, options: LaunchOptions, faults: tuple[Fault, ...] = ()) -> int:
    """Run a plan; ``spec`` is what the user wrote, in the format that ``suffix`` names."""
    from tflaunch.runtime import launch
    from tflaunch.runtime.run_config import RunConfig

    _require_terminal_for_page(options.web, options.outlives_terminal)
    if options.collect_every is not None and not plan.collect:
        raise click.UsageError('--collect-every needs files to collect: write for example "collect": ["outputs/**"]')
    if options.is_queued:
        from tflaunch.cli import _queue

        if faults:
            raise click.UsageError("--drill goes with a run that begins now; leave out --queue and --matrix")
        return _queue.submit(plan, suffix, spec, options)
    if plan.kubernetes is not None and options.detach:
        return _start_in_cluster(plan, suffix, spec, options, is_drilled=bool(faults))
    code = launch.code_for_hosts(plan)
    with launch.new_directory(plan, options.log_dir, suffix, spec) as directory:
        sink = _screen(options.verbose, options.quiet)
        config = RunConfig(directory, code, say, faults, options.metrics_port, options.detach, options.quiet, sink=sink)
        config = config._replace(collect_every=options.collect_every)
        with page_beside(directory.run) if options.web else nullcontext():
            exit_code = launch.start(plan, config)
    if options.detach and exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _start_in_cluster(plan: Plan, suffix: str, spec: bytes, options: LaunchOptions, *, is_drilled: bool) -> int:
    """Run a plan with its supervisor in the cluster of its pods."""
    from tflaunch.runtime import cluster_launch, launch

    here = {
        "--log-dir": options.log_dir,
        "--metrics-port": options.metrics_port,
        "--collect-every": options.collect_every,
        "--drill": is_drilled or None,
    }
    for name, value in here.items():
        if value is not None:
            raise click.UsageError(
                f"{name} needs the supervisor on this machine, and -d has it in the cluster; leave out one of them"
            )
    with launch.new_directory(plan, None, suffix, spec) as directory:
        exit_code = cluster_launch.start(plan, directory, say, options.quiet)
    if exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _require_terminal_for_page(is_wanted: bool, is_elsewhere: bool) -> None:
    if is_wanted and is_elsewhere:
        raise click.UsageError("--web goes with a run in this terminal; `tflaunch web` shows any other one")


def _screen(is_verbose: bool, is_quiet: bool) -> Callable[[Sequence[str]], OutputSink]:
    from tflaunch.runtime.run_config import on_screen

    return functools.partial(on_screen, is_verbose=is_verbose, is_quiet=is_quiet)


def take_over(
    name: str,
    metrics_port: int | None = None,
    is_detached: bool = False,
    is_verbose: bool = False,
    is_quiet: bool = False,
) -> int:
    """Continue a run whose supervisor was killed."""
    from tflaunch.client import runs
    from tflaunch.runtime import launch

    path = runs.find_run(name)
    code = launch.take_over(path, say, metrics_port, is_detached, sink=_screen(is_verbose, is_quiet))
    if is_detached and code == 0:
        click.echo(path.name)
    return code


def _faults(text: str | None, plan: Plan) -> tuple[Fault, ...]:
    if text is None:
        return ()
    from tflaunch.features.drills import drill

    return drill.parse_drill(text, plan)
