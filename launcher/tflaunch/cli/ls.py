"""`ls`: list all runs."""

from __future__ import annotations

import json
import time

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import json_option, say
from tflaunch.errors import EXIT_USAGE, TflaunchError


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@json_option
def ls(run: str | None, as_json: bool) -> None:
    """List the runs of this user on this machine, the newest first; with RUN, those whose names begin with it.

    If some were made by --matrix, their values and the last metrics of all runs are columns, too.

    A run is `lost` when its supervisor was killed: `tflaunch up --resume RUN` takes over.

    \b
    Example:
      tflaunch ls mnist
      tflaunch ls --json
    """
    from tflaunch.client.run_list import overview, table
    from tflaunch.store.run_dir import runs_directory

    found = overview(run or "")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        click.echo(table(found, time.time()), nl=False)
    elif run is not None:
        raise TflaunchError(f"no run begins with {run!r}; `tflaunch ls` lists all", EXIT_USAGE)
    else:
        say(f"no runs in {runs_directory()}")
