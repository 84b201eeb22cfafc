"""`diff`: show what differs between two runs."""

from __future__ import annotations

import json

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import say


@click.command()
@click.argument("first", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.argument("second", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(first: str | None, second: str | None, as_json: bool) -> int:
    """Print what differs between two runs: code, packages, spec, hosts and results.

    Without a second RUN, the one before the first of the same job is compared with it. Without any, the first one is
    the live one, or else the newest. The exit code is 0 if nothing differs, else 1.

    \b
    Example:
      tflaunch diff mnist-20260102-030405-6789 mnist
    """
    from tflaunch.client import runs
    from tflaunch.features.records import run_diff

    newer = runs.find_run(first)
    paths = (newer, runs.find_run(second)) if second is not None else (runs.run_before(newer), newer)
    found = run_diff.compare(*paths)
    if as_json:
        click.echo(json.dumps([difference._asdict() for difference in found], indent=2))
    else:
        say(" -> ".join(path.name for path in paths) + ("" if found else ": nothing differs"))
        for difference in found:
            click.echo(difference.sentence())
        for path in paths:
            if not run_diff.read_record(path):
                say(f"{path.name} has no record of its code and packages, so these cannot be compared")
    return 1 if found else 0
