"""`web`: show runs in a browser; `up --web`: show one beside its terminal."""

import os
import signal
import subprocess
import tempfile

import click

from tflaunch.cli.arguments.launch import Launching
from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.install_command import command_for_extra
from tflaunch.interruptible import wait_readable
from tflaunch.own_process import end_process, own_command
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import linux

_SHOWS_LINK_WITHIN = 30.0  # seconds to import what serves it, on a busy machine


@click.command()
@run_argument
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port on localhost; default: 7575 if it is free, else any.",
)
@click.option("--owner", type=int, hidden=True, help="End with this process.")
def web(run: str | None, port: int | None, owner: int | None) -> None:
    """Serve a page about your runs on this machine until Ctrl-C, and print its link.

    The link works once, for one browser; then another one is printed. With RUN, the name of a run or job, or a prefix
    of one, it leads to that run. Over SSH, the command that makes the page reachable from your own machine is printed,
    too. Needs starlette and uvicorn, which tflaunch[web] brings.

    \b
    Example:
      tflaunch web
    """
    _require_server()
    from tflaunch.features.web import server  # it needs these packages

    if owner is not None:
        linux.die_with_parent(signal.SIGTERM)
        if os.getppid() != owner:
            return
    shown = None if run is None else runs.find_run(run)
    server.serve(say, port, shown, is_beside=owner is not None)


def _require_server() -> None:
    """Require the packages that serve the page, or say how to install them."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        message = f"the page needs {error.name}, which is not installed: {command_for_extra('web')}"
        raise TflaunchError(message, EXIT_USAGE) from None


def check_start(value: object, launching: Launching) -> None:
    """Require that a run has a terminal, and its page what serves it.

    Raises:
        click.UsageError: it has no terminal.
        TflaunchError: packages are missing.
    """
    if launching.options.outlives_terminal or launching.engine is not None:
        raise click.UsageError("--web goes with a run in this terminal; `tflaunch web` shows any other one")
    _require_server()


class PageBeside(Watcher):
    """Serves the page in another process; without it, the run goes on."""

    def __init__(self, supervision: Supervision) -> None:
        """Start the process, and wait until it has shown the link."""
        self._run = supervision.job.run
        self._say = supervision.say
        self._process: subprocess.Popen[bytes] | None = None
        if last_words := self._start():
            self._say(f"warning: the page cannot be shown, and the run goes on without it: {last_words}")

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
