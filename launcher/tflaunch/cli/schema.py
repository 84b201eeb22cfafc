"""`schema`: print the JSON Schema of a spec, or of what a command prints with --json."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("command", required=False)
def schema(command: str | None) -> None:
    """Print the JSON Schema of a cluster spec, for editors and validators, or of what COMMAND prints with --json.

    \b
    Example:
      tflaunch schema > cluster.schema.json
      tflaunch schema ps
    """
    if command is None:
        from tflaunch.clusterspec.schema import json_schema

        click.echo(json.dumps(json_schema(), indent=2))
        return
    from tflaunch.cli.json_output import schema_of_output, with_output

    known = [*with_output(), "events"]
    if command not in known:
        raise click.UsageError(f"{command!r} has no --json; the commands that have one are {', '.join(known)}.")
    click.echo(json.dumps(schema_of_output(command), indent=2))
