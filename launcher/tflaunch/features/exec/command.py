"""`exec`: run a command on the host of a task, or on all hosts."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import click

from tflaunch.cli.arguments.select import choose, complete_runs_and_tasks
from tflaunch.cli.arguments.spec import CommandAfterDashes, say
from tflaunch.client import runs
from tflaunch.explain.wording import listed
from tflaunch.features.exec.own_terminal import OwnTerminal
from tflaunch.features.exec.remote_commands import Ended, RemoteCommands
from tflaunch.plan import selectors
from tflaunch.plan.model import Plan
from tflaunch.tui import escapes
from tflaunch.tui.task_lines import TaskLines, prefix

_LIKE_A_TASK = re.compile(r"\b(chief|worker|ps|evaluator)[-/](\d+)$")  # as containers and pods are called
_TASK = r"\1:\2"


@click.command("exec", cls=CommandAfterDashes)
@click.argument("words", nargs=-1, metavar="[RUN] [TASK] [-- COMMAND...]", shell_complete=complete_runs_and_tasks)
@click.option("--all", "on_all", is_flag=True, help="Run COMMAND on all hosts; lines begin with the host's name.")
@click.option("-i", "--interactive", is_flag=True, hidden=True, expose_value=False, help="Has no effect.")
@click.option("-t", "--tty", is_flag=True, hidden=True, expose_value=False, help="Has no effect.")
def exec_(words: tuple[str, ...], command: tuple[str, ...], on_all: bool) -> int:
    """Run COMMAND, by default a shell, on the host of TASK, in its directory and with its environment.

    From a terminal, COMMAND gets one, too. Otherwise its input and output are passed on as they are; they end with this
    command, and so does COMMAND. The exit code is that of COMMAND; with --all, the first one that is not 0.

    \b
    Examples:
      tflaunch exec worker:1
      tflaunch exec --all -- nvidia-smi
    """
    if on_all and not command:
        example = shlex.join(words) or "nvidia-smi"
        raise click.UsageError(f"--all needs a COMMAND after `--`: tflaunch exec --all -- {example}")
    task_at = next((place for place, word in enumerate(words) if ":" in word or word.startswith("host=")), 1)
    _require_no_more(words, task_at + 1)
    directory, wanted = choose(words)
    if on_all and wanted:
        raise click.UsageError(f"--all is for all hosts, so that {shlex.join(wanted)} is not expected here")
    task = "" if on_all else _require_task(runs.plan_of(directory), wanted)
    has_terminal = not on_all and sys.stdin.isatty() and sys.stdout.isatty()
    terminal = OwnTerminal(sys.stdin.fileno()) if has_terminal else None
    remote = RemoteCommands(directory)
    try:
        hosts = remote.begin(task, command, terminal)
        if on_all:
            lines = _Lines(hosts)
            ended = remote.run(lines.show, None, None)
            lines.flush()
        else:
            with terminal or nullcontext():
                ended = remote.run(_show, sys.stdin.fileno(), terminal)
    finally:
        remote.close()
    return _tell_end(ended, on_all)


def _require_task(plan: Plan, wanted: Sequence[str]) -> str:
    """Return the only task that is selected, or the first one of a host."""
    _require_no_more(wanted, 1)
    tasks = selectors.select_tasks(plan, wanted)
    if len(tasks) > 1 and not (wanted and wanted[0].startswith("host=")):
        raise click.UsageError(f"name one TASK of {listed(tasks)}; --all runs a COMMAND on all hosts")
    return tasks[0]


def _require_no_more(words: Sequence[str], number: int) -> None:
    """Require that at most ``number`` words precede the command."""
    known, more = shlex.join(words[:number]), shlex.join(words[number:])
    if more and ":" in words[number]:
        raise click.UsageError(f"{more!r} is not expected here: name one TASK, or --all for all hosts")
    if more:
        usage = f"tflaunch exec {_LIKE_A_TASK.sub(_TASK, known)} -- {more}"
        raise click.UsageError(f"{more!r} is not expected here; a COMMAND goes after `--`: {usage}")


def _tell_end(ended: dict[str, Ended], on_all: bool) -> int:
    """Say what has failed, and return the exit code."""
    for host, (code, problem) in ended.items():
        if on_all and code:
            say(f"{host}: {problem or f'exit code {code}'}")
        elif problem:
            say(problem)
    return next((code for code, _ in ended.values() if code), 0)


def _show(host: str, what: str, data: bytes) -> None:
    """Write output as it is."""
    descriptor = 1 if what == "output" else 2
    while data:
        data = data[os.write(descriptor, data) :]


class _Lines:
    """Shows the lines of all hosts, each with the host's name."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._lines: dict[tuple[str, str], TaskLines] = {}
        width = max(map(len, hosts), default=0)
        for what, stream in (("output", sys.stdout), ("errors", sys.stderr)):
            clean = escapes.without_commands if stream.isatty() else None
            self._lines |= {(host, what): TaskLines(prefix(host, width, None), clean) for host in hosts}

    def show(self, host: str, what: str, data: bytes) -> None:
        """Show the lines that this output completes."""
        _show(host, what, self._lines[host, what].feed(data))

    def flush(self) -> None:
        """Show the lines that have no end."""
        for (host, what), lines in self._lines.items():
            _show(host, what, lines.flush())
