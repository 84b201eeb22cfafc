"""Options of sbatch for `up --on slurm`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption

_OPTIONS = {
    "partition": "Submit to this partition.",
    "account": "Charge this account.",
    "time": "Time limit, in the format of sbatch.",
    "nodes": "Number of nodes to spread tasks given as a count over.",
    "gpus-per-node": "Number of GPUs on each node.",
}


def _option(name: str, text: str) -> RoomOption:
    flag = f"--{name}"

    def check(value: str, launching: Launching) -> None:
        if launching.engine != "slurm":
            raise click.UsageError(f"{flag} is an option of sbatch; add --on slurm.")

    option = click.option(flag, metavar="VALUE", help=f"{text} With --on slurm.")
    return RoomOption(flag, option, check, is_for_run=False, setting=f"slurm.{name}")


OPTIONS = tuple(_option(name, text) for name, text in _OPTIONS.items())
