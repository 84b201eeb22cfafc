"""`web`: show runs in a browser."""

from __future__ import annotations

import os
import signal

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.install_command import command_for_extra
from tflaunch_worker import linux


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
    """Serve a page about all runs of this user on this machine, print its link, and stop it with Ctrl-C.

    The link works once, for one browser; then another one is printed. With RUN, the name of a run or job, or a prefix
    of one, it leads to that run. Over SSH, the command that makes the page reachable from your own machine is printed,
    too. Needs starlette and uvicorn, which tflaunch[web] brings.

    \b
    Example:
      tflaunch web
    """
    require_server()
    from tflaunch.features.web import server  # it needs these packages

    if owner is not None:
        linux.die_with_parent(signal.SIGTERM)
        if os.getppid() != owner:
            return
    shown = None if run is None else runs.find_run(run)
    server.serve(say, port, shown, None if owner is None else _tell_owner)


def _tell_owner() -> None:
    """Tell the process that has started this one that the link is shown."""
    os.write(1, b"\n")
    os.close(1)


def require_server() -> None:
    """Require the packages that serve the page.

    Raises:
        TflaunchError: they are not installed.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        message = f"the page needs {error.name}, which is not installed: {command_for_extra('web')}"
        raise TflaunchError(message, EXIT_USAGE) from None
