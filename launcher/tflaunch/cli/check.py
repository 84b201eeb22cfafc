"""`check`: find mistakes in specs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tflaunch.cli.arguments import spec as arguments
from tflaunch.cli.arguments.launch import engine_settings
from tflaunch.errors import EXIT_USAGE, Problem, SpecError


@click.command(cls=arguments.CommandAfterDashes)
@arguments.specs_argument
@arguments.file_option
@arguments.set_option
@engine_settings
@arguments.json_option
def check(
    specs: tuple[Path, ...], command: tuple[str, ...], settings: tuple[str, ...], engine: str | None, as_json: bool
) -> int:
    """Find mistakes in each SPEC, and in its program, without touching a host.

    A SPEC `-` is read from standard input; without SPEC, it is the cluster.json, .yaml, .yml or .toml here.

    With --on, the engine is asked, too, what it would refuse, or never start. The exit code is 2 for an error, else 0.

    \b
    Example:
      tflaunch check cluster.json
      tflaunch check cluster_specs/*.json
    """
    found = [_checked(spec, command, settings, engine) for spec in specs or [arguments.usual_spec()]]
    checked = [each for each, _ in found]
    is_ok = all(each.ok for each in checked)
    if as_json:
        arguments.print_json(AllChecked(is_ok, [problem for each in checked for problem in each.problems], checked))
    else:
        for each, source in found:
            lines = [f"{source}: {problem.severity}: {problem.sentence()}" for problem in each.problems]
            click.echo("\n".join([*lines, *[f"{each.spec}: ok"] * each.ok]))
    return 0 if is_ok else EXIT_USAGE


class Checked(NamedTuple):
    """The problems of one spec."""

    spec: str
    ok: bool
    problems: Sequence[Problem]


class AllChecked(NamedTuple):
    """The problems of all specs, together and of each."""

    ok: bool
    problems: Sequence[Problem]
    specs: Sequence[Checked]


def _checked(spec: Path, command: Sequence[str], settings: Sequence[str], engine: str | None) -> tuple[Checked, str]:
    """Return a spec's problems, and the file with them: the spec, or defaults."""
    name = arguments.source_name(spec)
    from tflaunch.discovery import prepare
    from tflaunch.plan import lint
    from tflaunch.runtime import run_config

    try:
        if engine is not None:
            problems = run_config.problems_on(engine, arguments.read_file(spec), settings, command)
            return Checked(name, all(problem.severity != "error" for problem in problems), problems), name
        loaded, problems = prepare.read_spec(arguments.read_file(spec), settings, command=command, is_offline=True)
    except SpecError as error:
        return Checked(name, False, error.problems), error.source
    return Checked(name, True, [*problems, *lint.matrix_warnings(loaded)]), name
