"""`exec`: run a command on the host of a task, or on all hosts."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.arguments.select import choose, complete_runs_and_tasks
from tflaunch.cli.arguments.spec import CommandAfterDashes, say
from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.explain.wording import listed
from tflaunch.interruptible import handle_signals, wait_readable
from tflaunch.plan import selectors
from tflaunch.tui import formatting, terminal
from tflaunch.tui.screen import TaskLines, prefix
from tflaunch_worker import fields
from tflaunch_worker.features.exec.running_command import PART, WINDOW

_LIKE_A_TASK = re.compile(r"\b(chief|worker|ps|evaluator)[-/](\d+)$")  # as containers and pods are called
_TASK = r"\1:\2"
_MOST_WORDS = 48 * 1024  # bytes, of what a supervisor takes in one request
_NO_TERMINAL = {"columns": 0, "rows": 0}

Ends = dict[str, tuple[int, str]]
"""The exit code of a command on each host, and the problem if it is not its own."""

Show = Callable[[str, str, bytes], None]
"""Shows some output: the host, ``output`` or ``errors``, and the bytes."""
_READ = 4096


@click.command("exec", cls=CommandAfterDashes)
@click.argument("words", nargs=-1, metavar="[RUN] [TASK] [-- COMMAND...]", shell_complete=complete_runs_and_tasks)
@click.option("--all", "on_all", is_flag=True, help="Run COMMAND on all hosts; lines begin with the host's name.")
@click.option("-i", "--interactive", is_flag=True, hidden=True, expose_value=False, help="Has no effect.")
@click.option("-t", "--tty", is_flag=True, hidden=True, expose_value=False, help="Has no effect.")
def exec_(words: tuple[str, ...], command: tuple[str, ...], on_all: bool) -> int:
    """Run COMMAND (default: a shell) on TASK's host, in its directory and environment.

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
    task = ""
    if not on_all:
        _require_no_more(wanted, 1)
        task, *others = selectors.select_tasks(runs.plan_of(directory), wanted)
        if others and not (wanted and wanted[0].startswith("host=")):
            raise click.UsageError(f"name one TASK of {listed([task, *others])}; --all runs a COMMAND on all hosts")
    has_terminal = not on_all and sys.stdin.isatty() and sys.stdout.isatty()
    terminal = OwnTerminal(sys.stdin.fileno()) if has_terminal else None
    remote = RemoteCommands(directory, terminal)
    try:
        hosts = remote.begin(task, command)
        if on_all:
            lines = _Lines(hosts)
            ended = remote.run(lines.show, None)
            lines.flush()
        else:
            with nullcontext() if terminal is None else terminal.taken_over():
                ended = remote.run(_show, sys.stdin.fileno())
    except runs.NoSupervisorError as error:
        raise TflaunchError(str(error), EXIT_INTERNAL) from None
    finally:
        remote.close()
    for host, (code, problem) in ended.items():
        if on_all and code:
            say(f"{host}: {problem or f'exit code {code}'}")
        elif problem:
            say(problem)
    return next((code for code, _ in ended.values() if code), 0)


def _require_no_more(words: Sequence[str], number: int) -> None:
    known, more = shlex.join(words[:number]), shlex.join(words[number:])
    if more and ":" in words[number]:
        raise click.UsageError(f"{more!r} is not expected here: name one TASK, or --all for all hosts")
    if more:
        usage = f"tflaunch exec {_LIKE_A_TASK.sub(_TASK, known)} -- {more}"
        raise click.UsageError(f"{more!r} is not expected here; a COMMAND goes after `--`: {usage}")


def _show(host: str, what: str, data: bytes) -> None:
    descriptor = 1 if what == "output" else 2
    while data:
        data = data[os.write(descriptor, data) :]


