"""The launcher's side of debugging the tasks of one host: each terminal is a call to its agent."""

from __future__ import annotations

from typing import Any, Protocol

from tflaunch.agents.calls import Calls, Waiter
from tflaunch.core.task_state import Breakpoint
from tflaunch.records import read_record
from tflaunch_worker import fields
from tflaunch_worker.features.debug.breakpoints import MOST_OUTPUT

LINK_LOST = "link_lost"
REASONS = ("continued", "ended", "quit", "replaced", "stopped", LINK_LOST)
"""Why a terminal is not attached any more; the last one never comes from an agent."""


class Terminal(Protocol):
    """A terminal that is attached to a process of a task, or will be."""

    def attached(self, found: Breakpoint) -> None:
        """Take where the process waits."""

    def show(self, text: str) -> None:
        """Take output; the next one follows after `Debugging.read_on`."""

    def asked(self) -> None:
        """The process asks for a command."""

    def left(self, reason: str) -> None:
        """The terminal is not attached any more; see `REASONS`."""


class Debugging:
    """What an attached terminal can do; nothing happens once it has left."""

    def __init__(self, calls: Calls, task: str, attempt: int, terminal: Terminal) -> None:
        """Attach a terminal to the process of a task that waits at a breakpoint, instead of any earlier one."""
        self._terminal = terminal
        waiter = Waiter(self._left, lambda: terminal.left(LINK_LOST), self._told)
        self._call = calls.begin("attach_debugger", waiter, task=task, attempt=attempt)

    def write_line(self, text: str) -> None:
        """Give the process a command."""
        self._call.tell(what="line", text=text)

    def read_on(self) -> None:
        """Note that the last output was shown."""
        self._call.tell(what="read_on")

    def continue_task(self) -> None:
        """Let the process go on without a debugger; `Terminal.left` follows."""
        self._call.tell(what="continue")

    def leave(self) -> None:
        """Detach the terminal; the process keeps waiting."""
        self._call.end()

    def _told(self, message: dict[str, Any], body: bytes) -> None:
        what = fields.text(message, "what")
        if what == "attached":
            self._terminal.attached(read_record(Breakpoint, message))
        elif what == "output" and len(body) <= MOST_OUTPUT:
            self._terminal.show(body.decode("utf-8", "replace"))
        elif what == "asks":
            self._terminal.asked()
        else:
            raise ValueError("it reports about a debugger what cannot be")

    def _left(self, message: dict[str, Any], body: bytes) -> None:
        reason = fields.text(message, "reason")
        if reason not in REASONS[:-1]:
            raise ValueError("it reports about a debugger what cannot be")
        self._terminal.left(reason)
