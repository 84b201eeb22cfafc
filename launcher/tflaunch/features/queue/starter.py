"""`up --queue` and `--matrix`: start the process of runs that wait, follow them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from tflaunch.cli.arguments.launch import Launching
from tflaunch.cli.arguments.spec import say
from tflaunch.cli.up import follow_run, interrupts_stop
from tflaunch.client import follow
from tflaunch.client.observer import Observer
from tflaunch.client.run_list import entry_of, table
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.queue import matrix, waiting
from tflaunch.features.queue.host_shares import with_inherited_devices
from tflaunch.features.queue.location import QueuedRun
from tflaunch.plan import placeholders
from tflaunch.runtime import daemon, launch
from tflaunch.tui import terminal


def check_start(value: object, launching: Launching) -> None:
    """Require that a run can wait in the queue.

    Raises:
        click.UsageError: it is for an engine.
    """
    if launching.engine is not None:
        raise click.UsageError(f"--on {launching.engine} has a queue of its own; leave out --queue and --matrix")


def submit(launching: Launching) -> int:
    """Queue a run of a plan, or one for each combination of `--matrix`.

    They are followed, unless detached.

    Returns:
        The exit code: if several runs are followed, that of the first which did not succeed.

    Raises:
        click.UsageError: a `--matrix` is not valid.
        TflaunchError: a run cannot wait, or the process in which they wait cannot start.
    """
    options, plan = launching.options, launching.plan
    assert plan is not None
    if plan.made_hosts is not None:
        raise TflaunchError("Kubernetes has a queue of its own for pods; leave out --queue and --matrix", EXIT_USAGE)
    extras = {name: value for name, value in options.extras.items() if name not in {"queue", "matrix"}}
    combinations = matrix.combinations(options.extras.get("matrix", ()))
    if is_matrix := "matrix" in options.extras:
        matrix.check_names(plan, combinations[0])
        if extras.get("metrics_port"):
            raise click.UsageError("--metrics-port: runs of a --matrix cannot share a port; 0 takes any")
    plan = with_inherited_devices(plan, os.environ.get("CUDA_VISIBLE_DEVICES"))
    turns = []
    with ExitStack() as directories:
        for values in combinations:
            logs, made = options.log_dir, plan
            if is_matrix:
                logs = None if logs is None else logs / placeholders.values_in_name(values)
                made = placeholders.with_matrix(plan, values)
            directory = launch.new_directory(made, logs, launching.suffix, launching.spec)
            turns.append(waiting.Turn(directories.enter_context(directory), values))
        first = turns[0].directory.path  # it has the log of the process
        with daemon.launched(first, lambda begun: waiting.wait(plan, turns, extras, begun)):
            pass
    if options.detach:
        click.echo("\n".join(turn.directory.run for turn in turns))
        return 0
    paths = [turn.directory.path for turn in turns]
    if is_matrix:
        return _follow_all(paths, options.quiet)
    return follow_run(QueuedRun(first), options.verbose, options.quiet, options.fold)


def _follow_all(queued: Sequence[Path], is_quiet: bool) -> int:
    """Say how runs begin and end, then compare them; Ctrl-C stops what is left."""
    codes = []
    with interrupts_stop(queued) as seen:
        for directory in queued:
            try:
                codes.append(_follow_one(directory, is_quiet))
            except TflaunchError as error:
                if not seen or directory.is_dir():
                    say(str(error))
                codes.append(error.exit_code)
    left = [entry_of(directory) for directory in queued if directory.is_dir()]
    if left:
        click.echo(table(left, time.time(), terminal.width_of_stdout()), nl=False)
    return 128 + seen[0] if seen else next(filter(None, codes), 0)


def _follow_one(directory: Path, is_quiet: bool) -> int:
    name, tell = directory.name, (lambda _: None) if is_quiet else say

    def watch(observer: Observer) -> int:
        observer.catch_up()
        tell(f"{name} has begun" if observer.exit_code is None else f"{name} has ended")
        return follow.until_end(observer, lambda message: say(f"{name}: {message}"))

    return follow.watch_to_end(QueuedRun(directory), tell, watch)
