"""`render`: print a spec as files for another launcher."""

import os
from pathlib import Path

import click

from tflaunch.cli.arguments.spec import read_file, set_option, spec_argument, warn
from tflaunch.clusterspec import load
from tflaunch.discovery import local_machine, prepare
from tflaunch.errors import SpecError
from tflaunch.features.render import targets
from tflaunch.plan import placement


@click.command()
@spec_argument
@click.option("--to", "engine", type=click.Choice(list(targets.ENGINES)), required=True, help="The engine.")
@set_option
def render(spec: Path, engine: str, settings: tuple[str, ...]) -> None:
    """Print what another engine needs to start SPEC, with the TF_CONFIG of `plan`.

    slurm: a script for sbatch. jobset: a manifest for Kubernetes. trainjob: one for Kubeflow Trainer.
    compose: a file for docker-compose.
    Tasks whose ports are chosen at the start get them from 2222 on.

    \b
    Example:
      tflaunch render cluster.json --to slurm > job.sh && sbatch job.sh
      tflaunch render cluster.json --to compose > docker-compose.cluster.yml
      tflaunch render cluster.json --to jobset --set container.image=ghcr.io/ann/train:1 | kubectl apply -f -
    """
    file = read_file(spec)
    read = load.load_spec(file, settings, None, (), os.environ)
    # The engine gets the tasks: not pods of ours, and not hosts that it provides later itself.
    bare = read.model_copy(update={"kubernetes": None, "pool": None if read.pool == engine else read.pool})
    loaded, warnings = prepare.complete(file.source, file.directory, bare)
    loaded = loaded.model_copy(update={"kubernetes": read.kubernetes})
    warn(spec, warnings)
    machine = local_machine.describe_machine(placement.all_hosts(loaded))
    if problems := targets.find_problems(engine, loaded):
        raise SpecError(file.source, problems)
    server_text = Path(machine.server_program).read_text()
    click.echo(targets.render_spec(engine, loaded, file.directory.absolute(), machine, server_text), nl=False)
