"""`explain`: say why a run failed, or what state it is in."""

import functools
import time

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import json_option, print_json
from tflaunch.cli.main import verbs
from tflaunch.client import runs
from tflaunch.client.observer import Observer, current_status
from tflaunch.client.run_list import run_to_explain
from tflaunch.explain import summary
from tflaunch.features.explain.explanation import explain_run
from tflaunch.store.log_writer import tail


@click.command()
@run_argument
@json_option
def explain(run: str | None, as_json: bool) -> None:
    """Say why RUN failed, or what state it is in, with the evidence, and which commands help further.

    Without RUN, it is the run that failed last, unless another one has begun since; then the live one, or the newest.

    With --json for programs: state, exit_code, sentence, hang, culprit (task, host, attempt, python,
    traceback or last_lines), hint, also_stopped, not_restarted, unended, logs, next.

    \b
    Example:
      tflaunch explain mnist --json
    """
    directory = run_to_explain() if run is None else runs.find_run(run)
    observer = Observer(directory)
    observer.catch_up()
    current = current_status(directory)
    lines = functools.partial(tail, observer.logs)
    found = explain_run(observer.job, current, lines, time.time(), observer.known)
    # What helps further may be a command of a feature that is missing here.
    found = found._replace(next=tuple(command for command in found.next if command.split()[1] in verbs()))
    if as_json:
        print_json(found)
        return
    state = found.state.replace("_", " ")
    if observer.job.exit_code is not None:
        text = summary.summary(observer.job, current.logs, lines, known=observer.known)
        click.echo(f"{found.run}: {state}")
        click.echo("\n".join(line for line in text.split("\n") if not line.startswith("next: ")))  # they follow
    else:
        said = found.sentence if found.sentence.startswith(state) else f"{state}: {found.sentence}"
        click.echo(f"{found.run}: {said}")
    for number, command in enumerate(found.next):
        click.echo(("next: " if number == 0 else "      ") + command)
