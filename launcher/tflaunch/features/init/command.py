"""`init`: write a first spec."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options, host_slots, name_from
from tflaunch.cli.arguments.here import likely_program
from tflaunch.cli.arguments.spec import STDIN, CommandAfterDashes, command_argument, say, warn
from tflaunch.errors import EXIT_USAGE, TflaunchError

if TYPE_CHECKING:
    from tflaunch.errors import Problem

_T = TypeVar("_T")
_STDOUT = STDIN
_DEFAULT = "cluster.yaml"
_HERE = "this machine"
_WORKERS_HERE = 2
_PROGRAM = "train.py"


@click.command(cls=CommandAfterDashes)
@click.argument("file", required=False, default=_DEFAULT, type=click.Path(readable=False, path_type=Path))
@command_argument
@cluster_options
@click.option("--name", metavar="NAME", help="Name of the job; default: that of the program.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(file: Path, command: tuple[str, ...], roles: ClusterOptions, name: str | None, force: bool) -> None:
    """Write a spec that runs COMMAND to FILE, with comments and the fields that are often needed next.

    FILE is cluster.yaml by default; - is stdout. Its ending selects the format: .yaml, .yml, .toml, or .json, which has
    no comments. On a terminal, without options and COMMAND, a few questions are asked instead.

    Workers are placed on hosts as by `run`: evenly, or as -H says.

    \b
    Example:
      tflaunch init
      tflaunch init -- python train.py --epochs 2
      tflaunch init job.yaml --worker 2 --ps 1 --chief -H h1,h2 -- python train.py
    """
    from tflaunch.clusterspec import load
    from tflaunch.features.init import starter

    path = Path(_DEFAULT) if file == _STDOUT else file
    if path.suffix.lower() not in starter.FORMATS:
        remedy = f"end it in one of {', '.join(starter.FORMATS)}"
        raise TflaunchError(f"{path} has no ending of a spec; {remedy}", EXIT_USAGE)
    if file != _STDOUT:
        _check_target(path, force)
    if not command:
        if roles != ClusterOptions() or not sys.stdin.isatty():
            raise click.UsageError("Missing COMMAND: what the tasks run, after `--`: tflaunch init -- python train.py")
        command, roles = _ask()
    name, cluster = name or name_from(command), cluster_of(roles)
    load.spec_from_data(str(path), {"name": name, "cluster": cluster, "command": command}, None, path.parent)
    text = starter.starter_spec(name, cluster, list(command), path)
    warn(path, _problems(path, text))
    if file == _STDOUT:
        click.echo(text, nl=False)
        return
    _write(path, text, force)
    say(f"wrote {path}; run it with: tflaunch up {shlex.quote(str(path))}")


def _problems(path: Path, text: str) -> list[Problem]:
    """Return the warnings of `check` about the spec.

    Raises:
        SpecError: `check` would find an error.
    """
    from tflaunch.clusterspec.spec_file import SpecFile
    from tflaunch.discovery import prepare

    _, problems = prepare.read_spec(SpecFile(str(path), path.parent, path.suffix, text), is_offline=True)
    return problems


def _check_target(path: Path, force: bool) -> None:
    """Refuse, before any question, a file that cannot be written.

    Raises:
        TflaunchError: it exists, or its directory does not.
    """
    if path.is_dir():
        raise TflaunchError(f"{path} is a directory; give the path of a file in it", EXIT_USAGE)
    if not force and os.path.lexists(path):
        raise _exists(path)
    if not path.parent.is_dir():
        raise TflaunchError(f"there is no directory {path.parent}; create it, or give another FILE", EXIT_USAGE)


def _exists(path: Path) -> TflaunchError:
    return TflaunchError(f"{path} exists; replace it with --force, or give another FILE", EXIT_USAGE)


def _write(path: Path, text: str, force: bool) -> None:
    """Write the file as a whole.

    Raises:
        TflaunchError: it cannot be written, or was created in the meantime.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise TflaunchError(f"{path} cannot be written: {error.strerror}; give another FILE", EXIT_USAGE) from None


# ---- questions


def _ask() -> tuple[tuple[str, ...], ClusterOptions]:
    """Ask on the terminal for the command and the tasks.

    Raises:
        TflaunchError: the user gives up, by Ctrl-C or Ctrl-D.
    """
    try:
        command = _prompt("Which command trains?", f"python {likely_program() or _PROGRAM}", _command)
        hosts = _prompt("On which hosts, such as h1,h2?", _HERE, _hosts)
        workers = _prompt("How many workers?", str(_workers(hosts)), _count(1))
        ps = _prompt("How many parameter servers?", "0", _count(0))
    except click.Abort:
        click.echo(err=True)
        raise TflaunchError("nothing was written", 130) from None
    if ps:
        say("a chief is added, which drives parameter servers and workers")
    return command, ClusterOptions(workers, hosts, ps, chief=bool(ps))


def _prompt(question: str, default: str, parse: Callable[[str], _T]) -> _T:
    """Ask on stderr, as stdout may be for the spec, until the answer can be used."""
    answer: _T = click.prompt(question, default, value_proc=parse, prompt_suffix=" ", err=True)
    return answer


def _command(answer: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(answer))
    except ValueError as error:
        raise click.UsageError(f"{answer} is not a command: {error}") from None
    if not words:
        raise click.UsageError("the tasks need something to run")
    return words


def _hosts(answer: str) -> str | None:
    """Return the value of -H, None for this machine."""
    from tflaunch.clusterspec.values import InvalidValueError, parse_address

    if answer == _HERE:
        return None
    try:
        for host, _ in host_slots(answer):
            parse_address(host)
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from None
    return answer


def _workers(hosts: str | None) -> int:
    """Return a usual number of workers."""
    return _WORKERS_HERE if hosts is None else sum(count or 1 for _, count in host_slots(hosts))


def _count(least: int) -> Callable[[str], int]:
    def parse(answer: str) -> int:
        if not answer.isdecimal() or int(answer) < least:
            raise click.UsageError(f"{answer} is not a whole number from {least} on")
        return int(answer)

    return parse
