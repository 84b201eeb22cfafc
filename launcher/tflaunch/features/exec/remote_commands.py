"""Run a command on hosts of a run, with the input and output of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.client.control_client import ControlClient
from tflaunch.client.runs import NoSupervisorError
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.exec.own_terminal import OwnTerminal
from tflaunch.interruptible import wait_readable
from tflaunch_worker import fields
from tflaunch_worker.features.exec.running_command import PART, WINDOW

_MOST_WORDS = 48 * 1024  # bytes, of what a supervisor takes in one request
_NO_TERMINAL = {"columns": 0, "rows": 0}

Show = Callable[[str, str, bytes], None]
"""Shows some output: the host, ``output`` or ``errors``, and the bytes."""


class Ended(NamedTuple):
    """The exit code of a command on a host, and the ``problem`` if it is not its own."""

    code: int
    problem: str


class RemoteCommands:
    """A command on the host of a task, or on all hosts."""

    def __init__(self, directory: Path) -> None:
        """Connect to the supervisor of the run in a directory.

        Raises:
            TflaunchError: the run has none.
        """
        self._stdin: int | None = None
        self._room = WINDOW
        self._hosts: list[str] = []
        self._ended: dict[str, Ended] = {}
        try:
            self._client = ControlClient(directory)
        except NoSupervisorError as error:
            hint = f"exec needs a live run, and `tflaunch logs {directory.name}` shows what its tasks wrote"
            raise TflaunchError(f"{error}; {hint}", EXIT_USAGE) from None

    def begin(self, task: str, argv: Sequence[str], terminal: OwnTerminal | None) -> list[str]:
        """Begin ``argv`` or a shell beside a task, "" for all hosts; return the hosts.

        Raises:
            TflaunchError: the supervisor refuses, has exited, or does not answer.
        """
        if sum(len(os.fsencode(word)) + 3 for word in argv) > _MOST_WORDS:
            raise TflaunchError(f"the command has more than {_MOST_WORDS} bytes; put it into a file", EXIT_USAGE)
        size, term = (_NO_TERMINAL, "") if terminal is None else (terminal.size, os.environ.get("TERM", ""))
        try:
            begun = self._client.ask("exec", task=task, argv=list(argv), term=term, **size)
        except NoSupervisorError as error:
            raise TflaunchError(str(error), EXIT_INTERNAL) from None
        self._hosts = fields.texts(begun, "hosts")
        return self._hosts

    def run(self, show: Show, stdin: int | None, terminal: OwnTerminal | None) -> dict[str, Ended]:
        """Pass on input and output until the command has ended; return its end per host.

        Args:
            show: gets the output.
            stdin: the descriptor with the input for the only host; None for no input.
            terminal: what that is, if it is one that the command uses.

        Raises:
            TflaunchError: the supervisor has exited.
        """
        self._stdin = stdin
        try:
            if stdin is None:
                for host in self._hosts:
                    self._tell(host, "end_input")
            while len(self._ended) < len(self._hosts):
                self._serve(show, terminal)
        except NoSupervisorError as error:
            raise TflaunchError(str(error), EXIT_INTERNAL) from None
        return {host: self._ended[host] for host in self._hosts}

    def close(self) -> None:
        """Disconnect, which ends the command."""
        self._client.close()

    def _serve(self, show: Show, terminal: OwnTerminal | None) -> None:
        """Serve at most one event of each source, so that Ctrl-C gets through any output."""
        stdin = self._stdin if self._room else None
        watched = [stdin, None if terminal is None else terminal.changes, self._client.descriptor]
        patience = 0 if self._client.has_message else None
        ready = wait_readable([each for each in watched if each is not None], patience)
        if terminal is not None and terminal.changes in ready:
            self._tell(self._hosts[0], "resize", **terminal.take_change())
        if stdin in ready:
            self._pass_input(terminal is not None)
        message = self._client.hear(0)
        if message is not None:
            self._obey(message, show)

    def _pass_input(self, is_terminal: bool) -> None:
        assert self._stdin is not None
        try:
            data = os.read(self._stdin, min(PART, self._room))
        except OSError:
            data = b""
        if data:
            self._room -= len(data)
            self._tell(self._hosts[0], "input", data)
        elif is_terminal:
            raise KeyboardInterrupt  # it is gone
        else:
            self._stdin = None
            self._tell(self._hosts[0], "end_input")

    def _obey(self, message: dict[str, Any], show: Show) -> None:
        kind, host = message["kind"], str(message.get("host"))
        if kind == "refused":
            raise TflaunchError(str(message.get("reason")), EXIT_INTERNAL)
        if kind == "exec_ended":
            self._ended[host] = Ended(fields.integer(message, "code"), fields.text(message, "problem"))
        elif message.get("what") == "took":
            self._room += fields.integer(message, "size")
        elif kind == "exec_told":
            show(host, str(message.get("what")), message["body"])
            self._tell(host, "took", size=len(message["body"]))

    def _tell(self, host: str, what: str, body: bytes = b"", /, **about: int) -> None:
        self._client.say("exec_tell", body, host=host, what=what, **about)
