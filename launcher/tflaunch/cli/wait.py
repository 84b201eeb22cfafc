"""`wait`: wait for the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import say

if TYPE_CHECKING:
    from tflaunch.client.observer import Observer


@click.command()
@run_argument
def wait(run: str | None) -> int:
    """Wait until RUN has ended, report how, and exit with its exit code.

    \b
    Example:
      tflaunch up -d cluster.json && tflaunch wait
    """
    from tflaunch.client import runs
    from tflaunch.client.follow import until_end, watch_to_end
    from tflaunch.client.run_location import locate_run

    def watch(observer: Observer) -> int:
        observer.catch_up()
        return until_end(observer, say)

    return watch_to_end(locate_run(runs.find_run(run)), say, watch)
