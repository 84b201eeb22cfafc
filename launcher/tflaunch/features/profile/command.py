"""`profile`: sample the Python stacks of the tasks of a live run."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click

from tflaunch import private_files
from tflaunch.cli.arguments.select import choose_tasks, run_and_tasks_argument
from tflaunch.cli.arguments.spec import Duration, json_option, print_json, say
from tflaunch.client.control_client import ControlClient
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED
from tflaunch.features.profile import flame_graph
from tflaunch_worker import fields
from tflaunch_worker.features.profile.profiles import LEAST_SECONDS, MOST_SECONDS

_PATIENCE = 60.0  # seconds after the end, which a busy host and its link may need


@click.command()
@click.option(
    "--for",
    "seconds",
    type=Duration("2s", LEAST_SECONDS, MOST_SECONDS),
    metavar="TIME",
    default="2s",
    show_default=True,
    help="How long, at most 10m.",
)
@json_option
@run_and_tasks_argument
def profile(seconds: float, as_json: bool, words: tuple[str, ...]) -> int:
    """Profile the TASKs of RUN, by default all, at the same time, while they train.

    Their Python stacks are read from memory, and drawn as flame graphs; programs need no code for it.

    \b
    Example:
      tflaunch profile --for 5s worker:0 worker:1
    """
    directory, tasks = choose_tasks(words)
    made: list[TaskProfile] = []
    try:
        for each in _make_profiles(directory, tasks, seconds):
            made.append(each)
            if each.problem and not as_json:
                say(f"{each.task} is not profiled: {each.problem}")
            elif not as_json:
                click.echo(f"{each.task}: {each.samples} samples, {each.hottest}")
    except KeyboardInterrupt:
        click.echo(err=True)
        say("interrupted; the tasks go on, and unfinished profiles are discarded")
        return EXIT_INTERRUPTED
    if as_json:
        print_json(Profile(directory.name, seconds, made))
    paths = [each.path for each in made if each.path is not None]
    if not paths:
        return EXIT_INTERNAL
    say(f"the flame graphs are in {os.path.dirname(paths[0])}; browsers show them")
    return 0


class TaskProfile(NamedTuple):
    """A task's profile: stacks at ``path`` and a ``flame_graph``, or the ``problem``.

    ``samples``: how often its stacks were sampled; ``hottest``: the function in which the main thread was most often.
    """

    task: str
    problem: str | None
    path: str | None = None
    samples: int = 0
    hottest: str | None = None
    flame_graph: str | None = None


class Profile(NamedTuple):
    """What the tasks of a run did for some seconds."""

    run: str
    seconds: float
    tasks: Sequence[TaskProfile]


def _make_profiles(directory: Path, tasks: Sequence[str], seconds: float) -> Iterator[TaskProfile]:
    """Yield a profile per task, by default of roles, as each ends."""
    with closing(ControlClient(directory)) as client:
        client.say("profile", tasks=list(tasks), seconds=seconds)
        while (answer := client.next_answer(seconds + _PATIENCE))["kind"] != "done":
            yield _read(answer)


def _read(answer: dict[str, Any]) -> TaskProfile:
    task, problem, path = (fields.text(answer, name) for name in ("task", "problem", "path"))
    if problem:
        return TaskProfile(task, problem)
    drawing = Path(path).with_suffix(".svg")
    try:
        stacks = flame_graph.read_stacks(Path(path).read_bytes().decode("utf-8"))
        private_files.write_text(drawing, flame_graph.draw(task, stacks))
    except OSError as error:
        return TaskProfile(task, f"{path}: {error.strerror}")
    except ValueError:
        return TaskProfile(task, f"{path} does not have the form of sampled stacks")
    samples, hottest = flame_graph.samples_of(stacks), flame_graph.hottest(stacks)
    return TaskProfile(task, None, path, samples=samples, hottest=hottest or None, flame_graph=str(drawing))
