"""`init`: write a first spec."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options, host_slots, name_from
from tflaunch.cli.arguments.spec import STDIN, CommandAfterDashes, WholeNumber, command_argument, say, specs_here, warn
from tflaunch.clusterspec.spec_file import SUFFIXES, SpecFile
from tflaunch.clusterspec.values import LOCALHOST, InvalidValueError, parse_address
from tflaunch.errors import EXIT_USAGE, TRAINS_ALONE, TflaunchError
from tflaunch.features.init import starter
from tflaunch.features.programs import program_reader
from tflaunch_worker.features import program_source

_T = TypeVar("_T")
_MOST_NAMED = 5  # programs
_PROGRAMS = ("train.py", "main.py")
_STDOUT = STDIN
_DEFAULT = "cluster.yaml"
_HERE = "this machine"
_PROGRAM = "train.py"


@click.command(cls=CommandAfterDashes)
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@command_argument
@cluster_options
@click.option("--name", metavar="NAME", help="Name of the job; default: that of the program.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(file: Path | None, command: tuple[str, ...], roles: ClusterOptions, name: str | None, force: bool) -> None:
    """Write a spec that runs COMMAND to FILE, with comments and often needed fields.

    FILE is cluster.yaml by default; - is stdout. Its extension selects the format: .yaml, .yml, .toml, or .json, which
    has no comments. On a terminal, without options and COMMAND, a few questions are asked instead.

    The program is read, but not run: one with a ParameterServerStrategy gets a chief and a ps, and if it starts no
    server, worker and ps run TensorFlow's. Without COMMAND, it is train.py, main.py or the only program here; without
    -n and -H, there are two workers. Workers are placed on hosts as by `run`: evenly, or as -H says.

    \b
    Example:
      tflaunch init
      tflaunch init -- python train.py --epochs 2
      tflaunch init job.yaml --worker 2 --ps 1 -H h1,h2 -- python train.py
    """
    from tflaunch.clusterspec import load
    from tflaunch.discovery import prepare

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
    if not command and roles == ClusterOptions() and sys.stdin.isatty():
        command, roles, program = _ask()
    else:
        command = command or _command_here()
        if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
            raise click.UsageError(f"{command[0]} needs its interpreter: -- python {shlex.join(command)}")
        program = _read(command, roles.hosts)
        roles = _fit(roles, program)
    name, cluster = name or name_from(command), cluster_of(roles)
    load.spec_from_data(str(path), {"name": name, "cluster": cluster, "command": command}, None, path.parent)
    strategy, starts_no_server = starter.strategy_field(program, cluster), starter.starts_no_server(program)
    text = starter.starter_spec(name, cluster, list(command), path, strategy, starts_no_server)
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
    """Refuse, before any question, a file that cannot be written.

    Raises:
        TflaunchError: it exists, or its directory does not.
    """
    if is_usual and (others := [str(each) for each in specs_here() if each != path]):
        message = f"{' and '.join(others)} is here already; change it, or name the FILE of another spec"
        raise TflaunchError(message, EXIT_USAGE)
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


# ---- the program


def _programs_here() -> list[str]:
    return sorted(path.name for path in Path().glob("*.py"))


def _likely_program() -> str | None:
    """Return the name of the likely training program here, None if there is none."""
    found = _programs_here()
    return next((name for name in _PROGRAMS if name in found), found[0] if len(found) == 1 else None)


def _command_here() -> tuple[str, ...]:
    """Return the command of the program that is here.

    Raises:
        click.UsageError: there is none, or it could be any.
    """
    program = _likely_program()
    if program is None:
        among = f" ({', '.join(_programs_here()[:_MOST_NAMED])} are here)" if _programs_here() else ""
        example = f"tflaunch init -- python {_example_program()}"
        raise click.UsageError(f"Missing COMMAND: what the tasks run, after `--`: {example}{among}")
    return "python", program


def _example_program() -> str:
    return next(iter(_programs_here()), _PROGRAM)


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


# ---- questions


def _ask() -> tuple[tuple[str, ...], ClusterOptions, program_reader.Program | None]:
    """Ask for tasks and command; return them, and the program. Ctrl-C gives up."""
    try:
        workers = _prompt("How many workers?", str(starter.WORKERS), WholeNumber(1))
        hosts = _prompt("On which hosts, such as h1,h2?", _HERE, _hosts(workers))
        here = _likely_program()
        example = "" if here else f", such as python {_example_program()}"
        command, program = _prompt(f"Which command trains{example}?", here and f"python {here}", _command(hosts))
        ps = starter.fit_roles(ClusterOptions(workers, hosts), program).ps
        if ps or not (program and (program.strategies or program.alone)):
            ps = _prompt("How many parameter servers?", str(ps), WholeNumber(0))
    except click.Abort:
        click.echo(err=True)
        raise TflaunchError("nothing was written", 130) from None
    return command, _fit(ClusterOptions(workers, hosts, ps), program), program


def _prompt(question: str, default: str | None, parse: Callable[[str], _T]) -> _T:
    """Ask on stderr, as stdout may be for the spec, until the answer can be used."""
    answer: _T = click.prompt(question, default, value_proc=parse, prompt_suffix=" ", err=True)
    return answer


def _command(hosts: str | None) -> Callable[[str], tuple[tuple[str, ...], program_reader.Program | None]]:
    def parse(answer: str) -> tuple[tuple[str, ...], program_reader.Program | None]:
        try:
            words = tuple(shlex.split(answer))
        except ValueError as error:
            raise click.UsageError(f"{answer} is not a command: {error}") from None
        if not words:
            raise click.UsageError("the tasks need something to run")
        try:
            return words, _read(words, hosts)
        except TflaunchError as error:
            raise click.UsageError(str(error).partition(";")[0]) from None

    return parse


def _hosts(workers: int) -> Callable[[str], str | None]:
    """Return a parser of -H, whose value is None for this machine."""

    def parse(answer: str) -> str | None:
        if answer == _HERE:
            return None
        if answer.isdecimal():
            raise click.UsageError(f"{answer} is a number, not a host")
        try:
            for host, _ in host_slots(answer):
                parse_address(host)
            cluster_of(ClusterOptions(workers, answer))
        except InvalidValueError as error:
            raise click.UsageError(str(error)) from None
        return answer

    return parse
