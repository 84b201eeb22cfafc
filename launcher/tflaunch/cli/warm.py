"""`warm`: list and end the processes that have imported modules for later runs."""

from __future__ import annotations

import json

import click

from tflaunch.cli._spec import json_option, say


@click.command(short_help="List or end the processes that keep modules imported.")
@click.option("--stop", is_flag=True, help="End them all.")
@json_option
def warm(stop: bool, as_json: bool) -> None:
    """List the warm servers of this user on this machine: processes that a run with `warm` has left for later runs.

    A later run with the same interpreter, environment and modules forks its tasks from one, which saves the imports.
    It ends by itself when it was not used for the time in `warm`, or when something that it has imported changes.

    \b
    Example:
      tflaunch warm --stop
    """
    from tflaunch.client import warm_servers
    from tflaunch.explain.wording import counted

    if stop:
        say(f"ended {counted(warm_servers.stop_all(), 'warm server')}")
        return
    found = warm_servers.living()
    if as_json:
        click.echo(json.dumps([server._asdict() for server in found], indent=2))
    elif found:
        click.echo(warm_servers.table(found), nl=False)
    else:
        say('no warm servers; a run leaves one if its spec says for example "warm": "10m"')
