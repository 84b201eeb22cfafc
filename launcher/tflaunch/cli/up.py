"""`up`: run a spec, attached or detached, or take over a run whose supervisor was killed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli._launch_options import PRELOADED, Launching, LaunchOptions, check_extras, launch_options, room_options
from tflaunch.cli._select import complete_runs
from tflaunch.cli._spec import (
    CommandAfterDashes,
    command_argument,
    read_file,
    say,
    set_option,
    warn,
)
from tflaunch.features.kubernetes.starter import kubernetes_options, kubernetes_settings
from tflaunch.features.slurm.starter import slurm_options, slurm_settings, submit

if TYPE_CHECKING:
    from tflaunch.client.output_sink import OutputSink
    from tflaunch.plan.model import Plan


@click.command(cls=CommandAfterDashes)
@click.argument("spec", required=False, type=click.Path(readable=False, path_type=Path))
@command_argument
@set_option
@launch_options
@slurm_options
@kubernetes_options
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
        with_it = [option.flag for option in room_options().values() if option.goes_with_resume]
        taken = (spec, command, settings, options.name, options.log_dir, options.preload, engine, options.is_queued)
        if any(taken) or not all(room_options()[name].goes_with_resume for name in options.extras):
            *words, last = ["-d", "-q", "-v", *with_it]
            raise click.UsageError(
                f"--resume takes the rest from the run itself; only {', '.join(words)} and {last} go with it"
            )
        return take_over(resume, options.extras, options.detach, options.verbose, options.quiet)
    if spec is None:
        raise click.UsageError("Missing argument 'SPEC': the path of a cluster spec.")
    check_extras(options.extras, Launching(None, engine, options.outlives_terminal, options.is_queued))
    if options.is_queued and engine is not None:
        raise click.UsageError(f"--on {engine} has a queue of its own; leave out --queue and --matrix")
    file = read_file(spec)
    settings += (f'preload=["{PRELOADED}"]',) * options.preload + slurm_settings(engine) + kubernetes_settings(engine)
    if engine == "slurm":
        from tflaunch.features.slurm.submission import Order

        order = Order(
            str(file.directory.absolute()),
            file.suffix,
            settings,
            options.name,
            command,
            log_dir=None if options.log_dir is None else str(options.log_dir.absolute()),
            preflight=options.preflight,
            extras=options.extras,
        )
        return submit(file, order, options.detach, options.verbose, options.quiet)
    from tflaunch.runtime import plan_cache

    planned = plan_cache.plan_spec(file, settings, options.name, command, is_detached=options.outlives_terminal)
    plan = planned.plan._replace(preflight=options.preflight)
    warn(file.source, planned.warnings)
    return start(plan, file.suffix, file.text.encode(), options)


def start(plan: Plan, suffix: str, spec: bytes, options: LaunchOptions) -> int:
    """Run a plan; ``spec`` is what the user wrote, in the format that ``suffix`` names."""
    from tflaunch.runtime import launch
    from tflaunch.runtime.run_config import RunConfig

    check_extras(options.extras, Launching(plan, None, options.outlives_terminal, options.is_queued))
    if options.is_queued:
        from tflaunch.features.queue import starter as _queue

        return _queue.submit(plan, suffix, spec, options)
    if plan.kubernetes is not None and options.detach:
        return _start_in_cluster(plan, suffix, spec, options)
    code = launch.code_for_hosts(plan)
    with launch.new_directory(plan, options.log_dir, suffix, spec) as directory:
        sink = _screen(options.verbose, options.quiet)
        config = RunConfig(directory, code, say, options.extras, options.detach, options.quiet, sink=sink)
        exit_code = launch.start(plan, config)
    if options.detach and exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _start_in_cluster(plan: Plan, suffix: str, spec: bytes, options: LaunchOptions) -> int:
    """Run a plan with its supervisor in the cluster of its pods."""
    from tflaunch.features.kubernetes import cluster_launch
    from tflaunch.runtime import launch

    flags = ["--log-dir"] if options.log_dir is not None else []
    flags += [room_options()[name].flag for name in options.extras]
    if flags:
        raise click.UsageError(
            f"{flags[0]} needs the supervisor on this machine, and -d has it in the cluster; leave out one of them"
        )
    with launch.new_directory(plan, None, suffix, spec) as directory:
        exit_code = cluster_launch.start(plan, directory, say, options.quiet)
    if exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _screen(is_verbose: bool, is_quiet: bool) -> Callable[[Sequence[str]], OutputSink]:
    from tflaunch.runtime.run_config import on_screen

    return functools.partial(on_screen, is_verbose=is_verbose, is_quiet=is_quiet)


def take_over(
    name: str,
    extras: Mapping[str, Any] = {},
    is_detached: bool = False,
    is_verbose: bool = False,
    is_quiet: bool = False,
) -> int:
    """Continue a run whose supervisor was killed."""
    from tflaunch.client import runs
    from tflaunch.runtime import launch

    path = runs.find_run(name)
    code = launch.take_over(path, say, extras, is_detached, sink=_screen(is_verbose, is_quiet))
    if is_detached and code == 0:
        click.echo(path.name)
    return code
