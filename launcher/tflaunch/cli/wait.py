"""`wait`: wait for the end of a run."""

from __future__ import annotations

import signal
from types import FrameType

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import say, seconds_in
from tflaunch.client import runs
from tflaunch.client.follow import until_end, watch_to_end
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_TIMEOUT, TflaunchError


@click.command()
@run_argument
@click.option("--timeout", metavar="TIME", help="Wait at most this long, for example 1h; then exit with code 124.")
def wait(run: str | None, timeout: str | None) -> int:
    """Wait until RUN has ended, report how, and exit with its exit code.

    \b
    Example:
      tflaunch up -d cluster.json && tflaunch wait
    """

    def watch(observer: Observer) -> int:
        observer.catch_up()
        return until_end(observer, say)

    seconds = None if timeout is None else seconds_in(timeout)
    if timeout is not None and not seconds:
        raise click.UsageError(f"--timeout {timeout!r} is not a valid duration; write for example 90s or 1h")
    directory = runs.find_run(run)
    if seconds:
        signal.signal(signal.SIGALRM, _give_up)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return watch_to_end(locate_run(directory), say, watch)
    except _TimeIsUpError:
        raise TflaunchError(f"{directory.name} has not ended within {timeout}, and goes on", EXIT_TIMEOUT) from None


class _TimeIsUpError(BaseException):
    """The time of `--timeout` is over."""


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _TimeIsUpError
