"""`explain`: say to people and programs why a run failed, or what state it is in."""

import functools
from typing import NamedTuple

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import json_option, print_json
from tflaunch.cli.main import verbs
from tflaunch.client import runs
from tflaunch.client.observer import Observer, current_status
from tflaunch.client.run_list import run_to_explain
from tflaunch.core.annotations import Annotations
from tflaunch.core.job_state import Job
from tflaunch.explain import summary
from tflaunch.explain.cluster_formation import servers_ended
from tflaunch.explain.run_status import Status
from tflaunch.store.log_writer import tail


class Explanation(NamedTuple):
    """Why a run failed, or its state; ``next``: commands, the most useful first."""

    run: str
    state: str
    exit_code: int | None
    restarts: int
    sentence: str
    hang: str | None = None
    culprit: summary.FailedTask | None = None
    hint: str | None = None
    also_stopped: tuple[str, ...] = ()
    not_restarted: str | None = None
    unended: tuple[str, ...] = ()
    logs: str = ""
    next: tuple[str, ...] = ()


def explain_run(job: Job, current: Status, tail: summary.Tail, known: Annotations) -> Explanation:
    """Explain a run."""
    has_failed = bool(job.exit_code) and job.culprit is not None
    found = summary.failure(job, tail, known) if has_failed else None
    sentence = found.sentence if found is not None else "; ".join([current.because, *servers_ended(job)])
    about = Explanation(current.run, current.state, current.exit_code, current.restarts, sentence)
    about = about._replace(logs=current.logs, next=_next(current, found))
    if found is None:
        return about
    shared = {name: value for name, value in found._asdict().items() if name in Explanation._fields}
    return about._replace(**shared, unended=tuple(summary.unended(job)))


def _next(current: Status, found: summary.JobFailure | None) -> tuple[str, ...]:
    if current.exit_code is None:
        if current.supervisor == "dead":
            return tuple(map(" ".join, current.next_commands))
        return (f"tflaunch ps {current.run}", f"tflaunch stacks {current.run}", f"tflaunch logs -f {current.run}")
    if found is None:
        return (f"tflaunch logs {current.run}",)
    task = f" {found.culprit.task}" if found.culprit.task is not None else ""
    return (f"tflaunch logs {current.run}{task}", f"tflaunch events {current.run}", f"tflaunch report {current.run}")


@click.command()
@run_argument
@json_option
def explain(run: str | None, as_json: bool) -> None:
    """Say why RUN failed, or its state, with the evidence and commands that help.

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
    found = explain_run(observer.job, current, lines, observer.known)
    # What helps further may be a command of a feature that is missing here.
    found = found._replace(next=tuple(command for command in found.next if command.split()[1] in verbs()))
    if as_json:
        print_json(found)
        return
    state = current.phase if current.exit_code is None else found.state
    if observer.job.exit_code is not None:
        text = summary.summary(observer.job, current.logs, lines, known=observer.known)
        click.echo(f"{found.run}: {state}")
        click.echo("\n".join(line for line in text.split("\n") if not line.startswith("next: ")))  # they follow
    else:
        said = found.sentence if found.sentence.startswith(state) else f"{state}: {found.sentence}"
        click.echo(f"{found.run}: {said}")
    for number, command in enumerate(found.next):
        click.echo(("next: " if number == 0 else "      ") + command)
