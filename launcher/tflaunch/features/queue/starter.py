"""`up --queue` and `--matrix`: start the process of runs that wait, follow them."""

import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from tflaunch.cli.arguments.launch import Launching
from tflaunch.cli.arguments.spec import say
from tflaunch.cli.up import follow_run, interrupts_stop
from tflaunch.client import follow
from tflaunch.client.observer import Observer
from tflaunch.client.run_list import entry_of, table
from tflaunch.clusterspec.values import nearest_name
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.queue import waiting
from tflaunch.features.queue.location import QueuedRun
from tflaunch.features.queue.queue_order import with_inherited_devices
from tflaunch.features.secret_names import looks_secret
from tflaunch.plan import placeholders
from tflaunch.plan.model import Plan
from tflaunch.runtime import daemon, launch
from tflaunch.tui import terminal

MOST_RUNS = 1000
"""Maximum number of runs that a single command puts into the queue."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"[-+\d.eE]+")
_EXAMPLE = "write --matrix lr=0.1,0.01"


def check_start(value: object, launching: Launching) -> None:
    """Raise `click.UsageError` for a run on an engine, which cannot wait in the queue."""
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
    matrix = combinations(options.extras.get("matrix", ()))
    if is_matrix := "matrix" in options.extras:
        check_names(plan, matrix[0])
        if extras.get("metrics_port"):
            raise click.UsageError("--metrics-port: runs of a --matrix cannot share a port; 0 takes any")
    plan = with_inherited_devices(plan, os.environ.get("CUDA_VISIBLE_DEVICES"))
    turns = []
    with ExitStack() as directories:
        for values in matrix:
            logs, made = options.log_dir, plan
            if is_matrix:
                logs = None if logs is None else logs / placeholders.values_in_name(values)
                made = placeholders.with_matrix(plan, values)
            directory = launch.new_directory(made, logs, launching.suffix, launching.spec)
            turns.append(waiting.Turn(directories.enter_context(directory), made))
        first = turns[0].directory.path  # it has the log of the process
        with daemon.launched(first, lambda begun: waiting.wait(turns, extras, begun)):
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


def combinations(given: Sequence[str]) -> list[dict[str, str]]:
    """Return the values of each run; the last name changes fastest.

    Raises:
        click.UsageError: one of them is not valid.
    """
    values: dict[str, list[str]] = {}
    for text in given:
        name, listed = _values(text)
        if name in values:
            raise click.UsageError(f"--matrix {name}: is given twice; write all values in one: {name}=V1,V2")
        values[name] = listed
    made = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    if len(made) > MOST_RUNS:
        raise click.UsageError(f"--matrix: makes {len(made)} runs; give fewer values, for at most {MOST_RUNS}")
    return made


def _values(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise click.UsageError(f"--matrix {text!r:.60} is not NAME=V1,V2; {_EXAMPLE}")
    values = _values_of_list(name, rest) if rest.startswith("[") else [value.strip() for value in rest.split(",")]
    if any(not value or {"\0", "\n"} & {*value} for value in values):
        raise click.UsageError(f"--matrix {name}: a value is empty, or not one line of text; {_EXAMPLE}")
    if looks_secret(name) and not all(map(_NUMBER.fullmatch, values)):
        remedy = 'give it by "secrets" in the spec, or call it otherwise if it is none'
        raise click.UsageError(f"--matrix {name}: looks secret, and is shown in the names of the runs; {remedy}")
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise click.UsageError(f"--matrix {name}: has {twice!r:.60} twice; remove one of them")
    return name, values


def _values_of_list(name: str, text: str) -> list[str]:
    """Return the values in a list of JSON, which may contain commas."""
    try:
        values = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(type(value) in (str, int, float) for value in values):
        example = f"""--matrix '{name}=["64,32","128"]'"""
        raise click.UsageError(f"--matrix {name}: is not a list of texts and numbers in JSON; write {example}")
    return [value if isinstance(value, str) else json.dumps(value) for value in values] or [""]


def check_names(plan: Plan, values: Mapping[str, str]) -> None:
    """Raise `click.UsageError` unless a plan has placeholders for just these values."""
    used = placeholders.matrix_names(plan)
    for name in used:
        if name not in values:
            near = nearest_name(name, list(values))
            meant = f"did you mean --matrix {name}=… instead of {near}?" if near else f"add --matrix {name}=1,2"
            raise click.UsageError(f"{{matrix.{name}}} in the spec has no value; {meant}")
    for name in values:
        if name not in used:
            where = f"write {{matrix.{name}}} where its value belongs: in command, env or workdir"
            raise click.UsageError(f"--matrix {name}: the spec does not use it; {where}")
