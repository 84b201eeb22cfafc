"""The launcher's side of debugging tasks of one host: terminals, each known to the agent by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tflaunch.core.job_state import Breakpoint
from tflaunch.core.records import read_record
from tflaunch_worker import fields
from tflaunch_worker.agent.breakpoints import MOST_OUTPUT

KINDS = frozenset({"debugger_attached", "debugger_output", "debugger_asks", "debugger_left"})
"""The kinds of the agent's messages."""

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


class Debugging(NamedTuple):
    """What an attached terminal can do; nothing happens once it has left."""

    write_line: Callable[[str], None]
    read_on: Callable[[], None]
    leave: Callable[[bool], None]
    """With True, the process continues without a debugger, and `Terminal.left` follows; else it keeps waiting."""


class _Attached(NamedTuple):
    task: str
    attempt: int
    terminal: Terminal


class DebuggerLink:
    """The terminals that debug tasks of one host."""

    def __init__(self, ask: Callable[..., bool]) -> None:
        """Send messages by ``ask(kind, **fields)``, which returns whether the agent is connected."""
        self._ask = ask
        self._last = 0
        self._terminals: dict[int, _Attached] = {}

    def attach(self, task: str, attempt: int, terminal: Terminal) -> Debugging:
        """Attach a terminal to the process of a task that waits at a breakpoint, instead of any earlier one."""
        self._last += 1
        number = self._last
        about = {"task": task, "attempt": attempt, "terminal": number}
        self._terminals[number] = _Attached(task, attempt, terminal)

        def send(kind: str, **more: Any) -> None:
            if number in self._terminals:
                self._ask(kind, **about, **more)

        def leave(continues: bool) -> None:
            send("leave_debugger", continues=continues)
            if not continues:
                self._terminals.pop(number, None)

        if not self._ask("attach_debugger", **about):
            self._leave(number, LINK_LOST)
        return Debugging(lambda text: send("write_debugger", text=text), lambda: send("read_debugger"), leave)

    def forget(self) -> None:
        """Detach all terminals: the link is lost, and the agent does the same."""
        for number in list(self._terminals):
            self._leave(number, LINK_LOST)

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Take a message of the agent.

        Raises:
            ValueError: it is malformed, or about a terminal that never was.
        """
        number = fields.integer(message, "terminal", 1, self._last)
        kind = message["kind"]
        reason = fields.text(message, "reason") if kind == "debugger_left" else ""
        place = read_record(Breakpoint, message) if kind == "debugger_attached" else None
        if (kind == "debugger_left" and reason not in REASONS[:-1]) or len(body) > MOST_OUTPUT:
            raise ValueError("it reports about a debugger what cannot be")
        attached = self._terminals.get(number)
        if attached is None:
            return  # it has left in the meantime
        if (message.get("task"), message.get("attempt")) != attached[:2]:
            raise ValueError("it reports about the debugger of another task")
        if place is not None:
            attached.terminal.attached(place)
        elif kind == "debugger_output":
            attached.terminal.show(body.decode("utf-8", "replace"))
        elif kind == "debugger_asks":
            attached.terminal.asked()
        else:
            self._leave(number, reason)

    def _leave(self, number: int, reason: str) -> None:
        attached = self._terminals.pop(number, None)
        if attached is not None:
            attached.terminal.left(reason)
