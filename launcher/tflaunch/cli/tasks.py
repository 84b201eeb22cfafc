"""`kill` and `restart`: act on tasks of a live run."""

import re
import signal

import click

from tflaunch.cli.arguments.select import choose, choose_tasks, run_and_tasks_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client import control_client, runs
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.explain.wording import listed
from tflaunch.plan import selectors
from tflaunch_worker.readable import signal_name
from tflaunch_worker.signals import number_of

_AS_OF_KILL = re.compile(r"-(\d+|(SIG)?[A-Z][A-Z0-9]+)")


class _Kill(click.Command):
    """A command that takes `-9` and `-KILL` as kill(1) does."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse options and tasks."""
        words = [each for word in args for each in (("-s", word[1:]) if _AS_OF_KILL.fullmatch(word) else (word,))]
        return super().parse_args(context, words)


@click.command(cls=_Kill)
@click.option("-s", "--signal", "name", default="TERM", metavar="SIGNAL", help="Its name or number; default: TERM.")
@run_and_tasks_argument
def kill(name: str, words: tuple[str, ...]) -> None:
    """Send a signal to TASKs of RUN, and let the rules decide what follows.

    \b
    Example:
      tflaunch kill -s USR1 worker:0
      tflaunch kill -9 worker:1
    """
    number = _signal(name)
    directory, wanted = choose(words)
    if not wanted:
        raise click.UsageError("Missing argument 'TASK': worker, worker:1, worker:0-3 or host=NAME.")
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted)
    reached = control_client.request_signal(directory, number, tasks)
    say(f"sent {signal_name(number)} to {listed(reached)} of {directory.name}")


def _signal(name: str) -> int:
    try:
        number = int(signal.Signals(int(name))) if name.isdigit() else number_of(name)
    except ValueError:
        number = None
    if number is None:
        message = f"-s {name!r} is not a valid signal; write TERM, KILL, USR1 or a number"
        raise TflaunchError(message, EXIT_USAGE)
    return number


@click.command()
@run_and_tasks_argument
def restart(words: tuple[str, ...]) -> None:
    """Restart TASKs of RUN; without TASK, all tasks that train.

    An evaluator, a sidecar, a worker of a parameter_server job and a task of strategy none restart alone; any other
    task restarts together with all tasks that train. They get the spec's stop_signal and grace to save first.
    The restart budget is not charged.

    \b
    Example:
      tflaunch restart evaluator
    """
    directory, tasks = choose_tasks(words)
    bound = control_client.request_restart(directory, tasks)
    if tasks and not bound:
        say(f"restarting {listed(tasks)} of {directory.name}")
    else:
        others = f" ({listed(bound)} cannot restart alone)" if bound else ""
        note = "they go on from the checkpoints that they save, if any"
        say(f"restarting all tasks that train{others} of {directory.name}; {note}")
