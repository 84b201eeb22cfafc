"""`render`: a spec in the words of another engine."""

from __future__ import annotations

from pathlib import Path

import click

from tflaunch.cli.loading import read_spec, set_option, spec_argument, warn
from tflaunch.errors import EXIT_USAGE, TflaunchError


@click.command(short_help="Write a spec for another engine.")
@spec_argument
@click.option("--to", "engine", type=click.Choice(["compose"]), required=True, help="The engine.")
@set_option
def render(spec: Path, engine: str, settings: tuple[str, ...]) -> None:
    """Print what another engine needs to start the tasks of SPEC itself, with the TF_CONFIG of `plan`.

    compose: a file for docker-compose, one service per task. A task whose port is chosen at the start gets one
    from 2222 on.

    \b
    Example:
      tflaunch render cluster.json --to compose > docker-compose.cluster.yml
    """
    loaded, warnings = read_spec(spec, settings)
    warn(spec, warnings)
    from tflaunch import look_around
    from tflaunch.render import compose
    from tflaunch.render.fixed import fixed

    directory = spec.absolute().parent
    machine = look_around.look([address.host for addresses in loaded.cluster.values() for address in addresses])
    plan = fixed(loaded, directory, machine)
    addresses = [task.address.host for task in plan.tasks if task.address is not None]
    numeric = [address for address in addresses if address.replace(".", "").isdigit() and address != "127.0.0.1"]
    if numeric:
        message = f"{spec}: {numeric[0]} is an address, and containers get addresses of their own; use names of hosts"
        raise TflaunchError(message, EXIT_USAGE)
    assert engine == "compose"
    click.echo(compose.render(plan, str(directory), machine.server_program), nl=False)
