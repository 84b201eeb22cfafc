"""`debug`: use the debugger of a task that waits at a `breakpoint()`, in this terminal or in an editor."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from tflaunch.cli._select import choose, run_and_tasks_argument
from tflaunch.cli._spec import say
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.client.editor_debugging import Ready

_INTERRUPTED = 130


@click.command(short_help="Debug a task that waits at a breakpoint().")
@click.option("--debugpy", "is_editor", is_flag=True, help="Let an editor debug the task, with debugpy.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Port of this machine for the editor: by default 5678, or a free one if that is in use.",
)  # fmt: skip
@run_and_tasks_argument
def debug(is_editor: bool, port: int | None, words: tuple[str, ...]) -> int:
    """Attach this terminal to the debugger (pdb) of a TASK of RUN that waits at a breakpoint().

    Without TASK, to the first one that waits; if none does, wait for one. `c` continues the task, and so does Ctrl-D;
    `q` ends the run; after Ctrl-C the task keeps waiting. Time limits for what hangs (stall, start, finish) are
    suspended while it waits.

    With --debugpy, print the launch configuration with which an editor (VS Code, or another that speaks the debug
    adapter protocol) attaches to the task. debugpy must be installed for the Python of the task. The task continues
    when the editor disconnects, and after Ctrl-C; before an editor has connected, Ctrl-C leaves it waiting.

    \b
    Examples:
      tflaunch debug worker:1
      tflaunch debug worker:1 --debugpy
    """
    from tflaunch.client import runs
    from tflaunch.plan import selectors

    if port is not None and not is_editor:
        raise click.UsageError("--port is for editors; write --debugpy, too")
    directory, wanted = choose(words)
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
    return _serve_editor(directory, tasks, port) if is_editor else _debug_here(directory, tasks)


def _debug_here(directory: Path, tasks: list[str]) -> int:
    """Use the debugger in this terminal."""
    from tflaunch.agents.debugger_link import LINK_LOST
    from tflaunch.client.debugging import DebuggerClient, Outlet

    run = directory.name
    client = DebuggerClient(directory, tasks, sys.stdin.fileno(), Outlet(_show, say))
    try:
        reason = client.run()
    except KeyboardInterrupt:
        click.echo(err=True)
        if client.task:
            say(f"{client.task} keeps waiting: tflaunch debug {run} {client.task} returns to it")
        return _INTERRUPTED
    say(_farewell(run, client.task, reason))
    return _exit_code(reason, LINK_LOST)


def _serve_editor(directory: Path, tasks: list[str], port: int | None) -> int:
    """Let an editor of this machine debug a task."""
    from tflaunch.agents.debugger_link import LINK_LOST
    from tflaunch.client.editor_debugging import EditorClient

    run = directory.name
    client = EditorClient(directory, tasks, port, lambda ready: _tell_configuration(directory, ready), say)
    try:
        left = client.run()
    except KeyboardInterrupt:
        click.echo(err=True)
        if client.has_editor:
            say(f"{client.task} continues without its editor")
        elif client.task:
            say(f"{client.task} keeps waiting: tflaunch debug {run} {client.task} --debugpy returns to it")
        return _INTERRUPTED
    if left.reason == "refused":
        say(f"no editor can debug {client.task}, which keeps waiting: {left.problem}")
    elif left.reason == LINK_LOST and client.has_editor:
        say(f"the link to the host of {client.task} was lost; the task continues without its editor")
    else:
        say(_farewell(run, client.task, left.reason))
    return _exit_code(left.reason, LINK_LOST)


def _tell_configuration(directory: Path, ready: Ready) -> None:
    """Print how an editor attaches to a task."""
    from tflaunch.client import runs
    from tflaunch.client.editor_debugging import HOST

    plan = runs.plan_of(directory)
    configuration: dict[str, object] = {
        "name": f"{ready.task} of {directory.name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": HOST, "port": ready.port},
    }
    if not plan.is_local(plan.find(ready.task).host):
        mapping = {"localRoot": "${workspaceFolder}", "remoteRoot": ready.directory}
        configuration["pathMappings"] = [mapping]
    say(
        f"{ready.task} waits in {ready.place}; an editor can attach to {HOST}:{ready.port} with this configuration "
        "(in VS Code, in launch.json); Ctrl-C leaves it waiting"
    )
    click.echo(json.dumps(configuration, indent=2))


def _exit_code(reason: str, link_lost: str) -> int:
    return {link_lost: EXIT_INTERNAL, "refused": EXIT_USAGE, "in_editor": EXIT_USAGE}.get(reason, 0)


def _show(text: str) -> None:
    """Print output of the debugger, without what could control the terminal."""
    from tflaunch.tui import escapes

    sys.stdout.buffer.write(escapes.without_commands(text.encode("utf-8", "replace")))
    sys.stdout.buffer.flush()


def _farewell(run: str, task: str, reason: str) -> str:
    """Return what became of the task that was debugged."""
    back = f"tflaunch debug {run} {task}"
    known = {
        "continued": f"{task} continues",
        "quit": f"ending {run}, as its debugger asks",
        "stopped": f"{task} is being stopped",
        "in_editor": f"an editor debugs {task} already; it must disconnect first",
        "replaced": f"another terminal debugs {task} now",
        "link_lost": f"the link to the host of {task} was lost; the task keeps waiting: {back}",
    }
    return known.get(reason, f"{task} waits no longer: the thread that did has ended, or goes on")
