"""`run`: what `up` does, without a file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.loading import linted, warn
from tflaunch.cli.running import plan_for, start
from tflaunch.cli.wishes import PRELOADED, Wishes, wishes_options

_SOURCE = "command line"
_STDOUT = "-"
_PYTHON = re.compile(r"python[\d.]*")


@click.command(short_help="Run a command as a cluster, without a spec.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--workers", type=click.IntRange(0), metavar="N", help="So many workers; default: one per host.")
@click.option("-H", "--hosts", metavar="H1,H2", help="On these hosts, one after the other; default: this machine.")
@click.option("--ps", type=click.IntRange(0), default=0, metavar="N", help="So many parameter servers.")
@click.option("--chief", is_flag=True, help="With a chief, on the first host.")
@click.option("--evaluator", is_flag=True, help="With an evaluator, on the first host.")
@click.option("--tensorboard", metavar="DIR", help="Show the event files in DIR with TensorBoard.")
@click.option(
    "--save",
    is_flag=False,
    flag_value=_STDOUT,
    metavar="FILE",
    help="Print the spec, or write it to FILE, instead of running it.",
)
@wishes_options
def run(
    command: tuple[str, ...],
    workers: int | None,
    hosts: str | None,
    ps: int,
    chief: bool,
    evaluator: bool,
    tensorboard: str | None,
    save: str | None,
    wishes: Wishes,
) -> int | None:
    """Run COMMAND as N workers, on this machine or over SSH, as `up` runs a spec.

    Workers fill the hosts one after the other, as evenly as they can; parameter servers go round.

    \b
    Example:
      tflaunch run -n 4 -- python train.py --epochs 2
      tflaunch run -H h1,h2 --save cluster.json -- python train.py
    """
    names = [host.strip() for host in (hosts or "").split(",") if host.strip()]
    cluster = _cluster(names, workers, ps, chief, evaluator)
    data = {"name": wishes.name or _name_from(command), "cluster": cluster, "command": list(command)}
    if tensorboard is not None:
        data["tensorboard"] = tensorboard
    if wishes.preload:
        data["preload"] = [PRELOADED]
    from tflaunch.spec import specfile

    spec = specfile.from_data(_SOURCE, data, os.environ)
    warnings = linted(_SOURCE, spec)
    text = json.dumps(data, indent=2) + "\n"
    if save is not None:
        warn(_SOURCE, warnings)
        _save(text, save)
        return None
    plan = plan_for(_SOURCE, Path(), spec, wishes, "add --tensorboard DIR")
    warn(_SOURCE, warnings)
    return start(plan, ".json", text.encode(), wishes)


def _cluster(hosts: list[str], workers: int | None, ps: int, chief: bool, evaluator: bool) -> dict[str, Any]:
    """The `cluster` of a spec with these roles."""
    count = max(len(hosts), 1) if workers is None else workers
    wanted = {"chief": int(chief), "worker": count, "ps": ps, "evaluator": int(evaluator)}
    if not hosts:
        return {role: number for role, number in wanted.items() if number}
    shares = [count // len(hosts) + (place < count % len(hosts)) for place in range(len(hosts))]
    placed = {role: [hosts[place % len(hosts)] for place in range(number)] for role, number in wanted.items()}
    placed["worker"] = [host for host, share in zip(hosts, shares, strict=True) for _ in range(share)]
    return {role: names for role, names in placed.items() if names}


def _name_from(command: tuple[str, ...]) -> str:
    """The name of the program that is run: the script rather than its interpreter."""
    from tflaunch.spec import specfile

    words = [word for word in command if not word.startswith("-")]
    if len(words) > 1 and _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
    return specfile.name_from(Path(words[0]).stem if words else "")


def _save(text: str, target: str) -> None:
    if target == _STDOUT:
        click.echo(text, nl=False)
    else:
        Path(target).write_text(text, encoding="utf-8")
