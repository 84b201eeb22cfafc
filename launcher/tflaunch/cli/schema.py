"""`schema`: print the JSON Schema of a spec."""

from __future__ import annotations

import json

import click


@click.command(short_help="Print the JSON Schema of a spec.")
def schema() -> None:
    """Print the JSON Schema of a cluster spec, for editors and validators.

    \b
    Example:
      tflaunch schema > cluster.schema.json
    """
    from tflaunch.clusterspec.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
