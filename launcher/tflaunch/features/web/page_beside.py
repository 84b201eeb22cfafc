"""`up --web`: serve the page about a run beside it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click

from tflaunch.features.web.command import require_server
from tflaunch.interruptible import wait_readable
from tflaunch.own_process import end_process, own_command
from tflaunch.runtime.watchers import Supervision, Watcher

if TYPE_CHECKING:
    from tflaunch.cli.arguments.launch import Launching

_SHOWS_LINK_WITHIN = 10.0  # seconds; then the run begins without


def check_start(value: object, launching: Launching) -> None:
    """Require that a run has a terminal, and its page what serves it.

    Raises:
        click.UsageError: it has no terminal.
        TflaunchError: packages are missing.
    """
    if launching.options.outlives_terminal or launching.engine is not None:
        raise click.UsageError("--web goes with a run in this terminal; `tflaunch web` shows any other one")
    require_server()


class PageBeside(Watcher):
    """Serves the page in another process; without it, the run goes on."""

    def __init__(self, supervision: Supervision) -> None:
        """Start the process, and wait until it has shown the link."""
        self._run = supervision.job.run
        self._say = supervision.say
        command = own_command("web", self._run, "--owner", str(os.getpid()))
        # A session of its own, as Ctrl-C is for the tasks; it closes its stdout when it has shown the link.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        wait_readable([self._process.stdout.fileno()], _SHOWS_LINK_WITHIN)

    def close(self) -> None:
        """End the process."""
        end_process(self._process)
        self._say(f"to look at it again: tflaunch web {self._run}")
