"""`ls`: list all runs."""

import time

import click

from tflaunch.cli.arguments.launch import engine_of_runs
from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import WholeNumber, json_option, moment_in, print_json, say
from tflaunch.client.run_list import STATES, assessed_entry, overview, table
from tflaunch.clusterspec.values import nearest_name
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.feature import engines, load
from tflaunch.store.run_dir import runs_directory
from tflaunch.tui import terminal


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-a", "--all", is_flag=True, hidden=True, expose_value=False, help="Has no effect.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only runs in this state, or `live` ones.")
@click.option("-n", "most", type=WholeNumber(1), metavar="N", help="Only the N newest.")
@click.option("--since", metavar="T", help="Only runs that began since T: 2h ago, or 2026-01-31T12:00:00.")
@engine_of_runs
@json_option
def ls(
    run: str | None,
    states: tuple[str, ...],
    most: int | None,
    since: str | None,
    engine: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the runs of this user on this machine, the newest first.

    With RUN, those whose names begin with it. If a supervisor was killed, its run is `lost`: `up --resume RUN` goes on.

    With --on, the engine is asked which runs it has; those that you have started on another machine, or with another
    TFLAUNCH_HOME, are known here from then on: `attach`, `logs`, `down` and others take them.

    \b
    Example:
      tflaunch ls mnist
      tflaunch ls --state failed --since 24h
      tflaunch ls --json
    """
    for state in states:
        if state not in STATES:
            near = nearest_name(state, STATES)
            remedy = f"did you mean {near!r}?" if near else f"write one of {', '.join(STATES)}."
            raise click.BadParameter(f"{state!r} is not a state of a run; {remedy}", param_hint="'--state'")
    there = None
    if engine is not None:
        place = engines()[engine].runs
        if not place:
            raise TflaunchError(f"{engine} does not tell which runs it has; leave out --on", EXIT_USAGE)
        there = {path.name for path in load(place)(settings)}
    found = overview(run or "", states, 0.0 if since is None else moment_in(since, "--since"), most, there)
    if as_json:
        print_json(list(map(assessed_entry, found)))
    elif found:
        click.echo(table(found, time.time(), terminal.width_of_stdout()), nl=False)
    elif states or since:
        say("no such runs")
    elif engine is not None:
        say(f"you have no runs on {engine}")
    elif run is not None:
        raise TflaunchError(f"no run begins with {run!r}; `tflaunch ls` lists all", EXIT_USAGE)
    else:
        say(f"no runs in {runs_directory()}")
