"""The command group: parse arguments, return the exit code."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from tflaunch import __version__
from tflaunch.errors import (
    EXIT_INTERNAL,
    EXIT_USAGE,
    SpecError,
    SupervisedElsewhereError,
    TflaunchError,
    describe_os_error,
    no_room,
)

_GROUPS = {
    "Run": ("up", "run", "rerun", "queue"),
    "Look at runs": (
        "ps",
        "explain",
        "stacks",
        "profile",
        "debug",
        "logs",
        "attach",
        "wait",
        "ls",
        "events",
        "web",
        "tensorboard",
        "report",
        "fetch",
        "diff",
    ),
    "Act on runs": ("down", "restart", "kill", "warm", "prune"),
    "Before a run": ("init", "check", "plan", "env", "doctor", "scale", "render", "schema"),
    "Help": ("help", "completion"),
}
"""The verbs by what they are for; each is a module in this package, imported on use."""
_VERBS = [verb for verbs in _GROUPS.values() for verb in verbs]
_FOR_PROGRAMS = {"supervise": "_slurm", "launcher": "_launcher"}


class _Commands(click.Group):
    """The commands, listed in the groups of `_GROUPS`."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the visible commands."""
        return _VERBS

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, group by group."""
        width = max(map(len, _VERBS))
        for title, verbs in _GROUPS.items():
            with formatter.section(title):
                commands = [self.get_command(context, verb) for verb in verbs]
                formatter.write_dl([(f"{each.name:<{width}}", each.short_help or "") for each in commands if each])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command with this name, None if there is none."""
        module = name if name in _VERBS else _FOR_PROGRAMS.get(name)
        if module is None:
            return None
        imported = import_module(f"tflaunch.cli.{module}")
        command: click.Command = getattr(imported, f"{name}_" if name == "help" else name)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the first argument, and the remaining arguments.

        Raises:
            click.UsageError: there is no such command; with a suggestion.
        """
        name = arguments[0]
        if self.get_command(context, name) is None and not (context.resilient_parsing or name.startswith("-")):
            from tflaunch.cli.help import no_such_command

            raise no_such_command(name, _VERBS)
        return super().resolve_command(context, arguments)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tflaunch", message="%(prog)s %(version)s")
def tflaunch() -> None:
    """Launch distributed TensorFlow training from one cluster spec.

    \b
    Example:
      tflaunch up cluster.json
    """


def _run() -> int:
    """Run the command, where its run is supervised, and return its exit code."""
    try:
        return int(tflaunch(standalone_mode=False) or 0)
    except SupervisedElsewhereError as error:
        from tflaunch.cli._cluster_runs import run_where_it_is

        return run_where_it_is(error.directory, sys.argv[1:], run_command_line)


def _end_with(error: Exception) -> int:
    """Print a sentence about an error of the system, and return the exit code; raise any other error again."""
    sentence = describe_os_error(error) if isinstance(error, OSError) else no_room(error)
    if not sentence:
        raise error
    click.echo(f"tflaunch: {sentence}", err=True)
    return EXIT_INTERNAL


def run_command_line() -> int:
    """Run the command line and return its exit code; user errors print a message, never a traceback."""
    try:
        return _run()
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            from tflaunch.cli._removed import removed_option

            error = removed_option(error) or error
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
    except (OSError, RuntimeError, MemoryError, ImportError) as error:
        return _end_with(error)
