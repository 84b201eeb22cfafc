"""`ps`: show the tasks of a run."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import json_option, print_json, say
from tflaunch.client import runs
from tflaunch.client.observer import current_status
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import cluster_formation
from tflaunch.explain.run_status import Status
from tflaunch.explain.wording import counted
from tflaunch.tui import live, terminal
from tflaunch.tui.layout import table

_BETWEEN_LOOKS = 1.0  # seconds


@click.command()
@run_argument
@click.option("-a", "--all", "everything", is_flag=True, help="Also show the tasks of a live run that have succeeded.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every second, until the run has ended.")
@json_option
def ps(run: str | None, everything: bool, watch: bool, as_json: bool) -> None:
    """Show the tasks of RUN: state, host, resource usage and, if reported, progress.

    RUN is the name of a run or job, or a prefix of one: the live run is used, or else the newest. If its supervisor was
    killed, the state comes from the journal and from the agents on the hosts. Programs report progress through
    $TFLAUNCH_PROGRESS.

    With --json for programs: trains (yes, no, unknown), phase, since, because, next_commands, and all the rest.

    \b
    Example:
      tflaunch ps --watch
    """
    directory = runs.find_run(run)
    if watch and not as_json:
        live.watch(_statuses(directory))
        return
    current = current_status(directory)
    if as_json:
        print_json(current)
        return
    if not current.tasks:
        raise TflaunchError(current.because, EXIT_INTERNAL)
    done = {task.task for task in current.tasks if task.state == "succeeded" and current.exit_code is None}
    is_training = bool(done) and current.state == "running"
    missed = cluster_formation.servers_among(runs.plan_of(directory), done) if is_training else []
    hidden = set() if everything else done.difference(missed)
    current = current._replace(tasks=tuple(task for task in current.tasks if task.task not in hidden))
    click.echo(table(current, terminal.width_of_stdout()), nl=False)
    if hidden:
        say(f"{counted(len(hidden), 'task')} of it succeeded already: `tflaunch ps -a` shows all")
    for sentence in cluster_formation.ended_sentence(missed):
        say(sentence)


def _statuses(directory: Path) -> Iterator[Status]:
    while True:
        current = current_status(directory)
        yield current
        if current.exit_code is not None or current.supervisor == "dead":
            return
        try:
            time.sleep(_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            return
