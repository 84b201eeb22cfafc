"""Use the debugger of a task that waits at a breakpoint: its output here, and commands from a file descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.client.debugger_connection import DebuggerConnection
from tflaunch_worker.agent.breakpoints import LONGEST_LINE

_READ = 64 * 1024


class Outlet(NamedTuple):
    """Where a debugger's output goes (``show``), and messages about it (``say``)."""

    show: Callable[[str], None]
    say: Callable[[str], None]


class DebuggerClient(DebuggerConnection):
    """A terminal for the debugger of one task."""

    def __init__(self, directory: Path, tasks: Sequence[str], commands: int, outlet: Outlet) -> None:
        """Ask to debug the first of some tasks that waits at a breakpoint.

        Args:
            directory: the run's directory.
            tasks: their names; none for all tasks of the run.
            commands: the file descriptor from which commands are read.
            outlet: gets the output.

        Raises:
            TflaunchError: the run has no supervisor.
        """
        super().__init__(directory, tasks, is_editor=False)
        self._commands = _Lines(commands)
        self._outlet = outlet

    def run(self) -> str:
        """Pass on commands and output until the terminal is not attached any more; return why.

        The reasons are those of `agents.debugger_link.REASONS`. At the end of the commands, the task continues.

        Raises:
            TflaunchError: no task has this name, or the supervisor has exited.
        """
        return str(self._converse().get("reason"))

    def _awaited_input(self) -> int | None:
        return self._commands.descriptor if self._commands.is_empty else None

    def _attached(self) -> None:
        keys = "c continues it, q ends the run, Ctrl-C leaves it waiting"
        self._outlet.say(f"{self.task} waits in {self.place}; {keys}")

    def _show(self, text: str) -> None:
        self._outlet.show(text)

    def _obey_other(self, message: dict[str, Any]) -> None:
        if message["kind"] == "debugger_waits":
            self._outlet.say("no task waits at a breakpoint yet; waiting for one (Ctrl-C ends the wait)")

    def _pass_on(self) -> None:
        try:
            line = self._commands.take()
        except ValueError as error:
            self._outlet.say(str(error))
            return
        if line is not None:
            self._answer(line.rstrip("\n") if line else None)


class _Lines:
    """Reads lines from a descriptor, each only when it is needed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._data = b""
        self._is_at_end = False

    @property
    def is_empty(self) -> bool:
        """Whether more must be read before there is a line."""
        return b"\n" not in self._data and not self._is_at_end

    def take(self) -> str | None:
        """Return the next line with its newline; "" at the end, None if only a part of one is there yet.

        Raises:
            ValueError: it is too long; it is left out.
        """
        if self.is_empty:
            data = os.read(self.descriptor, _READ)
            self._is_at_end = not data
            self._data += data
        line, newline, rest = self._data.partition(b"\n")
        if not newline and not self._is_at_end:
            return None
        self._data = rest
        self._is_at_end = self._is_at_end and bool(rest)  # a terminal can go on after Ctrl-D
        text = (line + newline).decode("utf-8", "replace")
        if len(text) > LONGEST_LINE:
            raise ValueError(f"a command has at most {LONGEST_LINE} characters")
        return text
