"""`help`, and suggestions for command names that other tools use."""

from __future__ import annotations

import difflib
from collections.abc import Collection

import click

_MEANT = {
    "stop": "down", "end": "down", "cancel": "down", "terminate": "down", "rm": "down", "delete": "down",
    "status": "ps", "top": "ps", "show": "ps", "describe": "ps", "info": "ps",
    "list": "ls", "runs": "ls", "history": "ls",
    "start": "up", "launch": "up", "submit": "up", "apply": "up", "create": "up", "train": "up",
    "resume": "up --resume",
    "exec": "run", "log": "logs", "follow": "attach", "tail": "logs -f",
    "validate": "check", "lint": "check", "journal": "events", "version": "--version",
    "squeue": "queue", "qstat": "queue", "waiting": "queue", "sweep": "up --matrix", "grid": "up --matrix",
    "diagnose": "explain", "why": "explain",
    "dashboard": "web", "ui": "web", "gui": "web", "browse": "web", "open": "web", "page": "web",
    "prof": "profile", "trace": "profile", "flamegraph": "profile", "perf": "profile",
    "pdb": "debug", "breakpoint": "debug", "debugger": "debug",
    "debugpy": "debug", "vscode": "debug",
    "benchmark": "scale", "scaling": "scale", "bench": "scale", "speed": "scale",
    "hang": "stacks", "dump": "stacks", "stack": "stacks", "py-spy": "stacks",
}  # fmt: skip


@click.command("help", short_help="Show how a command is used.")
@click.argument("command", required=False)
@click.pass_context
def help_(context: click.Context, command: str | None) -> None:
    """Show how COMMAND is used, or which commands there are.

    \b
    Example:
      tflaunch help up
    """
    parent = context.parent
    assert parent is not None
    assert isinstance(parent.command, click.Group)
    if command is None:
        click.echo(parent.get_help())
        return
    _, found, _ = parent.command.resolve_command(parent, [command])
    assert found is not None
    with click.Context(found, parent=parent, info_name=command) as inner:
        click.echo(found.get_help(inner))


def no_such_command(name: str, known: Collection[str]) -> click.UsageError:
    """Return the error for an unknown command, with the most likely intended one."""
    near = difflib.get_close_matches(name, [*known, *_MEANT], n=1)
    meant = _MEANT.get(name.lower()) or (_MEANT.get(near[0], near[0]) if near else None)
    remedy = f"did you mean `tflaunch {meant}`?" if meant else "`tflaunch --help` lists the commands"
    return click.UsageError(f"No such command {name!r}; {remedy}")
