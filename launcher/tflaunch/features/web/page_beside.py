"""`up --web`: serve the page about a run beside it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

import click

from tflaunch.features.web.command import require_server
from tflaunch.interruptible import wait_readable
from tflaunch.own_process import end_process, own_command
from tflaunch.runtime.watchers import Supervision, Watcher

if TYPE_CHECKING:
    from tflaunch.cli.arguments.launch import Launching

_SHOWS_LINK_WITHIN = 30.0  # seconds to import what serves it, on a busy machine
_MOST_STARTS = 3


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
        self._process: subprocess.Popen[bytes] | None = None
        last_words = ""
        for _ in range(_MOST_STARTS):
            last_words = self._start()
            if self._process is not None:
                return
        ends = f"its process has ended at each of {_MOST_STARTS} starts: {last_words}"
        self._say(f"warning: the page cannot be shown, and the run goes on without it: {ends}")

    def _start(self) -> str:
        """Start the process and show its link; return its last line on failure, else ""."""
        command = own_command("web", self._run, "--owner", str(os.getpid()))
        with tempfile.TemporaryFile() as errors:
            # A session of its own, as Ctrl-C is for the tasks.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
            assert process.stdout is not None
            with process.stdout as shown:
                in_time = wait_readable([shown.fileno()], _SHOWS_LINK_WITHIN)
                is_shown = bool(in_time) and bool(shown.read(1))
            if not is_shown:
                end_process(process)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines()
        if not is_shown:
            last_line = lines[-1] if lines else f"exit code {process.returncode}"
            return last_line.removeprefix("tflaunch: ")
        self._process = process
        for line in lines:
            self._say(line.removeprefix("tflaunch: "))
        return ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            end_process(self._process)
            self._say(f"to look at it again: tflaunch web {self._run}")
