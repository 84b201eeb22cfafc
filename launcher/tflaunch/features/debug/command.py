"""`debug`: use the debugger of a task that waits at a `breakpoint()`."""

from __future__ import annotations

import sys

import click

from tflaunch.cli.arguments.select import choose, run_and_tasks_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.features.debug import LINK_LOST
from tflaunch.features.debug.debugging import DebuggerClient
from tflaunch.plan import selectors
from tflaunch.tui import escapes

_INTERRUPTED = 130


@click.command()
@run_and_tasks_argument
def debug(words: tuple[str, ...]) -> int:
    """Attach this terminal to the debugger (pdb) of a TASK of RUN that waits at a breakpoint().

    Without TASK, to the first one that waits; if none does, wait for one. `c` continues the task, and so does Ctrl-D;
    `q` ends the run; after Ctrl-C the task keeps waiting. Time limits for what hangs (stall, finish) are
    suspended while it waits.

    \b
    Example:
      tflaunch debug worker:1
    """
    directory, wanted = choose(words)
    run = directory.name
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
    client = DebuggerClient(directory, tasks, sys.stdin.fileno(), _show, say)
    try:
        reason = client.run()
    except KeyboardInterrupt:
        click.echo(err=True)
        if client.task:
            say(f"{client.task} keeps waiting: tflaunch debug {run} {client.task} returns to it")
        return _INTERRUPTED
    say(_farewell(run, client.task, reason))
    return EXIT_INTERNAL if reason == LINK_LOST else 0


def _show(text: str) -> None:
    """Print output of the debugger, without what could control the terminal."""
    sys.stdout.buffer.write(escapes.without_commands(text.encode("utf-8", "replace")))
    sys.stdout.buffer.flush()


def _farewell(run: str, task: str, reason: str) -> str:
    """Describe the end of the task that was debugged."""
    back = f"tflaunch debug {run} {task}"
    known = {
        "continued": f"{task} continues",
        "quit": f"ending {run}, as its debugger asks",
        "stopped": f"{task} is being stopped",
        "replaced": f"another terminal debugs {task} now",
        "link_lost": f"the link to the host of {task} was lost; the task keeps waiting: {back}",
    }
    return known.get(reason, f"{task} waits no longer: the thread that did has ended, or goes on")
