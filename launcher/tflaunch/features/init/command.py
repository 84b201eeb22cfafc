"""`init`: write a first spec."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options, name_from
from tflaunch.cli.arguments.spec import STDIN, CommandAfterDashes, command_argument, say, specs_here, warn
from tflaunch.clusterspec import load
from tflaunch.clusterspec.spec_file import SUFFIXES, SpecFile
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_USAGE, TRAINS_ALONE, TflaunchError
from tflaunch.features.init import starter
from tflaunch.features.programs import program_reader
from tflaunch_worker.features import program_source

_MOST_NAMED = 5  # programs
_PROGRAMS = ("train.py", "main.py")
_STDOUT = STDIN
_DEFAULT = "cluster.yaml"


@click.command(cls=CommandAfterDashes)
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@command_argument
@cluster_options
@click.option("--name", metavar="NAME", help="Name of the job; default: that of the program.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(file: Path | None, command: tuple[str, ...], roles: ClusterOptions, name: str | None, force: bool) -> None:
    """Write a spec that runs COMMAND to FILE, with comments and often needed fields.

    FILE is cluster.yaml by default; - is stdout. Its extension selects the format: .yaml, .yml, .toml, or .json, which
    has no comments.

    The program is read, but not run: one with a ParameterServerStrategy gets a chief and a ps, and if it starts no
    server, worker and ps run TensorFlow's. Without COMMAND, it is train.py, main.py or the only program here; without
    -n and -H, there are two workers. Workers are placed on hosts as by `run`: evenly, or as -H says.

    \b
    Example:
      tflaunch init
      tflaunch init -- python train.py --epochs 2
      tflaunch init job.yaml --worker 2 --ps 1 -H h1,h2 -- python train.py
    """
    path = Path(_DEFAULT) if file in (None, _STDOUT) else file
    assert path is not None
    if path.suffix.lower() not in SUFFIXES:
        if path.suffix == ".py" and not command:
            example = f"tflaunch init -- python {shlex.quote(str(path))}"
            raise TflaunchError(f"{path} is a program, not a spec; write a spec for it: {example}", EXIT_USAGE)
        remedy = f"use one of {', '.join(SUFFIXES)}"
        raise TflaunchError(f"{path} does not have the extension of a spec; {remedy}", EXIT_USAGE)
    if file != _STDOUT:
        _check_target(path, force, is_usual=file is None)
    command = command or _command_here()
    if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        raise click.UsageError(f"{command[0]} needs its interpreter: -- python {shlex.join(command)}")
    program = _read(command, roles.hosts)
    roles = _fit(roles, program)
    name, cluster = name or name_from(command), cluster_of(roles)
    load.spec_from_data(str(path), {"name": name, "cluster": cluster, "command": command}, None, path.parent)
    text = starter.starter_spec(name, cluster, list(command), path, program)
    _, problems = prepare.read_spec(SpecFile(str(path), path.parent, path.suffix, text), is_offline=True)
    warn(path, problems)
    for line in starter.first_steps(program) if any(each.kind == TRAINS_ALONE for each in problems) else ():
        say(line)
    if file == _STDOUT:
        click.echo(text, nl=False)
        return
    _write(path, text, force)
    say(f"wrote {path}; run it with: tflaunch up {shlex.quote(str(path))}")


def _check_target(path: Path, force: bool, is_usual: bool) -> None:
    """Raise `TflaunchError` for a file that cannot be written."""
    if is_usual and (others := [str(each) for each in specs_here() if each != path]):
        message = f"{' and '.join(others)} is here already; change it, or name the FILE of another spec"
        raise TflaunchError(message, EXIT_USAGE)
    if path.is_dir():
        raise TflaunchError(f"{path} is a directory; give the path of a file in it", EXIT_USAGE)
    if not force and os.path.lexists(path):
        raise TflaunchError(f"{path} exists; replace it with --force, or give another FILE", EXIT_USAGE)
    if not path.parent.is_dir():
        raise TflaunchError(f"there is no directory {path.parent}; create it, or give another FILE", EXIT_USAGE)


def _write(path: Path, text: str, force: bool) -> None:
    """Write the file as a whole, or raise `TflaunchError`."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise TflaunchError(f"{path} cannot be written: {error.strerror}; give another FILE", EXIT_USAGE) from None


# ---- the program


def _command_here() -> tuple[str, ...]:
    """Return the command of the program that is here.

    Raises:
        click.UsageError: there is none, or it could be any.
    """
    here = sorted(path.name for path in Path().glob("*.py"))
    program = next((name for name in _PROGRAMS if name in here), here[0] if len(here) == 1 else None)
    if program is None:
        among = f" ({', '.join(here[:_MOST_NAMED])} are here)" if here else ""
        example = f"tflaunch init -- python {here[0] if here else _PROGRAMS[0]}"
        raise click.UsageError(f"Missing COMMAND: what the tasks run, after `--`: {example}{among}")
    return "python", program


def _read(command: Sequence[str], hosts: str | None) -> program_reader.Program | None:
    """Read a command's program, and say what it uses; refuse a missing one here."""
    found = program_reader.find_file(command, Path())
    kind, script = program_reader.find_name(command)
    name = script if kind == program_source.SCRIPT else command[0] if "/" in command[0] else ""
    if name and not Path(name).is_file() and (hosts is None or hosts == LOCALHOST):
        raise TflaunchError(f"there is no program {name} here; give its path: tflaunch init -- python PATH", EXIT_USAGE)
    if found is None:
        return None
    program = program_reader.read_program(*found)
    if described := starter.describe_strategy(program):
        say(described)
    return program


def _fit(roles: ClusterOptions, program: program_reader.Program | None) -> ClusterOptions:
    """Return the tasks, with those that they need.

    An added chief is said, unless the program was named as the reason.
    """
    fitted = starter.fit_roles(roles, program)
    if fitted.chief and not (roles.chief or starter.fit_roles(ClusterOptions(), program).chief):
        say("a chief is added, which drives parameter servers and workers")
    return fitted