class _Lines:
    """Shows the lines of all hosts, each with the host's name."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._lines: dict[tuple[str, str], TaskLines] = {}
        width = max(map(len, hosts), default=0)
        for what, stream in (("output", sys.stdout), ("errors", sys.stderr)):
            clean = formatting.without_commands if stream.isatty() else None
            self._lines |= {(host, what): TaskLines(prefix(host, width, None), clean) for host in hosts}

    def show(self, host: str, what: str, data: bytes) -> None:
        _show(host, what, self._lines[host, what].feed(data))

    def flush(self) -> None:
        for (host, what), lines in self._lines.items():
            _show(host, what, lines.flush())


class RemoteCommands:
    """A command on the host of a task, or on all hosts."""

    def __init__(self, directory: Path, terminal: OwnTerminal | None) -> None:
        """Connect to the supervisor of a run; the command gets the terminal.

        Raises:
            TflaunchError: the run has none.
        """
        self._terminal = terminal
        self._stdin: int | None = None
        self._room = WINDOW
        self._hosts: list[str] = []
        self._ended: Ends = {}
        try:
            self._client = ControlClient(directory)
        except runs.NoSupervisorError as error:
            hint = f"exec needs a live run, and `tflaunch logs {directory.name}` shows what its tasks wrote"
            raise TflaunchError(f"{error}; {hint}", EXIT_USAGE) from None

    def begin(self, task: str, argv: Sequence[str]) -> list[str]:
        """Begin ``argv`` or a shell beside a task, "" for all hosts; return the hosts.

        Raises:
            TflaunchError: the supervisor refuses, has exited, or does not answer.
        """
        if sum(len(os.fsencode(word)) + 3 for word in argv) > _MOST_WORDS:
            raise TflaunchError(f"the command has more than {_MOST_WORDS} bytes; put it into a file", EXIT_USAGE)
        terminal = self._terminal
        size, term = (_NO_TERMINAL, "") if terminal is None else (terminal.size, os.environ.get("TERM", ""))
        begun = self._client.ask("exec", task=task, argv=list(argv), term=term, **size)
        self._hosts = fields.texts(begun, "hosts")
        return self._hosts

    def run(self, show: Show, stdin: int | None) -> Ends:
        """Pass on input and output until the command has ended; return its end per host.

        ``stdin`` is the descriptor with the input for the only host, None for no input.

        Raises:
            NoSupervisorError: the supervisor has exited.
        """
        self._stdin = stdin
        if stdin is None:
            for host in self._hosts:
                self._tell(host, "end_input")
        while len(self._ended) < len(self._hosts):
            self._serve(show)
        return {host: self._ended[host] for host in self._hosts}

    def close(self) -> None:
        """Disconnect, which ends the command."""
        self._client.close()

    def _serve(self, show: Show) -> None:
        """Serve at most one event of each source, so that Ctrl-C gets through any output."""
        terminal, stdin = self._terminal, self._stdin if self._room else None
        watched = [stdin, None if terminal is None else terminal.changes, self._client.descriptor]
        patience = 0 if self._client.has_message else None
        ready = wait_readable([each for each in watched if each is not None], patience)
        if terminal is not None and terminal.changes in ready:
            self._tell(self._hosts[0], "resize", **terminal.take_change())
        if stdin in ready:
            self._pass_input()
        message = self._client.hear(0)
        if message is not None:
            self._obey(message, show)

    def _pass_input(self) -> None:
        assert self._stdin is not None
        try:
            data = os.read(self._stdin, min(PART, self._room))
        except OSError:
            data = b""
        if data:
            self._room -= len(data)
            self._tell(self._hosts[0], "input", data)
        elif self._terminal is not None:
            raise KeyboardInterrupt  # it is gone
        else:
            self._stdin = None
            self._tell(self._hosts[0], "end_input")

    def _obey(self, message: dict[str, Any], show: Show) -> None:
        kind, host = message["kind"], str(message.get("host"))
        if kind == "refused":
            raise TflaunchError(str(message.get("reason")), EXIT_INTERNAL)
        if kind == "exec_ended":
            self._ended[host] = (fields.integer(message, "code"), fields.text(message, "problem"))
        elif message.get("what") == "took":
            self._room += fields.integer(message, "size")
        elif kind == "exec_told":
            show(host, str(message.get("what")), message["body"])
            self._tell(host, "took", size=len(message["body"]))

    def _tell(self, host: str, what: str, body: bytes = b"", /, **about: int) -> None:
        self._client.say("exec_tell", body, host=host, what=what, **about)


class OwnTerminal:
    """A terminal that passes on all keys as bytes, Ctrl-C and Ctrl-Z too.

    ``changes`` is readable after its size has changed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.changes, self._changed = os.pipe()

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        """Take it over, and give it back as it was."""
        before = termios.tcgetattr(self._descriptor)
        # After a stop, which CONT ends, a shell has changed its modes.
        with handle_signals((signal.SIGWINCH, signal.SIGCONT), lambda *_: os.write(self._changed, b"!")):
            tty.setraw(self._descriptor, termios.TCSADRAIN)
            try:
                yield
            finally:
                with suppress(termios.error):  # it is gone
                    termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def take_change(self) -> dict[str, int]:
        """Return its size after a change."""
        os.read(self.changes, _READ)
        tty.setraw(self._descriptor, termios.TCSADRAIN)
        return self.size

    @property
    def size(self) -> dict[str, int]:
        """Its columns and rows, by these names."""
        columns, rows = terminal.size(self._descriptor)
        return {"columns": columns, "rows": rows}
