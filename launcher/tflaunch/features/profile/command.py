"""`profile`: sample the Python stacks of the tasks of a live run."""

from __future__ import annotations

import os

import click

from tflaunch.cli.arguments.select import choose, run_and_tasks_argument
from tflaunch.cli.arguments.spec import json_option, print_json, say, seconds_in
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.features.profile import profiling
from tflaunch.features.profile.profiling import TaskProfile
from tflaunch.plan import selectors
from tflaunch_worker.features.profile.profiles import LEAST_SECONDS, MOST_SECONDS

_INTERRUPTED = 130


@click.command()
@click.option("--for", "duration", metavar="TIME", default="2s", show_default=True, help="How long, at most 10m.")
@json_option
@run_and_tasks_argument
def profile(duration: str, as_json: bool, words: tuple[str, ...]) -> int:
    """Profile the TASKs of RUN, by default all, at the same time, while they train; programs need no code for it.

    Their Python stacks are read from memory, and drawn as flame graphs.

    \b
    Example:
      tflaunch profile --for 5s worker:0 worker:1
    """
    seconds = _seconds(duration)
    directory, wanted = choose(words)
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
    made: list[TaskProfile] = []
    try:
        for each in profiling.make_profiles(directory, tasks, seconds):
            made.append(each)
            if each.problem and not as_json:
                say(f"{each.task} is not profiled: {each.problem}")
            elif not as_json:
                click.echo(f"{each.task}: {each.samples} samples, {each.hottest}")
    except KeyboardInterrupt:
        click.echo(err=True)
        say("interrupted; the tasks go on, and unfinished profiles are discarded")
        return _INTERRUPTED
    if as_json:
        print_json(profiling.Profile(directory.name, seconds, made))
    paths = [each.path for each in made if each.path is not None]
    if not paths:
        return EXIT_INTERNAL
    say(f"the flame graphs are in {os.path.dirname(paths[0])}; browsers show them")
    return 0


def _seconds(text: str) -> float:
    seconds = seconds_in(text)
    if seconds is None or not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise click.BadParameter(
            f"{text!r} is not a duration from 100ms to 10m; write for example 2s", param_hint="--for"
        )
    return seconds
