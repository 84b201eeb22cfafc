"""A connection to the debugger of a task that waits at a breakpoint, through the run's supervisor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tflaunch.client import requests
from tflaunch.client.control_client import ControlClient, NoSupervisor
from tflaunch.core.job_state import Breakpoint
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.explain.wording import place_of
from tflaunch_worker import fields


class DebuggerConnection(ABC):
    """What a terminal and an editor have in common."""

    def __init__(self, directory: Path, tasks: Sequence[str], *, is_editor: bool) -> None:
        """Ask to debug the first of some tasks that waits at a breakpoint.

        Args:
            directory: the run's directory.
            tasks: their names; none for all tasks of the run.
            is_editor: whether an editor debugs it, not a terminal.

        Raises:
            TflaunchError: the run has no supervisor.
        """
        self.task = ""
        """The task that is debugged, "" while none waits."""
        self.place = ""
        """Where it waits."""
        self._directory = directory
        self._is_asked = False
        try:
            self._client = ControlClient(directory)
            self._client.say("debug", tasks=list(tasks), **({"is_editor": True} if is_editor else {}))
        except NoSupervisor:
            raise requests.why_over(directory) from None

    def _converse(self) -> dict[str, Any]:
        """Pass on what either side sends until the task is no longer debugged; return the message that ends this.

        Raises:
            TflaunchError: no task has this name, or the supervisor has exited.
        """
        try:
            while True:
                message = self._next_message()
                if message is None:
                    self._pass_on()
                elif message["kind"] == "debugger_left":
                    self.task = self.task or str(message.get("task"))
                    return message
                else:
                    self._obey(message)
        except NoSupervisor:
            raise requests.why_over(self._directory) from None
        finally:
            self._client.close()

    def _next_message(self) -> dict[str, Any] | None:
        """Return the next message, None if input is asked for and is there."""
        if not self._is_asked:
            return self._client.hear()
        descriptor = self._awaited_input()
        return None if descriptor is None else self._client.hear_or(descriptor)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "refused":
                raise TflaunchError(str(message.get("reason")), EXIT_USAGE)
            case "debugger_attached":
                self.task = str(message.get("task"))
                file, function = fields.text(message, "file"), fields.text(message, "function")
                self.place = place_of(Breakpoint(file, fields.integer(message, "line"), function))
                self._attached()
            case "debugger_output":
                self._show(fields.text(message, "text"))
                self._client.say("debug_read")
            case "debugger_asks":
                self._is_asked = True
            case _:
                self._obey_other(message)

    def _answer(self, text: str | None) -> None:
        """Send input that was asked for; None lets the task continue."""
        self._is_asked = False
        if text is None:
            self._client.say("debug_continue")
        else:
            self._client.say("debug_line", text=text)

    @abstractmethod
    def _awaited_input(self) -> int | None:
        """Return the file descriptor of the input that is waited for, None if there is some already."""

    @abstractmethod
    def _pass_on(self) -> None:
        """Read input, and answer with it when it is complete."""

    @abstractmethod
    def _attached(self) -> None:
        """Tell that `task` can be debugged."""

    @abstractmethod
    def _show(self, text: str) -> None:
        """Show what the debugger has written."""

    @abstractmethod
    def _obey_other(self, message: dict[str, Any]) -> None:
        """Obey a message that only one of both expects, or that is of a later version."""
