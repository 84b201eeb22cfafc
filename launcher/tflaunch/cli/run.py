"""`run`: run a command without a spec file."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.arguments import launch
from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options, name_from
from tflaunch.cli.arguments.spec import WholeNumber, require_program, say, set_option, warn
from tflaunch.cli.up import start_spec
from tflaunch.clusterspec.spec_file import SUFFIXES, SpecFile
from tflaunch.clusterspec.templates import quote_in_spec
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.feature import engines
from tflaunch.user_text import UserTextError, read_user_text

_SOURCE = "command line"
_STDOUT = "-"
_SUFFIXES = (".json", ".yaml", ".yml")  # of files that JSON can be written to
_VARIABLE = re.compile(r"(?:export\s+)?(?P<name>[^\s=]+)(?:\s*=\s*(?P<value>.*))?")
_VALUE = re.compile(  # one in quotes or without, then a comment
    r"""(?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>[^'"].*?)??)(?:(?:^|\s+)\#.*)?"""
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class _Run(click.Command):
    """A command that explains what COMMAND is if it is missing."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse options up to the first word of COMMAND."""
        try:
            return super().parse_args(context, args)
        except click.MissingParameter:
            example = "tflaunch run -n 2 python train.py"
            raise click.UsageError(f"Missing COMMAND: what each task runs, for example: {example}", context) from None


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@cluster_options
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set a variable of all tasks; NAME: as it is here."
)
@click.option(
    "--env-file", type=click.Path(path_type=Path), metavar="FILE", help="Set the variables in FILE, one a line."
)
@click.option("--gpus", type=WholeNumber(0), metavar="N", help="Number of GPUs that each worker, and the chief, sees.")
@click.option("--timeout", metavar="TIME", help="Stop the run after this time, for example 1h.")
@click.option("--tensorboard", metavar="DIR", help="Show the event files in DIR with TensorBoard.")
@click.option(
    "--save",
    is_flag=False,
    flag_value=_STDOUT,
    metavar="FILE",
    help="Print the spec, or write it to FILE, instead of running it.",
)
@set_option
@launch.launch_options
@launch.engine_option
def run(
    command: tuple[str, ...],
    roles: ClusterOptions,
    env: tuple[str, ...],
    env_file: Path | None,
    gpus: int | None,
    timeout: str | None,
    tensorboard: str | None,
    save: str | None,
    settings: tuple[str, ...],
    options: launch.LaunchOptions,
    engine: str | None,
) -> int | None:
    """Run COMMAND as N workers, here, over SSH or by an engine, as `up` runs a spec.

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
    if save is not None and save != _STDOUT and Path(save).suffix not in _SUFFIXES:
        remedy = "write --save=- to print the spec, or --save=FILE.json"
        raise click.UsageError(f"--save: {save!r} does not look like the name of a spec; {remedy}.")
    require_program(command)
    if len(command) == 1 and Path(command[0]).suffix in SUFFIXES:
        raise click.UsageError(f"{command[0]} is a spec, not a program: tflaunch up {shlex.quote(command[0])}")
    cluster = cluster_of(roles)
    data: dict[str, Any] = {"name": options.name or name_from(command), "cluster": cluster, "command": list(command)}
    if variables := variables_of(env, env_file):
        data["env"] = variables
    if gpus is not None:
        data["roles"] = {role: {"gpus": gpus} for role in ("chief", "worker") if role in cluster}
    if timeout is not None:
        data["timeouts"] = {"deadline": timeout}
    if tensorboard is not None:
        data["tensorboard"] = tensorboard
    if engine is not None and roles.hosts:
        raise click.UsageError(f"-H names hosts, and --on {engine} gives the tasks hosts of its own; leave out one.")
    if engine is not None and engines()[engine].is_elsewhere:
        has_files = any(word and not Path(word).is_absolute() and Path(word).exists() for word in command)
        data["sync" if has_files else "workdir"] = {} if has_files else "/"
    file = SpecFile(_SOURCE, Path(), ".json", json.dumps(data, indent=2) + "\n")
    launching = launch.Launching(options, engine)
    if save is None:
        return start_spec(file, settings, launching)
    launch.check_extras(launching)
    _save(file, (*launch.settings_of(launching), *settings), save, engine)
    return None


def _save(file: SpecFile, settings: Sequence[str], target: str, engine: str | None) -> None:
    """Check the spec and write it, with the settings, to ``target``."""
    from tflaunch.clusterspec import load
    from tflaunch.discovery import prepare

    _, warnings = prepare.read_spec(file, settings)
    warn(file.source, warnings)
    text = json.dumps(load.apply_settings(file.source, json.loads(file.text), settings), indent=2) + "\n"
    if target == _STDOUT:
        click.echo(text, nl=False)
    else:
        Path(target).write_text(text, encoding="utf-8")
        start = ["tflaunch", "up", target, *([] if engine is None else ["--on", engine])]
        say(f"wrote {target}; run it with: {shlex.join(start)}")


def variables_of(given: Iterable[str], file: Path | None) -> dict[str, str]:
    """Return variables of a file as in Compose, and of ``NAME=VALUE`` or ``NAME``.

    They are for the `env` of a spec: what is not typed on the command line is quoted there.

    Raises:
        click.UsageError: an argument names no variable, or one that is not set here.
        TflaunchError: the file cannot be read, or one of its lines is none of these.
    """
    variables = {} if file is None else _variables_in(file)
    for word in given:
        name, equals, value = word.partition("=")
        if not name or any(letter.isspace() for letter in name):
            raise click.UsageError(f"-e: {name!r} is not the name of a variable; write NAME=VALUE.")
        if not equals and name not in os.environ:
            raise click.UsageError(f"-e: {name} is not set here; write {name}=VALUE.")
        variables[name] = value if equals else quote_in_spec(os.environ[name])
    return variables


def _variables_in(file: Path) -> dict[str, str]:
    """Return the variables of a file's lines that are neither empty nor comments."""
    try:
        text = read_user_text(file)
    except UserTextError as error:
        raise TflaunchError(f"--env-file: {file} {error}{error.hint and f'; {error.hint}'}", EXIT_USAGE) from None
    variables = {}
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if line and not line.startswith("#"):
            name, value = _variable_in(line, f"{file}:{number}")
            variables[name] = quote_in_spec(value)
    return variables


def _variable_in(line: str, place: str) -> tuple[str, str]:
    """Return name and value; errors do not quote the line, which may be secret."""
    parts = _VARIABLE.fullmatch(line)
    if parts is None:
        raise click.UsageError(f"{place}: this is not a variable; write NAME=VALUE.")
    if parts["value"] is not None:
        return parts["name"], _unquoted(parts["value"], place)
    if parts["name"] not in os.environ:
        raise click.UsageError(f"{place}: this variable is not set here; write NAME=VALUE.")
    return parts["name"], os.environ[parts["name"]]


def _unquoted(text: str, place: str) -> str:
    parts = _VALUE.fullmatch(text)
    if parts is None:
        raise click.UsageError(f"{place}: the quotes of this value do not enclose it; put it in one pair of them.")
    if parts["double"] is not None:
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), parts["double"])
    return parts["single"] or parts["plain"] or ""
