"""`run`: run a command without a spec file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from tflaunch.cli._launch_options import PRELOADED, LaunchOptions, launch_options
from tflaunch.cli._spec import say, set_option, warn
from tflaunch.cli.up import plan_for, start

_SOURCE = "command line"
_STDOUT = "-"
_FIRST_PORT = 1024
"""The lowest port that a worker can use without privileges."""
_LONGEST_PORT = 6  # digits that suffice to tell a count from a port
_PYTHON = re.compile(r"python[\d.]*")


@click.command(
    short_help="Run a command as a cluster, without a spec.", context_settings={"allow_interspersed_args": False}
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("-n", "--workers", type=click.IntRange(0), metavar="N", help="Number of workers; default: one per host.")
@click.option(
    "-H",
    "--hosts",
    metavar="H1,H2",
    help="Hosts, in the order in which they are filled; h1:4 is 4 workers on h1. Default: this machine.",
)
@click.option("--ps", type=click.IntRange(0), default=0, metavar="N", help="Number of parameter servers.")
@click.option("--chief", is_flag=True, help="Add a chief, on the first host.")
@click.option("--evaluator", is_flag=True, help="Add an evaluator, on the first host.")
@click.option("--tensorboard", metavar="DIR", help="Show the event files in DIR with TensorBoard.")
@click.option(
    "--save",
    is_flag=False,
    flag_value=_STDOUT,
    metavar="FILE",
    help="Print the spec, or write it to FILE, instead of running it.",
)
@set_option
@launch_options
def run(
    command: tuple[str, ...],
    workers: int | None,
    hosts: str | None,
    ps: int,
    chief: bool,
    evaluator: bool,
    tensorboard: str | None,
    save: str | None,
    settings: tuple[str, ...],
    options: LaunchOptions,
) -> int | None:
    """Run COMMAND as N workers, on this machine or over SSH, as `up` runs a spec.

    Options of tflaunch go before COMMAND: what follows its first word is passed to the program as it is. A `--`
    before COMMAND is optional.

    Workers fill the hosts one after the other, as evenly as they can; parameter servers are dealt out in turn. With
    `-H h1:4,h2:2` h1 gets 4 workers and h2 gets 2, as with mpirun; a number from 1024 on is the port of a worker.

    \b
    Example:
      tflaunch run -n 4 python train.py --epochs 2
      tflaunch run -n 1 --ps 1 --chief --set restart.max=0 python train.py
      tflaunch run -H h1,h2 --save cluster.json -- python train.py
    """
    slots = _slots(hosts or "")
    cluster = _cluster(slots, workers, ps, chief, evaluator)
    data = {"name": options.name or _name_from(command), "cluster": cluster, "command": list(command)}
    if tensorboard is not None:
        data["tensorboard"] = tensorboard
    if options.preload:
        data["preload"] = [PRELOADED]
    from tflaunch.clusterspec import load
    from tflaunch.discovery import prepare

    data = load.apply_settings(_SOURCE, data, settings)
    spec = load.spec_from_data(_SOURCE, data, os.environ, Path())
    spec, warnings = prepare.complete(_SOURCE, Path(), spec)
    text = json.dumps(data, indent=2) + "\n"
    if save is not None:
        warn(_SOURCE, warnings)
        _save(text, save)
        return None
    plan = plan_for(_SOURCE, Path(), spec, options)
    warn(_SOURCE, warnings)
    return start(plan, ".json", text.encode(), options)


class _Place(NamedTuple):
    """A host of -H, and its number of workers; None if -H does not give one."""

    host: str
    workers: int | None


def _slots(text: str) -> list[_Place]:
    """Parse -H: `h1:4` is 4 workers on h1, as in mpirun, unless the number can be a worker's port.

    Raises:
        click.UsageError: a host would get no worker.
    """
    found = []
    for word in filter(None, map(str.strip, text.split(","))):
        host, _, number = word.partition(":")
        is_count = number.isdecimal() and int(number[:_LONGEST_PORT]) < _FIRST_PORT
        if is_count and not int(number):
            raise click.UsageError(f"-H {word} is a host without a worker; leave it out, or give a number from 1 on.")
        found.append(_Place(host, int(number)) if is_count else _Place(word, None))
    if counted := [f"{number} on {host}" for host, number in found if number is not None]:
        say(f"-H: a number below {_FIRST_PORT} counts workers: {', '.join(counted)}")
    return found


def _cluster(slots: list[_Place], workers: int | None, ps: int, chief: bool, evaluator: bool) -> dict[str, Any]:
    """Return the `cluster` of a spec with these roles.

    Raises:
        click.UsageError: the cluster could not train.
    """
    are_counted = any(count is not None for _, count in slots)
    room = sum(count or 1 for _, count in slots)
    number = max(room, 1) if workers is None else workers
    _check_roles(number, ps, chief)
    if are_counted and number > room:
        raise click.UsageError(f"-n {number} is more workers than the {room} that -H has room for.")
    wanted = {"chief": int(chief), "worker": number, "ps": ps, "evaluator": int(evaluator)}
    if not slots:
        return {role: count for role, count in wanted.items() if count}
    hosts = [host for host, _ in slots]
    placed = {role: [hosts[index % len(hosts)] for index in range(count)] for role, count in wanted.items()}
    if are_counted:
        placed["worker"] = [host for host, count in slots for _ in range(count or 1)][:number]
    else:
        shares = [number // len(hosts) + (index < number % len(hosts)) for index in range(len(hosts))]
        placed["worker"] = [host for host, share in zip(hosts, shares, strict=True) for _ in range(share)]
    return {role: names for role, names in placed.items() if names}


def _check_roles(workers: int, ps: int, chief: bool) -> None:
    """Report errors in terms of the command line that would otherwise be reported in terms of a spec."""
    if not workers:
        raise click.UsageError("-n 0 leaves nothing that trains; ask for one worker at least.")
    if ps and not chief:
        raise click.UsageError("--ps needs a chief, which drives parameter servers and workers; add --chief.")


def _name_from(command: tuple[str, ...]) -> str:
    """Return a job name from the command: the script's rather than its interpreter's."""
    from tflaunch.clusterspec import load

    words = [word for word in command if not word.startswith("-")]
    if len(words) > 1 and _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
    return load.job_name_from(Path(words[0]).stem if words else "")


def _save(text: str, target: str) -> None:
    if target == _STDOUT:
        click.echo(text, nl=False)
    else:
        Path(target).write_text(text, encoding="utf-8")
