"""`attach` and `wait`: watch a run to its end."""

import itertools
import signal
import sys

import click

from tflaunch.cli.arguments import spec as arguments
from tflaunch.cli.arguments.launch import LaunchOptions
from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.up import take_over
from tflaunch.client import runs
from tflaunch.client.follow import Follower, wait_for_end, watch_to_end
from tflaunch.client.observer import Observer, current_status
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_INTERNAL, EXIT_TIMEOUT, TflaunchError
from tflaunch.tui.screen import Screen

_PATIENCE = 2.0  # seconds to wait for a terminal that takes nothing, after Ctrl-C


@click.command()
@run_argument
@click.option(
    "-n", "--tail", type=arguments.WholeNumber(0), default=10, metavar="N", help="Begin with N lines of each task."
)
@click.option("--resume", is_flag=True, help="Take over if its supervisor was killed.")
@arguments.verbose_option
@arguments.quiet_option
@arguments.fold_option
def attach(run: str | None, tail: int, resume: bool, verbose: bool, quiet: bool, fold: bool | None) -> int:
    """Follow the output and events of RUN until it ends, and exit with its exit code.

    Ctrl-C detaches: the run continues.

    \b
    Example:
      tflaunch attach
    """
    directory = runs.find_run(run)
    location = locate_run(directory)
    tails = itertools.chain([tail], itertools.repeat(None))  # what comes after a wait is all new
    still = f"{directory.name} is still running (stop it with `tflaunch down {directory.name}`)"

    def watch(observer: Observer) -> int:
        observer.catch_up()
        if observer.outcome is runs.Outcome.LOST and (resume or location.has_supervisor_here):
            options = LaunchOptions(verbose=verbose, quiet=quiet, fold=fold)
            return _take_over(directory.name, runs.describe_loss(directory), resume, options)
        screen = Screen(observer.tasks, verbose, quiet, fold)
        patience: float | None = None
        try:
            return Follower(observer, screen, lambda: screen.output_error).run(next(tails))
        except KeyboardInterrupt:
            patience = _PATIENCE
            screen.say(f"detached; {still}")
            raise
        finally:
            screen.close(patience)

    try:
        return watch_to_end(location, arguments.say, watch)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _take_over(run: str, sentence: str, resume: bool, options: LaunchOptions) -> int:
    """Offer to take over a lost run; without a terminal, require `--resume`."""
    if not resume:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise TflaunchError(sentence, EXIT_INTERNAL)
        click.echo(f"tflaunch: {sentence}", err=True)
        if not click.confirm("Take over now?", err=True):
            return EXIT_INTERNAL
    return take_over(run, options)


@click.command()
@run_argument
@click.option(
    "--timeout",
    type=arguments.Duration("1h", arguments.POSITIVE),
    metavar="TIME",
    help="Wait at most this long, for example 1h; then exit with code 124.",
)
@arguments.json_option
def wait(run: str | None, timeout: float | None, as_json: bool) -> int:
    """Wait until RUN has ended, report how, and exit with its exit code.

    With --json, its status then follows, as `tflaunch ps --json` prints it.

    \b
    Example:
      tflaunch up -d cluster.json && tflaunch wait
    """
    directory = runs.find_run(run)
    try:
        return wait_for_end(locate_run(directory), arguments.say, timeout)
    except TimeoutError as late:
        raise TflaunchError(f"{late}, and goes on", EXIT_TIMEOUT) from None
    finally:
        if as_json and directory.exists():
            arguments.print_json(current_status(directory))
