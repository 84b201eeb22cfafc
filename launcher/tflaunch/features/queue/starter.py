"""`up --queue` and `--matrix`: put runs into the local queue, and follow them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli.arguments.launch import Launching
from tflaunch.cli.arguments.spec import say
from tflaunch.cli.follow import follow_run, interrupts_stop
from tflaunch.errors import TflaunchError

if TYPE_CHECKING:
    from tflaunch.client.observer import Observer


def check_start(value: object, launching: Launching) -> None:
    """Require that a run can wait in the queue.

    Raises:
        click.UsageError: it is for an engine.
    """
    if launching.engine is not None:
        raise click.UsageError(f"--on {launching.engine} has a queue of its own; leave out --queue and --matrix")


def submit(launching: Launching) -> int:
    """Put a run of a plan into the queue, or a run for each combination of `--matrix`; follow them unless detached.

    Returns:
        The exit code: if several runs are followed, that of the first which did not succeed.

    Raises:
        click.UsageError: a `--matrix` is not valid.
        TflaunchError: a run cannot wait, or cannot be put into the queue.
    """
    from tflaunch.features.queue import matrix, queue_submission
    from tflaunch.features.queue.location import QueuedRun
    from tflaunch.plan import placeholders

    options, plan = launching.options, launching.plan
    assert plan is not None
    written = launching.suffix, launching.spec
    extras = {name: value for name, value in options.extras.items() if name not in {"queue", "matrix"}}
    combinations = matrix.combinations(options.extras.get("matrix", ()))
    if "matrix" not in options.extras:
        directory = queue_submission.enqueue(plan, *written, options.log_dir, extras)
        if options.detach:
            click.echo(directory.run)
            return 0
        return follow_run(QueuedRun(directory.path), options.verbose, options.quiet, options.fold)
    matrix.check_names(plan, combinations[0])
    if extras.get("metrics_port"):
        raise click.UsageError("--metrics-port: runs of a --matrix cannot share a port; 0 takes any")
    queued = []
    for values in combinations:
        logs = None if options.log_dir is None else options.log_dir / placeholders.values_in_name(values)
        made = placeholders.with_matrix(plan, values)
        queued.append(queue_submission.enqueue(made, *written, logs, extras).path)
        if options.detach:
            click.echo(queued[-1].name)
    return 0 if options.detach else _follow_all(queued, options.quiet)


def _follow_all(queued: Sequence[Path], is_quiet: bool) -> int:
    """Tell how runs begin and end; then compare them. Ctrl-C stops those that are left."""
    from tflaunch.client.run_list import entry_of, table
    from tflaunch.tui import terminal

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
    from tflaunch.client import follow
    from tflaunch.features.queue.location import QueuedRun

    def tell(message: str) -> None:
        if not is_quiet:
            say(message)

    def watch(observer: Observer) -> int:
        observer.catch_up()
        name = directory.name
        tell(f"{name} has begun" if observer.exit_code is None else f"{name} has ended")
        return follow.until_end(observer, lambda message: say(f"{name}: {message}"))

    return follow.watch_to_end(QueuedRun(directory), tell, watch)
