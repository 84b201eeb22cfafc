"""The command group: parse arguments, return the exit code."""

import functools
import inspect
import sys

import click

from tflaunch import __version__, errors
from tflaunch.cli.arguments.spec import say
from tflaunch.cli.arguments.unknown_options import answer_option
from tflaunch.cli.help import no_such_command
from tflaunch.client.run_location import locate_run
from tflaunch.feature import Verb, features, load

_GROUPS = ("Before a run", "Look at runs", "Act on runs", "Help")
_MORE = "More"  # the group of the commands that `tflaunch --help` leaves to `tflaunch help --all`
_STATUS = "tflaunch.explain.run_status:Status"
_OWN_VERBS = {
    "run": Verb("tflaunch.cli.run:run", "Before a run", "Run a command as a cluster, without a spec."),
    "up": Verb("tflaunch.cli.up:up", "Before a run", "Run a spec and wait for its end."),
    "check": Verb(
        "tflaunch.cli.check:check", "Before a run", "Find mistakes in specs.", "tflaunch.cli.check:AllChecked"
    ),
    "ps": Verb("tflaunch.cli.ps:ps", "Look at runs", "Show the tasks of a run.", _STATUS),
    "logs": Verb("tflaunch.cli.logs:logs", "Look at runs", "Show what tasks wrote."),
    "attach": Verb("tflaunch.cli.attach:attach", "Look at runs", "Follow a live run as if it had been started here."),
    "wait": Verb("tflaunch.cli.attach:wait", "Look at runs", "Wait for the end of a run.", _STATUS),
    "ls": Verb(
        "tflaunch.cli.ls:ls",
        "Look at runs",
        "List all runs, and compare those of a matrix.",
        "tflaunch.client.run_list:Listing",
    ),
    "events": Verb("tflaunch.cli.logs:events", _MORE, "Show what has happened in a run."),
    "down": Verb("tflaunch.cli.down:down", "Act on runs", "Stop a run."),
    "restart": Verb("tflaunch.cli.tasks:restart", "Act on runs", "Restart tasks of a live run."),
    "kill": Verb("tflaunch.cli.tasks:kill", _MORE, "Send a signal to tasks."),
    "schema": Verb(
        "tflaunch.cli.json_output:schema", _MORE, "Print the JSON Schema of a spec, or of a command's --json."
    ),
    "help": Verb("tflaunch.cli.help:help_", "Help", "Show how a command is used."),
    "completion": Verb("tflaunch.cli.help:completion", _MORE, "Print the script that completes commands in a shell."),
}


def all_verbs() -> dict[str, Verb]:
    """Return all commands by name, with those that only programs call."""
    return _OWN_VERBS | {name: verb for feature in features().values() for name, verb in feature.verbs.items()}


@functools.cache
def verbs() -> dict[str, Verb]:
    """Return the listed commands in the order of `--help`: by group, features' last."""
    return {name: verb for group in (*_GROUPS, _MORE) for name, verb in all_verbs().items() if verb.group == group}


@functools.cache
def _load_command(name: str, verb: Verb) -> click.Command:
    """Import a command; its help gets what features say of themselves there."""
    command: click.Command = load(verb.place)
    command.short_help = verb.summary or None
    text, mark, examples = inspect.cleandoc(command.help or "").partition("\n\n\b\nExample")
    for feature in features().values():
        lines = feature.help.get(name, "").strip("\n").splitlines()
        own_examples = [line for line in lines if line.startswith("  ")]
        text += "\n\n" + "\n".join(line for line in lines if line not in own_examples) if lines != own_examples else ""
        examples += "".join(f"\n{line}" for line in own_examples)
    command.help = text + mark + examples
    return command


class _Commands(click.Group):
    """The commands, listed in the groups of `_GROUPS`, and imported when used."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; if it is empty, show the help."""
        if not (args or context.resilient_parsing):
            click.echo(self.get_help(context), err=True)
            context.exit(errors.EXIT_USAGE)
        return super().parse_args(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the visible commands."""
        return list(verbs())

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what commands do, by group; all groups if the context's object is True."""
        width = max(map(len, verbs()))
        for title in (*_GROUPS, _MORE) if context.obj else _GROUPS:
            with formatter.section(title):
                listed = [(name, verb.summary) for name, verb in verbs().items() if verb.group == title]
                formatter.write_dl([(f"{name:<{width}}", summary) for name, summary in listed])
        if not context.obj:
            formatter.write_paragraph()
            formatter.write_text("More: tflaunch help --all")

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command with this name, None if there is none."""
        verb = _OWN_VERBS.get(name) or all_verbs().get(name)
        return None if verb is None else _load_command(name, verb)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the first argument, and the remaining arguments.

        Raises:
            click.UsageError: the command does not exist; with a suggestion.
        """
        name = arguments[0]
        if self.get_command(context, name) is None and not (context.resilient_parsing or name.startswith("-")):
            raise no_such_command(name, verbs())
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
    except errors.SupervisedElsewhereError as error:
        return locate_run(error.directory).run_verb(sys.argv[1:], say, run_command_line)


def _end_with(error: Exception) -> int:
    """Print a sentence about a system error, and return the exit code; else raise it."""
    sentence = errors.describe_os_error(error) if isinstance(error, OSError) else errors.out_of_resources(error)
    if not sentence:
        raise error
    click.echo(f"tflaunch: {sentence}", err=True)
    return errors.EXIT_INTERNAL


def run_command_line() -> int:
    """Run the command line and return its exit code; user errors are messages."""
    try:
        return _run()
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = answer_option(error)
        error.show()
        return errors.EXIT_USAGE
    except errors.SpecError as error:
        for problem in error.problems:
            severity = "warning: " if problem.severity == "warning" else ""
            click.echo(f"tflaunch: {error.source}: {severity}{problem.sentence()}", err=True)
        return errors.EXIT_USAGE
    except errors.TflaunchError as error:
        click.echo(f"tflaunch: {error}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        return errors.EXIT_INTERNAL
    except (OSError, RuntimeError) as error:
        return _end_with(error)
