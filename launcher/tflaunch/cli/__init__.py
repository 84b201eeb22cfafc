"""The command line: arguments in, exit code out. Modules here import what is slow only when it is used."""

from __future__ import annotations

import os
import sys

import click

from tflaunch import __version__
from tflaunch.cli.doctoring import doctor
from tflaunch.cli.inspection import check, env, plan, schema
from tflaunch.cli.observing import events, ls, ps, wait
from tflaunch.cli.reading import attach, logs
from tflaunch.cli.rendering import render
from tflaunch.cli.reporting import report
from tflaunch.cli.running import up
from tflaunch.cli.steering import down, kill, restart
from tflaunch.cli.without_spec import run
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, SpecError, TflaunchError


class _InOrder(click.Group):
    """Lists the commands as they were added, the most important first, and not by the alphabet."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tflaunch", message="%(prog)s %(version)s")
def tflaunch() -> None:
    """Launch distributed TensorFlow training from one cluster spec.

    \b
    Example:
      tflaunch up cluster.json
    """


for command in (
    up,
    run,
    ps,
    logs,
    attach,
    wait,
    down,
    restart,
    kill,
    ls,
    events,
    report,
    plan,
    check,
    doctor,
    env,
    render,
    schema,
):
    tflaunch.add_command(command)


def main() -> None:
    """Run the command line and exit with its code."""
    code = _exit_code()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass  # whoever read us has gone
    os._exit(code)  # nothing is left to clean up, and the interpreter's farewell takes its time


def _exit_code() -> int:
    """Run the command line; a user's mistake is a sentence and an exit code, never a traceback."""
    try:
        return int(tflaunch(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except SpecError as error:
        for problem in error.problems:
            severity = "warning: " if problem.severity == "warning" else ""
            click.echo(f"tflaunch: {error.source}: {severity}{problem.sentence()}", err=True)
        return EXIT_USAGE
    except TflaunchError as error:
        click.echo(f"tflaunch: {error}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return EXIT_INTERNAL
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"tflaunch: {place}{error.strerror or error}", err=True)
        return EXIT_INTERNAL
