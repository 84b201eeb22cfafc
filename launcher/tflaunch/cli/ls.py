"""`ls`: list all runs."""

from __future__ import annotations

import json
import time

import click

from tflaunch.cli._spec import json_option, say


@click.command(short_help="List all runs.")
@json_option
def ls(as_json: bool) -> None:
    """List the runs of this user on this machine, the newest first.

    A run is `lost` when its supervisor was killed: `tflaunch up --resume RUN` takes over.

    \b
    Example:
      tflaunch ls --json
    """
    from tflaunch.client.run_list import overview, table
    from tflaunch.store.run_dir import runs_directory

    found = overview()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        click.echo(table(found, time.time()), nl=False)
    else:
        say(f"no runs in {runs_directory()}")
